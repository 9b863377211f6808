# SPDX-License-Identifier: BSD-3-Clause
"""Launcher of the cell statistics; arguments and results as the twin of ``kernels/cpu/background.py``."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.background import CLIP, LARGEST, ROUNDS, SHARE, SIGMA
from skydelta.kernels.core.module import kernel
from skydelta.kernels.core.tiles import TileGrid

THREADS = 512


def cell_statistics(image: Array, good: Array, size: int) -> tuple[Array, Array, Array]:
    """Clipped median, sigma and count of every cell, one block each."""
    xp = backend_of(image).xp
    h, w = image.shape
    ny, nx = TileGrid(image.shape, size).counts
    median, sigma = xp.empty((ny, nx), np.float32), xp.empty((ny, nx), np.float32)
    count = xp.empty((ny, nx), np.int32)
    small = size * size <= 8 * THREADS
    if size > LARGEST:
        raise ValueError(f"cells of {size} px; at most {LARGEST}")
    function = kernel("background.cu", "cell_statistics", template_args=("8" if small else "32",))
    scalars = [np.int32(i) for i in (h, w, ny, nx, ROUNDS, SHARE)]
    function((nx, ny), (THREADS,), (image, good, *scalars, CLIP, SIGMA, median, sigma, count))
    return median, sigma, count
