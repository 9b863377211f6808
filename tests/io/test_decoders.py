# SPDX-License-Identifier: BSD-3-Clause
"""The decode front itself: mixed tables of tiles against the plain reference, faults, windows, threads."""

import gzip

import numpy as np
import pytest
from astropy.io.fits.hdu.compressed import _codecs
from support_tiles import big, table

from skydelta.kernels import decode as front
from skydelta.kernels.backend import CPU
from skydelta.kernels.cpu import reference_decode
from skydelta.kernels.decode import Form, decode, lossless_tiles
from skydelta.kernels.dither import dither_table

STORED = ["uint8", "int16", "int32", "int64", "float32", "float64"]


def both(heap, tiles, form, dtype, shape, corner):
    """Image, mask and counts of the twin with one and two threads and of the reference."""
    out = []
    for run in (1, 2, None):
        image, mask = np.full(shape, 3, dtype), np.full(shape, 1, np.int32)
        arguments = (image, heap, tiles, form)
        if run is None:
            done = reference_decode.decode(*arguments, corner, mask, 4, None)
        else:
            done = decode(*arguments, corner=corner, mask=mask, mask_bit=4, threads=run)
        assert not done.status.any()
        out.append((image, mask, done.nulls, done.missing, done.infinite))
    return out


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("seed", range(4))
def test_twin_against_the_plain_reference(stored, seed):
    rng = np.random.default_rng((seed, STORED.index(stored)))
    shape = tuple(rng.integers(20, 60, 2))
    heap, tiles, form = table(rng, stored, shape, tuple(rng.integers(1, 30, 2)), rice_block=int(rng.choice([16, 32])))
    integer = not stored.startswith("float")
    forms = [form, Form(**{**vars(form), "scale": -0.3, "zero": 17.5}), Form(**{**vars(form), "exact_zero": True})]
    if integer:
        forms += [Form(**{**vars(form), "flip": True}), Form(**{**vars(form), "blank": 3})]
    for f in forms:
        nullable = integer and (f.blank is not None or bool(tiles.has_blank.any()))
        for dtype in {"float32", f.native(nullable), f.native(False)}:
            for corner, window in (((0, 0), shape), ((5, 9), (9, 7)), ((-3, 4), (shape[0] + 9, shape[1]))):
                one, two, plain = both(heap, tiles, f, dtype, window, corner)
                for a, b, c in zip(one, two, plain, strict=True):
                    assert a.tobytes() == b.tobytes()
                    assert np.array_equal(a, c, equal_nan=a.dtype.kind == "f"), (f, dtype, corner)


def test_null_pixels_are_flagged_in_the_mask():
    stored = np.arange(12, dtype=np.int16).reshape(3, 4)
    heap = np.frombuffer(big(stored), np.uint8).copy()
    tiles = lossless_tiles(np.array([0]), np.array([24]), front.RAW, np.array([[0, 0]]), np.array([[3, 4]]))
    out, mask = np.zeros((3, 4), np.float32), np.full((3, 4), 2, np.int32)
    done = decode(out, heap, tiles, Form("int16", blank=6), mask=mask, mask_bit=8)
    assert done.nulls.tolist() == [1]
    assert np.isnan(out[1, 2])
    assert np.isnan(out).sum() == 1
    assert np.array_equal(mask, np.where(stored == 6, 10, 2))


def one_tile(codec, stream, pixels, stored="int32", **form):
    heap = np.frombuffer(bytes(stream), np.uint8).copy()
    tiles = lossless_tiles(np.array([0]), np.array([len(heap)]), codec, np.array([[0, 0]]), np.array([pixels]))
    out = np.full(pixels, 77, stored)
    status = int(decode(out, heap, tiles, Form(stored, **form)).status[0])
    return status, out


def rice(values, nbytes=4):
    return bytes(
        _codecs.Rice1(blocksize=32, bytepix=nbytes, tilesize=len(values)).encode(np.array(values, f"i{nbytes}"))
    )


def hcompress(values):
    return bytes(_codecs.HCompress1(scale=0, smooth=0, bytepix=8, nx=8, ny=8).encode(values.astype("i8")))


def test_faults_of_rice():
    good = rice([5, 9, 1000, -3, 7] * 13)
    assert one_tile(front.RICE, good, (1, 65))[0] == 0
    assert one_tile(front.RICE, good + bytes(9), (1, 65))[0] == 0  # padding
    assert one_tile(front.RICE, good + bytes(200), (1, 65))[0] == front.TRAILING
    for cut in range(len(good)):
        assert one_tile(front.RICE, good[:cut], (1, 65))[0] == front.SHORT
    assert one_tile(front.RICE, b"\0\0\0\0\xf8" + bytes(99), (1, 65))[0] == front.SELECTOR
    status, out = one_tile(front.RICE, b"\0\0\0\0\x10" + bytes(10**6), (1, 65))
    assert status == front.SHORT  # a quotient of eight million bits
    assert np.all(out == 77)


