# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``subtract_lobes``: (side of the stamps, side of the PSFs) stands for the shape."""

import numpy as np

from skydelta.kernels.fit import spline_coefficients

SHAPES = [(21, 25), (31, 15), (3, 9), (33, 31)]
HOST = ("first", "lobes")
COUNT = 17


def make(rng, shape):
    side, p = shape
    weight = rng.uniform(-0.1, 1, (COUNT, side, side)).clip(0)
    first = np.concatenate([[0], np.cumsum(rng.integers(0, 4, COUNT))])
    reach = (side + p) / 2 + 1  # some have no light on the stamp
    at = rng.uniform(-reach, reach, (first[-1], 2))
    at[::5] = np.rint(at[::5])  # on the pixels, where the weights of one tap vanish
    return {
        "data": rng.normal(0, 1, weight.shape).astype(np.float32),
        "weight": weight.astype(np.float32),
        "psf": spline_coefficients(rng.normal(0, 1, (COUNT, p, p))),
        "first": first.astype(np.int32),
        "lobes": np.c_[rng.normal(0, 5, len(at)), at],
    }
