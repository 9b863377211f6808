# SPDX-License-Identifier: BSD-3-Clause
"""The sky of blocks in plain NumPy and SciPy."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import binary_dilation, gaussian_filter

from skydelta.kernels.sky import ENOUGH, LAG, NEAR, SHARE, SMOOTH, STANDS_OUT


def block_sky(image: np.ndarray, good: np.ndarray, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found = [_block(image[a:b, c:d].astype(float), good[a:b, c:d]) for a, b, c, d in boxes]
    sky, noise = np.array(found).T
    return sky, noise


def _block(part: np.ndarray, ok: np.ndarray) -> tuple[float, float]:
    if ok.sum() < max(SHARE * part.size, ENOUGH):
        return np.nan, np.nan
    level = np.median(part[ok])
    smooth = gaussian_filter(np.where(ok, part - level, 0), SMOOTH, truncate=3)
    spread = 1.4826 * np.median(np.abs(smooth[ok]))
    objects = binary_dilation(smooth > STANDS_OUT * spread, np.ones((3, 3), bool), iterations=NEAR)
    noise, lag = np.nan, max(min(LAG, part.shape[1] // 4), 1)
    for use in (ok & ~objects, ok):
        d = (part[:, lag:] - part[:, :-lag])[use[:, lag:] & use[:, :-lag]]
        if d.size >= ENOUGH:
            noise = 1.4826 * np.median(np.abs(d - np.median(d))) / np.sqrt(2)
            break
    return float(level), float(noise)
