# SPDX-License-Identifier: BSD-3-Clause
"""`inspect` says where bytes lie, how pixels are stored, and what reading takes."""

import gzip

import numpy as np
import pytest
from astropy.io import fits
from astropy.table import Table

import skydelta
from skydelta.io.fits.reader import inspect


def write(path, *hdus):
    fits.HDUList([fits.PrimaryHDU(), *hdus]).writeto(path, overwrite=True)
    return path


@pytest.fixture
def image():
    return (1000 + np.random.default_rng(0).normal(0, 10, (60, 90))).astype(np.float32)


@pytest.mark.parametrize("packed", [False, True])
def test_byte_map_is_that_of_the_file(tmp_path, image, packed):
    path = write(
        tmp_path / "a.fits", fits.ImageHDU(image, name="SCI"), fits.CompImageHDU(image, name="B", tile_shape=(25, 40)),
        fits.BinTableHDU(Table({"x": np.arange(5)})), fits.ImageHDU(image.astype(">i2")),
    )  # fmt: skip
    with fits.open(path, disable_image_compression=True) as truth:
        expected = [h.fileinfo() for h in truth]
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    table = inspect(path)
    assert list(table["header"]) == [i["hdrLoc"] for i in expected]
    assert list(table["data"]) == [i["datLoc"] for i in expected]
    assert [-(-int(n) // 2880) * 2880 for n in table["bytes"]] == [i["datSpan"] for i in expected]
    assert list(table["tiles"]) == ["", "", "25 x 40 (9)", "", ""]


def test_what_stands_for_a_missing_pixel(tmp_path, image):
    integers = image.astype(np.int16)
    with_nan = image.copy()
    with_nan[3, 4] = np.nan
    blank = fits.ImageHDU(integers)
    blank.header["BLANK"] = -32768
    path = write(
        tmp_path / "a.fits", fits.ImageHDU(image), fits.ImageHDU(integers), blank,
        fits.CompImageHDU(with_nan, quantize_level=4), fits.CompImageHDU(integers),
    )  # fmt: skip
    with fits.open(path, disable_image_compression=True) as stored:
        card = stored[4].header.get("ZBLANK")
        column = "ZBLANK" in stored[4].columns.names
    assert card is not None or column
    quantised = "NaN, ZBLANK of each tile" if column else f"NaN, ZBLANK = {card}"
    assert list(inspect(path)["nulls"]) == ["", "NaN", "", "BLANK = -32768", quantised, ""]


@pytest.mark.parametrize(
    "planes", [(), ("VAR",), ("DQ",), ("ERR", "DQ"), ("WHT", "VAR", "MASK"), ("VAR_POISSON", "VAR_RNOISE")]
)
def test_bytes_on_a_device_are_those_of_the_exposure(tmp_path, image, planes):
    kinds = {"DQ": np.int16, "MASK": np.uint8, "WHT": np.float64}
    hdus = [fits.ImageHDU((0 * image + 1).astype(kinds.get(n, np.float32)), name=n) for n in planes]
    path = write(tmp_path / "a.fits", fits.ImageHDU(image, name="SCI"), *hdus, fits.ImageHDU(image, name="SNR"))
    table = inspect(path)
    assert sum(table["device"]) == skydelta.read(path, device="cpu").nbytes
    assert table["device"][-1] == table["device"][0] == 0


def test_a_cube_and_a_damaged_tile_grid_take_nothing(tmp_path, image):
    path = write(tmp_path / "cube.fits", fits.ImageHDU(np.stack([image, image]), name="SCI"))
    assert not any(inspect(path)["device"])
    path = write(tmp_path / "tiles.fits", fits.CompImageHDU(image, name="SCI"))
    path.write_bytes(path.read_bytes().replace(b"ZTILE2  =                    1", b"ZTILE2  =                    7"))
    assert inspect(path)["tiles"][1] == "?"


def test_a_tiled_image_without_the_type_of_its_pixels(tmp_path, image):
    path = write(tmp_path / "a.fits", fits.CompImageHDU(image))
    path.write_bytes(path.read_bytes().replace(b"ZBITPIX =", b"YBITPIX ="))
    table = inspect(path)
    assert table["dtype"][1] == "?"
    assert "ZBITPIX = None; allowed: 8" in table["problem"][1]
