# SPDX-License-Identifier: BSD-3-Clause
"""A Moffat profile whose size and shape are polynomials over the field, and its Gauss-Newton step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from skydelta.io.field import count_terms, polynomial_terms
from skydelta.kernels.backend import Array, Backend
from skydelta.kernels.psf import profile_stamps

PRIOR = (0.7, 0.3, 0.3, 0.7)
"""Standard deviation of ln a, e1, e2 and ln(beta - 1) around a round profile with beta 3; matters for faint stars."""

PRIOR_VARIATION = 0.2
"""The same for the terms of ln a, e1, e2 that vary over the field."""

LARGEST_STEP = 0.4
"""Of every coefficient."""

SLOPES = (float(np.log(0.2)), float(np.log(30.0)))
"""Bounds of ln(beta - 1)."""


@dataclass(frozen=True)
class Terms:
    """Spatial terms at the stars, orthogonal over them, the constant one first: the mean and the variation of the PSF
    are then independent.

    Attributes
    ----------
    order : int
        Total degree.
    phi : float64 (n, n_p), on the host
    to_orthogonal : float64 (n_p, n_p)
        From `polynomial_terms` to these.
    backend : Backend
        Where `device` is.
    """

    order: int
    phi: np.ndarray
    to_orthogonal: np.ndarray
    backend: Backend

    @classmethod
    def of(cls, order: int, polynomial: np.ndarray, backend: Backend) -> Terms:
        """From `polynomial_terms` (n, n_p or more) at the stars."""
        phi = polynomial[:, : count_terms(order)]
        to_orthogonal = np.linalg.inv(np.linalg.qr(phi / np.sqrt(len(phi)))[1])
        to_orthogonal *= np.sign(to_orthogonal[0, 0])
        return cls(order, phi @ to_orthogonal, to_orthogonal, backend)

    def lowered(self, order: int) -> Terms:
        """The terms up to a lower total degree, which are the first ones."""
        k = count_terms(order)
        return replace(self, order=order, phi=self.phi[:, :k], to_orthogonal=self.to_orthogonal[:k, :k])

    def at(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        """The same functions at other field coordinates: float64 (k, n_p)."""
        return polynomial_terms(u, v, self.order).T @ self.to_orthogonal

    @property
    def count(self) -> int:
        return self.phi.shape[1]

    @cached_property
    def device(self) -> Array:
        """`phi` where the stamps are."""
        return self.backend.asarray(self.phi)

    @cached_property
    def products(self) -> np.ndarray:
        """phi_p phi_q of every star: float64 (n_p n_p, n)."""
        return (self.phi[:, :, None] * self.phi[:, None, :]).reshape(len(self.phi), -1).T.copy()


@dataclass(frozen=True)
class ProfileField:
    """Elliptical Moffat profile of unit sum that varies over the field, as ``skydelta.kernels.psf`` defines it.

    Attributes
    ----------
    coefficients : float64 (3, n_p)
        Polynomials of ln a, e1 and e2.
    slope : float
        ln(beta - 1).
    first : float
        ln a of the first guess.
    """

    coefficients: np.ndarray
    slope: float
    first: float

    @classmethod
    def start(cls, fwhm: float, terms: int) -> ProfileField:
        """Round, with beta 3."""
        log_a = float(np.log(fwhm / (2 * np.sqrt(2 ** (1 / 3) - 1))))
        coefficients = np.zeros((3, terms))
        coefficients[0, 0] = log_a
        return cls(coefficients, float(np.log(2.0)), log_a)

    def lowered(self, terms: int) -> ProfileField:
        """The first of the terms alone."""
        return replace(self, coefficients=self.coefficients[:, :terms])

    def stamps(self, phi: Array, side: int) -> Array:
        """Profiles at places with spatial terms phi (n, n_p): float64 (n, side, side)."""
        return profile_stamps(phi, self.coefficients, self.slope, side)

    def improved(self, sums: np.ndarray, terms: Terms) -> tuple[ProfileField, float]:
        """One Gauss-Newton step with the sums (n, 20) of `profile_sums`, and the largest change."""
        n_p = terms.count
        normal = (terms.products @ sums[:, :16]).reshape(n_p, n_p, 4, 4).transpose(2, 0, 3, 1)
        normal = normal.reshape(4 * n_p, 4 * n_p)
        prior, away = _prior(n_p), np.zeros((4, n_p))
        away[:3], away[3, 0] = -self.coefficients, np.log(2.0) - self.slope
        away[0, 0] += self.first
        normal.ravel()[:: 4 * n_p + 1] += prior
        right = (sums[:, 16:].T @ terms.phi).ravel() + prior * away.ravel()
        # beta is one number: of its terms only the constant one is free
        free = 3 * n_p + 1
        step = np.linalg.solve(normal[:free, :free], right[:free])
        step = np.minimum(np.maximum(step, -LARGEST_STEP), LARGEST_STEP)
        slope = min(max(self.slope + float(step[-1]), SLOPES[0]), SLOPES[1])
        moved = replace(self, coefficients=self.coefficients + step[:-1].reshape(3, n_p), slope=slope)
        return moved, float(np.abs(step).max())


@cache
def _prior(n_p: int) -> np.ndarray:
    """Inverse variances of the coefficients around the first guess: float64 (4 n_p,)."""
    spread = np.full((4, n_p), PRIOR_VARIATION)
    spread[:, 0] = PRIOR
    return 1 / spread.ravel() ** 2
