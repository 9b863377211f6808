# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``resample_drizzle``: those of ``resample_exact``, with drops of every size."""

from cases import resample_exact

SHAPES = resample_exact.SHAPES


def make(rng, shape):
    number = SHAPES.index(shape) if shape in SHAPES else int(rng.integers(5))
    return resample_exact.make(rng, shape) | {"pixfrac": (0.6, 1.0, 0.35, 0.8, 0.9)[number]}
