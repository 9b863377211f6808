# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the fused chain ``doubt``."""

import numpy as np


def make(rng, shape):
    image = rng.normal(0, 100, shape).astype(np.float32)
    image[rng.random(shape) < 0.1] = np.inf
    return {
        "good": rng.random(shape) < 0.5,
        "filled": rng.normal(0, 100, shape).astype(np.float32),
        "image": image,
        "mask": rng.integers(0, 4, shape).astype(np.int32),
        "saturated": 2,
        "hidden": 30.0,
    }
