# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``convolve_field``: every order, kernels larger than the image, sides that no tile divides."""

import numpy as np

SHAPES = [(64, 64), (37, 53), (131, 270), (3, 100), (301, 40)]
HOST = ("images", "u", "v")


def make(rng, shape):
    order = SHAPES.index(shape) if shape in SHAPES else 3
    kh, kw = (21, 23) if order != 1 else (5, 9)
    count = (order + 1) * (order + 2) // 2
    return {
        "plane": rng.normal(0, 1, shape).astype(np.float32),
        "images": rng.normal(0, 1, (count, kh, kw)) / np.sqrt(kh * kw * count),
        "u": (2 * np.arange(shape[1]) + 1) / shape[1] - 1,
        "v": (2 * np.arange(shape[0]) + 1) / shape[0] - 1,
        "order": order,
    }
