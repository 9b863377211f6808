# SPDX-License-Identifier: BSD-3-Clause
"""Cholesky factors by cuSOLVER, without the copies and checks of a general front; smoothing by products."""

from __future__ import annotations

import functools
from types import ModuleType

import numpy as np
from scipy.ndimage import gaussian_filter1d

from skydelta.kernels.backend import Array, Backend, backend_of, check_pivots, cupy
from skydelta.kernels.core.devices import constant


@functools.cache
def _library() -> tuple[ModuleType, int]:
    """cuSOLVER's functions, and its name of the triangle that is the lower one of a C-contiguous matrix."""
    from cupy_backends.cuda.libs import cublas, cusolver

    return cusolver, cublas.CUBLAS_FILL_MODE_UPPER


def cholesky(a: Array, least: float = 0.0) -> Array:
    """As `Backend.cholesky`; waits for the device, which alone knows whether there is a factor."""
    xp, (library, triangle), n = cupy(), _library(), len(a)
    handle = xp.cuda.device.get_cusolver_handle()
    # the diagonal and, behind it, what the library says of the factor: one copy to the host
    factor, outcome = a.astype(np.float64, order="C", copy=True), xp.empty(n + 1)
    failed = outcome[n:].view(np.int32)
    size = library.dpotrf_bufferSize(handle, triangle, n, factor.data.ptr, n)
    work = xp.empty(size)
    library.dpotrf(handle, triangle, n, factor.data.ptr, n, work.data.ptr, size, failed.data.ptr)
    outcome[:n] = xp.diagonal(factor)
    found = outcome.get()
    if place := int(found[n:].view(np.int32)[0]):
        raise np.linalg.LinAlgError(f"the leading minor of order {place} is not positive definite")
    check_pivots(found[:n], least)
    return factor


def cholesky_solve(factor: Array, b: Array) -> Array:
    """As `Backend.cholesky_solve`."""
    xp, (library, triangle), n = cupy(), _library(), len(factor)
    # the library's matrices are column by column
    x = xp.array(b.T, np.float64, order="C", copy=True)
    failed = xp.empty(1, np.int32)
    handle = xp.cuda.device.get_cusolver_handle()
    right = x.size // n if n else 0
    library.dpotrs(handle, triangle, n, right, factor.data.ptr, n, x.data.ptr, n, failed.data.ptr)
    return x.T


def gaussian_stack(planes: Array, sigma: float, mode: str, truncate: float) -> Array:
    """As `Backend.gaussian_stack`: two products with a banded matrix, which take less time to start than filters do."""
    m = planes.shape[-1]
    along = _smoothing(backend_of(planes), m, sigma, mode, truncate).T
    # each turns the planes over; of two stacks, cuBLAS would be given a pointer for each plane
    for _ in range(2):
        planes = (planes.transpose(0, 2, 1).reshape(-1, m) @ along).reshape(-1, m, m)
    return planes


@functools.lru_cache(8)
def _smoothing(backend: Backend, m: int, sigma: float, mode: str, truncate: float) -> Array:
    """The matrix (m, m), float32, that smooths a column."""
    matrix = gaussian_filter1d(np.eye(m), sigma, axis=0, mode=mode, truncate=truncate)
    return constant(matrix.astype(np.float32), backend)
