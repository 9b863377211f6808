# SPDX-License-Identifier: BSD-3-Clause
"""Repeated detections become the objects that were put there; against simulated skies with known sources."""

import json

import numpy as np
import pytest
from astropy import units as u
from astropy.coordinates import SkyCoord
from astropy.io import fits
from astropy.table import Table
from astropy.wcs import WCS

from skydelta.io.catalog import Catalog
from skydelta.io.exposure import Exposure
from skydelta.io.observation import mjd_of, observed, sky_angles, unit_vectors
from skydelta.pipeline.association import associate, names
from skydelta.pipeline.night import Part, combine, default_radius
from skydelta.pipeline.receipts import RunFolder, write_json
from skydelta.pipeline.runner import finish


def sky(rng, centre, n, radius, least):
    """ra, dec of n sources within ``radius`` degrees of a place, no two closer than ``least`` arcsec."""
    plane = np.empty((0, 2))
    while len(plane) < n:
        new = rng.uniform(-radius, radius, 2)
        if np.hypot(*new) < radius and (np.hypot(*(plane - new).T) * 3600 > least).all():
            plane = np.vstack([plane, new])
    angle, away = np.degrees(np.arctan2(*plane.T)), np.hypot(*plane.T)
    return SkyCoord(*centre, unit="deg").directional_offset_by(angle * u.deg, away * u.deg)


def visits(rng, truth, n, error, share=0.7):
    """Detections of n visits: position, source and visit; a source is seen with this probability."""
    ra, dec, source, visit = [], [], [], []
    for k in range(n):
        seen = np.flatnonzero(rng.uniform(size=len(truth)) < share)
        there = truth[seen].directional_offset_by(
            rng.uniform(0, 360, len(seen)) * u.deg, rng.rayleigh(error, len(seen)) * u.arcsec
        )
        ra.append(there.ra.deg)
        dec.append(there.dec.deg)
        source.append(seen)
        visit.append(np.full(len(seen), k))
    return tuple(map(np.concatenate, (ra, dec, source, visit)))


def same_groups(a, b):
    """Whether two labellings divide rows alike."""
    pairs = {(i, j) for i, j in zip(a, b, strict=True)}
    return len(pairs) == len(set(a)) == len(set(b))


@pytest.mark.parametrize(
    "centre", [(150.0, 2.0), (0.0, -30.0), (359.9999, 60.0), (10.0, 90.0), (200.0, -90.0)], ids=str
)
def test_sources_are_found_again_anywhere_on_the_sky(rng, centre):
    truth = sky(rng, centre, 60, 0.01, 2.5)
    ra, dec, source, visit = visits(rng, truth, 6, 0.12)
    assert same_groups(associate(ra, dec, visit, 1.0), source)


def test_a_dense_field(rng, figure):
    """Neighbours half as far apart as the radius reaches: the nearest wins, and one item gives an object one row."""
    truth = sky(rng, (80.0, -69.0), 300, 0.008, 0.8)
    ra, dec, source, visit = visits(rng, truth, 8, 0.1)
    labels = associate(ra, dec, visit, 1.0)
    assert len(set(zip(labels, visit, strict=True))) == len(labels)
    first = {}
    for label, s in zip(labels, source, strict=True):
        first.setdefault(label, s)
    right = np.mean([first[label] == s for label, s in zip(labels, source, strict=True)])
    figure("association, dense field: share of right rows", right, (0.97, 1))


def test_the_order_of_the_rows_does_not_matter(rng):
    truth = sky(rng, (0.0, 0.0), 150, 0.008, 0.7)
    ra, dec, _, visit = visits(rng, truth, 5, 0.15)
    labels = associate(ra, dec, visit, 1.0)
    for _ in range(3):
        p = rng.permutation(len(ra))
        np.testing.assert_array_equal(associate(ra[p], dec[p], visit[p], 1.0), labels[p])


def test_chains_do_not_grow():
    """A row of places 0.6 radii apart: friends of friends would make one object of all."""
    n = 40
    dec = 0.6 * np.arange(n) / 3600
    labels = associate(np.full(n, 50.0), dec, np.arange(n), 1.0)
    assert len(set(labels)) > 8
    for label in set(labels):
        assert np.ptp(dec[labels == label]) * 3600 <= 2.0
    assert same_groups(associate(np.full(n, 50.0), dec, np.zeros(n), 1.0), range(n)), "one item: no two are one"


