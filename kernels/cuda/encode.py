# SPDX-License-Identifier: BSD-3-Clause
"""Launchers of the encoders; arguments and results as the twins of ``kernels/cpu/encode.py``."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.module import kernel
from skydelta.kernels.dither import dither_table
from skydelta.kernels.encode import BLOCK, LEAST, LEVELS, LOWEST, NOISE, NULL, ZERO, tile_counts

THREADS = 256
WARPS = THREADS // 32

GRID = 132 * 16
"""Blocks of the byte swap, at most: enough for any device, few enough for the sums to be cheap."""

TYPES = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int"}


def big_endian(words: Array, size: int, flip: bool) -> tuple[Array, int]:
    """Swapped words and the sum of what they say."""
    xp = backend_of(words).xp
    out, total = xp.empty_like(words), xp.zeros(1, np.uint64)
    top = 0 if not flip else {1: 0x80808080, 2: 0x80008000, 4: 0x80000000, 8: 0x80000000}[size]
    if len(words):
        blocks = min(-(-len(words) // THREADS), GRID)
        arguments = (words, np.int64(len(words)), np.int32(size), np.uint32(top), out, total)
        kernel("encode.cu", "big_endian")((blocks,), (THREADS,), arguments)
    return out, int(total[0])


def quantise_tiles(image: Array, tile: tuple[int, int], level: float, seed: int) -> tuple[Array, Array, Array, Array]:
    """Steps, scale, zero and success of every tile, one block each."""
    backend = backend_of(image)
    xp = backend.xp
    image = xp.ascontiguousarray(image)
    h, w = image.shape
    ny, nx = tile_counts(image.shape, tile)
    pixels = xp.empty((h, w), np.int32)
    step, zero = xp.empty(ny * nx, np.float64), xp.empty(ny * nx, np.float64)
    good = xp.empty(ny * nx, bool)
    function = kernel(
        "encode.cu", "quantise_tiles", template_args=("float" if image.dtype.itemsize == 4 else "double",)
    )
    geometry = [np.int32(i) for i in (h, w, *tile, nx)]
    scalars = [np.float64(NOISE), np.float64(level), np.int32(seed), np.int32(LEAST), np.float64(LEVELS)]
    values = [np.int32(i) for i in (LOWEST, NULL, ZERO)]
    function(
        (ny * nx,),
        (THREADS,),
        (image, *geometry, *scalars, *values, dither_table(backend), pixels, step, zero, good),
    )
    return pixels, step, zero, good


def rice_encode(pixels: Array, tile: tuple[int, int], use: Array) -> tuple[Array, Array]:
    """Two passes over the pixels, one warp a block of them: sizes, then the codes at the places the sizes give."""
    xp = backend_of(pixels).xp
    size = pixels.dtype.itemsize
    plane, use = xp.ascontiguousarray(pixels).view(f"u{size}"), xp.ascontiguousarray(use)
    h, w = plane.shape
    ny, nx = tile_counts(plane.shape, tile)
    tiles = ny * nx
    blocks = -(-min(tile[0], h) * min(tile[1], w) // BLOCK)
    if tiles * blocks >= 1 << 32:
        raise ValueError(f"{tiles} tiles of {blocks} blocks are too many for one launch")
    bits = xp.empty(tiles * blocks, np.int32)
    geometry = [*(np.int32(i) for i in (h, w, *tile, nx)), np.uint32(tiles * blocks), np.int32(blocks)]
    grid = (-(-tiles * blocks // WARPS),)
    kernel("encode.cu", "rice_sizes", template_args=(TYPES[size],))(grid, (THREADS,), (plane, *geometry, use, bits))
    ends = xp.cumsum(bits, dtype=np.int64)
    sizes = ends[blocks - 1 :: blocks].copy()
    sizes[1:] -= ends[blocks - 1 : -1 : blocks]
    sizes = (sizes + 7) >> 3
    byte_ends = xp.cumsum(sizes)
    total = int(byte_ends[-1])
    out = xp.zeros(-(-total // 4), np.uint32)
    kernel("encode.cu", "rice_emit", template_args=(TYPES[size],))(
        grid, (THREADS,), (plane, *geometry, use, ends, byte_ends - sizes, out)
    )
    return out.view(np.uint8)[:total], sizes
