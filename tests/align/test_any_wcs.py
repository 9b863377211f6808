# SPDX-License-Identifier: BSD-3-Clause
"""The map of every projection, frame and kind of WCS object, against astropy's own chain pixel by pixel."""

import erfa
import numpy as np
import pytest
from astropy import units as u
from astropy.coordinates import FK4, FK5, ICRS, Galactic, SkyCoord
from astropy.time import Time
from astropy.wcs import WCS
from astropy.wcs.wcsapi import HighLevelWCSWrapper
from support_align import PIXEL, exact_positions, plane, tpv, with_sip
from support_wcs import PROJECTIONS, Wrapped, projected, tangent_gwcs

from skydelta.errors import InputError
from skydelta.io.exposure import Exposure
from skydelta.kernels.core.tiles import Box
from skydelta.kernels.cpu.reference_resample import dense_map
from skydelta.stages.align import Align
from skydelta.stages.align.cache import MAPS, MapCache, same_wcs
from skydelta.stages.align.chain import SkyChain
from skydelta.stages.align.mapping import pixel_map

SHAPE = (150, 170)


@pytest.fixture(autouse=True)
def no_maps_of_other_tests():
    MAPS.clear()


def positions(grid):
    """Source x, y (2, H, W) as the kernels evaluate them."""
    return dense_map(grid.nodes, grid.cells, grid.exact, grid.shape)[:2]


def inside(q, shape, margin=0.0):
    h, w = shape
    with np.errstate(invalid="ignore"):
        return (q[0] >= margin - 0.5) & (q[0] <= w - 0.5 - margin) & (q[1] >= margin - 0.5) & (q[1] <= h - 0.5 - margin)


def agreement(q, exact, shape):
    """Largest distance where the exact position is in the source; the same pixels must be valid."""
    known = inside(exact, shape)
    border = inside(exact, shape, -1e-4) & ~inside(exact, shape, 1e-4)
    assert (inside(q, shape) == known)[~border].all()
    assert known.sum() > 1000
    return np.sqrt(((q - exact) ** 2).sum(axis=0))[known].max()


# ---- projections ----


@pytest.mark.parametrize("kind", PROJECTIONS)
def test_every_projection_in_both_directions(kind, figure):
    w = projected(kind)
    lon, lat = w.all_pix2world(80.0, 70.0, 0)
    assert np.isfinite([lon, lat]).all()
    flat = plane(SHAPE, 7.0, scale=0.01 / PIXEL, sky=(float(lon), float(lat)))
    for name, source, target in (("from", w, flat), ("onto", flat, w)):
        error = agreement(
            positions(pixel_map(source, target, SHAPE, SHAPE)), exact_positions(source, target, SHAPE), SHAPE
        )
        figure(f"map {name} {kind}: error, px", error, 1e-4)


def test_projections_are_those_of_wcslib():
    assert len(set(PROJECTIONS)) == 27
    with pytest.raises(InputError, match="RA---CSC, DEC--CSC cannot be used"):
        SkyChain(projected("CSC"), plane(SHAPE))


# ---- frames ----


FRAMES = {
    "galactic": (("GLON", "GLAT"), {}, Galactic()),
    "galactic with RADESYS": (("GLON", "GLAT"), {"radesys": "ICRS"}, Galactic()),
    "FK5 1975": (("RA--", "DEC-"), {"radesys": "FK5", "equinox": 1975.0}, FK5(equinox="J1975")),
    "FK5 by equinox": (("RA--", "DEC-"), {"equinox": 2000.0}, FK5(equinox="J2000")),
    "FK4 1950": (("RA--", "DEC-"), {"radesys": "FK4", "equinox": 1950.0}, FK4(equinox="B1950")),
    "FK4 by equinox": (("RA--", "DEC-"), {"equinox": 1950.0}, FK4(equinox="B1950")),
    "ICRS": (("RA--", "DEC-"), {"radesys": "ICRS"}, ICRS()),
    "nothing said": (("RA--", "DEC-"), {}, ICRS()),
    "supergalactic": (("SLON", "SLAT"), {}, SkyCoord(0, 0, unit="deg", frame="supergalactic").frame),
}


