# SPDX-License-Identifier: BSD-3-Clause
"""Damaged and odd files that the tests make themselves: one-line errors, never garbage, never a crash."""

import bz2
import gzip
import io
import lzma
import shutil
import subprocess

import numpy as np
import pytest
from astropy.io import fits

from skydelta.errors import InputError
from skydelta.io.fits.reader import inspect, open_file, split_extension
from skydelta.io.read import read


def image_file(path, data=None, **cards):
    hdu = fits.PrimaryHDU(np.arange(1200, dtype=np.float32).reshape(30, 40) if data is None else data)
    for key, value in cards.items():
        hdu.header[key] = value
    hdu.writeto(path)
    return path


def compressed(path, data, **options):
    fits.HDUList([fits.PrimaryHDU(), fits.CompImageHDU(data, **options)]).writeto(path)
    return path


def patched(path, old, new):
    raw = path.read_bytes()
    assert raw.count(old) >= 1
    path.write_bytes(raw.replace(old, new.ljust(len(old)), 1))
    return path


def message(path, **options):
    with pytest.raises(InputError) as caught:
        read(path, device="cpu", **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_directory_empty_text(tmp_path):
    assert message(tmp_path / "no.fits").endswith("no.fits: no such file")
    assert "is a directory; a file is needed" in message(tmp_path)
    (tmp_path / "empty.fits").touch()
    assert "is empty (0 bytes)" in message(tmp_path / "empty.fits")
    (tmp_path / "text.fits").write_text("hello\n" * 1000)
    assert "not FITS: starts with b'hello" in message(tmp_path / "text.fits")


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress], ids=["gzip", "bzip2", "xz"])
def test_whole_file_compression_is_recognised_by_its_bytes(tmp_path, compress):
    plain = image_file(tmp_path / "plain.fits")
    hidden = tmp_path / "hidden.fits"
    hidden.write_bytes(compress(plain.read_bytes()))
    assert np.array_equal(read(hidden, device="cpu").image, read(plain, device="cpu").image)
    hidden.write_bytes(compress(plain.read_bytes())[:-40])
    assert "damaged" in message(hidden)


