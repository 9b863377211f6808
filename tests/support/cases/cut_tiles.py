# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``cut_tiles``: windows that begin before the image and end behind it."""

import numpy as np

SHAPES = [(64, 64), (37, 53), (131, 70), (3, 100)]
HOST = ("rows", "columns")


def make(rng, shape):
    planes = {name: rng.normal(10, 1, shape).astype(np.float32) for name in ("difference", "fixed", "moved")}
    for plane in planes.values():
        plane[rng.random(shape) < 0.1] = np.nan
    good = {name: rng.random(shape) < 0.9 for name in ("usable", "good_fixed", "good_moved")}
    for name, plane in zip(good, planes.values(), strict=True):
        good[name] &= np.isfinite(plane)
    rows, columns = (np.arange(0, n, 30) - 7 for n in shape)
    return {**planes, **good, "rows": rows, "columns": columns, "size": 44, "scale": 0.7}
