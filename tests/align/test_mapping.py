# SPDX-License-Identifier: BSD-3-Clause
"""The control grid against the exact map of astropy, pixel by pixel."""

import warnings

import numpy as np
import pytest
from astropy.coordinates import SkyCoord
from astropy.io import fits
from astropy.wcs import WCS, DistortionLookupTable, Sip
from support_align import PIXEL, exact_positions, plane, tpv, with_sip
from support_wcs import every_header

from skydelta.errors import InputError
from skydelta.io.wcs import celestial_wcs
from skydelta.kernels.cpu.reference_resample import dense_map as dense
from skydelta.kernels.resample import CELL_INTERPOLATED
from skydelta.stages.align.cache import same_wcs
from skydelta.stages.align.chain import SkyChain
from skydelta.stages.align.mapping import control_grid, pixel_map

SHAPE = (300, 411)


def positions(grid):
    """Source x, y (2, H, W) as the kernels evaluate them."""
    return dense(grid.nodes, grid.cells, grid.exact, grid.shape)[:2]


def inside(q, shape, margin=0.0):
    """Positions within the pixels of an image, less a margin."""
    h, w = shape
    with np.errstate(invalid="ignore"):
        x, y = q
        return (x >= margin - 0.5) & (x <= w - 0.5 - margin) & (y >= margin - 0.5) & (y <= h - 0.5 - margin)


def header(**cards):
    h = fits.Header()
    h.update({"NAXIS": 2, "CTYPE1": "RA---TAN", "CTYPE2": "DEC--TAN", "CRVAL1": 37.3, "CRVAL2": -11.0,
              "CRPIX1": 200.0, "CRPIX2": 150.0, **cards})  # fmt: skip
    return h


PAIRS = {
    "tan": lambda: (plane(SHAPE), plane(SHAPE, 1.0, shift=(3.3, -8.1))),
    "sip": lambda: (with_sip(plane(SHAPE)), plane(SHAPE, 0.4)),
    "sip on sip": lambda: (with_sip(plane(SHAPE)), with_sip(plane(SHAPE, 30.0), 2.0)),
    "tpv": lambda: (tpv(SHAPE), plane(SHAPE, 0.4)),
    "mirrored": lambda: (plane(SHAPE), plane(SHAPE, 12.0, mirrored=True)),
    "coarse": lambda: (plane(SHAPE), plane(SHAPE, 12.0, scale=1.7)),
    "RA 0": lambda: (with_sip(plane(SHAPE, sky=(0.001, 2.0))), plane(SHAPE, 0.4, sky=(0.001, 2.0))),
    "pole": lambda: (with_sip(plane(SHAPE, sky=(10.0, 89.99))), plane(SHAPE, 0.4, sky=(190.0, 89.995))),
    "upside down": lambda: (plane(SHAPE), plane(SHAPE, 180.0)),
}


@pytest.mark.parametrize("case", PAIRS)
def test_error_is_below_the_tolerance(case, figure):
    source, target = PAIRS[case]()
    grid = pixel_map(source, target, SHAPE, SHAPE)
    q, exact = positions(grid), exact_positions(source, target, SHAPE)
    known = inside(exact, SHAPE, -2)
    assert known.any()
    error = np.sqrt(((q - exact) ** 2).sum(axis=0))[known].max()
    figure(f"map {case}: error, px", error, 1e-4)
    assert error <= grid.error * 1.1 + 1e-7, "the error reported is not the error made"
    assert (inside(q, SHAPE) == inside(exact, SHAPE))[~_on_border(exact, SHAPE)].all()


def _on_border(q, shape):
    """Positions within 1e-4 px of the border, where rounding decides."""
    return inside(q, shape, -1e-4) & ~inside(q, shape, 1e-4)


def test_distortion_of_tpv_is_not_dropped():
    """Once parsed, the header of a TPV plane looks like a plain tangent plane."""
    grid = pixel_map(tpv(SHAPE), plane(SHAPE), SHAPE, SHAPE)
    flat = pixel_map(plane(SHAPE, 1e-9), plane(SHAPE), SHAPE, SHAPE)
    assert np.abs(positions(grid) - positions(flat)).max() > 2.0
    assert grid.shift is None


