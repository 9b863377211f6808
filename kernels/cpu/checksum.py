# SPDX-License-Identifier: BSD-3-Clause
"""CPU kernel of the checksum: words as they lie in memory, turned and added."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.jit import serial


@serial
def big_endian_sum(words):
    """Sum of uint32 words of a little-endian machine, read as big-endian: uint64, for less than 2**32 of them."""
    total = np.uint64(0)
    for i in range(len(words)):
        word = words[i]
        total += np.uint64(
            np.uint32(
                ((word >> np.uint32(24)) & np.uint32(0xFF))
                | ((word >> np.uint32(8)) & np.uint32(0xFF00))
                | ((word & np.uint32(0xFF00)) << np.uint32(8))
                | (word << np.uint32(24))
            )
        )
    return total
