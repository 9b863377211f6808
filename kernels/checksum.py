# SPDX-License-Identifier: BSD-3-Clause
"""The ones-complement sum of 32-bit words that DATASUM and CHECKSUM hold (FITS 4.0, 4.4.2.7 and appendix J)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.kernels.cpu.checksum import big_endian_sum

ROW = 1 << 10
"""Bytes that a device sums in 16 bits: 256 words, of which each byte adds up to less than 2**16."""

CHUNK = 1 << 25
"""Bytes that a device sums at a time, which bounds the memory it needs for that."""


def add_words(*totals: int) -> int:
    """Ones-complement sum: carries out of 32 bits come back in at the low end."""
    total = sum(totals)
    while total >> 32:
        total = (total & 0xFFFFFFFF) + (total >> 32)
    return total


def word_sum(data: Array, phase: int = 0) -> int:
    """Ones-complement sum of the big-endian 32-bit words of bytes.

    Parameters
    ----------
    data : uint8 (n,), C-contiguous
        On the host or on a device. What its first and last word lack is taken as zeros.
    phase : int
        Place of the first byte in its word, 0 to 3: sums of parts of a file add up to that of the whole.
    """
    return word_sum_later(data, phase)()


def word_sum_later(data: Array, phase: int = 0) -> Callable[[], int]:
    """`word_sum` as a function that gives it: what a device does for it is only launched now."""
    if backend_of(data).is_gpu:
        parts = [_lanes(data[a : a + CHUNK], (phase + a) % 4) for a in range(0, len(data), CHUNK)]
        return lambda: add_words(*(int(n) << 24 - 8 * k for part in parts for k, n in enumerate(to_host(part))))
    total = _host(data, phase)
    return lambda: total


def _host(data: np.ndarray, phase: int) -> int:
    # the kernel takes words that are aligned in memory; what lies before and behind is a few bytes
    skip = min(-data.__array_interface__["data"][0] % 4, len(data))
    words = data[skip : skip + (len(data) - skip) // 4 * 4].view(np.uint32)
    words.flags.writeable = False  # one compiled kernel for arrays that may be written and those that may not
    tail = skip + words.nbytes
    ends = ((data[:skip], phase), (data[tail:], phase + tail))
    few = [int(v) << 24 - 8 * ((at + i) % 4) for part, at in ends for i, v in enumerate(part.tolist())]
    # a word that starts k bytes late is turned by as many: 2**32 is 1 in this arithmetic
    return add_words(int(big_endian_sum(words)) << 8 * (-(phase + skip) % 4), *few)


def _lanes(data: Array, phase: int) -> Array:
    """uint64 (4,) on the device: sums of the bytes at each place of a word."""
    xp = backend_of(data).xp
    # copied to where words begin, because a device reads words from whole addresses alone
    rows = xp.zeros((-(-(phase + len(data)) // ROW), ROW), np.uint8)
    rows.reshape(-1)[phase : phase + len(data)] = data
    words = rows.view(np.uint32)
    lanes = []
    for pair in (words & np.uint32(0x00FF00FF), (words >> np.uint32(8)) & np.uint32(0x00FF00FF)):
        sums = pair.sum(axis=1, dtype=np.uint32)
        lanes.append([(sums & np.uint32(0xFFFF)).sum(dtype=np.uint64), (sums >> np.uint32(16)).sum(dtype=np.uint64)])
    return xp.stack([lanes[0][0], lanes[1][0], lanes[0][1], lanes[1][1]])
