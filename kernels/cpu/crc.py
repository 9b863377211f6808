# SPDX-License-Identifier: BSD-3-Clause
"""Numba twin of CRC-32: a byte at a time."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.jit import parallel, prange

POLYNOMIAL = 0xEDB88320
"""Of CRC-32, bit 31 for x^0 (RFC 1952, 8)."""


def byte_table() -> np.ndarray:
    """uint32 (256,): what a byte in the register becomes when 8 bits have gone through it."""
    v = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        v = (v >> np.uint32(1)) ^ (v & np.uint32(1)) * np.uint32(POLYNOMIAL)
    return v


@parallel
def _crc32(data, offset, length, table, out):
    for t in prange(len(offset)):
        state = np.uint32(0xFFFFFFFF)
        for i in range(offset[t], offset[t] + length[t]):
            state = table[(state ^ data[i]) & np.uint32(255)] ^ (state >> np.uint32(8))
        out[t] = state ^ np.uint32(0xFFFFFFFF)


def crc32(data: np.ndarray, offset: np.ndarray, length: np.ndarray) -> np.ndarray:
    out = np.empty(len(offset), np.uint32)
    _crc32(data, offset, length, byte_table(), out)
    return out
