# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``star_apertures``: centres anywhere in the window, up to its corners."""

from cases.star_shapes import HALF, field

SHAPES = [(64, 64), (37, 53), (9, 120), (7, 5)]


def make(rng, shape):
    image, good, pixel = field(rng, shape)
    centre = rng.uniform(-1, 1, (2, len(pixel)))
    centre[:, ::5] = rng.uniform(-HALF, HALF, centre[:, ::5].shape)
    centre[:, 0] = HALF
    return {
        "image": image, "good": good, "pixel": pixel, "centre": centre,
        "half": HALF, "aperture": 4.3, "core": 2.6,
    }  # fmt: skip
