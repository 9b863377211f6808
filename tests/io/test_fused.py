# SPDX-License-Identifier: BSD-3-Clause
"""Pixels and the flags of those without a value come out of one pass: values as astropy has them, no plane between."""

import tracemalloc

import numpy as np
import pytest
from astropy.io import fits

import skydelta
from skydelta.io import read as reading
from skydelta.io.draft import of_array
from skydelta.io.fits.pixels import Flags
from skydelta.io.fits.reader import open_file

SHAPE = (70, 90)


def floats(rng, dtype):
    out = rng.normal(1000, 10, SHAPE).astype(dtype)
    out[3, 4:9], out[7, 8], out[60, 2], out[0, 0] = np.nan, np.inf, -np.inf, -0.0
    if dtype == "f8":
        out[9, 9] = 1e300  # more than float32 holds
    return out


def integers(rng, dtype):
    out = rng.integers(0, 200, SHAPE).astype(dtype)
    out[5, 6:9] = 77
    return out


def compressed(data, **options):
    return fits.CompImageHDU(data, name="SCI", tile_shape=(8, 90), **options)


def scaled(data, **cards):
    hdu = fits.ImageHDU(data, name="SCI")
    hdu.header.update(cards)
    return hdu


FORMS = {
    "float32": lambda rng: fits.ImageHDU(floats(rng, "f4"), name="SCI"),
    "float64": lambda rng: fits.ImageHDU(floats(rng, "f8"), name="SCI"),
    "int16": lambda rng: fits.ImageHDU(integers(rng, "i2"), name="SCI"),
    "int16 blank": lambda rng: scaled(integers(rng, "i2"), BLANK=77),
    "int16 scaled blank": lambda rng: scaled(integers(rng, "i2"), BLANK=77, BSCALE=0.1, BZERO=5.0),
    "int32 overflow": lambda rng: scaled(integers(rng, "i4"), BSCALE=1e37, BZERO=0.0),
    "uint16": lambda rng: fits.ImageHDU(integers(rng, "u2"), name="SCI"),
    "int64": lambda rng: fits.ImageHDU(integers(rng, "i8"), name="SCI"),
    "RICE_1 float32": lambda rng: compressed(
        np.where(np.isinf(f := floats(rng, "f4")), 5, f), compression_type="RICE_1", quantize_method=2
    ),
    "RICE_1 uint16": lambda rng: compressed(integers(rng, "u2"), compression_type="RICE_1"),
    "GZIP_2 float32": lambda rng: compressed(floats(rng, "f4"), compression_type="GZIP_2", quantize_level=0),
    "GZIP_1 float64": lambda rng: compressed(floats(rng, "f8"), compression_type="GZIP_1", quantize_level=0),
    "PLIO_1": lambda rng: compressed(integers(rng, "i4"), compression_type="PLIO_1"),
    "HCOMPRESS_1": lambda rng: compressed(integers(rng, "i2"), compression_type="HCOMPRESS_1"),
}


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("masked", [False, True], ids=["alone", "with DQ"])
@pytest.mark.parametrize("form", FORMS)
def test_image_and_flags_are_those_of_astropy(tmp_path, rng, form, masked):
    path = tmp_path / "a.fits"
    hdus = [fits.PrimaryHDU(), FORMS[form](rng), fits.ImageHDU(np.full(SHAPE, 100, "f4"), name="VAR")]
    dq = np.zeros(SHAPE, "u1")
    dq[1:3, 1:4] = dq[3, 8:12] = 1
    if masked:
        hdus.append(fits.ImageHDU(dq, name="DQ"))
    fits.HDUList(hdus).writeto(path)
    with fits.open(path) as opened, np.errstate(over="ignore"):
        theirs = opened[1].data
        kind = theirs.dtype.newbyteorder("=").name
        single = theirs.astype("f4")
    missing = ~np.isfinite(single)
    ours = skydelta.read(path, device="cpu")
    no_data, bad = (ours.planes.bit(name) for name in ("NO_DATA", "BAD"))
    assert ours.image.dtype == np.float32
    assert np.array_equal(ours.image.view("u4")[~missing], single.view("u4")[~missing])  # -0.0 too
    assert np.isnan(ours.image[missing]).all()
    assert np.array_equal(ours.mask & (no_data | bad), np.where(missing, no_data, 0) | np.where(masked & dq, bad, 0))
    assert ours.notes["mask"]["missing_pixels"] == missing.sum()
    said = f"{np.isinf(single).sum()} infinite pixels are masked"
    if kind == "float64":
        said = said.replace("infinite pixels", "pixels that are infinite or beyond float32 (3.4e38)")
        said += '; dtype="native" keeps those that are finite'
    assert (said in ours.notes.get("warnings", [])) == bool(np.isinf(single).any())
    assert ours.notes["image"]["type"] == kind
    native = skydelta.read(path, device="cpu", dtype="native")
    assert native.image.dtype == kind
    assert native.notes["image"] == ours.notes["image"]
    if kind != "float64":
        assert np.array_equal(native.image.astype("f4"), ours.image, equal_nan=True)
        assert np.array_equal(native.mask, ours.mask)