def lzw(data, most=16):
    """What compress -b MOST writes: codes of growing width in groups of eight, the table cleared now and then."""
    table, seen, width, group = {bytes([i]): i for i in range(256)}, b"", 9, 0
    bits, count = 0, 0

    def put(code):
        nonlocal bits, count, group
        bits |= code << count
        count += width
        group += 1

    def fill():
        nonlocal count, group
        count += -group % 8 * width
        group = 0

    for i, byte in enumerate(data):
        more = seen + bytes([byte])
        if more in table:
            seen = more
            continue
        put(table[seen])
        if len(table) + 1 < 1 << most:
            table[more] = len(table) + 1  # 256 clears
            if len(table) + 1 > 1 << width and width < most:
                fill()
                width += 1
        elif i % 5 == 0:
            put(256)
            fill()
            width, table = 9, {bytes([j]): j for j in range(256)}
        seen = bytes([byte])
    put(table[seen])
    return b"\x1f\x9d" + bytes([0x80 | most]) + bits.to_bytes(-(-count // 8), "little")


@pytest.mark.parametrize("most", [10, 12, 16])
def test_files_of_the_old_compress(tmp_path, rng, most):
    data = rng.integers(0, 40, (60, 80)).astype(np.int16)
    plain = image_file(tmp_path / "plain.fits", data)
    hidden = tmp_path / "hidden.fits"
    hidden.write_bytes(lzw(plain.read_bytes(), most))
    assert np.array_equal(read(hidden, dtype="native", device="cpu").image, data)
    if shutil.which("gzip"):
        done = subprocess.run(["gzip", "-dc"], input=hidden.read_bytes(), capture_output=True, check=True)
        assert done.stdout == plain.read_bytes()  # the encoder above is right
    raw = bytearray(hidden.read_bytes())
    raw[3:5] = b"\xff\xff"
    hidden.write_bytes(raw)
    assert "damaged LZW stream" in message(hidden)


def test_a_small_file_that_grows_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("skydelta.io.storage.MAX_SIZE", 1 << 16)
    for compress in (gzip.compress, bz2.compress, lzma.compress):
        (tmp_path / "bomb.fits").write_bytes(compress(bytes(1 << 24)))
        assert "hold more than" in message(tmp_path / "bomb.fits")
    (tmp_path / "zip.fits").write_bytes(b"PK\x03\x04" + bytes(100))
    assert "zip compression cannot be read; allowed: gzip, bzip2, xz, LZW" in message(tmp_path / "zip.fits")


def test_members_one_after_the_other_and_padding(tmp_path):
    raw = image_file(tmp_path / "plain.fits").read_bytes()
    for compress in (gzip.compress, bz2.compress, lzma.compress):
        (tmp_path / "two.fits").write_bytes(compress(raw[:5000]) + compress(raw[5000:]) + bytes(7))
        assert read(tmp_path / "two.fits", device="cpu").image.sum() == np.arange(1200).sum()


@pytest.mark.parametrize("cut", [1, 100, 2879, 2881, 3000, 5000])
def test_truncation_at_any_place(tmp_path, cut):
    path = image_file(tmp_path / "cut.fits", np.ones((40, 50), np.float32))
    raw = path.read_bytes()
    path.write_bytes(raw[:cut])
    said = message(path)
    assert "cut" in said or "truncated" in said or "not FITS" in said


def test_missing_padding_is_no_truncation(tmp_path):
    path = image_file(tmp_path / "short.fits")
    path.write_bytes(path.read_bytes()[: 2880 + 4800])
    assert read(path, device="cpu").image.sum() == np.arange(1200).sum()


def test_a_broken_extension_does_not_hide_a_good_image(tmp_path):
    path = tmp_path / "two.fits"
    fits.HDUList(
        [
            fits.PrimaryHDU(),
            fits.ImageHDU(np.ones((9, 8), np.float32), name="SCI"),
            fits.ImageHDU(np.ones((9, 8)), name="X"),
        ]
    ).writeto(path)
    path.write_bytes(path.read_bytes()[:-2880])
    assert read(path, device="cpu").image.sum() == 72
    assert "HDU 2 (X): data are truncated: 576 bytes expected, 0 present" in message(f"{path}[X]")
    assert "truncated" in inspect(path)["problem"][2]


def test_the_chosen_image_is_broken(tmp_path):
    path = tmp_path / "two.fits"
    fits.HDUList(
        [fits.PrimaryHDU(), fits.ImageHDU(np.ones((9, 8)), name="OTHER"), fits.ImageHDU(np.ones((9, 8)), name="SCI")]
    ).writeto(path)
    path.write_bytes(path.read_bytes()[:-2880])
    assert "HDU 2 (SCI): data are truncated" in message(path)  # and not silently the other one


def test_axis_cards(tmp_path):
    path = image_file(tmp_path / "axes.fits")
    assert "NAXIS1 = -40; an integer of at least 0 is needed" in message(
        patched(path, b"NAXIS1  =                   40", b"NAXIS1  =                  -40")
    )
    path = image_file(tmp_path / "huge.fits")
    said = message(patched(path, b"NAXIS2  =                   30", b"NAXIS2  =         999999999999"))
    assert "truncated: 159999999999840 bytes expected" in said


@pytest.mark.parametrize(
    ("card", "allowed"), [("BSCALE  = 'twice   '", "BSCALE = 'twice'"), ("BSCALE  =                  0.0", "BSCALE")]
)
def test_scaling_that_is_no_scaling(tmp_path, card, allowed):
    path = image_file(tmp_path / "scale.fits", np.ones((5, 6), np.int16), DUMMYKEY=1)
    raw = path.read_bytes()
    at = raw.index(b"DUMMYKEY")
    path.write_bytes(raw[:at] + card.encode().ljust(80) + raw[at + 80 :])
    assert allowed in message(path)


def test_repeated_scaling_uses_the_last(tmp_path):
    path = image_file(tmp_path / "twice.fits", np.ones((5, 6), np.int16), DUMMYKEY=1, DUMMYTWO=2)
    raw = path.read_bytes()
    for old, new in ((b"DUMMYKEY", "BZERO   =                 10.0"), (b"DUMMYTWO", "BZERO   =                 20.0")):
        at = raw.index(old)
        raw = raw[:at] + new.encode().ljust(80) + raw[at + 80 :]
    path.write_bytes(raw)
    exposure = read(path, device="cpu")
    assert np.all(exposure.image == 21)
    assert "BZERO is given 2 times; the last one is used" in exposure.notes["warnings"]


@pytest.mark.parametrize("bitpix", ["u1", "i2", "i4", "i8", "f4", "f8"])
@pytest.mark.parametrize("scaled", [False, True])
def test_every_stored_type_agrees_with_astropy(tmp_path, rng, bitpix, scaled):
    data = (rng.uniform(0, 100, (11, 13))).astype(bitpix)
    path = image_file(tmp_path / "type.fits", data)
    if scaled:
        with fits.open(path, mode="update", do_not_scale_image_data=True) as h:
            h[0].header["BSCALE"], h[0].header["BZERO"] = 0.5, -3.0
            if data.dtype.kind != "f":
                h[0].header["BLANK"] = int(data[0, 0])
    expected = fits.getdata(path)
    found = read(path, dtype="native", device="cpu").image
    assert found.dtype == expected.dtype.newbyteorder("=")
    assert np.array_equal(found, expected, equal_nan=expected.dtype.kind == "f")


@pytest.mark.parametrize("dtype", ["int8", "uint16", "uint32", "uint64"])
def test_unsigned_integers_keep_every_bit(tmp_path, rng, dtype):
    info = np.iinfo(dtype)
    data = rng.integers(info.min, info.max, (7, 9), dtype=dtype, endpoint=True)
    data[0, :2] = info.min, info.max
    found = read(image_file(tmp_path / "u.fits", data), dtype="native", device="cpu").image
    assert found.dtype == dtype
    assert np.array_equal(found, data)


@pytest.mark.parametrize("method", ["RICE_1", "GZIP_1", "GZIP_2", "PLIO_1", "HCOMPRESS_1"])
@pytest.mark.parametrize("tile", [(1, 40), (16, 16), (36, 40)])
def test_every_compression_and_tiling(tmp_path, rng, method, tile):
    if method == "HCOMPRESS_1" and min(tile) < 4:
        tile = (4, 40)
    data = rng.integers(0, 500, (36, 40)).astype(np.int32)
    path = compressed(tmp_path / "c.fits", data, compression_type=method, tile_shape=tile)
    assert np.array_equal(read(path, dtype="native", device="cpu").image, data)


def test_missing_zdither0_means_one(tmp_path, rng):
    data = rng.normal(100, 5, (20, 64)).astype(np.float32)
    path = compressed(tmp_path / "d.fits", data, compression_type="RICE_1", quantize_method=1, dither_seed=1)
    expected = read(path, device="cpu").image
    raw = path.read_bytes()
    at = raw.index(b"ZDITHER0=")
    path.write_bytes(raw[:at] + b"COMMENT no seed".ljust(80) + raw[at + 80 :])
    exposure = read(path, device="cpu")
    assert np.array_equal(exposure.image, expected)
    assert "ZDITHER0 is missing; 1 is used" in exposure.notes["warnings"]


@pytest.mark.parametrize(
    ("cards", "scale", "zero"),
    [({"BLANK": -32768}, 1, 0), ({"ZBLANK": -32768}, 1, 0), ({"BLANK": -32768, "ZBLANK": -32767}, 1, 0),
     ({"BLANK": -32768}, 0.5, 10), ({"ZBLANK": -32768}, 0.5, 10)],
)  # fmt: skip
def test_blanks_of_compressed_integers(tmp_path, rng, cards, scale, zero):
    """Compared in the stored domain, before scaling, whichever card says so."""
    stored = rng.integers(-1000, 1000, (20, 30)).astype(np.int16)
    stored[3, 4] = -32768
    path = compressed(tmp_path / "b.fits", stored, compression_type="RICE_1")
    with open_file(path) as source:
        hdu = source.hdus[1]
    header = hdu.header.copy()
    header.update(cards)
    if scale != 1:
        header["BSCALE"], header["BZERO"] = scale, zero
    raw = path.read_bytes()
    path.write_bytes(raw[: hdu.start] + header.tostring().encode() + raw[hdu.data :])
    exposure = read(path, device="cpu")
    expected = stored * float(scale) + zero
    expected[3, 4] = np.nan
    assert np.array_equal(exposure.image, expected.astype(np.float32), equal_nan=True)
    assert exposure.mask[3, 4] == exposure.planes.bit("NO_DATA")


def rice_file(path):
    return compressed(path, np.arange(64 * 40, dtype=np.int16).reshape(64, 40), compression_type="RICE_1")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"NAXIS2  =                   64", b"NAXIS2  =                   63", ["NAXIS2 = 63 tiles; 64 are needed"]),
        (b"ZNAXIS1 =                   40", b"ZNAXIS1 =                   -1", ["ZNAXIS1 = -1"]),
        (b"ZBITPIX =                   16", b"ZBITPIX =                   17", ["ZBITPIX = 17", "-64"]),
        (b"'BLOCKSIZE'", b"'BLOCKSIZE'", []),
    ],
)
def test_structure_of_tiles(tmp_path, old, new, words):
    path = patched(rice_file(tmp_path / "t.fits"), old, new)
    if not words:
        assert read(path, dtype="native", device="cpu").image[63, 39] == 64 * 40 - 1
        return
    said = message(path)
    for word in [*words, "HDU 1"]:
        assert word in said


