# SPDX-License-Identifier: BSD-3-Clause
"""Exact overlap: fluxes, reproject_exact, variance, masks, borders, parity and the seam of an all-sky image."""

import numpy as np
import pytest
from astropy import units as u
from astropy.wcs import WCS
from cases.resample_exact import make
from scipy import ndimage
from support_align import draw, plane, scene, tpv, with_sip

from skydelta.io.exposure import Exposure
from skydelta.io.planes import MaskPlanes
from skydelta.kernels.resample import MaskBits, resample
from skydelta.stages.align import FILL, GROW, Align
from skydelta.stages.align.mapping import control_grid, pixel_map

P = MaskPlanes()
BITS = MaskBits(P.bit(*FILL), P.bit(*GROW), *(P.bit(n) for n in ("BAD", "NO_DATA", "EDGE", "INTERP")))
NO_DATA, EDGE, INTERP, BAD, DETECTED = (P.bit(n) for n in ("NO_DATA", "EDGE", "INTERP", "BAD", "DETECTED"))
SHAPE = (90, 110)


def corners(scale=1.0, degrees=7.0, shift=(4.3, -2.2), target=SHAPE, shape=SHAPE, parity=1):
    c, s = scale * np.cos(np.radians(degrees)), scale * np.sin(np.radians(degrees))

    def evaluate(x, y):
        x, y = parity * (x - 0.5), y - 0.5
        return c * x - s * y + shift[0], s * x + c * y + shift[1]

    return control_grid(evaluate, (target[0] + 1, target[1] + 1), shape, 1e-4)


def run(image, grid, variance=None, mask=None, flux=False):
    return resample(np.asarray(image, np.float32), variance, mask, grid, method="exact", flux=flux, bits=BITS)


def around(scale, parity=1, degrees=31.0):
    """A map whose target holds the whole source, turned about the middle."""
    side = int(np.ceil(160 / scale)) + 2
    c, s = scale * np.cos(np.radians(degrees)), scale * np.sin(np.radians(degrees))
    middle = side / 2

    def evaluate(x, y):
        x, y = parity * (x - 0.5 - middle), y - 0.5 - middle
        return c * x - s * y + 54.31, s * x + c * y + 44.77

    return control_grid(evaluate, (side + 1, side + 1), SHAPE, 1e-4)


