# SPDX-License-Identifier: BSD-3-Clause
"""Plain references of the map kernels."""

from __future__ import annotations

import numpy as np
from numpy.polynomial.polynomial import polyder, polyval2d
from scipy.ndimage import maximum_filter

from skydelta.kernels.maps import END, MOST_DEGREE, MOST_STEPS, RADIAL, STILL, TERMS
from skydelta.kernels.resample import CELL_INTERPOLATED, CELL_OUTSIDE

_T = (0.0, 0.5, 1.0)
_HALF = np.array([[-b * c * e / 6, a * c * e / 2, -a * b * e / 2, a * b * c / 6]
                  for a, b, c, e in ((t + 1, t, t - 1, t - 2) for t in _T)])  # fmt: skip
"""Cubic Lagrange weights (3, 4) of the nodes around a cell for its start, middle and end."""


class _Distortion:
    """One side of a chain, from its numbers."""

    def __init__(self, numbers: np.ndarray) -> None:
        self.degree = int(numbers[0])
        self.affine = numbers[1:7].reshape(2, 3)
        self.radial = numbers[7 : 7 + 2 * RADIAL].reshape(2, RADIAL)
        self.terms = np.zeros((2, MOST_DEGREE + 1, MOST_DEGREE + 1))
        at = [(i, j) for j in range(self.degree + 1) for i in range(self.degree + 1 - j)]
        for k in range(2):
            for (i, j), value in zip(at, numbers[7 + 2 * RADIAL + k * TERMS :], strict=False):
                self.terms[k, i, j] = value

    def __call__(self, u: np.ndarray) -> np.ndarray:
        if not self.degree:
            return u
        r = np.hypot(*u)
        powers = r ** np.arange(1, 2 * RADIAL, 2)[:, None]
        return np.stack([polyval2d(u[0], u[1], t) + c @ powers for t, c in zip(self.terms, self.radial, strict=True)])

    def slopes(self, u: np.ndarray) -> np.ndarray:
        """(n, 2, 2): [component, variable]."""
        r = np.hypot(*u)
        n = np.arange(1, 2 * RADIAL, 2)
        with np.errstate(all="ignore"):
            along = np.where(r > 0, self.radial @ (n[:, None] * r ** (n - 1.0)[:, None]) * u[:, None] / r, 0.0)
        smooth = [[polyval2d(u[0], u[1], polyder(t, axis=axis)) for t in self.terms] for axis in (0, 1)]
        return (np.array(smooth) + along).transpose(2, 1, 0)


def tangent_points(chain: np.ndarray, origin: np.ndarray, step: float, shape: tuple[int, int]) -> np.ndarray:
    target, source, rest = _Distortion(chain[:END]), _Distortion(chain[END : 2 * END]), chain[2 * END :]
    y, x = (g[None] * step + o[:, None, None] for g, o in zip(np.indices(shape), origin.T[::-1], strict=True))
    x, y = (np.broadcast_to(a, (len(origin), *shape)).ravel() for a in (x, y))
    with np.errstate(all="ignore"):
        u = target(target.affine @ [x, y, np.ones(x.size)])
        w = rest[:9].reshape(3, 3) @ [*u, np.ones(x.size)]
        g = np.where(w[2] > 0, w[:2] / w[2], np.nan)
        if source.degree:
            g = _inverse(source, rest[9:15].reshape(2, 3), g, rest[21])
        return (rest[15:21].reshape(2, 3) @ [*g, np.ones(x.size)]).reshape(2, len(origin), *shape)


def _inverse(side: _Distortion, start: np.ndarray, g: np.ndarray, unit: float) -> np.ndarray:
    """Points u (2, n) with F(u) = g by Newton's method, where it goes without crossing a fold; NaN elsewhere."""
    u = start @ [*g, np.ones(g.shape[1])]
    found, alive = np.full_like(u, np.nan), np.isfinite(u).all(axis=0)
    for _ in range(MOST_STEPS):
        slope = side.slopes(u[:, alive])
        turned = start[:, :2] @ slope
        whole = (np.linalg.det(turned) > 0) & (np.trace(turned, axis1=1, axis2=2) > 0)
        alive[alive] = whole
        if not alive.any():
            break
        step = np.linalg.solve(slope[whole], (g - side(u))[:, alive].T[..., None])[..., 0].T
        u[:, alive] += step
        near = alive.copy()
        near[alive] = np.hypot(*step) <= STILL * unit
        found[:, near] = u[:, near]
        alive &= ~near
    return found


def check_cells(
    points: np.ndarray, spacing: int, source_shape: tuple[int, int], tolerance: float, goal: float, smooth: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    nodes, fine = np.ascontiguousarray(points[:, ::2, ::2]), points[:, 2:-2, 2:-2]
    around = np.lib.stride_tricks.sliding_window_view(nodes, (4, 4), axis=(1, 2))
    exact = np.lib.stride_tricks.sliding_window_view(fine, (3, 3), axis=(1, 2))[:, ::2, ::2]
    y, x = np.indices(fine.shape[1:]) * spacing / 2
    with np.errstate(invalid="ignore"):
        guess = np.einsum("ai,bj,cyxij->cyxab", _HALF, _HALF, around)
        error = np.sqrt(((guess - exact) ** 2).sum(axis=0)).max(axis=(2, 3))
        error = maximum_filter(np.where(np.isfinite(error), error, np.inf), 3, mode="nearest")
        middle = np.array([1.0, -27.0, 27.0, -1.0]) / 24  # derivative of the cubic at the middle, per cell
        d = [np.einsum("i,j,cyxij->cyx", *w, around) / spacing for w in ((_HALF[1], middle), (middle, _HALF[1]))]
        area = np.abs(d[0][0] * d[1][1] - d[0][1] * d[1][0])
        sx, sy = np.rint(fine[:, 0, 0])
        away = np.nan_to_num(np.abs(fine - [x + sx, y + sy]).max(axis=0), nan=np.inf)
    outside = _outside(exact, source_shape)
    used = (error <= tolerance) & smooth & ~outside
    must = ~used & ~outside
    cells = np.where(outside, CELL_OUTSIDE, np.where(used, CELL_INTERPOLATED, 0)).astype(np.int32)
    rows = [
        np.where(used, error, 0).max(axis=1),
        np.where(used, area, np.inf).min(axis=1),
        np.where(used, area, 0).max(axis=1),
        (~outside & (error > goal)).sum(axis=1),
        must.sum(axis=1),
        np.lib.stride_tricks.sliding_window_view(away.max(axis=1), 3)[::2].max(axis=1),
    ]
    return nodes, cells, np.stack(rows, axis=1).astype(float)


def _outside(exact: np.ndarray, source_shape: tuple[int, int]) -> np.ndarray:
    """Cells whose 3 x 3 exact positions (2, ny, nx, 3, 3) say that none of their pixels can lie in the source."""
    low, high = exact.min(axis=(3, 4)), exact.max(axis=(3, 4))  # NaN where one is NaN
    size = high - low
    n = np.array(source_shape[::-1], float)[:, None, None]
    with np.errstate(invalid="ignore"):
        misses = ((high + size < -0.5) | (low - size > n - 0.5)).any(axis=0)
    empty = np.pad(np.isnan(exact).any(axis=0).all(axis=(2, 3)), 1, constant_values=True)
    return misses | np.lib.stride_tricks.sliding_window_view(empty, (3, 3)).all(axis=(2, 3))
