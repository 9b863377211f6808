# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the fused chain ``subtract_images``."""

import numpy as np


def make(rng, shape):
    planes = {
        n: rng.normal(10, 3, shape).astype(np.float32) for n in ("fixed", "convolved", "fixed_variance", "spread")
    }
    planes["fixed"][rng.random(shape) < 0.05] = np.nan
    planes["lost"] = rng.uniform(0, 0.1, shape).astype(np.float32)
    planes["leak"] = rng.exponential(1.0, shape).astype(np.float32)
    planes["good"] = rng.random(shape) < 0.9
    return planes | {"factor": -0.37, "factor2": 0.37**2, "most": 0.05, "limit": 0.3}
