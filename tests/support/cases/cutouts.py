# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``cutouts``: windows inside, across and outside the frame of planes of several types."""

import numpy as np

SHAPES = [(64, 64), (37, 53), (5, 200), (90, 3)]
KINDS = [(np.float32, np.nan), (np.int32, -1), (bool, False), (np.float64, 0)]


def make(rng, shape):
    kind, outside = KINDS[SHAPES.index(shape) if shape in SHAPES else 0]
    h, w = shape
    middle = np.stack([rng.integers(-9, h + 9, 70), rng.integers(-9, w + 9, 70)]).astype(np.int32)
    middle[:, :2] = [[1 << 30, 2], [3, -(1 << 30)]]
    return {"plane": rng.normal(0, 5, shape).astype(kind), "middle": middle, "half": 6, "outside": kind(outside)}
