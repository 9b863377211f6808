# SPDX-License-Identifier: BSD-3-Clause
"""Numba twins of the convolution kernels."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.jit import parallel, prange


@parallel
def _convolve_tiles(padded, kernels, tile, out):
    height, width = out.shape
    kh, kw = kernels.shape[2], kernels.shape[3]
    for y in prange(height):
        for tx in range(kernels.shape[1]):
            x0, x1 = tx * tile, min(width, (tx + 1) * tile)
            line = np.zeros(x1 - x0, np.float32)
            for j in range(kh):
                for i in range(kw):
                    k = kernels[y // tile, tx, j, i]
                    if k != 0:
                        source = padded[y + kh - 1 - j, x0 + kw - 1 - i : x1 + kw - 1 - i]
                        for x in range(x1 - x0):
                            line[x] += k * source[x]
            out[y, x0:x1] = line


def convolve_tiles(plane: np.ndarray, kernels: np.ndarray, tile: int) -> np.ndarray:
    kh, kw = kernels.shape[2:]
    padded = np.pad(plane, ((kh // 2, kh // 2), (kw // 2, kw // 2)))
    out = np.empty(plane.shape, np.float32)
    _convolve_tiles(padded, np.ascontiguousarray(kernels, np.float32), tile, out)
    return out
