# SPDX-License-Identifier: BSD-3-Clause
"""Delta basis: every pixel of the kernel is free (Bramich 2008), kept smooth by a penalty (Becker et al. 2012)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from skydelta.io.field import count_terms, polynomial_terms
from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.kernels.normal_equations import Penalty, System
from skydelta.stages.match.fit import FINE_ORDER, PLAIN_ORDER, Trial, fit

LARGEST = 12
"""Largest radius of the kernel, px: 441 pixels, each a polynomial over the field."""

STRENGTHS = tuple(10.0 ** (-k / 2) for k in range(-2, 21))
"""Strengths of the penalty, the strongest first: half a decade apart."""

START = 0.1
"""Strength from which the best one is looked for."""

FOLD = 5
"""Every fifth stamp of the fit judges the strengths."""

PLACES = 9
"""Places along each axis of the field at which roughness costs."""


@dataclass(frozen=True)
class DeltaBasis:
    """Pixels of a disc; the first one, in the middle, carries the kernel's sum, the others are less the first.

    Attributes
    ----------
    half : int
        Radius, px.
    """

    half: int

    @cached_property
    def pixels(self) -> np.ndarray:
        """Row and column of each pixel in the kernel: int (n_b, 2), the middle one first."""
        o = np.arange(-self.half, self.half + 1)
        inside = np.argwhere(o[:, None] ** 2 + o**2 <= (self.half + 0.5) ** 2)
        middle = (inside == self.half).all(axis=1)
        return np.concatenate([inside[middle], inside[~middle]])

    @property
    def size(self) -> int:
        return len(self.pixels)

    def images(self) -> np.ndarray:
        """The basis: float64 (n_b, k, k)."""
        side = 2 * self.half + 1
        out = np.zeros((self.size, side, side))
        out[np.arange(self.size), *self.pixels.T] = 1
        out[1:, self.half, self.half] = -1
        return out

    def planes(self, stamps: Array) -> Array:
        """Stamps convolved with the basis, as `skydelta.kernels.normal_equations.Basis` says."""
        backend = backend_of(stamps)
        n, height, width = stamps.shape
        m = width - 2 * self.half
        # a pixel of the kernel shows the stamp shifted by it: where its own first pixel is looked up
        first = (2 * self.half - self.pixels) @ (width, 1)
        index = first[:, None] + (np.arange(m)[:, None] * width + np.arange(m)).ravel()
        out = stamps.reshape(n, height * width).astype(np.float64).take(backend.asarray(index), axis=1)
        out[:, 1:] -= out[:, :1]
        return out

    def roughness(self, plain: np.ndarray) -> np.ndarray:
        """How rough a kernel is beyond what is allowed to it, as a matrix of its coefficients: float64 (n_b, n_b).

        Sum over pixels of the squared Laplacian, of the part that no combination of ``plain`` kernels has: with these
        alone it would cost to follow what the Gaussians follow, and the cores of bright stars would be left over.

        Parameters
        ----------
        plain : float64 (n, k', k')
            Kernels that cost nothing, of any odd side; their part inside the disc counts.
        """
        images = self.images()
        reach = plain.shape[-1] // 2 - self.half
        plain = np.pad(plain, [(0, 0), *[(max(-reach, 0),) * 2] * 2])
        cut = np.s_[:, reach:-reach, reach:-reach] if reach > 0 else np.s_[:]
        # orthonormal: what of a Laplacian lies along these costs nothing
        free = np.linalg.qr(_laplacians(plain[cut] * (np.abs(images).max(axis=0) > 0)).T)[0]
        curved = _laplacians(images)
        curved -= (curved @ free) @ free.T
        return curved @ curved.T


def _laplacians(images: np.ndarray) -> np.ndarray:
    """Of kernels (n, k, k) that are zero outside, one pixel further on each side too: float64 (n, (k + 2)^2)."""
    p = np.pad(images, [(0, 0), (2, 2), (2, 2)])
    out = p[:, 2:, 1:-1] + p[:, :-2, 1:-1] + p[:, 1:-1, 2:] + p[:, 1:-1, :-2] - 4 * p[:, 1:-1, 1:-1]
    return out.reshape(len(images), -1)


def most_bytes(stamps: int, order: int | None) -> int:
    """Memory, bytes, of a fit with this many stamps: their sums, and the matrix with its factor and inverse."""
    terms = count_terms(FINE_ORDER if order is None else order)
    local = DeltaBasis(LARGEST).size + count_terms(PLAIN_ORDER)
    return 8 * local**2 * (stamps + 6 * terms**2)


def penalty(basis: DeltaBasis, plain: np.ndarray, n_background: int, order: int) -> Penalty:
    """Cost of a rough kernel, as `DeltaBasis.roughness`, the same all over the field; of the background none.

    Counted at places of the field, not coefficient by coefficient: where stamps are missing the kernel is smooth too.
    """
    t = basis.size + n_background
    local = np.zeros((t, t))
    local[: basis.size, : basis.size] = basis.roughness(plain)
    at = (np.arange(PLACES) + 0.5) * 2 / PLACES - 1
    u, v = np.meshgrid(at, at)
    phi = polynomial_terms(u.ravel(), v.ravel(), order)
    return Penalty(local, phi @ phi.T / phi.shape[1], START)


def chosen_strength(system: System, used: np.ndarray) -> float:
    """Strength of the penalty with which the kernel of four fifths of the stamps leaves least chi2 in the last fifth.

    Found by steps of half a decade from `START`, until neither neighbour is better. The held-out stamps of the whole
    fit have no part in it, so their chi2 stays an honest one. A single stamp cannot tell: `START`.

    Parameters
    ----------
    system : System
        With a penalty of any strength.
    used : bool (n,)
        Stamps of the fit.
    """
    rows = np.flatnonzero(used)
    if len(rows) < 2:
        return START
    judges = np.zeros(len(used), bool)
    judges[rows[min(FOLD // 2, len(rows) - 1) :: FOLD]] = True
    weight = to_host(system.sums.pixels) * judges

    @cache
    def cost(k: int) -> float:
        if not 0 <= k < len(STRENGTHS):
            return np.inf
        trial = Trial.of(system.penalised(STRENGTHS[k]), used & ~judges)
        return float((fit(trial).chi2 * weight).sum())

    k = int(np.argmin(np.abs(np.log(np.array(STRENGTHS) / START))))
    while min(cost(k - 1), cost(k + 1)) < cost(k):
        k += 1 if cost(k + 1) < cost(k - 1) else -1
    return STRENGTHS[k]
