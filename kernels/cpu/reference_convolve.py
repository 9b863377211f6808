# SPDX-License-Identifier: BSD-3-Clause
"""Plain SciPy references of the convolution kernels."""

from __future__ import annotations

import numpy as np
from scipy.signal import fftconvolve


def convolve_tiles(plane: np.ndarray, kernels: np.ndarray, tile: int) -> np.ndarray:
    out = np.empty(plane.shape, np.float32)
    for ty in range(kernels.shape[0]):
        for tx in range(kernels.shape[1]):
            here = np.s_[ty * tile : (ty + 1) * tile, tx * tile : (tx + 1) * tile]
            out[here] = fftconvolve(plane.astype(np.float64), kernels[ty, tx].astype(np.float64), "same")[here]
    return out