def heap_of(path):
    with open_file(path) as source:
        hdu = source.hdus[1]
    return hdu.data, hdu.data + hdu.header["NAXIS1"] * hdu.header["NAXIS2"]


def test_hcompress_stream_of_another_size(tmp_path, rng):
    path = compressed(
        tmp_path / "h.fits",
        rng.integers(0, 99, (16, 16)).astype(np.int16),
        compression_type="HCOMPRESS_1",
        tile_shape=(16, 16),
    )
    raw = bytearray(path.read_bytes())
    _, heap = heap_of(path)
    assert raw[heap : heap + 2] == b"\xdd\x99"
    raw[heap + 2 : heap + 6] = (1 << 20).to_bytes(4, "big")
    path.write_bytes(raw)
    assert "tile 0: the stream holds 1048576 x 16 pixels; 16 x 16 are needed" in message(path)


def test_gzip_tile_of_another_size(tmp_path, rng):
    path = compressed(tmp_path / "g.fits", rng.integers(0, 99, (4, 50)).astype(np.int16), compression_type="GZIP_1")
    raw = bytearray(path.read_bytes())
    with fits.open(path, disable_image_compression=True) as h:
        count = len(h[1].data["COMPRESSED_DATA"][0])
    _, heap = heap_of(path)
    raw[heap + count - 4 : heap + count] = (1 << 30).to_bytes(4, "little")
    path.write_bytes(raw)
    assert "tile 0: inflates to 1073741824 bytes; 50 pixels" in message(path)


