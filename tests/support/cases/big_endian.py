# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``big_endian``: random words; the shape says how many, and the bytes of a pixel."""

import numpy as np

SHAPES = [(1, 1), (70001, 1), (131074, 2), (5, 2), (200003, 4), (65536, 4), (131074, 8), (2, 8)]


def make(rng, shape):
    count, size = shape if shape in SHAPES else (shape[0] * shape[1], 4)
    return {"words": rng.integers(0, 2**32, count, np.uint32), "size": size, "flip": count % 2 == 0}
