# SPDX-License-Identifier: BSD-3-Clause
"""Launcher of the stamp convolutions; arguments and result as the twin of ``kernels/cpu/normal_equations.py``."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.module import kernel

THREADS = 256


def stamp_basis(stamps: Array, rows: np.ndarray, columns: np.ndarray, pairs: np.ndarray) -> Array:
    """Basis functions of one row filter must follow each other: ``pairs`` is sorted by it."""
    if np.any(np.diff(pairs[:, 0]) < 0):
        raise ValueError("pairs are not sorted by their row filter")
    backend = backend_of(stamps)
    n, side, k = stamps.shape[0], stamps.shape[1], rows.shape[1]
    m = side - k + 1
    first = np.searchsorted(pairs[:, 0], np.arange(len(rows) + 1)).astype(np.int32)
    out = backend.xp.empty((n, len(pairs), m, m))
    # one upload of filters, one of indices
    filters = backend.asarray(np.concatenate([rows, columns]))
    indices = backend.asarray(np.concatenate([pairs.ravel(), first]).astype(np.int32))
    tables = (filters[: len(rows)], filters[len(rows) :], indices[: pairs.size], indices[pairs.size :])
    scalars = [np.int32(i) for i in (side, k, len(pairs))]
    function = kernel("normal_equations.cu", "stamp_basis")
    function((n, len(rows)), (THREADS,), (backend.asarray(stamps), *tables, *scalars, out), shared_mem=8 * side * m)
    return out
