# SPDX-License-Identifier: BSD-3-Clause
"""Numba twin of the lobe fits: ``kernels/cuda/fit.cuh`` line by line, one stamp a loop turn.

The Gram matrix has a row and a column for value, d/dx and d/dy of each lobe, then for 1; its last row holds the sums
with the data: right-hand side, then sum w d^2.
"""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.jit import inline, parallel, prange, serial
from skydelta.kernels.fit import BOUND, MAX_EVALUATIONS, Status

CONVERGED, AT_BOUND, SINGULAR, OUT_OF_EVALUATIONS, NO_DATA = (int(s) for s in Status)


@inline
def _weights(t, w, d):
    s = 1 - t
    w[0] = s * s * s / 6
    w[1] = (4 - 6 * t * t + 3 * t * t * t) / 6
    w[2] = (4 - 6 * s * s + 3 * s * s * s) / 6
    w[3] = t * t * t / 6
    d[0] = -s * s / 2
    d[1] = (-4 * t + 3 * t * t) / 2
    d[2] = (4 * s - 3 * s * s) / 2
    d[3] = t * t / 2


@inline
def _mirrored(i, n):
    i = abs(i)
    if i >= n:
        i = 2 * (n - 1) - i
    return min(max(i, 0), n - 1)


@inline
def _psf_at(c, dx, dy, w, out):
    """PSF and its gradient at (dx, dy) px from its middle; zero outside its stamp. ``w`` is (4, 4) scratch."""
    p = c.shape[0]
    out[:] = 0
    u, v = dx + p // 2, dy + p // 2
    if not (u >= 0 and v >= 0 and u <= p - 1 and v <= p - 1):
        return
    iu, iv = min(int(u), max(p - 2, 0)), min(int(v), max(p - 2, 0))
    _weights(u - iu, w[0], w[1])
    _weights(v - iv, w[2], w[3])
    for j in range(4):
        row = c[_mirrored(iv - 1 + j, p)]
        a, b = 0.0, 0.0
        for i in range(4):
            k = row[_mirrored(iu - 1 + i, p)]
            a += w[0, i] * k
            b += w[1, i] * k
        out[0] += w[2, j] * a
        out[1] += w[2, j] * b
        out[2] += w[3, j] * a


