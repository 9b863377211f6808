# SPDX-License-Identifier: BSD-3-Clause
"""Numba twins of the lobe fits: the maths of ``kernels/cuda/fit.cuh``, a stamp a loop turn, a row of pixels at a time.

The Gram matrix has a row and a column for value, d/dx and d/dy of each lobe, then for the terms of the background (the
first of 1, x, y); its last row holds the sums with the data: right-hand side, then sum w d^2. A trail
is one lobe with two columns more, the derivatives by the vector from one of its ends to the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.ndimage import spline_filter1d

from skydelta.kernels.cpu.gaussians import _sum_gaussians
from skydelta.kernels.cpu.jit import inline, parallel, prange, serial
from skydelta.kernels.cpu.shifted import _lines, _padded, _row, _trail, _width
from skydelta.kernels.fit import BOUND, LEAST_WIDTH, MAX_EVALUATIONS, Status

CONVERGED, AT_BOUND, SINGULAR, OUT_OF_EVALUATIONS, NO_DATA = (int(s) for s in Status)


@inline
def _products(a, b, line):
    """Sum of the products of two planes (r, s), r a multiple of 4; ``line`` (s,) is scratch."""
    for x in range(len(line)):
        line[x] = 0
    for y in range(0, a.shape[0], 4):
        for x in range(len(line)):
            # in one expression: what is added up stays in a register
            line[x] += (
                a[y, x] * b[y, x] + a[y + 1, x] * b[y + 1, x] + a[y + 2, x] * b[y + 2, x] + a[y + 3, x] * b[y + 3, x]
            )
    total = 0.0
    for x in range(len(line)):
        total += line[x]
    return total


@inline
def _sum_stamp(weight, weighted, padded, spot, width, q, step, column, gram):
    """Gram sums at positions ``q``, but for the last element.

    ``column`` (n + 1, r, s) is scratch but for the background's columns, and 0 from row s on.
    """
    n, side = column.shape[0] - 1, column.shape[2]
    lobes = len(q) // 2 if step == 3 else 0
    line, product = np.empty(side), column[n]
    lines, w = np.empty((2, side + 3, side)), np.empty((2, 2, 4))
    if step == 5:
        _trail(padded, spot, width, q, side, column)
    for k in range(lobes):
        low, high = _lines(padded, spot, q[2 * k], q[2 * k + 1], side, w, lines)
        for y in range(side):
            if low <= y <= high:
                _row(lines, y, w[1], column[3 * k, y], column[3 * k + 1, y], column[3 * k + 2, y])
            else:
                for i in range(3 * k, 3 * k + 3):
                    for x in range(side):
                        column[i, y, x] = 0
    for i in range(n):
        for y in range(side):
            for x in range(side):
                product[y, x] = weight[y, x] * column[i, y, x]
        for j in range(i, n):
            gram[i, j] = gram[j, i] = _products(product, column[j], line)
        gram[i, n] = gram[n, i] = _products(weighted, column[i], line)


@inline
def _factor(a, low):
    """Cholesky factor, its diagonal inverted; False when the matrix is singular."""
    n = a.shape[0]
    for i in range(n):
        for j in range(i + 1):
            v = a[i, j]
            for k in range(j):
                v -= low[i, k] * low[j, k]
            if i != j:
                low[i, j] = v * low[j, j]
            elif v > 1e-12 * a[i, i] and v > 0:
                low[i, i] = 1 / np.sqrt(v)
            else:
                return False
    return True


@inline
def _substitute(low, z):
    n = len(z)
    for i in range(n):
        for k in range(i):
            z[i] -= low[i, k] * z[k]
        z[i] *= low[i, i]
    for i in range(n - 1, -1, -1):
        for k in range(i + 1, n):
            z[i] -= low[k, i] * z[k]
        z[i] *= low[i, i]


@inline
def _invert(a):
    """Invert a symmetric positive definite matrix in place; False when it is not."""
    n = a.shape[0]
    low = np.empty((n, n))
    if not _factor(a, low):
        return False
    for j in range(n):
        z = np.zeros(n)
        z[j] = 1
        _substitute(low, z)
        for i in range(n):
            a[i, j] = z[i]
    return True


@inline
def _solve(gram, columns, inverse, solution):
    """Solve for some columns; returns chi2, NaN when singular."""
    last, n = gram.shape[0] - 1, len(columns)
    for i in range(n):
        for j in range(n):
            inverse[i, j] = gram[columns[i], columns[j]]
    if not _invert(inverse):
        return np.nan
    chi2 = gram[last, last]
    for i in range(n):
        solution[i] = 0
        for j in range(n):
            solution[i] += inverse[i, j] * gram[last, columns[j]]
    for i in range(n):
        chi2 -= solution[i] * gram[last, columns[i]]
    return chi2


# Parameters are flux, x, y of each lobe, the width of Gaussians or x, y from one end of a trail to the other, the
# background; of each lobe there are ``step`` columns: value, d/dx, d/dy, and those by a width (4) or by ends (5). The
# derivative by a parameter is a sum over lobes.


@inline
def _moving(a, lobes):
    """The a-th parameter that is not solved for."""
    return 3 * (a // 2) + 1 + a % 2 if a < 2 * lobes else lobes + a


@inline
def _of_all(p, lobes, step):
    """The parameter is one of all lobes that is not solved for."""
    return 3 * lobes <= p < 3 * lobes + step - 3


@inline
def _column(p, lobe, lobes, step):
    if p < 3 * lobes:
        return step * lobe + p % 3
    return step * lobe + 3 + p - 3 * lobes if _of_all(p, lobes, step) else p + (step - 3) * (lobes - 1)


@inline
def _by(p, lobe, lobes, step, flux):
    """What the column is multiplied by."""
    return flux[lobe] if (p < 3 * lobes and p % 3 != 0) or _of_all(p, lobes, step) else 1.0


@inline
def _product(gram, flux, p, r, lobes, step):
    """Sum of the products of the derivatives by two parameters; one beyond the last is the data."""
    v, last = 0.0, gram.shape[0] - 1
    p_from, p_to = (p // 3, p // 3 + 1) if p < 3 * lobes else (0, lobes if _of_all(p, lobes, step) else 1)
    r_from, r_to = (r // 3, r // 3 + 1) if r < 3 * lobes else (0, lobes if _of_all(r, lobes, step) else 1)
    for k in range(p_from, p_to):
        for m in range(r_from, r_to):
            by = _by(p, k, lobes, step, flux) * _by(r, m, lobes, step, flux)
            v += by * gram[_column(p, k, lobes, step), min(_column(r, m, lobes, step), last)]
    return v


@inline
def _moving_equations(gram, flux, inverse, lobes, step, slope, curve):
    """Gradient (of -chi2 / 2) and Kaufman's curvature for the parameters that are not solved for."""
    n, m = inverse.shape[0], slope.shape[0]
    data = m + n
    cross, along = np.empty((m, n)), np.empty(n)
    for a in range(m):
        p = _moving(a, lobes)
        slope[a] = _product(gram, flux, p, data, lobes, step)
        for i in range(n):
            cross[a, i] = _product(gram, flux, p, 3 * i if i < lobes else i + m, lobes, step)
            slope[a] -= cross[a, i] * flux[i]
    for a in range(m):
        for j in range(n):
            along[j] = 0
            for i in range(n):
                along[j] += cross[a, i] * inverse[i, j]
        for b in range(a + 1):
            v = _product(gram, flux, _moving(a, lobes), _moving(b, lobes), lobes, step)
            for j in range(n):
                v -= along[j] * cross[b, j]
            curve[a, b] = curve[b, a] = v


