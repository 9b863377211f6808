# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``profile_sums``: (stars, side of the stamps) stands for the shape."""

from cases.psf_stamps import HOST, SHAPES, SLOPE, chosen

__all__ = ["HOST", "SHAPES", "make"]


def make(rng, shape):
    names = ("values", "kept", "flux", "sky", "noise", "used", "phi", "coefficients")
    given = chosen(rng, shape, names)
    given["coefficients"] = given["coefficients"] + rng.normal(0, 0.02, given["coefficients"].shape)
    given["kept"][given["used"].argmax()] = False
    return given | {"slope": SLOPE - 0.2, "reach": 2.5 * shape[1] / 8.3}
