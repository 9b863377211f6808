# SPDX-License-Identifier: BSD-3-Clause
"""Numba twin of the windows."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.jit import parallel, prange


@parallel
def _cutouts(plane, middle, half, outside, out):
    height, width = plane.shape
    for k in prange(out.shape[0]):
        for j in range(out.shape[1]):
            y = middle[0, k] - half + j
            for i in range(out.shape[2]):
                x = middle[1, k] - half + i
                inside = y >= 0 and y < height and x >= 0 and x < width
                out[k, j, i] = plane[y, x] if inside else outside


def cutouts(plane: np.ndarray, middle: np.ndarray, half: int, outside: np.generic) -> np.ndarray:
    out = np.empty((middle.shape[1], 2 * half + 1, 2 * half + 1), plane.dtype)
    _cutouts(plane, middle, half, outside, out)
    return out
