# SPDX-License-Identifier: BSD-3-Clause
"""Stars for the kernels of ``skydelta.kernels.psf``: (stars, side of the stamps) stands for the shape."""

import numpy as np

from skydelta.kernels.cpu.reference_psf import profile_stamps
from skydelta.kernels.polynomial import polynomial_terms

SHAPES = [(40, 33), (7, 25), (30, 15), (9, 57)]
ORDERS = [2, 1, 0, 0]
HOST = ("coefficients",)
SLOPE = 0.75


def field(rng, shape):
    """Spatial terms of the stars, coefficients of the profile and its width (px)."""
    count, side = shape
    order = ORDERS[SHAPES.index(shape)] if shape in SHAPES else 2
    phi = polynomial_terms(*rng.uniform(-1, 1, (2, count)), order).T.copy()
    fwhm = side / 8.3
    coefficients = rng.normal(0, 0.03, (3, phi.shape[1]))
    coefficients[0, 0] += np.log(fwhm)
    coefficients[1, 0] = 0.58  # the bound of e1 holds some stars
    return phi, coefficients, fwhm


def stars(rng, shape):
    """Arguments that the kernels share."""
    count, side = shape
    phi, coefficients, fwhm = field(rng, shape)
    profiles = profile_stamps(phi, coefficients, SLOPE, side)
    flux, sky, noise = rng.uniform(500, 4000, count), rng.normal(0, 1, count), rng.uniform(0.5, 2, count)
    usable = rng.random(profiles.shape) > 0.04
    values = flux[:, None, None] * (profiles + rng.normal(0, 0.003, profiles.shape)) + sky[:, None, None]
    values += noise[:, None, None] * rng.normal(0, 1, values.shape)
    values[~usable] = rng.normal(0, 1e3, (~usable).sum())
    usable[2] = False
    used = rng.random(count) > 0.2
    used[2] = False
    return {
        "values": values,
        "usable": usable,
        "kept": usable & (rng.random(usable.shape) > 0.03),
        "flux": flux * rng.uniform(0.9, 1.1, count),
        "sky": sky + rng.normal(0, 0.1, count),
        "noise": noise,
        "used": used,
        "phi": phi,
        "profiles": profiles,
        "coefficients": coefficients,
        "fwhm": fwhm,
    }


def chosen(rng, shape, names):
    """The arguments of these names."""
    made = stars(rng, shape)
    return {name: made[name] for name in names}
