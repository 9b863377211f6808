# SPDX-License-Identifier: BSD-3-Clause
"""Values that float32 does not hold have no value there: masked, counted, said in one line; numpy warns of nothing."""

import logging
import warnings

import numpy as np
import pytest
from astropy import units as u
from astropy.io import fits
from astropy.nddata import CCDData, VarianceUncertainty

import skydelta
from skydelta.io.exposure import Exposure

SHAPE = (200, 150)
LIMIT = float(np.finfo(np.float32).max)


@pytest.fixture(autouse=True)
def no_warning_of_numpy():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def wide(rng):
    image = rng.normal(100, 3, SHAPE)
    image[5, 5], image[6, 6], image[7, 7] = 1e39, -1e300, 3e38
    return image


def where_no_data(exposure):
    bit = exposure.planes.bit("NO_DATA")
    return sorted(zip(*(at.tolist() for at in np.nonzero(exposure.mask & bit)), strict=True))


def sources(image, path):
    yield image
    yield fits.ImageHDU(image)
    hdus = [
        fits.PrimaryHDU(),
        fits.ImageHDU(image, name="SCI"),
        fits.CompImageHDU(image, name="G", compression_type="GZIP_2", quantize_level=0),
    ]
    fits.HDUList(hdus).writeto(path)
    yield str(path)
    yield f"{path}[G]"
    yield f"{path}[SCI][1:100,1:100]"


def test_pixels(wide, tmp_path, caplog):
    for source in sources(wide, tmp_path / "a.fits"):
        caplog.clear()
        found = skydelta.read(source, device="cpu")
        assert found.image.dtype == np.float32
        assert where_no_data(found) == [(5, 5), (6, 6)]
        assert np.isnan(found.image[[5, 6], [5, 6]]).all()
        assert found.image[7, 7] == np.float32(3e38)
        (line,) = [r.message for r in caplog.records if r.levelno >= logging.WARNING]
        assert "2 pixels that are infinite or beyond float32 (3.4e38) are masked; " in line
        assert line.endswith('dtype="native" keeps those that are finite')
        native = skydelta.read(source, variance=np.ones(SHAPE), dtype="native", device="cpu")
        assert native.image[5, 5] == 1e39
        assert where_no_data(native) == []


@pytest.mark.parametrize(
    ("kind", "value"),
    [("variance", 1e40), ("sigma", 1e25), ("sigma", 1e-30), ("weight", 1e-45), ("weight", 1e50), ("variance", 1e-50)],
)
def test_variances(rng, tmp_path, kind, value):
    image, plane = rng.normal(0, 1, SHAPE), np.ones(SHAPE)
    plane[3, 4:6] = value
    fits.ImageHDU(plane).writeto(tmp_path / "plane.fits")
    for given in (plane, str(tmp_path / "plane.fits")):
        found = skydelta.read(image, **{kind: given}, device="cpu")
        assert where_no_data(found) == [(3, 4), (3, 5)]
        (line,) = found.notes["warnings"]
        assert "2 pixels" in line
        assert "beyond float32" in line
        assert kind in line


def test_estimated_variance_beyond_float32(rng):
    found = skydelta.read(rng.normal(0, 1e25, SHAPE), device="cpu")
    assert np.isnan(found.variance).all()
    assert any("noise of " in line and "beyond float32" in line for line in found.notes["warnings"])
    assert not found.good().any()


def test_exposures_that_become_float32(wide, caplog):
    variance = np.ones(SHAPE)
    variance[9, 9] = 1e50
    for mask in (None, np.zeros(SHAPE, np.int32)):
        caplog.clear()
        narrow = Exposure(wide, variance, mask, id="e").single()
        assert where_no_data(narrow) == [(5, 5), (6, 6), (9, 9)]
        assert np.isnan(narrow.image[5, 5])
        assert np.isnan(narrow.variance[9, 9])
        assert mask is None or not mask.any()
        (line,) = [r.message for r in caplog.records]
        assert line == "e: 3 pixels are beyond float32 (3.4e38) and masked"
    assert np.abs(wide).max() > LIMIT


def test_ccddata(wide):
    ccd = CCDData(wide, unit=u.adu, uncertainty=VarianceUncertainty(np.full(SHAPE, 9.0)))
    narrow = Exposure.from_ccddata(ccd, id="e")
    assert narrow.image.dtype == narrow.variance.dtype == np.float32
    assert where_no_data(narrow) == [(5, 5), (6, 6)]
    assert where_no_data(skydelta.read(ccd, device="cpu")) == [(5, 5), (6, 6)]
