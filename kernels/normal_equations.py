# SPDX-License-Identifier: BSD-3-Clause
"""Normal equations of a spatially varying kernel fit, factorised by stamps (Alard & Lupton 1998; Alard 2000).

Within a stamp the spatial polynomial is constant, so each stamp is summed once into Q_s (basis by basis), r_s and
y_s, and the system is A = sum_s (phi_s phi_s^T) kron Q_s. Rejecting a stamp touches no pixel again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance, implementation, register
from skydelta.kernels.polynomial import polynomial_terms

BASIS = register(
    KernelSpec(
        name="stamp_basis",
        twin="skydelta.kernels.cpu.normal_equations:stamp_basis",
        launch="skydelta.kernels.cuda.normal_equations:stamp_basis",
        reference="skydelta.kernels.cpu.reference_normal_equations:stamp_basis",
        entries=(CudaEntry("normal_equations.cu", "stamp_basis"),),
        halo="half the kernel's side, held in the stamps",
        bytes_per_pixel=8.0,
        tolerance=Tolerance(1e-12, 1e-12, "float64 sums in different order"),
    )
)

BATCH = 64
"""Stamps held at once: 64 x 55 planes of 31 x 31 float64 are 27 MB."""


def stamp_basis(stamps: Array, rows: np.ndarray, columns: np.ndarray, pairs: np.ndarray) -> Array:
    """Convolve stamps with separable basis functions.

    C[s, b](y, x) = sum_{j, i} column_b(j) row_b(i) stamp_s(y + k - 1 - j, x + k - 1 - i): plain convolution, the
    part where the kernel lies inside the stamp.

    Parameters
    ----------
    stamps : float32 (n, m + k - 1, m + k - 1)
    rows, columns : float64 (n_r, k), (n_c, k)
        Distinct one-dimensional filters along x and y.
    pairs : int32 (n_b, 2)
        Row and column filter of each basis function; sorted by row filter saves work.

    Returns
    -------
    float64 (n, n_b, m, m)
    """
    return implementation(BASIS, backend_of(stamps))(stamps, rows, columns, pairs)


@dataclass(frozen=True)
class StampSums:
    """Per-stamp sums, all float64 on the host.

    Attributes
    ----------
    q : (n, t, t)
        sum w X X^T over the pixels of a stamp, X the t basis planes and background terms.
    r : (n, t)
        sum w X T.
    y : (n,)
        sum w T^2.
    pixels : (n,)
        Number of pixels with weight.
    level : (n,)
        sum w V, V the variance of the convolved image.
    gram : (t, t)
        Covariance of the planes for unit noise: level * gram is the part of q its noise makes.
    """

    q: np.ndarray
    r: np.ndarray
    y: np.ndarray
    pixels: np.ndarray
    level: np.ndarray
    gram: np.ndarray

    def chi2(self, c: np.ndarray) -> np.ndarray:
        """sum w (T - c X)^2 of every stamp for local coefficients c (n, t)."""
        quadratic = np.einsum("ni,nij,nj->n", c, self.q, c, optimize=True)
        return self.y - 2 * np.einsum("ni,ni->n", c, self.r) + quadratic


def stamp_sums(
    stamps: Array,
    target: Array,
    weight: Array,
    variance: Array,
    gram: np.ndarray,
    uv: tuple[np.ndarray, np.ndarray],
    order: int,
    rows: np.ndarray,
    columns: np.ndarray,
    pairs: np.ndarray,
    transform: np.ndarray,
) -> StampSums:
    """Sum every stamp into its block of the normal equations.

    Parameters
    ----------
    stamps : float32 (n, m + k - 1, m + k - 1)
        Of the image to convolve.
    target, weight : float32 (n, m, m)
        Of the other image, and inverse variance (0 for bad pixels).
    variance : float32 (n, m, m)
        Of the image to convolve.
    gram : float64 (n_b, n_b)
        Covariance of the basis planes for unit noise: sum_u B_b(u) (rho (x) B_b')(u).
    uv : float64 (n, m), float64 (n, m)
        Field coordinates in [-1, 1] of the columns and the rows of each stamp.
    order : int
        Total degree of the background.
    rows, columns, pairs
        As in `stamp_basis`.
    transform : float64 (n_b, n_b)
        Basis b is sum_c transform[b, c] (separable product c).
    """
    backend = backend_of(stamps)
    xp = backend.xp
    parts = []
    t_device = backend.asarray(transform)
    for s in range(0, stamps.shape[0], BATCH):
        cut = slice(s, s + BATCH)
        planes = stamp_basis(stamps[cut], rows, columns, pairs)
        n, nb = planes.shape[:2]
        planes = xp.matmul(t_device, planes.reshape(n, nb, -1))
        u, v = (backend.asarray(a[cut]) for a in uv)
        terms = polynomial_terms(u[:, None, :], v[:, :, None], order).reshape(-1, n, planes.shape[2]).transpose(1, 0, 2)
        x = xp.concatenate([planes, terms], axis=1)
        w = weight[cut].reshape(n, 1, -1).astype(np.float64)
        t = target[cut].reshape(n, 1, -1).astype(np.float64)
        wx = x * w
        parts.append(
            [
                to_host(a)
                for a in (
                    xp.matmul(wx, x.transpose(0, 2, 1)),
                    xp.matmul(wx, t.transpose(0, 2, 1))[:, :, 0],
                    (w * t * t).sum(axis=(1, 2)),
                    (w > 0).sum(axis=(1, 2)),
                    (w[:, 0] * variance[cut].reshape(n, -1)).sum(axis=1),
                )
            ]
        )
    q, r, y, pixels, level = (np.concatenate(p) for p in zip(*parts, strict=True))
    full = np.zeros(q.shape[1:])
    full[: len(gram), : len(gram)] = gram
    return StampSums(0.5 * (q + q.transpose(0, 2, 1)), r, y, pixels, level, full)


@dataclass(frozen=True)
class Layout:
    """Which products of local term and spatial term are free parameters.

    Attributes
    ----------
    free : bool (t, n_p)
        Local term i may vary as spatial term p; background terms vary as p = 0 only (they carry their own variation).
    """

    free: np.ndarray

    @property
    def size(self) -> int:
        return int(self.free.sum())

    def expand(self, a: np.ndarray) -> np.ndarray:
        """Parameter vector (size,) to the coefficient table (t, n_p)."""
        out = np.zeros(self.free.shape)
        out[self.free] = a
        return out


def assemble(sums: StampSums, phi: np.ndarray, layout: Layout, use: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A = sum_s (phi_s phi_s^T) kron Q_s and its right-hand side, restricted to the free parameters.

    Parameters
    ----------
    phi : float64 (n, n_p)
        Spatial terms at the stamps.
    use : bool (n,)

    Returns
    -------
    float64 (size, size), float64 (size,)
    """
    f, t = phi[use], layout.free.shape[0]
    n_p = f.shape[1]
    one, two = np.triu_indices(n_p)
    half = (f[:, one] * f[:, two]).T @ sums.q[use].reshape(len(f), -1)
    blocks = np.empty((n_p, n_p, t, t))
    blocks[one, two] = blocks[two, one] = half.reshape(-1, t, t)
    b = (sums.r[use].T @ f).reshape(-1)[layout.free.ravel()]
    return _restricted(blocks, layout), b


def undiluted(
    a: np.ndarray, inverse: np.ndarray, sums: StampSums, phi: np.ndarray, layout: Layout, use: np.ndarray
) -> np.ndarray:
    """Parameters with their dilution by the convolved image's own noise undone to first order: a + A^-1 N a.

    That image is the regressor, and noise in a regressor adds N to the matrix but nothing to the right-hand side: it
    pulls the kernel towards zero (errors in variables; Fuller 1987, section 1.2). Solving with A - N is exact on
    average but unstable where the data say little; the first order at most doubles such a component.
    """
    f = phi[use]
    blocks = np.einsum("pq,ij->pqij", (f * sums.level[use, None]).T @ f, sums.gram)
    return a + inverse @ (_restricted(blocks, layout) @ a)


def _restricted(blocks: np.ndarray, layout: Layout) -> np.ndarray:
    """Blocks (n_p, n_p, t, t) as a matrix over the free parameters, local term slowest."""
    t, n_p = layout.free.shape
    keep = layout.free.ravel()
    return blocks.transpose(2, 0, 3, 1).reshape(t * n_p, t * n_p)[np.ix_(keep, keep)]


@dataclass(frozen=True)
class Solution:
    """Parameters, covariance and how well determined they are."""

    parameters: np.ndarray
    covariance: np.ndarray
    condition: float
    rank: int


def solve(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-13) -> Solution:
    """Solve the symmetric system with columns scaled to unit diagonal; small eigenvalues are cut and counted.

    Parameters
    ----------
    tolerance : float
        Eigenvalues below this times the largest do not take part; ``rank`` tells how many did.
    """
    scale = np.sqrt(np.diag(a))
    scale = np.where(scale > 0, 1 / np.where(scale > 0, scale, 1), 0.0)
    values, vectors = linalg.eigh(a * scale[:, None] * scale, driver="evd")
    keep = values > tolerance * values[-1]
    inverse = (vectors[:, keep] / values[keep]) @ vectors[:, keep].T
    covariance = inverse * scale[:, None] * scale
    smallest = values[0] if values[0] > 0 else values[keep][0] * tolerance
    return Solution(covariance @ b, covariance, float(values[-1] / smallest), int(keep.sum()))


def solve_quickly(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The parameters alone, by Cholesky with scaled columns; falls back to `solve` when not positive definite."""
    scale = 1 / np.sqrt(np.where(np.diag(a) > 0, np.diag(a), 1.0))
    try:
        factor = linalg.cho_factor(a * scale[:, None] * scale, lower=True, check_finite=False)
    except linalg.LinAlgError:
        return solve(a, b).parameters
    return scale * linalg.cho_solve(factor, scale * b)
