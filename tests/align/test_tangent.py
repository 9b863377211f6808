# SPDX-License-Identifier: BSD-3-Clause
"""Polynomials and a homography in place of astropy's chain: the same positions, or astropy's own."""

import importlib.util
import warnings

import numpy as np
import pytest
import support_standin
from astropy.coordinates import FK5, ICRS, Galactic, SkyCoord
from astropy.io import fits
from astropy.wcs import WCS, Sip
from support_align import PIXEL, plane, tpv, with_sip
from support_wcs import every_header, projected, tangent_gwcs

from skydelta.errors import InputError
from skydelta.io.exposure import Exposure
from skydelta.io.sky import fits_frame
from skydelta.io.wcs import celestial_wcs
from skydelta.kernels.backend import resolve, to_host
from skydelta.kernels.maps import CHAIN, tangent_points
from skydelta.stages.align import Align, tangent
from skydelta.stages.align.cache import MAPS
from skydelta.stages.align.chain import SkyChain
from skydelta.stages.align.mapping import pixel_map
from skydelta.stages.align.tangent import UnfitError, places, tangent_chain
from skydelta.stages.base import Context

SHAPE = (300, 411)
SAME = 1e-7
"""Largest difference to astropy, px."""


@pytest.fixture(autouse=True)
def no_maps_of_other_tests():
    MAPS.clear()


def inside(q, shape, margin=0.0):
    n = np.array(shape[::-1])[:, None]
    with np.errstate(invalid="ignore"):
        return ((q >= margin - 0.5) & (q <= n - 0.5 - margin)).all(axis=0)


def difference(source, target, shape, source_shape, n=2000, beyond=0.0):
    """Largest difference to astropy (px) at random pixels of the target (and ``beyond`` it, in its sides) that lie in
    the source; the same ones must."""
    chain = SkyChain(source, target)
    numbers = tangent_chain(chain, source_shape)
    side = np.array(shape[::-1])
    at = np.random.default_rng(2).uniform(-0.5 - beyond * side, side - 0.5 + beyond * side, (n, 2))
    q, exact = tangent_points(numbers, at, 0.0, (1, 1))[:, :, 0, 0], np.stack(chain(*at.T))
    known = inside(exact, source_shape)
    border = known & ~inside(exact, source_shape, 1e-4)
    assert known.any()
    assert (inside(q, source_shape) == known)[~border].all()
    return np.sqrt(((q - exact) ** 2).sum(axis=0))[known].max()


def rounding(*ends):
    """What astropy's own longitudes are rounded to, in px."""
    return max(720.0 * np.finfo(float).eps / np.sqrt(abs(np.linalg.det(w.pixel_scale_matrix))) for w in ends)


# ---- the same as astropy ----


def test_every_tangent_header(shared_data, figure):
    """Each onto a plane at its middle and that plane onto it."""
    worst, done, why = 0.0, 0, []
    for header, tables in every_header(shared_data / "wcs"):
        try:
            w, _ = celestial_wcs(header, tables)
        except InputError:
            continue
        if w is None or "TAN" not in w.wcs.ctype[0]:
            continue
        size = tuple(n if (n := header.get(f"NAXIS{i}", 0)) > 5 else 192 for i in (2, 1))
        other = w.deepcopy()
        other.wcs.crval = w.wcs.crval + np.abs(w.pixel_scale_matrix).sum(axis=1) * 3
        if fits_frame(w) is not None:
            lon, lat = w.all_pix2world(size[1] / 2, size[0] / 2, 0)
            scale = np.sqrt(abs(np.linalg.det(w.pixel_scale_matrix))) / PIXEL
            other = plane((200, 240), 10.0, scale=scale * max(size) / 200, sky=(float(lon), float(lat)))
        shape = other.pixel_shape[::-1] if other.pixel_shape else size
        for a, b, sizes in ((w, other, (shape, size)), (other, w, (size, shape))):
            try:
                worst = max(worst, difference(a, b, *sizes) / (SAME + rounding(a, b)))
                done += 1
            except UnfitError as e:
                why.append(str(e))
    figure("every TAN, SIP and TPV header: difference to astropy / (1e-7 px and its rounding)", worst, 1.0)
    assert done > 60
    assert {line.rpartition(" of ")[0] for line in why} == {"lookup tables"}


