# SPDX-License-Identifier: BSD-3-Clause
"""Sky levels of the images of a stack in blocks of the target, and the offsets or planes that make them agree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.ndimage import distance_transform_edt, map_coordinates, median_filter

from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.kernels.background import cell_statistics
from skydelta.kernels.core.tiles import Box
from skydelta.stages.stack.common import Common, Series, solve

BLOCKS = (16, 64)
"""Least and largest side of a block, px."""

ACROSS = 12
"""Blocks along the shorter side of a small target."""

WHOLE = 0.75
"""Part of a block that an image must cover to be compared there; half of the blocks' median count is the least."""


@dataclass(frozen=True)
class Levels:
    """Sky of one image in blocks of the target.

    Attributes
    ----------
    block : int64 (n,)
        Numbers of the blocks, row by row over the target.
    median, variance : float64 (n,)
        Clipped median, and the square of its standard error; unscaled.
    """

    block: np.ndarray
    median: np.ndarray
    variance: np.ndarray


@dataclass(frozen=True)
class BlockGrid:
    """Square blocks that cover a target from its pixel (0, 0).

    Attributes
    ----------
    shape : (int, int)
        Of the target, px.
    side : int
    """

    shape: tuple[int, int]
    side: int

    @classmethod
    def of(cls, shape: tuple[int, int]) -> BlockGrid:
        """Blocks of `BLOCKS` px, a multiple of 8."""
        side = min(shape) // ACROSS // 8 * 8
        return cls(shape, int(np.clip(side, *BLOCKS)))

    @property
    def counts(self) -> tuple[int, int]:
        return -(-self.shape[0] // self.side), -(-self.shape[1] // self.side)

    def __len__(self) -> int:
        return self.counts[0] * self.counts[1]

    def around(self, box: Box) -> Box:
        """The box grown to whole blocks, and clipped to the target."""
        s = self.side
        grown = Box(box.y0 // s * s, -(-box.y1 // s) * s, box.x0 // s * s, -(-box.x1 // s) * s)
        return grown.clip(self.shape)

    def middles(self, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """x and y of the middles of blocks, px."""
        row, column = np.divmod(block, self.counts[1])
        return (column + 0.5) * self.side - 0.5, (row + 0.5) * self.side - 0.5

    def levels(self, image: Array, good: Array, box: Box) -> Levels:
        """Of an image that fills a box of whole blocks."""
        xp = backend_of(image).xp
        s = self.side
        rows, columns = -(-box.shape[0] // s), -(-box.shape[1] // s)
        if (rows * s, columns * s) != box.shape:  # blocks at the end of the target
            whole, usable = xp.zeros((rows * s, columns * s), np.float32), xp.zeros((rows * s, columns * s), bool)
            whole[: box.shape[0], : box.shape[1]] = image
            usable[: box.shape[0], : box.shape[1]] = good
            image, good = whole, usable
        found = (to_host(a) for a in cell_statistics(xp.ascontiguousarray(image), xp.ascontiguousarray(good), s))
        median, sigma, count = (a.astype(float) for a in found)
        full = np.outer(*(np.minimum(s, n - s * np.arange(k)) for n, k in zip(box.shape, (rows, columns), strict=True)))
        ok = np.isfinite(median) & (sigma > 0) & (count >= WHOLE * full)
        if not ok.any():
            ok = np.isfinite(median) & (sigma > 0)
        row, column = np.nonzero(ok)
        block = (row + box.y0 // s) * self.counts[1] + column + box.x0 // s
        return Levels(block, median[ok], np.pi / 2 * sigma[ok] ** 2 / count[ok])


@dataclass(frozen=True)
class Matching:
    """Backgrounds to subtract from scaled images, and the sky that is left.

    Attributes
    ----------
    grid : BlockGrid
    solution : Common
    x0, y0, reach : float
        Terms of a plane are 1, (x - x0) / reach and (y - y0) / reach.
    """

    grid: BlockGrid
    solution: Common
    x0: float
    y0: float
    reach: float

    def plane(self, k: int) -> tuple[float, float, float]:
        """Level at (x0, y0) and slopes along x and y (per px) of image k."""
        c = np.zeros(3)
        found = self.solution.offsets[k]
        c[: len(found)] = found
        return float(c[0]), float(c[1] / self.reach), float(c[2] / self.reach)

    def error(self, k: int) -> float:
        """Standard error of the level."""
        return float(self.solution.errors[k][0])

    def sky_blocks(self) -> np.ndarray:
        """Level of the matched images in each block: float64 `grid.counts`, gaps filled from the nearest block."""
        sky = self.solution.common.reshape(self.grid.counts)
        known = np.isfinite(sky)
        if not known.any():
            return np.zeros(sky.shape)
        near = distance_transform_edt(~known, return_distances=False, return_indices=True)
        return median_filter(sky[tuple(near)], 3, mode="nearest")


def sky_rows(blocks: np.ndarray, grid: BlockGrid, y0: int, y1: int) -> np.ndarray:
    """The sky in rows y0 to y1 of the target, bilinear between blocks: float32 (y1 - y0, W)."""
    y = (np.arange(y0, y1) + 0.5) / grid.side - 0.5
    x = (np.arange(grid.shape[1]) + 0.5) / grid.side - 0.5
    return map_coordinates(blocks, np.meshgrid(y, x, indexing="ij"), np.float32, order=1, mode="nearest")


def match(levels: list[Levels], scales: np.ndarray, grid: BlockGrid, order: int) -> Matching:
    """Make the scaled skies agree by an offset (order 0) or a plane (order 1) of each image."""
    h, w = grid.shape
    x0, y0, reach = (w - 1) / 2, (h - 1) / 2, max(h, w) / 2
    series = []
    for found, scale in zip(levels, scales, strict=True):
        x, y = grid.middles(found.block)
        terms = np.stack([np.ones_like(x), (x - x0) / reach, (y - y0) / reach])[: 1 + 2 * order]
        series.append(Series(found.block, scale * found.median, 1 / (scale**2 * found.variance), terms))
    return Matching(grid, solve(series, len(grid)), x0, y0, reach)
