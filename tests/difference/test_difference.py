# SPDX-License-Identifier: BSD-3-Clause
"""The difference: its variance, mask, score and flux scale against Monte Carlo and analytic truth."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.ndimage import binary_dilation
from support_pairs import context, pair, scene_exposures, subtract, whole_chain
from support_scoring import robust_std

from skydelta.kernels.convolve import correlated_square
from skydelta.pipeline.simulate import build
from skydelta.stages.difference import Difference
from skydelta.stages.noise import pair_noise


def blank(p, made, margin=10):
    """Pixels away from stars and edges that the difference holds."""
    out = np.isfinite(made["difference"].image)
    out[:margin] = out[-margin:] = out[:, :margin] = out[:, -margin:] = False
    j, i = np.indices(out.shape)
    for x, y in zip(p.x, p.y, strict=True):
        out &= np.hypot(i - x, j - y) > margin
    return out


@pytest.mark.parametrize("widths", [(1.7, 1.25), (1.25, 1.7), (1.5, 1.5)])
@pytest.mark.parametrize("ratio", [0.05, 0.8, 5.0, 20.0])
def test_variance_holds_in_both_directions_and_at_any_flux_ratio(widths, ratio, figure):
    p = pair(
        seed=21,
        shape=(320, 320),
        widths=widths,
        ratio=ratio,
        low=2e4 / min(ratio, 1),
        high=2e5 / min(ratio, 1),
        stars=50,
    )
    _, made = subtract(p)
    use = blank(p, made)
    z = made["difference"].image[use] / np.sqrt(made["difference"].variance[use])
    figure(f"std of D / sigma, widths {widths}, ratio {ratio}", abs(z.std() - 1), 0.02)
    figure(f"score std, widths {widths}, ratio {ratio}", abs(robust_std(made["score"].image[use]) - 1), 0.03)
    assert abs(np.median(z)) < 0.08


@pytest.mark.parametrize("widths", [(1.7, 1.25), (1.25, 1.7)])
def test_flux_is_in_science_units_and_positive_where_science_is_brighter(widths):
    flux = 2e4
    p = pair(seed=22, widths=widths, transients=[(128.3, 77.6, flux)], sky=(50.0, 20.0), low=5000)
    _, made = subtract(p)
    d = made["difference"]
    psf = d.psf.at(128, 78)
    box = np.s_[78 - 6 : 78 + 7, 128 - 6 : 128 + 7]
    assert d.image[box].sum() / psf[14:27, 14:27].sum() == pytest.approx(flux, rel=0.03)
    peak = np.unravel_index(np.nanargmax(made["score"].image), d.shape)
    assert np.hypot(peak[0] - 77.6, peak[1] - 128.3) < 1.5


def test_correlated_noise_of_the_reference_is_measured_and_used(figure):
    p = pair(seed=23, shape=(384, 384), correlate=0.7, sky=(60.0, 300.0), low=8000)
    ctx = context()
    _, made = subtract(p, ctx)
    use = blank(p, made)
    d = made["difference"]
    assert "correlated_noise_reference" in ctx.flags
    figure("std of D / sigma, correlated reference", abs((d.image[use] / np.sqrt(d.variance[use])).std() - 1), 0.03)
    figure("score std, correlated reference", abs(robust_std(made["score"].image[use]) - 1), 0.04)


def test_white_noise_is_called_white():
    p = pair(seed=24)
    assert pair_noise(p.science, p.reference).correlations(0.8) == (None, None)


@pytest.mark.parametrize("settings", [{"high": 5e4, "widths": (2.2, 1.25)}, {"stars": 4000, "high": 2e4}], ids=str)
def test_crowded_stars_do_not_make_noise_correlated(settings):
    """The sky between the stars is not the median of a block; 4000 stars leave too little of it to tell."""
    p = pair(seed=28, shape=(512, 512), **{"stars": 2500, "low": 400} | settings)
    noise = pair_noise(p.science, p.reference)
    assert noise.correlations(0.8) == (None, None)
    assert noise.undecided(0.8) == (False, settings.get("stars") == 4000)


def test_noise_that_cannot_be_judged_is_taken_as_white_and_flagged():
    p = pair(seed=28, correlate=0.7)
    few = replace(pair_noise(p.science, p.reference), pairs=30.0)
    kernel, _ = subtract(p)
    ctx = context()
    Difference().execute(ctx, {"science": p.science, "reference": p.reference, "kernel": replace(kernel, noise=few)})
    assert "noise_correlation_unknown_reference" in ctx.flags
    assert "correlated_noise_reference" not in ctx.flags


def test_a_field_that_is_lost_to_scattered_bad_pixels_is_said(rng):
    p = pair(seed=28)
    kernel, made = subtract(p)
    for share, some in ((0.0, False), (0.03, True)):
        bad = (rng.random(p.reference.shape) < share) * np.int32(p.reference.planes.bit("BAD"))
        reference, ctx = p.reference.with_(mask=bad.astype(np.int32)), context()
        made = Difference().execute(ctx, {"science": p.science, "reference": reference, "kernel": kernel})
        lost = 1 - np.isfinite(made["difference"].image).mean() / (1 - (bad != 0).mean())
        assert (lost > 0.2) == some == ("field_lost" in ctx.flags)
        assert not some or f"the kernel reaches the edge or a bad pixel in {lost:.0%}" in ctx.flags["field_lost"]


def test_correlation_is_that_of_the_noise():
    """A field full of faint stars: their own correlation must not count as the noise's."""
    p = pair(seed=25, shape=(512, 512), correlate=0.8, stars=1500, low=150, high=600)
    white, rho = pair_noise(p.science, p.reference).correlations(0.8)
    assert white is None
    lag = np.arange(-4, 5)
    want = np.exp(-(lag[:, None] ** 2 + lag[None, :] ** 2) / (4 * 0.8**2))
    assert np.abs(rho - want).max() < 0.03


