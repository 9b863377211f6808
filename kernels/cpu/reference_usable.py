# SPDX-License-Identifier: BSD-3-Clause
"""Plain NumPy reference of the judgement of pixels."""

from __future__ import annotations

import numpy as np


def usable_pixels(image: np.ndarray, variance: np.ndarray | None, mask: np.ndarray | None, invalid: int) -> np.ndarray:
    ok = np.isfinite(image)
    if mask is not None:
        ok = ok & ((mask & invalid) == 0)
    if variance is not None:
        ok = ok & np.isfinite(variance) & (variance > 0)
    return ok
