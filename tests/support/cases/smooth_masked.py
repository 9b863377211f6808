# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``smooth_masked``: noise, bad pixels that hold anything, narrow and wide filters."""

import numpy as np

from skydelta.kernels.convolve import gaussian_taps

SHAPES = [(64, 64), (37, 53), (1, 70), (130, 3), (97, 129), (5, 9)]
HOST = ("taps",)


def make(rng, shape):
    image = rng.normal(0, 30, shape).astype(np.float32)
    good = rng.random(shape) > 0.05
    image[~good] = rng.choice([np.nan, np.inf, 1e30], (~good).sum())
    return {"image": image, "good": good, "taps": gaussian_taps([1.2, 3.0, 8.0][sum(shape) % 3])}
