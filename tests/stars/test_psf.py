# SPDX-License-Identifier: BSD-3-Clause
"""PSF measured from stars: varying fields, few stars, neighbours and galaxies, units, files that have their own."""

import importlib.util

import numpy as np
import pytest
from astropy.io import fits
from support_stars import draw, observe, profile, spread_positions

from skydelta.errors import AlgorithmError, InputError
from skydelta.io.exposure import Exposure
from skydelta.io.psf import PixelPsf, fwhm
from skydelta.kernels.backend import CPU
from skydelta.stages.base import Context
from skydelta.stages.psf import MeasurePsf, field_fwhm
from skydelta.stages.stars import measure_shapes

SHAPE = (512, 520)


def measure(exposure, **config):
    ctx = Context(CPU)
    return MeasurePsf(**config).run(ctx, image=exposure)["image"].psf, ctx


def shape_at(x, y, width=4.0, vary=1.0):
    """FWHM, e1, e2 of a field that varies by about 20 %."""
    u, v = 2 * np.asarray(x) / SHAPE[1] - 1, 2 * np.asarray(y) / SHAPE[0] - 1
    return (
        width * (1 + vary * (0.05 * u - 0.04 * v + 0.07 * (u * u + v * v))),
        vary * (0.03 + 0.05 * u),
        vary * (0.04 * v - 0.02),
    )


def field(rng, stars=150, width=4.0, vary=1.0, flux=(3e3, 2e5), shape=SHAPE, beta=3.5):
    model = np.zeros(shape)
    x, y = spread_positions(rng, shape, stars, 12)
    size, e1, e2 = shape_at(x, y, width, vary)
    draw(model, x, y, np.exp(rng.uniform(*np.log(flux), stars)), size, beta=beta, e1=e1, e2=e2)
    return model, x, y


