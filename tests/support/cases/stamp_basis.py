# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``stamp_basis``: (stamps, side of the result) stands for the shape."""

import numpy as np

SHAPES = [(7, 31), (1, 9), (65, 21)]
HOST = ("rows", "columns", "pairs")


def make(rng, shape):
    count, m = shape
    k = 11
    pairs = np.array([(i, j) for i in range(5) for j in range(6) if (i + j) % 2], np.int32)
    return {
        "stamps": rng.normal(0, 1, (count, m + k - 1, m + k - 1)).astype(np.float32),
        "rows": rng.normal(0, 1, (5, k)),
        "columns": rng.normal(0, 1, (6, k)),
        "pairs": pairs,
    }
