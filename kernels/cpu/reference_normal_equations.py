# SPDX-License-Identifier: BSD-3-Clause
"""Plain SciPy references of the normal-equation kernels."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import convolve1d


def stamp_basis(stamps: np.ndarray, rows: np.ndarray, columns: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    h = rows.shape[1] // 2
    out = []
    for row, column in pairs:
        c = convolve1d(stamps.astype(np.float64), rows[row], axis=2, mode="constant")
        c = convolve1d(c, columns[column], axis=1, mode="constant")
        out.append(c[:, h : c.shape[1] - h, h : c.shape[2] - h])
    return np.stack(out, axis=1)
