# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``spline_coefficients``: height and width of the PSF stamps stand for the shape."""

SHAPES = [(25, 25), (31, 41), (2, 3), (1, 5), (101, 7)]


def make(rng, shape):
    return {"psf": rng.normal(0, 1, (9, *shape))}
