# SPDX-License-Identifier: BSD-3-Clause
"""Positions in the field and the polynomials that vary over it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from skydelta.kernels.backend import Array, Backend
from skydelta.kernels.polynomial import (
    chebyshev,
    count_terms,
    degree_table,
    polynomial_exponents,
    polynomial_terms,
)

__all__ = ["Domain", "count_terms", "polynomial_exponents", "polynomial_terms"]


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

    def plane(self, backend: Backend, shape: tuple[int, int], coefficients: np.ndarray, order: int) -> Array:
        """sum_p c_p T_i(u) T_j(v) at every pixel of an array of this shape: float32 (H, W) on the backend, summed in
        float32. No term is made as a plane of its own."""
        rows, columns = (_along(backend, *axis, order) for axis in zip(self.shape, self.origin, shape, strict=True))
        table = backend.asarray(degree_table(coefficients, order))
        return (rows.T @ table).astype(np.float32) @ columns.astype(np.float32)


@lru_cache(16)
def _along(backend: Backend, length: int, origin: float, count: int, order: int) -> Array:
    """T_0 to T_order at the pixels of one axis, float64 (order + 1, count): it stays where it is for the next image."""
    t = (2 * (np.arange(count) + origin) + 1) / length - 1
    made = backend.asarray(np.stack(chebyshev(t, order)))
    backend.synchronize()  # the next one to use it may do so on another stream
    return made