def test_tile_without_data(tmp_path):
    path = rice_file(tmp_path / "t.fits")
    raw = bytearray(path.read_bytes())
    rows, _ = heap_of(path)
    raw[rows + 8 * 5 : rows + 8 * 5 + 4] = b"\x00" * 4
    path.write_bytes(raw)
    assert "tile 5 of 64 hold no data in any column" in message(path)


def test_random_damage_never_raises_anything_else(tmp_path, rng):
    data = rng.integers(0, 300, (24, 30)).astype(np.int16)
    originals = []
    for method in ("RICE_1", "GZIP_2", "PLIO_1", "HCOMPRESS_1"):
        buffer = io.BytesIO()
        tile = (24, 30) if method == "HCOMPRESS_1" else (1, 30)
        hdu = fits.CompImageHDU(data, compression_type=method, tile_shape=tile)
        fits.HDUList([fits.PrimaryHDU(), hdu]).writeto(buffer)
        originals.append(buffer.getvalue())
    outcomes = set()
    path = tmp_path / "damaged.fits"
    for _ in range(200):
        raw = bytearray(originals[rng.integers(len(originals))])
        for at in rng.integers(0, len(raw), rng.integers(1, 12)):
            raw[at] = rng.integers(256)
        path.write_bytes(raw)
        try:
            read(path, device="cpu")
            outcomes.add("read")
        except InputError as e:
            assert "\n" not in str(e)
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_naming_an_hdu(tmp_path):
    path = tmp_path / "m.fits"
    hdus = [fits.PrimaryHDU()] + [
        fits.ImageHDU(np.full((4, 5), i, np.float32), name="SCI", ver=i) for i in (1, 2)
    ] + [fits.BinTableHDU.from_columns([fits.Column("a", "E", array=[1.0])], name="CAT")]  # fmt: skip
    fits.HDUList(hdus).writeto(path)
    for spelling in (f"{path}[2]", f"{path}[sci,2]", f"{path}[SCI, 2]"):
        assert read(spelling, device="cpu").image[0, 0] == 2
    assert read(path, image="SCI,2", device="cpu").image[0, 0] == 2
    chosen = read(path, device="cpu")
    assert chosen.image[0, 0] == 1
    assert any("2 science images in the file" in w for w in chosen.notes["warnings"])
    assert "no HDU 'ERR'; it has [0] image without pixels; [1] SCI image (4, 5)" in message(f"{path}[ERR]")
    assert "no HDU '7'" in message(path, image=7)
    assert "HDU 3 (CAT): is a table; an image is needed" in message(f"{path}[CAT]")
    assert "HDU 0: has no pixel data" in message(f"{path}[0]")