@pytest.mark.parametrize("case", ["tan", "sip", "sipi", "tpv", "scale06", "scale17", "parity", "wrap", "pole"])
def test_shared_scenes(case, shared_tools, tmp_path, figure):
    spec = importlib.util.spec_from_file_location("align_scene", shared_tools / "align_scene.py")
    scenes = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scenes)
    scenes.make(str(tmp_path), case, 256, 3.5, 7)
    source, target = (WCS(fits.getheader(tmp_path / f"{name}.fits")) for name in ("src", "tgt"))
    figure(f"align_scene {case}: difference to astropy, px", difference(source, target, (256, 256), (256, 256)), SAME)
    assert pixel_map(source, target, (256, 256), (256, 256)).way == "polynomials"


def random_header(rng, sky, pixel):
    """TAN, SIP or TPV of 1000 x 900 px of this size (degrees) about a place (ICRS): turned, sheared, in any frame."""
    frames = (ICRS(), ("RA--", "DEC-")), (FK5(equinox="J1975"), ("RA--", "DEC-")), (Galactic(), ("GLON", "GLAT"))
    frame, names = frames[rng.integers(3)]
    kind = ["TAN", "SIP", "TPV"][rng.integers(3)]
    centre = sky.transform_to(frame).spherical
    values = centre.lon.deg, float(np.clip(centre.lat.deg + 100 * pixel * rng.normal(), -90, 90))
    order = [0, 1] if kind == "TPV" or rng.random() < 0.7 else [1, 0]  # swapped, wcslib makes something else of TPV
    types = [f"{n}-{'TPV' if kind == 'TPV' else 'TAN'}{'-SIP' if kind == 'SIP' else ''}" for n in names]
    turn = rng.uniform(0, 2 * np.pi)
    cd = pixel * (np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]) + rng.normal(0, 0.02, (2, 2)))
    cd[0] *= rng.choice([-1, 1])
    h = fits.Header()
    h["NAXIS"], h["NAXIS1"], h["NAXIS2"] = 2, 1000, 900
    for i, k in enumerate(order):
        h[f"CTYPE{i + 1}"], h[f"CRVAL{i + 1}"] = types[k], values[k]
        h[f"CRPIX{i + 1}"] = 450 + 100 * rng.normal()
        h[f"CD{i + 1}_1"], h[f"CD{i + 1}_2"] = cd[i]
    if frame.name == "fk5":
        h["RADESYS"], h["EQUINOX"] = "FK5", 1975.0
    if rng.random() < 0.5:
        h["LONPOLE"] = rng.uniform(-180, 180)
    if kind == "SIP":
        for name in "AB":
            n = int(rng.integers(2, 8))
            h[f"{name}_ORDER"] = n
            for i in range(n + 1):
                for j in range(n + 1 - i):
                    h[f"{name}_{i}_{j}"] = rng.normal(0, 4) / 800.0 ** (i + j)
    if kind == "TPV":
        half = 800 * pixel
        degrees = (0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, *[4] * 5, *[5] * 7, *[6] * 7, *[7] * 9)
        for axis in (1, 2):
            for m, n in enumerate(degrees):
                h[f"PV{axis}_{m}"] = (m == 1) + rng.normal(0, 4e-3) * half / half**n
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return WCS(h)


@pytest.mark.parametrize("seed", range(40))
def test_random_headers(seed, figure):
    rng = np.random.default_rng(seed)
    lat = [float(np.degrees(np.arcsin(rng.uniform(-1, 1)))), 89.999, -90.0, 0.0][seed % 4]
    sky = SkyCoord(rng.uniform(0, 360) if seed % 3 else 0.0, lat, unit="deg")
    pixel = 10 ** rng.uniform(-5.0, -3.7)
    source, target = (random_header(rng, sky, pixel * k) for k in rng.uniform(0.7, 1.4, 2))
    error = difference(source, target, (900, 1000), (900, 1000), beyond=0.5) / (SAME + rounding(source, target))
    figure(f"random headers {seed}: difference to astropy / (1e-7 px and its rounding)", error, 1.0)


