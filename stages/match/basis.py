# SPDX-License-Identifier: BSD-3-Clause
"""Gaussian-polynomial kernel basis (Alard & Lupton 1998, equation 3), kept as products of one-dimensional filters."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import solve_triangular
from scipy.ndimage import gaussian_filter1d

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.normal_equations import stamp_basis

DEGREES = (6, 4, 2)
"""Polynomial degree that multiplies each Gaussian, narrow to wide: 28 + 15 + 6 = 49 terms."""

RATIO = (0.5, 1.0, 2.0)
"""Widths of the Gaussians in units of the matching width."""

NARROWEST = 0.7
"""Smallest matching width, px: below it the Gaussians are no longer sampled."""

REACH = 4.5
"""Half-size of a narrow kernel in units of the widest Gaussian."""

AMPLE = 11
"""Half-size, px, beyond which a kernel grows only with `CORE`: a larger one takes stars near the edge from the fit."""

CORE = 4.0
"""Least half-size of a kernel in units of the matching width."""


@dataclass(frozen=True)
class GaussianBasis:
    """Separable products and their combination into a basis whose first term carries the sum.

    Attributes
    ----------
    rows, columns : float64 (n_r, k), (n_c, k)
        One-dimensional filters along x and y.
    pairs : int32 (n_b, 2)
        Row and column filter of each product, sorted by row.
    transform : float64 (n_b, n_b)
        Basis b = sum_c transform[b, c] product_c: even terms have unit sum less that of term 0, odd ones sum to zero,
        so only term 0 changes the photometric scale. `orthonormal` combines them further.
    """

    rows: np.ndarray
    columns: np.ndarray
    pairs: np.ndarray
    transform: np.ndarray

    @property
    def size(self) -> int:
        return len(self.pairs)

    @property
    def half(self) -> int:
        return self.rows.shape[1] // 2

    def products(self) -> np.ndarray:
        """The separable products: float64 (n_b, k, k)."""
        return self.columns[self.pairs[:, 1], :, None] * self.rows[self.pairs[:, 0], None, :]

    def planes(self, stamps: Array) -> Array:
        """Stamps convolved with the basis, as `skydelta.kernels.normal_equations.Basis` says."""
        backend = backend_of(stamps)
        products = stamp_basis(stamps, self.rows, self.columns, self.pairs)
        return backend.xp.matmul(backend.asarray(self.transform), products.reshape(*products.shape[:2], -1))

    def images(self) -> np.ndarray:
        """The basis: float64 (n_b, k, k)."""
        return np.tensordot(self.transform, self.products(), axes=(1, 0))


def gaussian_basis(width: float, half: int, degrees: tuple[int, ...] = DEGREES) -> GaussianBasis:
    """Basis for a matching kernel of about this Gaussian width (px) inside 2 half + 1 px."""
    grid = np.arange(-half, half + 1.0)
    filters: list[np.ndarray] = []
    pairs: list[tuple[int, int]] = []
    for ratio, degree in zip(RATIO, degrees, strict=False):
        t = grid / (ratio * width)
        first = len(filters)
        filters += [np.exp(-t * t / 2) * t**i for i in range(degree + 1)]
        pairs += [(first + i, first + j) for i in range(degree + 1) for j in range(degree + 1 - i)]
    bank = np.array(filters)
    bank /= np.abs(bank).sum(axis=1, keepdims=True)
    basis = GaussianBasis(bank, bank, np.array(pairs, np.int32), np.eye(len(pairs)))
    sums = basis.products().sum(axis=(1, 2))
    transform = np.eye(len(pairs))
    even = np.abs(sums) > 1e-9 * np.abs(sums).max()
    transform[even] /= sums[even, None]
    transform[even & (np.arange(len(pairs)) > 0), 0] -= 1 / sums[0]
    return GaussianBasis(bank, bank, basis.pairs, transform)


def orthonormal(basis: GaussianBasis, sigma: float) -> GaussianBasis:
    """The same functions combined so that their images of a star are orthonormal.

    The plain terms are nearly dependent: their normal matrix loses 12 of 16 digits, and so would the kernel. Term 0
    still carries the sum, all others sum to zero.

    Parameters
    ----------
    sigma : float
        Of the Gaussian that stands for a star of the image to convolve, px.

    Notes
    -----
    A blurred product is the product of its blurred filters. These are few: in a basis of their span, and its products,
    every image of a star is a short vector.
    """
    pad, transform = int(np.ceil(3 * sigma)), basis.transform

    def short(filters: np.ndarray) -> np.ndarray:
        blurred = gaussian_filter1d(np.pad(filters, ((0, 0), (pad, pad))), sigma, mode="constant")
        return np.linalg.qr(blurred.T)[1].T

    rows, columns = short(basis.rows), short(basis.columns)
    products = columns[basis.pairs[:, 1], :, None] * rows[basis.pairs[:, 0], None, :]
    seen = transform @ products.reshape(basis.size, -1)
    # term 0 last: it may lose any share of the others, which sum to zero, but none of them may take a share of it
    order = [*range(1, basis.size), 0]
    upper = np.linalg.qr(seen[order].T)[1]
    upper *= np.sign(np.diagonal(upper))[:, None]
    made = np.empty_like(transform)
    made[order] = solve_triangular(upper, transform[order], trans=1)
    made[0] *= upper[-1, -1]
    return replace(basis, transform=made)


def matching_width(broad: float, sharp: float) -> float:
    """Gaussian width (px) that turns FWHM ``sharp`` into ``broad`` (px), not below `NARROWEST`."""
    return max(float(np.sqrt(max(broad**2 - sharp**2, 0.0)) / 2.3548), NARROWEST)


def kernel_half(width: float) -> int:
    """Half-size (px) that holds the kernel's energy."""
    return int(np.clip(np.ceil(max(min(REACH * RATIO[-1] * width, AMPLE), CORE * width)), 7, 31))
