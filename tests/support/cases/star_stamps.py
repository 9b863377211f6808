# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``star_stamps``: (stars, half-size of the stamps) stands for the shape."""

import numpy as np

SHAPES = [(30, 12), (7, 16), (5, 4)]
HOST = ("x", "y")
FRAME = (97, 113)


def make(rng, shape):
    count, half = shape
    image = rng.normal(0, 3, FRAME).astype(np.float32) + np.float32(10)
    variance = rng.uniform(5, 10, FRAME).astype(np.float32)
    mask = np.where(rng.random(FRAME) < 0.02, 3, 0).astype(np.int32) | np.where(rng.random(FRAME) < 0.3, 4, 0)
    image[rng.random(FRAME) < 0.01] = np.nan
    variance[rng.random(FRAME) < 0.01] = rng.choice([np.nan, np.inf, 0, -1])
    x, y = rng.uniform(-0.4, FRAME[1] - 0.6, count), rng.uniform(-0.4, FRAME[0] - 0.6, count)  # some at the edge
    x[1], y[1] = 50.0, 40.0  # no shift
    mask[30:50, 70:90] = 1  # nothing usable
    x[2], y[2] = 80.2, 40.3
    planes = (None, None) if count == 7 else (variance, mask.astype(np.int32))
    return {"image": image, "variance": planes[0], "mask": planes[1], "invalid": 3, "x": x, "y": y, "half": half}
