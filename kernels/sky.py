# SPDX-License-Identifier: BSD-3-Clause
"""Sky level and noise of the blocks of an image whose variance nobody has stated.

On the host: it is part of reading, before a plane is sent to a device.
"""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu import sky as twins

LAG = 8
"""Distance of the pixel pairs whose difference gives the noise, px: beyond the correlation of resampled and smoothed
pixels; a quarter of a narrower block's width."""

SMOOTH = 1.0
"""Width (sigma, px) of the smoothing under which objects stand out of a block."""

STANDS_OUT = 4.0
"""Robust standard deviations of the smoothed block above its median that make an object.

At 3 the noise itself is cut, and what is left is 0.3 to 1 % too low (white, and smoothed by 1 px)."""

NEAR = 4
"""Pixels around those of an object that are not sky either."""

ENOUGH = 16
"""Pixels below which nothing is measured."""

SHARE = 0.1
"""And share of a block's pixels."""


def block_sky(image: np.ndarray, good: np.ndarray, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Median, and noise as a robust sigma, of blocks.

    The noise is that of differences of pixels up to `LAG` apart along a row, so that gradients do not count, both of
    them away from what stands out of the smoothed block. Where that leaves nothing, objects take part.

    Parameters
    ----------
    image : float32 (H, W)
    good : bool (H, W)
        Pixels to use; all finite.
    boxes : int (n, 4)
        First and last row, first and last column of each block, the last ones not in it.

    Returns
    -------
    sky, noise : float64 (n,)
        NaN where too few pixels are good.
    """
    sky, noise = np.full((2, len(boxes)), np.nan)
    weights = np.exp(-0.5 * (np.arange(-int(3 * SMOOTH), int(3 * SMOOTH) + 1) / SMOOTH) ** 2)
    settings = (LAG, STANDS_OUT, NEAR, ENOUGH, SHARE)
    twins.block_sky(image, good, boxes, weights / weights.sum(), settings, sky, noise)
    return sky, noise
