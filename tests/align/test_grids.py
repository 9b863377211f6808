# SPDX-License-Identifier: BSD-3-Clause
"""Target grids against reproject and a scan of all angles: everything covered, nothing smaller."""

import numpy as np
import pytest
from astropy import units as u
from astropy.io import fits
from astropy.wcs import WCS
from astropy.wcs.wcsapi import SlicedLowLevelWCS
from support_align import PIXEL, plane, tpv, with_sip

import skydelta
from skydelta.errors import InputError
from skydelta.io.exposure import Exposure
from skydelta.kernels.core.tiles import Box
from skydelta.stages.align.grids import Grid, grid_of, mosaic, north_up

SHAPE = (200, 300)


def visits(kind="plain"):
    """Three images, turned and moved."""
    make = {"plain": plane, "sip": lambda *a, **k: with_sip(plane(*a, **k)), "tpv": tpv}[kind]
    places = (((0, 0), 31.0), ((120, -40), 29.0), ((-80, 150), 33.0))
    return [make(SHAPE, turn=turn, shift=shift) for shift, turn in places]


def border(shape):
    h, w = shape
    x, y = np.linspace(-0.5, w - 0.5, 101), np.linspace(-0.5, h - 0.5, 101)
    ends = np.ones(101)
    return np.concatenate([x, x, -0.5 * ends, (w - 0.5) * ends]), np.concatenate([-0.5 * ends, (h - 0.5) * ends, y, y])


def extent(grid, images):
    """Smallest and largest pixel coordinates of the images' borders on a grid, by astropy."""
    at = [grid.wcs.all_world2pix(*w.all_pix2world(*border(w.pixel_shape[::-1]), 0), 0) for w in images]
    return np.concatenate(at, axis=1).min(axis=1), np.concatenate(at, axis=1).max(axis=1)


@pytest.mark.parametrize("kind", ["sip", "tpv"])
@pytest.mark.parametrize("make", [mosaic, north_up])
def test_grid_holds_every_pixel_and_no_more(kind, make):
    images = visits(kind)
    grid = make(images)
    low, high = extent(grid, images)
    assert (low > -0.6).all() and (high < np.array(grid.shape[::-1]) - 0.4).all()
    assert (high - low > np.array(grid.shape[::-1]) - 1.1).all()


@pytest.mark.parametrize("kind", ["plain", "sip"])
def test_north_up_is_reproject_s(kind, peer):
    images = visits(kind)
    found, shape = peer("reproject.mosaicking").find_optimal_celestial_wcs(
        [(w.pixel_shape[::-1], w) for w in images], resolution=0.3 * u.arcsec
    )
    grid = north_up(images, scale=0.3)
    assert np.abs(np.subtract(grid.shape, shape)).max() <= 2
    np.testing.assert_allclose(grid.wcs.pixel_scale_matrix, found.pixel_scale_matrix, rtol=1e-9, atol=1e-12)
    middle = [g.all_pix2world((s[1] - 1) / 2, (s[0] - 1) / 2, 0) for g, s in ((grid.wcs, grid.shape), (found, shape))]
    np.testing.assert_allclose(*middle, atol=2 * PIXEL)


def test_scale_is_the_smallest_of_the_images_like_reproject_s(peer):
    images = [plane(SHAPE, 10.0, scale=1.3), plane(SHAPE, 20.0, scale=0.9)]
    found, _ = peer("reproject.mosaicking").find_optimal_celestial_wcs([(w.pixel_shape[::-1], w) for w in images])
    scale = np.sqrt(abs(np.linalg.det(mosaic(images).wcs.pixel_scale_matrix)))
    assert scale == pytest.approx(np.sqrt(abs(np.linalg.det(found.pixel_scale_matrix))), rel=1e-6)


@pytest.mark.parametrize("turn", [0.0, 44.0, -30.0, 100.0])
def test_no_angle_gives_a_smaller_mosaic(turn):
    images = [plane(SHAPE, turn=turn + d, shift=(s, 3 * d)) for d, s in ((0.0, 0), (3.0, 170), (-2.0, -60))]
    grid = mosaic(images)
    areas = [np.prod(mosaic(images, angle=a).shape) for a in np.arange(-45.0, 45.0, 2.5)]
    assert np.prod(grid.shape) <= min(areas) * 1.002
    y_axis = grid.wcs.pixel_scale_matrix[:, 1] / PIXEL
    assert np.degrees(np.arctan2(*y_axis)) == pytest.approx(0, abs=45.01)


def test_one_turned_image_keeps_its_size():
    image = plane(SHAPE, turn=31.0)
    assert mosaic([image, plane(SHAPE, turn=31.0, scale=1.0 + 1e-6)]).shape == SHAPE


def test_angle_and_centre_are_as_asked():
    grid = mosaic(visits(), scale=0.5, angle=20.0, centre=(37.31, -11.01))
    np.testing.assert_allclose(grid.wcs.wcs.crval, (37.31, -11.01))
    x, y = grid.wcs.wcs.crpix - 1
    here, above, left = (np.array(grid.wcs.all_pix2world(x + a, y + b, 0)) for a, b in ((0, 0), (0, 1), (-1, 0)))
    step = (above - here) * (np.cos(np.radians(here[1])), 1) * 3600
    np.testing.assert_allclose(step, 0.5 * np.array([np.sin(np.radians(20)), np.cos(np.radians(20))]), rtol=1e-4)
    assert left[0] > here[0]  # east


