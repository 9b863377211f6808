# SPDX-License-Identifier: BSD-3-Clause
"""Rice decoding on the CPU (Rice, Yeh and Miller 1993; FITS 4.0, 10.4.1).

A window of 64 bits is kept left-aligned: its number of leading zeros is the quotient, without a loop or table.
"""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.bits import leading_zeros, word_at
from skydelta.kernels.cpu.jit import inline, serial
from skydelta.kernels.decode import SELECTOR, SHORT, TRAILING

SLACK = 16
"""Unused bytes at the end of a stream that are taken for padding; encoders leave none, damaged streams many."""


@inline
def word(heap, at, end):
    """Eight bytes from ``at``, big-endian; bytes from ``end`` on count as 0."""
    if at + 8 <= heap.size:
        w = word_at(heap, at)
        if at + 8 > end:
            w = np.uint64(0) if at >= end else w & (~np.uint64(0) << np.uint64(8 * (at + 8 - end)))
        return w
    w = np.uint64(0)
    for i in range(8):
        w = (w << np.uint64(8)) | np.uint64(heap[at + i] if at + i < end else 0)
    return w


@inline
def tile(heap, at, end, out, block, nbytes):
    """Decode bytes ``at`` to ``end`` into int32 ``out``; status.

    At least ``bits`` leading bits of ``w`` are of the stream (at most 63), ``at`` is the byte behind those; what
    follows them in ``w`` may be of the stream too, so that filling up again sets the same bits.
    """
    n = out.size
    width = 8 * nbytes
    selector_bits = 3 if nbytes == 1 else 4 if nbytes == 2 else 5
    raw = 6 if nbytes == 1 else 14 if nbytes == 2 else 25
    if end - at < nbytes:
        return SHORT
    last = np.uint32(0)
    for i in range(nbytes):
        last = np.uint32((last << np.uint32(8)) | heap[at + i])
    at += nbytes
    inside = min(end, heap.size) - 8
    w, bits = np.uint64(0), 0
    done = 0
    while done < n:
        stop = min(done + block, n)
        w |= (word_at(heap, at) if at <= inside else word(heap, at, end)) >> np.uint64(bits)
        at += (63 - bits) >> 3
        bits |= 56
        fs = np.int64(w >> np.uint64(64 - selector_bits)) - 1
        w <<= np.uint64(selector_bits)
        bits -= selector_bits
        if fs < 0:
            for i in range(done, stop):
                out[i] = np.int32(last)
        elif fs == raw:
            for i in range(done, stop):
                w |= (word_at(heap, at) if at <= inside else word(heap, at, end)) >> np.uint64(bits)
                at += (63 - bits) >> 3
                bits |= 56
                v = np.uint32(w >> np.uint64(64 - width))
                w <<= np.uint64(width)
                bits -= width
                last = np.uint32(last + ((v >> np.uint32(1)) ^ (np.uint32(0) - (v & np.uint32(1)))))
                out[i] = np.int32(last)
        elif fs > raw:
            return SELECTOR
        else:
            # so many codes of usual length fit into a full window
            several = 56 // (fs + 6)
            tail = np.uint64(fs)
            i = done
            while i < stop:
                w |= (word_at(heap, at) if at <= inside else word(heap, at, end)) >> np.uint64(bits)
                at += (63 - bits) >> 3
                bits |= 56
                group = min(i + several, stop)
                while i < group:
                    q = leading_zeros(w)
                    used = q + 1 + fs
                    if used > bits:
                        break
                    # the leading ``used`` bits are 2**fs + remainder
                    v = np.uint32((w >> np.uint64(64 - used)) + (np.uint64(q - 1) << tail))
                    w <<= np.uint64(used)
                    bits -= used
                    last = np.uint32(last + ((v >> np.uint32(1)) ^ (np.uint32(0) - (v & np.uint32(1)))))
                    out[i] = np.int32(last)
                    i += 1
                if i < group and used > 56:
                    # longer than any window: count the zeros word by word
                    z, q = leading_zeros(w), 0
                    while z >= bits:
                        q += bits
                        if at >= end:
                            return SHORT
                        w = word(heap, at, end)
                        at += 8
                        bits = 64
                        z = leading_zeros(w)
                    q += z
                    w = (w << np.uint64(z)) << np.uint64(1)
                    bits -= z + 1
                    w |= word(heap, at, end) >> np.uint64(bits)
                    at += (63 - bits) >> 3
                    bits |= 56
                    v = np.uint32((np.uint64(q) << tail) | (w >> np.uint64(1)) >> (np.uint64(63) - tail))
                    w <<= tail
                    bits -= fs
                    last = np.uint32(last + ((v >> np.uint32(1)) ^ (np.uint32(0) - (v & np.uint32(1)))))
                    out[i] = np.int32(last)
                    i += 1
        if 8 * (at - end) > bits:
            return SHORT
        done = stop
    if nbytes == 1:
        for i in range(n):
            out[i] &= 255
    elif nbytes == 2:
        for i in range(n):
            out[i] = np.int32(np.int16(out[i]))
    return TRAILING if 8 * (end - at) + bits >= 8 * (SLACK + 1) else 0


@serial
def decode(heap, offset, length, first, pixels, out, block, nbytes, status):
    """Decode tiles into int32 ``out``, tile i from ``first[i]``; int32 (n,) ``status``.

    Parameters
    ----------
    heap : uint8 (m,)
    offset, length, pixels : int64 (n,)
        Bytes of each tile, inside the heap; pixels of each tile.
    first : int64 (n,)
    out : int32
    block, nbytes : int
        Pixels of a block; bytes of the coded integers, 1, 2 or 4.
    """
    for i in range(len(offset)):
        if status[i] == 0:
            status[i] = tile(
                heap, offset[i], offset[i] + length[i], out[first[i] : first[i] + pixels[i]], block, nbytes
            )
