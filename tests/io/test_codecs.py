# SPDX-License-Identifier: BSD-3-Clause
"""Every codec, type, tiling, dither and null against astropy, pixel for pixel, whole and in sections."""

import itertools

import numpy as np
import pytest
from astropy.io import fits
from astropy.io.fits.hdu.compressed import _codecs

from skydelta.errors import InputError
from skydelta.io.fits import pixels
from skydelta.io.fits.reader import open_file

SHAPES = {
    (61, 83): [(1, 83), (16, 32), (61, 83), (7, 5), (60, 1)],
    (5, 23, 31): [(1, 1, 31), (2, 8, 16), (5, 23, 31)],
    (97,): [(97,), (32,)],
    (2, 3, 11, 17): [(1, 2, 4, 6)],
}


def write(path, data, **options):
    hdu = fits.CompImageHDU(data, **options)
    fits.HDUList([fits.PrimaryHDU(), hdu]).writeto(path, overwrite=True)
    return path


def ours(path, **options):
    with open_file(path) as source:
        hdu = next(h for h in source.hdus if h.is_image and h.shape)
        return source.read(hdu, **options)[1]


def theirs(path):
    with fits.open(path) as opened:
        data = next(h for h in opened if h.is_image and h.shape).data
        return data.astype(data.dtype.newbyteorder("="))


def same(a, b):
    """Equal bytes, but for the payload of NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f") and (
        a.dtype.kind != "f" or np.array_equal(np.signbit(a[a == 0]), np.signbit(b[b == 0]))
    )


def hcompressible(shape, tile):
    """astropy's encoder wants two axes of at least 4 pixels, in edge tiles too."""
    edges = [min(n % t or t, t) for n, t in zip(shape, tile, strict=True)]
    return sum(n > 1 for n in tile) == 2 and sum(n > 3 for n in edges) == 2


