# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``block_scores``: blocks without a usable pixel, sides that are no multiple of a block's."""

import numpy as np

SHAPES = [(64, 64), (37, 53), (5, 40), (3, 9), (129, 258)]


def make(rng, shape):
    image = rng.normal(0, 3, shape).astype(np.float32)
    good = rng.random(shape) > 0.2
    good[: shape[0] // 3, shape[1] // 2 :] = False
    image[~good & (rng.random(shape) < 0.5)] = np.nan
    return {"image": image, "good": good, "sigma": rng.uniform(2, 4, (3, 2)).astype(np.float32)}
