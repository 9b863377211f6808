# SPDX-License-Identifier: BSD-3-Clause
"""Launcher of the merging of masks; arguments and result as the twin of ``kernels/cpu/masks.py``."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.module import kernel

BLOCK = (32, 8)


def merge_masks(
    moved: Array,
    fixed: Array,
    moved_bits: np.ndarray,
    fixed_bits: np.ndarray,
    spreading: int,
    reached: Array,
    usable: Array,
    reach: int,
    invalid: int,
    edge: int,
    no_data: int,
) -> Array:
    backend = backend_of(moved)
    h, w = moved.shape
    out = backend.xp.empty(moved.shape, np.int32)
    planes = [backend.asarray(a) for a in (moved, fixed, moved_bits, fixed_bits)]
    scalars = [np.int32(i) for i in (h, w, reach, invalid, edge, no_data)]
    arguments = (*planes, np.int32(spreading), reached, usable, *scalars, out)
    kernel("masks.cu", "merge_masks")((-(-w // BLOCK[0]), -(-h // BLOCK[1])), BLOCK, arguments)
    return out