def test_a_file_with_brackets_in_its_name(tmp_path):
    path = image_file(tmp_path / "a[1].fits")
    assert split_extension(str(path)) == (str(path), None)
    odd = image_file(tmp_path / "b.fits[SCI]")
    assert split_extension(str(odd)) == (str(odd), None)
    assert split_extension(f"{path}[SCI]") == (str(path), "SCI")


def test_inspect_refuses_an_extension_that_is_not_there(tmp_path):
    path = tmp_path / "a.fits"
    fits.HDUList([fits.PrimaryHDU(), fits.ImageHDU(np.ones((4, 5), np.float32), name="SCI")]).writeto(path)
    assert "image" in list(inspect(f"{path}[SCI]")["role"])
    with pytest.raises(InputError, match="9"):
        inspect(f"{path}[9]")


@pytest.mark.parametrize("left", [0, 1, 479])
def test_a_file_cut_in_the_padding_is_said(tmp_path, left, caplog):
    path = tmp_path / "cut.fits"
    first, second = (
        fits.PrimaryHDU(np.ones((20, 30), np.float32)),
        fits.ImageHDU(np.ones((20, 30), np.float32), name="VAR"),
    )
    fits.HDUList([first, second]).writeto(path)
    with open_file(path) as whole:
        assert whole.oddities == []
    path.write_bytes(path.read_bytes()[: 2880 + 2400 + left])
    read(path)
    said = [r.getMessage() for r in caplog.records if "before the block of HDU 0" in r.getMessage()]
    assert len(said) == 1 and said[0].startswith(f"{path}: the file ends "), "no HDU but that in the line"
    with open_file(path) as cut:
        assert len(cut.hdus) == 1
        assert [o for o in cut.oddities if f"ends {480 - left} bytes before the block of HDU 0" in o]
