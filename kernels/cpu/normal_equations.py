# SPDX-License-Identifier: BSD-3-Clause
"""Numba twins of the normal-equation kernels."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.jit import inline, parallel, prange


@inline
def _convolve_rows(source, length, taps, out):
    """out[q] = sum_i taps[i] source[q + (k - 1 - i) length]: whole rows slide over each other, four at a time.

    One long loop over contiguous pixels is what vectorises; the order of the sum is that of the taps.
    """
    n, k = len(out), len(taps)
    out[:] = 0
    i = 0
    while i + 4 <= k:
        f0, f1, f2, f3 = taps[i], taps[i + 1], taps[i + 2], taps[i + 3]
        s3 = source[(k - 4 - i) * length :]
        s2, s1, s0 = s3[length:], s3[2 * length :], s3[3 * length :]
        for q in range(n):
            out[q] = out[q] + f0 * s0[q] + f1 * s1[q] + f2 * s2[q] + f3 * s3[q]
        i += 4
    while i < k:
        f0, s0 = taps[i], source[(k - 1 - i) * length :]
        for q in range(n):
            out[q] += f0 * s0[q]
        i += 1


@parallel
def _stamp_basis(stamps, rows, columns, pairs, out):
    n, height, width = stamps.shape
    k = rows.shape[1]
    m = width - k + 1
    for s in prange(n):
        turned = np.empty((width, height))
        for x in range(width):
            for y in range(height):
                turned[x, y] = stamps[s, y, x]
        along_turned, along_x = np.empty((m, height)), np.empty((height, m))
        done = -1
        for b in range(pairs.shape[0]):
            if pairs[b, 0] != done:
                done = pairs[b, 0]
                _convolve_rows(turned.ravel(), height, rows[done], along_turned.ravel())
                for y in range(height):
                    for x in range(m):
                        along_x[y, x] = along_turned[x, y]
            _convolve_rows(along_x.ravel(), m, columns[pairs[b, 1]], out[s, b].ravel())


def stamp_basis(stamps: np.ndarray, rows: np.ndarray, columns: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    m = stamps.shape[1] - rows.shape[1] + 1
    out = np.empty((stamps.shape[0], len(pairs), m, m))
    _stamp_basis(stamps, rows, columns, pairs, out)
    return out
