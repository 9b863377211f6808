# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``fill_masked``: bad pixels that hold NaN, holes wider than the Gaussian, a tile without any."""

import numpy as np

SHAPES = [(64, 64), (37, 53), (131, 170), (3, 100), (1, 1)]


def make(rng, shape):
    good = rng.random(shape) > 0.02
    good[10:70, :50] = False
    good[:, 2 * shape[1] // 3 :] = True
    image = rng.normal(0, 1, shape).astype(np.float32)
    image[~good] = np.nan
    return {
        "image": image,
        "variance": rng.uniform(1, 2, shape).astype(np.float32),
        "good": good,
        "sigma": 3.0,
    }
