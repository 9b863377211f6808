# SPDX-License-Identifier: BSD-3-Clause
"""Units and masks of arrays, and units of headers as the field spells them."""

import numpy as np
import pytest
from astropy import units as u
from astropy.io import fits
from astropy.nddata import CCDData, StdDevUncertainty, VarianceUncertainty
from astropy.utils.masked import Masked

import skydelta
from skydelta.errors import InputError
from skydelta.io.header import unit_of
from skydelta.kernels.backend import to_host
from skydelta.stages.align import _counts


@pytest.fixture
def sky(rng):
    return rng.normal(100, 5, (40, 30)).astype(np.float32)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("ELECTRONS/S", u.electron / u.s),
        ("COUNTS/S", u.count / u.s),
        ("DN/S", u.adu / u.s),
        ("ADU/S", u.adu / u.s),
        ("electrons/sec", u.electron / u.s),
        ("erg/S/CM2/A", u.erg / u.s / u.cm**2 / u.AA),
        ("ERGS/S/CM2/ANGSTROM", u.erg / u.s / u.cm**2 / u.AA),
        ("MJy/sr", u.MJy / u.sr),
        ("nJy", u.nJy),
        ("mJy", u.mJy),
    ],
)
def test_spellings_of_the_field(written, meant):
    unit, odd = unit_of(fits.Header({"BUNIT": written}))
    assert not odd
    assert unit.to(meant) == pytest.approx(1)


@pytest.mark.parametrize(
    "unit", ["adu", "electron/s", "adu/s", "ct/s", "DN/s", "Jy", "Jy/pix", "mgy", "ph/pix", "erg/(s cm2 AA)"]
)
def test_units_of_light_in_a_pixel(unit):
    assert _counts(u.Unit(unit))


@pytest.mark.parametrize("unit", ["MJy/sr", "Jy/beam", "mag/arcsec2", "", "K", "Jy/arcsec2", "electron/(s arcsec2)"])
def test_units_of_brightness(unit):
    assert not _counts(u.Unit(unit))


def test_masks_of_every_kind_are_kept(sky):
    mask = np.zeros(sky.shape, bool)
    mask[5:9, 3:7] = True
    arrays = (np.ma.array(sky, mask=mask), Masked(sky, mask=mask), Masked(sky * u.Jy, mask=mask))
    for array, unit in zip(arrays, (None, None, u.Jy), strict=True):
        read = skydelta.read(array, variance=25.0 * np.ones_like(sky) * (unit or 1) ** 2)
        np.testing.assert_array_equal(to_host(read.good()), ~mask)
        assert read.unit == unit


def test_planes_are_brought_to_the_unit_of_the_image(sky):
    ones, image = np.ones_like(sky), sky * u.Jy
    for given in (
        {"variance": 25e6 * ones * u.mJy**2},
        {"sigma": 5000 * ones * u.mJy},
        {"weight": 4e-8 * ones / u.mJy**2},
        {"variance": 25 * ones},
    ):
        np.testing.assert_allclose(to_host(skydelta.read(image, **given).variance), 25, rtol=1e-6)
    for uncertainty in (StdDevUncertainty(5000 * ones, unit="mJy"), VarianceUncertainty(25e6 * ones, unit="mJy2")):
        data = CCDData(sky, unit="Jy", uncertainty=uncertainty)
        np.testing.assert_allclose(to_host(skydelta.read(data).variance), 25, rtol=1e-6)
    with pytest.raises(InputError, match=r"variance is in adu2, which is no Jy2"):
        skydelta.read(image, variance=ones * u.adu**2)


def test_masked_numbers_of_a_variance_are_unknown(sky):
    mask = np.zeros(sky.shape, bool)
    mask[2] = True
    for variance in (np.ma.array(25 * np.ones_like(sky), mask=mask), Masked(25 * np.ones_like(sky), mask=mask)):
        np.testing.assert_array_equal(to_host(skydelta.read(sky, variance=variance).good()), ~mask)


def test_fits_of_masked_stamps():
    o = np.arange(21) - 10
    psf = np.exp(-(o**2 + o[:, None] ** 2) / 4.5)
    psf /= psf.sum()
    stamps = 300 * psf[None] + np.zeros((3, 1, 1))
    stamps[:, 2:5, 2:5] = 1e4
    mask = stamps > 5e3
    for array in (np.ma.array(stamps, mask=mask), Masked(stamps, mask=mask)):
        found = skydelta.fit(array, model="point", psf=psf, variance=1.0)
        np.testing.assert_allclose(found["flux"], 300, rtol=1e-4)