def test_forms_of_one_rotation_agree():
    """CD, PC + CDELT and CROTA2, also with unequal signs of CDELT."""
    c, s = np.cos(np.radians(20.0)), np.sin(np.radians(20.0))
    pc = {"PC1_1": c, "PC1_2": -s, "PC2_1": s, "PC2_2": c, "CDELT1": -PIXEL, "CDELT2": PIXEL}
    cd = {"CD1_1": -PIXEL * c, "CD1_2": PIXEL * s, "CD2_1": PIXEL * s, "CD2_2": PIXEL * c}
    crota = {"CROTA2": -20.0, "CDELT1": -PIXEL, "CDELT2": PIXEL}
    target = plane(SHAPE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        grids = [pixel_map(WCS(header(**form)), target, SHAPE, SHAPE) for form in (pc, cd, crota)]
    for other in grids[1:]:
        np.testing.assert_allclose(positions(other), positions(grids[0]), rtol=0, atol=1e-8)


@pytest.mark.parametrize(("ctype", "radesys"), [(("GLON-TAN", "GLAT-TAN"), ""), (("RA---TAN", "DEC--TAN"), "FK4")])
def test_frames_are_transformed(ctype, radesys):
    source, target = plane(SHAPE), plane(SHAPE, 5.0)
    target.wcs.ctype = ctype
    if radesys:
        target.wcs.radesys, target.wcs.equinox = radesys, 1950.0
    frame = "galactic" if not radesys else "fk4"
    centre = SkyCoord(37.3, -11.0, unit="deg").transform_to(frame).spherical
    target.wcs.crval = centre.lon.deg, centre.lat.deg
    q = positions(pixel_map(source, target, SHAPE, SHAPE))
    y, x = 40, 390
    lon, lat = target.all_pix2world(x, y, 0)
    sky = SkyCoord(lon, lat, unit="deg", frame=frame).icrs
    np.testing.assert_allclose(q[:, y, x], source.all_world2pix(sky.ra.deg, sky.dec.deg, 0), atol=1e-5)


def test_solar_frame_is_refused_by_name():
    sun = plane(SHAPE)
    sun.wcs.ctype = "HPLN-TAN", "HPLT-TAN"
    with pytest.raises(InputError, match="image: frame of HPLN-TAN, HPLT-TAN"):
        pixel_map(sun, plane(SHAPE), SHAPE, SHAPE)


def test_lat_before_lon():
    """Axes may come in either order."""
    source = WCS(header(CTYPE1="DEC--TAN", CTYPE2="RA---TAN", CRVAL1=-11.0, CRVAL2=37.3, CDELT1=PIXEL, CDELT2=-PIXEL))
    q = positions(pixel_map(source, plane(SHAPE), SHAPE, SHAPE))
    sky = plane(SHAPE).all_pix2world(100, 60, 0)
    np.testing.assert_allclose(q[:, 60, 100], source.all_world2pix(sky[1], sky[0], 0), atol=1e-6)


@pytest.mark.parametrize(("projection", "shape"), [("AIT", (128, 256)), ("MOL", (128, 256)), ("CAR", (128, 256))])
def test_all_sky_target(projection, shape):
    """The edge of the sky and the seam at 180 degrees cut the source in two; every pixel as in the exact map."""
    source = plane((60, 60), sky=(172.0, 2.2), scale=25 / 60 / PIXEL)
    target = WCS(naxis=2)
    target.wcs.ctype = f"RA---{projection}", f"DEC--{projection}"
    size = 360.0 if projection == "CAR" else 324.0
    target.wcs.crpix, target.wcs.cdelt = (128.5, 64.5), (-size / 256, size / 256)
    grid = pixel_map(source, target, shape, (60, 60))
    exact = np.stack(SkyChain(source, target)(*np.meshgrid(np.arange(256.0), np.arange(128.0))))
    q = positions(grid)
    assert 100 < inside(exact, (60, 60)).sum() < 1000
    assert (inside(q, (60, 60)) == inside(exact, (60, 60))).all()
    known = inside(exact, (60, 60))
    assert np.abs(q - exact)[:, known].max() < 1e-4


def test_hole_of_a_projection_is_invalid(shared_data):
    hole = _header(shared_data / "wcs/astropy__data__zpn-hole.hdr")
    w = WCS(hole)
    shape = (192, 192)
    target = plane(shape, sky=tuple(w.wcs.crval))
    target.wcs.cd = np.diag(w.wcs.cdelt)
    source_in_hole = pixel_map(target, w, shape, shape)
    exact = np.stack(SkyChain(target, w)(*np.meshgrid(np.arange(192.0), np.arange(192.0))))
    q = positions(source_in_hole)
    assert np.isnan(exact[0, 96, 96])
    assert (inside(q, shape) == inside(exact, shape)).all()


def test_far_points_of_a_distortion_have_no_pixel():
    """Outside the chip the inverse of a polynomial stops converging or finds another sheet."""
    source = with_sip(plane((200, 200)), 12.0)
    target = plane((900, 900), 1.0, scale=3.0)
    grid = pixel_map(source, target, (900, 900), (200, 200))
    q = positions(grid)
    y, x = np.nonzero(inside(q, (200, 200)))
    back = source.all_pix2world(*q[:, y, x], 0)
    there = target.all_pix2world(x, y, 0)
    away = np.hypot((back[0] - there[0]) * np.cos(np.radians(11.0)), back[1] - there[1]) / PIXEL
    assert away.max() < 1e-3
    assert 0.8 < len(x) / (200 * 200 / 9) < 1.2


def test_whole_pixel_shift_is_recognised():
    source, moved = plane(SHAPE), plane(SHAPE)
    moved.wcs.crpix = np.add(moved.wcs.crpix, (7, -4))
    assert pixel_map(source, moved, SHAPE, SHAPE).shift == (4, -7)
    moved.wcs.crpix = np.add(moved.wcs.crpix, (5e-5, 0))
    assert pixel_map(source, moved, SHAPE, SHAPE).shift == (4, -7)
    moved.wcs.crpix = np.add(moved.wcs.crpix, (3e-4, 0))
    assert pixel_map(source, moved, SHAPE, SHAPE).shift is None
    assert pixel_map(source, plane(SHAPE), SHAPE, SHAPE).shift == (0, 0)
    moved.wcs.crpix = np.add(source.wcs.crpix, (300, 0))
    assert pixel_map(source, moved, SHAPE, SHAPE).shift == (0, -300)


def test_the_same_wcs_is_recognised_by_its_numbers():
    a = with_sip(plane(SHAPE))
    dated, turned, equinox = a.deepcopy(), a.deepcopy(), a.deepcopy()
    dated.wcs.dateobs = "2020-01-01T00:00:00"
    turned.wcs.radesys, turned.wcs.equinox = "FK5", 2000.0
    equinox.wcs.radesys, equinox.wcs.equinox = "FK5", 1975.0
    moved, bent = a.deepcopy(), a.deepcopy()
    moved.wcs.crpix = np.add(a.wcs.crpix, (1e-3, 0))
    coefficients = a.sip.a.copy()
    coefficients[2, 0] *= 1.001
    bent.sip = Sip(coefficients, a.sip.b, a.sip.ap, a.sip.bp, a.sip.crpix)
    straight = plane(SHAPE)
    for w in (a, dated, turned, equinox, moved, bent, straight):
        w.wcs.set()
    assert same_wcs(a, a.deepcopy())
    assert same_wcs(a, dated)
    for other in (turned, equinox, moved, bent, straight):
        assert not same_wcs(a, other)
        assert not same_wcs(other, a)
    assert not same_wcs(turned, equinox)


@pytest.mark.parametrize("change", ["data", "crpix", "crval", "cdelt"])
def test_lookup_tables_are_compared(change):
    def with_table(**other):
        values = {"data": np.ones((4, 4), np.float32), "crpix": (1, 1), "crval": (1, 1), "cdelt": (80, 80), **other}
        w = plane(SHAPE)
        w.cpdis1 = DistortionLookupTable(*(values[n] for n in ("data", "crpix", "crval", "cdelt")))
        return w

    changed = {"data": np.full((4, 4), 1.5, np.float32)}.get(change, (2, 3))
    assert same_wcs(with_table(), with_table())
    assert not same_wcs(with_table(), with_table(**{change: changed}))
    assert not same_wcs(with_table(), plane(SHAPE))


def test_grid_is_refined_where_the_map_bends():
    def wavy(x, y):
        return x + 2 * np.sin(x / 15), y + 0.1

    grid = control_grid(wavy, SHAPE, SHAPE, 1e-4)
    q = positions(grid)
    assert grid.spacing == 8
    assert np.abs(q[0] - wavy(np.arange(SHAPE[1]), 0)[0]).max() <= 1.01 * max(grid.error, 1e-9)
    assert grid.error <= 1e-4


def test_fold_and_jump_go_exact():
    def broken(x, y):
        return np.where(x < 200, x, x + 50), np.where((x > 300) & (y > 200), np.nan, y + 0.3)

    grid = control_grid(broken, SHAPE, SHAPE, 1e-4)
    y, x = np.indices(SHAPE, float)
    q, exact = positions(grid), np.stack(np.broadcast_arrays(*broken(x, y)))
    known = inside(exact, SHAPE)
    assert (inside(q, SHAPE) == known).all()
    np.testing.assert_allclose(q[:, known], exact[:, known], atol=1e-9, rtol=0)
    assert 0 < grid.exact_fraction < 0.25
    assert (grid.cells == CELL_INTERPOLATED).any()


def _header(path):
    return fits.Header.fromstring(path.read_text())


# ---- headers of others ----


REAL = (
    "sfft__DEC-OBS04a.mini.fits",
    "sfft__DEC-OBS04b.mini.fits",
    "reproject__galactic_2d.fits",
    "dfreproject__test_source_tiny.fits",
    "reproject__test_small_cutout.fits",
    "swarp__test.fits",
)


@pytest.mark.parametrize("name", REAL)
def test_real_headers(name, shared_data):
    """Onto a plain tangent plane at the same place: as astropy, at every pixel, frames transformed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with fits.open(shared_data / "wcs" / name) as hdus:
            hdu = next(h for h in hdus if h.header.get("NAXIS", 0) >= 2 and h.header.get("CTYPE1"))
            source, shape = WCS(hdu.header), hdu.shape
        y, x = shape[0] / 2, shape[1] / 2
        lon, lat = source.all_pix2world([x, x + 1], [y, y], 0)
        frame = "galactic" if source.wcs.ctype[0].startswith("GLON") else "icrs"
        at = SkyCoord(lon, lat, unit="deg", frame=frame).icrs
        target = plane((90, 110), 10.0, scale=at[0].separation(at[1]).deg / PIXEL, sky=(at[0].ra.deg, at[0].dec.deg))
        grid = pixel_map(source, target, (90, 110), shape)
        exact = np.stack(SkyChain(source, target)(*np.meshgrid(np.arange(110.0), np.arange(90.0))))
    q = positions(grid)
    known = inside(exact, shape)
    assert known.any()
    assert (inside(q, shape) == known)[~_on_border(exact, shape)].all()
    assert np.abs(q - exact)[:, known].max() < 1e-4
    if frame == "icrs":
        t = target.all_pix2world(50, 40, 0)
        np.testing.assert_allclose(q[:, 40, 50], source.all_world2pix(*t, 0, tolerance=1e-8), atol=2e-4)


def test_tiny_pair_with_sip_on_both_sides(shared_data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pair = []
        for end in ("source", "target"):
            with fits.open(shared_data / f"wcs/dfreproject__test_{end}_tiny.fits") as hdus:
                pair.append((WCS(hdus[0].header), hdus[0].shape))
    (source, source_shape), (target, shape) = pair
    q = positions(pixel_map(source, target, shape, source_shape))
    exact = exact_positions(source, target, shape)
    known = inside(exact, source_shape)
    assert known.any()
    assert np.abs(q - exact)[:, known].max() < 1e-4


def test_lookup_tables_are_evaluated_exactly(shared_data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with fits.open(shared_data / "wcs/astropy__data__dist_lookup.fits.gz") as hdus:
            source = WCS(hdus[1].header, hdus)
        plain = WCS(source.wcs.to_header())
        grid = pixel_map(source, plain, (48, 64), (2048, 4096))
        exact = exact_positions(source, plain, (48, 64))
    assert not (grid.cells == CELL_INTERPOLATED).any()
    known = inside(exact, (2048, 4096))
    assert known.any()
    np.testing.assert_allclose(positions(grid)[:, known], exact[:, known], atol=1e-6, rtol=0)


MAPS = ("AIR", "AIT", "ARC", "CEA", "COE", "CYP", "HPX", "MER", "PAR", "PCO", "QSC", "SFL", "SIN", "STG", "SZP", "TAN",
        "ZPN")  # fmt: skip


def test_every_header_that_can_be_read(shared_data, figure):
    """Each onto a plane at its middle, against astropy's chain with the frame stated by hand; the rest is refused."""
    worst, done, refused = 0.0, 0, []
    for header, tables in every_header(shared_data / "wcs"):
        try:
            source, _ = celestial_wcs(header, tables)
        except InputError as e:
            refused.append(str(e))
            continue
        if source is None or header.get("NAXIS1") == 0:
            continue
        try:
            worst = max(worst, _error_onto_a_plane(source, header))
            done += 1
        except InputError as e:
            refused.append(str(e))
    figure("map of every header in data/wcs: error, px", worst, 1e-4)
    assert done == 56
    assert len(refused) == 3
    for words in ("RA---CSC, DEC--CSC cannot be used", "CUNIT2", "CUNIT3"):
        assert sum(words in line for line in refused) == 1


def _error_onto_a_plane(source, header):
    shape = tuple(n if (n := header.get(f"NAXIS{i}", 0)) > 5 else 192 for i in (2, 1))
    names = source.wcs.ctype[source.wcs.lng][:4], source.wcs.ctype[source.wcs.lat][:4]
    for part in (0.5, 0.8):  # one has a hole in its middle
        world = source.all_pix2world([shape[1] * part, shape[1] * part + 1], [shape[0] * part] * 2, 0)
        if np.isfinite(world).all():
            break
    lon, lat = world[source.wcs.lng], world[source.wcs.lat]
    turned = names == ("GLON", "GLAT")
    if turned:
        icrs = SkyCoord(lon, lat, unit="deg", frame="galactic").icrs
        lon, lat = icrs.ra.deg, icrs.dec.deg
    step = np.hypot(((lon[1] - lon[0] + 180) % 360 - 180) * np.cos(np.radians(lat[0])), lat[1] - lat[0])
    target = plane((36, 40), 10.0, scale=step / PIXEL, sky=(float(lon[0]), float(lat[0])))
    if names[0] != "RA--" and not turned:  # the sun's own axes: only onto themselves
        target.wcs.ctype = [f"{n}-TAN" for n in names]
        target.wcs.dateobs = source.wcs.dateobs
        for name in ("rsun_ref", "dsun_obs", "crln_obs", "hgln_obs", "hglt_obs"):
            if getattr(source.wcs.aux, name) is not None:
                setattr(target.wcs.aux, name, getattr(source.wcs.aux, name))
    elif not turned:
        target.wcs.radesys, target.wcs.equinox = source.wcs.radesys, source.wcs.equinox
    target.wcs.set()
    y, x = np.indices((36, 40), float)
    sky = target.all_pix2world(x, y, 0)
    if turned:
        there = SkyCoord(*sky, unit="deg").galactic
        sky = there.l.deg, there.b.deg
    sky = sky if source.wcs.lng == 0 else sky[::-1]
    exact = np.stack(source.all_world2pix(*sky, 0, tolerance=1e-9, maxiter=60, quiet=True))
    q = positions(pixel_map(source, target, (36, 40), shape))
    known = inside(exact, shape)
    assert known.any()
    assert (inside(q, shape) == known)[~_on_border(exact, shape)].all()
    return np.sqrt(((q - exact) ** 2).sum(axis=0))[known].max()


@pytest.mark.parametrize("projection", MAPS)
def test_projections(projection, shared_data):
    w = WCS(_header(shared_data / f"wcs/astropy__maps__1904-66_{projection}.hdr"))
    shape = (192, 192)
    centre = w.all_pix2world(95.5, 95.5, 0)
    target = plane(
        shape, 7.0, scale=abs(np.linalg.det(w.pixel_scale_matrix)) ** 0.5 / PIXEL, sky=tuple(map(float, centre))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        q = positions(pixel_map(w, target, shape, shape))
        exact = np.stack(SkyChain(w, target)(*np.meshgrid(np.arange(192.0), np.arange(192.0))))
    known = inside(exact, shape)
    assert known.any()
    assert (inside(q, shape) == known)[~_on_border(exact, shape)].all()
    assert np.abs(q - exact)[:, known].max() < 1e-4
