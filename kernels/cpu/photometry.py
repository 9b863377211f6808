# SPDX-License-Identifier: BSD-3-Clause
"""Numba twins of the photometry of stamps."""

from __future__ import annotations

import math

import numpy as np

from skydelta.kernels.cpu.jit import inline, parallel, prange

MASKED, COUNTS, NEIGHBOUR, BEYOND = 0, 1, 2, 3
"""What a pixel of a stamp is: unusable, usable, of another source, beyond the image."""

ENOUGH = 0.5
"""Weight, in linear interpolation, that the usable pixels around a place must have."""


@inline
def _sector(px, py, qx, qy):
    return 0.5 * math.atan2(px * qy - py * qx, px * qx + py * qy)


@inline
def _edge(px, py, qx, qy):
    """Signed area of the unit disc within the triangle of its centre, p and q."""
    dx, dy = qx - px, qy - py
    a, b, c = dx * dx + dy * dy, px * dx + py * dy, px * px + py * py - 1
    root = b * b - a * c
    if root <= 0:
        return _sector(px, py, qx, qy)
    root = math.sqrt(root)
    first, last = (-b - root) / a, (-b + root) / a
    if last <= 0 or first >= 1:
        return _sector(px, py, qx, qy)
    area, mx, my, nx, ny = 0.0, px, py, qx, qy
    if first > 0:
        mx, my = px + first * dx, py + first * dy
        area += _sector(px, py, mx, my)
    if last < 1:
        nx, ny = px + last * dx, py + last * dy
        area += _sector(nx, ny, qx, qy)
    return area + 0.5 * (mx * ny - my * nx)


@inline
def _meets(px, py, qx, qy):
    """Whether a line from p to q has points inside the unit disc."""
    dx, dy = qx - px, qy - py
    along = dx * dx + dy * dy
    t = min(max(-(px * dx + py * dy) / along, 0.0), 1.0)
    x, y = px + t * dx, py + t * dy
    return x * x + y * y < 1


@inline
def _overlap(dx, dy, a, b, c, s):
    """Area of the pixel (dx, dy) px from its middle inside an ellipse of semi-axes a and b, rotated by (c, s).

    Exactly 0 and 1 where no part or the whole of it is inside.
    """
    u, v = (c * dx + s * dy) / a, (c * dy - s * dx) / b
    # half-diagonals of the pixel where the ellipse is the unit circle
    reach = 0.7072 / min(a, b)
    r = math.sqrt(u * u + v * v)
    if r >= 1 + reach:
        return 0.0
    if r + reach <= 1:
        return 1.0
    ax, ay, bx, by = 0.5 * c / a, -0.5 * s / b, 0.5 * s / a, 0.5 * c / b
    x0, y0, x1, y1 = u - ax - bx, v - ay - by, u + ax - bx, v + ay - by
    x2, y2, x3, y3 = u + ax + bx, v + ay + by, u - ax + bx, v - ay + by
    if max(x0 * x0 + y0 * y0, x1 * x1 + y1 * y1, x2 * x2 + y2 * y2, x3 * x3 + y3 * y3) <= 1:
        return 1.0
    beside = abs(dx) > 0.5 or abs(dy) > 0.5
    if beside and not (
        _meets(x0, y0, x1, y1) or _meets(x1, y1, x2, y2) or _meets(x2, y2, x3, y3) or _meets(x3, y3, x0, y0)
    ):
        return 0.0
    area = _edge(x0, y0, x1, y1) + _edge(x1, y1, x2, y2) + _edge(x2, y2, x3, y3) + _edge(x3, y3, x0, y0)
    return min(max(area * a * b, 0.0), 1.0)


@inline
def _opposite(data, variance, state, x, y):
    """Light and variance at a place between pixels, from those of the four around it that count; NaN where their
    weight is below `ENOUGH`."""
    i, j = int(np.floor(x)), int(np.floor(y))
    total, light, spread = 0.0, 0.0, 0.0
    for q in range(j, j + 2):
        for p in range(i, i + 2):
            if 0 <= q < data.shape[0] and 0 <= p < data.shape[1] and state[q, p] == COUNTS:
                w = (1 - abs(x - p)) * (1 - abs(y - q))
                total += w
                light += w * data[q, p]
                spread += w * variance[q, p]
    if total < ENOUGH:
        return np.nan, np.nan
    return light / total, spread / total