def planed(path, sky, bunit, **planes):
    """A file of SCI and planes as name: (factor over the right one in the unit of the image, BUNIT)."""
    right = {"VAR": 25.0, "ERR": 5.0, "WHT": 0.04, "VAR_POISSON": 20.0, "VAR_RNOISE": 5.0, "UNCERT": 5.0}
    hdus = [fits.PrimaryHDU(), fits.ImageHDU(sky, fits.Header({"BUNIT": bunit}) if bunit else None, name="SCI")]
    for name, (factor, unit) in planes.items():
        hdu = fits.ImageHDU(np.full(sky.shape, right[name] * factor, np.float32), name=name)
        if unit:
            hdu.header["BUNIT"] = unit
        if name == "UNCERT":
            hdu.header["UTYPE"] = "StdDevUncertainty"
        hdus.append(hdu)
    fits.HDUList(hdus).writeto(path, overwrite=True)
    return path


@pytest.mark.parametrize(
    ("bunit", "planes"),
    [
        ("Jy", {"VAR": (1e6, "mJy2")}), ("Jy", {"ERR": (1e3, "mJy")}), ("mJy", {"WHT": (1e6, "1 / Jy2")}),
        ("mJy", {"UNCERT": (1e-3, "Jy")}), ("MJy/sr", {"VAR": (1.0, "MJy2 / sr2")}),
        ("electrons", {"VAR": (1.0, "electrons**2")}),
        ("DN/s", {"VAR": (1.0, "DN^2/s^2")}), ("Jy", {"VAR_POISSON": (1e6, "mJy2"), "VAR_RNOISE": (1.0, "Jy2")}),
        ("adu", {"VAR": (1.0, "")}), ("", {"VAR": (1.0, "electron2")}), ("adu", {"ERR": (1.0, "ADU")}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("apart", [False, True])
def test_planes_of_files_are_brought_to_the_unit_of_the_image(tmp_path, sky, bunit, planes, apart):
    path = planed(tmp_path / "a.fits", sky, bunit, **planes)
    found = skydelta.read(path, device="cpu")
    np.testing.assert_allclose(found.variance, 25.0, rtol=1e-5)
    assert "warnings" not in found.notes
    (name, *more), kinds = planes, {"VAR": "variance", "ERR": "sigma", "WHT": "weight"}
    if apart and not more and name in kinds:
        alone = planed(tmp_path / "alone.fits", sky, bunit)
        found = skydelta.read(alone, **{kinds[name]: f"{path}[{name}]"}, device="cpu")
        np.testing.assert_allclose(found.variance, 25.0, rtol=1e-5)


@pytest.mark.parametrize(
    ("bunit", "planes", "said"),
    [
        ("adu", {"VAR": (1.0, "electron**2")}, r"HDU 2 \(VAR\): variance is in electron2, which is no adu2"),
        ("adu", {"ERR": (1.0, "electron")}, r"HDU 2 \(ERR\): sigma is in electron, which is no adu"),
        ("electron/s", {"ERR": (1.0, "electron")}, r"sigma is in electron, which is no electron / s"),
        ("adu", {"ERR": (1.0, "adu2")}, r"sigma is in adu2, which is no adu"),
        (
            "Jy",
            {"VAR_POISSON": (1.0, "Jy2"), "VAR_RNOISE": (1.0, "adu2")},
            r"HDU 3 \(VAR_RNOISE\): variance is in adu2",
        ),
    ],
)
def test_planes_of_files_in_another_unit_are_refused(tmp_path, sky, bunit, planes, said):
    path = planed(tmp_path / "a.fits", sky, bunit, **planes)
    with pytest.raises(InputError, match=said) as told:
        skydelta.read(path, device="cpu")
    assert "\n" not in str(told.value) and "a.fits" in str(told.value)


@pytest.mark.parametrize(
    ("planes", "said"),
    [
        ({"VAR": (1.0, "adu")}, "HDU 2 (VAR): variance is in adu, the image in adu; taken as adu2"),
        ({"WHT": (1.0, "s")}, "HDU 2 (WHT): weight is in s, the image in adu; taken as 1 / adu2"),
    ],
)
def test_units_that_programs_copy_are_said(tmp_path, sky, planes, said):
    found = skydelta.read(planed(tmp_path / "a.fits", sky, "adu", **planes), device="cpu")
    np.testing.assert_allclose(found.variance, 25.0, rtol=1e-5)
    assert found.notes["warnings"] == [said]


def test_the_unit_of_a_primary_is_not_that_of_a_plane(tmp_path, sky):
    path = planed(tmp_path / "a.fits", sky, "", VAR=(1.0, ""))
    with fits.open(path, mode="update") as hdus:
        hdus[0].header["BUNIT"] = "electron"
    found = skydelta.read(path, device="cpu")
    assert found.unit == u.electron and "warnings" not in found.notes


def test_what_write_makes_has_units_that_read_takes(tmp_path, sky):
    exposure = skydelta.Exposure(sky, np.full(sky.shape, 25.0), unit=u.electron / u.s)
    skydelta.write(exposure, tmp_path / "w.fits")
    found = skydelta.read(tmp_path / "w.fits", device="cpu")
    np.testing.assert_array_equal(found.variance, 25.0)
    assert "warnings" not in found.notes
