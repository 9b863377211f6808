# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``inflate``: streams of every kind of block, sound and damaged; the shape says how many, and
about how much they give."""

import zlib

import numpy as np

SHAPES = [(1, 0), (9, 3), (40, 60), (30, 400), (9, 3000)]
HOST = ("offset", "length", "place", "size", "total")
STRATEGIES = (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE)


def stream(rng, size):
    """A stream, and what it gives."""
    kind = int(rng.integers(6))
    if kind == 0:
        raw = rng.integers(0, 256, size, np.uint8)
    elif kind == 1:
        raw = np.full(size, rng.integers(256), np.uint8)
    elif kind == 2:  # codes of many lengths, some longer than a look-up
        raw = np.minimum(rng.geometric(0.3, size) ** 2, 255).astype(np.uint8)
    elif kind == 3:  # repeated pieces, near and far
        piece = rng.integers(0, 256, int(rng.integers(1, 40)), np.uint8)
        raw = np.resize(piece, size) ^ (rng.random(size) < 0.02).astype(np.uint8)
    else:
        raw = np.clip(rng.normal(100, rng.choice([1, 20]), size), 0, 255).astype(np.uint8)
    raw = raw.tobytes()
    coder = zlib.compressobj(int(rng.choice([0, 1, 6, 9])), zlib.DEFLATED, -15, 9, int(rng.choice(STRATEGIES)))
    cut = int(rng.integers(0, size + 1))
    out = coder.compress(raw[:cut])
    if rng.integers(3) == 0:  # more blocks, one of them empty
        out += coder.flush(int(rng.choice([zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH, zlib.Z_PARTIAL_FLUSH])))
    return out + coder.compress(raw[cut:]) + coder.flush(), raw


def make(rng, shape):
    n, about = shape
    streams, sizes = [], []
    for _ in range(n):
        coded, raw = stream(rng, max(about - int(rng.integers(9)), 0))
        coded, size = bytearray(coded), len(raw)
        damage = int(rng.integers(8))
        if damage in (0, 1, 2):
            for _ in range(damage + 1):
                coded[int(rng.integers(len(coded)))] ^= 1 << int(rng.integers(8))
        elif damage == 3 and rng.integers(2):
            coded = coded[: int(rng.integers(len(coded)))]
        elif damage == 4 and rng.integers(2):
            coded += b"\0"
        elif damage == 5 and rng.integers(2):
            size = max(size + int(rng.choice([-1, 1])), 0)
        elif damage == 6 and rng.integers(2):
            coded = bytearray(rng.integers(0, 256, len(coded), np.uint8).tobytes())
        streams.append(bytes(coded))
        sizes.append(size)
    gaps = rng.integers(0, 4, n)
    length, size = np.array([len(s) for s in streams], np.int64), np.array(sizes, np.int64)
    offset, room = np.cumsum(length + gaps) - length, size + rng.integers(0, 9, n)
    # no byte behind the last stream, nor behind the last place: what a kernel does there shows
    room[-1] = size[-1]
    data = np.zeros(int(offset[-1] + length[-1]), np.uint8)
    for at, coded in zip(offset, streams, strict=True):
        data[at : at + len(coded)] = np.frombuffer(coded, np.uint8)
    place = np.cumsum(room) - room
    return {"data": data, "offset": offset, "length": length, "place": place, "size": size, "total": int(room.sum())}
