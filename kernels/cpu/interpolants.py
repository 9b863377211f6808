# SPDX-License-Identifier: BSD-3-Clause
"""Weights of the interpolation kernels along one axis, and the prefilter of the splines."""

from __future__ import annotations

import math

import numpy as np

from skydelta.kernels.cpu.jit import inline, parallel, prange
from skydelta.kernels.resample import METHODS

POLE = math.sqrt(3.0) - 2.0
"""Pole of the cubic B-spline prefilter (Unser 1999)."""

POLE5 = (
    math.sqrt(67.5 - math.sqrt(4436.25)) + math.sqrt(26.25) - 6.5,
    math.sqrt(67.5 + math.sqrt(4436.25)) - math.sqrt(26.25) - 6.5,
)
"""Poles of the quintic B-spline prefilter (Unser 1999)."""

POLES = {0: (), 3: (POLE,), 5: POLE5}
"""Poles of the prefilter by degree."""

FORGOTTEN = 1e-16
"""Part of its start that a recursion has still in mind where its starting sum is cut off."""

COLUMNS = 32
"""Columns filtered together."""

NEAREST, BILINEAR, BSPLINE3, LANCZOS3, BSPLINE5, LANCZOS4, LANCZOS5 = range(len(METHODS))

_Z, _Y = POLE5
_A = 120.0 * _Z / ((_Z - 1.0 / _Z) * (_Z - _Y) * (_Z - 1.0 / _Y))
_B = 120.0 * _Y / ((_Y - 1.0 / _Y) * (_Y - _Z) * (_Y - 1.0 / _Z))
# Impulse response of the quintic prefilter at n: _A _Z^|n| + _B _Y^|n|. Of the squares summed over n >= 1:
_AA = _A * _A * _Z * _Z / (1.0 - _Z * _Z)
_AB = 2.0 * _A * _B * _Z * _Y / (1.0 - _Z * _Y)
_BB = _B * _B * _Y * _Y / (1.0 - _Y * _Y)


# ---- prefilter ----


def prefilter(values: np.ndarray, degree: int) -> None:
    """Turn samples into B-spline coefficients in place, with mirrored borders.

    Parameters
    ----------
    values : float32 (h, w)
    degree : {3, 5}
    """
    poles = np.array(POLES[degree])
    gain = {3: 6.0, 5: 120.0}[degree]
    horizon = np.ceil(math.log(FORGOTTEN) / np.log(np.abs(poles))).astype(np.int64)
    _filter_rows(values, poles, horizon, gain)
    _filter_columns(values, poles, horizon, gain)


@parallel
def _filter_rows(values, poles, horizon, gain):
    h, w = values.shape
    if w > 1:
        for y in prange(h):
            line = np.empty((w, 1))
            for x in range(w):
                line[x, 0] = values[y, x]
            _filter_lines(line, poles, horizon)
            for x in range(w):
                values[y, x] = gain * line[x, 0]


