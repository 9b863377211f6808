# SPDX-License-Identifier: BSD-3-Clause
"""WCS of every header of the collection: astropy's own map, nothing guessed, and cards that give the same map back."""

import warnings

import numpy as np
import pytest
from astropy.io import fits
from astropy.wcs import WCS

from skydelta.errors import InputError
from skydelta.io.wcs import celestial_wcs, wcs_cards

PROJECTIONS = [
    "AIR", "AIT", "ARC", "CEA", "COE", "CSC", "CYP", "HPX", "MER", "PAR", "PCO", "QSC", "SFL", "SIN", "STG", "SZP",
    "TAN", "ZPN",
]  # fmt: skip

# file, HDU: words of the reason
NONE = {
    ("astropy__data__chandra-pixlist-wcs.hdr", 0): "the cards describe table columns",
    ("astropy__data__dist.fits", 1): "no WCS in the header",
    ("astropy__data__header_with_time.fits", 0): "alternate A is not used",
    ("astropy__data__header_with_time_wcslib71.fits", 0): "alternate A is not used",
    ("astropy__data__o4sp040b0_raw.fits", 1): "no celestial WCS: axes are LAMBDA, ANGLE",
    ("astropy__spectra__orion-freq-4.hdr", 0): "axes RA, DEC have no projection",
    ("ip_diffim__scienceMI.fits", 1): "alternate A is not used",
    ("ip_diffim__templateMI.fits", 1): "alternate A is not used",
    ("lsst_afw__great3.fits", 1): "no WCS in the header",
    ("lsst_afw__oldTanWcs.fits", 1): "no WCS in the header",
    ("lsst_afw__ticketdm26260.fits", 0): "no WCS in the header",
}

ERRORS = {
    ("astropy__data__nonstandard_units.hdr", 0): "CUNIT2",
    ("astropy__data__validate.fits", 2): "CUNIT3",
}

# file, HDU: words of the notes ("" for none)
MAPS = {
    ("astropy__data__3d_cd.hdr", 0): "axes other than the sky are left out: RA---TAN, DEC--TAN, AWAV",
    ("astropy__data__dist_lookup.fits.gz", 1): "",
    ("astropy__data__header_newlines.fits", 0): "SIP is used, PV is ignored",
    ("astropy__data__ie6d07ujq_wcs.fits", 0): "",
    ("astropy__data__locale.hdr", 0): "",
    ("astropy__data__sip-broken.hdr", 0): "",
    ("astropy__data__sip.fits", 0): "",
    ("astropy__data__sip2.fits", 0): "",
    ("astropy__data__sub-segfault.hdr", 0): "STOKES",
    ("astropy__data__tab-time-last-axis.fits", 0): "TIME-TAB",
    ("astropy__data__tpvonly.hdr", 0): "",
    ("astropy__data__validate.fits", 1): "SIP is used, PV is ignored",
    ("astropy__data__zpn-hole.hdr", 0): "",
    **{(f"astropy__maps__1904-66_{p}.hdr", 0): "" for p in PROJECTIONS},
    ("dfreproject__test_source_tiny.fits", 0): "",
    ("dfreproject__test_target_tiny.fits", 0): "",
    ("lsst_afw__HSC-0908120-056-small.fits", 1): "",
    ("lsst_afw__exposure-version-2.fits", 1): "",
    ("lsst_afw__parent.fits", 0): "",
    ("lsst_afw__ticket18864.fits", 0): "",
    ("lsst_afw__ticket2233.fits", 1): "",
    ("reproject__galactic_2d.fits", 0): "",
    ("reproject__gc_ga.hdr", 0): "",
    ("reproject__secchi_l0_a.fits", 0): "",
    ("reproject__secchi_l0_b.fits", 0): "",
    ("reproject__test_coadd_solar_map.fits", 0): "",
    ("reproject__test_reproject_celestial_3d_equ2gal.fits", 0): "VOPT",
    ("reproject__test_reproject_roundtrip.fits", 0): "",
    ("reproject__test_small_cutout.fits", 0): "",
    ("sfft__DEC-OBS04a.mini.fits", 0): "",
    ("sfft__DEC-OBS04b.mini.fits", 0): "",
    ("swarp__test.fits", 0): "",
}


@pytest.fixture
def header_of(shared_data):
    """(header, function that opens the whole file) of a file and HDU."""
    opened = []

    def find(name, index):
        path = shared_data / "wcs" / name
        if path.suffix == ".hdr":
            raw = path.read_bytes()
            return (fits.Header.fromtextfile(path) if b"\n" in raw else fits.Header.fromstring(raw.decode())), None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            opened.append(fits.open(path))
            return opened[-1][index].header, lambda: opened[-1]

    yield find
    for hdulist in opened:
        hdulist.close()


def ident(key):
    return f"{key[0]}[{key[1]}]"


def grid(header):
    w, h = (header.get(f"NAXIS{i}") or header.get(f"ZNAXIS{i}") or 200 for i in (1, 2))
    x, y = np.meshgrid(np.linspace(0, max(w, 10) - 1, 5), np.linspace(0, max(h, 10) - 1, 5))
    return x.ravel(), y.ravel()


@pytest.mark.parametrize("key", NONE, ids=ident)
def test_no_wcs_is_said_with_its_reason(header_of, key):
    header, tables = header_of(*key)
    wcs, notes = celestial_wcs(header, tables)
    assert wcs is None
    assert NONE[key] in notes[-1]


@pytest.mark.parametrize("key", ERRORS, ids=ident)
def test_unusable_cards_are_named(header_of, key):
    header, tables = header_of(*key)
    with pytest.raises(InputError, match=ERRORS[key]) as caught:
        celestial_wcs(header, tables)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", MAPS, ids=ident)
