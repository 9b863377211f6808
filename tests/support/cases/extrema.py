# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``extrema``: noise, plateaus of equal values, NaN, both signs, extremes at the border."""

import numpy as np

SHAPES = [(64, 64), (37, 53), (1, 40), (5, 1), (2, 2), (129, 257)]


def make(rng, shape):
    image = rng.normal(0, 2, shape).astype(np.float32)
    image[rng.random(shape) < 0.3] = 3
    image[rng.random(shape) < 0.2] = -3
    image[rng.random(shape) < 0.02] = np.nan
    return {"image": image, "threshold": 1.5}
