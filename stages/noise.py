# SPDX-License-Identifier: BSD-3-Clause
"""The correlation of an image's noise, measured in blank sky."""

from __future__ import annotations

import numpy as np

from skydelta.io.exposure import Exposure
from skydelta.kernels.backend import to_host

BLOCK = 128
"""Side of the sampled blocks, px."""

BLOCKS = 64
"""At most this many blocks, spread evenly."""

LAG = 4
"""Largest lag, px."""

WHITE = 0.05
"""Largest correlation at any lag that still counts as white: faint undetected sources alone make a few per cent."""

BLANK = 4.0
"""Smoothed pixels above this many robust standard deviations belong to sources."""


def correlation(exposure: Exposure) -> np.ndarray | None:
    """Noise correlation rho(lag) of an exposure from pairs of blank pixels.

    Returns
    -------
    float64 (2 LAG + 1, 2 LAG + 1) with 1 in the middle, or None when the noise is white.
    """
    assert exposure.variance is not None
    backend = exposure.backend
    xp, nd = backend.xp, backend.ndimage
    h, w = exposure.shape
    side = min(BLOCK, h, w)
    ny, nx = h // side, w // side
    keep = np.unique(np.linspace(0, ny * nx - 1, min(BLOCKS, ny * nx)).astype(int))
    o = np.arange(side)
    rows = backend.asarray((keep // nx * side)[:, None, None] + o[None, :, None])
    columns = backend.asarray((keep % nx * side)[:, None, None] + o[None, None, :])
    good = exposure.good()[rows, columns]
    z = exposure.image[rows, columns] / xp.sqrt(xp.where(good, exposure.variance[rows, columns], np.float32(1)))
    z = xp.where(good, z, np.float32(0))
    flat = z.reshape(len(keep), -1)
    centre = xp.median(flat, axis=1)[:, None, None]
    smooth = nd.gaussian_filter(z, (0, 1.5, 1.5), mode="nearest") - centre
    spread = 1.4826 * xp.median(xp.abs(smooth).reshape(len(keep), -1), axis=1)[:, None, None]
    source = nd.maximum_filter((xp.abs(smooth) > BLANK * spread).astype(np.uint8), (1, 7, 7)) > 0
    blank = good & ~source
    z = xp.where(blank, z - centre, np.float32(0))
    size = backend.fft.next_fast_len(side + LAG, True)

    def pairs(a: object) -> np.ndarray:
        f = backend.fft.rfft2(a, (size, size))
        power = (f.real.astype(np.float64) ** 2 + f.imag.astype(np.float64) ** 2).sum(axis=0)
        c = np.fft.irfft2(to_host(power), (size, size))
        return np.roll(c, (LAG, LAG), (0, 1))[: 2 * LAG + 1, : 2 * LAG + 1]

    count = pairs(blank.astype(np.float32))
    if count[LAG, LAG] < side * side / 4:
        return None
    c = pairs(z) / np.maximum(count, 1)
    rho = c / c[LAG, LAG]
    others = rho.copy()
    others[LAG, LAG] = 0
    if np.abs(others).max() < WHITE:
        return None
    return 0.5 * (rho + rho[::-1, ::-1])


def smeared(kernels: np.ndarray, rho: np.ndarray | None) -> np.ndarray:
    """rho (x) k of kernels (..., kh, kw), on the kernels' own support."""
    if rho is None:
        return kernels
    half = rho.shape[0] // 2
    padded = np.pad(kernels, [(0, 0)] * (kernels.ndim - 2) + [(half, half), (half, half)])
    h, w = kernels.shape[-2:]
    return sum(
        rho[j, i] * padded[..., 2 * half - j : 2 * half - j + h, 2 * half - i : 2 * half - i + w]
        for j in range(2 * half + 1)
        for i in range(2 * half + 1)
    )


def correlated_square(kernels: np.ndarray, rho: np.ndarray | None) -> np.ndarray:
    """k(u) (rho (x) k)(u) of kernels (..., kh, kw): what the variance of a correlated image is convolved with.

    With white noise it is the square of the kernel; the sum is the variance gain of the kernel.
    """
    return kernels * smeared(kernels, rho)
