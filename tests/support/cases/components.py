# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``components``: near the percolation threshold, where components are long and winding."""

import numpy as np

SHAPES = [(64, 64), (37, 53), (1, 40), (5, 1), (2, 2), (129, 257)]


def make(rng, shape):
    image = rng.normal(0, 1, shape).astype(np.float32)
    image[rng.random(shape) < 0.02] = np.nan
    return {"image": image, "threshold": 0.3}
