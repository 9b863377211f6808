# SPDX-License-Identifier: BSD-3-Clause
"""The gather: variance, mask, filling and borders against Monte Carlo, perturbation and other interpolators."""

import hypothesis
import numba
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy import ndimage
from support_align import plane

from skydelta.io.exposure import Exposure
from skydelta.io.planes import CORE_PLANES, MaskPlanes
from skydelta.kernels.resample import MaskBits, resample
from skydelta.stages.align import FILL, GROW, Align
from skydelta.stages.align.mapping import control_grid

P = MaskPlanes()
BITS = MaskBits(P.bit(*FILL), P.bit(*GROW), *(P.bit(n) for n in ("BAD", "NO_DATA", "EDGE", "INTERP")))
BAD, NO_DATA, EDGE, INTERP, SAT, CR, DETECTED = (
    P.bit(n) for n in ("BAD", "NO_DATA", "EDGE", "INTERP", "SAT", "CR", "DETECTED")
)
METHODS = ("nearest", "bilinear", "bspline3", "lanczos3", "bspline5", "lanczos4", "lanczos5")
SHAPE = (90, 110)


def turned(shape=SHAPE, degrees=7.0, shift=(4.3, -2.2), scale=1.0, target=None):
    c, s = scale * np.cos(np.radians(degrees)), scale * np.sin(np.radians(degrees))
    return control_grid(lambda x, y: (c * x - s * y + shift[0], s * x + c * y + shift[1]), target or shape, shape, 1e-4)


def shifted(dx, dy, shape=SHAPE):
    return control_grid(lambda x, y: (x + dx, y + dy), shape, shape, 1e-4)


def run(image, grid, variance=None, mask=None, **options):
    return resample(image.astype(np.float32), variance, mask, grid, bits=BITS, **options)


def smooth(rng, shape=SHAPE, sigma=2.0):
    return ndimage.gaussian_filter(rng.normal(0, 1, shape), sigma) * 10


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [SHAPE, (511, 1023), (20, 7), (5, 5)])
def test_constant_sky_stays_constant(method, shape):
    """No moire: the weights add up to one at every phase, at the border too."""
    out = run(np.full(shape, 1000.0), turned(shape, 3.0, (0.3, 0.4)), method=method)
    inside = out.weight > 0
    assert inside.any()
    np.testing.assert_allclose(out.image[inside & np.isfinite(out.image)], 1000.0, rtol=3e-6)


@pytest.mark.parametrize(("method", "order"), [("nearest", 0), ("bilinear", 1), ("bspline3", 3), ("bspline5", 5)])
def test_against_scipy(method, order, rng):
    image = rng.normal(0, 1, SHAPE)
    out = run(image, turned(), method=method)
    y, x = np.indices(SHAPE)
    c, s = np.cos(np.radians(7.0)), np.sin(np.radians(7.0))
    at = [s * x + c * y - 2.2, c * x - s * y + 4.3]
    oracle = ndimage.map_coordinates(image.astype(np.float32).astype(float), at, order=order, mode="mirror")
    ok = np.isfinite(out.image)
    assert ok.mean() > 0.7
    np.testing.assert_allclose(out.image[ok], oracle[ok], atol=1e-5 if order == 5 else 5e-6)


@pytest.mark.parametrize("order", [3, 4, 5])
def test_lanczos_is_its_formula(order, rng):
    """The sum over (2 a)^2 pixels written down, each axis divided by its sum."""
    image = rng.normal(0, 1, SHAPE)
    out = run(image, shifted(0.31, 0.77), method=f"lanczos{order}").image

    def weights(f):
        t = f - np.arange(1 - order, order + 1)
        w = np.sinc(t) * np.sinc(t / order)
        return w / w.sum()

    box = np.lib.stride_tricks.sliding_window_view(image.astype(np.float32).astype(float), (2 * order, 2 * order))
    want = np.einsum("yxij,i,j->yx", box, weights(0.77), weights(0.31))
    np.testing.assert_allclose(out[order - 1 : -order, order - 1 : -order], want, atol=3e-6)


def test_against_reproject(peer, rng):
    from astropy.wcs import WCS

    reproject = peer("reproject")
    source, target = plane(SHAPE), plane(SHAPE, 2.0, shift=(3.2, 1.7))
    image = smooth(rng)
    other, _ = reproject.reproject_interp((image, WCS(source.to_header())), target, SHAPE, order="bicubic")
    from skydelta.stages.align.mapping import pixel_map

    out = run(image, pixel_map(source, target, SHAPE, SHAPE))
    inner = np.s_[8:-8, 8:-8]
    assert np.isfinite(other[inner]).all()
    np.testing.assert_allclose(out.image[inner], other[inner], atol=3e-5)


