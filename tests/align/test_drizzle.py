# SPDX-License-Identifier: BSD-3-Clause
"""Drizzle: the drizzle package, exact overlap, fluxes, variance and its correlation, holes, bad pixels and borders."""

import numba
import numpy as np
import pytest
from astropy import units as u
from cases.resample_drizzle import make
from support_align import draw, plane

from skydelta.errors import ConfigError
from skydelta.io.exposure import Exposure
from skydelta.io.planes import MaskPlanes
from skydelta.kernels.backend import CPU
from skydelta.kernels.cpu.overlap import drizzle
from skydelta.kernels.resample import MaskBits, resample
from skydelta.stages.align import FILL, GROW, Align
from skydelta.stages.align.mapping import control_grid
from skydelta.stages.base import Context

P = MaskPlanes()
BITS = MaskBits(P.bit(*FILL), P.bit(*GROW), *(P.bit(n) for n in ("BAD", "NO_DATA", "EDGE", "INTERP")))
NO_DATA, EDGE, INTERP, BAD, DETECTED = (P.bit(n) for n in ("NO_DATA", "EDGE", "INTERP", "BAD", "DETECTED"))
SHAPE = (80, 90)


def affine(scale=1.0, degrees=0.0, shift=(0.0, 0.0), target=SHAPE):
    """Matrix and offset that take target pixels to source pixels, about the middle of both; scale: source px a target
    px."""
    c, s = scale * np.cos(np.radians(degrees)), scale * np.sin(np.radians(degrees))
    matrix = np.array([[c, -s], [s, c]])
    middle = (np.array(SHAPE[::-1]) - 1) / 2 + shift
    return matrix, middle - matrix @ (np.array(target[::-1]) - 1) / 2


def grid_of(matrix, offset, target):
    def evaluate(x, y):
        x, y = x - 0.5, y - 0.5
        return (m[0] * x + m[1] * y + o for m, o in zip(matrix, offset, strict=True))

    return control_grid(lambda x, y: tuple(evaluate(x, y)), (target[0] + 1, target[1] + 1), SHAPE, 1e-4)


def run(image, grid, variance=None, mask=None, pixfrac=0.6, flux=False, method="drizzle"):
    image = np.asarray(image, np.float32)
    return resample(image, variance, mask, grid, method=method, pixfrac=pixfrac, flux=flux, bits=BITS)


@pytest.mark.parametrize("degrees", [0.0, 27.0])
@pytest.mark.parametrize("scale", [0.4, 1.0, 1.9])
@pytest.mark.parametrize("pixfrac", [1.0, 0.7, 0.3])
def test_against_the_drizzle_package(scale, degrees, pixfrac, peer, rng, figure):
    """Image, weight and variance of the package's square kernel; its sums are float32."""
    target = tuple(int(n / scale) - 20 for n in SHAPE)
    matrix, offset = affine(scale, degrees, (0.31, -0.17), target)
    image = rng.normal(10, 3, SHAPE).astype(np.float32)
    variance = rng.uniform(0.5, 2.0, SHAPE).astype(np.float32)
    mask = np.where(rng.random(SHAPE) < 0.03, BAD, 0).astype(np.int32)
    out = run(image, grid_of(matrix, offset, target), variance, mask, pixfrac)

    y, x = np.indices(SHAPE, float)
    where = np.einsum("ij,jyx->yxi", np.linalg.inv(matrix), np.stack([x, y]) - offset[:, None, None])
    theirs = peer("drizzle.resample").Drizzle(out_shape=target, fillval=np.nan)
    theirs.add_image(image, 1.0, where, data2=variance, weight_map=(mask == 0).astype(np.float32), pixfrac=pixfrac)
    seen = theirs.out_wht / scale**2  # the package counts drops a pixel
    rim = int(np.ceil(1 / scale)) + 1  # the package leaves out drops that the border of the target cuts
    inside = np.pad(np.ones(np.subtract(target, 2 * rim), bool), rim) & (out.mask & EDGE == 0)
    name = f"drizzle, scale {scale}, turn {degrees}, pixfrac {pixfrac}:"
    # less than 1e-5 of full cover is left out
    figure(f"{name} weight against the package", np.abs(out.weight - seen)[inside].max(), 1.1e-5)
    both = inside & (seen > 1e-3)
    assert both.sum() > 90
    figure(f"{name} image against the package", np.abs(out.image - theirs.out_img)[both].max(), 4e-5)
    figure(f"{name} variance / the package's - 1", np.abs(out.variance / theirs.out_img2[0] - 1)[both].max(), 4e-5)
    holes = inside & (theirs.out_wht == 0)
    assert np.isnan(out.image[holes]).all() and (out.weight[holes] == 0).all() and (out.mask[holes] & NO_DATA).all()


