# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``pixel_departure``: (stars, side of the stamps) stands for the shape."""

from cases.psf_stamps import SHAPES, chosen

__all__ = ["SHAPES", "make"]


def make(rng, shape):
    given = chosen(rng, shape, ("values", "kept", "profiles", "flux", "sky", "noise", "used", "phi"))
    given["kept"][:, 1, 2] = False  # a pixel that no star sees
    return given
