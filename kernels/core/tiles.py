# SPDX-License-Identifier: BSD-3-Clause
"""Tiles: a core box that is written and a halo box that is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Box:
    """Half-open pixel box [y0, y1) x [x0, x1); may reach outside the image."""

    y0: int
    y1: int
    x0: int
    x1: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.y1 - self.y0, self.x1 - self.x0

    @property
    def slices(self) -> tuple[slice, slice]:
        return slice(self.y0, self.y1), slice(self.x0, self.x1)

    @property
    def centre(self) -> tuple[float, float]:
        """(x, y) of the middle, pixel centres at integers."""
        return (self.x0 + self.x1 - 1) / 2, (self.y0 + self.y1 - 1) / 2

    def grow(self, by: int) -> Box:
        return Box(self.y0 - by, self.y1 + by, self.x0 - by, self.x1 + by)

    def clip(self, shape: tuple[int, int]) -> Box:
        return Box(max(self.y0, 0), min(self.y1, shape[0]), max(self.x0, 0), min(self.x1, shape[1]))

    def shift(self, dy: int, dx: int) -> Box:
        return Box(self.y0 + dy, self.y1 + dy, self.x0 + dx, self.x1 + dx)


@dataclass(frozen=True)
class Tile:
    """One piece of work: ``core`` is written, ``halo`` (clipped to the image) is read."""

    row: int
    column: int
    core: Box
    halo: Box

    @property
    def inner(self) -> tuple[slice, slice]:
        """The core inside an array cut out by ``halo``."""
        return self.core.shift(-self.halo.y0, -self.halo.x0).slices


class Cover(Protocol):
    """Tiles whose cores cover an image once."""

    @property
    def shape(self) -> tuple[int, int]:
        """Of the image (height, width)."""
        ...

    def __iter__(self) -> Iterator[Tile]: ...

    def split(self, tile: Tile) -> tuple[Tile, ...]:
        """A tile as two, with its row and column, for a device that has no memory for it; empty where that ends."""
        ...


LEAST = 32
"""Side of a core, px, below which it is not split: the halo would be most of the work."""


def halves(low: int, high: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """A range as two."""
    middle = (low + high) // 2
    return (low, middle), (middle, high)


@dataclass(frozen=True)
class TileGrid:
    """Cover of an image by tiles of nearly equal size.

    Parameters
    ----------
    shape : (int, int)
        Image (height, width).
    size : int
        Largest core side, px.
    halo : int
        Neighbourhood read around each core, px; clipped at the image edge (the edge rule belongs to the kernel).
    """

    shape: tuple[int, int]
    size: int
    halo: int = 0

    @property
    def counts(self) -> tuple[int, int]:
        """Tiles along y and x."""
        return max(1, -(-self.shape[0] // self.size)), max(1, -(-self.shape[1] // self.size))

    def edges(self, axis: int) -> list[int]:
        """Core boundaries along an axis: counts[axis] + 1 integers from 0 to shape[axis]."""
        n, length = self.counts[axis], self.shape[axis]
        return [length * i // n for i in range(n + 1)]

    def centres(self) -> tuple[np.ndarray, np.ndarray]:
        """x and y of the middle of every core, pixel centres at integers: float64 (n,), in the order of the tiles."""
        y, x = (np.array(self.edges(axis), float) for axis in (0, 1))
        middle_y, middle_x = ((a[:-1] + a[1:] - 1) / 2 for a in (y, x))
        return np.tile(middle_x, len(middle_y)), np.repeat(middle_y, len(middle_x))

    def __len__(self) -> int:
        return self.counts[0] * self.counts[1]

    def __iter__(self) -> Iterator[Tile]:
        ey, ex = self.edges(0), self.edges(1)
        for r in range(len(ey) - 1):
            for c in range(len(ex) - 1):
                core = Box(ey[r], ey[r + 1], ex[c], ex[c + 1])
                yield Tile(r, c, core, core.grow(self.halo).clip(self.shape))

    def split(self, tile: Tile) -> tuple[Tile, ...]:
        """Its halves along the longer side: what a function looks up by row and column stays the same for both."""
        c = tile.core
        h, w = c.shape
        if max(h, w) < 2 * LEAST:
            return ()
        cores = [Box(a, b, c.x0, c.x1) for a, b in halves(c.y0, c.y1)]
        if w > h:
            cores = [Box(c.y0, c.y1, a, b) for a, b in halves(c.x0, c.x1)]
        return tuple(Tile(tile.row, tile.column, core, core.grow(self.halo).clip(self.shape)) for core in cores)


@dataclass(frozen=True)
class Blocks:
    """The tiles of a grid in blocks that are worked on together.

    A tile of a block reads a window of one size, ``size`` px, that begins ``pad`` px before its core.

    Parameters
    ----------
    grid : TileGrid
    counts : (int, int)
        At most this many tiles along y and x in a block.
    pad, size : int
        Of the windows, px.
    """

    grid: TileGrid
    counts: tuple[int, int]
    pad: int
    size: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.grid.shape

    def members(self, block: Tile) -> tuple[slice, slice]:
        """Rows and columns in the grid of the tiles of a block."""
        rows, columns = (
            slice(self.grid.edges(axis).index(low), self.grid.edges(axis).index(high))
            for axis, (low, high) in enumerate(((block.core.y0, block.core.y1), (block.core.x0, block.core.x1)))
        )
        return rows, columns

    def edges(self, block: Tile) -> tuple[list[int], list[int]]:
        """Core boundaries along y and x of the tiles of a block, in the image."""
        rows, columns = self.members(block)
        return self.grid.edges(0)[rows.start : rows.stop + 1], self.grid.edges(1)[columns.start : columns.stop + 1]

    def __iter__(self) -> Iterator[Tile]:
        (ny, nx), counts = self.counts, self.grid.counts
        rows, columns = (-(-n // m) for n, m in zip(counts, self.counts, strict=True))
        for r in range(rows):
            for c in range(columns):
                y, x = (r * ny, min((r + 1) * ny, counts[0])), (c * nx, min((c + 1) * nx, counts[1]))
                yield self._block(r, c, y, x)

    def split(self, tile: Tile) -> tuple[Tile, ...]:
        """Fewer tiles together; a tile alone stays whole, its pixels depend on it alone."""
        rows, columns = self.members(tile)
        y, x = (rows.start, rows.stop), (columns.start, columns.stop)
        if y[1] - y[0] > 1:
            return tuple(self._block(tile.row, tile.column, half, x) for half in halves(*y))
        if x[1] - x[0] > 1:
            return tuple(self._block(tile.row, tile.column, y, half) for half in halves(*x))
        return ()

    def _block(self, row: int, column: int, rows: tuple[int, int], columns: tuple[int, int]) -> Tile:
        """The block of these tiles of the grid, first and behind the last."""
        ey, ex = self.grid.edges(0)[rows[0] : rows[1] + 1], self.grid.edges(1)[columns[0] : columns[1] + 1]
        (y0, y1), (x0, x1) = ((e[0] - self.pad, e[-2] - self.pad + self.size) for e in (ey, ex))
        return Tile(row, column, Box(ey[0], ey[-1], ex[0], ex[-1]), Box(y0, y1, x0, x1).clip(self.shape))