@pytest.mark.parametrize("flux", [False, True])
def test_drops_as_large_as_pixels_are_exact_overlap(flux, rng):
    target = (70, 60)
    grid = grid_of(*affine(1.3, 12.0, (0.2, 0.4), target), target)
    image, variance = rng.normal(5, 1, SHAPE), rng.uniform(1, 2, SHAPE).astype(np.float32)
    a, b = (run(image, grid, variance, pixfrac=1.0, flux=flux, method=m) for m in ("drizzle", "exact"))
    inside = a.mask | b.mask == 0
    assert inside.sum() > 2000
    # the border is told by corners here, by areas there
    np.testing.assert_array_equal(a.mask & ~EDGE, b.mask & ~EDGE)
    assert ((a.mask ^ b.mask) != 0).sum() < 9
    np.testing.assert_allclose(a.weight, b.weight, atol=1e-6)
    np.testing.assert_allclose(a.image[inside], b.image[inside], rtol=2e-6)
    np.testing.assert_allclose(a.variance[inside], b.variance[inside], rtol=2e-6)


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.7])
@pytest.mark.parametrize("pixfrac", [1.0, 0.5, 0.05])
def test_every_drop_is_spent_once(scale, pixfrac, rng, figure):
    """Values times weights sum to the light of all source pixels: no drop is lost or counted twice."""
    target = tuple(int(140 / scale) for _ in SHAPE)
    grid = grid_of(*affine(scale, 31.0, (0.31, -0.27), target), target)
    image = rng.uniform(0.5, 1.5, SHAPE).astype(np.float32)
    out = run(image, grid, pixfrac=pixfrac, flux=True)
    total = np.nansum(out.image.astype(float) * out.weight)
    name = f"drizzle, scale {scale}, pixfrac {pixfrac}: flux times weight"
    figure(name, abs(total / image.sum(dtype=float) - 1), 1e-7)


def test_stars_keep_their_flux_on_a_finer_grid(figure):
    """33 px around stars, against the source's own sums, each value with its weight; the sky is a distorted plane."""
    shape = (240, 260)
    source, target = plane(shape), plane((480, 500), 0.7, 0.6, (0.3, -0.2))
    at = np.stack(np.meshgrid(np.arange(50, 230, 50), np.arange(50, 210, 50)), -1).reshape(-1, 2) + 0.37
    sky = np.stack(source.all_pix2world(*at.T, 0))
    image = draw(source, shape, sky, np.linspace(0.2, 1, len(at))).astype(np.float32)
    stage, ctx = Align(method="drizzle", pixfrac=0.7), Context(CPU)
    onto = Exposure(np.zeros((480, 500), np.float32), wcs=target)
    out, weight = stage.resampled(ctx, Exposure(image, wcs=source, unit=u.adu), onto)
    assert out.header["ALCONSRV"] == "flux" and out.header["ALPIXFRA"] == 0.7 and out.header["ALMETHOD"] == "drizzle"
    x, y = np.rint(target.all_world2pix(*sky, 0)).astype(int)
    sx, sy = np.rint(at.T).astype(int)
    box, fine = np.arange(-16, 17), np.arange(-27, 28)
    there = y[:, None, None] + fine[:, None], x[:, None, None] + fine
    want = image[sy[:, None, None] + box[:, None], sx[:, None, None] + box].sum(axis=(1, 2), dtype=float)
    weighted = np.nansum(out.image[there].astype(float) * weight[there], axis=(1, 2))
    figure("drizzle, pixfrac 0.7: star fluxes with weights", np.abs(weighted / want - 1).max(), 1e-7)
    figure(
        "drizzle, pixfrac 0.7: star fluxes of one exposure", np.abs(out.image[there].sum((1, 2)) / want - 1).max(), 0.02
    )


