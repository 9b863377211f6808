# SPDX-License-Identifier: BSD-3-Clause
"""CPU twins of the map kernels."""

from __future__ import annotations

import math

import numpy as np

from skydelta.kernels.cpu.jit import inline, parallel, prange, serial
from skydelta.kernels.maps import END, MOST_STEPS, RADIAL, STILL, TERMS
from skydelta.kernels.resample import CELL_INTERPOLATED, CELL_OUTSIDE

_AFFINE, _RADIAL, _TERMS = 1, 7, 7 + 2 * RADIAL
_HOMOGRAPHY, _START, _BACK, _UNIT = 2 * END, 2 * END + 9, 2 * END + 15, 2 * END + 21


@inline
def _affine(a, x, y):
    return a[0] * x + a[1] * y + a[2], a[3] * x + a[4] * y + a[5]


@inline
def _component(end, degree, k, u, v):
    """F_k(u, v) and its derivatives along u and v."""
    terms = end[_TERMS + k * TERMS :]
    at = (degree + 1) * (degree + 2) // 2
    f = fu = fv = 0.0
    for j in range(degree, -1, -1):
        at -= degree - j + 1
        p, slope = terms[at + degree - j], 0.0
        for i in range(degree - j - 1, -1, -1):
            slope = slope * u + p
            p = p * u + terms[at + i]
        fv = fv * v + f
        f = f * v + p
        fu = fu * v + slope
    c = end[_RADIAL + k * RADIAL :]
    square = u * u + v * v
    if square > 0 and (c[0] != 0 or c[1] != 0 or c[2] != 0 or c[3] != 0):
        r = math.sqrt(square)
        f += r * (c[0] + square * (c[1] + square * (c[2] + square * c[3])))
        slope = (c[0] + square * (3 * c[1] + square * (5 * c[2] + square * 7 * c[3]))) / r
        fu += slope * u
        fv += slope * v
    return f, fu, fv


@inline
def _invert(chain, gx, gy):
    """u, v of the source with F(u, v) = g; NaN where there is none before the first fold."""
    end = chain[END:]
    degree = int(end[0])
    s = chain[_START:]
    u, v = _affine(s, gx, gy)
    limit = STILL * chain[_UNIT]
    for _ in range(MOST_STEPS):
        f, fu, fv = _component(end, degree, 0, u, v)
        g, gu, gv = _component(end, degree, 1, u, v)
        # the slopes against their linear part: eigenvalues whose real parts are positive, or a fold lies between
        a, d = s[0] * fu + s[1] * gu, s[3] * fv + s[4] * gv
        b, c = s[0] * fv + s[1] * gv, s[3] * fu + s[4] * gu
        if not (a + d > 0 and a * d - b * c > 0):
            break
        f, g = gx - f, gy - g
        scale = 1 / (fu * gv - fv * gu)
        du, dv = (gv * f - fv * g) * scale, (fu * g - gu * f) * scale
        u += du
        v += dv
        if du * du + dv * dv <= limit * limit:
            return u, v
    return math.nan, math.nan


@inline
def _position(chain, x, y):
    u, v = _affine(chain[_AFFINE:], x, y)
    degree = int(chain[0])
    if degree:
        f, _, _ = _component(chain, degree, 0, u, v)
        v, _, _ = _component(chain, degree, 1, u, v)
        u = f
    h = chain[_HOMOGRAPHY:]
    w = h[6] * u + h[7] * v + h[8]
    if not w > 0:
        return math.nan, math.nan
    u, v = (h[0] * u + h[1] * v + h[2]) / w, (h[3] * u + h[4] * v + h[5]) / w
    if chain[END] > 0:
        u, v = _invert(chain, u, v)
    return _affine(chain[_BACK:], u, v)


@parallel
def _points(chain, origin, step, out):
    _, k, ny, nx = out.shape
    for line in prange(k * ny):
        n, i = np.int64(line) // ny, np.int64(line) % ny
        for j in range(nx):
            out[0, n, i, j], out[1, n, i, j] = _position(chain, origin[n, 0] + step * j, origin[n, 1] + step * i)


def tangent_points(chain: np.ndarray, origin: np.ndarray, step: float, shape: tuple[int, int]) -> np.ndarray:
    out = np.empty((2, len(origin), *shape))
    _points(chain, origin, step, out)
    return out


@serial
def inverse_gap(chain, side, height, width):
    """Largest distance (source px) that the inverse misses points of a side x side lattice over the source by.

    The lattice reaches the outer edges of the pixels; inf where there is no inverse.
    """
    end = chain[END:]
    degree = int(end[0])
    worst = 0.0
    if degree == 0:
        return worst
    a = end[_AFFINE:]
    for i in range(side):
        for j in range(side):
            x, y = width * j / (side - 1) - 0.5, height * i / (side - 1) - 0.5
            u, v = _affine(a, x, y)
            f, _, _ = _component(end, degree, 0, u, v)
            g, _, _ = _component(end, degree, 1, u, v)
            u, v = _invert(chain, f, g)
            px, py = _affine(chain[_BACK:], u, v)
            gap = math.hypot(px - x, py - y)
            worst = max(worst, gap if gap < math.inf else math.inf)
    return worst


_MIDDLE = (-0.0625, 0.5625, 0.5625, -0.0625)
_SLOPE = (1 / 24, -27 / 24, 27 / 24, -1 / 24)
"""Cubic Lagrange weights of nodes at -1, 0, 1, 2 for the value and the derivative at 1/2."""