@inline
def _propose(gram, flux, inverse, q, lower, upper, lobes, step, damping, trial):
    """Set the next trial position; returns the damping used, negative when no step exists."""
    m = q.shape[0]
    slope, whole, curve, low = np.empty(m), np.empty((m, m)), np.empty((m, m)), np.empty((m, m))
    _moving_equations(gram, flux, inverse, lobes, step, slope, whole)
    largest = 0.0
    for i in range(m):
        largest = max(largest, whole[i, i])
    for i in range(m):
        # a position at its bound that would leave it stands still and lets the others move freely
        if (slope[i] > 0 and q[i] >= upper[i]) or (slope[i] < 0 and q[i] <= lower[i]):
            slope[i] = 0
            for j in range(m):
                whole[i, j] = whole[j, i] = 0
    while True:
        if not (largest > 0 and damping <= 1e12):
            return -1.0
        for i in range(m):
            for j in range(m):
                curve[i, j] = whole[i, j]
            curve[i, i] += damping * max(curve[i, i], 1e-3 * largest)
        if _factor(curve, low):
            break
        damping *= 10
    _substitute(low, slope)
    for i in range(m):
        # a pixel at most, also for the ends of a trail: the model is local
        most = 1.0 if i < 2 * lobes else (0.3 * q[i] if step == 4 else 2.0)
        move = max(-most, min(most, slope[i]))
        trial[i] = max(lower[i], min(upper[i], q[i] + move))
    return damping


