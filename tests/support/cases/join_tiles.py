# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``join_tiles``: tiles of unequal sides, factors that are not positive."""

import numpy as np

SHAPES = [(64, 64), (37, 53), (131, 70), (3, 100)]
HOST = ("rows", "columns")


def make(rng, shape):
    pad, size = 5, 42
    rows, columns = (np.array([n * i // -(-n // 32) for i in range(-(-n // 32) + 1)]) + 11 for n in shape)
    stack = ((len(rows) - 1) * (len(columns) - 1), size, size)
    names = ("whitened", "variance", "exact", "weight", "plain", "signal")
    values = {name: rng.normal(2, 1, stack).astype(np.float32) for name in names}
    for name in ("exact", "weight", "plain"):
        values[name] = np.where(values[name] > 0.1, values[name], -1).astype(np.float32)
    return {**values, "usable": rng.random(stack) < 0.9, "rows": rows, "columns": columns, "pad": pad}
