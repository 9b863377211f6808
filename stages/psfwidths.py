# SPDX-License-Identifier: BSD-3-Clause
"""Which stars are as wide as all others: galaxies and blends show in their widths first."""

from __future__ import annotations

import math

import numpy as np

from skydelta.kernels.cpu.jit import serial

WIDTH_CLIP = 3.3
"""Stars whose width is off the model's by this many standard deviations leave."""

LEAST_SCATTER = 0.005
"""Of ln(FWHM) from star to star that no model follows."""


@serial
def _fit(phi, broader, weight, index, factor, fitted, leverage):
    """Weighted least squares of widths on the terms, and the leverage of each star; ``factor`` is (n_p, n_p + 1)."""
    n_p = phi.shape[1]
    factor[:] = 0
    for s in index:
        for p in range(n_p):
            f = weight[s] * phi[s, p]
            for q in range(p + 1):
                factor[p, q] += f * phi[s, q]
            factor[p, n_p] += f * broader[s]
    for p in range(n_p):
        for q in range(p + 1):
            v = factor[p, q]
            for k in range(q):
                v -= factor[p, k] * factor[q, k]
            factor[p, q] = math.sqrt(max(v, 1e-12 * factor[p, p])) if p == q else v / factor[q, q]
        for k in range(p):
            factor[p, n_p] -= factor[p, k] * factor[k, n_p]
        factor[p, n_p] /= factor[p, p]
    # with z = L^-1 phi the fitted value is z . (L^-1 right-hand side) and the leverage w z . z
    z = np.empty(n_p)
    for s in index:
        fitted[s], leverage[s] = 0.0, 0.0
        for p in range(n_p):
            z[p] = phi[s, p]
            for k in range(p):
                z[p] -= factor[p, k] * z[k]
            z[p] /= factor[p, p]
            fitted[s] += z[p] * factor[p, n_p]
            leverage[s] += weight[s] * z[p] * z[p]


@serial
def _consistent(broader, error, phi, use, least_scatter, clip):
    n, n_p = phi.shape
    fine, index = np.ones(n, np.bool_), np.flatnonzero(use)
    weight, fitted, leverage, factor = np.empty(n), np.empty(n), np.empty(n), np.empty((n_p, n_p + 1))
    fewest = max(n_p + 2.0, len(index) / 2)
    while len(index) > fewest:
        noise2 = error[index] ** 2
        precise = noise2 <= np.median(noise2)
        expected, scatter2 = np.median(noise2[precise]), least_scatter**2
        for _ in range(3):
            for s in index:
                weight[s] = 1 / (error[s] ** 2 + scatter2)
            _fit(phi, broader, weight, index, factor, fitted, leverage)
            off2 = (broader[index] - fitted[index]) ** 2
            scatter2 = max(np.median(off2[precise]) / 0.4549 - expected, least_scatter**2)
        off2 = off2 * weight[index]
        spread2 = 1.4826**2 * np.median(off2) * len(index) / (len(index) - n_p)
        z2 = off2 / np.maximum(1 - leverage[index], 1e-3) / max(spread2, 1.0)
        worst = np.argmax(z2)
        if z2[worst] <= clip**2:
            break
        fine[index[worst]] = False
        index = np.delete(index, worst)
    return fine


def consistent_widths(broader: np.ndarray, error: np.ndarray, phi: np.ndarray, use: np.ndarray) -> np.ndarray:
    """Stars whose width agrees with a polynomial through all others: the worst one leaves until all do.

    Each is compared with the fit without it (residual / (1 - leverage)), so that a star far from others cannot hide.
    The scatter beyond the errors is measured on the more precise half of the stars.

    Parameters
    ----------
    broader, error : float64 (n,)
        d ln(FWHM) of each star from its model, and its error.
    phi : float64 (n, n_p)
        Spatial terms.
    use : bool (n,)
        Stars that are compared.

    Returns
    -------
    bool (n,)
        False for those that left. At least half of the stars and two more than terms stay.
    """
    return _consistent(broader, error, np.ascontiguousarray(phi), use, LEAST_SCATTER, WIDTH_CLIP)