@inline
def _take(to, values):
    """``to[:] = values``, which takes seconds to compile."""
    for i in range(len(to)):
        to[i] = values[i]


@inline
def _sharpness(data, weight, padded, flux, x, y):
    """Highest usable of the middle 3 x 3 pixels above the background, over the fitted PSF there; NaN without either.

    ``flux`` is that of the source, then the terms of the background.
    """
    side = data.shape[0]
    h = side // 2
    height, top, at_x, at_y = 0.0, 0.0, -1, -1
    for j in range(h - 1, h + 2):
        for i in range(h - 1, h + 2):
            if not weight[j, i] > 0:
                continue
            here = data[j, i] * 1.0
            if len(flux) > 1:
                here -= flux[1]
            if len(flux) > 2:
                here -= flux[2] * (i - h) + flux[3] * (j - h)
            signed = -here if flux[0] < 0 else here
            if at_x < 0 or signed > top:
                height, top, at_x, at_y = here, signed, i, j
    if at_x < 0:
        return np.nan
    lines, w = np.empty((2, side + 3, side)), np.empty((2, 2, 4))
    low, high = _lines(padded, False, x, y, side, w, lines)
    value, unused = np.zeros(side), np.empty((2, side))
    if low <= at_y <= high:
        _row(lines, at_y, w[1], value, unused[0], unused[1])
    model = flux[0] * value[at_x]
    return height / model if model != 0 else np.nan