@pytest.mark.parametrize("method", METHODS[1:])
def test_variance_is_that_of_a_monte_carlo(method, rng, figure):
    """Over phases and a variance that changes by 4 from pixel to pixel; per phase bin and over all pixels."""
    shape = (100, 100)
    variance = rng.uniform(0.5, 2.0, shape).astype(np.float32)
    grid = turned(shape, 4.0, (2.3, -1.2))
    draws = [run(rng.normal(0, np.sqrt(variance)), grid, method=method).image for _ in range(500)]
    out = run(np.zeros(shape), grid, variance, method=method)
    clean = (out.mask == 0) & (out.weight == 1)
    clean[:6] = clean[-6:] = clean[:, :6] = clean[:, -6:] = False
    ratio = np.var(draws, axis=0)[clean] / out.variance[clean]
    figure(f"variance {method}: mean of Monte Carlo / model - 1", abs(ratio.mean() - 1), 0.005)
    y, x = np.indices(shape)
    c, s = np.cos(np.radians(4.0)), np.sin(np.radians(4.0))
    phase = np.stack([c * x - s * y + 2.3, s * x + c * y - 1.2])[:, clean] % 1
    bins = (phase[0] * 4).astype(int) * 4 + (phase[1] * 4).astype(int)
    worst = max(abs(ratio[bins == b].mean() - 1) for b in range(16))
    figure(f"variance {method}: worst of 16 phase bins", worst, 0.03)


@pytest.mark.parametrize("method", METHODS)
def test_no_pixel_touched_by_a_bad_one_goes_unflagged(method, rng):
    """Change the value of masked pixels wildly: outputs that change are flagged, from SAT as far as the kernel goes."""
    image = smooth(rng)
    mask = np.zeros(SHAPE, np.int32)
    y, x = (g.ravel() + rng.integers(-2, 3, 63) for g in np.mgrid[5:88:13, 3:108:13])
    mask[y, x] = rng.choice([SAT, DETECTED], 63)  # not replaced, so their values count
    other = image.copy()
    other[y, x] += 1000.0
    grid = turned()
    a, b = (run(i, grid, mask=mask, method=method) for i in (image, other))
    weight = np.abs(b.image - a.image) / 1000.0
    np.testing.assert_array_equal(a.mask, b.mask)
    saturated = run(image, grid, mask=np.where(mask == SAT, SAT, 0).astype(np.int32), method=method).mask
    by_sat = run(np.where(mask == SAT, other, image), grid, mask=mask, method=method).image - a.image
    changed_by_sat = np.abs(by_sat) > 15.0  # beyond the footprint cardinal splines have less than 1.5 % of the weight
    assert (saturated[changed_by_sat] & SAT).all()
    lobe = 0.15 if REACH[method] <= 3 else 0.22  # beyond the inner 2 x 2 px; 0.217 for a sinc
    assert (a.mask[np.nan_to_num(weight) > lobe] != 0).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bit", [BAD, CR, NO_DATA])
def test_bad_pixels_are_replaced(method, bit, rng):
    """Their values have no influence; what they would have weighed is flagged and no more."""
    image = smooth(rng)
    mask = np.zeros(SHAPE, np.int32)
    mask[40, 50] = bit
    wild, nan = image.copy(), image.copy()
    wild[40, 50], nan[40, 50] = 1e30, np.nan
    grid = turned()
    a, b, c = (run(i, grid, mask=mask, method=method) for i in (image, wild, nan))
    for k in range(4):
        if a[k] is not None:
            np.testing.assert_array_equal(a[k], b[k])
    np.testing.assert_array_equal(a.image, c.image)
    clean = run(image, grid, method=method)
    differs = np.nan_to_num(np.abs(a.image - clean.image)) > 0.02 * np.abs(image).max()
    assert (a.mask[differs] & INTERP).all()
    flagged = (a.mask & ~clean.mask) != 0
    assert 1 <= flagged.sum() <= (4 * REACH[method] + 1) ** 2 / 2
    assert 1 <= ((a.mask & bit) != 0).sum() - ((clean.mask & bit) != 0).sum() <= 6


@pytest.mark.parametrize("method", METHODS)
def test_one_nan_stays_local(method, rng):
    image = smooth(rng)
    hole = image.copy()
    hole[40, 50] = np.nan
    grid = turned()
    a, b = run(image, grid, method=method), run(hole, grid, method=method)
    assert np.isnan(b.image).sum() - np.isnan(a.image).sum() <= 1
    np.testing.assert_allclose(b.image[b.mask == 0], a.image[b.mask == 0], atol=3e-3 * np.abs(image).max())
    assert ((b.mask & NO_DATA) != 0).sum() > ((a.mask & NO_DATA) != 0).sum()


