# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``cell_statistics``: noise with sources, quantised, constant and empty cells."""

import numpy as np

SHAPES = [(128, 192), (101, 67), (33, 300), (64, 64), (1, 40), (300, 260)]
SIZES = [32, 24, 64, 64, 8, 128]


def make(rng, shape):
    number = SHAPES.index(shape) if shape in SHAPES else 0
    image = rng.normal(0, 3, shape).astype(np.float32) + np.float32(30000 if number % 2 else 0)
    image[rng.random(shape) < 0.05] += rng.exponential(500)
    if min(shape) > 30:
        image[:30, :20] = np.round(image[:30, :20])
        image[-30:, -30:] = 7.5
        image[rng.random(shape) < 0.01] = rng.choice([np.nan, np.inf, -np.inf])
    good = rng.random(shape) > 0.2
    good[: shape[0] // 3, shape[1] // 2 :] = False
    return {"image": image, "good": good, "size": SIZES[number]}
