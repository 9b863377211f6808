# SPDX-License-Identifier: BSD-3-Clause
"""From two WCS to a `PixelMap`: exact values on a control grid, refined until a checked error is small enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.ndimage import maximum_filter

from skydelta.io.sky import low_level
from skydelta.kernels.resample import CELL_INTERPOLATED, CELL_OUTSIDE, PixelMap
from skydelta.stages.align.cache import MAPS, same_wcs
from skydelta.stages.align.chain import SkyChain

FIRST_SPACING = 32
LAST_SPACING = 8
"""Cell sides tried, target px: from the first, halved, to the last."""

GOAL = 0.01
"""Error sought, in units of the tolerance: it keeps the flux of a star, which feels the slope of the error, to 1e-7."""

LEFT_OVER = 1 / 16
"""Cells are made no smaller when at most this part of them misses the goal."""

Evaluate = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Target x, y to source x, y (float64, any shape); NaN where there is no map."""

_T = (0.0, 0.5, 1.0)
_HALF = np.array([[-b * c * e / 6, a * c * e / 2, -a * b * e / 2, a * b * c / 6]
                  for a, b, c, e in ((t + 1, t, t - 1, t - 2) for t in _T)])  # fmt: skip
"""Cubic Lagrange weights (3, 4) of the nodes around a cell for its start, middle and end."""


def pixel_map(
    source_wcs: Any,
    target_wcs: Any,
    target_shape: tuple[int, int],
    source_shape: tuple[int, int],
    tolerance: float = 1e-4,
    corners: bool = False,
) -> PixelMap:
    """Map target pixels to source pixels.

    Parameters
    ----------
    source_wcs, target_wcs : astropy.wcs.WCS or any object of astropy's shared WCS interface (APE 14)
        Two axes, on the sky or with the same physical types in both.
    target_shape, source_shape : (int, int)
        (H, W), px.
    tolerance : float
        Largest error of an interpolated position, source px.
    corners : bool
        Map the corners of pixels instead of their centres: (H + 1, W + 1) of them, (y, x) the lower left one of pixel
        (y, x).

    Returns
    -------
    PixelMap

    Raises
    ------
    InputError
        Axes that cannot be turned into each other, or are not two.
    """
    source, target = low_level(source_wcs, "image"), low_level(target_wcs, "onto")
    if same_wcs(source, target):
        return shift_map(target_shape, source_shape)
    chain = SkyChain(source, target)
    off, more = (0.5, 1) if corners else (0.0, 0)

    def make() -> PixelMap:
        shape = target_shape[0] + more, target_shape[1] + more
        return control_grid(lambda x, y: chain(x - off, y - off), shape, source_shape, tolerance, smooth=chain.smooth)

    return MAPS.get(source, target, target_shape, source_shape, tolerance, corners, make)


def shift_map(target_shape: tuple[int, int], source_shape: tuple[int, int], sy: int = 0, sx: int = 0) -> PixelMap:
    """The map target pixel + (sy, sx)."""
    h = FIRST_SPACING
    ny, nx = _cell_counts(target_shape, h)
    x, y = np.meshgrid((np.arange(nx + 3.0) - 1) * h + sx, (np.arange(ny + 3.0) - 1) * h + sy)
    cells = np.full((ny, nx), CELL_INTERPOLATED, np.int32)
    return PixelMap(target_shape, source_shape, h, np.stack([x, y]), cells, np.empty((0, 3, h, h)), shift=(sy, sx))


def control_grid(
    evaluate: Evaluate,
    target_shape: tuple[int, int],
    source_shape: tuple[int, int],
    tolerance: float,
    smooth: bool = True,
) -> PixelMap:
    """Tabulate any map: nodes where it can be interpolated to the tolerance, pixel by pixel elsewhere.

    The exact map at the middles of all cells and of their edges, where cubic interpolation is worst, is the check;
    these points are the nodes of the next finer grid.
    """
    h = FIRST_SPACING if smooth else LAST_SPACING
    while True:
        grid = _CheckedGrid(evaluate, target_shape, source_shape, h)
        if h == LAST_SPACING or (~grid.outside & (grid.error > GOAL * tolerance)).mean() <= LEFT_OVER:
            break
        h //= 2
    good = (grid.error <= tolerance) & smooth
    must = ~good & ~grid.outside
    cells = np.where(grid.outside, CELL_OUTSIDE, CELL_INTERPOLATED).astype(np.int32)
    cells[must] = np.arange(must.sum())
    rows, columns = np.nonzero(must)
    exact = _exact_cells(evaluate, rows, columns, h)
    used = good & ~grid.outside
    areas = np.concatenate([grid.area[used], exact[:, 2][np.isfinite(exact[:, 2])]])
    return PixelMap(
        target_shape,
        source_shape,
        h,
        grid.nodes,
        cells,
        exact,
        error=float(grid.error[used].max(initial=0.0)),
        exact_fraction=float(_pixels_in_cells(target_shape, h)[must].sum() / (target_shape[0] * target_shape[1])),
        area=(float(areas.min(initial=np.inf)), float(areas.max(initial=0.0))) if areas.size else (1.0, 1.0),
        shift=None if must.any() else _whole_shift(grid, tolerance),
    )


