# SPDX-License-Identifier: BSD-3-Clause
"""How the fitted flux of a point source follows the pixels, and through them the pixels of a matching kernel."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of

DETERMINED = 1e-9
"""Part of the PSF's weighted square that must be left beside the background for the flux to be determined."""


def flux_weights(psf: Array, weight: Array, terms: int) -> Array:
    """The weights with which pixels make the flux of F P + b: F = sum_x w(x) D(x), the least-squares solution.

    w = V^-1 r / sum(V^-1 r P), r what is left of P beside the background (Gram & Schmidt, weights V^-1).

    Parameters
    ----------
    psf : float (n, s, s)
        P at the pixels, odd s.
    weight : float (n, s, s)
        Inverse variance, 0 of pixels that are not used.
    terms : {0, 1, 3}
        Of the background: nothing, a constant, or a constant and two slopes.

    Returns
    -------
    float64 (n, s, s); NaN where the pixels do not determine the flux.
    """
    xp = backend_of(psf).xp
    n, side = psf.shape[:2]
    p, w = (a.reshape(n, -1).astype(np.float64) for a in (psf, weight))
    o = xp.arange(side, dtype=np.float64) - side // 2
    one = xp.ones((side, side))
    found: list[tuple[Array, Array]] = []
    for plane in (one, one * o, one * o[:, None])[:terms]:
        column = xp.broadcast_to(plane.reshape(1, -1), p.shape)
        column = column - _along(column, w, found)
        norm = (w * column * column).sum(axis=1)
        found.append((column, xp.where(norm > 0, norm, np.inf)))
    left = p - _along(p, w, found)
    weighed = w * left
    norm, whole = (weighed * p).sum(axis=1), (w * p * p).sum(axis=1)
    known = (whole > 0) & (norm > DETERMINED * whole)
    return (weighed / xp.where(known, norm, np.nan)[:, None]).reshape(psf.shape)


def _along(plane: Array, weight: Array, found: list[tuple[Array, Array]]) -> Array:
    """The part of planes (n, m) along orthogonal ones of these squares."""
    out = backend_of(plane).xp.zeros_like(plane)
    for column, norm in found:
        out += ((weight * plane * column).sum(axis=1) / norm)[:, None] * column
    return out


def kernel_response(weights: Array, light: Array, half: int, filters: Array | None = None) -> Array:
    """By how much sum_x w(x) (f (x) K (x) R)(x) grows with each pixel of the kernel K.

    That is G(v) = sum_x w(x) (f (x) R)(x - v), by one Fourier transform of each plane; exact, nothing wraps around.

    Parameters
    ----------
    weights : float64 (n, s, s)
        w, odd s.
    light : float (n, m, m)
        R about the same middle pixel, m = s + 2 (half + r).
    half : int
        Half-size of K, px.
    filters : float (n, 2 r + 1, 2 r + 1), optional
        f of each; nothing, and r = 0, if missing.

    Returns
    -------
    float64 (n, 2 half + 1, 2 half + 1)
    """
    backend = backend_of(weights)
    fft, m = backend.fft, light.shape[1]
    reach = 0 if filters is None else filters.shape[1] // 2
    size = (fft.next_fast_len(m, True),) * 2
    spectrum = fft.rfft2(light.astype(np.float64), size)
    if filters is not None:
        # its middle lies at pixel (reach, reach): so does the filtered light's first pixel
        spectrum *= fft.rfft2(filters.astype(np.float64), size)
    spectrum *= backend.xp.conj(fft.rfft2(weights, size))
    first = 2 * reach
    box = slice(first, first + 2 * half + 1)
    return fft.irfft2(spectrum, size)[:, box, box][:, ::-1, ::-1]
