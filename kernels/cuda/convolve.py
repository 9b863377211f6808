# SPDX-License-Identifier: BSD-3-Clause
"""Launcher of the tile convolution; arguments and result as the twin of ``kernels/cpu/convolve.py``."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.module import kernel

SIDE, COLUMN = 32, 4


def convolve_tiles(plane: Array, kernels: Array, tile: int) -> Array:
    """A block makes 32 x 32 pixels: tiles are a multiple of that."""
    if tile % SIDE:
        raise ValueError(f"tiles of {tile} px; on a device a multiple of {SIDE} is needed")
    backend = backend_of(plane)
    out = backend.xp.empty(plane.shape, np.float32)
    (h, w), (kh, kw) = plane.shape, kernels.shape[2:]
    scalars = [np.int32(i) for i in (h, w, kh, kw, tile, kernels.shape[1])]
    grid, block = (-(-w // SIDE), -(-h // SIDE)), (SIDE, SIDE // COLUMN)
    shared = 4 * (SIDE + kh - 1) * (SIDE + kw - 1)
    kernel("convolve.cu", "convolve_tiles")(grid, block, (plane, kernels, *scalars, out), shared_mem=shared)
    return out
