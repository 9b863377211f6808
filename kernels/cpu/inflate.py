# SPDX-License-Identifier: BSD-3-Clause
"""Twin of the deflate streams: zlib."""

from __future__ import annotations

import zlib

import numpy as np


def inflate(
    data: np.ndarray, offset: np.ndarray, length: np.ndarray, place: np.ndarray, size: np.ndarray, total: int
) -> tuple[np.ndarray, np.ndarray]:
    out, status = np.zeros(total, np.uint8), np.ones(len(offset), np.int32)
    for t, (a, n, to, most) in enumerate(zip(*(v.tolist() for v in (offset, length, place, size)), strict=True)):
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            made = inflater.decompress(data[a : a + n].tobytes(), most + 1)
        except zlib.error:
            continue
        if inflater.eof and len(made) == most and not inflater.unused_data:
            out[to : to + most] = np.frombuffer(made, np.uint8)
            status[t] = 0
    return out, status
