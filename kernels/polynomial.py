# SPDX-License-Identifier: BSD-3-Clause
"""Chebyshev products of two coordinates: what varies over the field."""

from __future__ import annotations

import functools

import numpy as np

from skydelta.kernels.backend import Array, Backend, backend_of


@functools.cache
def polynomial_exponents(order: int) -> tuple[tuple[int, int], ...]:
    """(i, j) of T_i(u) T_j(v) with i + j <= order, by total degree, then by j."""
    return tuple((n - j, j) for n in range(order + 1) for j in range(n + 1))


def polynomial_terms(u: Array, v: Array, order: int) -> Array:
    """Chebyshev products T_i(u) T_j(v): float64 (n_p, ...) of the broadcast shape, order as `polynomial_exponents`."""
    tu, tv = (chebyshev(a, order) for a in (u, v))
    xp = backend_of(tu[0]).xp
    out = xp.empty((count_terms(order), *np.broadcast_shapes(tu[0].shape, tv[0].shape)))
    for k, (i, j) in enumerate(polynomial_exponents(order)):
        # T_0 is 1
        if i and j:
            xp.multiply(tu[i], tv[j], out=out[k, ...])
        else:
            out[k] = tu[i] if i else tv[j]
    return out


def chebyshev(t: Array, order: int) -> list[Array]:
    """T_0 to T_order at t, float64."""
    xp = backend_of(t).xp
    t = xp.asarray(t, np.float64)
    out = [xp.ones_like(t), t]
    for _ in range(2, order + 1):
        out.append(2 * t * out[-1] - out[-2])
    return out[: order + 1]


def polynomial_plane(backend: Backend, coefficients: np.ndarray, order: int, u: np.ndarray, v: np.ndarray) -> Array:
    """sum_p c_p T_i(u) T_j(v) on the grid of columns u (..., W) and rows v (..., H): float32 (..., H, W).

    No term is made as a plane of its own.
    """
    table = np.zeros((order + 1, order + 1))
    for (i, j), c in zip(polynomial_exponents(order), coefficients, strict=True):
        table[j, i] = c
    rows = np.stack(chebyshev(v, order), axis=-1) @ table
    return product_plane(backend, rows, np.stack(chebyshev(u, order), axis=-2))


def product_plane(backend: Backend, rows: np.ndarray, columns: np.ndarray) -> Array:
    """rows (..., H, k) times columns (..., k, W), summed in float32: as exact as the image that it is taken from."""
    return backend.asarray(rows, np.float32) @ backend.asarray(columns, np.float32)


def count_terms(order: int) -> int:
    """Number of terms of a polynomial of this total degree."""
    return (order + 1) * (order + 2) // 2
