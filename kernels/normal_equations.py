# SPDX-License-Identifier: BSD-3-Clause
"""Normal equations of a spatially varying kernel fit, factorised by stamps (Alard & Lupton 1998; Alard 2000).

Within a stamp the spatial polynomial is constant, so each stamp is summed once into Q_s (basis by basis), r_s and
y_s, and the system is A = sum_s (phi_s phi_s^T) kron Q_s. Rejecting a stamp touches no pixel again.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np

from skydelta.kernels.backend import Array, Backend, backend_of, to_host
from skydelta.kernels.core.devices import constant
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance, implementation, register
from skydelta.kernels.polynomial import chebyshev, polynomial_exponents

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

BUDGET = {"cpu": 8 << 20, "cuda": 64 << 20}
"""Bytes of weighted planes held at once, 56 of 31 x 31 px float64 for each stamp: what stays in the cache of a CPU, and
what keeps a device busy. Twice as much goes to the unweighted ones."""

SHARE = 16
"""Bytes for each pixel of the image that a device may take instead: of a large image all stamps go at once."""


def budget(kind: str, pixels: int) -> int:
    """Bytes of weighted planes that `stamp_sums` holds at once on a ``kind`` of backend, for an image of ``pixels``."""
    return BUDGET[kind] if kind == "cpu" else max(BUDGET[kind], SHARE * pixels)


KEPT = 1000
"""Parameters of a `System` up to which the places of its sums are kept for the next one: 8 MB."""

PIVOT = 1e-10
"""Smallest pivot of a matrix with unit diagonal that is taken to have full rank; rounding makes none above 1e-13 n."""


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


class Basis(Protocol):
    """Functions of a kernel."""

    @property
    def size(self) -> int: ...

    def planes(self, stamps: Array) -> Array:
        """Stamps float32 (n, m + k - 1, m + k - 1), each convolved with all of them: float64 (n, size, m * m)."""


@dataclass(frozen=True)
class StampSums:
    """Per-stamp sums, all float64 and where the stamps are.

    Attributes
    ----------
    products : (n, t + 1, t + 1)
        sum w X X^T over the pixels of a stamp, X the t basis planes and background terms and, last, the target T.
    pixels : (n,)
        Number of pixels with weight.
    level : (n,)
        sum w V, V the variance of the convolved image.
    gram : (t + 1, t + 1)
        Covariance of the planes for unit noise: level * gram is the part of the products its noise makes.
    """

    products: Array
    pixels: Array
    level: Array
    gram: Array

    def chi2(self, c: Array) -> Array:
        """sum w (c X)^2 of every stamp for local coefficients c (n, t + 1), -1 for the target."""
        return (c * backend_of(c).xp.matmul(self.products, c[:, :, None])[:, :, 0]).sum(axis=1)


def stamp_sums(
    stamps: Array,
    target: Array,
    weight: Array,
    variance: Array,
    gram: np.ndarray,
    uv: Array | tuple[np.ndarray, np.ndarray],
    order: int,
    basis: Basis,
    held: int | None = None,
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
    uv : float64 (2, n, m)
        Field coordinates in [-1, 1] of the columns and the rows of each stamp; on any device.
    order : int
        Total degree of the background.
    basis : Basis
        Of n_b functions.
    held : int, optional
        Bytes of weighted planes held at once; `BUDGET` if missing. The sums do not depend on it.
    """
    backend = backend_of(stamps)
    xp, stamps = backend.xp, backend.asarray(stamps)
    (n, m), n_b, exponents = target.shape[:2], basis.size, polynomial_exponents(order)
    chebyshevs = chebyshev(backend.asarray(uv), order)  # (2, n, m) each
    t = n_b + len(exponents)
    w = weight.reshape(n, -1).astype(np.float64)
    root = xp.sqrt(w)[:, None]
    sums = xp.empty((n, t + 1, t + 1))
    batch = max(1, (held or BUDGET[backend.kind]) // (8 * (t + 1) * m * m))
    for s in range(0, n, batch):
        cut = slice(s, s + batch)
        planes = basis.planes(stamps[cut])
        # the target is one more plane
        x = xp.empty((len(planes), t + 1, m * m))
        xp.multiply(planes, root[cut], out=x[:, :n_b])
        rest = x.reshape(len(planes), t + 1, m, m)[:, n_b:]
        for k, (i, j) in enumerate(exponents):
            xp.multiply(chebyshevs[i][0, cut, None, :], chebyshevs[j][1, cut, :, None], out=rest[:, k])
        rest[:, -1] = target[cut]
        rest *= root[cut].reshape(-1, 1, m, m)
        sums[cut] = xp.matmul(x, x.transpose(0, 2, 1))
    full = np.zeros((t + 1, t + 1))
    full[:n_b, :n_b] = gram
    return StampSums(
        products=sums,
        pixels=(w > 0).sum(axis=1),
        level=(w * variance.reshape(n, -1)).sum(axis=1),
        gram=backend.asarray(full),
    )


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

    def table(self, parameters: np.ndarray) -> np.ndarray:
        """A parameter vector (size,) as coefficients (t, n_p) of local terms by spatial terms."""
        out = np.zeros(self.free.shape)
        out[self.free] = parameters
        return out


@dataclass(frozen=True)
class Penalty:
    """What a rough kernel costs, besides chi2: strength tr(A) / tr(P) a^T P a, P = spatial kron local.

    The traces are over the parameters that it touches. Relative to them the strength means the same in any unit and for
    any number of stamps.

    Attributes
    ----------
    local : float64 (t, t)
        Of the coefficients of the local terms at one place.
    spatial : float64 (n_p, n_p)
        Mean of phi phi^T over the places where the cost is counted.
    strength : float
    """

    local: np.ndarray
    spatial: np.ndarray
    strength: float


class System:
    """A = sum_s (phi_s phi_s^T) kron Q_s and its right-hand side, for any choice of stamps.

    Parameters
    ----------
    phi : float64 (n, n_p)
        Spatial terms at the stamps.
    penalty : Penalty, optional
        Added to chi2.

    Notes
    -----
    Everything is float64 and on the device of the sums. Parameters are in the order of the free products, local term
    slowest; stamps are chosen by weights of 0 and 1, so that shapes, and with them the order of sums, never change.
    """

    def __init__(self, sums: StampSums, phi: np.ndarray, layout: Layout, penalty: Penalty | None = None) -> None:
        self.penalty = penalty
        backend = backend_of(sums.products)
        xp, n_p = backend.xp, phi.shape[1]
        one, two = np.triu_indices(n_p)
        self.sums, self._terms, self._backend = sums, n_p, backend
        # every stamp's products of two spatial terms, its terms, and a 1 for the target: one upload
        self._factors = backend.asarray(
            np.concatenate([phi[:, one] * phi[:, two], phi, np.ones((len(phi), 1))], axis=1)
        )
        self._phi = self._factors[:, len(one) : -1]
        self._rows = self._factors[:, len(one) :] / xp.sqrt(xp.maximum(sums.pixels, 1))[:, None]
        self._lay(layout)

    def _lay(self, layout: Layout) -> None:
        t = len(layout.free)
        self.layout = layout
        places = _places if layout.size <= KEPT else _found_places
        self._entry, self._right, self._place = places(self._backend, layout.free.tobytes(), t, self._terms)
        self._table = self._backend.xp.zeros((self._terms + 1, t + 1))
        self._table[self._terms, t] = -1
        self._cost: Array | None = None
        if self.penalty is not None:
            term, spatial = (self._backend.asarray(i) for i in np.nonzero(layout.free))
            local, along = (self._backend.asarray(a) for a in (self.penalty.local, self.penalty.spatial))
            cost = local[term[:, None], term] * along[spatial[:, None], spatial]
            cost /= cost.trace()
            self._cost, self._counted = cost, cost.diagonal() > 0

    def relaid(self, layout: Layout) -> System:
        """The same stamps with other free parameters."""
        other = copy(self)
        other._lay(layout)
        return other

    def penalised(self, strength: float) -> System:
        """The same with another strength of the penalty."""
        other = copy(self)
        assert self.penalty is not None
        other.penalty = replace(self.penalty, strength=strength)
        return other

    def assemble(self, use: np.ndarray) -> tuple[Array, Array]:
        """float64 (size, size) and (size,) from the stamps of ``use``, bool (n,) on the host."""
        blocks = self._blocks(self.sums.products, use)
        return blocks.take(self._entry), blocks.take(self._right)

    def assembled(self, products: Array, use: np.ndarray) -> Array:
        """The matrix (size, size) of `assemble` from other products of the stamps, float64 (n, t + 1, t + 1)."""
        return self._blocks(products, use).take(self._entry)

    def _blocks(self, products: Array, use: np.ndarray) -> Array:
        w = self._weights(use)
        return (self._factors[:, :-1] * w).T @ products.reshape(len(w), -1)

    def chi2(self, a: Array) -> Array:
        """Of every stamp, per pixel: float64 (n,)."""
        return self.sums.chi2(self._rows @ self._spread(a))

    def solve(self, use: np.ndarray) -> Solution:
        """With the stamps of ``use``, bool (n,) on the host."""
        a, b = self.assemble(use)
        if self._cost is not None and self.penalty is not None:
            a += self.penalty.strength * (a.diagonal() * self._counted).sum() * self._cost
        return solve(a, b)

    def undiluted(self, solution: Solution, use: np.ndarray) -> Array:
        """Parameters with their dilution by the convolved image's own noise undone to first order: a + A^-1 N a.

        That image is the regressor, and noise in a regressor adds N to the matrix but nothing to the right-hand side:
        it pulls the kernel towards zero (errors in variables; Fuller 1987, section 1.2). Solving with A - N is exact on
        average but unstable where the data say little; the first order at most doubles such a component.
        """
        level = self.sums.level[:, None] * self._weights(use)
        table = self._spread(solution.parameters)[: self._terms]
        noise = ((self._phi * level).T @ self._phi) @ table @ self.sums.gram.T
        return solution.parameters + solution.inverse(noise.take(self._place))

    def _spread(self, a: Array) -> Array:
        """A parameter vector as coefficients (n_p + 1, t + 1) of spatial by local terms, and -1 for the target."""
        self._table.reshape(-1)[self._place] = a
        return self._table

    def _weights(self, use: np.ndarray) -> Array:
        return self._backend.asarray(use.astype(float))[:, None]


def _found_places(backend: Backend, free: bytes, t: int, n_p: int) -> tuple[Array, Array, Array]:
    """Where a `System` of t local terms with these free ones of its (t, n_p) products finds what it needs.

    Sums over stamps are numbered (pair of spatial terms, or one, local term, local term or target).

    Returns
    -------
    entry, right : int64 (size, size), (size,)
        Numbers of the sums that make the matrix and the right-hand side.
    place : int64 (size,)
        Of the parameters in a table of spatial by local terms and target.
    """
    side = t + 1
    term, spatial = np.nonzero(np.frombuffer(free, bool).reshape(t, n_p))
    one, two = np.triu_indices(n_p)
    pair = np.empty((n_p, n_p), np.int64)
    pair[one, two] = pair[two, one] = np.arange(len(one))
    pair, spatial, term = (backend.asarray(a) for a in (pair, spatial, term))
    entry = pair[spatial[:, None], spatial] * side**2
    entry += term[:, None] * side + term
    right = (len(one) + spatial) * side**2 + term * side + t
    made = (constant(a, backend) for a in (entry, right, spatial * side + term))
    return next(made), next(made), next(made)


_places = lru_cache(8)(_found_places)


@dataclass(frozen=True)
class Solution:
    """Parameters of a symmetric system, where the system is, and how well determined they are.

    Attributes
    ----------
    parameters : float64 (n,)
    rank : int
        Directions that take part.
    inverse : callable
        The inverse of the matrix over these directions, times a float64 (n,) or (n, k).
    matrix, scale : float64 (n, n), (n,)
        The matrix with columns and rows scaled to unit diagonal, and the factors that do it.
    """

    parameters: Array
    rank: int
    inverse: Callable[[Array], Array]
    matrix: Array
    scale: Array

    @cached_property
    def covariance(self) -> Array:
        """float64 (n, n)."""
        return self.inverse(backend_of(self.scale).xp.eye(len(self.scale)))

    @cached_property
    def condition(self) -> float:
        """Of the scaled matrix over the directions that take part, by the Frobenius norm: at least the ratio of its
        extreme eigenvalues."""
        xp, scale = backend_of(self.scale).xp, self.scale
        unscaled = self.covariance / xp.where(scale > 0, scale, np.inf) / xp.where(scale > 0, scale, np.inf)[:, None]
        return float(xp.sqrt((self.matrix**2).sum() * (unscaled**2).sum()))


def solve(a: Array, b: Array, tolerance: float = 1e-13) -> Solution:
    """Solve the symmetric system (n, n), (n,) with columns scaled to unit diagonal.

    By Cholesky where every pivot is above `PIVOT`; else small eigenvalues are cut and counted.

    Parameters
    ----------
    tolerance : float
        Eigenvalues below this times the largest do not take part; ``rank`` tells how many did.
    """
    backend = backend_of(a)
    xp = backend.xp
    diagonal = xp.diagonal(a)
    # 0 for a parameter that nothing depends on
    scale = 1 / xp.sqrt(xp.where(diagonal > 0, diagonal, np.inf))
    matrix = a * scale[:, None] * scale
    try:
        factor = backend.cholesky(matrix, PIVOT)
    except np.linalg.LinAlgError:
        values, vectors = xp.linalg.eigh(matrix)
        on_host = to_host(values)
        cut = int((on_host <= tolerance * on_host[-1]).sum())  # ascending: the ones to cut come first
        vectors = vectors[:, cut:] * scale[:, None]
        covariance = (vectors / values[cut:]) @ vectors.T
        return Solution(covariance @ b, len(a) - cut, covariance.__matmul__, matrix, scale)

    def inverse(right: Array) -> Array:
        by = scale if right.ndim == 1 else scale[:, None]
        return by * backend.cholesky_solve(factor, by * right)

    return Solution(inverse(b), len(a), inverse, matrix, scale)
