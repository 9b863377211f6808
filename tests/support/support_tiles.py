# SPDX-License-Identifier: BSD-3-Clause
"""Tables of tiles to decode, coded by astropy, gzip and NumPy."""

import gzip
import zlib

import numpy as np
from astropy.io.fits.hdu.compressed import _codecs

from skydelta.kernels import decode as front
from skydelta.kernels.decode import EXACT_ZERO, LOSSLESS, NO_DITHER, Form, Tiles


def big(values):
    return values.astype(values.dtype.newbyteorder(">")).tobytes()


def encoded(codec, values, form):
    """The stream of a tile of stored values."""
    if codec == front.RICE:
        return bytes(
            _codecs.Rice1(blocksize=form.rice_block, bytepix=form.rice_bytes, tilesize=values.size).encode(
                values.astype(f"i{form.rice_bytes}")
            )
        )
    if codec == front.PLIO:
        words = bytes(_codecs.PLIO1(tilesize=values.size).encode(values.astype("i4")))
        return big(np.frombuffer(words, "i2"))
    if codec == front.GZIP2:
        return gzip.compress(np.frombuffer(big(values), np.uint8).reshape(-1, values.itemsize).T.tobytes(), mtime=0)
    return gzip.compress(big(values), mtime=0) if codec == front.GZIP1 else big(values)


def table(rng, stored, shape, tile, *, rice_bytes=4, rice_block=32):
    """A random image of tiles of every codec that fits its type, in a shuffled heap with holes."""
    form = Form(stored, rice_bytes=rice_bytes, rice_block=rice_block)
    grid = [(i, j) for i in range(0, shape[0], tile[0]) for j in range(0, shape[1], tile[1])]
    rows, blobs = [], []
    for i, j in grid:
        extent = (min(tile[0], shape[0] - i), min(tile[1], shape[1] - j))
        size = extent[0] * extent[1]
        quantized = stored.startswith("float") and rng.random() < 0.7
        if quantized:
            values = rng.integers(-100, 100, size).astype("int32")
            values[rng.random(size) < 0.1] = EXACT_ZERO
            values[rng.random(size) < 0.1] = -7
        elif stored.startswith("float"):
            values = rng.normal(0, 1, size).astype(stored)
            values[rng.random(size) < 0.1] = np.nan
            values[rng.random(size) < 0.1] = rng.choice([np.inf, -np.inf])
            values[rng.random(size) < 0.1] = -0.0
        else:
            values = rng.integers(0, 100, size).astype(stored)
        codecs = [front.RAW, front.GZIP1, front.GZIP2]
        if values.dtype.kind != "f" and values.itemsize <= 4:
            codecs.append(front.RICE)
        if values.dtype.kind != "f" and not quantized:
            codecs.append(front.PLIO)
            values[rng.random(size) < 0.8] = 0
        codec = int(rng.choice(codecs))
        dither = LOSSLESS if not quantized else int(rng.choice([NO_DITHER, 0, 9999, rng.integers(10000)]))
        rows.append(((i, j), extent, codec, dither, rng.uniform(0.1, 9), rng.normal(), -7, rng.integers(2)))
        blobs.append(encoded(codec, values, form))
    order = rng.permutation(len(blobs))
    offset, heap = np.zeros(len(blobs), np.int64), bytearray(b"\xff" * 3)
    for k in order:
        offset[k] = len(heap)
        heap += blobs[k] + bytes(rng.integers(0, 4))
    columns = list(zip(*rows, strict=True))
    tiles = Tiles(
        offset, np.array([len(b) for b in blobs], np.int64), np.array(columns[2], np.uint8),
        np.array(columns[0], np.int64), np.array(columns[1], np.int64), np.array(columns[3], np.int32),
        np.array(columns[4]), np.array(columns[5]), np.array(columns[6], np.int64), np.array(columns[7], np.uint8),
    )  # fmt: skip
    return np.frombuffer(bytes(heap), np.uint8).copy(), tiles, form


