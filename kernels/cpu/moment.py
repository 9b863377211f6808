# SPDX-License-Identifier: BSD-3-Clause
"""Numba twin of the linear dipole with its centre free: the maths of ``kernels/cuda/moment.cuh``."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.fit import _solve, _sum_stamp, _writeable
from skydelta.kernels.cpu.jit import inline, parallel, prange, serial
from skydelta.kernels.cpu.shifted import _padded
from skydelta.kernels.fit import BOUND, SETTLED, TURNS

BESIDE = np.array([(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1)], float)
"""Where chi2 is looked at, in steps along x and y."""


@inline
def _axes(curve, least, along, value):
    """Principal axes (2, 2; the first index counts them) of the curvature of chi2 (xx, xy, yy)."""
    middle, half = 0.5 * (curve[0] + curve[2]), 0.5 * (curve[0] - curve[2])
    apart, angle = np.hypot(half, curve[1]), 0.5 * np.arctan2(curve[1], half)
    along[0, 0] = along[1, 1] = np.cos(angle)
    along[0, 1] = np.sin(angle)
    along[1, 0] = -along[0, 1]
    value[0], value[1] = middle + apart, middle - apart


@inline
def _beside(used, weighted, padded, at, h, square, column, gram, chi2, moment, covariance):
    """chi2 (7,) and linear dipoles (7, n) at the places `BESIDE` ``at``, and the covariance of the first."""
    n = len(covariance)
    q, other, every = np.empty(2), np.empty((n, n)), np.arange(n)
    for b in range(len(BESIDE)):
        for i in range(2):
            q[i] = at[i] + h * BESIDE[b, i]
        gram[n, n] = square
        _sum_stamp(used, weighted, padded, False, 1.0, q, 3, column, gram)
        chi2[b] = _solve(gram, every, other, moment[b])
        if not np.isfinite(chi2[b]):
            moment[b] = np.nan
            other[:] = np.nan
        if b == 0:
            covariance[:] = other


@serial
def _centre(data, weight, padded, start, width, terms, out):
    """Fit one stamp: a row of ``linear_dipole``."""
    side, n = data.shape[0], 3 + terms
    rows = (side + 3) // 4 * 4
    used, weighted, square = np.zeros((rows, side)), np.zeros((rows, side)), 0.0
    gram, column = np.zeros((n + 1, n + 1)), np.zeros((n + 1, rows, side))
    for y in range(side):
        for x in range(side):
            for i in range(terms):
                column[3 + i, y, x] = 1 if i == 0 else (x if i == 1 else y) - side // 2
            if weight[y, x] > 0:
                used[y, x] = weight[y, x]
                weighted[y, x] = used[y, x] * data[y, x]
                square += weighted[y, x] * data[y, x]
    h, least = 0.004 * width, 2 / width**2
    chi2, moment, covariance = np.empty(7), np.empty((7, n)), np.empty((n, n))
    along, value, slope, curve = np.empty((2, 2)), np.empty(2), np.empty(2), np.empty(3)
    place, trial, step, bend, change = start.copy(), start.copy(), np.empty(2), np.empty(3), np.empty((2, n))
    best, best_moment, best_covariance = np.nan, np.empty(n), np.empty((n, n))
    first, last, running, share, turns = True, False, True, 1.0, TURNS
    while running:
        _beside(used, weighted, padded, trial, h, square, column, gram, chi2, moment, covariance)
        running = not last and turns > 0
        turns -= 1
        if first or chi2[0] < best:
            best, share = chi2[0], 1.0
            best_moment[:] = moment[0]
            best_covariance[:] = covariance
            for k in range(3):
                bend[k] = chi2[2 * k + 1] + chi2[2 * k + 2] - 2 * chi2[0]
            for k in range(2):
                place[k] = trial[k]
                slope[k] = (chi2[2 * k + 1] - chi2[2 * k + 2]) / (2 * h)
                for i in range(n):
                    change[k, i] = (moment[2 * k + 1, i] - moment[2 * k + 2, i]) / (2 * h)
            curve[0], curve[1], curve[2] = bend[0] / h**2, 0.5 * (bend[2] - bend[0] - bend[1]) / h**2, bend[1] / h**2
        else:
            # a step that leads up is tried once more, shorter
            running = running and share == 1
            share = 0.25
        first = False
        if not running:
            break
        _axes(curve, least, along, value)
        far = 0.0
        step[:] = 0
        for k in range(2):
            up, sharp = along[k, 0] * slope[0] + along[k, 1] * slope[1], value[k] if value[k] > least else least
            # where chi2 has no minimum nearby: downhill
            by = -up / sharp if value[k] > least else (-width if up > 0 else width)
            by = max(-width, min(width, by))
            running = running and np.isfinite(up) and np.isfinite(by)
            far = max(far, abs(by) * np.sqrt(sharp / 2))
            for i in range(2):
                step[i] += by * along[k, i]
        last = far <= SETTLED
        for i in range(2):
            trial[i] = max(start[i] - BOUND, min(start[i] + BOUND, place[i] + share * step[i]))
    _axes(curve, least, along, value)
    out[0] = best
    out[3] = out[4] = 0
    for i in range(n):
        out[5 + i] = best_moment[i]
        for j in range(n):
            out[5 + n + n * i + j] = best_covariance[i, j]
    for k in range(2):
        spread = 2 / (value[k] if value[k] > least else least)
        for i in range(n):
            moment[k, i] = along[k, 0] * change[0, i] + along[k, 1] * change[1, i]
        for i in range(n):
            for j in range(n):
                out[5 + n + n * i + j] += spread * moment[k, i] * moment[k, j]
        for i in range(2):
            out[3 + i] += spread * along[k, i] ** 2
    for i in range(2):
        out[1 + i] = place[i]
        out[3 + i] = np.sqrt(out[3 + i])


@parallel
def _centre_all(data, weight, psf, start, width, stamp, terms, out):
    for k in prange(start.shape[0]):
        at = stamp[k]
        _centre(data[at], weight[at], _padded(psf[at]), start[k], width[k], terms, out[k])


def linear_dipole(
    data: np.ndarray,
    weight: np.ndarray,
    psf: np.ndarray,
    start: np.ndarray,
    width: np.ndarray,
    stamp: np.ndarray,
    terms: int = 1,
) -> np.ndarray:
    n = 3 + terms
    out = np.empty((len(start), 5 + n + n * n))
    _centre_all(
        _writeable(data, np.float32),
        _writeable(weight, np.float32),
        _writeable(psf, np.float64),
        _writeable(start, np.float64),
        _writeable(width, np.float64),
        _writeable(stamp, np.int64),
        terms,
        out,
    )
    return out
