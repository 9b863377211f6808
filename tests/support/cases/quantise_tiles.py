# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``quantise_tiles``: sky with sources, NaN, exact zeros, and tiles that cannot be quantised."""

import numpy as np

SHAPES = [(40, 200), (37, 53), (64, 64), (130, 257), (33, 11000), (5, 4), (300, 300)]
TILES = [(1, 200), (1, 53), (16, 16), (100, 100), (1, 11000), (1, 4), (300, 300)]


def make(rng, shape):
    number = SHAPES.index(shape) if shape in SHAPES else 0
    kind = np.float64 if number % 3 == 2 else np.float32
    image = rng.normal(200, 7, shape).astype(kind)
    image[rng.random(shape) < 0.02] += 5e4
    if kind is np.float64:
        image[-20:] *= 1e37
        image[-10:] *= 1e262
    third = shape[0] // 3
    image[:third][rng.random((third, shape[1])) < 0.1] = np.nan
    image[third : 2 * third][rng.random((third, shape[1])) < 0.1] = 0
    if number == 1:
        image[-1], image[-2], image[-3, ::7], image[-4] = 5, np.nan, -np.inf, 0
        image[-5, 3], image[-6] = 3e38, image[-6] * 1e-38
        image[-7, :40] = np.nan
    tile = TILES[number] if shape in SHAPES else (1, shape[1])
    return {"image": image, "tile": tile, "level": 4.0 + number, "seed": 1 + 2857 * number % 10000}
