# SPDX-License-Identifier: BSD-3-Clause
"""Numba twins of the photometry of stamps."""

from __future__ import annotations

import math

import numpy as np

from skydelta.kernels.cpu.jit import inline, parallel, prange


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
def _overlap(dx, dy, a, b, c, s):
    """Area of the pixel (dx, dy) px from its middle inside an ellipse of semi-axes a and b, rotated by (c, s)."""
    u, v = (c * dx + s * dy) / a, (c * dy - s * dx) / b
    # half-diagonals of the pixel where the ellipse is the unit circle
    reach = 0.7072 / min(a, b)
    r = math.sqrt(u * u + v * v)
    if r >= 1 + reach:
        return 0.0
    if r + reach <= 1:
        return 1.0
    ax, ay, bx, by = 0.5 * c / a, -0.5 * s / b, 0.5 * s / a, 0.5 * c / b
    area = _edge(u - ax - bx, v - ay - by, u + ax - bx, v + ay - by)
    area += _edge(u + ax - bx, v + ay - by, u + ax + bx, v + ay + by)
    area += _edge(u + ax + bx, v + ay + by, u - ax + bx, v - ay + by)
    area += _edge(u - ax + bx, v - ay + by, u - ax - bx, v - ay - by)
    return area * a * b


@inline
def _box(at, extent, side):
    """First pixel and the one after the last that an extent around ``at`` touches."""
    return max(int(np.floor(at - extent + 0.5)), 0), min(int(np.floor(at + extent + 0.5)) + 1, side)


@parallel
def _apertures(data, variance, use, x, y, a, b, theta, out):
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
                if use[k, j, i]:
                    part = _overlap(i - x[k], j - y[k], a[k], b[k], c, s)
                    out[0, k] += part * data[k, j, i]
                    out[1, k] += part * variance[k, j, i]
                    out[2, k] += part


@parallel
def _krons(data, use, x, y, a, b, theta, reach, out):
    for k in prange(len(x)):
        out[k] = np.nan
        if not (a[k] > 0 and b[k] > 0 and np.isfinite(x[k] + y[k] + a[k] + theta[k])):
            continue
        c, s = math.cos(theta[k]), math.sin(theta[k])
        left, right = _box(x[k], reach * a[k], data.shape[2])
        low, top = _box(y[k], reach * a[k], data.shape[1])
        total, moment = 0.0, 0.0
        for j in range(low, top):
            for i in range(left, right):
                dx, dy = i - x[k], j - y[k]
                r = math.hypot((c * dx + s * dy) / a[k], (c * dy - s * dx) / b[k])
                if r <= reach and use[k, j, i]:
                    total += data[k, j, i]
                    moment += r * data[k, j, i]
        if total > 0 and moment > 0:
            out[k] = moment / total


def aperture_sums(data: np.ndarray, variance: np.ndarray, use: np.ndarray, ellipses: list[np.ndarray]) -> np.ndarray:
    x, y, a, b, theta = ellipses
    out = np.empty((3, len(x)))
    _apertures(data, variance, use, x, y, a, b, theta, out)
    return out


def kron_radii(data: np.ndarray, use: np.ndarray, ellipses: list[np.ndarray], reach: float) -> np.ndarray:
    x, y, a, b, theta = ellipses
    out = np.empty(len(x))
    _krons(data, use, x, y, a, b, theta, reach, out)
    return out
