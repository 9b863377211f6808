# SPDX-License-Identifier: BSD-3-Clause
"""Plain NumPy reference of the cell statistics."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.background import CLIP, ROUNDS, SHARE, SIGMA
from skydelta.kernels.core.tiles import TileGrid


def cell_statistics(image: np.ndarray, good: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ny, nx = TileGrid(image.shape, size).counts
    median, sigma = np.full((2, ny, nx), np.nan, np.float32)
    count = np.zeros((ny, nx), np.int32)
    for tile in TileGrid(image.shape, size):
        i, j, cell = tile.row, tile.column, tile.core.slices
        values = image[cell][good[cell] & np.isfinite(image[cell])]
        if len(values) < max(1, image[cell].size // SHARE):
            continue
        for _ in range(ROUNDS):
            middle = lower_median(values)
            deviation = lower_median(np.abs(values - middle))
            kept = values[np.abs(values - middle) <= CLIP * deviation]
            if deviation == 0 or len(kept) == len(values):
                break
            values = kept
        median[i, j], sigma[i, j], count[i, j] = middle, SIGMA * deviation, len(values)
    return median, sigma, count


def lower_median(values: np.ndarray) -> np.float32:
    return np.sort(values)[(len(values) - 1) // 2]
