# SPDX-License-Identifier: BSD-3-Clause
"""Convolution with kernels that vary over the field, and what bad pixels do to it."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance, implementation, register

TAILS = (("1",), ("3",), ("5",), ("7",))
"""Odd kernel widths modulo the eight outputs of a thread."""

FIELD_ROWS = {0: 16, 1: 16, 2: 16, 3: 16, 4: 8}
"""Outputs of a thread of `convolve_field` by order: as many as the registers hold."""

TILES = register(
    KernelSpec(
        name="convolve_tiles",
        twin="skydelta.kernels.cpu.convolve:convolve_tiles",
        launch="skydelta.kernels.cuda.convolve:convolve_tiles",
        reference="skydelta.kernels.cpu.reference_convolve:convolve_tiles",
        entries=(CudaEntry("convolve.cu", "convolve_tiles", TAILS),),
        halo="half the kernel's sides",
        bytes_per_pixel=8.0,
        tolerance=Tolerance(2e-5, 1e-5, "float32 sums of up to 63 x 63 products in different order"),
    )
)

REACH = register(
    KernelSpec(
        name="bad_reach",
        twin="skydelta.kernels.cpu.convolve:bad_reach",
        launch="skydelta.kernels.cuda.convolve:bad_reach",
        reference="skydelta.kernels.cpu.reference_convolve:bad_reach",
        entries=(CudaEntry("convolve.cu", "bad_reach", TAILS),),
        halo="half the kernel's sides",
        bytes_per_pixel=9.0,
        tolerance=Tolerance(2e-5, 1e-5, "float32 sums of up to 63 x 63 products in different order"),
    )
)

FIELD = register(
    KernelSpec(
        name="convolve_field",
        twin="skydelta.kernels.cpu.convolve:convolve_field",
        launch="skydelta.kernels.cuda.convolve:convolve_field",
        reference="skydelta.kernels.cpu.reference_convolve:convolve_field",
        entries=(CudaEntry("convolve.cu", "convolve_field", tuple((str(o), str(r)) for o, r in FIELD_ROWS.items())),),
        halo="half the kernel's sides",
        bytes_per_pixel=8.0,
        tolerance=Tolerance(2e-5, 2e-5, "float32 sums against float32 transforms"),
    )
)

FILL = register(
    KernelSpec(
        name="fill_masked",
        twin="skydelta.kernels.cpu.convolve:fill_masked",
        launch="skydelta.kernels.cuda.convolve:fill_masked",
        reference="skydelta.kernels.cpu.reference_convolve:fill_masked",
        entries=(CudaEntry("convolve.cu", "fill_masked"),),
        halo="4 sigma",
        bytes_per_pixel=17.0,
        tolerance=Tolerance(2e-5, 1e-5, "float32 sums; SciPy adds in double precision"),
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


def bad_reach(doubt: Array, good: Array, kernels: Array, tile: int) -> tuple[Array, Array]:
    """What bad pixels do to a convolution with one kernel for each square tile.

    Parameters
    ----------
    doubt : float32 (H, W)
        How wrong the filling of a bad pixel may be; of good pixels it is not read.
    good : bool (H, W)
    kernels, tile
        As in `convolve_tiles`.

    Returns
    -------
    leak : float32 (H, W)
        sum |k| doubt over the bad pixels: how wrong the convolved pixel may be.
    lost : float32 (H, W)
        Share of sum |k| on bad pixels and outside the image; exactly zero out of reach of any.
    """
    return implementation(REACH, backend_of(doubt))(doubt, good, kernels, tile)


def convolve_field(plane: Array, images: np.ndarray, u: np.ndarray, v: np.ndarray, order: int) -> Array:
    """sum_p phi_p(x) (K_p (x) plane)(x), phi_p = T_i(u) T_j(v): exact, no tiles (Alard 2000).

    Parameters
    ----------
    plane : float32 (H, W)
        Finite; zero outside the image.
    images : float64 (n_p, kh, kw)
        Kernel image of each spatial term, order as `polynomial_exponents`; odd sides.
    u : float64 (W,)
        Field coordinate of the columns, in [-1, 1].
    v : float64 (H,)
        Field coordinate of the rows.
    order : int
        Total degree of the polynomial, up to 4.

    Returns
    -------
    float32 (H, W)
    """
    return implementation(FIELD, backend_of(plane))(plane, images, u, v, order)


def fill_masked(image: Array, variance: Array, good: Array, sigma: float = 3.0) -> tuple[Array, Array]:
    """Replace bad pixels by the Gaussian-weighted mean of good ones near them, fading to zero far from any.

    Keeps the wings of a masked star continuous over the pixels a kernel can reach from outside the mask.

    Parameters
    ----------
    image, variance : float32 (H, W)
        Sky-subtracted image and its variance; bad pixels may hold anything.
    good : bool (H, W)
    sigma : float
        Width of the Gaussian, px; cut at four of them.

    Returns
    -------
    image, variance : float32 (H, W)
    """
    return implementation(FILL, backend_of(image))(image, variance, good, sigma)


def gaussian_taps(sigma: float, truncate: float = 3.0) -> np.ndarray:
    """Middle and right half of a unit-sum Gaussian filter, float64 (r + 1,), r = ``truncate`` sigma rounded."""
    radius = int(truncate * sigma + 0.5)
    line = np.exp(-0.5 / (sigma * sigma) * np.arange(-radius, radius + 1) ** 2)
    return (line / line.sum())[radius:]


def filling_taps(sigma: float) -> np.ndarray:
    """The whole filter of `fill_masked`, out to four sigma: float32 (2 r + 1,)."""
    half = gaussian_taps(sigma, 4.0)
    return np.concatenate([half[:0:-1], half]).astype(np.float32)


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
