# SPDX-License-Identifier: BSD-3-Clause
"""Launchers of the detection kernels; arguments and results as the twins of ``kernels/cpu/detect.py``."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.module import kernel

BLOCK = (32, 8)


def _grid(shape: tuple[int, int]) -> tuple[int, int]:
    return -(-shape[1] // BLOCK[0]), -(-shape[0] // BLOCK[1])


def peak_flags(image: Array, threshold: float) -> Array:
    out = backend_of(image).xp.empty(image.shape, np.int8)
    h, w = image.shape
    scalars = (np.int32(h), np.int32(w), np.float32(threshold))
    kernel("detect.cu", "peak_flags")(_grid(image.shape), BLOCK, (image, *scalars, out))
    return out


def components(image: Array, threshold: float) -> tuple[Array, int]:
    xp = backend_of(image).xp
    n, (h, w) = np.int32(image.size), image.shape
    parent, root, is_root, labels = (xp.empty(image.shape, np.int32) for _ in range(4))
    line = ((-(-int(n) // 256),), (256,))
    t = np.float32(threshold)
    kernel("detect.cu", "label_start")(*line, (image, n, t, parent))
    kernel("detect.cu", "label_merge")(_grid(image.shape), BLOCK, (image, np.int32(h), np.int32(w), t, parent))
    kernel("detect.cu", "label_flatten")(*line, (parent, n, root, is_root))
    number = xp.cumsum(is_root.ravel(), dtype=np.int32)
    kernel("detect.cu", "label_number")(*line, (root, number, n, labels))
    return labels, int(number[-1])
