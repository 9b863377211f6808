# SPDX-License-Identifier: BSD-3-Clause
"""Launcher of CRC-32; arguments and result as the twin of ``kernels/cpu/crc.py``.

The threads of a block take the words of a stretch in turn. To each its words are a message whose others are 0, so that
its register goes past `THREADS` words at a time, by four look-ups; the sum of the registers, each times the power
of x for the bytes behind its last word, is that of the whole message, because a CRC is linear over GF(2).
"""

from __future__ import annotations

import functools

import numpy as np

from skydelta.kernels.backend import Array, Backend, backend_of
from skydelta.kernels.core.devices import constant
from skydelta.kernels.core.module import kernel
from skydelta.kernels.cpu.crc import POLYNOMIAL, byte_table

THREADS, STRETCH = 128, 1 << 15
"""As in ``crc.cuh``."""


def crc32(data: Array, offset: np.ndarray, length: np.ndarray) -> Array:
    backend, n = backend_of(data), len(offset)
    out = backend.xp.zeros(n, np.uint32)
    if n:
        parts = max(-(-int(length.max()) // STRETCH), 1)
        arguments = (data, backend.asarray(offset), backend.asarray(length), np.int32(parts), _there(backend), out)
        kernel("crc.cu", "crc32")((n * parts,), (THREADS,), arguments)
    return out


@functools.cache
def _there(backend: Backend) -> Array:
    return constant(tables(), backend)


@functools.cache
def tables() -> np.ndarray:
    """uint32: steps (4, 256), shifts (4 THREADS + 1), powers (32), as ``crc.cuh`` says; bit 31 is x^0."""
    bytewise, shifts = byte_table(), np.empty(4 * THREADS + 1, np.uint32)
    shifts[0] = 1 << 31
    for e in range(1, len(shifts)):
        shifts[e] = (shifts[e - 1] >> 8) ^ bytewise[shifts[e - 1] & 255]
    powers = np.empty(32, np.uint32)
    powers[0] = shifts[1]
    for k in range(1, 32):
        powers[k] = product(int(powers[k - 1]), powers[k - 1 : k])[0]
    places = np.arange(256, dtype=np.uint32) << np.uint32(8) * np.arange(4, dtype=np.uint32)[:, None]
    steps = product(int(shifts[-1]), places.reshape(-1))
    return np.concatenate([steps, shifts, powers])


def product(a: int, b: np.ndarray) -> np.ndarray:
    """a times b (n,), modulo `POLYNOMIAL`."""
    total = np.zeros_like(b)
    for i in range(31, -1, -1):
        if a >> i & 1:
            total ^= b
        b = (b >> 1) ^ np.where(b & 1, np.uint32(POLYNOMIAL), np.uint32(0))
    return total