@pytest.mark.parametrize("blank", [77, 7777], ids=["some", "none"])
def test_type_of_unsigned_integers_with_a_blank(tmp_path, rng, blank):
    path = tmp_path / "a.fits"
    hdu = fits.ImageHDU(integers(rng, "u2"))
    hdu.header["BLANK"] = blank - 32768
    fits.HDUList([fits.PrimaryHDU(), hdu]).writeto(path)
    with open_file(path) as file:
        flags = Flags(8)
        pixels = file.read(file.hdus[1], "float32", flags=flags)[1]
        native = file.read(file.hdus[1])[1]
    assert flags.native == native.dtype == ("float32" if blank == 77 else "uint16")
    assert np.array_equal(pixels, native.astype("f4"), equal_nan=True)
    assert flags.missing == np.isnan(pixels).sum() == (flags.mask == 8).sum()


@pytest.mark.parametrize("form", ["float32", "float64", "int16", "RICE_1"])
def test_no_plane_between(tmp_path, rng, form):
    """Eight bytes a pixel, the stream of a compressed image, and what stays in the cache."""
    path, n = tmp_path / "a.fits", 2000
    data = rng.normal(1000, 10, (n, n)).astype("f8" if form == "float64" else "i2" if form == "int16" else "f4")
    hdu = fits.CompImageHDU(data, compression_type=form) if form == "RICE_1" else fits.ImageHDU(data)
    fits.HDUList([fits.PrimaryHDU(), hdu]).writeto(path)
    with open_file(path) as file:
        stream = file.hdus[1].size if form == "RICE_1" else 0
        file.read(file.hdus[1], "float32", flags=Flags(8))
        tracemalloc.start()
        try:
            file.read(file.hdus[1], "float32", flags=Flags(8))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert 8 * n * n <= peak < 8 * n * n + stream + 5_000_000 < 11 * n * n


def test_infinite_pixels_of_the_callers_arrays_stay():
    for dtype in ("f4", "f8"):
        image = np.full(SHAPE, 5, dtype)
        image[2, 3] = np.inf
        for source in (image, fits.ImageHDU(image)):
            for wanted in ("float32", "native"):
                found = skydelta.read(source, variance=np.ones(SHAPE, "f4"), dtype=wanted, device="cpu")
                assert np.isnan(found.image[2, 3])
                assert np.isinf(image[2, 3])


def test_a_plateau_is_what_the_median_says(rng):
    sizes = (9, 200, 2000), (10, 250, 2000), (10, 499, 2000), (10, 500, 2000), (12, 0, 999)
    found = set()
    for size, low, high in (*sizes, (20, 100, 2000), (21, 499, 2000), (20, 600, 2000), (30, 0, 999)):
        for below in range(size):
            pixels = np.full((1, size), high, "u2")
            pixels[0, :below] = low
            far = high > 4 * max(float(np.median(pixels)), 1.0) and high > 1000
            expected = float(high) if far and (pixels == high).sum() >= reading.PLATEAU else None
            draft = of_array(rng.permuted(pixels, axis=1), fits.Header(), "float32")
            assert reading._plateau(draft) == expected, (size, below, low)
            found.add(expected)
    assert found == {None, 2000.0}
