# SPDX-License-Identifier: BSD-3-Clause
"""Gzip members of tiles: whole by zlib's judgement, smaller than its own, and codes of limited length that are good."""

import gzip
import heapq
import zlib

import numpy as np
import pytest

from skydelta.kernels.cpu.deflate import _code_lengths, _distance, _length
from skydelta.kernels.cpu.reference_inflate import DISTANCES, LENGTHS
from skydelta.kernels.deflate import CHUNK, LONGEST, gzip_encode


def raw_of(pixels, shuffle):
    """Big-endian bytes, or byte planes."""
    size = pixels.dtype.itemsize
    raw = np.frombuffer(pixels.astype(pixels.dtype.newbyteorder(">")).tobytes(), np.uint8).reshape(-1, size)
    return (raw.T if shuffle else raw).tobytes()


def members(pixels, tile, shuffle):
    """What `gzip_encode` makes of an image whose tiles are whole rows."""
    streams, sizes = gzip_encode(pixels, tile, np.ones(-(-len(pixels) // tile[0]), bool), shuffle)
    return [part.tobytes() for part in np.split(streams, np.cumsum(sizes)[:-1])]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("width", [1, 5, 6, 7, 258, 259, 260, 264, 517, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 9])
def test_repeats_of_every_length(rng, shuffle, width):
    flat = np.full(width, 0x01020304, np.int32)
    broken = flat.copy()
    broken[rng.integers(0, width, 3)] = -9
    pixels = np.stack([flat, broken, rng.integers(-(2**31), 2**31, width, np.int32), np.arange(width, dtype=np.int32)])
    for row, member in zip(pixels, members(pixels, (1, width), shuffle), strict=True):
        assert gzip.decompress(member) == raw_of(row, shuffle)
    assert len(members(pixels[:1], (1, width), shuffle)[0]) < 18 + 4 * 40 * (1 + width // CHUNK)


@pytest.mark.parametrize("tile", [(1, 4096), (16, 4096)])
@pytest.mark.parametrize(
    ("kind", "shuffle"),
    [("float32", True), ("float64", True), ("uint16", True), ("int32 mask", True), ("counts", True), ("empty", False)],
)
def test_images_are_no_larger_than_by_zlib(rng, figure, kind, shuffle, tile):
    """Level 1, the byte planes of every tile in one stream."""
    sky = rng.normal(1000, 30, (64, 4096))
    sky[rng.integers(0, 64, 500), rng.integers(0, 4096, 500)] += rng.exponential(5000, 500)
    if kind == "int32 mask":
        pixels = np.where(sky > 1150, 2, 0).astype(np.int32)
        pixels[20:23] = 8
    elif kind == "counts":
        pixels = np.rint(sky).astype(np.float32)
    elif kind == "empty":
        pixels = np.where(rng.random(sky.shape) < 1e-4, sky, np.nan).astype(np.float32)
    else:
        pixels = sky.astype(kind)
    theirs, ours = 0, members(pixels, tile, shuffle)
    for start, member in zip(range(0, 64, tile[0]), ours, strict=True):
        raw = raw_of(pixels[start : start + tile[0]], shuffle)
        assert gzip.decompress(member) == raw
        coder = zlib.compressobj(1, zlib.DEFLATED, 31)
        theirs += len(coder.compress(raw) + coder.flush())
    figure(f"bytes over those of zlib, {kind} {tile}", sum(map(len, ours)) / theirs, 1.0)


def huffman_bits(counts):
    """Bits of all symbols by a code of any lengths: the sum of the inner nodes."""
    heap, total = [n for n in counts.tolist() if n], 0
    heapq.heapify(heap)
    while len(heap) > 1:
        inner = heapq.heappop(heap) + heapq.heappop(heap)
        total += inner
        heapq.heappush(heap, inner)
    return total


@pytest.mark.parametrize("limit", [7, 15])
def test_codes_are_complete_and_short(rng, figure, limit):
    worst = 0.0
    fibonacci = [1, 1]
    while len(fibonacci) < 19:
        fibonacci.append(sum(fibonacci[-2:]))
    n = 19 if limit == 7 else 286
    cases = [np.array(fibonacci + [0] * (n - 19)), np.array([0, 5] + [0] * (n - 2)), np.ones(n, np.int64)]
    cases += [rng.geometric(10.0 ** rng.uniform(-4, -0.1), n) - 1 for _ in range(200)]
    for counts in cases:
        lengths = np.empty(n, np.uint8)
        _code_lengths(counts.astype(np.int64), limit, lengths)
        assert ((lengths > 0) == (counts > 0)).all()
        assert lengths.max() <= limit
        if (counts > 0).sum() > 1:
            assert sum(2.0 ** -float(v) for v in lengths if v) == 1
            bits, best = int((counts * lengths).sum()), huffman_bits(counts)
            assert bits >= best
            if counts is not cases[0]:
                worst = max(worst, bits / best - 1)
    lengths = np.empty(n, np.uint8)
    _code_lengths(cases[0].astype(np.int64), limit, lengths)
    assert lengths.max() == limit  # Huffman's own has 18 bits
    figure(f"bits of codes of {limit} bits over those of any length, less 1", worst, 0.05)


def test_symbols_are_those_of_the_standard():
    """Equation-free tables of RFC 1951, 3.2.5."""
    for values, found, (first, more), base in (
        (range(3, LONGEST + 1), _length, LENGTHS, 257),
        (range(1, 32769), _distance, DISTANCES, 0),
    ):
        for n in values:
            symbol, bits, rest = found(n)
            assert first[symbol - base] + rest == n
            assert bits == more[symbol - base]
            assert rest < 1 << bits or bits == rest == 0