def test_holes_of_a_finer_grid():
    """Drops of a third of a pixel on pixels of a third: one of nine gets a drop, whole; the others are NO_DATA."""
    target = tuple(3 * n for n in SHAPE)
    out = run(np.full(SHAPE, 7.0), grid_of(*affine(1 / 3, target=target), target), pixfrac=1 / 3)
    full = np.zeros(target, bool)
    full[1::3, 1::3] = True
    np.testing.assert_allclose(out.weight, np.where(full, 9.0, 0.0), atol=1e-5)
    np.testing.assert_allclose(out.image[full], 7.0, rtol=1e-6)
    assert np.isnan(out.image[~full & (out.weight == 0)]).all()
    assert (out.mask[full] == 0).all() and (out.mask[out.weight == 0] == NO_DATA).all()


@pytest.mark.parametrize(("scale", "pixfrac", "flux"), [(1.0, 0.6, False), (0.45, 0.7, True), (1.8, 0.5, False)])
def test_variance_is_that_of_a_monte_carlo(scale, pixfrac, flux, rng, figure):
    target = (40, 46)
    variance = rng.uniform(0.5, 2.0, SHAPE).astype(np.float32)
    grid = grid_of(*affine(scale, 7.0, (2.3, 1.1), target), target)
    draws = [run(rng.normal(0, np.sqrt(variance)), grid, None, None, pixfrac, flux).image for _ in range(300)]
    out = run(np.zeros(SHAPE), grid, variance, None, pixfrac, flux)
    clean = out.mask == 0
    assert clean.sum() > 900
    ratio = np.var(draws, axis=0)[clean] / out.variance[clean]
    figure(f"variance drizzle {pixfrac} at {scale}: mean of Monte Carlo / model - 1", abs(ratio.mean() - 1), 0.015)


@pytest.mark.parametrize("pixfrac", [1.0, 0.8, 0.5])
def test_noise_of_neighbours_is_as_correlated_as_their_drops(pixfrac, rng, figure):
    """A shift by half a pixel along x: each target pixel holds two drops, cut at (1 + pixfrac) / 2 and the rest."""
    shift = 0.5
    grid = grid_of(*affine(shift=(shift, 0.0)), SHAPE)
    draws = np.array([run(rng.normal(size=SHAPE), grid, pixfrac=pixfrac).image[5:-5, 5:-5] for _ in range(40)])
    found = (draws[..., 1:] * draws[..., :-1]).mean() / (draws**2).mean()
    # both drops are cut in halves, whatever their size: the values are means of two pixels
    figure(f"drizzle, pixfrac {pixfrac}: correlation of neighbours, against 1/2", abs(found - 0.5), 0.01)


def test_smaller_drops_correlate_less(rng, figure):
    """Turned grids: the correlation of a value with its neighbours falls with the size of the drops."""
    found = []
    for pixfrac in (1.0, 0.6, 0.2):
        grid = grid_of(*affine(1.0, 13.0, target=(60, 60)), (60, 60))
        draws = np.array([run(rng.normal(size=SHAPE), grid, pixfrac=pixfrac).image[5:-5, 5:-5] for _ in range(30)])
        pairs = draws[..., 1:] * draws[..., :-1]
        found.append(np.nanmean(pairs) / np.nanmean(draws**2))
    figure("drizzle: correlation of neighbours, pixfrac 0.6 / 1", found[1] / found[0], 0.75)
    figure("drizzle: correlation of neighbours, pixfrac 0.2 / 1", found[2] / found[0], 0.3)


