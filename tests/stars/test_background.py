# SPDX-License-Identifier: BSD-3-Clause
"""Sky subtraction: polynomial skies under stars, high and zero levels, masks, meshes, noise figures."""

import numba
import numpy as np
import pytest
from scipy.ndimage import gaussian_filter
from support_stars import draw, observe, spread_positions

from skydelta.errors import AlgorithmError, ConfigError
from skydelta.io.exposure import Exposure
from skydelta.kernels.backend import CPU
from skydelta.kernels.polynomial import polynomial_terms
from skydelta.stages.background import Background, fit_cells
from skydelta.stages.base import Context

SHAPE = (511, 640)


def shape_of_sky(order=2):
    v, u = ((2 * np.arange(n) + 1) / n - 1 for n in SHAPE)
    u, v = u[None, :], v[:, None]
    return (1 + 0.06 * u - 0.03 * v + (0.02 * u * v - 0.02 * u * u if order > 1 else 0)) * np.ones(SHAPE)


def scene(rng, level=400.0, stars=200, tilt=True):
    """A sky of ``level`` with stars: exposure that still has its sky, and the true sky."""
    model = np.zeros(SHAPE)
    x, y = spread_positions(rng, SHAPE, stars, 10)
    draw(model, x, y, np.exp(rng.uniform(np.log(500), np.log(2e5), stars)), 3.5)
    sky = level * shape_of_sky() if tilt else np.full(SHAPE, level)
    exposure = observe(rng, model + sky, 0.0)
    return exposure, sky


def run(exposure, **config):
    ctx = Context(CPU)
    return Background(**config).run(ctx, image=exposure)["image"], ctx


