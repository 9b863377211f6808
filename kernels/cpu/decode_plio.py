# SPDX-License-Identifier: BSD-3-Clause
"""IRAF line lists to pixels on the CPU (Tody 1990; FITS 4.0, 10.4.3)."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.jit import inline, serial
from skydelta.kernels.decode import LINES


@inline
def word(heap, at, i):
    """Word ``i`` of a list that starts at byte ``at``: 16 bits, big-endian, signed."""
    return np.int64(np.int16((np.int32(heap[at + 2 * i]) << 8) | np.int32(heap[at + 2 * i + 1])))


@inline
def tile(heap, at, words, out):
    """Decode a list of ``words`` words into int32 ``out``; status. Runs are cut at the end of the tile."""
    if words < 3:
        return LINES
    if word(heap, at, 2) > 0:
        stop, i = word(heap, at, 2), np.int64(3)
    elif words < 5:
        return LINES
    else:
        stop, i = (word(heap, at, 4) << 15) + word(heap, at, 3), word(heap, at, 1)
    if not 0 <= i <= stop <= words:
        return LINES
    value = np.int64(1)
    x, n = np.int64(0), np.int64(out.size)
    while i < stop and x < n:
        w = word(heap, at, i)
        i += 1
        if w < 0:
            return LINES
        operation, data = w >> 12, w & 4095
        if operation == 1:
            if i >= stop:
                return LINES
            value = (word(heap, at, i) << 12) + data
            i += 1
        elif operation == 2:
            value += data
        elif operation == 3:
            value -= data
        elif operation in (6, 7):
            value += data if operation == 6 else -data
            out[x] = value
            x += 1
        else:
            end = min(x + data, n)
            for p in range(x, end):
                out[p] = value if operation == 4 else 0
            if operation == 5 and data > 0 and x + data <= n:
                out[end - 1] = value
            x = end
    for p in range(x, n):
        out[p] = 0
    return 0


@serial
def decode(heap, offset, length, first, pixels, out, status):
    """Decode tiles into int32 ``out``, tile i from ``first[i]``; arguments as in `decode_rice.decode`."""
    for i in range(len(offset)):
        if status[i] == 0:
            status[i] = tile(heap, offset[i], length[i] // 2, out[first[i] : first[i] + pixels[i]])
