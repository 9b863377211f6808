# SPDX-License-Identifier: BSD-3-Clause
"""Every public function takes arrays where they make sense, and refuses anything else in one line."""

import numpy as np
import pytest
import support_io
from astropy import units as u
from astropy.io import fits
from astropy.nddata import CCDData

import skydelta
from skydelta.errors import ConfigError, InputError, SkydeltaError
from skydelta.io.images import as_image
from skydelta.pipeline.simulate import build

SHAPE = (150, 160)


@pytest.fixture(scope="module")
def arrays():
    """Two images of one star field on one grid, as plain arrays, and their WCS."""
    scene = build(size=256, seed=3, same_grid=True, defects=False, stars=120, registration_rms=0.0)
    return [np.array(frame.image) for frame in (scene.science, scene.reference)]


def same(a, b):
    np.testing.assert_array_equal(a.image, b.image)
    np.testing.assert_array_equal(a.variance, b.variance)
    np.testing.assert_array_equal(a.mask, b.mask)


@pytest.mark.parametrize("name", ["background", "psf", "sources", "register", "align", "match"])
def test_a_stage_takes_arrays_as_read_takes_them(arrays, name):
    """What it gives for arrays is what it gives for exposures read from them."""
    a, b = arrays
    inputs, settings = ([a, b] if name in ("register", "align", "match") else [a]), {}
    if name == "align":
        settings["aligned"] = True
    stage, outcomes = getattr(skydelta, name), []
    for given in (inputs, [skydelta.read(x, device="cpu") for x in inputs]):
        try:
            outcomes.append(stage(*given, device="cpu", **settings))
        except SkydeltaError as e:  # no PSF, say
            assert "\n" not in str(e)
            outcomes.append(str(e))
    one, other = outcomes
    assert type(one) is type(other)
    if isinstance(one, str):
        assert one == other and "PSF" in one
    elif isinstance(one, dict):
        first = next(iter(one))
        same(one[first], other[first])
    else:
        same(one, other)


def test_two_arrays_become_a_difference(arrays):
    science, reference = (skydelta.psf(skydelta.background(a), device="cpu")["image"] for a in arrays)
    kernel = skydelta.match(science, reference, device="cpu")
    assert np.isfinite(skydelta.difference(science, reference, kernel, device="cpu")["difference"].image).any()
    stacked = skydelta.stack(list(arrays), aligned=True, scaling="none", device="cpu")["stacked"]
    assert stacked.shape == arrays[0].shape
    assert len(skydelta.detect(arrays[0], device="cpu")) > 20


def test_forms_of_an_image(rng):
    image = rng.normal(100, 3, SHAPE).astype(np.float32)
    masked = np.ma.array(image, mask=image > 108)
    bad = as_image(masked).mask != 0
    np.testing.assert_array_equal(bad, masked.mask)
    assert as_image(image * u.Jy).unit == u.Jy
    header = support_io.tan().to_header()
    assert as_image((image, header)).wcs is not None
    assert as_image((image, support_io.tan())).variance is None, "nothing is added where a WCS is at hand"
    assert as_image(CCDData(image, unit="adu")).variance is None
    assert as_image(fits.ImageHDU(image)).variance is not None
    exposure = skydelta.Exposure(image)
    assert as_image(exposure) is exposure
    assert as_image([1, 2]) == [1, 2]


BAD = np.zeros((3, 4, 5), np.float32)
FLAT = np.zeros((20, 20), np.float32)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: skydelta.background(BAD), r"array of float32 \(3, 4, 5\): a two-dimensional array"),
        (lambda: skydelta.background([[1, 2], [3, 4]]), "background: input image is list, a Exposure is needed"),
        (lambda: skydelta.background(np.array(["a"])), "a two-dimensional array of numbers is needed"),
        (lambda: skydelta.align(FLAT, onto=FLAT), "align: image has no celestial WCS; register it first"),
        (lambda: skydelta.align(FLAT, onto=5), "align: input onto is int, a Exposure is needed"),
        (lambda: skydelta.noise_correlation(FLAT, FLAT), "align: image has no celestial WCS; register it first"),
        (lambda: skydelta.noise_correlation(5, FLAT), "noise_correlation: int is no image or grid"),
        (lambda: skydelta.noise_correlation([FLAT], FLAT), "noise_correlation: list is no image or grid"),
        (lambda: skydelta.reproject(FLAT, support_io.tan(), FLAT.shape), "reproject: ndarray is no image; a path, HDU"),
        (lambda: skydelta.stack(FLAT), "stack: images is ndarray; a list of images is needed"),
        (lambda: skydelta.stack([FLAT, FLAT]), "stack: image 1 has no celestial WCS"),
        (lambda: skydelta.write(FLAT, "never.fits"), "write: ndarray is given; an Exposure is needed"),
        (lambda: skydelta.open(FLAT), "ndarray is no file; a path, URL, bytes"),
        (lambda: list(skydelta.read_many([FLAT])), "ndarray is no file; a path, URL, bytes"),
        (lambda: skydelta.difference(FLAT, FLAT), r"difference: input kernel \(MatchKernel\) is missing"),
    ],
)
def test_what_cannot_be_taken_is_one_line(call, said):
    with pytest.raises((InputError, ConfigError), match=said) as told:
        call()
    assert "\n" not in str(told.value)


def test_noise_correlation_of_arrays_on_one_grid():
    found = skydelta.noise_correlation(FLAT, FLAT, aligned=True)
    assert found.factor.max() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("unit", [u.mag, u.ABmag, u.STmag, u.dex(u.electron), u.dB, u.mag / u.arcsec**2])
def test_magnitudes_are_no_flux(unit, tmp_path):
    with pytest.raises(InputError, match=r"unit is .*: logarithms cannot be subtracted or added up; a unit of flux"):
        skydelta.Exposure(FLAT, unit=unit)
    if isinstance(unit, u.UnitBase):
        fits.PrimaryHDU(FLAT, fits.Header({"BUNIT": unit.to_string()})).writeto(tmp_path / "m.fits")
        with pytest.raises(InputError, match=r"m\.fits: HDU 0: unit is mag|m\.fits: HDU 0: unit is d"):
            skydelta.read(tmp_path / "m.fits", device="cpu")
    for flux in (u.Jy, u.adu, u.mgy, u.dimensionless_unscaled, u.Unit("nmgy"), u.percent):
        assert skydelta.Exposure(FLAT, unit=flux).unit == flux


@pytest.mark.parametrize(
    "section",
    ["[*,1:20]", "[1:20,*]", "[-*,1:20]", "[1:20:2,1:20]", "[1:20]", "[0.5:3,1:20]", "[1-20,1:20]", "[:,1:5]"],
)
def test_sections_of_other_programs_are_named(tmp_path, section):
    fits.HDUList([fits.PrimaryHDU(), fits.ImageHDU(FLAT, name="SCI")]).writeto(tmp_path / "a.fits")
    for file in (tmp_path / "a.fits", f"{tmp_path / 'a.fits'}[SCI]"):
        with pytest.raises(InputError, match=r"a\.fits.*: section \[.*\] is not understood; \[x1:x2,y1:y2\]"):
            skydelta.read(f"{file}{section}", device="cpu")
    (tmp_path / f"odd{section}").write_bytes((tmp_path / "a.fits").read_bytes())
    assert skydelta.read(tmp_path / f"odd{section}", device="cpu").shape == FLAT.shape, "a file of that very name"