def framed(names, cards, lon, lat, turn=0.0):
    w = plane(SHAPE, turn, sky=(lon, lat))
    w.wcs.ctype = tuple(f"{n:-<4}-TAN" for n in names)
    for key, value in cards.items():
        setattr(w.wcs, key, value)
    w.wcs.set()
    return w


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("reverse", [False, True])
def test_frames(name, reverse, figure):
    names, cards, frame = FRAMES[name]
    centre = SkyCoord(37.3, -11.0, unit="deg").transform_to(frame)
    other = framed(names, cards, centre.spherical.lon.deg, centre.spherical.lat.deg, 4.0)
    icrs = plane(SHAPE)
    y, x = np.indices(SHAPE, float)
    source, target, from_, to = (icrs, other, frame, ICRS()) if not reverse else (other, icrs, ICRS(), frame)
    sky = SkyCoord(*target.all_pix2world(x, y, 0), unit="deg", frame=from_).transform_to(to).spherical
    exact = np.stack(source.all_world2pix(sky.lon.deg, sky.lat.deg, 0))
    figure(
        f"map {name}{' reversed' if reverse else ''}: error, px",
        agreement(positions(pixel_map(source, target, SHAPE, SHAPE)), exact, SHAPE),
        1e-4,
    )


@pytest.mark.parametrize("equinox", [None, 1975.0])
def test_ecliptic_axes_are_not_taken_for_equatorial(equinox, figure):
    """The rotation to the mean ecliptic of IAU 2006 straight from the library of the IAU."""
    cards = {} if equinox is None else {"radesys": "FK5", "equinox": equinox}
    epoch = Time(equinox or 2000.0, format="jyear", scale="tt")
    matrix = erfa.ecm06(epoch.jd1, epoch.jd2)
    ra, dec = np.radians([37.3, -11.0])
    v = matrix @ [np.cos(dec) * np.cos(ra), np.cos(dec) * np.sin(ra), np.sin(dec)]
    lon, lat = np.degrees(np.arctan2(v[1], v[0])) % 360, np.degrees(np.arcsin(v[2]))
    target = framed(("ELON", "ELAT"), cards, lon, lat)
    y, x = np.indices(SHAPE, float)
    lon, lat = np.radians(target.all_pix2world(x, y, 0))
    v = np.tensordot(matrix.T, [np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], 1)
    sky = np.degrees(np.arctan2(v[1], v[0])), np.degrees(np.arcsin(v[2]))
    exact = np.stack(plane(SHAPE).all_world2pix(*sky, 0))
    got = positions(pixel_map(plane(SHAPE), target, SHAPE, SHAPE))
    figure(f"map ecliptic {equinox}: error, px", agreement(got, exact, SHAPE), 1e-3)


@pytest.mark.parametrize("names", [("HPLN", "HPLT"), ("HLON", "HLAT"), ("TLON", "TLAT")])
def test_other_frames_are_refused_by_name_and_taken_among_themselves(names):
    odd = framed(names, {}, 37.3, -11.0)
    with pytest.raises(InputError, match=f"onto: frame of {names[0]}-TAN, {names[1]}-TAN cannot be turned into"):
        pixel_map(plane(SHAPE), odd, SHAPE, SHAPE)
    turned = framed(names, {}, 37.3, -11.0, 3.0)
    got = positions(pixel_map(odd, turned, SHAPE, SHAPE))
    assert agreement(got, exact_positions(odd, turned, SHAPE), SHAPE) < 1e-4
    later = framed(names, {"dateobs": "2020-01-01T00:00:00"}, 37.3, -11.0, 3.0)
    with pytest.raises(InputError, match=r"image: axes .* are not those of onto"):
        pixel_map(odd, later, SHAPE, SHAPE)


# ---- seams and poles ----


