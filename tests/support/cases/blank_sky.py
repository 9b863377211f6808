# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``blank_sky``: scores of noise, some unknown, sides that are no multiple of a block's."""

import numpy as np

SHAPES = [(64, 64), (37, 53), (5, 40), (3, 9), (129, 258)]


def make(rng, shape):
    score = rng.normal(0, 1, (shape[0] // 4, shape[1] // 4)).astype(np.float32)
    score[rng.random(score.shape) < 0.1] = np.nan
    return {"good": rng.random(shape) > 0.2, "score": score, "limit": 2.0}