def test_large_hole_does_not_ring(rng):
    """A gap in an image with a high sky: outside the flagged rim nothing is seen of it."""
    image = smooth(rng) + 30000.0
    hole = image.copy()
    hole[30:70, 40:80] = np.nan
    grid = turned()
    a, b = run(image, grid), run(hole, grid)
    ok = b.mask == 0
    assert ok.mean() > 0.4
    assert np.abs(b.image - a.image)[ok].max() < 0.1
    inside = np.isnan(b.image) & np.isfinite(a.image)
    assert 1200 < inside.sum() < 1800
    assert (b.mask[inside] & NO_DATA).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, -1.0])
def test_unusable_variance_masks_its_pixel(value, rng):
    image, variance = smooth(rng), np.full(SHAPE, 2.0, np.float32)
    variance[40, 50] = value
    out = run(image, turned(), variance)
    good = np.isfinite(out.image)
    assert (out.variance[good] > 0).all() and np.isfinite(out.variance[good]).all()
    assert 1 <= ((out.mask & BAD) != 0).sum() <= 6


def test_integer_phase_touches_one_pixel_only(rng):
    """At a whole-pixel position a neighbour has no weight, so a bad pixel removes one output pixel (A10)."""
    image, mask = smooth(rng), np.zeros(SHAPE, np.int32)
    mask[40, 50] = BAD
    out = run(image, shifted(0.0, 2e-4), mask=mask)
    assert ((out.mask & BAD) != 0).sum() == 1
    assert np.isnan(out.image).sum() == 1


def test_edges_are_flagged_and_outside_is_no_data(rng):
    out = run(smooth(rng), shifted(20.5, 0.0))
    assert np.isnan(out.image[:, -20:]).all()
    assert (out.mask[:, -20:] == NO_DATA).all()
    assert (out.weight[:, -20:] == 0).all()
    assert (out.mask[:, -23:-20] & EDGE).all()
    assert (out.mask[:, 5:-25] == 0).all()
    assert np.isfinite(out.image[:, :-21]).all()


@pytest.mark.parametrize("method", METHODS)
def test_mirrored_target_gives_the_flipped_array(method, rng):
    """Brightness and flux alike: the sign of the Jacobian is dropped (A16)."""
    image = np.abs(smooth(rng))
    w = SHAPE[1]
    grid = control_grid(lambda x, y: (w - 1 - x, y + 0.0), SHAPE, SHAPE, 1e-4)
    for flux in (False, True):
        out = run(image, grid, method=method, flux=flux)
        np.testing.assert_allclose(out.image, image[:, ::-1], atol=2e-6 * image.max())


def test_flux_scales_image_and_variance(rng):
    grid = turned(scale=1.3, target=(60, 70), shift=(10.0, 5.0))
    image, variance = smooth(rng) + 50, np.full(SHAPE, 3.0, np.float32)
    a, b = (run(image, grid, variance, flux=flux) for flux in (False, True))
    ok = np.isfinite(a.image)
    np.testing.assert_allclose(b.image[ok] / a.image[ok], 1.69, rtol=1e-6)
    np.testing.assert_allclose(b.variance[ok] / a.variance[ok], 1.69**2, rtol=1e-6)


def test_flux_of_exact_cells_has_the_same_area(rng):
    def evaluate(x, y):
        return np.where(x > 60, np.nan, 1.1 * x + 0.01 * y), 0.9 * y + 3.0

    grid = control_grid(evaluate, SHAPE, SHAPE, 1e-4)
    assert grid.exact_fraction > 0
    image = smooth(rng) + 50
    a, b = (run(image, grid, flux=flux) for flux in (False, True))
    ok = np.isfinite(a.image)
    assert ok.any()
    np.testing.assert_allclose(b.image[ok] / a.image[ok], 0.99, rtol=2e-6)


def test_threads_do_not_change_a_byte(rng):
    image, mask = smooth(rng, (300, 400)), rng.choice([0, 0, 0, BAD, SAT], (300, 400)).astype(np.int32)
    variance = rng.uniform(1, 2, (300, 400)).astype(np.float32)
    grid = turned((300, 400))
    before, results = numba.get_num_threads(), []
    for n in (1, 2):
        numba.set_num_threads(n)
        results.append(run(image, grid, variance, mask))
    numba.set_num_threads(before)
    for a, b in zip(*results, strict=True):
        assert a.tobytes() == b.tobytes()


def test_core_planes_are_all_known():
    assert {*FILL, *GROW} <= set(CORE_PLANES)


# ---- masks, against brute force ----

REACH = dict(zip(METHODS, (0.5, 1.0, 3.0, 3.0, 4.0, 4.0, 5.0), strict=True))
"""Half width of the footprint, px."""