@serial
def _fit(data, weight, padded, spot, start, step, limit, terms, parameters, covariance, moment, moment_covariance):
    """Fit one stamp; returns chi2, evaluations, status, pixels, chi2 of the moment, sharpness."""
    m, side = start.shape[0], data.shape[0]
    lobes, width = 1 if step == 5 else m // 2, _width(padded)
    plain = lobes == 1 and step == 3 and not spot
    n, free, size = step * lobes + terms, lobes + terms, m + lobes + terms
    lower, upper = start - BOUND, start + BOUND
    if step == 4:
        lower[m - 1], upper[m - 1] = LEAST_WIDTH, side / 3
    for i in range(2 if step == 5 else m, m):
        lower[i], upper[i] = -side, side
    linear, every = np.empty(free, np.int64), np.arange(n)
    for i in range(free):
        linear[i] = step * i if i < lobes else i + n - free
    q, trial, flux, f = start.copy(), start.copy(), np.zeros(free), np.empty(free)
    rows = (side + 3) // 4 * 4
    best, gram, column = np.zeros((n + 1, n + 1)), np.zeros((n + 1, n + 1)), np.zeros((n + 1, rows, side))
    inverse, trial_inverse = np.empty((free, free)), np.empty((free, free))
    chi2, moment_chi2, damping, evaluations, status = 0.0, np.nan, 1e-3, 0, -1
    # the ends of a faint trail are known to no better than pixels: a hundredth of their error is near enough
    least, near = (1e-5, 0.05) if step == 5 else (0.0, 1e-3)
    used, weighted, pixels = np.zeros((rows, side)), np.zeros((rows, side)), 0
    for y in range(side):
        for x in range(side):
            for i in range(terms):
                column[step * lobes + i, y, x] = 1 if i == 0 else (x if i == 1 else y) - side // 2
            if weight[y, x] > 0:
                used[y, x] = weight[y, x]
                weighted[y, x] = used[y, x] * data[y, x]
                gram[n, n] += weighted[y, x] * data[y, x]
                pixels += 1
    while status < 0:
        if step == 4:
            _sum_gaussians(used, weighted, trial, gram)
        else:
            _sum_stamp(used, weighted, padded, spot, width, trial, step, column, gram)
        first = evaluations == 0
        if first and plain:
            moment_chi2 = _solve(gram, every, moment_covariance, moment)
            if not np.isfinite(moment_chi2):
                moment[:] = np.nan
                moment_covariance[:] = np.nan
        evaluations += 1
        value = _solve(gram, linear, trial_inverse, f) if pixels > size else np.nan
        if first and not np.isfinite(value):
            for i in range(n + 1):
                _take(best[i], gram[i])
            chi2 = gram[n, n]
            status = SINGULAR if pixels > size else NO_DATA
            break
        moved = 0.0
        for i in range(m):
            moved = max(moved, abs(trial[i] - q[i]))
        done = False
        if first or value <= chi2:
            gain = chi2 - value
            chi2 = value
            _take(q, trial)
            _take(flux, f)
            for i in range(free):
                _take(inverse[i], trial_inverse[i])
            for i in range(n + 1):
                _take(best[i], gram[i])
            if not first:
                # a short step means the minimum only when damping did not shorten it
                done = damping < 1 and (moved < 1e-6 or (gain < least + 1e-9 * (1 + chi2) and moved < near))
                damping = max(damping * 0.1, 1e-9)
        else:
            damping *= 10
            done = moved < 1e-7 or (value < chi2 + least and moved < near)
        if not done and evaluations >= limit:
            status = OUT_OF_EVALUATIONS
            break
        if not done:
            damping = _propose(best, flux, inverse, q, lower, upper, lobes, step, damping, trial)
            done = damping < 0
        if done:
            status = CONVERGED
            for i in range(m):
                if q[i] <= lower[i] + 1e-9 * BOUND or q[i] >= upper[i] - 1e-9 * BOUND:
                    status = AT_BOUND
    for i in range(m):
        parameters[_moving(i, lobes)] = q[i]
    for i in range(free):
        parameters[3 * i if i < lobes else i + m] = flux[i]
    for i in range(size):
        for j in range(size):
            covariance[i, j] = _product(best, flux, i, j, lobes, step)
    if status == NO_DATA or not _invert(covariance):
        covariance[:] = np.nan
        if status == CONVERGED:
            status = SINGULAR
    sharpness = _sharpness(data, weight, padded, flux, q[0], q[1]) if plain else np.nan
    return chi2, evaluations, status, pixels, moment_chi2, sharpness


@parallel
def _fit_all(
    data, weight, psf, start, step, stamp, limit, terms, parameters, covariance, chi2, evaluations, status, pixels,
    moment, moment_covariance, moment_chi2, sharpness,
):  # fmt: skip
    for k in prange(start.shape[0]):
        at = stamp[k]
        chi2[k], evaluations[k], status[k], pixels[k], moment_chi2[k], sharpness[k] = _fit(
            data[at], weight[at], _padded(psf[min(at, len(psf) - 1)]), psf.shape[1] == 1, start[k], step, limit, terms,
            parameters[k], covariance[k], moment[k], moment_covariance[k],
        )  # fmt: skip


