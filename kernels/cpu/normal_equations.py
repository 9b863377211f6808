# SPDX-License-Identifier: BSD-3-Clause
"""Numba twins of the normal-equation kernels."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.jit import parallel, prange


@parallel
def _stamp_basis(stamps, rows, columns, pairs, out):
    n, height, width = stamps.shape
    k = rows.shape[1]
    m = width - k + 1
    for s in prange(n):
        along_x = np.empty((height, m))
        done = -1
        for b in range(pairs.shape[0]):
            if pairs[b, 0] != done:
                done = pairs[b, 0]
                along_x[:] = 0
                for y in range(height):
                    for i in range(k):
                        f = rows[done, i]
                        for x in range(m):
                            along_x[y, x] += f * stamps[s, y, x + k - 1 - i]
            for y in range(m):
                for x in range(m):
                    out[s, b, y, x] = 0
                for j in range(k):
                    f = columns[pairs[b, 1], j]
                    for x in range(m):
                        out[s, b, y, x] += f * along_x[y + k - 1 - j, x]


def stamp_basis(stamps: np.ndarray, rows: np.ndarray, columns: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    m = stamps.shape[1] - rows.shape[1] + 1
    out = np.empty((stamps.shape[0], len(pairs), m, m))
    _stamp_basis(stamps, rows, columns, pairs, out)
    return out
