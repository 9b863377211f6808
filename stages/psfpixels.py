# SPDX-License-Identifier: BSD-3-Clause
"""What of the pixels that a PSF departs from its profile by is signal."""

from __future__ import annotations

import math

import numpy as np

from skydelta.kernels.cpu.jit import inline, serial

DEGREE = 4
"""Of the smooth functions that a PSF departs from a Moffat profile by."""

FUNCTIONS = (DEGREE + 1) * (DEGREE + 2) // 2

BOX = 5
"""Side of the square whose mean square tells whether single pixels are signal, px."""


@inline
def _reflected(i, m):
    """Index inside a line of m pixels that is mirrored at its ends."""
    i = -1 - i if i < 0 else i
    return 2 * m - 1 - i if i >= m else i


@serial
def _basis(profile, scale, m, basis):
    """Functions of `significant`, of unit square sum: (FUNCTIONS, m m)."""
    half = m // 2
    powers_x, powers_y = np.empty(DEGREE + 1), np.empty(DEGREE + 1)
    square = np.zeros(FUNCTIONS)
    for pixel in range(m * m):
        dx, dy = float(pixel % m - half), float(pixel // m - half)
        over = 1 / math.sqrt(scale * scale + dx * dx + dy * dy)
        x, y = dx * over, dy * over
        powers_x[0] = powers_y[0] = 1.0
        for i in range(DEGREE):
            powers_x[i + 1], powers_y[i + 1] = x * powers_x[i], y * powers_y[i]
        first, k = profile[pixel] * (1 - x * x - y * y), 0
        for degree in range(DEGREE + 1):
            for j in range(degree + 1):
                value = first * powers_x[degree - j] * powers_y[j]
                basis[k, pixel] = value
                square[k] += value * value
                k += 1
    for k in range(FUNCTIONS):
        basis[k] *= 1 / math.sqrt(square[k])


@serial
def _clear_of_noise(rest, noise, m):
    """Shrink the pixels (m m,) by the noise's share of the mean square around each of them."""
    width = BOX // 2
    square, across = rest * rest, np.empty(m * m)
    for y in range(m):
        for x in range(m):
            total = 0.0
            for k in range(-width, width + 1):
                total += square[y * m + _reflected(x + k, m)]
            across[y * m + x] = total
    for y in range(m):
        for x in range(m):
            total = 0.0
            for k in range(-width, width + 1):
                total += across[_reflected(y + k, m) * m + x]
            rest[y * m + x] *= 1 - noise**2 / max(total / BOX**2, noise**2)


@serial
def _significant(departure, profile, scale, noise, fwhm, m):
    n_p, pixels = departure.shape
    basis = np.empty((FUNCTIONS, pixels))
    _basis(profile, scale, m, basis)
    weights = np.linalg.solve(np.dot(basis, basis.T), np.dot(basis, departure.T))
    near = np.dot(weights.T, basis)
    rest = departure[0] - near[0]
    for p in range(n_p):
        square = 0.0
        for i in range(pixels):
            square += near[p, i] * near[p, i]
        near[p] *= max(1 - FUNCTIONS * noise[p] ** 2 / max(square, noise[p] ** 2), 0.0)
    _clear_of_noise(rest, noise[0], m)
    near[0] += rest
    clear = 0.0
    for i in range(pixels):
        if profile[i] > 4 * noise[0]:
            clear = max(clear, math.hypot(i % m - m // 2, i // m - m // 2))
    clear = min(max(clear, fwhm), 4 * fwhm)
    for i in range(pixels):
        t = (math.hypot(i % m - m // 2, i // m - m // 2) - 0.8 * clear) / (0.5 * clear)
        t = min(max(t, 0.0), 1.0)
        for p in range(n_p):
            near[p, i] *= 1 - t * t * (3 - 2 * t)
    return near


def significant(departure: np.ndarray, profile: np.ndarray, scale: float, noise: np.ndarray, fwhm: float) -> np.ndarray:
    """The departure from the profile M, freed of noise.

    It is projected on M X^i Y^j (1 - X^2 - Y^2), i + j <= `DEGREE`, (X, Y) = (dx, dy) / sqrt(a^2 + r^2), and kept as
    far as it exceeds the noise (James & Stein 1961), at the mean also pixel by pixel; nothing is kept in the wings,
    where single pixels carry less than 4 times their noise.

    Parameters
    ----------
    departure : float64 (n_p, m, m)
        Image of each spatial term, the mean first.
    profile : float64 (m, m)
        M, of unit sum.
    scale : float
        a, px.
    noise : float64 (n_p,)
        Standard deviation of their pixels.
    fwhm : float
        px.

    Returns
    -------
    float64 (n_p, m, m)
    """
    n_p, m = departure.shape[:2]
    flat = np.ascontiguousarray(departure).reshape(n_p, -1)
    return _significant(flat, profile.reshape(-1), float(scale), noise, float(fwhm), m).reshape(departure.shape)