def test_the_radius_is_the_limit_and_rows_without_a_position_are_left_out():
    ra = np.array([10.0, 10.0, np.nan, 10.0])
    dec = np.array([0.0, 0.99 / 3600, 5.0, np.nan])
    item = np.arange(4)
    assert associate(ra, dec, item, 1.0).tolist() == [0, 0, -1, -1]
    assert associate(ra, dec, item, 0.98).tolist() == [0, 1, -1, -1]
    assert associate(ra[:0], dec[:0], item[:0], 1.0).tolist() == []
    assert associate(ra[2:], dec[2:], item[2:], 1.0).tolist() == [-1, -1]


def test_directions_and_names(rng):
    ra, dec = rng.uniform(0, 360, 500), np.degrees(np.arcsin(rng.uniform(-1, 1, 500)))
    back = sky_angles(unit_vectors(ra, dec))
    np.testing.assert_allclose(back, (ra, dec), atol=1e-10)
    there = SkyCoord(ra, dec, unit="deg")
    want = [
        f"J{a}{d}"
        for a, d in zip(
            there.ra.to_string("hourangle", sep="", precision=6, pad=True),
            there.dec.to_string("deg", sep="", precision=6, pad=True, alwayssign=True),
            strict=True,
        )
    ]
    got = names(ra, dec)
    for g, w in zip(got, want, strict=True):
        digits = w[1:].replace("-", "+").split("+")
        assert g == f"J{digits[0][:9]}{'-' if '-' in w else '+'}{digits[1][:8]}"
    again = "J004000.00+000000.0"
    assert names(np.array([10.0, 10.0, 10.0]), np.zeros(3)) == [again, f"{again}-2", f"{again}-3"]


def part(name, ra, dec, flux, error, mjd=np.nan, seeing=np.nan):
    n = len(ra)
    columns = {"id": np.arange(n) + 1, "ra": ra, "dec": dec, "flux": flux, "flux_err": error}
    columns = {k: np.asarray(v, int if k == "id" else float) for k, v in columns.items()}
    columns["snr"] = columns["flux"] / columns["flux_err"]
    units = {"ra": u.deg, "dec": u.deg, "flux": u.adu, "flux_err": u.adu}
    return Part(name, Catalog.of(columns, units), mjd, seeing)


def test_light_curves(tmp_path):
    """Three visits, named against their order in time, of a source at RA 0; another seen once; an item without WCS."""
    offsets = np.array([-0.3, 0.0, 0.3]) / 3600
    parts = [
        part("c", [offsets[0] % 360, 0.1], [0, 0], [100, 7], [10, 1], 60000.0),
        part("a", [offsets[1]], [0], [130], [10], 60001.0),
        part("b", [offsets[2]], [0], [-40], [20], 60002.0),
        part("d", [np.nan], [np.nan], [5], [1]),
    ]
    combine([parts[k] for k in (3, 0, 2, 1)], tmp_path, None)
    catalog = Catalog.load(tmp_path / "catalog.parquet")
    assert catalog.colnames[0] == "item"
    assert catalog.colnames[-2:] == ["object", "mjd"]
    assert catalog["item"].tolist() == ["a", "b", "c", "c", "d"]
    assert catalog["object"][-1] == ""
    curve = catalog[catalog["object"] == catalog["object"][0]]
    assert curve["item"].tolist() == ["a", "b", "c"]
    assert curve["mjd"].to_value(u.day).tolist() == [60001, 60002, 60000]
    table = Catalog.load(tmp_path / "objects.ecsv")
    assert table["detections"].tolist() == [3, 1]
    row = table[0]
    assert row["object"] == curve["object"][0] == "J235959.98+000000.0"
    assert abs((row["ra"].value + 180) % 360 - 180) < 1e-9
    assert abs(row["dec"].value) < 1e-9
    assert row["spread"].value == pytest.approx(0.3 * np.sqrt(2 / 3), rel=1e-6)
    assert (row["first_item"], row["last_item"]) == ("c", "b")
    assert (row["first_mjd"].value, row["last_mjd"].value) == (60000, 60002)
    flux, error = np.array([100, 130, -40.0]), np.array([10, 10, 20.0])
    mean = np.average(flux, weights=error**-2.0)
    assert row["flux_mean"].value == pytest.approx(mean)
    assert row["flux_mean_err"].value == pytest.approx(np.sum(error**-2.0) ** -0.5)
    assert row["chi2_constant"] == pytest.approx(np.sum((flux - mean) ** 2 / error**2) / 2)
    assert row["flux_std"].value == pytest.approx(np.std(flux, ddof=1))
    assert (row["flux_peak"].value, row["snr_peak"]) == (130, 13)
    assert np.isnan(table["chi2_constant"][1])
    assert table.meta["association_radius_arcsec"] == 1.0
    first = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    parts = [part(p.id, *(p.catalog[c].value for c in ("ra", "dec", "flux", "flux_err")), p.mjd) for p in parts]
    combine(parts, tmp_path, None)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == first