def _writeable(array, dtype):
    """A plain array in C order; one that is read-only is copied, for Numba would compile all again for its type."""
    return np.require(array, dtype, ["C", "W", "E"])


def fit_lobes(
    data: np.ndarray,
    weight: np.ndarray,
    psf: np.ndarray,
    start: np.ndarray,
    stamp: np.ndarray | None = None,
    limit: int = MAX_EVALUATIONS,
    terms: int = 1,
) -> tuple[np.ndarray, ...]:
    return _run(data, weight, psf, start.reshape(len(start), 2 * start.shape[1]), 3, stamp, limit, terms)


def fit_gaussians(
    data: np.ndarray,
    weight: np.ndarray,
    start: np.ndarray,
    stamp: np.ndarray | None = None,
    limit: int = MAX_EVALUATIONS,
    terms: int = 1,
) -> tuple[np.ndarray, ...]:
    return _run(data, weight, np.zeros((1, 1, 1)), start, 4, stamp, limit, terms)


def fit_trails(
    data: np.ndarray,
    weight: np.ndarray,
    psf: np.ndarray,
    start: np.ndarray,
    stamp: np.ndarray | None = None,
    limit: int = MAX_EVALUATIONS,
    terms: int = 1,
) -> tuple[np.ndarray, ...]:
    return _run(data, weight, psf, start, 3 if start.shape[1] == 2 else 5, stamp, limit, terms)


def _run(
    data: np.ndarray,
    weight: np.ndarray,
    psf: np.ndarray,
    start: np.ndarray,
    step: int,
    stamp: Any,
    limit: int,
    terms: int,
) -> tuple[np.ndarray, ...]:
    count, moving = start.shape
    n, m = moving + (1 if step == 5 else moving // 2) + terms, 3 + terms
    parameters, covariance, chi2 = np.empty((count, n)), np.empty((count, n, n)), np.empty(count)
    whole = [np.empty(count, np.int32) for _ in range(3)]
    moment = (np.full((count, m), np.nan), np.full((count, m, m), np.nan), np.full(count, np.nan))
    out = (parameters, covariance, chi2, *whole, *moment, np.empty(count))
    _fit_all(
        _writeable(data, np.float32),
        _writeable(weight, np.float32),
        _writeable(psf, np.float64),
        _writeable(start, np.float64),
        step,
        np.arange(count) if stamp is None else _writeable(stamp, np.int64),
        limit,
        terms,
        *out,
    )
    return out


@parallel
def _subtract_all(out, weight, psf, first, lobes):
    side = out.shape[1]
    for k in prange(out.shape[0]):
        if first[k] == first[k + 1]:
            continue
        source = psf[min(np.int64(k), len(psf) - 1)]
        padded, spot = _padded(source), source.shape[0] == 1
        lines, w = np.empty((2, side + 3, side)), np.empty((2, 2, 4))
        value, unused = np.empty(side), np.empty((2, side))
        for lobe in range(first[k], first[k + 1]):
            low, high = _lines(padded, spot, lobes[lobe, 1], lobes[lobe, 2], side, w, lines)
            for y in range(low, high + 1):
                _row(lines, y, w[1], value, unused[0], unused[1])
                for x in range(side):
                    if weight[k, y, x] > 0:
                        out[k, y, x] -= np.float32(lobes[lobe, 0] * value[x])


def subtract_lobes(
    data: np.ndarray, weight: np.ndarray, psf: np.ndarray, first: np.ndarray, lobes: np.ndarray
) -> np.ndarray:
    out = np.array(data, np.float32, order="C")
    _subtract_all(
        out,
        _writeable(weight, np.float32),
        _writeable(psf, np.float64),
        _writeable(first, np.int64),
        _writeable(lobes, np.float64),
    )
    return out


def spline_coefficients(psf: np.ndarray) -> np.ndarray:
    out = np.asarray(psf, np.float64)
    for axis in (1, 2):
        out = spline_filter1d(out, 3, axis, mode="mirror")
    return np.ascontiguousarray(out)