def test_noise_kept_with_the_kernel_is_what_would_be_measured():
    p = pair(seed=27, correlate=0.7, sky=(60.0, 300.0), low=8000)
    kernel, made = subtract(p)
    assert kernel.noise.correlations(0.8)[1] is not None
    inputs = {"science": p.science, "reference": p.reference}
    again = Difference().execute(context(), {**inputs, "kernel": replace(kernel, noise=None)})
    for name in ("difference", "score"):
        np.testing.assert_array_equal(again[name].image, made[name].image)
    np.testing.assert_array_equal(again["difference"].variance, made["difference"].variance)


def test_the_square_of_a_kernel_under_correlated_noise():
    rng = np.random.default_rng(26)
    k = rng.normal(0, 1, (7, 7))
    lag = np.arange(-2, 3)
    rho = np.exp(-(lag[:, None] ** 2 + lag[None, :] ** 2) / 2.0)
    gain = sum(
        k[j, i] * k[m, n] * rho[m - j + 2, n - i + 2]
        for j in range(7) for i in range(7) for m in range(7) for n in range(7)
        if abs(m - j) <= 2 and abs(n - i) <= 2
    )  # fmt: skip
    assert correlated_square(k, rho).sum() == pytest.approx(gain)
    np.testing.assert_array_equal(correlated_square(k, None), k * k)


def test_one_nan_blanks_what_the_kernel_reaches_with_weight_and_no_more():
    p = pair(seed=27, stars=60)
    p.reference.image[100, 90] = np.nan
    kernel, made = subtract(p)
    lost = ~np.isfinite(made["difference"].image)
    lost[: kernel.shape[0]] = lost[-kernel.shape[0] :] = False
    lost[:, : kernel.shape[0]] = lost[:, -kernel.shape[0] :] = False
    j, i = np.nonzero(lost)
    reach = np.hypot(j - 100, i - 90)
    assert 5 <= len(j) < kernel.shape[0] ** 2 / 4
    assert reach.max() < kernel.shape[0] / 2
    weight = np.abs(kernel.at(90, 100))
    share = weight / weight.sum()
    half = kernel.shape[0] // 2
    assert (share[j - 100 + half, i - 90 + half] > 0.004).all()
    planes = made["difference"].planes
    assert ((made["difference"].mask[lost] & planes.invalid) != 0).all()


