# SPDX-License-Identifier: BSD-3-Clause
"""Plain SciPy reference of the lobe fits: every parameter free, derivatives by differences, one stamp at a time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy.ndimage import map_coordinates
from scipy.optimize import least_squares, minimize

from skydelta.kernels.fit import BOUND, Status

STEP = 1e-4
"""Of central differences, px."""


def _psf(coefficients: np.ndarray, side: int, x: float, y: float) -> np.ndarray:
    """The PSF centred (x, y) px from the middle of a stamp of this side, zero outside its own stamp."""
    p = coefficients.shape[0]
    at = np.arange(side) - side // 2 + p // 2
    yy, xx = np.meshgrid(at - y, at - x, indexing="ij")
    value = map_coordinates(coefficients, [yy, xx], order=3, prefilter=False, mode="mirror")
    inside = (yy >= 0) & (xx >= 0) & (yy <= p - 1) & (xx <= p - 1)
    return np.where(inside, value, 0.0)


def _fluxes(columns: list[np.ndarray], data: np.ndarray, root: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Weighted linear least squares: solution, covariance, chi2."""
    a = np.stack([c[root > 0] * root[root > 0] for c in columns], 1)
    b = data[root > 0] * root[root > 0]
    x = np.linalg.lstsq(a, b, rcond=None)[0]
    return x, np.linalg.inv(a.T @ a), float(((a @ x - b) ** 2).sum())


def _gradient(psf: np.ndarray, side: int, x: float, y: float) -> list[np.ndarray]:
    """Derivatives of the shifted PSF with respect to x and y."""
    return [
        (_psf(psf, side, x + dx, y + dy) - _psf(psf, side, x - dx, y - dy)) / (2 * STEP)
        for dx, dy in ((STEP, 0.0), (0.0, STEP))
    ]


def _background(side: int, terms: int) -> list[np.ndarray]:
    """The first of 1, x, y from the middle."""
    y, x = np.indices((side, side)) - side // 2
    return [np.ones((side, side)), x, y][:terms]


def _moment(data: np.ndarray, root: np.ndarray, psf: np.ndarray, terms: int, x: float, y: float) -> tuple:
    side = data.shape[0]
    columns = [_psf(psf, side, x, y), *_gradient(psf, side, x, y), *_background(side, terms)]
    return _fluxes(columns, data, root)


def _fit(data: np.ndarray, root: np.ndarray, psf: np.ndarray, start: np.ndarray, limit: int, terms: int) -> tuple:
    """Parameters, covariance, chi2, evaluations and status of one stamp."""
    side, lobes = data.shape[0], len(start)
    n, background = 3 * lobes + terms, _background(side, terms)
    moving = [k for k in range(3 * lobes) if k % 3]
    if (root > 0).sum() <= n:
        nothing = np.zeros(n)
        nothing[moving] = start.ravel()
        return nothing, np.full((n, n), np.nan), float(((data * root) ** 2).sum()), 1, Status.NO_DATA

    def residual(v: np.ndarray) -> np.ndarray:
        model = sum(v[3 * k] * _psf(psf, side, v[3 * k + 1], v[3 * k + 2]) for k in range(lobes))
        model += sum(b * column for b, column in zip(v[3 * lobes :], background, strict=True))
        return ((model - data) * root).ravel()

    columns = [_psf(psf, side, *q) for q in start]
    first = np.empty(n)
    first[moving] = start.ravel()
    first[[k for k in range(n) if k not in moving]] = _fluxes([*columns, *background], data, root)[0]
    low, high = np.full(n, -np.inf), np.full(n, np.inf)
    low[moving], high[moving] = start.ravel() - BOUND, start.ravel() + BOUND
    options = {"jac": "3-point", "x_scale": "jac", "xtol": 1e-12, "ftol": 1e-15, "gtol": 1e-12}
    found = least_squares(residual, first, bounds=(low, high), max_nfev=limit, **options)
    jacobian = []
    for k in range(lobes):
        flux, *at = found.x[3 * k : 3 * k + 3]
        jacobian += [_psf(psf, side, *at), *(flux * g for g in _gradient(psf, side, *at))]
    a = np.stack([(c * root).ravel() for c in (*jacobian, *background)], 1)
    stuck = (np.minimum(found.x - low, high - found.x)[moving] < 1e-9).any()
    status = Status.AT_BOUND if stuck else Status.CONVERGED
    return found.x, np.linalg.inv(a.T @ a), 2 * found.cost, found.nfev, status


def _sharpness(data: np.ndarray, root: np.ndarray, psf: np.ndarray, parameters: np.ndarray) -> float:
    (flux, x, y), *background = parameters[:3], *parameters[3:]
    level = sum(b * column for b, column in zip(background, _background(len(data), len(background)), strict=True))
    model, h = flux * _psf(psf, len(data), x, y), len(data) // 2
    light = np.where(root > 0, (data - level) * np.sign(flux), -np.inf)
    core = light[h - 1 : h + 2, h - 1 : h + 2]
    j, i = np.unravel_index(int(np.argmax(core)), core.shape)
    return core[j, i] / abs(model[h - 1 + j, h - 1 + i]) if root.any() else np.nan


