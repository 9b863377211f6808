# SPDX-License-Identifier: BSD-3-Clause
"""An exposure convolved with a matching kernel: image, variance, and what bad pixels do to both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from skydelta.errors import InputError
from skydelta.io.exposure import Exposure
from skydelta.io.planes import INVALID
from skydelta.io.psf import GridPsf, Psf
from skydelta.kernels.backend import Array, Backend
from skydelta.kernels.convolve import bad_reach, convolve_field, convolve_tiles, correlated_square, fill_masked
from skydelta.kernels.core.tiles import TileGrid
from skydelta.kernels.masks import merge_masks
from skydelta.kernels.polynomial import chebyshev_table, polynomial_exponents
from skydelta.kernels.subtract import DOUBT

if TYPE_CHECKING:
    from skydelta.io.matchkernel import MatchKernel

VARIANCE_TILE = 32
"""One squared kernel for each tile of this side, px: the variance then errs below 1 %."""

PSF_TILE = 256
"""One convolved PSF for each tile of this side, px."""

HIDDEN = 30.0
"""A saturated pixel may hide this many times its value: stars of a few 10^6 electrons at a level of 5 10^4."""

LOST_WEIGHT = 0.005
"""Share of the kernel's absolute weight on bad pixels from which on a pixel is blanked."""

LEAK = 0.3
"""Standard deviations that the filling of bad pixels may add to a pixel before that pixel is blanked."""


@dataclass(frozen=True)
class Convolved:
    """Planes (H, W), float32, in the unit of the image that the kernel matches to.

    Attributes
    ----------
    image
        K (x) image + b, bad pixels filled with their surroundings first.
    variance
        Its variance, K^2 (x) V.
    lost
        Share of the kernel's absolute weight on bad pixels and outside the image.
    leak
        How wrong the pixel may be by the filling.
    filled
        The image that was convolved, in its own unit.
    """

    image: Array
    variance: Array
    lost: Array
    leak: Array
    filled: Array


def convolve(kernel: MatchKernel, exposure: Exposure, good: Array, correlation: np.ndarray | None = None) -> Convolved:
    """Convolve an exposure with variance with a kernel, each pixel with that of its own position.

    Parameters
    ----------
    kernel : MatchKernel
    exposure : Exposure
    good : bool (H, W)
        Its usable pixels.
    correlation : (2 l + 1, 2 l + 1), optional
        Correlation of its noise by lag; white if missing.
    """
    backend = exposure.backend
    filled, filled_variance = fill_masked(exposure.image, exposure.variance, good)
    u, v = kernel.domain.uv(np.arange(exposure.shape[1]), np.arange(exposure.shape[0]))
    image = convolve_field(filled, kernel.images, u, v, kernel.order)
    image += kernel.domain.plane(backend, exposure.shape, kernel.background, kernel.background_order)
    local = tile_kernels(backend, kernel, exposure.shape)
    variance = convolve_tiles(filled_variance, correlated_square(local, correlation), VARIANCE_TILE)
    leak, lost = bad_reach(doubt(exposure, filled, good), good, local, VARIANCE_TILE)
    return Convolved(image, variance, lost, leak, filled)


def apply(
    kernel: MatchKernel, exposure: Exposure, correlation: np.ndarray | None, lost_weight: float, leak: float
) -> Exposure:
    """`MatchKernel.apply`."""
    if exposure.variance is None:
        raise InputError(f"{exposure.id or 'exposure'}: no variance; a kernel is applied to image, variance and mask")
    if exposure.shape != kernel.domain.shape:
        raise InputError(
            f"{exposure.id or 'exposure'}: shape {exposure.shape}; the kernel is for {kernel.domain.shape}"
        )
    xp, good = exposure.backend.xp, exposure.good()
    made = convolve(kernel, exposure, good, correlation)
    reached = ~(made.lost <= np.float32(lost_weight)) | (made.leak**2 > np.float32(leak**2) * made.variance)
    usable = good & ~reached
    planes = exposure.planes.union(("EDGE", "NO_DATA"))
    same = planes.renumbered(planes, {})
    mask = xp.zeros(exposure.shape, np.int32) if exposure.mask is None else exposure.mask
    spoilt = merge_masks(
        mask, xp.zeros_like(mask), same, same, planes.bit(*INVALID), reached, usable, kernel.reach(lost_weight),
        planes.invalid, planes.bit("EDGE"), planes.bit("NO_DATA"),
    )  # fmt: skip
    nan = np.float32(np.nan)
    return exposure.with_(
        image=xp.where(usable, made.image, nan),
        variance=xp.where(usable, made.variance, nan),
        mask=spoilt,
        planes=planes,
        psf=None if exposure.psf is None else _psf(kernel, exposure.psf, exposure.shape),
        kernel_error=None,  # of other fluxes
    )


def tile_kernels(backend: Backend, kernel: MatchKernel, shape: tuple[int, int]) -> Array:
    """The kernel at the centre of each tile of `VARIANCE_TILE` px, made on the device: float32 (n_y, n_x, kh, kw)."""
    y, x = ((np.arange(-(-n // VARIANCE_TILE)) + 0.5) * VARIANCE_TILE - 0.5 for n in shape)
    degrees = np.array(polynomial_exponents(kernel.order))
    u, v = (chebyshev_table(t, kernel.order)[:, k] for t, k in zip(kernel.domain.uv(x, y), degrees.T, strict=True))
    phi = backend.asarray(v)[:, None] * backend.asarray(u)
    images = backend.asarray(kernel.images.reshape(len(degrees), -1))
    return (phi @ images).astype(np.float32).reshape(*phi.shape[:2], *kernel.shape)


def doubt(moved: Exposure, filled: Array, good: Array) -> Array:
    """How wrong the filling of a bad pixel may be: as the light around it, or, saturated, as what it may hide."""
    mask = moved.backend.xp.zeros(moved.shape, np.int32) if moved.mask is None else moved.mask
    saturated = moved.planes.bit("SAT")
    return DOUBT(good=good, filled=filled, image=moved.image, mask=mask, saturated=saturated, hidden=HIDDEN)["doubt"]


def _psf(kernel: MatchKernel, psf: Psf, shape: tuple[int, int]) -> GridPsf:
    """K (x) P at the centres of tiles, unit sum, on the PSF's own support."""
    grid = TileGrid(shape, PSF_TILE)
    x, y = grid.centres()
    stamps, kernels = psf.render(x, y), kernel.render(x, y)
    size = tuple(a + b - 1 for a, b in zip(stamps.shape[1:], kernels.shape[1:], strict=True))
    full = np.fft.irfft2(np.fft.rfft2(stamps, size) * np.fft.rfft2(kernels, size), size)
    j, i = (n // 2 for n in kernels.shape[1:])
    made = full[:, j : j + stamps.shape[1], i : i + stamps.shape[2]]
    made /= made.sum(axis=(1, 2), keepdims=True)
    nx = grid.counts[1]
    return GridPsf(made.reshape(*grid.counts, *made.shape[1:]), x[:nx], y[::nx])
