# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``robust_levels``: the number of values and of NaN stands for the shape; some are equal."""

import numpy as np

SHAPES = [(64, 0), (101, 7), (1, 3), (2, 0), (0, 5), (3, 1), (4096, 100)]


def make(rng, shape):
    values = np.exp(rng.normal(0, 1, shape[0])).astype(np.float32) - np.float32(2)
    values[rng.random(shape[0]) < 0.3] = 1.5
    ascending = np.append(np.sort(values), np.full(shape[1], np.nan, np.float32))
    return {"ascending": ascending, "times": 8.0, "least": [0.0, 1.0][sum(shape) % 2]}