@pytest.mark.parametrize("sky", [(0.001, 5.0), (120.0, 89.999), (120.0, -89.9995)])
def test_seam_and_poles(sky):
    images = [plane(SHAPE, turn=t, shift=s, sky=sky) for t, s in ((5.0, (30, 0)), (15.0, (-30, 20)))]
    grid = mosaic(images)
    low, high = extent(grid, images)
    assert (low > -0.6).all() and (high < np.array(grid.shape[::-1]) - 0.4).all()
    assert np.prod(grid.shape) < 1.8 * np.prod(SHAPE)


def test_images_of_another_frame_are_covered():
    galactic = WCS(naxis=2)
    galactic.wcs.ctype = "GLON-TAN", "GLAT-TAN"
    galactic.wcs.crval, galactic.wcs.crpix, galactic.wcs.cdelt = (121.17, -21.57), (150.5, 100.5), (-PIXEL, PIXEL)
    galactic.pixel_shape = SHAPE[::-1]
    grid = mosaic([galactic])
    assert grid.shape == SHAPE  # alone it keeps its own lattice
    north = north_up([galactic])
    corners = galactic.pixel_to_world([0, 299, 0, 299], [0, 0, 199, 199]).icrs
    x, y = north.wcs.world_to_pixel(corners)
    assert x.min() >= -0.5 and y.min() >= -0.5
    assert x.max() <= north.shape[1] - 0.5 and y.max() <= north.shape[0] - 0.5


def test_shifted_by_whole_pixels_stays_on_the_lattice():
    first = with_sip(plane(SHAPE))
    other = with_sip(plane(SHAPE))
    other.wcs.crpix = np.add(first.wcs.crpix, (17, -9))
    other.sip = type(first.sip)(first.sip.a, first.sip.b, None, None, other.wcs.crpix)
    other.wcs.set()
    grid = mosaic([first, other])
    assert grid.shape == (SHAPE[0] + 9, SHAPE[1] + 17)
    for w in (first, other):
        x, y = grid.wcs.all_world2pix(*w.all_pix2world([3.0, 200.0], [5.0, 120.0], 0), 0)
        assert np.abs(x - np.rint(x)).max() < 1e-6 and np.abs(y - np.rint(y)).max() < 1e-6
        assert np.ptp(x) == pytest.approx(197, abs=1e-6)


def test_grid_of_image_header_text_and_wcs(tmp_path):
    w = with_sip(plane(SHAPE))
    image = Exposure(np.ones(SHAPE, np.float32), wcs=w)
    skydelta.write(image, tmp_path / "a.fits")
    header = w.to_header(relax=True)
    header["NAXIS"], header["NAXIS1"], header["NAXIS2"] = 2, SHAPE[1], SHAPE[0]
    (tmp_path / "a.hdr").write_text(header.tostring(sep="\n", endcard=True, padding=False) + "\n")
    there = w.all_pix2world(17.0, 150.0, 0)
    for source in (image, w, header, tmp_path / "a.fits", str(tmp_path / "a.fits[SCI]"), tmp_path / "a.hdr"):
        grid = grid_of(source)
        assert grid.shape == SHAPE
        np.testing.assert_allclose(grid.wcs.all_pix2world(17.0, 150.0, 0), there, rtol=1e-12)
    assert grid_of(grid) is grid


def test_any_wcs_object_has_a_grid(rng):
    """FITS cards behind astropy's shared interface, which hides that they are."""
    size = slice(0, 1000), slice(0, 1000)
    ours = [with_sip(plane(SHAPE, turn=t, shift=(s, 0))) for t, s in ((3.0, 0), (9.0, 60))]
    hidden = [SlicedLowLevelWCS(w, size) for w in ours]
    wanted, found = mosaic(ours), mosaic(hidden)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found.wcs.wcs.crval, wanted.wcs.wcs.crval, rtol=1e-12)
    grid = grid_of(hidden[0])
    image = Exposure(rng.normal(0, 1, SHAPE).astype(np.float32), wcs=hidden[1])
    part = Box(20, 150, 30, 200)
    whole, piece = (skydelta.align(image, onto=e, device="cpu").image for e in (grid.exposure(), grid.exposure(part)))
    np.testing.assert_allclose(piece, whole[part.slices], atol=1e-5)


def test_grid_is_a_target_for_align(rng):
    image = Exposure(rng.normal(0, 1, SHAPE).astype(np.float32), wcs=plane(SHAPE, turn=8.0))
    grid = north_up([image])
    out = skydelta.align(image, onto=grid.exposure(), device="cpu")
    assert out.shape == grid.shape
    assert np.isfinite(out.image).sum() == pytest.approx(image.image.size, rel=0.01)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mosaic([]), "no images"),
        (lambda: mosaic([Exposure(np.ones((3, 3), np.float32), id="a.fits")]), "a.fits: no celestial WCS; register"),
        (lambda: mosaic([plane(SHAPE)], scale=-1), "scale = -1 arcsec"),
        (lambda: mosaic([plane(SHAPE), plane(SHAPE, sky=(217.3, 11.0))]), "reach|no middle"),
        (lambda: mosaic([plane(SHAPE), plane(SHAPE, sky=(67.3, 11.0))], scale=1e-4), "px are needed"),
        (lambda: mosaic([plane(SHAPE), plane(SHAPE, sky=(42.3, 11.0))]), "px are needed around 2 images that cover"),
        (lambda: grid_of(fits.Header({"NAXIS1": 4})), "header: no celestial WCS"),
        (lambda: grid_of(plane(SHAPE).to_header()), "has no size"),
        (lambda: grid_of("/nowhere/a.fits"), "a.fits: no such file"),
        (lambda: grid_of(3), "int has no grid"),
    ],
)
def test_what_makes_no_grid_is_said(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_an_empty_image_takes_no_memory():
    grid = Grid(plane((100000, 100000)), (100000, 100000))
    assert grid.exposure().image.strides == (0, 0)