@parallel
def _filter_columns(values, poles, horizon, gain):
    h, w = values.shape
    if h > 1:
        for block in prange((w + COLUMNS - 1) // COLUMNS):
            x0 = block * COLUMNS
            n = min(COLUMNS, w - x0)
            lines = np.empty((h, n))
            for y in range(h):
                for k in range(n):
                    lines[y, k] = values[y, x0 + k]
            _filter_lines(lines, poles, horizon)
            for y in range(h):
                for k in range(n):
                    values[y, x0 + k] = gain * lines[y, k]


@inline
def _filter_lines(lines, poles, horizon):
    """Causal and anti-causal recursion of each pole along axis 0, in place; mirrored borders (Unser 1999, box 2)."""
    n, m = lines.shape
    for p in range(poles.size):
        pole = poles[p]
        for k in range(m):
            start = 0.0
            z = 1.0
            for i in range(horizon[p]):
                start += z * lines[mirror(i, n), k]
                z *= pole
            lines[0, k] = start  # pixel 0 is read for i = 0 only until here, or again when the line is short
        for i in range(1, n):
            for k in range(m):
                lines[i, k] += pole * lines[i - 1, k]
        for k in range(m):
            lines[n - 1, k] = pole / (pole * pole - 1.0) * (lines[n - 1, k] + pole * lines[n - 2, k])
        for i in range(n - 2, -1, -1):
            for k in range(m):
                lines[i, k] = pole * (lines[i + 1, k] - lines[i, k])


@inline
def mirror(i, n):
    """Index of a line of n pixels mirrored about its end pixels."""
    if 0 <= i < n:
        return i
    if n == 1:
        return 0
    period = 2 * (n - 1)
    i = abs(i) % period
    return period - i if i >= n else i


# ---- weights ----


@inline
def weights(method, f, b, w):
    """Weights of coefficients (b, splines alone) and of pixels (w), lowest first, for fractions f (n,)."""
    if method == NEAREST:
        w[0] = 1.0
    elif method == BILINEAR:
        for i in range(f.size):
            w[0, i] = 1.0 - f[i]
            w[1, i] = f[i]
    elif method == BSPLINE3:
        _bspline(f, b)
        _cardinal(b, w)
    elif method == BSPLINE5:
        _bspline5(f, b)
        _cardinal5(b, w)
    elif method == LANCZOS3:
        _lanczos3(f, w)
    else:
        _lanczos(4 if method == LANCZOS4 else 5, f, b, w)


@inline
def _bspline(f, b):
    """Cubic B-spline weights (4, n) of the coefficients at -1, 0, 1, 2 for fractions f (n,)."""
    for i in range(f.size):
        t, g = f[i], 1.0 - f[i]
        b[0, i] = g * g * g / 6.0
        b[1, i] = 2.0 / 3.0 - 0.5 * t * t * (2.0 - t)
        b[2, i] = 2.0 / 3.0 - 0.5 * g * g * (2.0 - g)
        b[3, i] = t * t * t / 6.0


@inline
def _cardinal(b, w):
    """Cardinal spline weights (6, n) of the pixels at -2 ... 3 from the B-spline weights (4, n).

    The outer two stand for all pixels further out: their squares are the sums of those squares, geometric series.
    """
    z, root3, tail = POLE, math.sqrt(3.0), POLE / math.sqrt(1.0 - POLE * POLE)
    for i in range(b.shape[1]):
        b0, b1, b2, b3 = b[0, i], b[1, i], b[2, i], b[3, i]
        w1 = root3 * (b0 + z * (b1 + z * (b2 + z * b3)))
        w4 = root3 * (b3 + z * (b2 + z * (b1 + z * b0)))
        w[0, i] = tail * w1
        w[1, i] = w1
        w[2, i] = root3 * (b1 + z * (b0 + b2 + z * b3))
        w[3, i] = root3 * (b2 + z * (b1 + b3 + z * b0))
        w[4, i] = w4
        w[5, i] = tail * w4


@inline
def _bspline5(f, b):
    """Quintic B-spline weights (6, n) of the coefficients at -2 ... 3 for fractions f (n,)."""
    for i in range(f.size):
        t, g = f[i], 1.0 - f[i]
        t2, g2 = t * t, g * g
        b[0, i] = g2 * g2 * g / 120.0
        b[1, i] = _outer5(t + 1.0)
        b[2, i] = 0.55 - t2 * (0.5 - t2 * (0.25 - t / 12.0))
        b[3, i] = 0.55 - g2 * (0.5 - g2 * (0.25 - g / 12.0))
        b[4, i] = _outer5(g + 1.0)
        b[5, i] = t2 * t2 * t / 120.0


@inline
def _outer5(x):
    """Quintic B-spline at distances 1 to 2."""
    return 0.425 + x * (0.625 - x * (1.75 - x * (1.25 - x * (0.375 - x / 24.0))))


@inline
def _cardinal5(b, w):
    """Cardinal spline weights (8, n) of the pixels at -3 ... 4 from the B-spline weights (6, n); ends as there."""
    for i in range(b.shape[1]):
        left_z = left_y = right_z = right_y = 0.0
        for k in range(6):  # weights of pixels at or below k, then those above
            left_z = b[k, i] + _Z * left_z
            left_y = b[k, i] + _Y * left_y
            w[k + 1, i] = _A * left_z + _B * left_y
        w[7, i] = math.sqrt(_AA * left_z * left_z + _AB * left_z * left_y + _BB * left_y * left_y)
        for k in range(5, -1, -1):
            w[k + 1, i] += _A * _Z * right_z + _B * _Y * right_y
            right_z = b[k, i] + _Z * right_z
            right_y = b[k, i] + _Y * right_y
        w[0, i] = math.sqrt(_AA * right_z * right_z + _AB * right_z * right_y + _BB * right_y * right_y)


@inline
def _lanczos(a, f, b, w):
    """Lanczos weights (2 a, n) of the pixels at 1 - a ... a, normalised to sum 1; ``b`` (4, n) is scratch.

    sin(pi (t + k)) is +-sin(pi t), and sin(pi (t + k) / a) a rotation of (sin, cos)(pi t / a) by pi k / a.
    """
    turn = math.pi / a
    for i in range(f.size):
        b[0, i], b[1, i], b[2, i] = math.sin(math.pi * f[i]), math.sin(turn * f[i]), math.cos(turn * f[i])
        b[3, i] = 0.0
    for k in range(2 * a):
        m = a - 1 - k
        sign = 1.0 if m % 2 == 0 else -1.0
        c, s = sign * math.cos(turn * m), sign * math.sin(turn * m)
        for i in range(f.size):
            d = f[i] + m
            d = d if abs(d) > 1e-6 else 1.0
            v = b[0, i] * (b[1, i] * c + b[2, i] * s) / (d * d)
            w[k, i] = v
            b[3, i] += v
    for k in range(2 * a):
        for i in range(f.size):
            w[k, i] /= b[3, i]
    for i in range(f.size):
        if f[i] < 1e-6 or f[i] > 1.0 - 1e-6:
            for k in range(2 * a):
                w[k, i] = 0.0
            w[a - 1 if f[i] < 0.5 else a, i] = 1.0


@inline
def _lanczos3(f, w):
    """Lanczos3 weights (6, n) of the pixels at -2 ... 3, normalised to sum 1.

    With one sine, of pi t / 3: sin(pi t) is 3 sin - 4 sin^3 of it, and sin(pi (t + k)) is +-sin(pi t), and
    sin(pi (t + k) / 3) a rotation of (sin, cos)(pi t / 3) by 60 degrees k. The sine is its series to the 15th power,
    below 1e-14 for these angles.
    """
    half3 = math.sqrt(3.0) / 2.0
    for i in range(f.size):
        t0 = f[i]
        u = math.pi * t0 / 3.0
        q = u * u
        s3 = u * (1.0 + q * (-1.0 / 6.0 + q * (1.0 / 120.0 + q * (-1.0 / 5040.0 + q * (1.0 / 362880.0 + q * (
            -1.0 / 39916800.0 + q * (1.0 / 6227020800.0 - q / 1307674368000.0)))))))  # fmt: skip
        c3 = math.sqrt(1.0 - s3 * s3)
        s = s3 * (3.0 - 4.0 * s3 * s3)
        plus, minus = 0.5 * s3 + half3 * c3, 0.5 * s3 - half3 * c3  # 60 degrees forwards and back
        a, b, c, d, e, g = t0 + 2.0, t0 + 1.0, t0, t0 - 1.0, t0 - 2.0, t0 - 3.0
        c = c if c > 1e-6 else 1.0
        d = d if d < -1e-6 else 1.0
        # angles of 120, 60, 0, -60, -120 and -180 degrees
        w0 = -minus * s / (a * a)
        w1 = -plus * s / (b * b)
        w2 = s3 * s / (c * c)
        w3 = -minus * s / (d * d)
        w4 = -plus * s / (e * e)
        w5 = s3 * s / (g * g)
        w2 = w2 if t0 > 1e-6 else math.pi * math.pi / 3.0
        w3 = w3 if t0 < 1.0 - 1e-6 else math.pi * math.pi / 3.0
        total = 1.0 / (w0 + w1 + w2 + w3 + w4 + w5)
        w[0, i] = w0 * total
        w[1, i] = w1 * total
        w[2, i] = w2 * total
        w[3, i] = w3 * total
        w[4, i] = w4 * total
        w[5, i] = w5 * total
