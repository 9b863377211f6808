# SPDX-License-Identifier: BSD-3-Clause
"""A Moffat profile whose size and shape are polynomials over the field, and its Gauss-Newton step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from skydelta.io.field import count_terms
from skydelta.kernels.backend import Array, Backend
from skydelta.kernels.cpu.jit import serial
from skydelta.kernels.psf import profile_stamps

PRIOR = (0.7, 0.3, 0.3, 0.7)
"""Standard deviation of ln a, e1, e2 and ln(beta - 1) around a round profile with beta 3; matters for faint stars."""

PRIOR_VARIATION = 0.2
"""The same for the terms of ln a, e1, e2 that vary over the field."""

LARGEST_STEP = 0.4
"""Of every coefficient."""

_START_SLOPE = float(np.log(2.0))

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

    @property
    def count(self) -> int:
        return self.phi.shape[1]

    @cached_property
    def device(self) -> Array:
        """`phi` where the stamps are."""
        return self.backend.asarray(self.phi)


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
        return cls(coefficients, _START_SLOPE, log_a)

    def lowered(self, terms: int) -> ProfileField:
        """The first of the terms alone."""
        return replace(self, coefficients=self.coefficients[:, :terms])

    def stamps(self, phi: Array, side: int) -> Array:
        """Profiles at places with spatial terms phi (n, n_p): float64 (n, side, side)."""
        return profile_stamps(phi, self.coefficients, self.slope, side)

    def mean(self, side: int) -> tuple[np.ndarray, float]:
        """The profile (side, side) where all terms but the constant one are zero, on the host, and its a, px."""
        phi = np.eye(1, self.coefficients.shape[1])
        return self.stamps(phi, side)[0], float(np.exp(self.coefficients[0, 0]))

    def improved(self, sums: np.ndarray, terms: Terms) -> tuple[ProfileField, float]:
        """One Gauss-Newton step with the sums (n, 20) of `profile_sums`, and the largest change."""
        n_p = terms.count
        away = np.append(-self.coefficients.ravel(), _START_SLOPE - self.slope)
        away[0] += self.first
        step = _step(sums, terms.phi, _prior(n_p), away, LARGEST_STEP)
        slope = min(max(self.slope + float(step[-1]), SLOPES[0]), SLOPES[1])
        moved = ProfileField(self.coefficients + step[:-1].reshape(3, n_p), slope, self.first)
        return moved, float(np.abs(step).max())


@cache
def _prior(n_p: int) -> np.ndarray:
    """Inverse variances of the coefficients and the slope around the first guess: float64 (3 n_p + 1,)."""
    spread = np.full((3, n_p), PRIOR_VARIATION)
    spread[:, 0] = PRIOR[:3]
    return 1 / np.append(spread.ravel(), PRIOR[3]) ** 2


@serial
def _step(sums, phi, prior, away, largest):
    """Normal equations from the sums (n, 20) of each star, solved; beta is one number: only its constant term is
    free."""
    n, n_p = phi.shape
    free = 3 * n_p + 1
    normal, right = np.zeros((free, free)), prior * away
    for s in range(n):
        for i in range(4):
            for p in range(n_p if i < 3 else 1):
                f, row = phi[s, p], i * n_p + p
                right[row] += f * sums[s, 16 + i]
                for j in range(i + 1):
                    fs = f * sums[s, 4 * i + j]
                    for q in range(n_p if j < 3 else 1):
                        normal[row, j * n_p + q] += fs * phi[s, q]
    for i in range(free):
        normal[i, i] += prior[i]
        for j in range(i):
            normal[j, i] = normal[i, j]
    step = np.linalg.solve(normal, right)
    return np.minimum(np.maximum(step, -largest), largest)