@inline
def _sum_stamp(data, weight, c, q, gram):
    """Gram sums at positions ``q``; returns the number of pixels with weight."""
    n = gram.shape[0] - 1
    lobes = n // 3
    side = data.shape[0]
    column, w, value = np.empty(n), np.empty((4, 4)), np.empty(3)
    column[n - 1] = 1
    gram[:] = 0
    pixels = 0
    for y in range(side):
        for x in range(side):
            if not weight[y, x] > 0:
                continue
            for k in range(lobes):
                _psf_at(c, x - side // 2 - q[2 * k], y - side // 2 - q[2 * k + 1], w, value)
                column[3 * k] = value[0]
                column[3 * k + 1] = -value[1]
                column[3 * k + 2] = -value[2]
            wp, d = np.float64(weight[y, x]), np.float64(data[y, x])
            for i in range(n):
                wc = wp * column[i]
                for j in range(i + 1):
                    gram[i, j] += wc * column[j]
                gram[n, i] += wc * d
            gram[n, n] += wp * d * d
            pixels += 1
    for i in range(n):
        for j in range(i):
            gram[j, i] = gram[i, j]
    return pixels


@inline
def _invert(a):
    """Invert a symmetric positive definite matrix in place by scaled Cholesky; False when it is not."""
    n = a.shape[0]
    scale, low, z = np.empty(n), np.empty((n, n)), np.empty(n)
    for i in range(n):
        if not a[i, i] > 0:
            return False
        scale[i] = 1 / np.sqrt(a[i, i])
    for i in range(n):
        for j in range(i + 1):
            v = a[i, j] * scale[i] * scale[j]
            for k in range(j):
                v -= low[i, k] * low[j, k]
            if i != j:
                low[i, j] = v / low[j, j]
            elif v > 1e-12:
                low[i, i] = np.sqrt(v)
            else:
                return False
    for c in range(n):
        for i in range(n):
            v = 1.0 if i == c else 0.0
            for k in range(i):
                v -= low[i, k] * z[k]
            z[i] = v / low[i, i]
        for i in range(n - 1, -1, -1):
            for k in range(i + 1, n):
                z[i] -= low[k, i] * z[k]
            z[i] /= low[i, i]
        for i in range(n):
            a[i, c] = z[i] * scale[i] * scale[c]
    return True


@inline
def _solve(gram, step, inverse, solution):
    """Solve for every ``step``-th column, the constant included; returns chi2, NaN when singular."""
    last = gram.shape[0] - 1
    n = inverse.shape[0]
    for i in range(n):
        for j in range(n):
            inverse[i, j] = gram[step * i, step * j]
    if not _invert(inverse):
        return np.nan
    chi2 = gram[last, last]
    for i in range(n):
        solution[i] = 0
        for j in range(n):
            solution[i] += inverse[i, j] * gram[last, step * j]
    for i in range(n):
        chi2 -= solution[i] * gram[last, step * i]
    return chi2


@inline
def _position_equations(gram, flux, inverse, slope, curve):
    """Gradient (of -chi2 / 2) and Kaufman's curvature for the positions."""
    last, n, m = gram.shape[0] - 1, inverse.shape[0], slope.shape[0]
    cross = np.empty((m, n))
    for a in range(m):
        ca, fa = 3 * (a // 2) + 1 + a % 2, flux[a // 2]
        slope[a] = fa * gram[last, ca]
        for i in range(n):
            cross[a, i] = fa * gram[ca, 3 * i]
            slope[a] -= cross[a, i] * flux[i]
        for b in range(m):
            curve[a, b] = fa * flux[b // 2] * gram[ca, 3 * (b // 2) + 1 + b % 2]
    for a in range(m):
        for b in range(m):
            for i in range(n):
                for j in range(n):
                    curve[a, b] -= cross[a, i] * inverse[i, j] * cross[b, j]


@inline
def _propose(gram, q, start, damping, trial):
    """Set the next trial position; returns the damping used, negative when no step exists."""
    m = q.shape[0]
    n = m // 2 + 1
    inverse, flux, slope, curve = np.empty((n, n)), np.empty(n), np.empty(m), np.empty((m, m))
    _solve(gram, 3, inverse, flux)
    while True:
        _position_equations(gram, flux, inverse, slope, curve)
        largest = 0.0
        for i in range(m):
            largest = max(largest, curve[i, i])
        if not (largest > 0 and damping <= 1e12):
            return -1.0
        for i in range(m):
            pushed = (slope[i] > 0 and q[i] >= start[i] + BOUND) or (slope[i] < 0 and q[i] <= start[i] - BOUND)
            if pushed:
                slope[i] = 0
                for j in range(m):
                    curve[i, j] = curve[j, i] = 0
            curve[i, i] += damping * max(curve[i, i], 1e-3 * largest)
        if _invert(curve):
            break
        damping *= 10
    for i in range(m):
        move = 0.0
        for j in range(m):
            move += curve[i, j] * slope[j]
        move = max(-1.0, min(1.0, move))
        trial[i] = max(start[i] - BOUND, min(start[i] + BOUND, q[i] + move))
    return damping


@inline
def _take(to, values):
    """``to[:] = values``, which takes seconds to compile."""
    for i in range(len(to)):
        to[i] = values[i]


@serial
def _fit(data, weight, c, start, best, parameters, covariance, moment, moment_covariance):
    """Fit one stamp; returns chi2, evaluations, status, chi2 of the moment."""
    m = start.shape[0]
    lobes = m // 2
    n = 3 * lobes + 1
    q, trial, flux, f = start.copy(), start.copy(), np.zeros(lobes + 1), np.empty(lobes + 1)
    gram, inverse = np.empty_like(best), np.empty((lobes + 1, lobes + 1))
    chi2, moment_chi2, damping, evaluations, status = 0.0, np.nan, 1e-3, 0, -1
    while status < 0:
        pixels = _sum_stamp(data, weight, c, trial, gram)
        first = evaluations == 0
        if first and lobes == 1:
            moment_chi2 = _solve(gram, 1, moment_covariance, moment)
            if not np.isfinite(moment_chi2):
                moment[:] = np.nan
                moment_covariance[:] = np.nan
        evaluations += 1
        value = _solve(gram, 3, inverse, f) if pixels > n else np.nan
        if first and not np.isfinite(value):
            for i in range(n + 1):
                _take(best[i], gram[i])
            chi2 = gram[n, n]
            status = SINGULAR if pixels > n else NO_DATA
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
            for i in range(n + 1):
                _take(best[i], gram[i])
            if not first:
                # a short step means the minimum only when damping did not shorten it
                done = damping < 1 and (moved < 1e-6 or (gain < 1e-9 * (1 + chi2) and moved < 1e-3))
                damping = max(damping * 0.1, 1e-9)
        else:
            damping *= 10
            done = moved < 1e-7
        if not done and evaluations >= MAX_EVALUATIONS:
            status = OUT_OF_EVALUATIONS
            break
        if not done:
            damping = _propose(best, q, start, damping, trial)
            done = damping < 0
        if done:
            status = CONVERGED
            for i in range(m):
                if abs(q[i] - start[i]) >= BOUND * (1 - 1e-9):
                    status = AT_BOUND
    for k in range(lobes):
        parameters[3 * k] = flux[k]
        parameters[3 * k + 1] = q[2 * k]
        parameters[3 * k + 2] = q[2 * k + 1]
    parameters[n - 1] = flux[lobes]
    for i in range(n):
        for j in range(n):
            si = 1.0 if i % 3 == 0 else flux[i // 3]
            sj = 1.0 if j % 3 == 0 else flux[j // 3]
            covariance[i, j] = si * sj * best[i, j]
    if status == NO_DATA or not _invert(covariance):
        covariance[:] = np.nan
        if status == CONVERGED:
            status = SINGULAR
    return chi2, evaluations, status, moment_chi2


@parallel
def _fit_all(
    data, weight, psf, start, parameters, covariance, chi2, evaluations, status, moment, moment_covariance, moment_chi2
):
    n = parameters.shape[1]
    for k in prange(data.shape[0]):
        best = np.empty((n + 1, n + 1))
        chi2[k], evaluations[k], status[k], moment_chi2[k] = _fit(
            data[k], weight[k], psf[k], start[k], best, parameters[k], covariance[k], moment[k], moment_covariance[k]
        )


def fit_lobes(data: np.ndarray, weight: np.ndarray, psf: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, ...]:
    count, lobes = start.shape[:2]
    n = 3 * lobes + 1
    parameters, covariance, chi2 = np.empty((count, n)), np.empty((count, n, n)), np.empty(count)
    evaluations, status = np.empty(count, np.int32), np.empty(count, np.int32)
    moment = (np.full((count, 4), np.nan), np.full((count, 4, 4), np.nan), np.full(count, np.nan))
    out = (parameters, covariance, chi2, evaluations, status, *moment)
    _fit_all(
        np.ascontiguousarray(data, np.float32),
        np.ascontiguousarray(weight, np.float32),
        np.ascontiguousarray(psf, np.float64),
        np.ascontiguousarray(start, np.float64).reshape(count, 2 * lobes),
        *out,
    )
    return out