@pytest.mark.parametrize("sky", [(0.0, 2.0), (180.0, -40.0), (10.0, 90.0), (200.0, -90.0), (0.001, 89.999)])
@pytest.mark.parametrize("kind", ["TAN", "CAR", "ZEA"])
def test_seam_and_poles(sky, kind):
    """A plane across RA 0 or over a pole from another projection with the same centre, or from half a turn away."""
    source = with_sip(plane(SHAPE, sky=sky))
    target = plane(SHAPE, 30.0, sky=((sky[0] + 180) % 360, sky[1]) if abs(sky[1]) > 89 else sky, kind=kind)
    grid = pixel_map(source, target, SHAPE, SHAPE)
    exact = np.stack(SkyChain(source, target)(*np.meshgrid(np.arange(170.0), np.arange(150.0))))
    assert agreement(positions(grid), exact, SHAPE) < 1e-4
    back = np.stack(source.all_pix2world(*exact[:, inside(exact, SHAPE)], 0))
    y, x = np.nonzero(inside(exact, SHAPE))
    there = SkyCoord(*target.all_pix2world(x, y, 0), unit="deg")
    assert SkyCoord(*back, unit="deg").separation(there).deg.max() < 1e-5 * PIXEL


# ---- other objects ----


def test_any_object_of_the_shared_interface():
    """A class that offers the interface and nothing else, on either side or both, gives the map of the FITS WCS."""
    source, target = with_sip(plane(SHAPE)), plane(SHAPE, 5.0, shift=(3.3, -8.1))
    want = positions(pixel_map(source, target, SHAPE, SHAPE))
    for a, b in ((Wrapped(source), target), (source, Wrapped(target)), (Wrapped(source), Wrapped(target))):
        np.testing.assert_allclose(positions(pixel_map(a, b, SHAPE, SHAPE)), want, rtol=0, atol=1e-8)
    high = HighLevelWCSWrapper(Wrapped(target))
    np.testing.assert_allclose(positions(pixel_map(source, high, SHAPE, SHAPE)), want, rtol=0, atol=1e-8)


def test_frame_of_another_object_is_transformed():
    source, target = plane(SHAPE), plane(SHAPE, 5.0)
    centre = SkyCoord(37.3, -11.0, unit="deg").galactic
    target.wcs.crval = centre.l.deg, centre.b.deg
    y, x = np.indices(SHAPE, float)
    sky = SkyCoord(*target.all_pix2world(x, y, 0), unit="deg", frame="galactic").icrs
    exact = np.stack(source.all_world2pix(sky.ra.deg, sky.dec.deg, 0))
    got = positions(pixel_map(source, Wrapped(target, Galactic()), SHAPE, SHAPE))
    assert agreement(got, exact, SHAPE) < 1e-4


def test_observer_dependent_frame_of_another_object():
    altaz = SkyCoord(0, 0, unit="deg", frame="cirs").frame.replicate_without_data()
    a, b = Wrapped(plane(SHAPE), altaz), Wrapped(plane(SHAPE, 2.0), altaz)
    assert agreement(positions(pixel_map(a, b, SHAPE, SHAPE)), exact_positions(a.inner, b.inner, SHAPE), SHAPE) < 1e-4
    with pytest.raises(InputError, match=r"onto: frame cirs of pos.eq.dec, pos.eq.ra cannot be used"):
        pixel_map(plane(SHAPE), b, SHAPE, SHAPE)


@pytest.mark.parametrize(("bend", "bounded"), [(0.0, None), (0.0, SHAPE), (3e-5, None)])
def test_gwcs(bounded, bend, peer, figure):
    peer("gwcs")
    w, other = plane(SHAPE), plane(SHAPE, 5.0, shift=(3.3, -8.1))
    odd = tangent_gwcs(w, bounded, bend)
    onto = positions(pixel_map(other, odd, SHAPE, SHAPE))
    y, x = np.indices(SHAPE, float)
    u_, v_ = x + 1 - w.wcs.crpix[0], y + 1 - w.wcs.crpix[1]
    bent = (x + bend * u_**2, y - bend * u_ * v_)
    exact = np.stack(other.all_world2pix(*w.all_pix2world(*bent, 0), 0))
    figure(f"map onto gwcs {bend}: error, px", agreement(onto, exact, SHAPE), 1e-4)
    away = positions(pixel_map(odd, other, SHAPE, SHAPE))
    known = inside(away, SHAPE, 1.0)
    assert known.mean() > 0.6
    sky = np.stack(odd.pixel_to_world_values(*away[:, known]))
    want = np.stack(other.all_pix2world(x, y, 0))[:, known]
    off = np.hypot((sky[0] - want[0]) * np.cos(np.radians(want[1])), sky[1] - want[1]).max() / PIXEL
    figure(f"map from gwcs {bend}: error, px", off, 1e-4)


