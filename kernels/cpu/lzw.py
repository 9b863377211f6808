# SPDX-License-Identifier: BSD-3-Clause
"""LZW as the Unix program compress writes it (Welch 1984, Computer 17(6), 8): codes of 9 to 16 bits, low bits first."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.jit import serial

HEADER = 3
CLEAR = 256


@serial
def expand(data, out):
    """Decode a ``.Z`` stream into ``out``; the bytes that it holds, or -1 if it is damaged.

    Bytes beyond the end of ``out`` are counted and not kept, so that a first call with an empty ``out`` gives the size.
    A cut stream gives what was whole.

    Parameters
    ----------
    data : uint8 (n,)
        From the magic bytes on.
    out : uint8 (m,)
    """
    most = np.int64(data[2] & 31)
    block_mode = data[2] & 128 != 0
    if data.size < HEADER or not 9 <= most <= 16:
        return np.int64(-1)
    prefix = np.zeros(1 << 16, np.int32)
    suffix = np.zeros(1 << 16, np.uint8)
    length = np.ones(1 << 16, np.int64)
    stack = np.empty(1 << 16, np.uint8)
    for i in range(256):
        suffix[i] = i
    start = np.int64(8 * HEADER)
    width, position = np.int64(9), start
    free = np.int64(257 if block_mode else 256)
    previous, first = np.int64(-1), np.uint8(0)
    done = np.int64(0)
    total = np.int64(8 * data.size)
    while position + width <= total:
        at = position >> 3
        word = np.int64(data[at]) | (np.int64(data[at + 1]) << 8 if at + 1 < data.size else 0)
        word |= np.int64(data[at + 2]) << 16 if at + 2 < data.size else 0
        code = (word >> (position & 7)) & ((1 << width) - 1)
        position += width
        if block_mode and code == CLEAR:
            # codes come in groups of eight; the rest of the group is skipped
            position = start + -(-(position - start) // (8 * width)) * 8 * width
            start, width, free, previous = position, np.int64(9), np.int64(257), np.int64(-1)
            continue
        if code > free or (code == free and previous < 0) or (previous < 0 and code > 255):
            return np.int64(-1)
        n = length[code] if code < free else length[previous] + 1
        walk, fill = (code, n - 1) if code < free else (previous, n - 2)
        while fill > 0:
            stack[fill] = suffix[walk]
            walk = np.int64(prefix[walk])
            fill -= 1
        first = suffix[walk]
        stack[0] = first
        if code == free:
            stack[n - 1] = first
        for i in range(min(n, max(out.size - done, 0))):
            out[done + i] = stack[i]
        done += n
        if previous >= 0 and free < (1 << most):
            prefix[free], suffix[free], length[free] = previous, first, length[previous] + 1
            free += 1
            if free >= (1 << width) and width < most:
                # a new width begins with a new group
                position = start + -(-(position - start) // (8 * width)) * 8 * width
                start, width = position, width + 1
        previous = code
    return done
