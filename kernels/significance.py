# SPDX-License-Identifier: BSD-3-Clause
"""Whitening and matched filtering of a difference image, tile by tile in Fourier space.

Array code that runs unchanged on numpy and cupy: every step is a batched FFT or one pass over the pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from skydelta.kernels.backend import Array, Backend, backend_of
from skydelta.kernels.core.devices import DeviceSet
from skydelta.kernels.core.multi import map_tiles
from skydelta.kernels.core.tiles import Tile, TileGrid

SMALL = 96
"""Least side of the arrays on which kernels alone are transformed, px."""

FLOOR = 1e-2
"""Least relative noise power: frequencies without noise are not amplified without bound."""


@dataclass(frozen=True)
class Kernels:
    """What the tiles of a batch need, float64 on the host; every stamp has odd sides and its centre in the middle.

    Attributes
    ----------
    match : (n, kh, kw)
        Matching kernel at the tile centre.
    psf : (n, ph, pw)
        PSF of the difference.
    level_fixed, level_moved : (n,)
        Noise variance in blank sky of the image that is not convolved, and of the one that is.
    correlation_fixed, correlation_moved : (2 l + 1, 2 l + 1) or None
        Noise correlation of the inputs by lag; None is white.
    reach : int
        Half-size of the matched filter, px.
    """

    match: np.ndarray
    psf: np.ndarray
    level_fixed: np.ndarray
    level_moved: np.ndarray
    correlation_fixed: np.ndarray | None
    correlation_moved: np.ndarray | None
    reach: int


@dataclass(frozen=True)
class Scored:
    """One batch of tiles, float32 (n, size, size), and the whitened PSF stamps, float64 (n, 2 reach + 1, ...)"""

    whitened: Array
    variance: Array
    snr: Array
    psf: Array


def embed(stamps: Array, size: int) -> Array:
    """Stamps (n, h, w) as (n, size, size) arrays with their centre at pixel (0, 0), wrapped around."""
    xp = backend_of(stamps).xp
    n, h, w = stamps.shape
    out = xp.zeros((n, size, size), stamps.dtype)
    out[:, :h, :w] = stamps
    return xp.roll(out, (-(h // 2), -(w // 2)), (1, 2))


def cut(arrays: Array, half: int) -> Array:
    """The inverse of `embed`: (n, 2 half + 1, 2 half + 1)."""
    return backend_of(arrays).xp.roll(arrays, (half, half), (1, 2))[:, : 2 * half + 1, : 2 * half + 1]


@dataclass(frozen=True)
class _Filters:
    """Kernels of a batch in real space, wrapped around (0, 0) of a small grid; ``own`` is cut out."""

    own: Array
    white2: Array
    moved2: Array
    exact_fixed: Array
    exact_moved: Array


@dataclass(frozen=True)
class _Spectra:
    """What follows from the kernels on a grid of one size: rfft2 half planes, float64.

    Attributes
    ----------
    match : (n, size, size / 2 + 1)
    white : (n, size, size / 2 + 1)
        Whitening filter.
    fixed, moved : (size, size / 2 + 1) or None
        Noise power of the inputs for unit variance; None is white.
    """

    match: Array
    white: Array
    fixed: Array | None
    moved: Array | None


def _spectra(backend: Backend, k: Kernels, size: int) -> _Spectra:
    xp, fft = backend.xp, backend.fft

    def power(correlation: np.ndarray | None) -> Array | None:
        if correlation is None:
            return None
        p = fft.rfft2(embed(backend.asarray(correlation[None]), size))[0].real
        return xp.maximum(p, FLOOR * p.max())

    match = fft.rfft2(embed(backend.asarray(k.match), size))
    fixed, moved = power(k.correlation_fixed), power(k.correlation_moved)
    level_fixed, level_moved = (backend.asarray(a)[:, None, None] for a in (k.level_fixed, k.level_moved))
    noise = level_fixed * (1.0 if fixed is None else fixed)
    noise = noise + level_moved * xp.abs(match) ** 2 * (1.0 if moved is None else moved)
    noise = xp.maximum(noise, FLOOR * noise.max(axis=(1, 2), keepdims=True))
    return _Spectra(match, xp.sqrt(noise[:, :1, :1] / noise), fixed, moved)


def _filters(backend: Backend, k: Kernels, size: int) -> _Filters:
    """All filters of a batch on a grid of ``size`` px (no image is touched)."""
    fft = backend.fft
    s = _spectra(backend, k, size)

    def back(a: Array) -> Array:
        return fft.irfft2(a, (size, size))

    def squared(spectrum: Array, power: Array | None) -> Array:
        """k(u) (rho (x) k)(u): what a smooth variance is convolved with."""
        a = back(spectrum)
        return a * a if power is None else a * back(spectrum * power)

    own = cut(back(fft.rfft2(embed(backend.asarray(k.psf), size)) * s.white), k.reach)
    flipped = backend.xp.conj(fft.rfft2(embed(own, size)))
    return _Filters(
        own,
        squared(s.white, s.fixed),
        squared(s.white * s.match, s.moved),
        squared(flipped * s.white, s.fixed),
        squared(flipped * s.white * s.match, s.moved),
    )


def score_tiles(difference: Array, fixed: Array, moved: Array, good: Array, k: Kernels) -> Scored:
    """Whiten a batch of tiles at their sky level and filter them with their own PSF.

    The whitening filter is W^2 = N(0) / N, N = s_f^2 p_f + s_m^2 p_m |K|^2 (Reiss & Lupton, DMTN-021), unchanged
    at zero frequency. The variance of the whitened pixels and of the filter output is exact: each input variance
    plane convolved with the square of its whole filter chain (with the input's noise correlation), so that the S/N
    has unit variance on stars too.

    Parameters
    ----------
    difference : float32 (n, size, size)
        Zero where not good.
    fixed, moved : float32 (n, size, size)
        Variance planes of the image that was not convolved and of the one that was; zero where unusable.
    good : bool (n, size, size)
    k : Kernels
    """
    backend = backend_of(difference)
    xp, fft = backend.xp, backend.fft
    size = difference.shape[-1]
    reach = k.match.shape[-1] // 2 + max(k.psf.shape[-1] // 2, k.reach)
    small = min(size, max(SMALL, int(2 ** np.ceil(np.log2(4 * reach)))))
    f = _filters(backend, k, small)
    white = _spectra(backend, k, size).white.astype(np.float32)

    def ft(a: Array) -> Array:
        return fft.rfft2(a)

    def back(a: Array) -> Array:
        return fft.irfft2(a, (size, size))

    def filter_of(wrapped: Array) -> Array:
        """Spectrum at full size of a real-space kernel given wrapped on the small grid."""
        return ft(_enlarge(wrapped, size))

    own = embed(f.own.astype(np.float32), size)
    own_flipped, own2_flipped = xp.conj(ft(own)), xp.conj(ft(own * own))
    fixed_f, moved_f = ft(fixed), ft(moved)
    whitened = back(ft(difference) * white)
    variance = back(filter_of(f.white2) * fixed_f + filter_of(f.moved2) * moved_f)
    # whitened sky has the level N(0); rounding beside very bright stars must not fall through it
    sky = k.level_fixed + k.level_moved * k.match.sum(axis=(1, 2)) ** 2
    variance = xp.maximum(variance, backend.asarray(FLOOR * sky, np.float32)[:, None, None])
    inverse = xp.where(good, 1 / variance, np.float32(0))
    weight = back(ft(inverse) * own2_flipped)
    exact = back(filter_of(f.exact_fixed) * fixed_f + filter_of(f.exact_moved) * moved_f)
    plain = back(ft(variance) * own2_flipped)
    one = np.float32(1)
    valid = good & (weight > 0) & (exact > 0) & (plain > 0)
    scale = xp.where(valid, weight, one) * xp.where(valid, exact, one) / xp.where(valid, plain, one)
    snr = back(ft(whitened * inverse) * own_flipped) / xp.sqrt(scale)
    nan = np.float32(np.nan)
    return Scored(xp.where(good, whitened, nan), xp.where(good, variance, nan), xp.where(valid, snr, nan), f.own)


def _enlarge(wrapped: Array, size: int) -> Array:
    """Kernels wrapped around (0, 0) of a small grid, the same on a grid of ``size``; float32."""
    small = wrapped.shape[1]
    if small == size:
        return wrapped.astype(np.float32)
    return embed(cut(wrapped, (small - 1) // 2).astype(np.float32), size)


MATCHED_TILE = 256
"""One PSF for each tile of this side when an image is filtered for white noise, px."""


def matched_filter(
    image: Array,
    variance: Array,
    good: Array,
    render: Callable[[np.ndarray, np.ndarray], np.ndarray],
    devices: DeviceSet | None = None,
) -> Array:
    """Signal-to-noise of a PSF fit at each pixel of an image with independent noise.

    With w = good / V and P the local unit-sum PSF, SN = ((w D) * P~) / sqrt(w * P~^2): masked pixels drop out of both
    sums.

    Parameters
    ----------
    image, variance : float32 (H, W)
    good : bool (H, W)
    render : callable
        PSF stamps float64 (n, ph, pw) at positions x, y (`Psf.render`).
    devices : DeviceSet, optional
        Share the tiles; the image's own device if missing. The result does not depend on how many there are.

    Returns
    -------
    float32 (H, W), NaN where not good.
    """
    backend = backend_of(image)
    xp = backend.xp
    psfs = render(*TileGrid(image.shape, MATCHED_TILE).centres())
    grid = TileGrid(image.shape, MATCHED_TILE, psfs.shape[-1] // 2)
    weight = xp.where(good, 1 / xp.where(good, variance, np.float32(1)), np.float32(0))
    signal = xp.where(good, image, np.float32(0)) * weight

    def filtered(tile: Tile, signal: Array, weight: Array, good: Array) -> Array:
        return _filter_tile(psfs[tile.row * grid.counts[1] + tile.column], tile.inner, signal, weight, good)

    return map_tiles(filtered, (signal, weight, good), grid, devices or DeviceSet.of(backend))


def _filter_tile(psf: np.ndarray, core: tuple[slice, slice], signal: Array, weight: Array, good: Array) -> Array:
    """S/N of the core of one cut-out with its halo."""
    backend = backend_of(signal)
    xp, fft = backend.xp, backend.fft
    half = psf.shape[0] // 2
    size = tuple(fft.next_fast_len(n + 2 * half, True) for n in signal.shape)

    def correlate(plane: Array, stamp: np.ndarray) -> Array:
        kernel = np.zeros(size, np.float32)
        kernel[: stamp.shape[0], : stamp.shape[1]] = stamp
        kernel = np.roll(kernel, (-half, -half), (0, 1))
        return fft.irfft2(fft.rfft2(plane, size) * xp.conj(fft.rfft2(backend.asarray(kernel))), size)[core]

    top, bottom = correlate(signal, psf), correlate(weight, psf * psf)
    # rounding leaves a weight of about 1e-7 of the tile's where there is none
    ok = good[core] & (bottom > 1e-5 * bottom.max())
    return xp.where(ok, top / xp.sqrt(xp.where(ok, bottom, np.float32(1))), np.float32(np.nan))
