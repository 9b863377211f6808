# SPDX-License-Identifier: BSD-3-Clause
"""Covariance of the kernel's coefficients: what the noise of both images does to the solution.

The weights of the fit take the noise of each pixel for independent, and each stamp for alone. Neither holds: the noise
of the convolved image comes through the kernel, the same for neighbours, and stamps overlap. So the inverse of the
normal matrix A is too small. With B the covariance of the score X^T W (T - X a) it is M B M, M = A^-1 (Huber 1967), or
M = A^-1 + A^-1 N A^-1 where the dilution by noise in X has been undone (`System.undiluted`).
"""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, Backend, backend_of, to_host
from skydelta.kernels.polynomial import polynomial_exponents
from skydelta.stages.match.basis import GaussianBasis
from skydelta.stages.match.problem import Problem, Solved

MOST = 64
"""Stamps whose noise is looked at, about; where there are more, these stand for the others."""

HELD = {"cpu": 1, "cuda": MOST}
"""Of these at once: all of them on a device, for few launches."""


def fit_covariance(problem: Problem, basis: GaussianBasis, solved: Solved) -> Array:
    """Covariance of the free parameters: float64 (size, size), where the stamps are."""
    result = solved.result
    system, moves = result.system, result.solution.covariance
    noise = system.assembled(_score_noise(problem, basis, solved), result.used)
    if not result.quiet:
        sums = system.sums
        dilution = system.assembled(sums.level[:, None, None] * sums.gram, result.used)
        moves = moves + moves @ dilution @ moves
    return moves @ noise @ moves.T


def _score_noise(problem: Problem, basis: GaussianBasis, solved: Solved) -> Array:
    """Covariance of the score of each stamp, spatial terms aside: float64 (n, t + 1, t + 1).

    sum_x V_T Y Y^T + sum_y V (K^T Y) (K^T Y)^T with Y = sqrt(c) w X, and c how many stamps of the fit have the pixel;
    K^T is the correlation with the kernel. The noise of an image that is not white is filtered by the root of its
    spectrum. Stamps that others stand for have 0, and these more.
    """
    sums, used, at = solved.result.system.sums, solved.result.used, problem.chosen
    stamps, (t, m) = problem.stamps, (sums.products.shape[1] - 1, problem.stamps.broad.shape[1])
    backend = backend_of(stamps.broad)
    xp, fft, reach = backend.xp, backend.fft, solved.kernel.shape[0] // 2
    inner, wide = slice(reach, reach + m), m + 2 * reach
    side = fft.next_fast_len(wide, True)
    roots = [_root_spectrum(backend, rho, side) for rho in (problem.correlation_broad, problem.correlation)]
    rows, weight = drawn(to_host(sums.products[:, 0, 0]), used)
    out = xp.zeros_like(sums.products)
    for first in range(0, len(rows), HELD[backend.kind]):
        part = rows[first : first + HELD[backend.kind]]
        index = backend.asarray(part)
        planes = xp.zeros((len(part), t, side, side), np.float32)
        own = planes[:, :, inner, inner]
        own[:, : basis.size] = basis.planes(stamps.within(basis.half)[index]).reshape(len(part), -1, m, m)
        for k, (i, j) in enumerate(polynomial_exponents(problem.fitted_background_order)):
            columns, lines = problem.along[:, index]
            own[:, basis.size + k] = columns[:, None, :, i] * lines[:, :, None, j]
        own *= (problem.weight[index] * xp.sqrt(_covered(backend, at.x, at.y, used, part, m)))[:, None]
        seen = fft.rfft2(planes)
        kernels = solved.kernel.render(at.x[part], at.y[part], backend)[:, ::-1, ::-1].astype(np.float32)
        # the kernel begins at the corner, so that what it makes of the stamp does
        through = fft.irfft2(seen * (fft.rfft2(kernels, (side, side)) * roots[1])[:, None], (side, side))
        margin = [(0, 0), (reach, reach), (reach, reach)]
        noise = [(through[:, :, :wide, :wide], xp.pad(stamps.sharp_variance[index], margin, mode="edge"))]
        if problem.correlation_broad is None:
            noise.append((own, stamps.broad_variance[index]))
        else:
            spread = fft.irfft2(seen * roots[0], (side, side))[:, :, inner, inner]
            noise.append((spread, stamps.broad_variance[index]))
        for plane, variance in noise:
            y = (plane * xp.sqrt(variance)[:, None]).reshape(len(part), t, -1).astype(np.float64)
            out[index, :t, :t] += xp.matmul(y, y.transpose(0, 2, 1)) * backend.asarray(weight[part])[:, None, None]
    return out


def drawn(signal: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Stamps that stand for all: rows, and how many each stands for, float64 (n,).

    All of them up to `MOST`. Of more each has a chance that grows with its signal, and stands for as many as there are
    of its kind for one that is drawn, so that the sum is right on average (Horvitz & Thompson 1952). Drawn in even
    steps, not by lot: the same stamps give the same result.

    Parameters
    ----------
    signal : float64 (n,)
        What a stamp tells of the flux scale, its own noise included.
    used : bool (n,)
    """
    size = np.where(used, np.maximum(signal, 0), 0)
    size = size / max(size.sum(), np.finfo(float).tiny) + used / max(used.sum(), 1)
    chance = np.where(used, np.minimum(1.0, MOST / 2 * size), 0) if used.sum() > MOST else used.astype(float)
    steps = np.floor(np.cumsum(chance) + 0.5)
    rows = np.flatnonzero((np.diff(steps, prepend=0) > 0) | (chance == 1))
    return rows, 1 / np.where(chance > 0, chance, 1)


def _covered(backend: Backend, x: np.ndarray, y: np.ndarray, used: np.ndarray, rows: np.ndarray, side: int) -> Array:
    """How many of the stamps in use have each pixel of some of them: float32 (len(rows), side, side)."""
    xp, half = backend.xp, side // 2
    apart = backend.asarray(np.stack([p[used] - p[rows, None] for p in (y, x)]))
    within = (xp.abs(xp.arange(-half, half + 1)[:, None] - apart[:, :, None]) <= half).astype(np.float32)
    return xp.matmul(within[0], within[1].swapaxes(1, 2))


def _root_spectrum(backend: Backend, rho: np.ndarray | None, side: int) -> Array:
    """Root of the noise spectrum of these correlations, as a filter of planes of this side; 1 of white noise."""
    if rho is None:
        return np.float32(1)
    half = rho.shape[0] // 2
    lags = np.zeros((side, side))
    lags[: 2 * half + 1, : 2 * half + 1] = rho
    power = np.fft.rfft2(np.roll(lags, (-half, -half), (0, 1))).real
    return backend.asarray(np.sqrt(np.maximum(power, 0)), np.float32)
