# SPDX-License-Identifier: BSD-3-Clause
"""Plain SciPy reference of the merging of masks."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import maximum_filter


def merge_masks(
    moved, fixed, moved_bits, fixed_bits, spreading, reached, usable, reach, invalid, edge, no_data
) -> np.ndarray:
    out = np.zeros(moved.shape, np.int32)
    for b in range(31):
        near = maximum_filter(((moved & spreading) >> b) & 1, 2 * reach + 1, mode="constant") > 0
        out |= np.where((moved >> b & 1) | (reached & near), moved_bits[b], 0).astype(np.int32)
        out |= np.where(fixed >> b & 1, fixed_bits[b], 0).astype(np.int32)
    out[reached & ((out & invalid) == 0)] |= edge
    out[~usable & ((out & invalid) == 0)] |= no_data
    return out
