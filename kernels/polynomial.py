# SPDX-License-Identifier: BSD-3-Clause
"""Chebyshev products of two coordinates: what varies over the field."""

from __future__ import annotations

import functools

import numpy as np

from skydelta.kernels.backend import Array, Backend, backend_of
from skydelta.kernels.cpu.jit import serial


@functools.cache
def polynomial_exponents(order: int) -> tuple[tuple[int, int], ...]:
    """(i, j) of T_i(u) T_j(v) with i + j <= order, by total degree, then by j."""
    return tuple((n - j, j) for n in range(order + 1) for j in range(n + 1))


def polynomial_terms(u: np.ndarray, v: np.ndarray, order: int) -> np.ndarray:
    """Chebyshev products T_i(u) T_j(v) on the host: float64 (n_p, ...) of the broadcast shape, order as
    `polynomial_exponents`."""
    if np.shape(u) != np.shape(v):
        u, v = np.broadcast_arrays(u, v)
    terms = _terms(np.ascontiguousarray(u, float).ravel(), np.ascontiguousarray(v, float).ravel(), order)
    return terms.reshape(len(terms), *np.shape(u))


@serial
def _terms(u, v, order):
    """`polynomial_terms` (n_p, n) of positions (n,)."""
    n = len(u)
    along = np.ones((2, order + 1, n))
    for axis, t in enumerate((u, v)):
        for k in range(1, order + 1):
            for s in range(n):
                along[axis, k, s] = t[s] if k == 1 else 2 * t[s] * along[axis, k - 1, s] - along[axis, k - 2, s]
    out = np.empty(((order + 1) * (order + 2) // 2, n))
    p = 0
    for degree in range(order + 1):
        for j in range(degree + 1):
            for s in range(n):
                out[p, s] = along[0, degree - j, s] * along[1, j, s]
            p += 1
    return out


def chebyshev(t: Array, order: int) -> list[Array]:
    """T_0 to T_order at t, float64."""
    xp = backend_of(t).xp
    t = xp.asarray(t, np.float64)
    out = [xp.ones_like(t), t]
    for _ in range(2, order + 1):
        out.append(2 * t * out[-1] - out[-2])
    return out[: order + 1]


def chebyshev_table(t: Array, order: int) -> Array:
    """`chebyshev` of t as one array: float64 (..., order + 1)."""
    return backend_of(t).xp.stack(chebyshev(t, order), axis=-1)


def polynomial_plane(coefficients: np.ndarray, order: int, columns: Array, rows: Array) -> Array:
    """sum_p c_p T_i(u) T_j(v) on the grid of columns u and rows v: float32 (..., H, W), where these are.

    No term is made as a plane of its own.

    Parameters
    ----------
    coefficients : float64 (n_p,)
    order : int
    columns, rows : float64 (..., W, k), (..., H, k)
        `chebyshev_table` of u and of v to this order or a higher one.
    """
    backend, first = backend_of(rows), slice(order + 1)
    rows = rows[..., first] @ backend.asarray(degree_table(coefficients, order))
    return product_plane(backend, rows, columns[..., first].swapaxes(-1, -2))


def degree_table(coefficients: np.ndarray, order: int) -> np.ndarray:
    """Coefficients by the degree in v, then in u: float64 (order + 1, order + 1)."""
    table = np.zeros((order + 1, order + 1))
    for (i, j), c in zip(polynomial_exponents(order), coefficients, strict=True):
        table[j, i] = c
    return table


def product_plane(backend: Backend, rows: np.ndarray, columns: np.ndarray) -> Array:
    """rows (..., H, k) times columns (..., k, W), summed in float32: as exact as the image that it is taken from."""
    return backend.asarray(rows, np.float32) @ backend.asarray(columns, np.float32)


def count_terms(order: int) -> int:
    """Number of terms of a polynomial of this total degree."""
    return (order + 1) * (order + 2) // 2
