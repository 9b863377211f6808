# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``usable_pixels``: odd sides, single and double precision, with and without further planes."""

import numpy as np

SHAPES = [(64, 64), (37, 53), (1, 3), (129, 257)]


def make(rng, shape):
    number = SHAPES.index(shape) if shape in SHAPES else 0
    image, variance = (rng.normal(1, 1, shape).astype(np.float64 if number == 1 else np.float32) for _ in range(2))
    for plane in (image, variance):
        plane[rng.random(shape) < 0.2] = rng.choice([np.nan, np.inf, -np.inf, 0])
    mask = rng.choice([0, 0, 0, 1, 2, 4, 1 << 30], shape).astype(np.int32)
    planes = {"variance": None if number == 3 else variance, "mask": None if number == 2 else mask}
    return {"image": image, **planes, "invalid": 1 << 30 | 4}
