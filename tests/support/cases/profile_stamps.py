# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``profile_stamps``: (stars, side of the stamps) stands for the shape."""

from cases.psf_stamps import HOST, SHAPES, SLOPE, field

__all__ = ["HOST", "SHAPES", "make"]


def make(rng, shape):
    phi, coefficients, _ = field(rng, shape)
    return {"phi": phi, "coefficients": coefficients, "slope": SLOPE, "side": shape[1]}
