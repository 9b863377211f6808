# SPDX-License-Identifier: BSD-3-Clause
"""Plain NumPy and SciPy references of the sky kernels."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from skydelta.kernels.background import BLOCK, CLIP, ROUNDS, SHARE, SIGMA
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


def block_scores(image: np.ndarray, good: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    h, w = (n // BLOCK for n in image.shape)
    values, number = (
        np.where(good, a, 0)[: h * BLOCK, : w * BLOCK].reshape(h, BLOCK, w, BLOCK).sum(axis=(1, 3), dtype=np.float64)
        for a in (image, 1.0)
    )
    rows, columns = ((2 * np.arange(n) + 1) * m // (2 * n) for n, m in zip((h, w), sigma.shape, strict=True))
    noise = np.sqrt(np.where(number > 0, number, np.nan)) * sigma[rows[:, None], columns]
    return (values / noise).astype(np.float32)


def blank_sky(good: np.ndarray, score: np.ndarray, limit: float) -> np.ndarray:
    high = np.nan_to_num(np.abs(score)) > np.float32(limit)
    source = np.zeros(good.shape, bool)
    if high.size:
        grown = ndimage.binary_dilation(high, np.ones((3, 3))).repeat(BLOCK, axis=0).repeat(BLOCK, axis=1)
        source[: grown.shape[0], : grown.shape[1]] = grown
    return good & ~source
