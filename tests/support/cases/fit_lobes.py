# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``fit_lobes``: (side of the stamps, lobes, terms of the background if not 1) is the shape."""

import numpy as np
from support_sources import gaussian

from skydelta.kernels.fit import spline_coefficients

SHAPES = [(21, 1), (15, 1), (21, 2), (25, 2), (15, 1, 0), (21, 1, 3), (21, 2, 0), (19, 2, 3)]
HOST = ("psf", "start", "stamp")
UNCOMPARED = ("result.3",)  # evaluations: each optimiser needs as many as it needs
COUNT = 24


def make(rng, shape):
    side, lobes, terms = (*shape, 1)[:3]
    sigma = rng.uniform(1.3, 1.7, COUNT)
    psf = np.stack([gaussian(27, 0.2, -0.1, s) for s in sigma])
    psf += 0.02 * psf.max() * rng.random(psf.shape)  # no symmetry, nothing that is zero by luck
    angle, middle = rng.uniform(0, 2 * np.pi, COUNT), rng.uniform(-0.5, 0.5, (COUNT, 2))
    half = (1.5 if lobes == 2 else 0) * sigma[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    at = np.stack([middle + half, middle - half][:lobes], 1)
    flux = rng.uniform(300, 900, (COUNT, lobes)) * np.array([1, -1])[:lobes]
    data = rng.normal(2 if terms else 0, 1, (COUNT, side, side))
    if terms == 3:
        data += 0.1 * np.arange(side) - 0.3 * np.arange(side)[:, None]
    for k in range(COUNT):
        for f, (x, y) in zip(flux[k], at[k], strict=True):
            data[k] += f * gaussian(side, x + 0.2, y - 0.1, sigma[k])
    weight = rng.uniform(0.5, 1.5, data.shape)
    weight[rng.random(data.shape) < 0.03] = 0
    weight[3] = 0
    stamp = rng.permutation(COUNT)
    return {
        "data": np.where(weight > 0, data, 0).astype(np.float32),
        "weight": weight.astype(np.float32),
        "psf": spline_coefficients(psf),
        "start": (at + rng.uniform(-0.4, 0.4, at.shape))[stamp],
        "stamp": stamp,
        "terms": terms,
    }