@inline
def _box(at, extent, side):
    """First pixel and the one after the last that an extent around ``at`` touches."""
    return max(int(np.floor(at - extent + 0.5)), 0), min(int(np.floor(at + extent + 0.5)) + 1, side)


@inline
def _leaves(at, extent, side):
    return at - extent < -0.5 or at + extent > side - 0.5


@parallel
def _apertures(data, variance, state, x, y, a, b, theta, out):
    for k in prange(len(x)):
        out[:, k] = 0
        if not (a[k] > 0 and b[k] > 0 and np.isfinite(x[k] + y[k] + a[k] + theta[k])):
            out[:, k] = np.nan
            continue
        c, s = math.cos(theta[k]), math.sin(theta[k])
        wide, high = math.hypot(a[k] * c, b[k] * s), math.hypot(a[k] * s, b[k] * c)
        left, right = _box(x[k], wide, data.shape[2])
        low, top = _box(y[k], high, data.shape[1])
        for j in range(low, top):
            for i in range(left, right):
                part = _overlap(i - x[k], j - y[k], a[k], b[k], c, s)
                if part == 0:
                    continue
                code = state[k, j, i]
                out[2 + code, k] += part
                if code == COUNTS:
                    out[0, k] += part * data[k, j, i]
                    out[1, k] += part * variance[k, j, i]
                elif code != BEYOND:
                    light, spread = _opposite(data[k], variance[k], state[k], 2 * x[k] - i, 2 * y[k] - j)
                    if not np.isnan(light):
                        out[0, k] += part * light
                        # with its own share such a pixel counts twice: four times its variance in all
                        out[1, k] += 3 * part * spread
        if _leaves(x[k], wide, data.shape[2]) or _leaves(y[k], high, data.shape[1]):
            whole = out[2, k] + out[3, k] + out[4, k] + out[5, k]
            out[2 + BEYOND, k] += max(math.pi * a[k] * b[k] - whole, 0.0)


@parallel
def _krons(data, state, x, y, a, b, theta, reach, out, seen):
    for k in prange(len(x)):
        out[k], seen[k] = np.nan, 0
        if not (a[k] > 0 and b[k] > 0 and np.isfinite(x[k] + y[k] + a[k] + theta[k])):
            continue
        c, s = math.cos(theta[k]), math.sin(theta[k])
        left, right = _box(x[k], reach * a[k], data.shape[2])
        low, top = _box(y[k], reach * a[k], data.shape[1])
        total, moment, codes = 0.0, 0.0, 0
        for j in range(low, top):
            for i in range(left, right):
                dx, dy = i - x[k], j - y[k]
                r = math.hypot((c * dx + s * dy) / a[k], (c * dy - s * dx) / b[k])
                if r <= reach:
                    codes |= 1 << state[k, j, i]
                    if state[k, j, i] == COUNTS:
                        total += data[k, j, i]
                        moment += r * data[k, j, i]
        wide, high = reach * math.hypot(a[k] * c, b[k] * s), reach * math.hypot(a[k] * s, b[k] * c)
        if _leaves(x[k], wide, data.shape[2]) or _leaves(y[k], high, data.shape[1]):
            codes |= 1 << BEYOND
        seen[k] = codes
        if total > 0 and moment > 0:
            out[k] = moment / total


def aperture_sums(data: np.ndarray, variance: np.ndarray, state: np.ndarray, ellipses: list[np.ndarray]) -> np.ndarray:
    x, y, a, b, theta = ellipses
    out = np.empty((6, len(x)))
    _apertures(data, variance, state, x, y, a, b, theta, out)
    return out


def kron_radii(
    data: np.ndarray, state: np.ndarray, ellipses: list[np.ndarray], reach: float
) -> tuple[np.ndarray, np.ndarray]:
    x, y, a, b, theta = ellipses
    out, seen = np.empty(len(x)), np.empty(len(x), np.uint8)
    _krons(data, state, x, y, a, b, theta, reach, out, seen)
    return out, seen
