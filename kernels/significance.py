# SPDX-License-Identifier: BSD-3-Clause
"""Whitening and matched filtering of a difference image, tile by tile in Fourier space.

Runs unchanged on numpy and cupy: every step is a batched FFT or one pass over the pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import ndimage

from skydelta.kernels.backend import Array, Backend, backend_of, to_host
from skydelta.kernels.core.devices import DeviceSet, copy_to
from skydelta.kernels.core.fused import FusedKernel
from skydelta.kernels.core.multi import map_tiles
from skydelta.kernels.core.tiles import Blocks, Tile, TileGrid
from skydelta.kernels.stacks import CORRELATE, FILTER, WEIGH, cut_tiles, join_tiles

SMALL = 96
"""Least side of the arrays on which kernels alone are transformed, px."""

FLOOR = 1e-2
"""Least relative noise power: frequencies without noise are not amplified without bound."""

PREPARED = {"cpu": 2, "cuda": 256}
"""Tiles whose filters are made at once."""

TOGETHER = {"cpu": (1, 2), "cuda": (8, 8)}
"""Tiles along y and x that are transformed at once: what a cache holds, or what fills a device."""


@dataclass(frozen=True)
class Kernels:
    """What the tiles need, a value each; every stamp has odd sides and its centre in the middle.

    Attributes
    ----------
    match : float64 (n, kh, kw)
        Matching kernel at the tile centre.
    psf : float64 (n, ph, pw)
        PSF of the difference.
    level_fixed, level_moved : float64 (n,)
        Noise variance in blank sky of the image that is not convolved, and of the one that is; on the device.
    correlation_fixed, correlation_moved : (2 l + 1, 2 l + 1) or None
        Noise correlation of the inputs by lag; None is white.
    reach : int
        Half-size of the matched filter, px.
    """

    match: Array
    psf: Array
    level_fixed: Array
    level_moved: Array
    correlation_fixed: np.ndarray | None
    correlation_moved: np.ndarray | None
    reach: int

    @property
    def small(self) -> int:
        """Side of the arrays that hold every kernel and filter, wrapped around (0, 0), px."""
        reach = self.match.shape[-1] // 2 + max(self.psf.shape[-1] // 2, self.reach)
        return max(SMALL, int(2 ** np.ceil(np.log2(4 * reach))))

    def part(self, here: slice) -> Kernels:
        """Those of some of the tiles."""
        tiles = {n: getattr(self, n)[here] for n in ("match", "psf", "level_fixed", "level_moved")}
        return replace(self, **tiles)


@dataclass(frozen=True)
class Planes:
    """Planes of a difference (H, W): float32 values, and bool where they may be used.

    Attributes
    ----------
    difference, usable
    fixed, good_fixed
        Variance of the image that was not convolved.
    moved, good_moved
        Variance of the image that was, before the convolution.
    scale : float
        What both variances are multiplied with to be in the unit of the difference.
    """

    difference: Array
    fixed: Array
    moved: Array
    usable: Array
    good_fixed: Array
    good_moved: Array
    scale: float

    @property
    def arrays(self) -> tuple[Array, ...]:
        return self.difference, self.fixed, self.moved, self.usable, self.good_fixed, self.good_moved


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


def _power(backend: Backend, correlation: np.ndarray | None, size: int) -> Array | None:
    """Noise power of an input of unit variance, float64 (size, size / 2 + 1); None is white."""
    if correlation is None:
        return None
    p = backend.fft.rfft2(embed(backend.asarray(correlation[None]), size))[0].real
    return backend.xp.maximum(p, FLOOR * p.max())


def _white(match: Array, fixed: Array | None, moved: Array | None, level_fixed: Array, level_moved: Array) -> Array:
    """Whitening filters (n, size, size / 2 + 1) of matching kernels' spectra, noise powers and sky levels (n,)."""
    xp = backend_of(match).xp
    noise = level_moved[:, None, None] * (match.real**2 + match.imag**2)
    if moved is not None:
        noise *= moved
    noise += level_fixed[:, None, None] * (1.0 if fixed is None else fixed)
    noise = xp.maximum(noise, FLOOR * noise.max(axis=(1, 2), keepdims=True))
    return xp.sqrt(noise[:, :1, :1] / noise)


FILTERS = ("white2", "moved2", "exact_fixed", "exact_moved", "own", "own2", "match")
"""Kernels of each tile in real space: what smooth variances are convolved with to give those of the whitened pixels
and of the filter output, the whitened PSF and its square, the matching kernel."""


