# SPDX-License-Identifier: BSD-3-Clause
"""CPU twins of the sky kernels: each cell is sorted once, then clipped by moving two ends."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from skydelta.kernels.background import BLOCK, CLIP, ROUNDS, SHARE, SIGMA
from skydelta.kernels.core.tiles import TileGrid
from skydelta.kernels.cpu.jit import inline, parallel, prange


def cell_statistics(image: np.ndarray, good: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    grid = TileGrid(image.shape, size)
    ny, nx = grid.counts
    median, sigma = np.full((2, ny, nx), np.nan, np.float32)
    count = np.zeros((ny, nx), np.int32)
    edges = np.array(grid.edges(1))
    area = np.diff(edges)
    for i, (y0, y1) in enumerate(pairwise(grid.edges(0))):
        cells = np.empty((nx, (y1 - y0) * area.max()), np.float32)
        _gather(image, good, y0, y1, edges, cells)
        cells.sort(axis=1)  # unusable pixels are NaN and go last
        _clip(cells, np.maximum((y1 - y0) * area // SHARE, 1), median[i], sigma[i], count[i])
    return median, sigma, count


@parallel
def _gather(image, good, y0, y1, edges, cells):
    for j in prange(cells.shape[0]):
        k = 0
        for y in range(y0, y1):
            for x in range(edges[j], edges[j + 1]):
                v = image[y, x]
                cells[j, k] = v if good[y, x] and v - v == np.float32(0) else np.float32(np.nan)
                k += 1
        cells[j, k:] = np.float32(np.nan)


@inline
def _deviation(cell, low, high, middle):
    """Lower median of |cell - middle| over [low, high): the nearest values are taken alternately from both sides."""
    right = low + (high - low - 1) // 2
    left = right - 1
    deviation = np.float32(0)
    for _ in range((high - low - 1) // 2 + 1):
        below = middle - cell[left] if left >= low else np.float32(np.inf)
        above = cell[right] - middle if right < high else np.float32(np.inf)
        if above <= below:
            deviation = above
            right += 1
        else:
            deviation = below
            left -= 1
    return deviation


@parallel
def _clip(cells, least, median, sigma, count):
    for j in prange(cells.shape[0]):
        cell = cells[j]
        low, high = 0, cells.shape[1]
        while high > 0 and np.isnan(cell[high - 1]):
            high -= 1
        if high < least[j]:
            continue
        middle = deviation = np.float32(0)
        for _ in range(ROUNDS):
            middle = cell[low + (high - low - 1) // 2]
            deviation = _deviation(cell, low, high, middle)
            limit = CLIP * deviation
            before = high - low
            if deviation == 0:
                break
            while middle - cell[low] > limit:
                low += 1
            while cell[high - 1] - middle > limit:
                high -= 1
            if high - low == before:
                break
        median[j], sigma[j], count[j] = middle, SIGMA * deviation, high - low


@parallel
def _block_scores(image, good, sigma, score):
    rows, columns = score.shape
    ny, nx = sigma.shape
    for row in prange(rows):
        i = (2 * row + 1) * ny // (2 * rows)
        for column in range(columns):
            total, number = np.float32(0), 0
            for y in range(row * BLOCK, (row + 1) * BLOCK):
                for x in range(column * BLOCK, (column + 1) * BLOCK):
                    if good[y, x]:
                        total += image[y, x]
                        number += 1
            value = np.float32(np.nan)
            if number > 0:
                j = (2 * column + 1) * nx // (2 * columns)
                value = total / np.sqrt(np.float32(number)) / sigma[i, j]
            score[row, column] = value


def block_scores(image: np.ndarray, good: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    score = np.empty((image.shape[0] // BLOCK, image.shape[1] // BLOCK), np.float32)
    _block_scores(image, good, sigma, score)
    return score


@parallel
def _blank_sky(good, score, limit, blank):
    height, width = good.shape
    rows, columns = score.shape
    for row in prange(-(-height // BLOCK)):
        for column in range(-(-width // BLOCK)):
            source = False
            if row < rows and column < columns:
                for j in range(max(row - 1, 0), min(row + 2, rows)):
                    for i in range(max(column - 1, 0), min(column + 2, columns)):
                        source |= abs(score[j, i]) > limit
            for y in range(row * BLOCK, min((row + 1) * BLOCK, height)):
                for x in range(column * BLOCK, min((column + 1) * BLOCK, width)):
                    blank[y, x] = good[y, x] and not source


def blank_sky(good: np.ndarray, score: np.ndarray, limit: float) -> np.ndarray:
    blank = np.empty(good.shape, bool)
    _blank_sky(good, score, np.float32(limit), blank)
    return blank