@inline
def _cell(points, i, j, source_shape):
    """Error (px), |determinant| (per cell), whether the cell misses the source, and whether it has no map at all."""
    y, x = 2 * i + 2, 2 * j + 2  # its first corner
    low = np.full(2, math.inf)
    high = np.full(2, -math.inf)
    known, lost = True, True
    for a in range(3):
        for b in range(3):
            at_x, at_y = points[0, y + a, x + b], points[1, y + a, x + b]
            finite = math.isfinite(at_x) and math.isfinite(at_y)
            known &= finite
            lost &= math.isnan(at_x) or math.isnan(at_y)
            low[0], low[1] = min(low[0], at_x), min(low[1], at_y)
            high[0], high[1] = max(high[0], at_x), max(high[1], at_y)
    misses = False
    if known:
        for c in range(2):
            size = high[c] - low[c]
            n = source_shape[1 - c]
            misses |= high[c] + size < -0.5 or low[c] - size > n - 0.5
    worst = 0.0
    gap = np.zeros((2, 5))
    slope = np.zeros((2, 2))
    for c in range(2):
        nodes = points[c]
        down = np.zeros((3, 4))  # along y at 0, 1/2 and 1, at the four nodes across
        fall = np.zeros(4)
        for k in range(4):
            for m in range(4):
                value = nodes[y - 2 + 2 * m, x - 2 + 2 * k]
                known &= math.isfinite(value)
                down[1, k] += _MIDDLE[m] * value
                fall[k] += _SLOPE[m] * value
            down[0, k], down[2, k] = nodes[y, x - 2 + 2 * k], nodes[y + 2, x - 2 + 2 * k]
        for a in range(3):
            middle = 0.0
            for k in range(4):
                middle += _MIDDLE[k] * down[a, k]
            gap[c, a] = middle - nodes[y + a, x + 1]
        gap[c, 3] = down[1, 1] - nodes[y + 1, x]
        gap[c, 4] = down[1, 2] - nodes[y + 1, x + 2]
        for k in range(4):
            slope[c, 0] += _SLOPE[k] * down[1, k]
            slope[c, 1] += _MIDDLE[k] * fall[k]
    for a in range(5):
        worst = max(worst, math.sqrt(gap[0, a] ** 2 + gap[1, a] ** 2))
    area = abs(slope[0, 0] * slope[1, 1] - slope[0, 1] * slope[1, 0])
    return (worst if known else math.inf), area, misses, lost


@parallel
def _measured(points, source_shape, nodes, error, area, flags):
    ny, nx = error.shape
    for row in prange(ny + 3):
        i = np.int64(row)
        for j in range(nx + 3):
            nodes[0, i, j], nodes[1, i, j] = points[0, 2 * i, 2 * j], points[1, 2 * i, 2 * j]
        if i < ny:
            for j in range(nx):
                error[i, j], area[i, j], misses, lost = _cell(points, i, j, source_shape)
                flags[i, j] = (1 if misses else 0) + (2 if lost else 0)


@inline
def _away(points, i, j, half, sx, sy):
    """Largest difference of x or y to a shift at the nine points of a cell; inf where there is no map."""
    worst = 0.0
    for a in range(2 * i, 2 * i + 3):
        for b in range(2 * j, 2 * j + 3):
            gap = max(abs(points[0, a + 2, b + 2] - half * b - sx), abs(points[1, a + 2, b + 2] - half * a - sy))
            worst = max(worst, gap if gap < math.inf else math.inf)
    return worst


@parallel
def _judged(points, spacing, tolerance, goal, smooth, error, area, flags, cells, rows):
    ny, nx = error.shape
    half = 0.5 * spacing
    sx, sy = np.rint(points[0, 2, 2]), np.rint(points[1, 2, 2])
    for row in prange(ny):
        i = np.int64(row)
        found = rows[i]
        found[0], found[1], found[2], found[3], found[4], found[5] = 0.0, math.inf, 0.0, 0.0, 0.0, 0.0
        for j in range(nx):
            worst, lost = 0.0, True
            for a in range(i - (i > 0), min(ny, i + 2)):
                for b in range(j - (j > 0), min(nx, j + 2)):
                    worst = max(worst, error[a, b])
                    lost &= (flags[a, b] & 2) != 0
            found[5] = max(found[5], _away(points, i, j, half, sx, sy))
            if lost or flags[i, j] & 1:
                cells[i, j] = CELL_OUTSIDE
                continue
            found[3] += worst > goal
            if smooth and worst <= tolerance:
                cells[i, j] = CELL_INTERPOLATED
                here = area[i, j] / (spacing * spacing)
                found[0], found[1], found[2] = max(found[0], worst), min(found[1], here), max(found[2], here)
            else:
                cells[i, j] = 0
                found[4] += 1


def check_cells(
    points: np.ndarray, spacing: int, source_shape: tuple[int, int], tolerance: float, goal: float, smooth: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ny, nx = (n // 2 - 2 for n in points.shape[1:])
    nodes, cells, rows = np.empty((2, ny + 3, nx + 3)), np.empty((ny, nx), np.int32), np.empty((ny, 6))
    error, area, flags = np.empty((ny, nx)), np.empty((ny, nx)), np.empty((ny, nx), np.uint8)
    _measured(points, np.array(source_shape, float), nodes, error, area, flags)
    _judged(points, spacing, tolerance, goal, smooth, error, area, flags, cells, rows)
    return nodes, cells, rows
