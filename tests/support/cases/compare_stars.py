# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``compare_stars``: (stars, side of the stamps) stands for the shape."""

from cases.psf_stamps import SHAPES, chosen

__all__ = ["SHAPES", "make"]


def make(rng, shape):
    given = chosen(rng, shape, ("values", "usable", "kept", "profiles", "phi", "noise", "fwhm"))
    noise, given["values"] = given.pop("noise"), given["values"].copy()
    given["values"][1, 4, 5] += 1e4  # a pixel to clip
    given["values"][3] -= 2 * given["values"][3]  # a negative star
    departure = rng.normal(0, 1e-4, (given["phi"].shape[1], *given["values"].shape[1:]))
    variance = noise[:, None, None] ** 2 * rng.uniform(0.8, 1.2, given["values"].shape)
    names = ("values", "variance", "usable", "kept", "profiles", "phi", "departure", "blurred", "fwhm")
    given |= {"variance": variance, "departure": departure, "blurred": 0.05 * variance}
    return {name: given[name] for name in names}