@pytest.mark.parametrize("scale", [0.21, 1.0, 3.0, 17.0, 200.0])
@pytest.mark.parametrize("parity", [1, -1])
def test_flux_is_kept_at_any_scale(scale, parity, rng, figure):
    """All of it: pixels cut by the border of the source hold the part that they cover."""
    image = rng.uniform(0.5, 1.5, SHAPE).astype(np.float32)
    out = run(image, around(scale, parity), flux=True)
    total = np.nansum(out.image, dtype=float)
    figure(f"exact, scale {scale:g}, parity {parity}: flux", abs(total / image.sum(dtype=float) - 1), 5e-8)
    ones = run(np.ones(SHAPE), around(scale, parity), flux=True)
    figure(f"exact, scale {scale:g}, parity {parity}: area", abs(np.nansum(ones.image, dtype=float) / 9900 - 1), 5e-8)
    area = scale**2
    np.testing.assert_allclose(ones.weight * area, np.nan_to_num(ones.image), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("case", ["tan", "sip", "tpv", "scale", "mirrored"])
def test_stars_keep_their_flux(case, figure):
    """33 x 33 px around stars, against the source's own sums; the map is distorted, the sky analytic."""
    shape = (240, 260)
    source = {"sip": lambda: with_sip(plane(shape)), "tpv": lambda: tpv(shape)}.get(case, lambda: plane(shape))()
    scale = 1.7 if case == "scale" else 1.0
    target = plane(shape, 0.7, scale, (0.3, -0.2), mirrored=case == "mirrored")
    at = np.stack(np.meshgrid(np.arange(50, 230, 50), np.arange(50, 210, 50)), -1).reshape(-1, 2) + 0.37
    sky = np.stack(source.all_pix2world(*at.T, 0))
    image = draw(source, shape, sky, np.linspace(0.2, 1, len(at))).astype(np.float32)
    aligned = Align(method="exact")(Exposure(image, wcs=source, unit=u.adu), onto=(target, shape), device="cpu")
    assert aligned.header["ALCONSRV"] == "flux"
    x, y = np.rint(target.all_world2pix(*sky, 0)).astype(int)
    sx, sy = np.rint(at.T).astype(int)
    box = np.arange(-16, 17)
    got = aligned.image[y[:, None, None] + box[:, None], x[:, None, None] + box].sum(axis=(1, 2), dtype=float)
    want = image[sy[:, None, None] + box[:, None], sx[:, None, None] + box].sum(axis=(1, 2), dtype=float)
    figure(f"exact {case}: largest relative error of star fluxes", np.abs(got / want - 1).max(), 5e-8)


@pytest.mark.parametrize("turn", [0.0, 33.0])
@pytest.mark.parametrize("scale", [0.6, 1.0, 2.5])
def test_against_reproject_exact(scale, turn, peer, rng, figure):
    source, target = plane(SHAPE), plane((70, 80), turn, scale, (1.2, -3.3))
    image = ndimage.gaussian_filter(rng.normal(0, 1, SHAPE), 1.0).astype(np.float32)
    theirs, seen = peer("reproject").reproject_exact((image, WCS(source.to_header())), target, (70, 80))
    out = run(image, pixel_map(source, target, (70, 80), SHAPE, corners=True))
    covered = seen > 1e-3
    assert (np.isfinite(out.image) == (seen > 1e-9)).mean() > 0.999
    figure(f"exact, scale {scale}, turn {turn}: against reproject", np.abs(out.image - theirs)[covered].max(), 1e-6)
    figure(f"exact, scale {scale}, turn {turn}: footprint", np.abs(out.weight - seen).max(), 1e-6)


@pytest.mark.parametrize(("flux", "scale"), [(False, 1.0), (True, 1.6)])
def test_variance_is_that_of_a_monte_carlo(flux, scale, rng, figure):
    variance = rng.uniform(0.5, 2.0, SHAPE).astype(np.float32)
    grid = corners(scale, target=(50, 60), shift=(10.3, 3.1))
    draws = [run(rng.normal(0, np.sqrt(variance)), grid, flux=flux).image for _ in range(400)]
    out = run(np.zeros(SHAPE), grid, variance, flux=flux)
    clean = out.mask == 0
    ratio = np.var(draws, axis=0)[clean] / out.variance[clean]
    assert clean.sum() > 1000
    figure(f"variance exact, flux {flux}: mean of Monte Carlo / model - 1", abs(ratio.mean() - 1), 0.01)


@pytest.mark.parametrize("scale", [0.4, 1.0, 2.7])
def test_mask_is_what_is_touched(scale, rng):
    """A pixel is flagged just where a change of one marked source pixel changes its value."""
    mask = np.zeros(SHAPE, np.int32)
    mask[rng.random(SHAPE) < 0.02] = DETECTED
    grid = corners(scale, target=(60, 60), shift=(3.3, 8.1))
    out = run(np.zeros(SHAPE), grid, mask=mask)
    share = run(mask != 0, grid, flux=True).image / min(1.0, scale**2)
    seen = np.isfinite(share)
    assert ((out.mask & DETECTED) != 0)[seen & (share > 4e-3)].all()
    assert not (out.mask & DETECTED)[seen & (share < 9e-4)].any()


def test_bad_pixels_are_replaced_and_count_for_nothing(rng):
    image, mask = rng.normal(50, 1, SHAPE), np.zeros(SHAPE, np.int32)
    mask[40, 50] = BAD
    wild, nan = image.copy(), image.copy()
    wild[40, 50], nan[40, 50] = 1e30, np.nan
    grid = corners()
    variance = np.full(SHAPE, 2.0, np.float32)
    a, b, c, clean = (run(i, grid, variance, m) for i, m in ((image, mask), (wild, mask), (nan, None), (image, None)))
    assert a.image.tobytes() == b.image.tobytes() == c.image.tobytes()
    touched = (a.mask & INTERP) != 0
    assert 4 <= touched.sum() <= 9
    assert (a.mask[~touched] == clean.mask[~touched]).all()
    np.testing.assert_array_equal(a.image[~touched], clean.image[~touched])
    assert a.weight[touched].max() < 1
    gone = np.isnan(a.image) & ~np.isnan(clean.image)
    assert (a.mask[gone] & NO_DATA).all() and (a.weight[gone] <= 0.5).all()


def test_border_is_flagged_and_outside_is_no_data():
    out = run(np.full(SHAPE, 7.0), corners(degrees=0.0, shift=(20.5, 0.0)))
    np.testing.assert_allclose(out.image[:, :90], 7.0, rtol=1e-6)
    np.testing.assert_allclose(out.weight[:, 89], 0.5, rtol=1e-6)
    assert (out.mask[:, 89] == EDGE).all() and (out.mask[:, :89] == 0).all()
    assert np.isnan(out.image[:, 90:]).all() and (out.mask[:, 90:] == NO_DATA).all()


def test_seam_of_an_all_sky_image():
    """Target pixels across the seam of the source have no straight edges there: no value, rather than a wrong one."""
    source = WCS(naxis=2)
    source.wcs.ctype, source.wcs.crpix, source.wcs.cdelt = ("RA---CAR", "DEC--CAR"), (180.5, 90.5), (-1.0, 1.0)
    target = WCS(naxis=2)
    target.wcs.ctype, target.wcs.crval, target.wcs.crpix = ("RA---TAN", "DEC--TAN"), (180.0, 3.0), (20.5, 20.5)
    target.wcs.cdelt = -0.9, 0.9
    image = np.full((180, 360), 3.0, np.float32)
    out, weight = Align(method="exact").resampled(*_context(), Exposure(image, wcs=source), _onto(target, (40, 40)))
    ok = np.isfinite(out.image)
    assert 0.9 < ok.mean() < 1
    np.testing.assert_allclose(out.image[ok], 3.0, rtol=1e-6)
    assert ((out.mask & NO_DATA) != 0)[~ok].all()
    assert weight[ok].max() <= 1


def _context():
    from skydelta.kernels.backend import resolve
    from skydelta.stages.base import Context

    return (Context(resolve("cpu"), id="seam"),)


def _onto(wcs, shape):
    return Exposure(np.zeros(shape, np.float32), wcs=wcs)


def test_whole_pixel_shifts_are_copied():
    s = scene("tan", (60, 70))
    moved = s.source.wcs.deepcopy()
    moved.wcs.crpix = np.add(moved.wcs.crpix, (3, -2))
    out = Align(method="exact")(s.source, onto=(moved, (60, 70)), device="cpu")
    assert out.header["ALMETHOD"] == "copy"


def test_the_same_bytes_with_any_number_of_threads(rng):
    import numba

    case = make(rng, (26, 41))
    from skydelta.kernels.cpu.overlap import overlap

    before, results = numba.get_num_threads(), []
    for n in (1, 2):
        numba.set_num_threads(n)
        results.append(overlap(**case))
    numba.set_num_threads(before)
    for a, b in zip(*results, strict=True):
        assert a.tobytes() == b.tobytes()
