# SPDX-License-Identifier: BSD-3-Clause
"""Positions in the field and the polynomials that vary over it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Domain:
    """Maps 0-based pixel positions of an image to u, v in [-1, 1] (pixel edges at the ends).

    Attributes
    ----------
    shape : (int, int)
        Height and width of the full image, px.
    origin : (float, float)
        (y0, x0) of the array whose positions are given, in that full image.
    """

    shape: tuple[int, int]
    origin: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def of(cls, shape: tuple[int, int]) -> Domain:
        return cls((int(shape[0]), int(shape[1])))

    @property
    def centre(self) -> tuple[float, float]:
        """(x, y) of the middle of the full image, in the array whose positions are given."""
        return (self.shape[1] - 1) / 2 - self.origin[1], (self.shape[0] - 1) / 2 - self.origin[0]

    def uv(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, y = np.asarray(x, float) + self.origin[1], np.asarray(y, float) + self.origin[0]
        return (2 * x + 1) / self.shape[1] - 1, (2 * y + 1) / self.shape[0] - 1


def polynomial_exponents(order: int) -> list[tuple[int, int]]:
    """(i, j) of T_i(u) T_j(v) with i + j <= order, by total degree, then by j."""
    return [(n - j, j) for n in range(order + 1) for j in range(n + 1)]


def polynomial_terms(u: np.ndarray, v: np.ndarray, order: int) -> np.ndarray:
    """Chebyshev products T_i(u) T_j(v): float64 (n_p, *u.shape), order as `polynomial_exponents`."""
    tu, tv = (_chebyshev(np.asarray(a, float), order) for a in (u, v))
    return np.stack([tu[i] * tv[j] for i, j in polynomial_exponents(order)])


def _chebyshev(t: np.ndarray, order: int) -> list[np.ndarray]:
    out = [np.ones_like(t), t]
    for _ in range(2, order + 1):
        out.append(2 * t * out[-1] - out[-2])
    return out


def count_terms(order: int) -> int:
    """Number of terms of a polynomial of this total degree."""
    return (order + 1) * (order + 2) // 2