def fit_lobes(
    data: np.ndarray,
    weight: np.ndarray,
    psf: np.ndarray,
    start: np.ndarray,
    stamp: np.ndarray | None = None,
    limit: int = 500,
    terms: int = 1,
) -> tuple[np.ndarray, ...]:
    if stamp is not None:
        data, weight, psf = data[stamp], weight[stamp], psf[stamp]
    root = np.sqrt(np.asarray(weight, float))
    planes = list(zip(np.asarray(data, float), root, psf, start, strict=True))
    parameters, covariance, chi2, evaluations, status = (
        np.array(a) for a in zip(*(_fit(*one, limit, terms) for one in planes), strict=True)
    )
    m = 3 + terms
    moments = [(np.full(m, np.nan), np.full((m, m), np.nan), np.nan)] * len(start)
    sharpness = np.full(len(start), np.nan)
    if start.shape[1] == 1:
        every = zip(planes, moments, strict=True)
        moments = [_moment(d, r, p, terms, *q[0]) if r.any() else m for (d, r, p, q), m in every]
        sharpness = np.array([_sharpness(d, r, p, v) for (d, r, p, _), v in zip(planes, parameters, strict=True)])
    moment = (np.array(a) for a in zip(*moments, strict=True))
    counts = (evaluations, status, (root > 0).sum(axis=(1, 2)))
    return parameters, covariance, chi2, *(a.astype(np.int32) for a in counts), *moment, sharpness


def linear_dipole(
    data: np.ndarray,
    weight: np.ndarray,
    psf: np.ndarray,
    start: np.ndarray,
    width: np.ndarray,
    stamp: np.ndarray,
    terms: int = 1,
) -> np.ndarray:
    """The centre by the simplex method; all parameters' covariance from the whole model's curvature there."""
    root, out = np.sqrt(np.asarray(weight, float)), np.full((len(start), 5 + (3 + terms) * (4 + terms)), np.nan)
    for row, k, at, sigma in zip(out, stamp, start, width, strict=True):
        if not root[k].any():
            row[1:3] = at
            continue

        def solved(place: np.ndarray, k: int = k) -> tuple:
            return _moment(np.asarray(data[k], float), root[k], psf[k], terms, *place)

        options = {"xatol": 1e-6, "fatol": 1e-10, "initial_simplex": at + 0.3 * np.array([(0, 0), (1, 0), (0, 1)])}
        place = minimize(lambda q, f=solved: f(q)[2], at, method="Nelder-Mead", options=options).x
        h = 0.004 * sigma
        around = {(i, j): solved(place + h * np.array([i, j])) for i in (-1, 0, 1) for j in (-1, 0, 1)}
        chi2 = {at: values[2] for at, values in around.items()}
        mixed = (chi2[1, 1] + chi2[-1, -1] - chi2[1, -1] - chi2[-1, 1]) / 4
        xx, yy = (chi2[i, j] + chi2[-i, -j] - 2 * chi2[0, 0] for i, j in ((1, 0), (0, 1)))
        spread = 2 * np.linalg.inv(np.array([[xx, mixed], [mixed, yy]]) / h**2)
        change = np.stack([(around[i, j][0] - around[-i, -j][0]) / (2 * h) for i, j in ((1, 0), (0, 1))])
        moment, covariance, least = around[0, 0]
        row[:] = np.concatenate(
            [[least], place, np.sqrt(np.diag(spread)), moment, (covariance + change.T @ spread @ change).ravel()]
        )
    return out


def subtract_lobes(
    data: np.ndarray, weight: np.ndarray, psf: np.ndarray, first: np.ndarray, lobes: np.ndarray
) -> np.ndarray:
    out = np.array(data, float)
    for k, (begin, end) in enumerate(pairwise(first)):
        for flux, x, y in lobes[begin:end]:
            out[k] -= np.where(weight[k] > 0, flux * _psf(psf[k], data.shape[1], x, y), 0)
    return out.astype(np.float32)


def spline_coefficients(psf: np.ndarray) -> np.ndarray:
    """The interpolation equations c[i - 1] + 4 c[i] + c[i + 1] = 6 s[i], written out and solved."""
    inverses = []
    for n in psf.shape[1:]:
        matrix = np.zeros((n, n))
        for i in range(n):
            for j, b in ((i - 1, 1 / 6), (i, 4 / 6), (i + 1, 1 / 6)):
                matrix[i, (n - 1) - abs((n - 1) - abs(j))] += b
        inverses.append(np.linalg.inv(matrix))
    return np.asarray(inverses[0] @ np.asarray(psf, float) @ inverses[1].T)
