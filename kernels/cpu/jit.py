# SPDX-License-Identifier: BSD-3-Clause
"""The two ways a CPU twin is compiled.

No fastmath and no reduction across ``prange``: the same input gives the same bytes with any number of threads.
"""

from __future__ import annotations

import os
from typing import Any

# OpenMP threads that wait shall sleep: on a busy machine spinning ones burn 10 ms a parallel region, from all jobs.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numba

prange = numba.prange


def serial(function: Any) -> Any:
    """Compile for one thread; releases the GIL."""
    return numba.njit(cache=True, nogil=True, error_model="numpy")(function)


def inline(function: Any) -> Any:
    """Compile a small helper that other twins call per pixel."""
    return numba.njit(cache=True, nogil=True, error_model="numpy", inline="never")(function)


def unrolled(function: Any) -> Any:
    """Compile into each of its callers: an argument that is constant there makes loops without a counter."""
    return numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")(function)


def parallel(function: Any) -> Any:
    """Compile with ``prange`` over independent outputs (rows, tiles, stamps); never reduce across it."""
    return numba.njit(cache=True, nogil=True, error_model="numpy", parallel=True)(function)
