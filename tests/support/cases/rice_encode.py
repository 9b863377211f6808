# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``rice_encode``: noise of every width, flat stretches, jumps over the whole range."""

import numpy as np

SHAPES = [(40, 200), (37, 53), (64, 64), (130, 257), (9, 33), (65, 31), (1, 1), (300, 300), (12, 640)]
TILES = [(1, 200), (1, 53), (16, 16), (100, 100), (1, 33), (7, 9), (1, 1), (300, 300), (1, 640)]
TYPES = [np.int32, np.int16, np.uint8]


def make(rng, shape):
    number = SHAPES.index(shape) if shape in SHAPES else 0
    kind = TYPES[number % 3]
    limits = np.iinfo(kind)
    spread = 2.0 ** rng.uniform(-2, 1 + limits.bits, (shape[0], 1))
    values = np.clip(rng.normal(0, spread, shape) + (100 if kind is np.uint8 else 0), limits.min, limits.max * 0.99)
    pixels = values.astype(kind)
    pixels[rng.random(shape) < 0.01] = limits.max
    pixels[rng.random(shape) < 0.01] = limits.min
    pixels[shape[0] // 2 :, : shape[1] // 2] = pixels[shape[0] // 2, 0]
    tile = TILES[number] if shape in SHAPES else (1, shape[1])
    count = -(-shape[0] // tile[0]) * -(-shape[1] // tile[1])
    return {"pixels": pixels, "tile": tile, "use": rng.random(count) < 0.9 if count > 3 else np.ones(count, bool)}
