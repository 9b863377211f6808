# SPDX-License-Identifier: BSD-3-Clause
"""Launcher of deflate streams; arguments and results as the twin of ``kernels/cpu/inflate.py``."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.module import kernel

WARPS = 4
"""Streams of a block, as in ``inflate.cu``."""


def inflate(
    data: Array, offset: np.ndarray, length: np.ndarray, place: np.ndarray, size: np.ndarray, total: int
) -> tuple[Array, Array]:
    backend, n = backend_of(data), len(offset)
    out, status = backend.xp.zeros(total, np.uint8), backend.xp.zeros(n, np.int32)
    if n:
        told = backend.asarray(np.stack([offset, length, place, size]).astype(np.int64))
        arguments = (data, *told, np.int32(n), out, status)
        kernel("inflate.cu", "inflate_streams")((-(-n // WARPS),), (32 * WARPS,), arguments)
    return out, status
