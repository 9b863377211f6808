# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``neighbours``: crowded and sparse lists; integer radii, which peaks lie on."""

import numpy as np

SHAPES = [(64, 64), (37, 53), (1, 90), (90, 1), (2, 2)]


def make(rng, shape):
    size = shape[0] * shape[1]
    pixel = np.flatnonzero(rng.random(size) < 0.2).astype(np.int32)
    pixel = pixel if len(pixel) else np.array([size - 1], np.int32)
    return {
        "pixel": pixel,
        "height": np.exp(rng.normal(0, 2, len(pixel))).astype(np.float32),
        "star": rng.permutation(len(pixel))[: max(1, len(pixel) // 2)].astype(np.int32),
        "width": shape[1],
        "radius": [5.0, 3.7, 13.0][sum(shape) % 3],
        "share": 0.05,
    }