class _CheckedGrid:
    """Nodes of one spacing and the half-way points that check them.

    Attributes
    ----------
    nodes : float64 (2, ny + 3, nx + 3)
    offset : float64 (2, 2 ny + 1, 2 nx + 1)
        Exact map minus target position at corners, edge middles and centres of the cells.
    error : float64 (ny, nx)
        Largest distance between interpolated and exact map on the cell and the cells around it (one cell alone can
        pass by a change of sign), inf where either is not finite.
    area : float64 (ny, nx)
        |det dq/dp| of the interpolated map in the middle of the cell.
    outside : bool (ny, nx)
        No pixel of the cell can lie in the source.
    """

    def __init__(self, evaluate: Evaluate, shape: tuple[int, int], source_shape: tuple[int, int], h: int) -> None:
        ny, nx = _cell_counts(shape, h)
        x, y = np.meshgrid((np.arange(2 * nx + 5) - 2) * h / 2, (np.arange(2 * ny + 5) - 2) * h / 2)
        q = np.stack(evaluate(x, y))
        self.nodes = np.ascontiguousarray(q[:, ::2, ::2])
        fine = q[:, 2:-2, 2:-2]
        self.offset = fine - np.stack([x, y])[:, 2:-2, 2:-2]
        around = np.lib.stride_tricks.sliding_window_view(self.nodes, (4, 4), axis=(1, 2))
        exact = np.lib.stride_tricks.sliding_window_view(fine, (3, 3), axis=(1, 2))[:, ::2, ::2]
        with np.errstate(invalid="ignore"):
            guess = np.einsum("ai,bj,cyxij->cyxab", _HALF, _HALF, around)
            error = np.sqrt(((guess - exact) ** 2).sum(axis=0)).max(axis=(2, 3))
            self.error = maximum_filter(np.where(np.isfinite(error), error, np.inf), 3, mode="nearest")
            middle = np.array([1.0, -27.0, 27.0, -1.0]) / 24  # derivative of the cubic at the middle, per cell
            d = [np.einsum("i,j,cyxij->cyx", *w, around) / h for w in ((_HALF[1], middle), (middle, _HALF[1]))]
            self.area = np.abs(d[0][0] * d[1][1] - d[0][1] * d[1][0])
        self.outside = _outside(exact, source_shape)


def _outside(exact: np.ndarray, source_shape: tuple[int, int]) -> np.ndarray:
    """Cells whose 3 x 3 exact positions (2, ny, nx, 3, 3) say that none of their pixels can lie in the source.

    Either all are finite and their bounding box, grown by its own size, misses the source; or there is no map at any
    of them nor of the neighbouring cells'.
    """
    low, high = exact.min(axis=(3, 4)), exact.max(axis=(3, 4))  # NaN where one is NaN
    size = high - low
    n = np.array(source_shape[::-1], float)[:, None, None]
    with np.errstate(invalid="ignore"):
        misses = ((high + size < -0.5) | (low - size > n - 0.5)).any(axis=0)
    empty = np.pad(np.isnan(exact).any(axis=0).all(axis=(2, 3)), 1, constant_values=True)
    return misses | np.lib.stride_tricks.sliding_window_view(empty, (3, 3)).all(axis=(2, 3))


def _cell_counts(shape: tuple[int, int], h: int) -> tuple[int, int]:
    return -(-shape[0] // h), -(-shape[1] // h)


def _pixels_in_cells(shape: tuple[int, int], h: int) -> np.ndarray:
    """int (ny, nx): pixels of the target in each cell."""
    sides = [np.minimum(h, n - h * np.arange(k)) for n, k in zip(shape, _cell_counts(shape, h), strict=True)]
    return np.outer(*sides)


def _exact_cells(evaluate: Evaluate, rows: np.ndarray, columns: np.ndarray, h: int) -> np.ndarray:
    """Exact x, y and area of every pixel of the given cells: float64 (n, 3, h, h)."""
    out = np.full((rows.size, 3, h, h), np.nan)
    side = np.arange(-1, h + 1)
    per_call = max(1, (1 << 20) // (h + 2) ** 2)
    for start in range(0, rows.size, per_call):
        part = slice(start, start + per_call)
        y, x = np.broadcast_arrays(
            (rows[part, None] * h + side)[:, :, None], (columns[part, None] * h + side)[:, None, :]
        )
        q = np.stack(evaluate(x, y), axis=1)
        out[part, :2] = q[:, :, 1:-1, 1:-1]
        dy, dx = _slope(q, 2)[..., 1:-1], _slope(q, 3)[:, :, 1:-1]
        out[part, 2] = np.abs(dx[:, 0] * dy[:, 1] - dx[:, 1] * dy[:, 0])
    return out


def _slope(q: np.ndarray, axis: int) -> np.ndarray:
    """Central differences along an axis; one-sided where the other neighbour has no map or lies beyond a seam."""
    step = np.diff(q, axis=axis)
    before, after = np.take(step, range(step.shape[axis] - 1), axis), np.take(step, range(1, step.shape[axis]), axis)
    a, b = (np.nan_to_num((s**2).sum(axis=1, keepdims=True), nan=np.inf) for s in (before, after))
    return np.where(b > 9 * a, before, np.where(a > 9 * b, after, (before + after) / 2))


def _whole_shift(grid: _CheckedGrid, tolerance: float) -> tuple[int, int] | None:
    """(sy, sx) when the exact map is a shift by whole pixels within the tolerance at every checked point."""
    sx, sy = np.rint(grid.offset[:, 0, 0])
    gap = np.abs(grid.offset - np.array([sx, sy])[:, None, None]).max()
    return (int(sy), int(sx)) if gap <= tolerance else None