@hypothesis.settings(max_examples=30)
@hypothesis.given(
    seed=st.integers(0, 2**31),
    method=st.sampled_from(METHODS),
    degrees=st.floats(-180.0, 180.0),
    scale=st.floats(0.6, 1.8),
    mirrored=st.booleans(),
    bit=st.sampled_from([BAD, SAT, DETECTED]),
)
def test_mask_never_misses_a_touched_pixel(seed, method, degrees, scale, mirrored, bit):
    """Every pixel is looked at by itself: where the position of a target pixel is closer to a marked pixel than the
    kernel reaches, the bit (SAT) or INTERP (BAD, whose value is replaced) is there; the inner 2 x 2 pixels pass on any
    bit. Where no marked pixel is in reach nothing is flagged."""
    rng = np.random.default_rng(seed)
    shape = (40, 46)
    c, s = scale * np.cos(np.radians(degrees)), scale * np.sin(np.radians(degrees))
    sign = -1 if mirrored else 1

    def evaluate(x, y):
        x, y = sign * (x - 20.3), y - 17.6
        return 22.1 + c * x - s * y, 19.4 + s * x + c * y

    grid = control_grid(evaluate, (36, 41), shape, 1e-4)
    mask = np.where(rng.random(shape) < 0.01, bit, 0).astype(np.int32)
    out = run(smooth(rng, shape), grid, mask=mask, method=method)
    y, x = np.indices((36, 41), float)
    qx, qy = evaluate(x, y)
    inside = (qx > -0.5) & (qx < 45.5) & (qy > -0.5) & (qy < 39.5)
    reached, touched = np.zeros((36, 41), bool), np.zeros((36, 41), bool)
    for my, mx in zip(*np.nonzero(mask), strict=True):
        dx, dy = np.abs(qx - mx), np.abs(qy - my)
        reached |= (dx < REACH[method] - 2e-3) & (dy < REACH[method] - 2e-3)  # farther ones weigh below 1e-3
        half = min(REACH[method], 1.0)
        touched |= (dx < half - 2e-3) & (dy < half - 2e-3)
    on_a_pixel = (np.abs(qx - np.rint(qx)) < 2e-3) | (np.abs(qy - np.rint(qy)) < 2e-3)
    assert (out.mask[touched & inside] & bit).all()
    if bit == SAT:
        assert (out.mask[reached & inside & ~on_a_pixel] & SAT).all()
    if bit == BAD:
        assert (out.mask[reached & inside & ~on_a_pixel] & INTERP).all()
    far = np.ones((36, 41), bool)
    for my, mx in zip(*np.nonzero(mask), strict=True):
        far &= (np.abs(qx - mx) > REACH[method] + 2e-3) | (np.abs(qy - my) > REACH[method] + 2e-3)
    assert not (out.mask[far & inside] & (bit | INTERP)).any()
    assert (out.mask[~inside] & NO_DATA).all()


@hypothesis.settings(max_examples=15)
@hypothesis.given(
    seed=st.integers(0, 2**31),
    sy=st.integers(-30, 30),
    sx=st.integers(-30, 30),
    off=st.floats(-9e-5, 9e-5),
    method=st.sampled_from(METHODS),
)
def test_whole_pixel_shifts_are_copies_whatever_the_method(seed, sy, sx, off, method):
    """Bit by bit, NaN payloads and mask bits too, and within the tolerance of a whole pixel.

    An image that is moved gets NO_DATA where it has no value; one that is on the grid already is handed on as it is.
    """
    rng = np.random.default_rng(seed)
    image = rng.normal(0, 1, (40, 46)).astype(np.float32)
    image[rng.random((40, 46)) < 0.05] = np.nan
    mask = rng.choice([0, BAD, SAT | DETECTED], (40, 46)).astype(np.int32)
    source, target = plane((40, 46)), plane((40, 46))
    target.wcs.crpix = np.subtract(source.wcs.crpix, (sx + off, sy - off))
    given = Exposure(image, np.full((40, 46), 2.0, np.float32), mask, wcs=source)
    out = Align(method=method)(given, onto=target, device="cpu")
    assert out.header["ALMETHOD"] == "copy"
    to = np.s_[max(0, -sy) : 40 - max(0, sy), max(0, -sx) : 46 - max(0, sx)]
    at = np.s_[max(0, sy) : 40 - max(0, -sy), max(0, sx) : 46 - max(0, -sx)]
    assert out.image[to].tobytes() == image[at].tobytes()
    expected = mask if sy == sx == 0 else mask | np.where(np.isnan(image), NO_DATA, 0)
    assert (out.mask[to] == expected[at]).all()
    rest = np.ones((40, 46), bool)
    rest[to] = False
    assert np.isnan(out.image[rest]).all() and (out.mask[rest] == NO_DATA).all()