def truth_at(psf, x, y, width=4.0, vary=1.0, beta=3.5):
    size, e1, e2 = shape_at(x, y, width, vary)
    stamp = profile(psf.shape[0] // 2, size, beta=beta, e1=e1, e2=e2)
    return stamp / stamp.sum()


def worst(psf, points=(0.1, 0.5, 0.9), shape=SHAPE, **truth):
    """Largest error over the peak, of the FWHM and of the centre (px), at places over the field."""
    peak, size, centre = [], [], []
    for fy in points:
        for fx in points:
            x, y = fx * shape[1], fy * shape[0]
            want, got = truth_at(psf, x, y, **truth), psf.at(x, y)
            peak.append(np.abs(got - want).max() / want.max())
            size.append(abs(fwhm(got) / fwhm(want) - 1))
            shapes = measure_shapes(np.stack([want, got]), fwhm(want))
            centre.append(np.hypot(shapes.x[1] - shapes.x[0], shapes.y[1] - shapes.y[0]))
    return max(peak), max(size), max(centre)


def test_varying_field(rng, figure):
    psf, ctx = measure(observe(rng, field(rng)[0]))
    peak, size, centre = worst(psf)
    figure("psf: largest error over its peak", peak, 0.015)
    figure("psf: largest error of the FWHM", size, 0.015)
    figure("psf: largest error of the centre, px", centre, 0.02)
    figure("psf: chi2 of held-out stars", ctx.metrics["psf_held_out_chi2"], (0.85, 1.15))
    figure("psf: residual of held-out stars over the peak", ctx.metrics["psf_held_out_residual"], 0.01)
    assert not ctx.flags


def test_stamps_have_unit_sum_and_are_not_negative_in_the_wings(rng):
    psf, _ = measure(observe(rng, field(rng)[0]))
    x, y = rng.uniform(0, SHAPE[1], 20), rng.uniform(0, SHAPE[0], 20)
    stamps = psf.render(x, y)
    assert psf.shape[0] >= 25
    np.testing.assert_allclose(stamps.sum(axis=(1, 2)), 1, rtol=1e-12)
    rim = np.concatenate([stamps[:, 0], stamps[:, -1], stamps[:, :, 0], stamps[:, :, -1]], axis=1)
    assert rim.min() >= 0 and rim.max() < 1e-3 * stamps.max()


@pytest.mark.parametrize("beta", [2.0, None])
def test_other_profiles(rng, figure, beta):
    model, _, _ = field(rng, vary=0.0, beta=beta) if beta else gaussians(rng)
    psf, _ = measure(observe(rng, model))
    want = profile(psf.shape[0] // 2, 4.0, beta=beta)
    figure(
        f"psf: error over the peak, beta {beta}", np.abs(psf.at(260, 256) - want / want.sum()).max() / want.max(), 0.015
    )


def gaussians(rng):
    model = np.zeros(SHAPE)
    x, y = spread_positions(rng, SHAPE, 150, 12)
    draw(model, x, y, np.exp(rng.uniform(*np.log((3e3, 2e5)), 150)), 4.0, beta=None)
    return model, x, y


def test_double_profile_keeps_its_core_and_wings(rng, figure):
    """A PSF that no Moffat profile fits: the pixels must carry the difference."""
    model = np.zeros(SHAPE)
    x, y = spread_positions(rng, SHAPE, 150, 12)
    flux = np.exp(rng.uniform(np.log(3e3), np.log(2e5), 150))
    draw(model, x, y, 0.75 * flux, 3.0)
    draw(model, x, y, 0.25 * flux, 6.0)
    psf, _ = measure(observe(rng, model))
    half = psf.shape[0] // 2
    want = 0.75 * profile(half, 3.0) + 0.25 * profile(half, 6.0)
    want /= want.sum()
    figure("psf: error of a double profile over its peak", np.abs(psf.at(260, 256) - want).max() / want.max(), 0.015)


def test_galaxies_blends_and_cosmic_rays_do_not_widen_it(rng, figure):
    model, x, y = field(rng, vary=0.0)
    count = 30
    draw(model, x[:count], y[:count], np.full(count, 3e4), 5.2)  # hidden in stars: too wide
    draw(model, x[count : 2 * count] + 3.5, y[count : 2 * count] - 2, np.full(count, 8e3), 4.0)
    exposure = observe(rng, model)
    hit = exposure.image.copy()
    hit[rng.integers(0, SHAPE[0], 60), rng.integers(0, SHAPE[1], 60)] += rng.uniform(1e3, 2e4, 60).astype(np.float32)
    psf, ctx = measure(exposure.with_(image=hit))
    figure(
        "psf: FWHM with contaminants over truth",
        fwhm(psf.at(260, 256)) / fwhm(truth_at(psf, 260, 256, vary=0)),
        (0.98, 1.02),
    )
    assert ctx.metrics["psf_stars_clipped"] > 0


@pytest.mark.parametrize(("width", "limit"), [(2.0, 0.03), (3.0, 0.01), (8.0, 0.01)])
def test_widths(rng, figure, width, limit):
    stars = 150 if width < 5 else 70
    psf, _ = measure(observe(rng, field(rng, stars, width, vary=0.0, flux=(1e4, 5e5))[0]))
    want = truth_at(psf, 260, 256, width, 0.0)
    figure(f"psf: error over the peak at FWHM {width:g} px", np.abs(psf.at(260, 256) - want).max() / want.max(), limit)


@pytest.mark.parametrize("stars", [1, 2, 3, 5, 12])
def test_few_stars(rng, figure, stars):
    psf, ctx = measure(observe(rng, field(rng, stars, vary=0.0, flux=(4e4, 1e5))[0]))
    want = truth_at(psf, 260, 256, vary=0.0)
    figure(f"psf: error over the peak, {stars} stars", np.abs(psf.at(260, 256) - want).max() / want.max(), 0.04)
    assert ("psf_profile" in ctx.flags) == (stars < 3)
    assert ("psf_order_lowered" in ctx.flags) == (stars >= 3)


def test_no_star_is_an_error_with_numbers(rng):
    with pytest.raises(AlgorithmError, match="0 found") as e:
        measure(observe(rng, np.zeros((100, 120))))
    assert e.value.numbers["found"] == 0


def test_only_saturated_stars_is_an_error_with_numbers(rng):
    model, x, y = field(rng, 6, flux=(5e4, 1e5))
    exposure = observe(rng, model)
    mask = exposure.mask.copy()
    mask[np.rint(y).astype(int), np.rint(x).astype(int)] = exposure.planes.bit("SAT")
    with pytest.raises(AlgorithmError, match="saturated") as e:
        measure(exposure.with_(mask=mask))
    assert e.value.numbers["saturated"] == e.value.numbers["found"] > 0


def test_stars_on_one_side_do_not_extrapolate(rng):
    """Beside a masked half the polynomial falls back to what the stars support, and the PSF stays sane there."""
    exposure = observe(rng, field(rng)[0])
    mask = exposure.mask.copy()
    mask[:, :370] = exposure.planes.bit("NO_DATA")
    psf, ctx = measure(exposure.with_(mask=mask))
    assert "psf_order_lowered" in ctx.flags
    widths = [fwhm(s) for s in psf.render(np.array([10.0, 200.0, 450.0]), np.array([10.0, 500.0, 250.0]))]
    assert all(3.0 < w < 6.0 for w in widths)


def test_unusable_pixels_do_not_enter(rng, figure):
    model, _, _ = field(rng, vary=0.0)
    exposure = observe(rng, model)
    image, variance = exposure.image.copy(), exposure.variance.copy()
    lost = rng.random(SHAPE) < 0.01
    image[lost] = np.nan
    variance[rng.random(SHAPE) < 0.005] = 0
    psf, _ = measure(exposure.with_(image=image, variance=variance))
    want = truth_at(psf, 260, 256, vary=0.0)
    figure("psf: error over the peak, 1.5 % of pixels lost", np.abs(psf.at(260, 256) - want).max() / want.max(), 0.015)


def test_power_of_two_units_change_nothing(rng):
    exposure = observe(rng, field(rng)[0])
    want, _ = measure(exposure)
    for scale in (2.0**-20, 2.0**20):
        scaled = exposure.with_(
            image=exposure.image * np.float32(scale), variance=exposure.variance * np.float32(scale**2)
        )
        got, _ = measure(scaled)
        np.testing.assert_allclose(got.coefficients, want.coefficients, atol=1e-9)


def test_without_variance(rng, figure):
    psf, _ = measure(observe(rng, field(rng, vary=0.0)[0]).with_(variance=None))
    want = truth_at(psf, 260, 256, vary=0.0)
    figure("psf: error over the peak without variance", np.abs(psf.at(260, 256) - want).max() / want.max(), 0.015)


def test_psf_of_the_file_is_kept(rng):
    own = PixelPsf.constant(profile(12, 4.0), SHAPE)
    psf, ctx = measure(observe(rng, field(rng, 30)[0]).with_(psf=own))
    assert psf is own
    assert ctx.metrics["psf_source"] == "file"


def test_field_fwhm(figure):
    psf = PixelPsf.constant(profile(20, 5.0, beta=None), (200, 300))
    figure(
        "psf: FWHM of a Gaussian of 5 px", field_fwhm(Exposure(np.zeros((200, 300), np.float32), psf=psf)), (4.95, 5.05)
    )
    with pytest.raises(InputError, match="no PSF"):
        field_fwhm(Exposure(np.zeros((20, 30), np.float32)))


def test_same_bytes_twice(rng):
    exposure = observe(rng, field(rng, 60)[0])
    first, second = (measure(exposure)[0].coefficients for _ in range(2))
    assert first.tobytes() == second.tobytes()


@pytest.mark.slow
def test_against_the_true_psf_of_a_shared_pair(shared_tools, tmp_path, figure, monkeypatch):
    spec = importlib.util.spec_from_file_location("make_pair", shared_tools / "make_pair.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    n = 1024
    monkeypatch.setattr("sys.argv", ["make_pair", str(tmp_path), "--n", str(n), "--stars", "600", "--saturated", "4"])
    tool.main()
    image, variance, mask = (fits.getdata(tmp_path / f"{f}.fits") for f in ("ref", "ref_var", "mask"))
    v = 2 * (np.arange(n)[:, None] + 0.5) / n - 1
    u = v.T
    sky = tool.SKY_REF * (1 - 0.02 * u + 0.01 * v * v)
    psf, _ = measure(Exposure((image - sky).astype(np.float32), variance.astype(np.float32), mask.astype(np.int32)))
    errors = []
    for y in (0.1 * n, 0.5 * n, 0.9 * n):
        for x in (0.1 * n, 0.5 * n, 0.9 * n):
            want = tool.psf_stamp("ref", x, y, n, psf.shape[0] // 2)
            errors.append(np.abs(psf.at(x, y) - want / want.sum()).max() / want.max())
    figure("psf: largest error over the peak in a shared pair", max(errors), 0.02)