def test_bad_pixels_have_no_drops(rng):
    """Their values change nothing, they are not filled, and a target pixel with no other drop is empty."""
    image, mask = rng.normal(50, 1, SHAPE), np.zeros(SHAPE, np.int32)
    mask[40, 50], mask[20, 20], mask[20, 21] = BAD, BAD, DETECTED
    wild, nan = image.copy(), image.copy()
    wild[mask == BAD], nan[mask == BAD] = 1e30, np.nan
    grid = grid_of(*affine(1.0, 9.0, target=(60, 60)), (60, 60))
    variance = np.full(SHAPE, 2.0, np.float32)
    lost = np.where(mask == BAD, np.int32(DETECTED), mask)
    a, b, c, clean = (run(i, grid, variance, m) for i, m in ((image, mask), (wild, mask), (nan, lost), (image, lost)))
    assert a.image.tobytes() == b.image.tobytes() == c.image.tobytes()
    assert a.weight.tobytes() == b.weight.tobytes() == c.weight.tobytes()
    touched = a.weight < clean.weight - 1e-6
    assert 2 <= touched.sum() <= 18 and not (a.mask & INTERP).any()
    np.testing.assert_array_equal(a.image[~touched], clean.image[~touched])
    gone = np.isnan(a.image) & ~np.isnan(clean.image)
    assert gone.any() and (a.weight[gone] == 0).all()
    assert (a.mask[gone] & (NO_DATA | BAD) == (NO_DATA | BAD)).all() and not (a.mask[~gone] & BAD).any()
    # what is left of a touched pixel is the mean of its other drops
    flat = run(np.where(mask == BAD, 1e6, 50.0), grid, variance, mask)
    np.testing.assert_allclose(flat.image[np.isfinite(flat.image)], 50.0, rtol=1e-6)


def test_border_is_flagged_and_outside_is_no_data():
    out = run(np.full(SHAPE, 7.0), grid_of(*affine(shift=(20.5, 0.0)), SHAPE), pixfrac=0.6)
    np.testing.assert_allclose(out.image[:, :70], 7.0, rtol=1e-6)
    assert (out.mask[:, 69] == EDGE).all() and (out.mask[:, :69] == 0).all()
    np.testing.assert_allclose(out.weight[:, 69], 0.5, atol=1e-6)
    assert np.isnan(out.image[:, 70:]).all() and (out.mask[:, 70:] == NO_DATA).all() and not out.weight[:, 70:].any()


def test_whole_pixel_shifts_are_copied(rng):
    image = Exposure(rng.normal(size=SHAPE).astype(np.float32), wcs=plane(SHAPE))
    moved = plane(SHAPE, shift=(3, -2))
    out, weight = Align(method="drizzle", pixfrac=0.4).resampled(
        Context(CPU), image, Exposure(np.zeros(SHAPE, np.float32), wcs=moved)
    )
    assert out.header["ALMETHOD"] == "copy" and set(np.unique(weight)) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"method": "drizzle", "pixfrac": 0.0}, "align.pixfrac: 0.0 is below 0.01"),
        ({"method": "drizzle", "pixfrac": 1.5}, "align.pixfrac: 1.5 is above 1"),
        (
            {"method": "exact", "pixfrac": 0.5},
            "align.pixfrac: 0.5 has no effect where method is exact, only where it is drizzle$",
        ),
    ],
)
def test_wrong_drops_are_one_line(config, words):
    with pytest.raises(ConfigError, match=words):
        Align(**config)


def test_the_same_bytes_with_any_number_of_threads(rng):
    case = make(rng, (26, 41))
    before, results = numba.get_num_threads(), []
    for n in (1, 2):
        numba.set_num_threads(n)
        results.append(drizzle(**case))
    numba.set_num_threads(before)
    for a, b in zip(*results, strict=True):
        assert a.tobytes() == b.tobytes()