def test_the_map_is_that_of_astropy_and_its_cards_give_it_back(header_of, key):
    header, tables = header_of(*key)
    wcs, notes = celestial_wcs(header, tables, (100, 120))
    assert wcs.naxis == 2
    assert MAPS[key] in " ".join(notes)
    assert bool(notes) == bool(MAPS[key])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = WCS(header, tables() if tables else None)
        theirs = theirs if theirs.naxis == 2 else theirs.celestial
    x, y = grid(header)
    expected = np.array(theirs.all_pix2world(x, y, 0))
    assert np.array_equal(np.array(wcs.all_pix2world(x, y, 0)), expected, equal_nan=True)
    cards, lookup = wcs_cards(wcs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = WCS(cards, fits.HDUList([fits.PrimaryHDU(), *lookup]) if lookup else None)
    back = np.array(again.all_pix2world(x, y, 0))
    assert np.array_equal(np.isfinite(back), np.isfinite(expected))
    if np.isfinite(expected).any():
        scale = np.sqrt(np.abs(np.linalg.det(wcs.pixel_scale_matrix)))
        off = (back - expected + 180) % 360 - 180
        assert np.nanmax(np.abs(off)) < 1e-6 * scale + 1e-12


def test_sip_without_its_suffix_is_used_and_said(shared_data):
    header = fits.getheader(shared_data / "wcs/astropy__data__sip.fits")
    header["CTYPE1"], header["CTYPE2"] = "RA---TAN", "DEC--TAN"
    wcs, notes = celestial_wcs(header)
    assert wcs.sip is not None
    assert "SIP cards are applied although CTYPE (RA---TAN, DEC--TAN) does not say -SIP" in notes


def test_alternate_cards_are_not_mixed_in(shared_data):
    header = fits.getheader(shared_data / "wcs/lsst_afw__HSC-0908120-056-small.fits", 1)
    without = header.copy()
    for key in [k for k in header if k.endswith("A") and k[:-1] in header]:
        del without[key]
    x, y = grid(header)
    ours, theirs = (celestial_wcs(h)[0].all_pix2world(x, y, 0) for h in (header, without))
    assert np.array_equal(ours, theirs)


def test_tables_that_are_not_at_hand_are_said(shared_data):
    header = fits.getheader(shared_data / "wcs/astropy__data__dist_lookup.fits.gz", 1)
    wcs, notes = celestial_wcs(header)
    assert wcs.cpdis1 is None
    assert "lookup tables of the distortion are not at hand" in notes[0]


@pytest.mark.parametrize(
    ("cards", "words"),
    [({"CTYPE1": "RA---XYZ", "CTYPE2": "DEC--XYZ"}, "projection"), ({"CD1_2": 1e-4, "CD2_1": -1e-4}, "singular"),
     ({"CD1_1": 0.0, "CD2_2": 0.0}, "are all 0"),
     ({"CTYPE1": "RA---TAN", "CTYPE2": "DEC--SIN"}, "CTYPE|projection|algorithm|celestial")],
)  # fmt: skip
def test_headers_that_make_no_sense(cards, words):
    header = fits.Header({"NAXIS": 2, "CTYPE1": "RA---TAN", "CTYPE2": "DEC--TAN", "CRVAL1": 10.0, "CRVAL2": 20.0})
    header.update({"CRPIX1": 5.0, "CRPIX2": 5.0, "CD1_1": -1e-4, "CD2_2": 1e-4, "CD1_2": 0.0, "CD2_1": 0.0})
    header.update(cards)
    with pytest.raises(InputError, match=rf"(?i)WCS cannot be used: .*({words})"):
        celestial_wcs(header)


def test_plate_solution_survives_writing(shared_data, tmp_path):
    """Left-over plate cards beside distortion cards make wcslib overrun its memory."""
    from skydelta.io.fits.writer import write
    from skydelta.io.read import read

    plate = read(shared_data / "fits/real/astropy__dss.14.29.56-62.41.05.fits.gz", device="cpu")
    write(plate, tmp_path / "plate.fits")
    again = read(tmp_path / "plate.fits", device="cpu")
    x, y = np.array([0.0, 50, 99]), np.array([0.0, 70, 99])
    assert np.allclose(again.wcs.all_pix2world(x, y, 0), plate.wcs.all_pix2world(x, y, 0), atol=1e-10, rtol=0)
    with fits.open(tmp_path / "plate.fits", mode="update") as h:
        h["SCI"].header["XPIXELSZ"], h["SCI"].header["PPO3"] = 25.0, 177500.0
        h["SCI"].header["PLTRAH"], h["SCI"].header["CNPIX1"] = 14, 8900
    assert np.allclose(
        read(tmp_path / "plate.fits", device="cpu").wcs.all_pix2world(x, y, 0), plate.wcs.all_pix2world(x, y, 0)
    )


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        (["CRVAL1"], "CRVAL1 is missing and taken as 0"),
        (["CRPIX2"], "CRPIX2 is missing and taken as 0"),
        (["CDELT1", "CDELT2"], "a pixel is taken as one degree"),
        ([], None),
    ],
)
def test_missing_cards_of_the_sky_are_said(gone, said):
    cards = {"CTYPE": ("RA---TAN", "DEC--TAN"), "CRVAL": (150.0, 2.0), "CRPIX": (50.0, 50.0), "CDELT": (-1e-4, 1e-4)}
    header = fits.Header({f"{k}{i + 1}": v[i] for k, v in cards.items() for i in range(2)})
    for key in gone:
        del header[key]
    wcs, notes = celestial_wcs(header)
    assert wcs is not None
    assert notes == [] if said is None else any(said in note for note in notes)
