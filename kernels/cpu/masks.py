# SPDX-License-Identifier: BSD-3-Clause
"""Numba twin of the merging of masks."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.jit import inline, parallel, prange


@inline
def _translate(value, bits):
    out = np.int32(0)
    for b in range(len(bits)):
        if value >> b & 1:
            out |= bits[b]
    return out


@inline
def _around(mask, y, x, reach, wanted):
    found = np.int32(0)
    for j in range(max(y - reach, 0), min(y + reach + 1, mask.shape[0])):
        for i in range(max(x - reach, 0), min(x + reach + 1, mask.shape[1])):
            found |= mask[j, i] & wanted
    return found


@parallel
def _merge_masks(moved, fixed, moved_bits, fixed_bits, spreading, reached, usable, reach, invalid, edge, no_data, out):
    for y in prange(moved.shape[0]):
        for x in range(moved.shape[1]):
            bits = np.int32(0)
            if moved[y, x]:
                bits |= _translate(moved[y, x], moved_bits)
            if fixed[y, x]:
                bits |= _translate(fixed[y, x], fixed_bits)
            if reached[y, x]:
                bits |= _translate(_around(moved, y, x, reach, spreading), moved_bits)
                if not bits & invalid:
                    bits |= edge
            if not usable[y, x] and not bits & invalid:
                bits |= no_data
            out[y, x] = bits


def merge_masks(
    moved, fixed, moved_bits, fixed_bits, spreading, reached, usable, reach, invalid, edge, no_data
) -> np.ndarray:
    out = np.empty(moved.shape, np.int32)
    scalars = [np.int32(i) for i in (invalid, edge, no_data)]
    _merge_masks(moved, fixed, moved_bits, fixed_bits, np.int32(spreading), reached, usable, int(reach), *scalars, out)
    return out
