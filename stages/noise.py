# SPDX-License-Identifier: BSD-3-Clause
"""The correlation of an image's noise, measured in blank sky."""

from __future__ import annotations

import numpy as np

from skydelta.io.exposure import Exposure
from skydelta.kernels.backend import Array, backend_of, to_host

BLOCK = 128
"""Side of the sampled blocks, px."""

BLOCKS = 64
"""At most this many blocks, spread evenly."""

LAG = 4
"""Largest lag, px."""

WHITE = 0.05
"""Largest correlation at any lag that still counts as white."""

BLANK = 4.0
"""Smoothed pixels above this many robust standard deviations belong to sources."""


def correlations(
    science: Exposure, reference: Exposure, flux_ratio: float
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Noise correlation rho(lag) of two aligned exposures, from pairs of pixels that are blank in both.

    Faint sources below the blanking threshold are correlated too, but they are the same in both exposures and their
    noise is not: the cross-covariance, scaled by the flux ratio, is their share and is taken off.

    Parameters
    ----------
    flux_ratio : float
        Flux of a source in the science exposure over that in the reference.

    Returns
    -------
    float64 (2 LAG + 1, 2 LAG + 1) with 1 in the middle for each, or None where the noise is white.
    """
    backend = science.backend
    xp, fft = backend.xp, backend.fft
    rows, columns, side = _blocks(science)
    planes = [_normalised(e, rows, columns) for e in (science, reference)]
    blank = planes[0][1] & planes[1][1]
    z = [xp.where(blank, values, np.float32(0)) for values, _ in planes]
    size = (fft.next_fast_len(side + LAG, True),) * 2

    def pairs(a: Array, b: Array) -> np.ndarray:
        product = (fft.rfft2(a, size) * xp.conj(fft.rfft2(b, size))).astype(np.complex128).sum(axis=0)
        c = np.fft.irfft2(to_host(product), size)
        c = np.roll(c, (LAG, LAG), (0, 1))[: 2 * LAG + 1, : 2 * LAG + 1]
        return 0.5 * (c + c[::-1, ::-1])

    ones = blank.astype(np.float32)
    count = pairs(ones, ones)
    if count[LAG, LAG] < side * side / 4:
        return None, None
    own_s, own_r, cross = (pairs(a, b) / np.maximum(count, 1) for a, b in ((z[0], z[0]), (z[1], z[1]), (z[0], z[1])))
    variances: tuple[Array, Array] = (science.variance, reference.variance)
    sigma = [xp.sqrt(xp.median(v[rows, columns][blank])) for v in variances]
    gain = flux_ratio * float(sigma[1] / sigma[0])
    return _judged(own_s - gain * cross), _judged(own_r - cross / gain)


def _judged(covariance: np.ndarray) -> np.ndarray | None:
    """The correlation, or None when it is that of white noise."""
    if not covariance[LAG, LAG] > 0:
        return None
    rho = covariance / covariance[LAG, LAG]
    others = rho.copy()
    others[LAG, LAG] = 0
    return None if np.abs(others).max() < WHITE else rho


def _blocks(exposure: Exposure) -> tuple[Array, Array, int]:
    """Row and column indices of blocks spread evenly over an exposure, and their side."""
    h, w = exposure.shape
    side = min(BLOCK, h, w)
    ny, nx = h // side, w // side
    keep = np.unique(np.linspace(0, ny * nx - 1, min(BLOCKS, ny * nx)).astype(int))
    o = np.arange(side)
    rows = (keep // nx * side)[:, None, None] + o[None, :, None]
    columns = (keep % nx * side)[:, None, None] + o[None, None, :]
    return exposure.backend.asarray(rows), exposure.backend.asarray(columns), side


def _normalised(exposure: Exposure, rows: Array, columns: Array) -> tuple[Array, Array]:
    """Blocks of an exposure over its noise, their median taken off, and which of their pixels are blank."""
    backend = exposure.backend
    xp, nd = backend.xp, backend.ndimage
    variance: Array = exposure.variance
    good = exposure.good()[rows, columns]
    z = exposure.image[rows, columns] / xp.sqrt(xp.where(good, variance[rows, columns], np.float32(1)))
    z = xp.where(good, z, np.float32(0))
    z = z - xp.median(z.reshape(len(z), -1), axis=1)[:, None, None]
    smooth = nd.gaussian_filter(z, (0, 1.5, 1.5), mode="nearest")
    spread = 1.4826 * xp.median(xp.abs(smooth).reshape(len(z), -1), axis=1)[:, None, None]
    source = nd.maximum_filter((xp.abs(smooth) > BLANK * spread).astype(np.uint8), (1, 7, 7)) > 0
    return z, good & ~source


def smeared(kernels: Array, rho: np.ndarray | None) -> Array:
    """rho (x) k of kernels (..., kh, kw), on the kernels' own support."""
    if rho is None:
        return kernels
    half = rho.shape[0] // 2
    padded = backend_of(kernels).xp.pad(kernels, [(0, 0)] * (kernels.ndim - 2) + [(half, half), (half, half)])
    h, w = kernels.shape[-2:]
    return sum(
        float(rho[j, i]) * padded[..., 2 * half - j : 2 * half - j + h, 2 * half - i : 2 * half - i + w]
        for j in range(2 * half + 1)
        for i in range(2 * half + 1)
    )


def correlated_square(kernels: Array, rho: np.ndarray | None) -> Array:
    """k(u) (rho (x) k)(u) of kernels (..., kh, kw): what the variance of a correlated image is convolved with.

    With white noise it is the square of the kernel; the sum is the variance gain of the kernel.
    """
    return kernels * smeared(kernels, rho)
