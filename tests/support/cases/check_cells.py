# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``check_cells``: ``shape`` cells of a bent map with a jump, places without a map, cells
outside the source, or a shift by whole pixels."""

import numpy as np

SHAPES = [(33, 47), (64, 64), (1, 1), (7, 5), (3, 130), (2, 65), (5, 300)]


def make(rng, shape):
    number = SHAPES.index(shape) if shape in SHAPES else int(rng.integers(7))
    spacing = (8, 16, 32)[number % 3]
    y, x = (np.indices([2 * n + 5 for n in shape]) - 2) * spacing / 2
    height, width = (n * spacing for n in shape)
    if number == 3:
        points = np.stack([x + 4.0, y - 3.0]) + rng.uniform(-4e-5, 4e-5, (2, *x.shape))
    else:
        bend = rng.uniform(1e-10, 3e-9, (2, 1, 1)) * (1 + (x > 0.6 * width))
        points = np.stack([1.01 * x - 0.2 * y + bend[0] * x**3, 0.2 * x + 0.99 * y + bend[1] * x * y**2 - 7.3])
        points[0, y > 0.8 * height] += 55.0
        points[:, (x < 0.3 * width) & (y < 0.2 * height)] = np.nan
        points[:, rng.random(x.shape) < 2e-3] = np.nan
    return {"points": points, "spacing": spacing, "source_shape": (int(0.7 * height) + 1, int(0.8 * width) + 1),
            "tolerance": 1e-4, "goal": 1e-6, "smooth": number != 4}  # fmt: skip
