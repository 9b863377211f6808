# SPDX-License-Identifier: BSD-3-Clause
"""From two WCS to a `PixelMap`: exact values on a control grid, refined until a checked error is small enough."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from skydelta.io.sky import low_level
from skydelta.kernels.backend import CPU, Array, Backend, backend_of, to_host
from skydelta.kernels.maps import check_cells, tangent_points
from skydelta.kernels.resample import CELL_INTERPOLATED, PixelMap
from skydelta.stages.align.cache import MAPS, same_wcs
from skydelta.stages.align.chain import SkyChain
from skydelta.stages.align.tangent import UnfitError, compare, places, tangent_chain

FIRST_SPACING = 32
LAST_SPACING = 8
"""Cell sides tried, target px: from the first, halved, to the last."""

GOAL = 0.01
"""Error sought, in units of the tolerance: it keeps the flux of a star, which feels the slope of the error, to 1e-7."""

LEFT_OVER = 1 / 16
"""Cells are made no smaller when at most this part of them misses the goal."""

Evaluate = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Target x, y to source x, y (float64, any shape); NaN where there is no map."""

Lattices = Callable[[np.ndarray, float, tuple[int, int]], Array]
"""First points (k, 2), step and shape of lattices of target pixels to source x, y (2, k, *shape), on any device."""