@pytest.mark.parametrize("bend", [3.0, 12.0, 25.0])
def test_places_far_off_are_none(bend):
    """Outside the chip the inverse of a polynomial has other sheets; behind the tangent point there is no plane."""
    source = with_sip(plane((200, 200)), bend)
    target = plane((900, 900), 1.0, scale=3.0)
    if bend < 20:  # beyond, astropy's own inverse does not arrive everywhere
        assert difference(source, target, (900, 900), (200, 200), 40_000) < SAME
    chain, at = SkyChain(source, target), np.random.default_rng(3).uniform(0, 900, (40_000, 2))
    q = tangent_points(tangent_chain(chain, (200, 200)), at, 0.0, (1, 1))[:, :, 0, 0]
    known = inside(q, (200, 200))
    assert known.sum() > 100
    assert known[inside(np.stack(chain(*at.T)), (200, 200), 1e-4)].all()
    sky = source.all_pix2world(*q[:, known], 0)
    np.testing.assert_allclose(target.all_world2pix(*sky, 0), at[known].T, rtol=0, atol=SAME)
    wide = plane((200, 200), scale=100 / 200 / PIXEL)
    behind = plane((200, 200), sky=(117.3, -11.0), scale=1 / PIXEL)
    numbers = tangent_chain(SkyChain(wide, behind), (200, 200))
    y, x = np.indices((200, 200), float)
    q = tangent_points(numbers, np.zeros((1, 2)), 1.0, (200, 200))[:, 0]
    exact = np.stack(SkyChain(wide, behind)(x, y))
    assert 0.1 < np.isnan(exact[0]).mean() < 1
    assert (np.isnan(q) == np.isnan(exact)).all()
    known = np.isfinite(exact) & (np.abs(exact).max(axis=0) < 1e5)
    assert np.abs(q - exact)[known].max() < 1e-6


# ---- astropy's own chain in the open ----


def tnx():
    h = fits.Header()
    h["NAXIS"], h["CTYPE1"], h["CTYPE2"], h["CRVAL1"], h["CRVAL2"] = 2, "RA---TNX", "DEC--TNX", 37.3, -11.0
    h["CRPIX1"], h["CRPIX2"], h["CD1_1"], h["CD2_2"] = 206.0, 150.5, -PIXEL, PIXEL
    h["WCSDIM"], h["WAT0_001"] = 2, "system=image"
    terms = "3. 4. 4. 2. -0.06 0.06 -0.06 0.06 1e-05 2e-05 -0.003 0.01 2e-05 0.001 0.01 -0.004 0.01 0.03 "
    for axis, kind, name in ((1, "ra", "lngcor"), (2, "dec", "latcor")):
        text = f'wtype=tnx axtype={kind} {name} = "{terms}"'
        for k in range(0, len(text), 68):
            h[f"WAT{axis}_{k // 68 + 1:03d}"] = text[k : k + 68]
    return WCS(h)


def with_pv(w):
    w.wcs.set_pv([(1, 1, 1e-9)])
    w.wcs.set()
    return w


def folded():
    """The distortion turns over within the image."""
    w = plane(SHAPE)
    a = np.zeros((4, 4))
    a[3, 0] = -1 / (3 * 100.0**2)
    w.sip = Sip(a, np.zeros((4, 4)), None, None, w.wcs.crpix)
    w.wcs.ctype = "RA---TAN-SIP", "DEC--TAN-SIP"
    return w


def of_frame(**cards):
    w = plane(SHAPE, 3.0)
    for name, value in cards.items():
        setattr(w.wcs, name, value)
    return w


def sip_and_tpv():
    w = with_sip(plane(SHAPE))
    w.wcs.ctype = "RA---TPV", "DEC--TPV"
    w.wcs.set_pv([(1, 1, 1.0), (1, 4, 0.1), (2, 1, 1.0)])
    w.wcs.set()
    return w