def check(path, section=None):
    """Whole, as float32, with one and two threads, and a section."""
    expected = theirs(path)
    found = ours(path)
    assert same(found, expected)
    assert same(ours(path, dtype="float32"), expected.astype(np.float32))
    with open_file(path) as source:
        hdu = next(h for h in source.hdus if h.is_image and h.shape)
        for threads in (1, 2):
            again = pixels.read(hdu, source.content, "native", None, threads)[0]
            assert again.tobytes() == found.tobytes()
    box = section or tuple(slice(n // 3, n // 3 + max(n // 2, 1)) for n in expected.shape)
    part = ours(path, section=box)
    assert np.array_equal(part, expected[box].astype(part.dtype), equal_nan=part.dtype.kind == "f")
    return found


@pytest.mark.parametrize("method", ["RICE_1", "GZIP_1", "GZIP_2", "NOCOMPRESS", "PLIO_1", "HCOMPRESS_1"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "uint32", "int64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_integers(tmp_path, rng, method, dtype, shape):
    if dtype == "int64" and method not in ("GZIP_1", "GZIP_2", "NOCOMPRESS"):
        pytest.skip("64-bit integers have no form in this method")
    if method == "PLIO_1" and dtype in ("uint16", "uint32"):
        pytest.skip("astropy stores them below zero, where the list has no values")
    info = np.iinfo(dtype)
    wide = rng.integers(0 if method == "PLIO_1" else info.min // 2, min(info.max // 2, 2**23), shape).astype(dtype)
    smooth = (100 + rng.normal(0, 3, shape)).astype(dtype)
    if method == "PLIO_1":  # a mask: astropy's encoder writes past its buffer where every pixel differs from the last
        wide, smooth = (np.where(rng.random(shape) < p, a, 0).astype(dtype) for a, p in ((wide, 0.05), (smooth, 0.2)))
    for data, tile in itertools.product((wide, smooth), SHAPES[shape]):
        if method == "HCOMPRESS_1" and not hcompressible(shape, tile):
            continue
        path = write(tmp_path / "c.fits", data, compression_type=method, tile_shape=tile)
        assert np.array_equal(check(path), data)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", ["RICE_1", "GZIP_1", "GZIP_2", "HCOMPRESS_1"])
@pytest.mark.parametrize("dither", [-1, 1, 2])
@pytest.mark.parametrize("shape", list(SHAPES)[:2], ids=str)
def test_quantised_floats(tmp_path, rng, dtype, method, dither, shape):
    data = rng.normal(100, 5, shape).astype(dtype)
    data[rng.random(shape) < 0.05] = 0
    data[rng.random(shape) < 0.02] = np.nan
    data.reshape(-1, shape[-1])[3] = np.nan  # a tile without a number
    for tile, seed in zip(SHAPES[shape], (1, 42, 9999, 10000, 5000), strict=False):
        if method == "HCOMPRESS_1" and not hcompressible(shape, tile):
            continue
        path = write(
            tmp_path / "q.fits", data, compression_type=method, tile_shape=tile, quantize_method=dither,
            quantize_level=4, dither_seed=seed,
        )  # fmt: skip
        found = check(path)
        assert np.array_equal(np.isnan(found), np.isnan(data))
        if dither == 2:
            assert np.all(found[data == 0] == 0)
        assert np.nanmax(np.abs(found - data)) < 15  # and not scaled or shifted altogether


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", ["GZIP_1", "GZIP_2", "NOCOMPRESS"])
def test_lossless_floats(tmp_path, rng, dtype, method):
    data = rng.normal(0, 1, (31, 47)).astype(dtype)
    data[2, 3], data[4, 5], data[6, 7] = np.nan, np.inf, -0.0
    for tile in ((1, 47), (8, 16), (31, 47)):
        path = write(tmp_path / "l.fits", data, compression_type=method, tile_shape=tile, quantize_level=0)
        assert same(check(path), data)


@pytest.mark.parametrize("seed", [1, 5000, 10000])
def test_dither_of_tiles_longer_than_the_table_and_of_many_tiles(tmp_path, rng, seed):
    long = rng.normal(100, 5, (2, 25000)).astype(np.float32)
    check(write(tmp_path / "l.fits", long, tile_shape=(2, 25000), quantize_method=1, dither_seed=seed))
    many = rng.normal(100, 5, (10200, 12)).astype(np.float32)
    check(write(tmp_path / "m.fits", many, quantize_method=1, dither_seed=seed), (slice(9990, 10010), slice(2, 9)))


@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("nbytes", [1, 2, 4])
@pytest.mark.parametrize("bitpix", [8, 16, 32])
def test_every_width_of_rice(tmp_path, rng, block, nbytes, bitpix):
    """BYTEPIX need not fit ZBITPIX; streams from astropy's encoder, put into a file by hand."""
    limit = {8: 127, 16: 30000, 32: 2**30}[min(bitpix, 8 * nbytes)]
    data = rng.integers(0, limit, (9, 77)).astype(f"i{bitpix // 8}" if bitpix > 8 else "u1")
    data[:4] = 50 + data[:4] % 4  # differences of 0, 1 and 3 bits, and runs of zero
    data[0] = 7
    path = write(tmp_path / "r.fits", data, compression_type="RICE_1")
    coder = _codecs.Rice1(blocksize=block, bytepix=nbytes, tilesize=77)
    streams = [bytes(coder.encode(row.astype(f"i{nbytes}"))) for row in data]
    offsets = np.cumsum([0, *map(len, streams)])
    with open_file(path) as source:
        hdu = source.hdus[1]
    header = hdu.header.copy()
    header["PCOUNT"] = int(offsets[-1])
    names = {header[f"ZNAME{i}"]: f"ZVAL{i}" for i in (1, 2)}
    header[names["BLOCKSIZE"]], header[names["BYTEPIX"]] = block, nbytes
    rows = np.array([(len(s), o) for s, o in zip(streams, offsets, strict=False)], ">i4").tobytes()
    raw = rows + b"".join(streams)
    raw += bytes(-len(raw) % 2880)
    path.write_bytes(path.read_bytes()[: hdu.start] + header.tostring().encode() + raw)
    assert np.array_equal(ours(path), data)
    assert np.array_equal(ours(path, dtype="float32"), data.astype(np.float32))


@pytest.mark.parametrize("smooth", [0, 1])
@pytest.mark.parametrize("scale", [0, 4, 20])
@pytest.mark.parametrize("shape", [(32, 48), (33, 47), (4, 4), (5, 64), (128, 16)])
def test_lossy_and_smoothed_hcompress(tmp_path, rng, smooth, scale, shape):
    y, x = np.indices(shape)
    data = (1000 * np.exp(-((x - 9) ** 2 + (y - 7) ** 2) / 40) + rng.normal(0, 10, shape)).astype(np.int32)
    path = write(tmp_path / "h.fits", data, compression_type="HCOMPRESS_1", tile_shape=shape, hcomp_scale=scale,
                 hcomp_smooth=smooth)  # fmt: skip
    with fits.open(path, disable_image_compression=True) as opened:
        cards = opened[1].header
        assert cards[next(f"ZVAL{i}" for i in (1, 2) if cards[f"ZNAME{i}"] == "SMOOTH")] == smooth
    assert np.array_equal(check(path), data) == (scale == 0)


@pytest.mark.parametrize("method", ["RICE_1", "GZIP_2"])
@pytest.mark.parametrize(("scale", "zero"), [(0.5, 3.0), (2.0, 0.0), (1.0, 7.5)])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "float32", "float64"])
def test_scaled_compressed_images(tmp_path, rng, method, dtype, scale, zero):
    """BSCALE and BZERO on integers, and on quantised floats, where they come after ZSCALE and ZZERO."""
    data = rng.normal(100, 5, (20, 40)).astype(dtype)
    path = write(tmp_path / "s.fits", data, compression_type=method)
    with open_file(path) as source:
        hdu = source.hdus[1]
    header = hdu.header.copy()
    header["BSCALE"], header["BZERO"] = scale, zero
    raw = path.read_bytes()
    path.write_bytes(raw[: hdu.start] + header.tostring().encode() + raw[hdu.data :])
    expected = theirs(path)
    assert same(ours(path), expected)
    assert same(ours(path, dtype="float32"), expected.astype(np.float32))


@pytest.mark.parametrize("stored", ["u1", "i2", "i4", "i8", "f4", "f8"])
@pytest.mark.parametrize("shape", [(61, 83), (7, 11, 13), (3, 2, 5, 6), (4001,)], ids=str)
@pytest.mark.parametrize("scaled", [False, True])
def test_raw_images_and_sections(tmp_path, rng, stored, shape, scaled):
    data = rng.integers(0, 120, shape).astype(stored)
    hdu = fits.PrimaryHDU(data)
    hdu.writeto(tmp_path / "raw.fits")
    if scaled:
        with fits.open(tmp_path / "raw.fits", mode="update", do_not_scale_image_data=True) as h:
            h[0].header["BSCALE"], h[0].header["BZERO"] = -0.25, 0.0
    check(tmp_path / "raw.fits")


@pytest.mark.parametrize(
    "section", [(slice(5, 9), slice(70, 83)), (slice(60, 61), slice(0, 1)), (slice(0, 61), slice(0, 83))]
)
def test_sections_at_the_edges(tmp_path, rng, section):
    data = rng.integers(0, 1000, (61, 83)).astype(np.int16)
    for tile in SHAPES[61, 83]:
        path = write(tmp_path / "e.fits", data, compression_type="RICE_1", tile_shape=tile)
        assert np.array_equal(ours(path, section=section), data[section])
    fits.writeto(tmp_path / "raw.fits", data)
    assert np.array_equal(ours(tmp_path / "raw.fits", section=section), data[section])
    for wrong in ((slice(3, 3), slice(0, 5)), (slice(0, 9, 2), slice(0, 5)), (slice(0, 5),)):
        with pytest.raises(InputError, match="section"):
            ours(path, section=wrong)


@pytest.mark.parametrize("shape", [(90, 5000), (4, 30, 5000)])
@pytest.mark.parametrize("dtype", ["u2", "f4"])
def test_a_narrow_section_reads_only_its_own_bytes(tmp_path, rng, shape, dtype):
    data = rng.integers(0, 60000, shape).astype(dtype)
    path = tmp_path / "a.fits"
    fits.HDUList([fits.PrimaryHDU(), fits.ImageHDU(data)]).writeto(path)
    for box in ((slice(3, 25), slice(4000, 4007)), (slice(0, 30), slice(0, 1)), (slice(29, 30), slice(4990, 5000))):
        section = (slice(1, 3),) * (len(shape) - 2) + box
        with open_file(path) as source:
            before = source.counted.bytes
            assert np.array_equal(source.read(source.hdus[1], section=section)[1], data[section])
            assert source.counted.bytes - before == data[section].nbytes
            assert np.array_equal(source.read(source.hdus[1], "float32", section)[1], data[section].astype("f4"))


def test_a_section_reads_only_the_tiles_it_touches(tmp_path, rng):
    data = rng.integers(0, 1000, (600, 500)).astype(np.int16)
    compressed = write(tmp_path / "s.fits", data, compression_type="RICE_1", tile_shape=(50, 50))
    fits.writeto(tmp_path / "raw.fits", data)
    for path in (compressed, tmp_path / "raw.fits"):
        with open_file(path) as source:
            hdu = next(h for h in source.hdus if h.shape)
            read, total = source.content.read_into, [0]

            def counted(offset, out, read=read, total=total):
                total[0] += len(out)
                return read(offset, out)

            source.content.read_into = counted
            assert np.array_equal(source.read(hdu, section=(slice(100, 150), slice(50, 100)))[1], data[100:150, 50:100])
            assert total[0] < 0.15 * hdu.size


def test_unsigned_images_with_blanks_stay_integers_until_one_is_blank(tmp_path):
    data = np.arange(60, dtype=np.uint16).reshape(6, 10) + 40000
    for blank, dtype in ((-32768, "uint16"), (40007 - 32768, "float32")):
        fits.PrimaryHDU(data).writeto(tmp_path / "b.fits", overwrite=True)
        with fits.open(tmp_path / "b.fits", mode="update", do_not_scale_image_data=True) as h:
            h[0].header["BLANK"] = blank
        found = ours(tmp_path / "b.fits")
        assert found.dtype == dtype
        expected = data.astype(float)
        if dtype == "float32":
            expected[0, 7] = np.nan
        assert np.array_equal(found, expected, equal_nan=True)
