# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``light_peaks``: noise, plateaus, peaks at the border, zero and bad variance, or none at all."""

import numpy as np

SHAPES = [(64, 64), (37, 53), (1, 40), (5, 1), (2, 2), (129, 257)]


def make(rng, shape):
    light = rng.normal(0, 2, shape).astype(np.float32)
    light[rng.random(shape) < 0.2] = 4
    good = rng.random(shape) > 0.03
    light[~good] = 0
    variance = rng.uniform(0.5, 2, shape).astype(np.float32)
    variance[rng.random(shape) < 0.02] = 0
    variance[~good] = np.nan
    return {
        "light": light,
        "good": good,
        "variance": variance if shape[0] % 2 else None,
        "gain": 0.7,
        "limit": np.array([1.5], np.float32),
        "radius": 1 + sum(shape) % 4,
    }