def test_stage_takes_and_gives_gwcs(peer, rng, tmp_path):
    peer("gwcs")
    from skydelta import write

    w = plane(SHAPE, 5.0)
    image = Exposure(rng.normal(0, 1, SHAPE).astype(np.float32), wcs=plane(SHAPE))
    fits_grid, odd = Exposure(image.image, wcs=w), Exposure(image.image, wcs=tangent_gwcs(w))
    want, got = (Align()(image, onto=o, device="cpu") for o in (fits_grid, odd))
    np.testing.assert_allclose(got.image, want.image, atol=1e-5)
    assert got.wcs is odd.wcs
    assert "pos.eq.ra" in got._repr_html_()
    part = Align()(image, onto=odd.section(Box(20, 90, 30, 140)), device="cpu")
    np.testing.assert_allclose(part.image, want.image[20:90, 30:140], atol=1e-5)
    with pytest.raises(InputError, match="cannot be written: it has no header cards"):
        write(got, tmp_path / "a.fits")


def spectral(names, units, turn=0.0, scale=(1.0, 1.0), swap=False):
    """A linear WCS of wavelength or frequency against another axis."""
    w = WCS(naxis=2)
    order = [1, 0] if swap else [0, 1]
    w.wcs.ctype = [names[i] for i in order]
    w.wcs.cunit = [units[i] for i in order]
    one = 1.0 if units[0] == "Hz" else u.Unit(units[0]).to(u.m)
    w.wcs.crval = [(5e-7 / one, 3.0)[i] for i in order]
    w.wcs.crpix = 85.0, 75.0
    c, s = np.cos(np.radians(turn)), np.sin(np.radians(turn))
    cd = np.diag([1e-10 / one, 2e-4]) @ np.diag(scale) @ np.array([[c, -s], [s, c]])
    w.wcs.cd = cd[order]
    w.wcs.set()
    return w


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("unit", ["m", "nm"])
def test_axes_that_are_not_on_the_sky(swap, unit):
    """Wavelength against time: the same physical types, in another unit and order."""
    source = spectral(("WAVE", "TIME"), ("m", "s"))
    target = spectral(("WAVE", "TIME"), (unit, "s"), 10.0, (1.1, 0.9), swap)
    y, x = np.indices(SHAPE, float)
    c, s = np.cos(np.radians(10.0)), np.sin(np.radians(10.0))
    exact = np.stack([84 + 1.1 * (c * (x - 84) - s * (y - 74)), 74 + 0.9 * (s * (x - 84) + c * (y - 74))])
    assert agreement(positions(pixel_map(source, target, SHAPE, SHAPE)), exact, SHAPE) < 1e-6
    for other in (spectral(("FREQ", "TIME"), ("Hz", "s")), plane(SHAPE)):
        with pytest.raises(InputError, match="image: "):
            pixel_map(source, other, SHAPE, SHAPE)


def test_an_object_that_cannot_be_inverted():
    class Forward(Wrapped):
        def world_to_pixel_values(self, *values):
            raise NotImplementedError("no inverse here")

    odd = Forward(plane(SHAPE, 5.0))
    assert pixel_map(plane(SHAPE), odd, SHAPE, SHAPE).error < 1e-4
    with pytest.raises(InputError, match=r"image: WCS of pos.eq.dec, pos.eq.ra cannot be inverted: .* no inverse here"):
        pixel_map(odd, plane(SHAPE), SHAPE, SHAPE)


def test_things_that_are_no_wcs():
    with pytest.raises(InputError, match=r"onto: a Header is no WCS"):
        pixel_map(plane(SHAPE), plane(SHAPE).to_header(), SHAPE, SHAPE)
    with pytest.raises(InputError, match="image: WCS of RA---TAN, DEC--TAN, FREQ has 3 pixel and 3 world axes"):
        cube = WCS(naxis=3)
        cube.wcs.ctype = "RA---TAN", "DEC--TAN", "FREQ"
        pixel_map(cube, plane(SHAPE), SHAPE, SHAPE)


