# SPDX-License-Identifier: BSD-3-Clause
"""The correlation of the noise of a pair of images, or of one, measured in blank sky."""

from __future__ import annotations

import functools

import numpy as np

from skydelta.io.exposure import Exposure
from skydelta.io.pairnoise import LAG, WHITE, BlankSky, PairNoise
from skydelta.kernels.backend import Array, Backend, backend_of, to_host
from skydelta.kernels.background import cell_statistics
from skydelta.kernels.cutouts import Windows
from skydelta.kernels.usable import usable_pixels

SIDE = 127
"""Side of the sampled blocks, px, odd; `cell_statistics` takes them whole."""

BLOCKS = 64
"""At most this many blocks, spread evenly."""

FEW = 16
"""Blocks that do for one image, where nothing is taken off the correlation."""

BLANK = 4.0
"""Smoothed pixels above this many robust standard deviations belong to sources."""

REACH = 6
"""Largest lag of the correlation of one image, px: at 4 noise that is smoothed by 1 px is not done."""

RARE = 5.0
"""The same for one image, where what is cut off of the noise itself matters more than faint sources do."""

SURE = 3.0
"""Standard errors from which the correlation at the largest lags counts as structure of the sky."""

DOUBT = 5.0
"""Standard deviations by which a correlation must differ from that of white noise."""


def pair_noise(science: Exposure, reference: Exposure) -> PairNoise:
    """Covariances of the noise of two aligned exposures with variance, from pairs of pixels that are blank in both.

    Blocks spread over the field are divided by their noise, their clipped medians are taken off, and what stands out
    after smoothing is a source. The covariances are those of the remaining pixels about the mean of each block, by FFT
    with zeros elsewhere: where stars are crowded the median is not that of the sky between them, and the difference,
    squared, would pass for a correlation at every lag.
    """
    backend = science.backend
    xp = backend.xp
    # both exposures' blocks in one array, science first
    image, variance, good, (x, y) = _blocks(BLOCKS, science, reference)
    z, blank = _normalised(backend, image, variance, good, BLANK)
    n, side = len(z) // 2, z.shape[1]
    typical, _, _ = _cells(variance, blank)
    both = blank[:n] & blank[n:]
    planes = xp.empty((3, n, side, side), np.float32)
    planes[2] = both
    planes[:2], blank_pixels = _centred(z.reshape(2, n, side, side), both)
    levels = xp.where(both, image.reshape(2, n, side, side), np.float32(0)).sum(axis=(2, 3), dtype=np.float64)
    at_lags = _at_lags(backend, planes, True)
    # one way to the host for all
    tables = xp.concatenate([typical.reshape(2, n).astype(np.float64), levels, blank_pixels[None].astype(np.float64)])
    packed = to_host(xp.concatenate([at_lags.ravel(), tables.ravel()]))
    own_science, own_reference, count, cross = _even(packed[: at_lags.size].reshape(at_lags.shape))
    tables = packed[at_lags.size :].reshape(5, n)
    typical, some = tables[:2], tables[4] > 0
    known = np.isfinite(typical).all(axis=0)
    if count[LAG, LAG] < side * side / 4 or not known.any():
        return PairNoise()
    sigma_science, sigma_reference = np.sqrt(np.median(typical[:, known], axis=1)).tolist()
    own_science, own_reference, cross = (a / np.maximum(count, 1) for a in (own_science, own_reference, cross))
    levels = tables[2:4, some] / tables[4, some]
    sky = BlankSky(x[some].astype(float), y[some].astype(float), levels[0], levels[1], tables[4, some].astype(int))
    return PairNoise(own_science, own_reference, cross, sigma_science, sigma_reference, float(count.min()), sky)


def _centred(z: Array, blank: Array) -> tuple[Array, Array]:
    """Blocks (2, n, side, side) less the mean of their blank pixels (n, side, side), 0 at all others: float32; and the
    number of these pixels."""
    xp = backend_of(z).xp
    inside, count = xp.where(blank, z, np.float32(0)), blank.sum(axis=(1, 2))
    mean = (inside.sum(axis=(2, 3), dtype=np.float64) / xp.maximum(count, 1)).astype(np.float32)
    return xp.where(blank, z - mean[:, :, None, None], np.float32(0)), count


def image_noise(image: Exposure) -> np.ndarray | None:
    """Correlation rho(lag) of the noise of one exposure with variance, in blank pixels as `pair_noise` finds them.

    Faint sources below the blanking threshold are in it: where a white field has a source in 30 pixels, most of them
    below its noise, they make a correlation of 0.04, which still counts as white.

    Returns
    -------
    float64 (2 REACH + 1, 2 REACH + 1) with 1 in the middle, or None where the noise is white or there is too little
    sky.
    """
    backend = image.backend
    values, variance, good, _ = _blocks(FEW, image)
    z, blank = _normalised(backend, values, variance, good, RARE)
    n, side = z.shape[:2]
    planes = backend.xp.concatenate([backend.xp.where(blank, z, np.float32(0)), blank.astype(np.float32)])
    at_lags = _even(to_host(_at_lags(backend, planes[:, None], False, REACH)))
    own, count = at_lags.reshape(2, n, *at_lags.shape[1:])
    # many more pixels than lags, or what went with the level outweighs what is left
    enough = count[:, REACH, REACH] >= max(side * side / 4, 4 * own[0].size)
    if not enough.any():
        return None
    own, count = own[enough], count[enough]
    own /= np.maximum(count, 1)
    typical = np.median(own / np.maximum(own[:, REACH, REACH], 1e-300)[:, None, None], axis=0)
    pixels = count[:, REACH, REACH]
    # a block's own level was taken off, and with it at every lag the sum of the correlations over the pixels that the
    # level is of (Anderson 1971, The Statistical Analysis of Time Series, 8.3)
    typical += typical.sum() / (np.median(pixels) - typical.size)
    # what is as strong at the largest lags is structure of the sky, not noise, where it is beyond the error of a lag
    # (Bartlett 1946)
    border = float(np.median(np.r_[typical[0], typical[-1], typical[1:-1, 0], typical[1:-1, -1]]))
    if border > SURE * np.sqrt((typical**2).sum() / pixels.sum()):
        typical -= border
    if not typical[REACH, REACH] > 0:
        return None
    rho = typical / typical[REACH, REACH]
    others = np.abs(rho)
    others[REACH, REACH] = 0
    # of few pixels the correlation of white noise is not small
    return rho if others.max() > max(WHITE, DOUBT / np.sqrt(pixels.sum())) else None


