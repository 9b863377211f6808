# SPDX-License-Identifier: BSD-3-Clause
"""Launcher of the deflate coder; arguments and results as the twin of ``kernels/cpu/deflate.py``."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.module import kernel
from skydelta.kernels.crc import ALIGNMENT, crc32
from skydelta.kernels.deflate import CHUNK
from skydelta.kernels.encode import tile_counts

THREADS, WARPS, SYMBOLS, HEADER_WORDS = 256, 4, 286, 72
"""As in ``deflate.cu`` and ``deflate.cuh``."""

TYPES = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}


def gzip_encode(pixels: Array, tile: tuple[int, int], use: Array, shuffle: bool) -> tuple[Array, Array]:
    """The bytes of the tiles in order, a code for each chunk, the places that their sizes give, the members."""
    xp = backend_of(pixels).xp
    size = pixels.dtype.itemsize
    plane, use = xp.ascontiguousarray(pixels).view(f"u{size}"), xp.ascontiguousarray(use)
    h, w = plane.shape
    ny, nx = tile_counts(plane.shape, tile)
    tiles, most = ny * nx, min(tile[0], h) * min(tile[1], w)
    stride = -(-most * size // ALIGNMENT) * ALIGNMENT
    shape = [np.int32(i) for i in (h, w, *tile, nx)]
    raw = xp.empty(tiles * stride, np.uint8)
    arguments = (plane, *shape, np.int64(tiles * most), np.int64(most), np.int64(stride), use, np.bool_(shuffle), raw)
    kernel("deflate.cu", "tile_bytes", template_args=(TYPES[size],))(
        (-(-tiles * most // THREADS),), (THREADS,), arguments
    )
    rows = np.minimum(tile[0], h - tile[0] * np.arange(ny, dtype=np.int64))
    columns = np.minimum(tile[1], w - tile[1] * np.arange(nx, dtype=np.int64))
    lengths = (rows[:, None] * columns).ravel() * size
    checks = crc32(raw, stride * np.arange(tiles, dtype=np.int64), lengths)

    pieces = size if shuffle else 1
    per = -(-most * size // pieces // CHUNK)
    chunks = tiles * pieces * per
    grid = [*shape, *(np.int32(i) for i in (size, pieces, per, 1 if shuffle else size)), np.int64(stride)]
    blocks, threads = (-(-chunks // WARPS),), (32 * WARPS,)
    tables, headers = xp.empty(chunks * SYMBOLS, np.uint8), xp.empty(chunks * HEADER_WORDS, np.uint32)
    header_bits, bits = xp.empty((2, chunks), np.int32)
    arguments = (raw, *grid, np.int64(chunks), use, tables, headers, header_bits, bits)
    kernel("deflate.cu", "deflate_code")(blocks, threads, arguments)
    places, sizes = xp.empty(chunks, np.int64), xp.empty(tiles, np.int64)
    arguments = (*grid, np.int64(tiles), use, bits, places, sizes)
    kernel("deflate.cu", "deflate_places")((-(-tiles // THREADS),), (THREADS,), arguments)
    ends = xp.cumsum(sizes)
    total = int(ends[-1])
    out = xp.zeros(-(-total // 4), np.uint32)
    arguments = (
        raw, *grid, np.int64(chunks), use, tables, headers, header_bits, places, ends - sizes, sizes, checks, out
    )  # fmt: skip
    kernel("deflate.cu", "deflate_emit")(blocks, threads, arguments)
    return out.view(np.uint8)[:total], sizes
