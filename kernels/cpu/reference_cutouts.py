# SPDX-License-Identifier: BSD-3-Clause
"""Plain NumPy reference of the windows."""

from __future__ import annotations

import numpy as np


def cutouts(plane: np.ndarray, middle: np.ndarray, half: int, outside: np.generic) -> np.ndarray:
    rows, columns = (np.asarray(a)[:, None] + np.arange(-half, half + 1) for a in middle)
    h, w = plane.shape
    inside = ((rows >= 0) & (rows < h))[:, :, None] & ((columns >= 0) & (columns < w))[:, None, :]
    values = plane[np.clip(rows, 0, h - 1)[:, :, None], np.clip(columns, 0, w - 1)[:, None, :]]
    return np.where(inside, values, outside)
