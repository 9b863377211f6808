# SPDX-License-Identifier: BSD-3-Clause
"""Adaptive resampling: reproject_adaptive, aliasing, fluxes, variance, masks and borders."""

import numpy as np
import pytest
from astropy.wcs import WCS
from scipy import ndimage
from support_align import plane, scene, star_figures

from skydelta.io.planes import MaskPlanes
from skydelta.kernels.cpu.overlap import REGION
from skydelta.kernels.resample import MaskBits, resample
from skydelta.stages.align import FILL, GROW, Align
from skydelta.stages.align.mapping import control_grid, pixel_map

P = MaskPlanes()
BITS = MaskBits(P.bit(*FILL), P.bit(*GROW), *(P.bit(n) for n in ("BAD", "NO_DATA", "EDGE", "INTERP")))
NO_DATA, EDGE, INTERP, BAD, SAT, DETECTED = (P.bit(n) for n in ("NO_DATA", "EDGE", "INTERP", "BAD", "SAT", "DETECTED"))
SHAPE = (90, 110)


def corners(scale=1.0, degrees=7.0, shift=(4.3, -2.2), target=SHAPE):
    c, s = scale * np.cos(np.radians(degrees)), scale * np.sin(np.radians(degrees))

    def evaluate(x, y):
        x, y = x - 0.5, y - 0.5
        return c * x - s * y + shift[0], s * x + c * y + shift[1]

    return control_grid(evaluate, (target[0] + 1, target[1] + 1), SHAPE, 1e-4)


def run(image, grid, variance=None, mask=None, method="adaptive", flux=False):
    return resample(np.asarray(image, np.float32), variance, mask, grid, method=method, flux=flux, bits=BITS)


@pytest.mark.parametrize(("turn", "limit", "typical"), [(0.0, 1e-4, 1e-7), (33.0, 1e-4, 1e-5)])
@pytest.mark.parametrize("scale", [0.6, 1.0, 2.5])
def test_against_reproject_adaptive(scale, turn, limit, typical, peer, rng, figure):
    """Its weights over a region of the same size, to float32."""
    source, target = plane(SHAPE), plane((70, 80), turn, scale, (1.2, -3.3))
    image = ndimage.gaussian_filter(rng.normal(0, 1, SHAPE), 1.0).astype(np.float32)
    given = image, WCS(source.to_header())
    theirs, _ = peer("reproject").reproject_adaptive(
        given, target, (70, 80), boundary_mode="ignore", sample_region_width=2 * REGION
    )
    out = run(image, pixel_map(source, target, (70, 80), SHAPE, corners=True))
    ok = np.isfinite(theirs) & (out.weight == 1)
    assert ok.sum() > 1000
    difference = np.abs(out.image - theirs)[ok] / image.std()
    figure(f"adaptive, scale {scale}, turn {turn}: against reproject, largest", difference.max(), limit)
    figure(f"adaptive, scale {scale}, turn {turn}: against reproject, median", np.median(difference), typical)


@pytest.mark.parametrize("shift", [(3.0, -2.4), (-1.37, 4.0), (2.0, 5.0), (0.3, 0.8)])
def test_equal_stars_stay_equal_where_a_shift_is_of_whole_pixels(shift, figure):
    """At a whole shift source pixels lie on the rim of the region, in it or out by the rounding of the map."""
    y, x = np.indices(SHAPE)
    places = [(14 + 17.0 * j, 14 + 17.0 * i) for i in range(5) for j in range(5)]
    image = sum(np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * 1.5**2)) for a, b in places).astype(np.float32)
    out = run(image, pixel_map(plane(SHAPE), plane(SHAPE, 0.0, 1.0, shift), SHAPE, SHAPE, corners=True)).image
    boxes = []
    for a, b in places:
        u, v = round(a + shift[0]), round(b + shift[1])
        if 8 <= u < SHAPE[1] - 8 and 8 <= v < SHAPE[0] - 8:
            boxes.append(out[v - 7 : v + 8, u - 7 : u + 8].astype(float))
    assert len(boxes) >= 12
    fluxes = np.array([box.sum() for box in boxes])
    moved = np.array([[(box * k).sum() / box.sum() for k in np.indices(box.shape)] for box in boxes])
    name = f"adaptive, shift {shift}: equal stars"
    figure(f"{name}, largest difference of fluxes", np.ptp(fluxes) / fluxes.mean(), 5e-5)
    figure(f"{name}, largest difference of positions, px", np.ptp(moved, axis=0).max(), 3e-4)


