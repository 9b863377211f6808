# SPDX-License-Identifier: BSD-3-Clause
"""The correlation of an image's noise, measured in blank sky."""

from __future__ import annotations

from typing import Any

import numpy as np

from skydelta.io.exposure import Exposure
from skydelta.kernels.backend import Array, Backend, backend_of, to_host

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
    # both exposures' blocks in one array, science first
    image, variance, good = (xp.concatenate(p) for p in zip(*(_blocks(e) for e in (science, reference)), strict=True))
    z, blank = _normalised(backend, image, variance, good)
    n, side = len(z) // 2, z.shape[1]
    blank = blank[:n] & blank[n:]
    z = xp.where(xp.concatenate([blank, blank]), z, np.float32(0))
    size = fft.next_fast_len(side + LAG, True)
    spectra = fft.rfft2(xp.concatenate([z, blank.astype(np.float32)]), (size, size)).reshape(3, n, size, -1)
    products = [
        (spectra[i] * xp.conj(spectra[j])).sum(axis=0, dtype=np.complex128) for i, j in ((0, 0), (1, 1), (0, 1), (2, 2))
    ]
    own_s, own_r, cross, count = _at_lags(backend, xp.stack(products), size)
    if count[LAG, LAG] < side * side / 4:
        return None, None
    own_s, own_r, cross = (a / np.maximum(count, 1) for a in (own_s, own_r, cross))
    sky_s, sky_r = (float(xp.median(v[blank])) for v in (variance[:n], variance[n:]))
    gain = flux_ratio * float(np.sqrt(sky_r / sky_s))
    return _judged(own_s - gain * cross), _judged(own_r - cross / gain)


def _at_lags(backend: Backend, spectra: Array, size: int) -> np.ndarray:
    """Even part of the transforms of half spectra (n, size, size // 2 + 1), at lags up to `LAG`, on the host."""
    lag, row, column = np.arange(-LAG, LAG + 1), np.arange(size), np.arange(size // 2 + 1)
    twice = np.where((column == 0) | (2 * column == size), 1, 2)  # columns whose mirror image is not kept
    along_y = np.exp(2j * np.pi / size * (lag[:, None] * row % size))
    along_x = np.exp(2j * np.pi / size * (column[:, None] * lag % size)) * twice[:, None]
    c = to_host(backend.asarray(along_y) @ spectra @ backend.asarray(along_x)).real / size**2
    return 0.5 * (c + c[:, ::-1, ::-1])


def _judged(covariance: np.ndarray) -> np.ndarray | None:
    """The correlation, or None when it is that of white noise."""
    if not covariance[LAG, LAG] > 0:
        return None
    rho = covariance / covariance[LAG, LAG]
    others = rho.copy()
    others[LAG, LAG] = 0
    return None if np.abs(others).max() < WHITE else rho


def _blocks(exposure: Exposure) -> tuple[Array, Array, Array]:
    """Image, variance and usable pixels of blocks spread evenly over an exposure: (n, side, side) each."""
    (h, w), backend = exposure.shape, exposure.backend
    side = min(BLOCK, h, w)
    ny, nx = h // side, w // side
    keep = np.unique(np.linspace(0, ny * nx - 1, min(BLOCKS, ny * nx)).astype(int))
    start = keep // nx * (side * w) + keep % nx * side
    index = backend.asarray(start)[:, None, None] + backend.asarray(np.arange(side)[:, None] * w + np.arange(side))

    def cut(plane: Array) -> Array:
        return plane.reshape(-1)[index].reshape(-1, side)

    # only the blocks are judged, not the whole frame: stacked on top of each other they are an exposure too
    image, variance = cut(exposure.image), cut(exposure.variance)
    mask = None if exposure.mask is None else cut(exposure.mask)
    good = exposure.with_(image=image, variance=variance, mask=mask).good()
    image, variance, good = (a.reshape(-1, side, side) for a in (image, variance, good))
    return image, variance, good


def _normalised(backend: Backend, image: Array, variance: Array, good: Array) -> tuple[Array, Array]:
    """Blocks (n, side, side) over their noise, medians taken off, and which of their pixels are blank."""
    xp, nd = backend.xp, backend.ndimage
    one, zero = np.float32(1), np.float32(0)
    z = xp.where(good, image / xp.sqrt(xp.where(good, variance, one)), zero)
    z = z - _median(xp, z)
    smooth = xp.abs(nd.gaussian_filter(z, (0, 1.5, 1.5), mode="nearest"))
    spread = 1.4826 * _median(xp, smooth)
    source = nd.maximum_filter((smooth > BLANK * spread).astype(np.uint8), (1, 7, 7)) > 0
    return z, good & ~source


def _median(xp: Any, blocks: Array) -> Array:
    """Median of each block (n, side, side): (n, 1, 1)."""
    return xp.median(blocks.reshape(len(blocks), -1), axis=1)[:, None, None]


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
