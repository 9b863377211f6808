# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``linear_dipole``: (side of the stamps, terms of the background) stands for the shape."""

import numpy as np
from support_sources import gaussian

from skydelta.kernels.fit import spline_coefficients

SHAPES = [(15, 1), (21, 3), (27, 1), (21, 0)]
HOST = ("psf", "start", "width", "stamp")
COUNT = 24


def light(side, x, y, sigma):
    """A PSF without symmetry, but smooth: roughness between pixels makes minima of its own."""
    return gaussian(side, x, y, sigma) + 0.3 * gaussian(side, x + 0.8, y - 0.5, 1.3 * sigma)


def make(rng, shape):
    side, terms = shape
    sigma = rng.uniform(1.3, 1.7, COUNT)
    angle, middle = rng.uniform(0, 2 * np.pi, COUNT), rng.uniform(-0.5, 0.5, (COUNT, 2))
    half = 0.15 * sigma[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    data = rng.normal(2 if terms else 0, 0.03, (COUNT, side, side))
    for k in range(COUNT):
        flux = rng.uniform(30, 60)
        for share, (x, y) in ((1.0, middle[k] + half[k]), (-0.5, middle[k] - half[k])):
            data[k] += share * flux * light(side, x, y, sigma[k])
    weight = rng.uniform(600, 1600, data.shape)
    weight[rng.random(data.shape) < 0.03] = 0
    weight[3] = 0
    stamp = rng.permutation(COUNT)
    return {
        "data": np.where(weight > 0, data, 0).astype(np.float32),
        "weight": weight.astype(np.float32),
        "psf": spline_coefficients(np.stack([light(27, 0, 0, s) for s in sigma])),
        "start": (middle + rng.uniform(-0.2, 0.2, middle.shape))[stamp],
        "width": sigma[stamp],
        "stamp": stamp,
        "terms": terms,
    }