def pixel_map(
    source_wcs: Any,
    target_wcs: Any,
    target_shape: tuple[int, int],
    source_shape: tuple[int, int],
    tolerance: float = 1e-4,
    corners: bool = False,
    backend: Backend = CPU,
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
    backend : Backend
        Where the map shall lie, if it can be made there.

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
        return shift_map(target_shape, source_shape, way="the same WCS")
    chain = SkyChain(source, target)
    off, more = (0.5, 1) if corners else (0.0, 0)
    shape = target_shape[0] + more, target_shape[1] + more

    def make() -> PixelMap:
        try:
            lattices, way = _through_planes(chain, shape, source_shape, off, backend), "polynomials"
        except UnfitError as e:
            lattices, way = _by_points(lambda x, y: chain(x - off, y - off)), f"astropy: {e}"
        return _tabulated(lattices, shape, source_shape, tolerance, chain.smooth, way)

    return MAPS.get(source, target, target_shape, source_shape, (tolerance, corners, backend.name), make)


def _through_planes(
    chain: SkyChain, shape: tuple[int, int], source_shape: tuple[int, int], off: float, backend: Backend
) -> Lattices:
    """The chain as polynomials and a homography, compared with astropy.

    Raises
    ------
    UnfitError
        It is more than that, or they differ.
    """
    numbers = tangent_chain(chain, source_shape)
    there = backend.asarray(numbers)

    def lattices(origin: np.ndarray, step: float, shape: tuple[int, int]) -> Array:
        return tangent_points(there, backend.asarray(origin - off), step, shape)

    at = places(numbers, shape, source_shape)
    compare(chain, at - off, to_host(lattices(at, 0.0, (1, 1)))[:, :, 0, 0])
    return lattices


def _by_points(evaluate: Evaluate) -> Lattices:
    def lattices(origin: np.ndarray, step: float, shape: tuple[int, int]) -> Array:
        y, x = (o[:, None, None] + step * g for o, g in zip(origin.T[::-1], np.indices(shape), strict=True))
        return np.stack(evaluate(x, y))

    return lattices


def one_grid(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The map of images that are on one grid by agreement."""
    return x, y


def shift_map(
    target_shape: tuple[int, int], source_shape: tuple[int, int], sy: int = 0, sx: int = 0, way: str = "given"
) -> PixelMap:
    """The map target pixel + (sy, sx)."""
    h = FIRST_SPACING
    ny, nx = _cell_counts(target_shape, h)
    x, y = np.meshgrid((np.arange(nx + 3.0) - 1) * h + sx, (np.arange(ny + 3.0) - 1) * h + sy)
    cells = np.full((ny, nx), CELL_INTERPOLATED, np.int32)
    return PixelMap(
        target_shape, source_shape, h, np.stack([x, y]), cells, np.empty((0, 3, h, h)), shift=(sy, sx), way=way
    )


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
    return _tabulated(_by_points(evaluate), target_shape, source_shape, tolerance, smooth, "given")


def _tabulated(
    lattices: Lattices,
    target_shape: tuple[int, int],
    source_shape: tuple[int, int],
    tolerance: float,
    smooth: bool,
    way: str,
) -> PixelMap:
    h = FIRST_SPACING if smooth else LAST_SPACING
    while True:
        ny, nx = _cell_counts(target_shape, h)
        points = lattices(np.full((1, 2), -float(h)), h / 2, (2 * ny + 5, 2 * nx + 5))[:, 0]
        nodes, cells, rows = check_cells(points, h, source_shape, tolerance, GOAL * tolerance, smooth)
        rows = to_host(rows)
        error, largest, away = rows[:, [0, 2, 5]].max(axis=0)
        least, missed, must = rows[:, 1].min(), rows[:, 3].sum(), rows[:, 4].sum()
        if h == LAST_SPACING or missed <= LEFT_OVER * ny * nx:
            break
        h //= 2
    backend = backend_of(points)
    exact, part = backend.xp.empty((0, 3, h, h)), 0.0
    if must:
        numbered = np.array(to_host(cells))
        at = i, j = np.nonzero(numbered == 0)
        part = float(_pixels_in_cells(target_shape, h)[at].sum() / (target_shape[0] * target_shape[1]))
        numbered[at] = np.arange(len(i))
        cells, exact = backend.asarray(numbered), _exact_cells(lattices, backend, i, j, h)
        areas = to_host(exact[:, 2])
        areas = areas[np.isfinite(areas)]
        least, largest = areas.min(initial=least), areas.max(initial=largest)
    whole = not must and away <= tolerance
    return PixelMap(
        target_shape,
        source_shape,
        h,
        nodes,
        cells,
        exact,
        error=float(error),
        exact_fraction=part,
        area=(float(least), float(largest)) if np.isfinite(least) else (1.0, 1.0),
        shift=_whole_shift(points) if whole else None,
        way=way,
    )


def _cell_counts(shape: tuple[int, int], h: int) -> tuple[int, int]:
    return -(-shape[0] // h), -(-shape[1] // h)


def _pixels_in_cells(shape: tuple[int, int], h: int) -> np.ndarray:
    """int (ny, nx): pixels of the target in each cell."""
    sides = [np.minimum(h, n - h * np.arange(k)) for n, k in zip(shape, _cell_counts(shape, h), strict=True)]
    return np.outer(*sides)


def _exact_cells(lattices: Lattices, backend: Backend, rows: np.ndarray, columns: np.ndarray, h: int) -> Array:
    """Exact x, y and area of every pixel of the given cells: float64 (n, 3, h, h)."""
    xp = backend.xp
    out = xp.full((rows.size, 3, h, h), np.nan)
    first = np.stack([columns, rows], axis=1) * float(h) - 1
    per_call = max(1, (1 << 20) // (h + 2) ** 2)
    for start in range(0, rows.size, per_call):
        part = slice(start, start + per_call)
        q = xp.moveaxis(lattices(first[part], 1.0, (h + 2, h + 2)), 1, 0)
        out[part, :2] = q[:, :, 1:-1, 1:-1]
        dx = _slope(xp, q[:, :, 1:-1])
        dy = _slope(xp, q[..., 1:-1].swapaxes(2, 3)).swapaxes(2, 3)
        out[part, 2] = xp.abs(dx[:, 0] * dy[:, 1] - dx[:, 1] * dy[:, 0])
    return out


def _slope(xp: ModuleType, q: Array) -> Array:
    """Central differences along the last axis; one-sided where the other neighbour has no map or lies beyond a seam."""
    step = xp.diff(q, axis=-1)
    before, after = step[..., :-1], step[..., 1:]
    a, b = (xp.nan_to_num((s**2).sum(axis=1, keepdims=True), nan=np.inf) for s in (before, after))
    return xp.where(b > 9 * a, before, xp.where(a > 9 * b, after, (before + after) / 2))


def _whole_shift(points: Array) -> tuple[int, int]:
    """(sy, sx) of the first point of the cells."""
    sx, sy = np.rint(to_host(points[:, 2, 2]))
    return int(sy), int(sx)