OTHERS = {
    "TNX": (tnx, "distortion of image other than SIP and TPV"),
    "AIT": (lambda: projected("AIT"), "projection AIT of image"),
    "PV of TAN": (lambda: with_pv(plane(SHAPE)), "PV cards of image"),
    "fold": (folded, "distortion of image cannot be inverted on all of it"),
    "FK4": (lambda: of_frame(radesys="FK4", equinox=1950.0), "is more than a rotation"),
    "GWCS": (lambda: tangent_gwcs(plane(SHAPE)), "image has no FITS cards"),
    "SIP and TPV": (sip_and_tpv, "SIP of image without A and B, or with PV"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_more_than_polynomials_says_so(name):
    make, why = OTHERS[name]
    source = make()
    grid = pixel_map(source, plane(SHAPE), SHAPE, SHAPE)
    assert grid.way.startswith("astropy: ")
    assert why in grid.way


def test_numbers_that_differ_from_astropy_are_not_used(monkeypatch):
    source, target = with_sip(plane(SHAPE)), plane(SHAPE, 0.4)
    true = pixel_map(source, target, SHAPE, SHAPE)
    sound = tangent.tangent_chain

    def wrong(*arguments):
        numbers = sound(*arguments)
        numbers[-5] += 3e-6  # px along x
        return numbers

    monkeypatch.setattr("skydelta.stages.align.mapping.tangent_chain", wrong)
    MAPS.clear()
    grid = pixel_map(source, target, SHAPE, SHAPE)
    assert grid.way == "astropy: polynomials differ from astropy by 3e-06 px"
    np.testing.assert_allclose(grid.nodes, true.nodes, rtol=0, atol=1e-7)


def test_the_receipt_says_which_way_it_went(rng):
    for source, way in ((tpv(SHAPE), "polynomials"), (tnx(), "astropy: distortion of image other than SIP and TPV"),
                        (plane(SHAPE), "the same WCS")):  # fmt: skip
        context = Context(resolve("cpu"))
        image = Exposure(rng.normal(0, 1, SHAPE).astype(np.float32), wcs=source)
        Align().run(context, image=image, onto=image.with_(wcs=plane(SHAPE)))
        assert context.metrics["map_by"] == way


# ---- the points of comparison ----


@pytest.mark.parametrize("shift", [(0, 0), (380, 0), (-405, 290), (1000, 0), (3.3e5, 0)])
def test_points_are_spread_over_the_overlap(shift):
    source, target = plane(SHAPE), plane(SHAPE, 20.0, shift=shift)
    chain = SkyChain(source, target)
    at = places(tangent_chain(chain, SHAPE), SHAPE, SHAPE)
    assert at.shape == (25, 2)
    y, x = np.indices(SHAPE, float)
    covered = inside(np.stack(chain(x, y)).reshape(2, -1), SHAPE).reshape(SHAPE)
    if covered.any():
        assert inside(np.stack(chain(*at.T)), SHAPE).all()
        span = [np.ptp(np.nonzero(covered)[k]) for k in (1, 0)]
        assert (np.ptp(at, axis=0) > 0.7 * np.array(span) - 2).all()
    else:
        assert (np.ptp(at, axis=0) >= np.array(SHAPE[::-1]) - 1).all()
    assert pixel_map(source, target, SHAPE, SHAPE).way == "polynomials"


def test_corners_are_half_a_pixel_off():
    source, target = with_sip(plane(SHAPE)), plane(SHAPE, 0.4)
    corners = pixel_map(source, target, SHAPE, SHAPE, corners=True)
    assert corners.way == "polynomials"
    exact = np.stack(SkyChain(source, target)(-0.5, -0.5))
    np.testing.assert_allclose(corners.nodes[:, 1, 1], exact, rtol=0, atol=SAME)


# ---- device ----


def on_device(case):
    """Pairs of headers, and a tolerance: of ``cut`` some cells are mapped pixel by pixel."""
    source = {"sip": with_sip(plane(SHAPE)), "tpv": tpv(SHAPE), "cut": with_sip(plane(SHAPE), 12.0)}.get(
        case, plane(SHAPE)
    )
    target = plane(SHAPE, 0.4, scale=4.0 if case == "cut" else 1.0)
    if case == "turned":
        target.wcs.ctype = "GLON-TAN", "GLAT-TAN"
        target.wcs.crval = 183.0, -62.0
        target.wcs.set()
    if case == "shift":
        target = plane(SHAPE, shift=(40.0, -7.0))
    return source, target, SHAPE, SHAPE, 1e-8 if case == "cut" else 1e-4


CASES = ("tan", "sip", "tpv", "turned", "cut", "shift")


def agree(host, there, case):
    assert host.way == there.way == "polynomials"
    assert (host.exact_fraction > 0) == (case == "cut")
    assert host.shift == ((7, -40) if case == "shift" else None)
    for name in ("nodes", "cells", "exact"):
        assert getattr(there, name).dtype == getattr(host, name).dtype
        np.testing.assert_allclose(to_host(getattr(there, name)), getattr(host, name), rtol=1e-11, atol=1e-9)
    for name in ("spacing", "shape", "source_shape", "shift", "exact_fraction"):
        assert getattr(there, name) == getattr(host, name)
    np.testing.assert_allclose(there.area, host.area, rtol=1e-9)
    np.testing.assert_allclose(there.error, host.error, atol=1e-11)


@pytest.mark.parametrize("case", CASES)
def test_maps_stay_on_their_device(case, monkeypatch):
    given = on_device(case)
    host = pixel_map(*given)
    copies = support_standin.install(monkeypatch)
    there = pixel_map(*given, backend=resolve("cuda"))
    assert isinstance(there.nodes, support_standin.OnDevice)
    if case != "cut":
        # the places compared, and six numbers for each row of cells
        assert copies["down largest"] <= max(400, 48 * there.cells.shape[0]) < there.nodes.nbytes / 4
        assert copies["up largest"] == 8 * CHAIN
    monkeypatch.undo()
    agree(host, there, case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_maps_on_a_device(case):
    given = on_device(case)
    there = pixel_map(*given, backend=resolve("cuda"))
    assert hasattr(there.nodes, "__cuda_array_interface__")
    agree(pixel_map(*given), there, case)
