# SPDX-License-Identifier: BSD-3-Clause
"""Measured PSFs against the profiles that drew the stars: shape, variation, few stars, outliers, units, threads."""

import sys

import numba
import numpy as np
import pytest
from astropy.io import fits
from support_stars import draw, observe, profile, spread_positions

from skydelta.errors import AlgorithmError, InputError
from skydelta.io.exposure import Exposure
from skydelta.io.psf import PixelPsf, fwhm
from skydelta.kernels.backend import CPU
from skydelta.kernels.cpu.reference_stars import windowed_moments
from skydelta.stages.base import Context
from skydelta.stages.psf import MeasurePsf, field_fwhm

SHAPE = (511, 640)


def varying(x, y):
    """FWHM and ellipticity at a position, quadratic over the field."""
    u, v = 2 * np.asarray(x) / SHAPE[1] - 1, 2 * np.asarray(y) / SHAPE[0] - 1
    return {"fwhm": 3.6 + 0.2 * u - 0.1 * v + 0.2 * (u * u + v * v), "e1": 0.03 + 0.04 * u, "e2": -0.03 * v}


def constant(x, y, **shape):
    return {k: np.full(np.shape(x), v) for k, v in ({"fwhm": 3.5, "e1": 0.05, "e2": 0.0} | shape).items()}


def field(rng, number=180, law=varying, flux=(2e4, 2e5), **noise):
    x, y = spread_positions(rng, SHAPE, number, 20)
    flux = np.exp(rng.uniform(*np.log(flux), number))
    model = np.zeros(SHAPE)
    draw(model, x, y, flux, **law(x, y))
    return observe(rng, model, **noise)


def run(exposure, **config):
    ctx = Context(CPU)
    return MeasurePsf(**config).run(ctx, image=exposure)["image"], ctx


def centres(stamps, width):
    """Windowed centroids x, y of stamps (n, m, m), px from the middle."""
    return windowed_moments(stamps, max(width, 2.4) / np.sqrt(8 * np.log(2)))[:2]


def compare(psf, law, positions=None):
    """Largest error over the peak, largest relative error of the FWHM and largest centroid (px) at 9 positions."""
    half = psf.shape[0] // 2
    worst = np.zeros(3)
    for x in (0.1 * SHAPE[1], 0.5 * SHAPE[1], 0.9 * SHAPE[1]):
        for y in (0.1 * SHAPE[0], 0.5 * SHAPE[0], 0.9 * SHAPE[0]):
            true = profile(half, **{k: float(v) for k, v in law(x, y).items()})
            true /= true.sum()
            ours = psf.at(x, y)
            x0, y0 = centres(ours[None], fwhm(true))
            one = (
                np.abs(ours - true).max() / true.max(),
                abs(fwhm(ours) / fwhm(true) - 1),
                np.hypot(x0[0], y0[0]),
            )
            worst = np.maximum(worst, one)
    return worst


def hold(figure, name, worst, limits=(0.015, 0.01, 0.02)):
    for what, value, limit in zip(("error over peak", "FWHM, relative", "centroid, px"), worst, limits, strict=True):
        figure(f"psf {name}: {what}", value, limit)


def test_varying_psf(rng, figure):
    result, ctx = run(field(rng))
    hold(figure, "varying", compare(result.psf, varying), (0.02, 0.015, 0.02))
    assert ctx.metrics["psf_order"] == 2
    assert ctx.metrics["psf_source"] == "stars"
    assert not ctx.flags
    figure("psf varying: held-out chi2", ctx.metrics["psf_held_out_chi2"], (0.8, 1.1))
    figure("psf varying: held-out residual over peak", ctx.metrics["psf_held_out_residual"], 0.01)
    stamps = result.psf.render(np.array([0.0, 300.0]), np.array([0.0, 200.0]))
    np.testing.assert_allclose(stamps.sum(axis=(1, 2)), 1, rtol=1e-12)


@pytest.mark.parametrize("width, number", [(1.6, 120), (2.5, 120), (8.0, 40), (15.0, 12)])
def test_widths(rng, figure, width, number):
    def law(x, y):
        return constant(x, y, fwhm=width)

    result, _ = run(field(rng, number, law, flux=(3e4 * width, 2e5 * width)), order=0)
    # pixels that undersample the PSF alias: its mean over all fractions of a pixel is not what one pixel centre sees
    limits = (0.015, 0.012, 0.02) if width > 2 else (0.05, 0.05, 0.02)
    hold(figure, f"FWHM {width:g}", compare(result.psf, law), limits)
    # the profile within a pixel adds its own width
    assert field_fwhm(result) == pytest.approx(np.hypot(width, 0.64), rel=0.03 if width > 2 else 0.2)