def _filters(backend: Backend, k: Kernels) -> tuple[Array, Array, Array]:
    """`FILTERS` of a batch of tiles, float32 (7, n, small, small) wrapped around (0, 0), the whitened PSF stamps, and
    the filter that whitens, as large as the matching kernel: of its absolute weight some 1e-4 lie beyond.

    Made in float64; no image is touched.
    """
    fft, size = backend.fft, k.small
    wrapped = embed(backend.asarray(k.match), size)
    match = fft.rfft2(wrapped)
    fixed, moved = (_power(backend, c, size) for c in (k.correlation_fixed, k.correlation_moved))
    white = _white(match, fixed, moved, k.level_fixed, k.level_moved)

    def back(a: Array) -> Array:
        return fft.irfft2(a, (size, size))

    def squared(spectrum: Array, power: Array | None) -> Array:
        """k(u) (rho (x) k)(u): what a smooth variance is convolved with."""
        a = back(spectrum)
        return a * a if power is None else a * back(spectrum * power)

    own = cut(back(fft.rfft2(embed(backend.asarray(k.psf), size)) * white), k.reach)
    flipped = backend.xp.conj(fft.rfft2(embed(own, size))) * white
    single = embed(own.astype(np.float32), size)
    made = (
        squared(white, fixed),
        squared(white * match, moved),
        squared(flipped, fixed),
        squared(flipped * match, moved),
        single,
        single * single,
        wrapped,
    )
    whitening = cut(back(white.astype(np.complex128)), k.match.shape[-1] // 2)
    return backend.xp.stack([a.astype(np.float32) for a in made]), own, whitening


def _enlarge(wrapped: Array, size: int) -> Array:
    """Arrays (..., small, small) wrapped around (0, 0), the same on a grid of ``size``."""
    xp, small = backend_of(wrapped).xp, wrapped.shape[-1]
    if small == size:
        return wrapped
    half = (min(small, size) - 1) // 2
    out = xp.zeros((*wrapped.shape[:-2], size, size), wrapped.dtype)
    ends = (slice(0, half + 1), slice(-half, None))
    for rows in ends:
        for columns in ends:
            out[..., rows, columns] = wrapped[..., rows, columns]
    return out


def score_image(
    planes: Planes, kernels: Kernels, grid: TileGrid, devices: DeviceSet | None = None
) -> tuple[Array, np.ndarray, Array]:
    """Whiten a difference at the sky level of each tile and filter it with the tile's own PSF.

    The whitening filter is W^2 = N(0) / N, N = s_f^2 p_f + s_m^2 p_m |K|^2 (Reiss & Lupton, DMTN-021), unchanged
    at zero frequency. The variance of the whitened pixels and of the filter output is exact: each input variance
    plane convolved with the square of its whole filter chain (with the input's noise correlation), so that the S/N
    has unit variance on stars too.

    Parameters
    ----------
    planes : Planes
    kernels : Kernels
        For each tile of the grid, row by row.
    grid : TileGrid
        One kernel, PSF and sky level for each tile.
    devices : DeviceSet, optional
        Share the tiles; the image's own device if missing. The result does not depend on how many there are.

    Returns
    -------
    planes : float32 (3, H, W)
        Whitened difference, its variance and S/N; NaN where not usable.
    psf : float64 (ny, nx, 2 reach + 1, 2 reach + 1)
        Whitened PSF of each tile, on the host.
    whitening : float64 (ny, nx, kh, kw)
        The filter that whitens each tile, W, as large as the matching kernel; where the image is.
    """
    backend = backend_of(planes.difference)
    xp, batch = backend.xp, PREPARED[backend.kind]
    made = [_filters(backend, kernels.part(slice(i, i + batch))) for i in range(0, len(grid), batch)]
    filters = xp.concatenate([f for f, _, _ in made], axis=1) if len(made) > 1 else made[0][0]
    filters = filters.reshape(len(FILTERS), *grid.counts, *filters.shape[-2:])
    own, whitening = (xp.concatenate([m[k] for m in made]) for k in (1, 2))
    levels = xp.stack([kernels.level_fixed, kernels.level_moved])
    # whitened sky has the level N(0); rounding beside very bright stars must not fall through it
    floor = FLOOR * (levels[0] + levels[1] * backend.asarray(kernels.match.sum(axis=(1, 2))) ** 2)
    numbers = xp.concatenate([levels, floor[None]]).astype(np.float32).reshape(3, *grid.counts)
    del made

    pad = kernels.match.shape[-1] // 2 + 2 * kernels.reach
    size = fft_length(backend, max(int(np.diff(grid.edges(axis)).max()) for axis in (0, 1)) + 2 * pad)
    powers = [_power(backend, c, size) for c in (kernels.correlation_fixed, kernels.correlation_moved)]
    powers = [None if p is None else p.astype(np.float32) for p in powers]
    blocks = Blocks(grid, TOGETHER[backend.kind], pad, size)

    def scored(block: Tile, *cuts: Array) -> Array:
        here, members = backend_of(cuts[0]), blocks.members(block)
        rows, columns = (np.array(e) for e in blocks.edges(block))
        first_row, first_column = rows[:-1] - pad - block.halo.y0, columns[:-1] - pad - block.halo.x0
        difference, fixed, moved, *good = cuts
        stack, usable = cut_tiles(
            difference, fixed, moved, good[0], good[1], good[2], first_row, first_column, size, planes.scale
        )
        mine = copy_to(filters[(slice(None), *members)], here).reshape(len(FILTERS), -1, *filters.shape[-2:])
        level_fixed, level_moved, least = copy_to(numbers[(slice(None), *members)], here).reshape(3, -1)
        fixed, moved = (None if p is None else copy_to(p, here) for p in powers)
        return _score_stack(
            stack, usable, mine, (level_fixed, level_moved, least), (fixed, moved), (rows, columns), pad
        )

    out = map_tiles(scored, planes.arrays, blocks, devices or DeviceSet.of(backend), planes=(3,))
    return (
        out,
        to_host(own).reshape(*grid.counts, *own.shape[1:]),
        whitening.reshape(*grid.counts, *whitening.shape[1:]),
    )


def fft_length(backend: Backend, least: int) -> int:
    """Side of square transforms: at least ``least`` px, even, and of small prime factors."""
    return int(backend.fft.next_fast_len(least, True))


def _score_stack(
    stack: Array,
    usable: Array,
    filters: Array,
    numbers: tuple[Array, Array, Array],
    powers: tuple[Array | None, Array | None],
    edges: tuple[np.ndarray, np.ndarray],
    pad: int,
) -> Array:
    """Whitened pixels, variance and S/N of the cores of a block, float32 (3, h, w).

    Parameters
    ----------
    stack : float32 (3, n, size, size)
        Difference, fixed and moved variance; zero where they may not be used.
    usable : bool (n, size, size)
    filters : float32 (7, n, small, small)
        `FILTERS`, wrapped around (0, 0).
    numbers : three float32 (n,)
        Sky levels of the fixed and the moved variance, and the least variance of a whitened pixel.
    powers : two of float32 (size, size / 2 + 1) or None
    edges : two int arrays
        Boundaries of the cores along y and x.
    pad : int
    """
    backend = backend_of(stack)
    xp, fft, size = backend.xp, backend.fft, stack.shape[-1]
    level_fixed, level_moved, floor = numbers
    spectra = dict(zip(FILTERS, fft.rfft2(_enlarge(filters, size)), strict=True))
    white = _white(spectra.pop("match"), *powers, level_fixed, level_moved)
    own = {name: spectra.pop(name) for name in ("own", "own2")}

    def through(chain: FusedKernel, **values: Array) -> Array:
        """The stacks whose spectra a chain makes, in the order of its outputs."""
        made = xp.empty((3, *white.shape), np.complex64)
        chain(out=dict(zip(chain.outputs, made, strict=True)), **values)
        return fft.irfft2(made, (size, size), overwrite_x=True)

    data, fixed, moved = fft.rfft2(stack)
    whitened, raw, exact = through(FILTER, data=data, fixed=fixed, moved=moved, white=white, **spectra)
    del data, fixed, moved, spectra
    names = ("inverse", "variance", "signal")
    weighed = WEIGH(out=dict(zip(names, stack, strict=True)), whitened=whitened, raw=raw, floor=floor, usable=usable)
    weight, plain, signal = through(CORRELATE, **dict(zip(names, fft.rfft2(stack), strict=True)), **own)
    return join_tiles(whitened, weighed["variance"], exact, weight, plain, signal, usable, edges[0], edges[1], pad)


UNSCALED = 20
"""Noise from 2^-20 to 2^20 is filtered in the image's own unit."""

MATCHED_TILE = 256
"""One PSF for each tile of this side when an image is filtered for white noise, px."""


def matched_filter(
    image: Array,
    variance: Array,
    good: Array,
    render: Callable[[np.ndarray, np.ndarray], np.ndarray],
    devices: DeviceSet | None = None,
    correlation: np.ndarray | None = None,
) -> Array:
    """Signal-to-noise of a PSF fit at each pixel of an image with independent noise.

    With w = good / V and P the local unit-sum PSF, SN = ((w D) * P~) / sqrt(w * P~^2): masked pixels drop out of both
    sums. With correlated noise the filter is the same one and its variance w * (P (rho (x) P))~, exact where V is
    smooth, so that noise has unit variance in any case.

    Parameters
    ----------
    image, variance : float32 (H, W)
    good : bool (H, W)
    render : callable
        PSF stamps float64 (n, ph, pw) at positions x, y (`Psf.render`).
    devices : DeviceSet, optional
        Share the tiles; the image's own device, or all threads of a CPU, if missing. The result does not depend on
        how many there are.
    correlation : float64 (2 l + 1, 2 l + 1), optional
        Correlation rho of the noise by lag; white if missing.

    Returns
    -------
    float32 (H, W), NaN where not good.
    """
    backend = backend_of(image)
    image, variance = _near_one(image, variance, good)
    grid = TileGrid(image.shape, MATCHED_TILE)
    psfs = to_host(render(*grid.centres()))
    half = max(psfs.shape[1:]) // 2
    grid = TileGrid(image.shape, MATCHED_TILE, half)
    # what wraps around spoils the halo alone
    height, width = (fft_length(backend, int(np.diff(grid.edges(axis)).max()) + 2 * half) for axis in (0, 1))
    size = height, width
    if (psfs == psfs[0]).all():
        psfs = psfs[:1]
    shared = {}
    if len(psfs) == 1 and len(grid) > 1 and not backend.is_gpu:
        shared[0] = _matched_spectra(backend, psfs[0], correlation, size)

    def filtered(tile: Tile, image: Array, variance: Array, good: Array) -> Array:
        here, k = backend_of(image), (tile.row * grid.counts[1] + tile.column) % len(psfs)
        spectra = shared[k] if k in shared else _matched_spectra(here, psfs[k], correlation, size)
        if not here.is_gpu and tile.halo == tile.core.grow(half) and good.all():
            level = variance.flat[0]
            if (variance == level).all():
                return _filter_flat(spectra, tile.inner, size, image, level)
        return _filter_tile(spectra, tile.inner, size, image, variance, good)

    return map_tiles(filtered, (image, variance, good), grid, devices or DeviceSet.at_home(backend))


def _near_one(image: Array, variance: Array, good: Array) -> tuple[Array, Array]:
    """Image and variance in another unit where sums of 1 / V, or of D / V, could leave float32: by a power of two,
    which changes no bit of their ratio.
    """
    xp = backend_of(image).xp
    largest = float(xp.where(good, variance, np.float32(0)).max()) if image.size else 0.0
    if not 0 < largest < np.inf or abs(power := round(np.log2(largest) / 2)) < UNSCALED:
        return image, variance
    unit = np.float32(2.0**-power)
    return image * unit, variance * unit * unit


def _matched_spectra(backend: Backend, psf: np.ndarray, correlation: np.ndarray | None, size: tuple[int, int]) -> Array:
    """Conjugate spectra of the filter and of what the weight is filtered with: complex64 (2, size, size / 2 + 1)."""
    spread = psf if correlation is None else ndimage.convolve(psf, correlation, mode="constant")
    kernels = np.zeros((2, *size), np.float32)
    kernels[:, : psf.shape[0], : psf.shape[1]] = psf, psf * spread
    kernels = np.roll(kernels, (-(psf.shape[0] // 2), -(psf.shape[1] // 2)), (1, 2))
    return backend.xp.conj(backend.fft.rfft2(backend.asarray(kernels)))


def _filter_flat(
    spectra: Array, core: tuple[slice, slice], size: tuple[int, int], image: Array, level: np.float32
) -> Array:
    """`_filter_tile` where all is usable, with one variance: what the weight is filtered with need only be summed."""
    backend = backend_of(image)
    xp, fft = backend.xp, backend.fft
    plane = xp.zeros(size, np.float32)
    plane[: image.shape[0], : image.shape[1]] = image
    made = fft.rfft2(plane)
    made *= spectra[0]
    top = fft.irfft2(made, size, overwrite_x=True)[core]
    return top * np.float32(1 / np.sqrt(float(level) * float(spectra[1, 0, 0].real)))


def _filter_tile(
    spectra: Array, core: tuple[slice, slice], size: tuple[int, int], image: Array, variance: Array, good: Array
) -> Array:
    """S/N of the core of one cut-out with its halo."""
    backend = backend_of(image)
    xp, fft = backend.xp, backend.fft
    planes = xp.zeros((2, *size), np.float32)
    signal, weight = planes[:, : image.shape[0], : image.shape[1]]
    weight[...] = xp.where(good, 1 / xp.where(good, variance, np.float32(1)), np.float32(0))
    signal[...] = xp.where(good, image, np.float32(0)) * weight
    made = fft.rfft2(planes)
    made *= spectra
    top, bottom = fft.irfft2(made, size, overwrite_x=True)[(slice(None), *core)]
    # rounding leaves a weight of about 1e-7 of the tile's where there is none
    ok = good[core] & (bottom > 1e-5 * bottom.max())
    return xp.where(ok, top / xp.sqrt(xp.where(ok, bottom, np.float32(1))), np.float32(np.nan))