def test_faults_of_gzip():
    good = gzip.compress(big(np.arange(65, dtype=np.int32)), mtime=0)
    assert one_tile(front.GZIP1, good, (1, 65))[0] == 0
    assert one_tile(front.GZIP1, good, (1, 64))[0] == front.SIZE
    assert one_tile(front.GZIP1, b"xx" + good[2:], (1, 65))[0] == front.MAGIC
    assert one_tile(front.GZIP1, good[:40] + b"\xff" * 9 + good[49:], (1, 65))[0] == front.DEFLATE
    assert one_tile(front.GZIP1, good[:-8] + b"\0\0\0\0" + good[-4:], (1, 65))[0] == front.DEFLATE  # CRC
    bomb = gzip.compress(bytes(10**8), mtime=0)
    assert one_tile(front.GZIP1, bomb[:-4] + (260).to_bytes(4, "little"), (1, 65))[0] != 0


def test_faults_of_line_lists():
    def words(*numbers):
        return np.array(numbers, ">i2").tobytes()

    assert one_tile(front.PLIO, words(0, 7, -100, 9, 0, 0, 0, 0x4003, 0x0002), (1, 5))[1].tolist() == [[1, 1, 1, 0, 0]]
    assert one_tile(front.PLIO, words(0, 7, -100, 9, 0, 0, 0, 0x4003, 0x5004), (1, 6))[1].tolist() == [
        [1, 1, 1, 0, 0, 0]
    ]
    assert one_tile(front.PLIO, words(0, 7, -100, 9, 0, 0, 0, 0x6003, 0x5002), (1, 6))[1].tolist() == [
        [4, 0, 4, 0, 0, 0]
    ]
    for wrong in ((0, 7), (0, 7, -100, 900, 0, 0, 0), (0, -7, -100, 9, 0, 0, 0, 0, 0), (0, 7, -100, 8, 0, 0, 0, 0x1003),
                  (0, 7, -100, 8, 0, 0, 0, -5)):  # fmt: skip
        assert one_tile(front.PLIO, words(*wrong), (1, 5))[0] == front.LINES


def test_faults_of_hcompress():
    values = np.random.default_rng(1).integers(0, 300, (8, 8))
    good = hcompress(values)
    status, out = one_tile(front.HCOMPRESS, good, (8, 8))
    assert status == 0
    assert np.array_equal(out, values)
    assert one_tile(front.HCOMPRESS, good, (8, 9))[0] == front.SIZE
    assert one_tile(front.HCOMPRESS, b"\0" + good[1:], (8, 8))[0] == front.MAGIC
    assert one_tile(front.HCOMPRESS, good[:22] + b"\xff" + good[23:], (8, 8))[0] == front.PLANES
    assert one_tile(front.HCOMPRESS, good[:25] + b"\x55" + good[26:], (8, 8))[0] == front.CODE
    for cut in range(25, len(good) - 1):
        assert one_tile(front.HCOMPRESS, good[:cut], (8, 8))[0] in (front.SHORT, front.CODE)


def test_extents_are_checked_against_the_heap():
    heap = np.zeros(64, np.uint8)
    for offset, length in ((-1, 16), (60, 16), (2**62, 16), (0, -4), (0, 2**62), (2**63 - 8, 16)):
        tiles = lossless_tiles(
            np.array([offset]), np.array([length]), front.RAW, np.array([[0, 0]]), np.array([[1, 4]])
        )
        out = np.full((1, 4), 7, np.int32)
        assert decode(out, heap, tiles, Form("int32")).status.tolist() == [front.OUTSIDE]
        assert np.all(out == 7)


def test_a_broken_tile_leaves_the_others_alone():
    rng = np.random.default_rng(3)
    heap, tiles, form = table(rng, "int32", (40, 40), (8, 8))
    expected, out = np.full((40, 40), -9, np.int32), np.full((40, 40), -9, np.int32)
    reference_decode.decode(expected, heap, tiles, form, (0, 0), None, 0, None)
    tiles.length[[3, 11]] = 10**9
    status = decode(out, heap, tiles, form).status
    assert np.flatnonzero(status).tolist() == [3, 11]
    for t in (3, 11):
        box = tuple(slice(o, o + e) for o, e in zip(tiles.origin[t], tiles.extent[t], strict=True))
        assert np.all(out[box] == -9)
        expected[box] = -9
    assert np.array_equal(out, expected)


def test_mistakes_of_the_caller_raise():
    heap = np.zeros(64, np.uint8)
    tiles = lossless_tiles(np.array([0]), np.array([16]), front.RAW, np.array([[0, 0]]), np.array([[1, 4]]))
    for out, form, words in (
        (np.zeros((1, 4), np.int16), Form("int32"), "allowed"),
        (np.zeros(4, np.int32), Form("int32"), "axes"),
        (np.zeros((1, 8), np.int32)[:, ::2], Form("int32"), "contiguous"),
        (np.zeros((1, 4), np.int32), Form("int32", rice_bytes=3), "Rice"),
    ):
        with pytest.raises(ValueError, match=words):
            decode(out, heap, tiles, form)


def test_random_numbers():
    table = dither_table(CPU)
    x = 1
    for _ in range(10000):
        x = 16807 * x % 2147483647
    assert x == 1043618065  # FITS 4.0, appendix I
    assert table[-1] == np.float32(x / 2147483647)
