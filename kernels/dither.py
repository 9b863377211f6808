# SPDX-License-Identifier: BSD-3-Clause
"""The random numbers of subtractive dithering, which reader and writer must agree on (FITS 4.0, appendix I)."""

from __future__ import annotations

import functools

import numpy as np

from skydelta.kernels.backend import Array, Backend
from skydelta.kernels.core.devices import constant

COUNT = 10000
"""Numbers in the table."""

STRETCH = 500
"""A tile starts at its own number of the table times this."""


@functools.cache
def _table() -> np.ndarray:
    """Park and Miller's generator x <- 16807 x mod (2^31 - 1) from 1, over its modulus."""
    values, x = np.empty(COUNT, np.float32), 1
    for i in range(COUNT):
        x = 16807 * x % 2147483647
        values[i] = x / 2147483647
    values.setflags(write=False)
    return values


@functools.cache
def dither_table(backend: Backend) -> Array:
    """float32 (`COUNT`,), in (0, 1), on a backend; do not write to it."""
    return constant(_table(), backend)