def test_wings_carry_no_noise_and_the_right_light(rng, figure):
    result, _ = run(field(rng, law=constant), order=0)
    ours = result.psf.at(300, 250)
    half = ours.shape[0] // 2
    true = profile(half, **{k: float(v) for k, v in constant(0, 0).items()})
    o = np.arange(-half, half + 1)
    r = np.hypot(o, o[:, None])
    wings = r > 2.5 * 3.5
    figure(
        "psf: light beyond 2.5 FWHM, error of the total", abs(ours[wings].sum() - true[wings].sum() / true.sum()), 0.003
    )
    figure("psf: roughness of the wings over the peak", np.std((ours - true / true.sum())[wings]) / ours.max(), 5e-4)


@pytest.mark.parametrize("beta", [2.0, None])
def test_heavy_and_light_wings(rng, figure, beta):
    """Beta 2, and a Gaussian (beta None)."""
    model = np.zeros(SHAPE)
    x, y = spread_positions(rng, SHAPE, 120, 20)
    draw(model, x, y, np.exp(rng.uniform(*np.log((2e4, 2e5)), 120)), 4.0, beta=beta)
    psf = run(observe(rng, model), order=0)[0].psf
    true = profile(psf.shape[0] // 2, 4.0, beta=beta)
    figure(f"psf: error over peak, beta {beta}", np.abs(psf.at(300, 250) - true / true.sum()).max() / true.max(), 0.015)
    stamp = psf.at(10, 10)
    rim = np.concatenate([stamp[0], stamp[-1], stamp[:, 0], stamp[:, -1]])
    assert rim.min() >= 0 and rim.max() < 3e-3 * stamp.max()


def test_a_profile_that_is_no_moffat(rng, figure):
    """The pixels must carry what the smooth profile cannot."""
    model = np.zeros(SHAPE)
    x, y = spread_positions(rng, SHAPE, 120, 20)
    flux = np.exp(rng.uniform(*np.log((2e4, 2e5)), 120))
    draw(model, x, y, 0.75 * flux, 3.0)
    draw(model, x, y, 0.25 * flux, 6.0, e1=0.2)
    psf = run(observe(rng, model))[0].psf
    half = psf.shape[0] // 2
    true = 0.75 * profile(half, 3.0) + 0.25 * profile(half, 6.0, e1=0.2)
    figure(
        "psf: error of a double profile over peak",
        np.abs(psf.at(300, 250) - true / true.sum()).max() / true.max(),
        0.015,
    )


def test_a_close_companion_is_clipped(rng, figure):
    """Seven per cent of the light one FWHM away makes no second peak, but the residual shows it."""
    model = np.zeros(SHAPE)
    x, y = spread_positions(rng, SHAPE, 60, 20)
    draw(model, x, y, 8e4, 4.0)
    draw(model, x[:12] + 3.6, y[:12] - 1.8, 6e3, 4.0)
    result, ctx = run(observe(rng, model))
    assert ctx.metrics["psf_stars_clipped"] >= 10
    hold(figure, "with companions", compare(result.psf, lambda x, y: {"fwhm": 4.0, "e1": 0.0, "e2": 0.0}))


def test_stars_on_one_side_do_not_extrapolate(rng):
    exposure = field(rng)
    mask = exposure.mask.copy()
    mask[:, : SHAPE[1] * 3 // 4] = exposure.planes.bit("NO_DATA")
    result, ctx = run(exposure.with_(mask=mask))
    assert "psf_order_lowered" in ctx.flags
    widths = [fwhm(s) for s in result.psf.render(np.array([10.0, 300.0, 600.0]), np.array([10.0, 500.0, 250.0]))]
    assert all(3.0 < w < 5.0 for w in widths)


@pytest.mark.parametrize("number, order", [(40, 2), (10, 1), (5, 0), (3, 0)])
def test_order_is_lowered_to_what_the_stars_carry(rng, number, order):
    result, ctx = run(field(rng, number, constant, flux=(1e5, 2e5)))
    assert ctx.metrics["psf_order"] <= order
    assert ("psf_order_lowered" in ctx.flags) == (ctx.metrics["psf_order"] < 2)
    worst = compare(result.psf, constant)
    assert worst[0] < 0.05 and worst[1] < 0.05


@pytest.mark.parametrize("number", [1, 2])
def test_one_or_two_stars_give_a_flagged_profile(rng, number):
    result, ctx = run(field(rng, number, constant, flux=(1e5, 2e5)))
    assert "psf_profile" in ctx.flags
    assert compare(result.psf, constant)[0] < 0.06


def test_no_star_is_an_error_with_numbers(rng):
    with pytest.raises(AlgorithmError, match="no usable star") as caught:
        run(observe(rng, np.zeros(SHAPE)))
    assert caught.value.numbers["found"] == 0


def test_only_saturated_stars_is_an_error_with_numbers(rng):
    exposure = field(rng, 30, constant, flux=(1e5, 2e5))
    hot = exposure.image > 500
    mask = np.where(hot, exposure.planes.bit("SAT"), 0).astype(np.int32)
    with pytest.raises(AlgorithmError, match="no usable star"):
        run(exposure.with_(mask=mask))


def test_a_psf_that_came_with_the_file_is_kept(rng):
    own = PixelPsf.constant(profile(10, 3.0), SHAPE)
    result, ctx = run(field(rng, 20).with_(psf=own))
    assert result.psf is own
    assert ctx.metrics["psf_source"] == "file"
    assert ctx.metrics["fwhm_px"] == pytest.approx(np.hypot(3.0, 0.64), rel=0.03)


def test_fwhm_of_an_exposure_without_psf_is_refused():
    with pytest.raises(InputError, match="no PSF"):
        field_fwhm(Exposure(np.zeros((20, 20), np.float32)))


def test_outliers_are_clipped(rng, figure):
    exposure = field(rng, law=constant)
    image = exposure.image.copy()
    gx, gy = spread_positions(rng, SHAPE, 25, 20)
    model = np.zeros(SHAPE)
    draw(model, gx, gy, 3e4, 4.6, beta=2.5)  # small galaxies hardly wider than a star
    image += model.astype(np.float32)
    hit = rng.random(SHAPE) < 2e-4
    image[hit] += rng.uniform(500, 5000, hit.sum()).astype(np.float32)  # cosmic rays, also on stars
    result, _ = run(exposure.with_(image=image), order=0)
    hold(figure, "with galaxies and cosmic rays", compare(result.psf, constant), (0.015, 0.01, 0.02))


def test_masked_pixels_inside_stars_do_no_harm(rng, figure):
    exposure = field(rng, law=constant)
    bad = rng.random(SHAPE) < 0.01
    image = exposure.image.copy()
    image[bad] = rng.choice([np.nan, 1e6, -1e6], bad.sum())
    mask = np.where(bad, exposure.planes.bit("BAD"), 0).astype(np.int32)
    result, _ = run(exposure.with_(image=image, mask=mask), order=0)
    hold(figure, "with 1 % of all pixels masked", compare(result.psf, constant), (0.015, 0.01, 0.02))


def test_units_change_nothing(rng):
    exposure = field(rng, 60, constant)
    psf = run(exposure)[0].psf
    for scale in (2.0**-20, 2.0**20):
        s = np.float32(scale)
        other = run(exposure.with_(image=exposure.image * s, variance=exposure.variance * s * s))[0].psf
        np.testing.assert_allclose(other.coefficients, psf.coefficients, atol=1e-7)


def test_without_variance(rng, figure):
    exposure = field(rng, law=constant)
    result, _ = run(Exposure((exposure.image / 65535).astype(np.float32)), order=0)
    hold(figure, "without variance, scaled to 0..1", compare(result.psf, constant), (0.015, 0.01, 0.02))


def test_same_bytes_with_one_and_two_threads(rng):
    exposure = field(rng, 60)
    before, results = numba.get_num_threads(), []
    try:
        for threads in (1, 2):
            numba.set_num_threads(threads)
            results.append(run(exposure)[0].psf.coefficients.tobytes())
    finally:
        numba.set_num_threads(before)
    assert results[0] == results[1]


@pytest.mark.slow
@pytest.mark.data
def test_simulated_pair_of_the_shared_tools(tmp_path, shared_tools, figure, monkeypatch):
    monkeypatch.syspath_prepend(str(shared_tools))
    import make_pair

    n = 1024
    monkeypatch.setattr(
        sys,
        "argv",
        ["make_pair", str(tmp_path), "--n", str(n), "--stars", "1000", "--galaxies", "30", "--saturated", "5"],
    )
    make_pair.main()
    mask = fits.getdata(tmp_path / "mask.fits").astype(np.int32)
    for which, limits in (("sci", (0.04, 0.035, 0.02)), ("ref", (0.02, 0.015, 0.02))):
        image, variance = (fits.getdata(tmp_path / f"{which}{end}.fits").astype(np.float32) for end in ("", "_var"))
        sky = image - np.float32(make_pair.SKY_SCI if which == "sci" else make_pair.SKY_REF)
        psf = run(Exposure(sky, variance, mask))[0].psf
        half, worst = psf.shape[0] // 2, np.zeros(3)
        for x in (0.1 * n, 0.5 * n, 0.9 * n):
            for y in (0.1 * n, 0.5 * n, 0.9 * n):
                true = make_pair.psf_stamp(which, x, y, n, half)
                true /= true.sum()
                ours = psf.at(x, y)
                shift = np.hypot(*(s[0] - s[1] for s in centres(np.stack([ours, true]), fwhm(true))))
                one = np.abs(ours - true).max() / true.max(), abs(fwhm(ours) / fwhm(true) - 1), shift
                worst = np.maximum(worst, one)
        hold(figure, f"of the shared pair, {which}", worst, limits)
