# SPDX-License-Identifier: BSD-3-Clause
"""Launchers of the lobe fits; arguments and results as the twins of ``kernels/cpu/fit.py``."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.kernels.core.module import kernel
from skydelta.kernels.fit import BOUND, MAX_EVALUATIONS, SETTLED, TURNS

THREADS = 128
"""A block: as in ``fit.cu``."""


def fit_lobes(
    data: Array,
    weight: Array,
    psf: Array,
    start: np.ndarray,
    stamp: np.ndarray | None = None,
    limit: int = MAX_EVALUATIONS,
    terms: int = 1,
) -> tuple[np.ndarray, ...]:
    """Results on the host: everything of a fit is one row, which comes back in one copy."""
    backend = backend_of(data)
    count, lobes = start.shape[:2]
    n, m = 3 * lobes + terms, 3 + terms
    free = n * n + n + 4
    linear_width = 2 + m + m * m
    width = free + (linear_width if lobes == 1 else 0)
    rows = np.empty((0, width))
    if count:
        out = backend.xp.empty((count, width))
        number = np.arange(count) if stamp is None else stamp
        table = backend.asarray(np.column_stack([start.reshape(count, 2 * lobes), number]), np.float64)
        stamps = [backend.asarray(a, np.float32) for a in (data, weight)]
        scalars = (np.int32(data.shape[1]), np.int32(psf.shape[1]), np.float64(BOUND), np.int32(limit))
        function = kernel("fit.cu", "fit_lobes", (str(lobes), str(terms)))
        function((count,), (THREADS,), (*stamps, backend.asarray(psf, np.float64), table, *scalars, out))
        rows = to_host(out)
    # as ``fit.cu`` has them
    linear = rows[:, free:] if lobes == 1 else np.full((count, linear_width), np.nan)
    return (
        rows[:, 4 : 4 + n],
        rows[:, 4 + n : free].reshape(count, n, n),
        rows[:, 0],
        *rows[:, 1:4].T.astype(np.int32),
        linear[:, 1 : 1 + m],
        linear[:, 1 + m : -1].reshape(count, m, m),
        linear[:, 0],
        linear[:, -1],
    )


def linear_dipole(
    data: Array, weight: Array, psf: Array, start: np.ndarray, width: np.ndarray, stamp: np.ndarray, terms: int = 1
) -> np.ndarray:
    backend, n = backend_of(data), 3 + terms
    out = backend.xp.empty((len(start), 5 + n + n * n))
    if len(start):
        table = backend.asarray(np.column_stack([start, width, stamp]), np.float64)
        stamps = [backend.asarray(a, np.float32) for a in (data, weight)]
        scalars = (np.int32(data.shape[1]), np.int32(psf.shape[1]), np.float64(BOUND), np.float64(SETTLED))
        arguments = (*stamps, backend.asarray(psf, np.float64), table, *scalars, np.int32(TURNS), out)
        kernel("fit.cu", "linear_dipole", (str(terms),))((len(start),), (THREADS,), arguments)
    return to_host(out)


def subtract_lobes(data: Array, weight: Array, psf: Array, first: np.ndarray, lobes: np.ndarray) -> Array:
    backend = backend_of(data)
    out = backend.xp.empty(data.shape, np.float32)
    if len(data):
        stamps = [backend.asarray(a, np.float32) for a in (data, weight)]
        tables = (backend.asarray(first, np.int32), backend.asarray(lobes, np.float64))
        sizes = (np.int32(data.shape[1]), np.int32(psf.shape[1]))
        arguments = (*stamps, backend.asarray(psf, np.float64), *tables, *sizes, out)
        kernel("fit.cu", "subtract_lobes")((len(data),), (THREADS,), arguments)
    return out


def spline_coefficients(psf: Array) -> Array:
    backend = backend_of(psf)
    out = backend.xp.array(psf, np.float64, order="C")
    if out.size:
        height, width = out.shape[1:]
        sizes = (np.int32(height), np.int32(width))
        # lines are few and long: one warp a stamp
        kernel("fit.cu", "spline_coefficients")((len(out),), (32,), (out, *sizes), shared_mem=8 * max(height, width))
    return out
