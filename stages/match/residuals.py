# SPDX-License-Identifier: BSD-3-Clause
"""What a kernel leaves in stamps: chi2 of each, and the ones in which something has changed."""

from __future__ import annotations

import numpy as np

from skydelta.io.field import Domain
from skydelta.io.matchkernel import MatchKernel
from skydelta.kernels.backend import Array, Backend, backend_of, to_host
from skydelta.kernels.polynomial import chebyshev_table, polynomial_plane
from skydelta.stages.match.stamps import Selection, Stamps

CHANGED = 4.5
"""Least signal-to-noise of a point source in a stamp that counts as a change; one quiet stamp in thousands has it."""

UNUSUAL = 4.0
"""And robust standard deviations above that of the other stamps: a bad kernel leaves something everywhere."""


def residuals(kernel: MatchKernel, stamps: Stamps, at: Selection, along: Array | None = None) -> Array:
    """What is left of each stamp with the kernel at its middle: float32 (n, m, m) where the stamps are.

    Parameters
    ----------
    stamps : Stamps
        With a margin of at least half the kernel.
    along : float64 (2, n, m, k), optional
        `chebyshev_table` of `stamp_coordinates`, where the stamps are, to the order of the background at least.
    """
    backend = backend_of(stamps.broad)
    fft, (h, w) = backend.fft, kernel.shape
    m, pad = stamps.broad.shape[1], max(h, w) // 2
    sharp = stamps.within(pad)
    # what wraps around stays outside of the part that is used
    side = fft.next_fast_len(sharp.shape[1], True)
    kernels = kernel.render(at.x, at.y, backend).astype(np.float32)
    full = fft.irfft2(fft.rfft2(sharp, (side, side)) * fft.rfft2(kernels, (side, side)), (side, side))
    j, i = pad + h // 2, pad + w // 2
    if along is None:
        along = chebyshev_table(stamp_coordinates(backend, kernel.domain, at, m), kernel.background_order)
    background = polynomial_plane(kernel.background, kernel.background_order, *along)
    return stamps.broad - full[:, j : j + m, i : i + m] - background


def stamp_coordinates(backend: Backend, domain: Domain, at: Selection, side: int) -> Array:
    """Field coordinates of the columns, then of the rows of stamps of this side: float64 (2, n, side)."""
    o = np.arange(side) - side // 2
    return backend.asarray(np.stack(domain.uv(at.x[:, None] + o, at.y[:, None] + o)))


def stamp_chi2(left: Array, weight: Array) -> np.ndarray:
    """chi2 per pixel of `residuals` with inverse variances float32 (n, m, m): float64 (n,) on the host."""
    xp = backend_of(left).xp
    total = (weight * left * left).sum(axis=(1, 2), dtype=np.float64)
    return to_host(total / xp.maximum((weight > 0).sum(axis=(1, 2)), 1))


def changed(left: Array, weight: Array, fwhm: float, used: np.ndarray) -> np.ndarray:
    """Stamps with a point source in what is left, of either sign: bool (n,).

    Chi2 over a thousand pixels does not see a source of S/N 10 on a star, and the kernel then takes up some of it.

    Parameters
    ----------
    left, weight : float32 (n, m, m)
        Residuals and inverse variances.
    fwhm : float
        Of a source, px.
    used : bool (n,)
        Stamps of the fit, which tell what is usual.
    """
    backend = backend_of(left)
    xp, sigma = backend.xp, fwhm / 2.3548
    top = backend.gaussian_stack(weight * left, sigma, "constant", 3.0)
    # a Gaussian squared is a narrower one
    norm = backend.gaussian_stack(weight, sigma / np.sqrt(2), "constant", 3.0) / np.float32(4 * np.pi * sigma**2)
    edge = min(int(np.ceil(sigma)), left.shape[1] // 2)
    inner = np.s_[:, edge : left.shape[1] - edge, edge : left.shape[2] - edge]
    snr = xp.abs(top[inner]) / xp.sqrt(xp.maximum(norm[inner], np.float32(1e-30) + 1e-3 * norm.max()))
    peak = to_host(snr.max(axis=(1, 2)))
    usual = np.median(peak[used])
    spread = 1.4826 * np.median(np.abs(peak[used] - usual))
    return peak > max(CHANGED, usual + UNUSUAL * spread)
