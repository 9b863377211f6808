# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``crc32``: pieces of random bytes; the shape says how many, and about how long they are."""

import numpy as np

SHAPES = [(1, 0), (9, 3), (64, 40), (7, 513), (5, 4096), (3, 70_001), (2, 131_072)]
HOST = ("offset", "length")


def make(rng, shape):
    n, size = shape
    length = np.maximum(size - np.arange(n) % 9, 0)
    room = -(-length // 4) * 4 + 4 * rng.integers(0, 3, n)
    offset = np.cumsum(room) - room
    # no byte behind the last piece: what a kernel reads there shows
    data = rng.integers(0, 256, int(offset[-1] + length[-1]), np.uint8)
    return {"data": data, "offset": offset.astype(np.int64), "length": length.astype(np.int64)}