def test_bits_of_the_reference_go_by_template_names():
    p = pair(seed=28)
    planes = p.reference.planes
    p.reference.mask[60:63, 60:63] = planes.bit("SAT")
    p.science.mask[150, 150] = planes.bit("CR")
    _, made = subtract(p)
    d = made["difference"]
    grown = (d.mask & d.planes.bit("SAT_TEMPLATE")) != 0
    assert grown[60:63, 60:63].all()
    assert 9 < grown.sum() < 200
    assert not ((d.mask & d.planes.bit("SAT")) != 0).any()
    cr = (d.mask & d.planes.bit("CR")) != 0
    assert cr[150, 150]
    assert cr.sum() == 1
    assert np.isnan(d.image[150, 150])


def test_edges_are_blanked_flagged_and_free_of_detections():
    p = pair(seed=29, stars=80)
    _, made = subtract(p, order=0, background_order=0)
    d = made["difference"]
    lost = ~np.isfinite(d.image)
    assert lost[0].all()
    assert not lost[20:-20, 20:-20].any()
    assert ((d.mask[lost] & d.planes.bit("EDGE", "EDGE_TEMPLATE")) != 0).all()
    border = np.ones(d.shape, bool)
    border[25:-25, 25:-25] = False
    use = border & np.isfinite(made["score"].image)
    assert (np.abs(made["score"].image[use]) > 5).sum() == 0


def test_score_is_invalid_exactly_where_the_difference_is():
    p = pair(seed=30)
    p.science.mask[40:60, 40:60] = p.science.planes.bit("NO_DATA")
    _, made = subtract(p)
    missing = np.isnan(made["score"].image) & np.isfinite(made["difference"].image)
    assert missing.sum() == 0
    assert np.isnan(made["whitened"].image[50, 50])


def test_whitened_noise_is_white_and_keeps_the_flux_scale():
    flux = 1.5e4
    p = pair(seed=31, shape=(384, 384), transients=[(192.0, 192.0, flux)])
    _, made = subtract(p)
    w = made["whitened"]
    use = blank(p, made) & ~binary_dilation(np.hypot(*(np.indices(w.shape) - 192)) < 12)
    z = np.where(use, w.image / np.sqrt(w.variance), 0)
    z = np.where(use, z, 0)
    for dy, dx in ((0, 1), (1, 0), (1, 1), (0, 2)):
        both = use[: 384 - dy, : 384 - dx] & use[dy:, dx:]
        rho = (z[: 384 - dy, : 384 - dx] * z[dy:, dx:])[both].mean()
        assert abs(rho) < 0.02, (dy, dx)
    stamp = w.psf.at(192, 192)
    half = stamp.shape[0] // 2
    data = w.image[192 - half : 193 + half, 192 - half : 193 + half]
    assert (data * stamp).sum() / (stamp**2).sum() == pytest.approx(flux, rel=0.05)


def test_very_different_skies_and_nan_patches():
    """Sky 30000 against 0 with holes: the background is fitted, nothing leaks out of the mask."""
    scene = build(size=(384, 384), seed=5, same_grid=True, sky=(30000.0, 5.0), saturation=(9e4, 5e4))
    science, reference = scene_exposures(scene)
    reference.image[100:110, 200:230] = np.nan
    _, made = whole_chain(science, reference)
    d = made["difference"]
    z = d.image / np.sqrt(d.variance)
    assert abs(np.nanmedian(z)) < 0.05
    assert np.isfinite(d.image).mean() > 0.8
