# SPDX-License-Identifier: BSD-3-Clause
"""Proper image subtraction (Zackay, Ofek & Gal-Yam 2016, ApJ 830, 27), a pair of PSFs for each overlapping tile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skydelta.kernels.backend import Array, Backend, backend_of
from skydelta.kernels.core.devices import DeviceSet
from skydelta.kernels.core.multi import map_tiles
from skydelta.kernels.core.tiles import Tile, TileGrid
from skydelta.kernels.significance import embed, fft_length

CORE = 3e-4
"""Share of a delta function added to both PSFs: where neither has power, D is a plain difference, not a division of
noise by noise whose filters never end. A star leaves this share of the difference of the two PSFs."""

PLANES = 8
"""Planes of `Images`, all float32: new, reference, their variances, bad pixels and doubts."""

OUTPUTS = ("difference", "variance", "score", "lost_new", "lost_reference", "leak2")
"""Planes of `proper_image`, in order."""


@dataclass(frozen=True)
class TileValues:
    """One value for each tile, on the host.

    Attributes
    ----------
    psf_new, psf_reference : float64 (n, p, p)
        Unit sum, odd sides.
    flux_reference : float64 (n,)
        F_R, counts of a source in the reference over those in the new image (F_N = 1).
    level_new, level_reference : float64 (n,)
        Noise variance of the blank sky.
    correlation_new, correlation_reference : (2 l + 1, 2 l + 1) or None
        Noise correlation by lag; None is white.
    shift_error : float
        Registration error of an axis, px.
    """

    psf_new: np.ndarray
    psf_reference: np.ndarray
    flux_reference: np.ndarray
    level_new: np.ndarray
    level_reference: np.ndarray
    correlation_new: np.ndarray | None
    correlation_reference: np.ndarray | None
    shift_error: float


def proper_image(
    planes: tuple[Array, ...], values: TileValues, grid: TileGrid, half: int, devices: DeviceSet | None = None
) -> tuple[Array, np.ndarray]:
    """D, its variance and S_corr of two images without sky.

    With N, R the images, P their PSFs, P' = P + `CORE`, s^2 p the noise powers (spectra, F_N = 1) and den = s_N^2 p_N
    F_R^2 |P'_R|^2 + s_R^2 p_R |P'_N|^2: D = d_N N - d_R R with d_N = F_R P'_R / (F_D sqrt(den)), d_R = P'_N / (F_D
    sqrt(den)) (equation 13); P_D = d_N P_N; S = P_D* D = k_N N - k_R R (12, 16); S_corr = S / sqrt(V_N (x) k_N^2 +
    V_R (x) k_R^2 + V_ast) (25 to 31), V_ast = e^2 ((dS_N/dx)^2 + (dS_N/dy)^2) for a registration error e. F_D is such
    that P_D sums to 1.

    Parameters
    ----------
    planes : `PLANES` of (H, W)
        New image and reference, their variances (all finite, zero where unusable), bad pixels (1, also float32), and
        how wrong the images may be there.
    values : TileValues
    grid : TileGrid
        Halo of at least twice the PSF's half-size.
    half : int
        Half-size of P_D, px.

    Returns
    -------
    planes : float32 (6, H, W)
        `OUTPUTS`: lost are shares of the filters' absolute weight on bad pixels and outside; leak2 the square of how
        wrong D may be.
    psf : float64 (n, 2 half + 1, 2 half + 1)
        P_D of each tile.
    """
    backend = backend_of(planes[0])
    size = fft_length(backend, max(int(np.diff(grid.edges(axis)).max()) for axis in (0, 1)) + 2 * grid.halo)
    columns = grid.counts[1]
    psfs = np.stack([_psf(values, k, half) for k in range(len(grid))])

    def subtracted(tile: Tile, *cuts: Array) -> Array:
        return _tile(tile, cuts, values, tile.row * columns + tile.column, size)

    return map_tiles(subtracted, planes, grid, devices or DeviceSet.of(backend), planes=(len(OUTPUTS),)), psfs


def _filters(backend: Backend, v: TileValues, k: int, size: int) -> tuple[Array, ...]:
    """Spectra (size, size / 2 + 1) of d_N, d_R, k_N, k_R, P_D, and the noise powers of both images (or None)."""
    xp, fft = backend.xp, backend.fft

    def spectrum(stamp: np.ndarray) -> Array:
        return fft.rfft2(embed(backend.asarray(stamp[None]), size))[0]

    new, reference, f = spectrum(v.psf_new[k]), spectrum(v.psf_reference[k]), float(v.flux_reference[k])

    def abs2(a: Array) -> Array:
        return a.real**2 + a.imag**2

    powers = []
    for correlation in (v.correlation_new, v.correlation_reference):
        power = None if correlation is None else spectrum(correlation).real
        powers.append(None if power is None else xp.maximum(power, 1e-2 * power.max()))
    new_, reference_ = new + CORE, reference + CORE
    den = float(v.level_new[k]) * f**2 * abs2(reference_) * (1 if powers[0] is None else powers[0])
    den += float(v.level_reference[k]) * abs2(new_) * (1 if powers[1] is None else powers[1])
    root = xp.sqrt(den)
    flux = f * (1 + CORE) / root[0, 0]
    d_new, d_reference = f * reference_ / root / flux, new_ / root / flux
    seen = d_new * new
    matched = xp.conj(seen)
    return d_new, d_reference, matched * d_new, matched * d_reference, seen, *powers


def _psf(v: TileValues, k: int, half: int) -> np.ndarray:
    """P_D of a tile, made on the host."""
    from skydelta.kernels.backend import CPU

    size = int(2 ** np.ceil(np.log2(4 * max(half, v.psf_new.shape[-1] // 2, v.psf_reference.shape[-1] // 2))))
    made = np.fft.irfft2(_filters(CPU, v, k, size)[4], (size, size))
    return np.roll(made, (half, half), (0, 1))[: 2 * half + 1, : 2 * half + 1]


def _tile(tile: Tile, cuts: tuple[Array, ...], values: TileValues, k: int, size: int) -> Array:
    """The six planes of the core of a tile."""
    backend = backend_of(cuts[0])
    xp, fft = backend.xp, backend.fft
    d_new, d_reference, k_new, k_reference, _, power_new, power_reference = _filters(backend, values, k, size)
    stack = xp.zeros((PLANES, size, size), np.float32)
    h, w = cuts[0].shape
    for n, plane in enumerate(cuts):
        stack[n, :h, :w] = plane
    # what lies outside of the image is bad
    stack[4:6, h:], stack[4:6, :, w:] = 1, 1
    new, reference, v_new, v_reference, bad_new, bad_reference, doubt_new, doubt_reference = fft.rfft2(stack)

    def back(a: Array) -> Array:
        return fft.irfft2(a.astype(np.complex64), (size, size))

    def squared(a: Array, power: Array | None) -> Array:
        """Spectrum of a (rho (x) a), what a smooth variance is convolved with."""
        plain = fft.irfft2(a, (size, size))
        return fft.rfft2(plain * (plain if power is None else fft.irfft2(a * power, (size, size))))

    difference = back(d_new * new - d_reference * reference)
    variance = back(squared(d_new, power_new) * v_new + squared(d_reference, power_reference) * v_reference)
    own = back(k_new * new)
    spread = back(squared(k_new, power_new) * v_new + squared(k_reference, power_reference) * v_reference)
    slope_x, slope_y = ((xp.roll(own, -1, axis) - xp.roll(own, 1, axis)) / 2 for axis in (1, 0))
    spread += np.float32(values.shift_error**2) * (slope_x**2 + slope_y**2)
    score = (own - back(k_reference * reference)) / xp.sqrt(xp.maximum(spread, np.float32(1e-6) * spread.max()))
    planes = [difference, variance, score]
    leak2 = xp.zeros_like(score)
    for filter_, bad, doubt in ((d_new, bad_new, doubt_new), (d_reference, bad_reference, doubt_reference)):
        weight = xp.abs(fft.irfft2(filter_, (size, size)))
        spectrum = fft.rfft2(weight)
        # rounding of the transforms is no loss
        lost = back(spectrum * bad) / np.float32(weight.sum())
        planes.append(xp.where(lost < np.float32(1e-5), np.float32(0), lost))
        leak2 += back(spectrum * doubt) ** 2
    planes.append(leak2)
    return xp.stack([p[tile.inner] for p in planes]).astype(np.float32)
