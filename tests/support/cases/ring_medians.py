# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``ring_medians``: star fields smaller and larger than a window, equal values, bad pixels."""

import numpy as np

from cases.star_shapes import field

SHAPES = [(64, 64), (37, 53), (9, 120), (7, 5)]


def make(rng, shape):
    image, good, pixel = field(rng, shape)
    image[rng.random(shape) < 0.2] = 3
    return {"image": image, "good": good & np.isfinite(image), "pixel": pixel, "half": 16, "core": 3}
