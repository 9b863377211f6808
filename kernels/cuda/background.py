# SPDX-License-Identifier: BSD-3-Clause
"""Launchers of the sky kernels; arguments and results as the twins of ``kernels/cpu/background.py``."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.background import BLOCK, CLIP, LARGEST, ROUNDS, SHARE, SIGMA
from skydelta.kernels.core.module import kernel, shared_memory
from skydelta.kernels.core.tiles import TileGrid

BESIDES = 1024
"""Bytes of shared memory that a block needs beside the values and counters of its cell, at most."""

THREADS = 64
"""Fewest threads of a cell; otherwise each sorts 8 buckets."""

TILE = (32, 8)


def cell_statistics(image: Array, good: Array, size: int) -> tuple[Array, Array, Array]:
    """Clipped median, sigma and count of every cell, one thread block each."""
    if size > LARGEST:
        raise ValueError(f"cells of {size} px; at most {LARGEST}")
    xp = backend_of(image).xp
    h, w = image.shape
    grid = TileGrid(image.shape, size)
    ny, nx = grid.counts
    capacity = -(-h // ny) * -(-w // nx)
    buckets = 1 << max(7, (capacity // 2 - 1).bit_length())  # about 7 of a normal sky's values in the fullest
    counters = 2 * buckets
    shared = counters + 4 * capacity + BESIDES <= shared_memory()
    median, sigma = xp.empty((ny, nx), np.float32), xp.empty((ny, nx), np.float32)
    count = xp.empty((ny, nx), np.int32)
    scratch = xp.empty(0 if shared else ny * nx * capacity, np.uint32)
    function = kernel("background.cu", "cell_statistics", template_args=("true" if shared else "false",))
    threads = max(buckets // 8, THREADS)
    scalars = [np.int32(i) for i in (h, w, ny, nx, buckets, capacity, ROUNDS, SHARE)]
    function(
        (nx, ny),
        (threads,),
        (image, good, *scalars, CLIP, SIGMA, scratch, median, sigma, count),
        shared_mem=counters + (4 * capacity if shared else 0),
    )
    return median, sigma, count


def block_scores(image: Array, good: Array, sigma: Array) -> Array:
    rows, columns = (n // BLOCK for n in image.shape)
    score = backend_of(image).xp.empty((rows, columns), np.float32)
    if score.size:
        scalars = [np.int32(i) for i in (image.shape[1], rows, columns)]
        cells = [np.int32(n) for n in sigma.shape]
        kernel("background.cu", "block_scores")(
            _grid(rows, columns), TILE, (image, good, *scalars, sigma, *cells, score)
        )
    return score


def blank_sky(good: Array, score: Array, limit: float) -> Array:
    h, w = good.shape
    blank = backend_of(good).xp.empty((h, w), bool)
    scalars = (np.int32(h), np.int32(w), np.float32(limit))
    kernel("background.cu", "blank_sky")(_grid(-(-h // BLOCK), -(-w // BLOCK)), TILE, (good, score, *scalars, blank))
    return blank


def _grid(rows: int, columns: int) -> tuple[int, int]:
    return -(-columns // TILE[0]), -(-rows // TILE[1])