@pytest.mark.parametrize("frequency", [0.3, 0.38, 0.47])
def test_no_aliasing_at_scale_3(frequency, figure):
    """Waves that the target cannot hold (above 1/6 a source px) vanish; interpolated they come back as others."""
    y, x = np.indices(SHAPE)
    image = np.sin(2 * np.pi * frequency * (x + 0.3 * y))
    out = run(image, corners(3.0, target=(24, 30), shift=(6.2, 5.1)))
    ok = out.weight == 1
    assert ok.sum() > 200
    figure(f"adaptive at scale 3: amplitude left of a wave of {frequency} a px", np.abs(out.image[ok]).max(), 5e-3)

    def centres(x, y):
        return 3 * (np.cos(0.122) * x - np.sin(0.122) * y) + 6.2, 3 * (np.sin(0.122) * x + np.cos(0.122) * y) + 5.1

    aliased = run(image, control_grid(centres, (24, 30), SHAPE, 1e-4), method="bspline3").image
    assert np.nanmax(np.abs(aliased)) > 0.5


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_constant_and_flux(scale):
    grid = corners(scale, target=(30, 30), shift=(7.3, 8.1))
    a, b = (run(np.full(SHAPE, 1000.0), grid, np.full(SHAPE, 3.0, np.float32), flux=flux) for flux in (False, True))
    ok = np.isfinite(a.image)
    np.testing.assert_allclose(a.image[ok], 1000.0, rtol=3e-6)
    np.testing.assert_allclose(b.image[ok], 1000.0 * scale**2, rtol=3e-6)
    np.testing.assert_allclose(b.variance[ok] / a.variance[ok], scale**4, rtol=3e-6)


def test_stars_keep_their_flux(figure):
    s = scene("tan")
    image = Align(method="adaptive")(s.source, onto=s.target, device="cpu").image
    figure("align tan adaptive: flux 99 %", star_figures(image, s)[1], 1e-5)


@pytest.mark.parametrize("scale", [1.0, 2.4])
def test_variance_is_that_of_a_monte_carlo(scale, rng, figure):
    variance = rng.uniform(0.5, 2.0, SHAPE).astype(np.float32)
    grid = corners(scale, target=(40, 50), shift=(10.3, 9.1))
    draws = [run(rng.normal(0, np.sqrt(variance)), grid).image for _ in range(300)]
    out = run(np.zeros(SHAPE), grid, variance)
    clean = (out.mask == 0) & (out.weight == 1)
    assert clean.sum() > 500
    ratio = np.var(draws, axis=0)[clean] / out.variance[clean]
    figure(f"variance adaptive, scale {scale}: Monte Carlo / model - 1", abs(ratio.mean() - 1), 0.02)


@pytest.mark.parametrize("scale", [0.6, 1.0, 2.7])
def test_mask_is_what_is_touched(scale, rng):
    """From SAT wherever the weight is a thousandth of the largest; from others where it is three tenths."""
    mask = np.zeros(SHAPE, np.int32)
    y, x = (g.ravel() for g in np.mgrid[20:80:29, 20:100:29])
    mask[y, x] = SAT | DETECTED
    grid = corners(scale, target=(60, 60), shift=(6.3, 8.1))
    out = run(np.zeros(SHAPE), grid, mask=mask)
    share = run(mask != 0, grid).image * max(1.0, scale**2) * np.pi * 1.3**2 / 2  # in units of the largest weight
    sure = np.isfinite(share) & (out.weight == 1)
    assert ((out.mask & SAT) != 0)[sure & (share > 1.5e-3)].all()
    assert not ((out.mask & SAT) != 0)[sure & (share < 5e-4)].any()
    assert ((out.mask & DETECTED) != 0)[sure & (share > 0.4)].all()
    assert not ((out.mask & DETECTED) != 0)[sure & (share < 0.25)].any()


def test_bad_pixels_and_border(rng):
    image, mask = rng.normal(50, 1, SHAPE), np.zeros(SHAPE, np.int32)
    mask[40, 50] = BAD
    wild = image.copy()
    wild[40, 50] = np.nan
    grid = corners()
    a, b, clean = run(image, grid, mask=mask), run(wild, grid), run(image, grid)
    assert a.image.tobytes() == b.image.tobytes()
    touched = (a.mask & INTERP) != 0
    assert 12 <= touched.sum() <= 25
    np.testing.assert_array_equal(a.image[~touched & (a.weight == 1)], clean.image[~touched & (a.weight == 1)])
    outside = clean.weight == 0
    assert (clean.mask[outside] == NO_DATA).all() and np.isnan(clean.image[outside]).all()
    cut = (clean.weight > 0) & (clean.weight < 0.99)
    assert cut.any() and (clean.mask[cut] & EDGE).all()
