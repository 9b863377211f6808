# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``resample_prepare``: scattered and large holes, bad variances, named bits."""

import numpy as np

SHAPES = [(96, 128), (51, 103), (33, 200), (1, 40), (7, 5), (2, 2)]
FILL, BAD, NO_DATA = 0b10001, 1, 16


def planes(rng, shape):
    """Image, variance and mask with about 3 % of the pixels unusable, and a hole wider than the filling window."""
    image = rng.normal(0, 1, shape).astype(np.float32)
    variance = rng.uniform(1, 3, shape).astype(np.float32)
    mask = np.where(rng.random(shape) < 0.03, 1 << rng.integers(0, 8, shape), 0).astype(np.int32)
    if min(shape) > 20:
        image[rng.random(shape) < 0.005] = np.nan
        variance[rng.random(shape) < 0.005] = rng.choice([0, -1, np.nan, np.inf])
        y, x = (int(rng.integers(0, n - 16)) for n in shape)
        image[y : y + 16, x : x + 16] = np.nan
    return image, variance, mask


def make(rng, shape):
    image, variance, mask = planes(rng, shape)
    degree = (3, 0, 5)[SHAPES.index(shape) % 3] if shape in SHAPES else 3
    return {
        "image": image, "variance": variance, "mask": mask, "degree": degree,
        "fill": FILL, "bad": BAD, "no_data": NO_DATA,
    }  # fmt: skip
