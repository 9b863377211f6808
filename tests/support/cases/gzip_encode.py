# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``gzip_encode``: noise, flat stretches, repeats at every length, codes of too many bits."""

import numpy as np

SHAPES = [(40, 200), (37, 53), (64, 64), (130, 257), (9, 33), (65, 31), (1, 1), (300, 300), (3, 17_000)]
TILES = [(1, 200), (1, 53), (16, 16), (100, 100), (1, 33), (7, 9), (1, 1), (300, 300), (1, 17_000)]
TYPES = [np.float32, np.int16, np.uint8, np.float64, np.int32]


def make(rng, shape):
    number = SHAPES.index(shape) if shape in SHAPES else sum(shape)
    kind = np.dtype(TYPES[number % len(TYPES)])
    if kind.kind == "f":
        pixels = rng.normal(0, 2.0 ** rng.uniform(-3, 20, (shape[0], 1)), shape).astype(kind)
        pixels[rng.random(shape) < 0.01] = np.nan
        pixels[:: 1 + shape[0] // 5] = np.nan if number % 2 else 0
    else:
        pixels = (rng.geometric(0.3, shape) ** 2).astype(kind)
        pixels[rng.random(shape) < 0.02] = np.iinfo(kind).min
        pixels[shape[0] // 3 :: 4, : shape[1] // 2] = 7
    if shape[1] > 1000:  # the counts of the bytes of the first row are Fibonacci's: codes beyond 15 bits
        row = np.repeat(np.arange(20), [_fibonacci(k) for k in range(20)])[: shape[1]]
        pixels = np.zeros(shape, np.uint8)
        pixels[0, : len(row)] = rng.permutation(row)
        pixels[1] = rng.integers(0, 256, shape[1])
        pixels[2, 5::261] = 1
    tile = TILES[SHAPES.index(shape)] if shape in SHAPES else (1, shape[1])
    count = -(-shape[0] // tile[0]) * -(-shape[1] // tile[1])
    use = rng.random(count) < 0.9 if count > 3 else np.ones(count, bool)
    return {"pixels": pixels, "tile": tile, "use": use, "shuffle": bool(number % 3)}


def _fibonacci(k):
    a, b = 1, 1
    for _ in range(k):
        a, b = b, a + b
    return a
