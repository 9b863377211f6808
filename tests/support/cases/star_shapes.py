# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``star_shapes``: stars off their pixels, some cut, spoilt, faint, negative or missing."""

import numpy as np
from support_sources import gaussian

SHAPES = [(64, 64), (37, 53), (9, 120), (7, 5)]
HALF = 7


def field(rng, shape):
    """An image with a star near most of the pixels that are returned: image, good, pixel."""
    count = 40
    image = rng.normal(0, 0.5, shape)
    at = np.stack([rng.integers(0, n, count) for n in shape])
    for y, x in at.T[:-4]:
        dx, dy = rng.uniform(-0.7, 0.7, 2)
        stamp = rng.choice([60, 600, 6000, -600]) * gaussian(31, dx, dy, rng.uniform(0.6, 2.5))
        rows, columns = (slice(max(c - 15, 0), min(c + 16, n)) for c, n in zip((y, x), shape, strict=True))
        image[rows, columns] += stamp[
            rows.start - y + 15 : rows.stop - y + 15, columns.start - x + 15 : columns.stop - x + 15
        ]
    good = rng.random(shape) > 0.03
    image[~good] = np.nan
    return image.astype(np.float32), good, (at[0] * shape[1] + at[1]).astype(np.int32)


def make(rng, shape):
    image, good, pixel = field(rng, shape)
    # nothing but unusable pixels around the last one of a large image
    if min(shape) > 4 * HALF:
        y, x = divmod(int(pixel[-1]), shape[1])
        good[max(y - HALF, 0) : y + HALF + 1, max(x - HALF, 0) : x + HALF + 1] = False
    return {"image": image, "good": good, "pixel": pixel, "half": HALF, "core": 2, "sigma": 1.6}