# ---- one WCS, and the cache ----


def test_polynomials_that_wcslib_does_not_compare():
    """Two TPV planes that differ in their PV alone: wcslib calls them equal, and a copy would be off by pixels."""
    a, b = tpv(SHAPE), tpv(SHAPE, bend=2.0)
    assert a.wcs.compare(b.wcs)
    assert same_wcs(a, tpv(SHAPE))
    assert not same_wcs(a, b)
    assert agreement(positions(pixel_map(a, b, SHAPE, SHAPE)), exact_positions(a, b, SHAPE), SHAPE) < 1e-4


class Counting(MapCache):
    def __init__(self, **keywords):
        super().__init__(**keywords)
        self.made = 0

    def get(self, *arguments):
        def make():
            self.made += 1
            return arguments[-1]()

        return super().get(*arguments[:-1], make)


@pytest.fixture
def maps(monkeypatch):
    cache = Counting(entries=3)
    monkeypatch.setattr("skydelta.stages.align.mapping.MAPS", cache)
    return cache


def test_one_pair_is_evaluated_once(maps, rng):
    source, target = with_sip(plane(SHAPE)), plane(SHAPE, 3.0)
    image = Exposure(rng.normal(0, 1, SHAPE).astype(np.float32), wcs=source)
    onto = Exposure(image.image, wcs=target)
    first = Align()(image, onto=onto, device="cpu")
    assert maps.made == 1
    again = Align(method="lanczos3")(image.with_(wcs=source.deepcopy()), onto=onto, device="cpu")
    assert maps.made == 1 and not np.array_equal(again.image, first.image, equal_nan=True)
    second = Align()(image, onto=onto, device="cpu")
    maps.clear()
    fresh = Align()(image, onto=onto, device="cpu")
    assert maps.made == 2
    for other in (second, fresh):
        assert other.image.tobytes() == first.image.tobytes() and other.mask.tobytes() == first.mask.tobytes()


def test_another_map_is_made_when_anything_differs(maps):
    source, target = with_sip(plane(SHAPE)), plane(SHAPE, 3.0)
    pixel_map(source, target, SHAPE, SHAPE)
    for n, arguments in enumerate(
        (
            (source, target, (150, 171), SHAPE),
            (source, target, SHAPE, (149, 170)),
            (source, target, SHAPE, SHAPE, 1e-3),
            (with_sip(plane(SHAPE), 3.0001), target, SHAPE, SHAPE),
            (target, source, SHAPE, SHAPE),
        )
    ):
        pixel_map(*arguments)
        assert maps.made == n + 2
    source.wcs.crpix = np.add(source.wcs.crpix, (0.5, 0.0))
    moved = pixel_map(source, target, SHAPE, SHAPE)
    assert maps.made == 7
    np.testing.assert_allclose(positions(moved), exact_positions(source, target, SHAPE), atol=1e-4)


def test_cache_is_bounded(maps, monkeypatch):
    source = plane(SHAPE)
    for k in range(6):
        pixel_map(source, plane(SHAPE, 1.0 + k), SHAPE, SHAPE)
    assert len(maps) == 3
    pixel_map(source, plane(SHAPE, 4.0), SHAPE, SHAPE)
    assert maps.made == 6
    maps.nbytes = 1
    pixel_map(source, plane(SHAPE, 8.0), SHAPE, SHAPE)
    assert len(maps) == 0


def test_other_objects_are_the_same_only_as_long_as_they_are(maps):
    a, b = Wrapped(plane(SHAPE)), plane(SHAPE, 5.0)
    pixel_map(a, b, SHAPE, SHAPE)
    pixel_map(a, b, SHAPE, SHAPE)
    assert maps.made == 1
    pixel_map(Wrapped(plane(SHAPE)), b, SHAPE, SHAPE)
    assert maps.made == 2
    a.inner = plane(SHAPE, 1.0)
    pixel_map(a, b, SHAPE, SHAPE)
    assert maps.made == 3