def _at_lags(backend: Backend, planes: Array, cross: bool, reach: int = LAG) -> Array:
    """Sums over all blocks of the products of planes (k, n, side, side) with themselves at each lag, float64
    (k, 2 reach + 1, 2 reach + 1); with ``cross`` those of the first two planes are last.
    """
    xp, fft, side = backend.xp, backend.fft, planes.shape[-1]
    size = fft.next_fast_len(side + reach, True)
    spectra = fft.rfft2(planes, (size, size))
    mirrored, own = xp.conj(spectra), len(planes)
    products = xp.empty((own + cross, *spectra.shape[2:]), np.complex128)
    products[:own] = (spectra * mirrored).sum(axis=1, dtype=np.complex128)
    if cross:
        products[own] = (spectra[0] * mirrored[1]).sum(axis=0, dtype=np.complex128)
    along_y, along_x = _to_lags(backend, size, reach)
    return (along_y @ products @ along_x).real / size**2


def _even(at_lags: np.ndarray) -> np.ndarray:
    return 0.5 * (at_lags + at_lags[:, ::-1, ::-1])


@functools.lru_cache(maxsize=8)
def _to_lags(backend: Backend, size: int, reach: int) -> tuple[Array, Array]:
    """Matrices that take half spectra (size, size // 2 + 1) to the real parts at lags up to ``reach``, times
    size**2.
    """
    lag, row, column = np.arange(-reach, reach + 1), np.arange(size), np.arange(size // 2 + 1)
    twice = np.where((column == 0) | (2 * column == size), 1, 2)  # columns whose mirror image is not kept
    along_y = np.exp(2j * np.pi / size * (lag[:, None] * row % size))
    along_x = np.exp(2j * np.pi / size * (column[:, None] * lag % size)) * twice[:, None]
    return backend.asarray(along_y), backend.asarray(along_x)


def _blocks(count: int, *exposures: Exposure) -> tuple[Array, Array, Array, tuple[np.ndarray, np.ndarray]]:
    """Image, variance and usable pixels of the same blocks of all, at most ``count`` spread evenly: (k n, side, side)
    each; and the middles (x, y) of the n blocks, px."""
    (h, w), backend = exposures[0].shape, exposures[0].backend
    half = (min(SIDE, h, w) - 1) // 2
    side = 2 * half + 1
    ny, nx = h // side, w // side
    keep = np.unique(np.linspace(0, ny * nx - 1, min(count, ny * nx)).astype(int))
    x, y = keep % nx * side + half, keep // nx * side + half
    windows = Windows((h, w), x, y, half, backend)

    def cut(plane: Array) -> Array:
        return windows.cut(plane).reshape(-1, side)

    parts = []
    for exposure in exposures:
        image, variance = cut(exposure.image), cut(exposure.variance)
        mask = None if exposure.mask is None else cut(exposure.mask)
        # only the blocks are judged, not the whole frame
        parts.append((image, variance, usable_pixels(image, variance, mask, exposure.planes.invalid)))
    image, variance, good = (backend.xp.concatenate(p).reshape(-1, side, side) for p in zip(*parts, strict=True))
    return image.astype(np.float32, copy=False), variance.astype(np.float32, copy=False), good, (x, y)


def _normalised(backend: Backend, image: Array, variance: Array, good: Array, limit: float) -> tuple[Array, Array]:
    """Blocks (n, side, side) over their noise, medians taken off, and which of their pixels are blank."""
    xp = backend.xp
    with np.errstate(invalid="ignore", divide="ignore"):
        z = image / xp.sqrt(variance)
    z = xp.where(good, z - _cells(z, good)[0], np.float32(0))
    smooth = backend.gaussian_stack(z, 1.5, "nearest")
    # a block without statistics (NaN) has no quiet pixel
    quiet = xp.abs(smooth) <= np.float32(limit) * _cells(smooth, good)[1]
    return z, good & (backend.ndimage.minimum_filter(quiet.view(np.uint8), (1, 7, 7)) > 0)


def _cells(blocks: Array, good: Array) -> tuple[Array, Array, Array]:
    """`cell_statistics` of blocks (n, side, side), each of them one cell: (n, 1, 1) each."""
    n, side = blocks.shape[:2]
    made = cell_statistics(blocks.reshape(-1, side), good.reshape(-1, side), side)
    return made[0].reshape(n, 1, 1), made[1].reshape(n, 1, 1), made[2].reshape(n, 1, 1)