def damaged_rows(rng, rows, pixels):
    """Rows of an image, each a tile with damage of its own: heap, tiles, form.

    Most are Rice-coded, by one of a few sound streams in which bits are flipped, bytes overwritten, or which are cut or
    run on; some are raw; some lie where they cannot.
    """
    nbytes, block = int(rng.choice([1, 2, 4])), int(rng.choice([16, 32]))
    stored = {1: "uint8", 2: "int16", 4: str(rng.choice(["int32", "float32"]))}[nbytes]
    form = Form(stored, rice_block=block, rice_bytes=nbytes)
    limits = np.iinfo(f"i{nbytes}")
    streams = []
    for spread in (0, 0.7, 5, 50, 2000, 1e9):
        values = np.clip(rng.normal(0, spread, pixels), limits.min, limits.max * 0.99).astype(f"i{nbytes}")
        values[pixels // 2 :: 37] = rng.integers(limits.min, limits.max, len(values[pixels // 2 :: 37]))
        streams.append(np.frombuffer(encoded(front.RICE, values, form), np.uint8))
    parts, length = [], np.zeros(rows, np.int64)
    for i, kind in enumerate(rng.integers(0, 8, rows)):
        stream = streams[rng.integers(len(streams))].copy()
        at = int(rng.integers(len(stream)))
        if kind == 0:
            stream = stream[: rng.integers(0, len(stream) + 1)]
        elif kind == 1:
            stream[at : at + int(rng.integers(1, 40))] = rng.integers(2) * 255
        elif kind == 2:
            stream[at:] = rng.integers(0, 256, len(stream) - at)
        elif kind == 3:
            stream = np.concatenate([stream, rng.integers(0, 256, rng.integers(0, 30)).astype(np.uint8)])
        elif kind < 7:
            where = rng.integers(0, len(stream), rng.integers(1, 4))
            stream[where] ^= (1 << rng.integers(0, 8, len(where))).astype(np.uint8)
        parts.append(stream)
        length[i] = len(stream)
    origin = np.stack([np.arange(rows), np.zeros(rows, int)], axis=1).astype(np.int64)
    extent = np.tile(np.array([[1, pixels]], np.int64), (rows, 1))
    codec = np.where(rng.random(rows) < 0.1, front.RAW, front.RICE).astype(np.uint8)
    heap = np.concatenate(parts)
    offset = np.cumsum(length) - length
    wild = np.flatnonzero(rng.random(rows) < 0.02)
    for column in (offset, length):
        values = [-1, 0, 2**31, 2**62, -(2**63), heap.size, heap.size - 3, heap.size + 1]
        hit = wild[rng.random(len(wild)) < 0.6]
        column[hit] = rng.choice(values, len(hit))
    long = (codec == front.RAW) & (length > 4 * pixels) & (offset + 4 * pixels < heap.size)
    length[long] = rng.choice([1, 2, 4], long.sum()) * pixels
    quantised = stored == "float32"
    tiles = Tiles(
        offset, length, codec, origin, extent,
        rng.integers(0, 10000, rows).astype(np.int32) if quantised else np.full(rows, LOSSLESS, np.int32),
        rng.uniform(0.1, 3, rows), rng.normal(0, 10, rows), np.full(rows, 3, np.int64),
        np.full(rows, int(quantised), np.uint8),
    )  # fmt: skip
    return heap, tiles, form


def member(data, **options):
    """A gzip member with the header that zlib gives it."""
    coder = zlib.compressobj(wbits=31, **options)
    return coder.compress(data) + coder.flush()


def damaged_members(rng, rows, pixels, width=4):
    """Rows of an image, each a GZIP_1 or GZIP_2 tile, most with damage of its own: heap, tiles, form, sound rows.

    Bits are flipped in header, stream and trailer, streams cut, run on, joined, exchanged, or made to reach back before
    their tile; some have a name in their header, some lie where they cannot.
    """
    stored = {1: "uint8", 2: "int16", 4: str(rng.choice(["int32", "float32"])), 8: "float64"}[width]
    original = rng.normal(100, rng.uniform(1, 40), (rows, pixels)).astype(f"i{width}")
    codec = np.where(rng.random(rows) < 0.5, front.GZIP1, front.GZIP2).astype(np.uint8)
    levels = ({"level": 1}, {"level": 9}, {"level": 0}, {"strategy": zlib.Z_FIXED}, {"strategy": zlib.Z_HUFFMAN_ONLY})
    parts = []
    for i, kind in enumerate(rng.integers(0, 14, rows)):
        planes = original[i].astype(f">i{width}").view(np.uint8).reshape(-1, width)
        data = (planes if codec[i] == front.GZIP1 else planes.T).tobytes()
        stream = bytearray(member(data, **levels[rng.integers(len(levels))]))
        at = int(rng.integers(len(stream)))
        if kind < 5:
            low, high = ((0, len(stream)), (0, len(stream)), (10, 10 + len(stream) // 4), (0, 10), (-10, 0))[kind]
            for where in rng.integers(low, max(high, low + 1), rng.integers(1, 3)):
                stream[where] ^= 1 << int(rng.integers(8))
        elif kind == 5:
            del stream[at:]
        elif kind == 6:
            stream += rng.integers(0, 256, rng.integers(1, 30)).astype(np.uint8).tobytes()
        elif kind == 7:
            stream = stream + member(data)
        elif kind == 8:
            stream[3:10] = bytes([8]) + bytes(6) + b"tile\0"
        elif kind == 9:  # distances that lead to before the tile
            far = zlib.compressobj(9, zlib.DEFLATED, -15, zdict=data)
            stream = stream[:10] + far.compress(data) + far.flush() + stream[-8:]
        elif kind == 10:  # more, or fewer, than the trailer says
            stream = bytearray(member(data * 3 if rng.integers(2) else data[: len(data) // 2])[:-8]) + stream[-8:]
        elif kind == 11:
            stream[at:] = stream[-8:]
        parts.append(bytes(stream))
    length = np.array([len(p) for p in parts], np.int64)
    heap = np.frombuffer(b"".join(parts), np.uint8).copy()
    offset = np.cumsum(length) - length
    wild = rng.random(rows) < 0.02
    offset[wild] = rng.choice([-1, 2**62, -(2**63), heap.size, heap.size - 3], wild.sum())
    origin = np.stack([np.arange(rows), np.zeros(rows, int)], axis=1).astype(np.int64)
    tiles = front.lossless_tiles(offset, length, 0, origin, np.tile([[1, pixels]], (rows, 1)))
    tiles.codec[:] = codec
    return heap, tiles, Form(stored), original.view(stored)