def test_items_without_a_time_follow_by_id(tmp_path):
    parts = [part(i, [10], [0], [9], [1], t) for i, t in (("a", np.nan), ("b", 60001.0), ("c", np.nan))]
    combine(parts, tmp_path, 0.5)
    row = Catalog.load(tmp_path / "objects.ecsv")[0]
    assert (row["first_item"], row["last_item"]) == ("b", "c")
    assert np.isnan(row["last_mjd"].value)


def test_a_flux_that_could_not_be_fitted_is_no_measurement(tmp_path):
    combine([part("a", [10], [0], [np.nan], [np.nan]), part("b", [10], [0], [9], [1])], tmp_path, 0.5)
    row = Catalog.load(tmp_path / "objects.ecsv")[0]
    assert (row["detections"], row["flux_mean"].value, row["flux_mean_err"].value) == (2, 9, 1)
    assert np.isnan(row["chi2_constant"])


def test_nothing_found_leaves_an_empty_table(tmp_path):
    combine([part("a", [], [], [], [])], tmp_path, None)
    assert len(Catalog.load(tmp_path / "objects.ecsv")) == 0
    assert Catalog.load(tmp_path / "catalog.parquet").colnames[-2:] == ["object", "mjd"]


def test_the_radius_follows_the_seeing():
    assert default_radius([1.2, np.nan, 1.6, 1.4]) == 0.7
    assert default_radius([np.nan]) == 1.0


def test_a_run_makes_both_from_its_folder(tmp_path):
    for k, item in enumerate(("x", "y")):
        folder = tmp_path / "items" / item
        folder.mkdir(parents=True)
        p = part(item, [10 + k * 0.5 / 3600], [0], [9], [1])
        p.catalog.save(folder / "catalog.parquet")
        metrics = {"mjd": 60010.0 - k, "fwhm_science_px": 4.0, "pixel_scale_arcsec": 0.3}
        step = {"id": "write", "seconds": 1.0, "metrics": metrics, "flags": {}}
        receipt = {"id": item, "status": "done", "seconds": 1.0, "steps": [step], "device": {"used": "cpu"}}
        write_json(folder / "receipt.json", receipt)
    write_json(tmp_path / "run.json", {"name": "toy"})
    assert finish(RunFolder(tmp_path))
    table = Table.read(tmp_path / "objects.ecsv")
    assert table.meta["association_radius_arcsec"] == 0.6
    assert table["detections"].tolist() == [2]
    assert table["first_item"].tolist() == ["y"]
    assert finish(RunFolder(tmp_path), 0.4)
    assert Table.read(tmp_path / "objects.ecsv")["detections"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("cards", "mjd"),
    [
        ({"MJD-OBS": 60700.25, "DATE-OBS": "2020-01-01"}, 60700.25),
        ({"MJD-OBS": 60700.25, "MJD-AVG": 60700.5}, 60700.5),
        ({"DATE-OBS": "2000-01-01T12:00:00"}, 51544.5),
        ({"DATE-OBS": "2000-01-01", "TIME-OBS": "18:00:00"}, 51544.75),
        ({"DATE-OBS": "2000-01-01", "UT": "no clock"}, 51544.0),
        ({"DATE-OBS": "31/12/99"}, np.nan),
        ({"MJD-OBS": "soon"}, np.nan),
        ({"MJD-OBS": 0.0}, np.nan),
        ({}, np.nan),
    ],
    ids=str,
)  # fmt: skip
def test_the_time_of_a_header(cards, mjd):
    np.testing.assert_equal(mjd_of(fits.Header(cards)), mjd)


def test_where_an_exposure_is():
    wcs = WCS(naxis=2)
    wcs.wcs.ctype, wcs.wcs.crval, wcs.wcs.crpix = ["RA---TAN", "DEC--TAN"], [0.0, 60.0], [50.5, 100.5]
    wcs.wcs.cdelt = [-0.4 / 3600, 0.4 / 3600]
    exposure = Exposure(np.zeros((200, 100), np.float32), wcs=wcs, header=fits.Header({"MJD-OBS": 5e4}))
    seen = json.loads(json.dumps(observed(exposure)))
    assert seen["mjd"] == 5e4
    centre, corner = SkyCoord(*seen["sky_centre_deg"], unit="deg"), SkyCoord(seen["sky_corners_deg"], unit="deg")
    assert centre.separation(SkyCoord(0, 60, unit="deg")).arcsec < 1e-6
    np.testing.assert_allclose(corner.separation(centre).arcsec, 0.4 * np.hypot(50, 100), rtol=1e-6)
    assert seen["pixel_scale_arcsec"] == pytest.approx(0.4, rel=1e-6)
    assert observed(exposure.with_(wcs=None)) == {"mjd": 5e4}
