# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the fused chain ``weigh_tiles``: variances below the floor, which each tile has its own of."""

import numpy as np


def make(rng, shape):
    return {
        "whitened": rng.normal(0, 1, shape).astype(np.float32),
        "raw": rng.normal(1, 1, shape).astype(np.float32),
        "floor": rng.uniform(0.1, 0.5, shape[0]).astype(np.float32),
        "usable": rng.random(shape) < 0.8,
    }
