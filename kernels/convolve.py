# SPDX-License-Identifier: BSD-3-Clause
"""Convolution with kernels that vary over the field."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance, implementation, register

TILES = register(
    KernelSpec(
        name="convolve_tiles",
        twin="skydelta.kernels.cpu.convolve:convolve_tiles",
        launch="skydelta.kernels.cuda.convolve:convolve_tiles",
        reference="skydelta.kernels.cpu.reference_convolve:convolve_tiles",
        entries=(CudaEntry("convolve.cu", "convolve_tiles"),),
        halo="half the kernel's sides",
        bytes_per_pixel=8.0,
        tolerance=Tolerance(2e-5, 1e-5, "float32 sums of up to 51 x 51 products in different order"),
    )
)


def convolve_tiles(plane: Array, kernels: Array, tile: int) -> Array:
    """Convolve a plane with one kernel for each square tile.

    out(x) = sum_u k_t(u) plane(x - u), t the tile that holds x, plane zero outside the image. A variance is smooth:
    with a squared kernel for each 32 px it errs below 1 %.

    Parameters
    ----------
    plane : float32 (H, W)
        Finite.
    kernels : float32 (ceil(H / tile), ceil(W / tile), kh, kw)
        Odd sides, centre in the middle.
    tile : int
        Side of a tile, px.

    Returns
    -------
    float32 (H, W)
    """
    return implementation(TILES, backend_of(plane))(plane, kernels, tile)


def convolve_field(plane: Array, images: np.ndarray, factors: list[tuple[np.ndarray, np.ndarray]]) -> Array:
    """sum_p phi_p(x) (K_p (x) plane)(x), phi_p(x, y) = f_p(y) g_p(x): exact, no tiles (Alard 2000).

    Parameters
    ----------
    plane : float32 (H, W)
        Finite; zero outside the image.
    images : float64 (n_p, kh, kw)
        Kernel image of each spatial term, odd sides.
    factors : list of (float64 (H,), float64 (W,))
        f_p and g_p.

    Returns
    -------
    float32 (H, W)
    """
    backend = backend_of(plane)
    xp, fft = backend.xp, backend.fft
    (h, w), (kh, kw) = plane.shape, images.shape[1:]
    size = tuple(fft.next_fast_len(n + k - 1, True) for n, k in ((h, kh), (w, kw)))
    spectrum = fft.rfft2(plane, size)
    out = xp.zeros(plane.shape, np.float32)
    for image, (f, g) in zip(images, factors, strict=True):
        kernel = fft.rfft2(backend.asarray(image, np.float32), size)
        kernel *= spectrum
        term = fft.irfft2(kernel, size)[kh // 2 : kh // 2 + h, kw // 2 : kw // 2 + w]
        out += (term * backend.asarray(g, np.float32)) * backend.asarray(f, np.float32)[:, None]
    return out


def fill_masked(plane: Array, good: Array, sigma: float = 3.0) -> Array:
    """Replace bad pixels by the Gaussian-weighted mean of good ones near them, fading to zero far from any.

    Keeps the wings of a masked star continuous over the pixels a kernel can reach from outside the mask.

    Parameters
    ----------
    plane : float32 (H, W)
        Sky-subtracted; bad pixels may hold anything.
    good : bool (H, W)
    sigma : float
        Width of the Gaussian, px.
    """
    backend = backend_of(plane)
    xp, nd = backend.xp, backend.ndimage
    zeroed = xp.where(good, plane, np.float32(0))
    if bool(good.all()):
        return zeroed
    options = {"sigma": sigma, "mode": "nearest", "truncate": 4.0}
    weight = nd.gaussian_filter(good.astype(np.float32), **options)
    mean = nd.gaussian_filter(zeroed, **options) / xp.maximum(weight, np.float32(1e-3))
    return xp.where(good, plane, mean.astype(np.float32))