def error(exposure, result, sky):
    """Fitted minus true sky over the image, in units of the sky's noise, averaged over 16 px to drop the rounding."""
    fitted = exposure.image.astype(float) - result.image
    difference = (fitted - sky)[: SHAPE[0] // 16 * 16, : SHAPE[1] // 16 * 16]
    return difference.reshape(SHAPE[0] // 16, 16, SHAPE[1] // 16, 16).mean(axis=(1, 3))


@pytest.mark.parametrize("level", [0.0, 400.0, 30000.0])
def test_polynomial_sky_is_recovered(rng, figure, level):
    exposure, sky = scene(rng, level)
    result, ctx = run(exposure)
    sigma = float(np.sqrt(np.median(exposure.variance)))
    off = error(exposure, result, sky) / sigma
    # 6 terms from 327 000 pixels: 0.004 sigma at best
    figure(f"sky {level:g}: rms error of the fit, sky sigmas", np.sqrt((off**2).mean()), 0.03)
    figure(f"sky {level:g}: largest error of the fit, sky sigmas", np.abs(off).max(), 0.1)
    figure(f"sky {level:g}: measured over predicted noise", ctx.metrics["sky_sigma_over_predicted"], (0.97, 1.05))
    assert ctx.metrics["sky_level"] == pytest.approx(level, abs=0.02 * max(level, 10 * sigma))
    assert not ctx.flags
    assert result.image.dtype == np.float32
    assert result.variance is exposure.variance and result.mask is exposure.mask


def test_matches_another_package_on_a_flat_sky(rng, peer, figure):
    sep = peer("sep")
    exposure, sky = scene(rng, tilt=False)
    result, _ = run(exposure, order=0)
    peers = sep.Background(exposure.image, bw=64, bh=64)
    ours = float((exposure.image.astype(float) - result.image).mean())
    sigma = float(np.sqrt(np.median(exposure.variance)))
    figure("sky: error of a constant, sigmas", abs(ours - sky[0, 0]) / sigma, 0.02)
    assert abs(ours - sky[0, 0]) <= abs(peers.globalback - sky[0, 0]) + 0.01 * sigma


def test_large_sources_do_not_pull_the_polynomial(rng, figure):
    exposure, sky = scene(rng, stars=100)
    y, x = np.mgrid[: SHAPE[0], : SHAPE[1]]
    galaxy = 400 * np.exp(-np.hypot(x - 200, y - 300) / 25)
    image = exposure.image + galaxy.astype(np.float32)
    result, _ = run(exposure.with_(image=image))
    off = error(exposure.with_(image=image), result, sky) / float(np.sqrt(np.median(exposure.variance)))
    figure("sky: rms error under a large galaxy, sigmas", np.sqrt((off**2).mean()), 0.1)


def test_scaled_units_change_nothing(rng):
    exposure, _ = scene(rng)
    result, ctx = run(exposure)
    for scale in (2.0**-16, 2.0**20):
        s = np.float32(scale)
        other, ctx2 = run(exposure.with_(image=exposure.image * s, variance=exposure.variance * s * s))
        np.testing.assert_allclose(other.image / s, result.image, atol=1e-4)
        assert ctx2.metrics["sky_sigma_over_predicted"] == pytest.approx(
            ctx.metrics["sky_sigma_over_predicted"], rel=1e-5
        )


def test_image_scaled_to_one(rng, figure):
    exposure, sky = scene(rng)
    scaled = Exposure((exposure.image / 65535).astype(np.float32))
    result, ctx = run(scaled)
    off = error(scaled, result, sky / 65535) * 65535 / float(np.sqrt(np.median(exposure.variance)))
    figure("sky: rms error of an image scaled to 0..1, sigmas", np.sqrt((off**2).mean()), 0.03)
    assert "sky_sigma_over_predicted" not in ctx.metrics
    assert result.variance is None


def test_masked_half(rng, figure):
    exposure, sky = scene(rng)
    mask = exposure.mask.copy()
    mask[:, :250] = exposure.planes.bit("BAD")
    image = exposure.image.copy()
    image[:, :200] = np.nan
    image[:, 200:250] = 1e6
    part = exposure.with_(image=image, mask=mask)
    result, _ = run(part)
    off = error(part, result, sky)[:, 17:] / float(np.sqrt(np.median(exposure.variance)))
    figure("sky: rms error beside a masked half, sigmas", np.sqrt((off**2).mean()), 0.05)


def test_all_masked_is_an_error_with_numbers(rng):
    exposure, _ = scene(rng, stars=1)
    with pytest.raises(AlgorithmError, match=r"^background.*: no usable pixel$") as caught:
        run(exposure.with_(mask=np.full(SHAPE, exposure.planes.bit("NO_DATA"), np.int32)))
    assert caught.value.numbers["usable_fraction"] == 0


def test_wrong_variance_is_flagged(rng):
    exposure, _ = scene(rng)
    for factor in (4.0, 0.25):
        _, ctx = run(exposure.with_(variance=exposure.variance * np.float32(factor)))
        assert "variance_scale" in ctx.flags
        assert ctx.metrics["sky_sigma_over_predicted"] == pytest.approx(factor**-0.5, rel=0.05)


def test_small_images(rng):
    for shape in ((40, 33), (17, 200), (64, 64)):
        image = rng.normal(100, 5, shape).astype(np.float32)
        result, ctx = run(Exposure(image))
        assert abs(np.median(result.image)) < 1.0
        assert np.isfinite(result.image).all()
        assert ctx.metrics["sky_level"] == pytest.approx(100, abs=2)


def test_mesh_follows_a_structured_sky(rng, figure):
    structure = 150 * gaussian_filter(rng.normal(0, 1, SHAPE), 60) * 60
    exposure = observe(rng, structure - structure.min() + 200, 0.0)
    true = structure - structure.min() + 200
    sigma = float(np.sqrt(np.median(exposure.variance)))
    polynomial, mesh = (
        np.sqrt((error(exposure, run(exposure, model=m, **c)[0], true) ** 2).mean()) / sigma
        for m, c in (("polynomial", {}), ("mesh", {"cell": 32}))
    )
    figure("sky: mesh over polynomial error on a structured sky", mesh / polynomial, 0.35)


def test_polynomial_adds_less_noise_than_a_mesh(rng):
    exposure, sky = scene(rng)
    polynomial, mesh = (error(exposure, run(exposure, model=m)[0], sky).std() for m in ("polynomial", "mesh"))
    assert polynomial < 0.7 * mesh


def test_wrong_configuration_names_the_key():
    with pytest.raises(ConfigError, match=r"background\.order: 9 is above 4"):
        Background(order=9)


def test_same_bytes_with_one_and_two_threads(rng):
    exposure, _ = scene(rng)
    before, results = numba.get_num_threads(), []
    try:
        for threads in (1, 2):
            numba.set_num_threads(threads)
            results.append(run(exposure)[0].image.tobytes())
    finally:
        numba.set_num_threads(before)
    assert results[0] == results[1]


@pytest.mark.parametrize("quiet", [1e-3, 1e-12, 1e-30])
@pytest.mark.parametrize("cells", [1, 3, 7])
def test_cells_of_next_to_no_noise_do_not_rule_the_others(quiet, cells):
    """Their weights would leave a matrix of less rank than there are terms."""
    v, u = (a.ravel() for a in np.meshgrid(np.linspace(-0.9, 0.9, 10), np.linspace(-0.9, 0.9, 10), indexing="ij"))
    terms = np.ascontiguousarray(polynomial_terms(u, v, 2).T)
    truth = np.array([100.0, 3.0, -2.0, 1.0, 0.5, -1.5])
    sigma = np.ones(100)
    sigma[5 : 5 + cells] = quiet
    found = fit_cells(terms @ truth, np.full(100, 400), sigma, terms)
    np.testing.assert_allclose(found, truth, atol=1e-6)
