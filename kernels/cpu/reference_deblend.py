# SPDX-License-Identifier: BSD-3-Clause
"""Plain reference of the peak tree: footprints labelled anew at every level of their light."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import label as connected

EIGHT = np.ones((3, 3), bool)


def peaks_that_count(
    light: np.ndarray, footprint: np.ndarray, noise: np.ndarray, significance: float
) -> list[tuple[int, int]]:
    """(y, x) of the objects of one footprint (bool (H, W)) for no contrast, in raster order; no equal pixels."""
    values = np.sort(light[footprint])
    counted: set[tuple[int, int]] = set()
    for level in values[::-1]:
        # just above the saddle the branches are apart, with the saddle itself they are one
        apart, n = connected(footprint & (light > level), EIGHT)
        joined, _ = connected(footprint & (light >= level), EIGHT)
        here = joined[footprint & (light == level)][0]
        tops = []
        for k in range(1, n + 1):
            branch = apart == k
            if (joined[branch] == here).any():
                top = np.unravel_index(np.argmax(np.where(branch, light, -np.inf)), light.shape)
                tops.append((light[top], top, any(branch[p] for p in counted)))
        tops.sort(key=lambda t: -t[0])
        for peak, top, several in tops[1:]:
            if several or peak - level > significance * noise[top]:
                counted.add((int(top[0]), int(top[1])))
    brightest = np.unravel_index(np.argmax(np.where(footprint, light, -np.inf)), light.shape)
    return sorted(counted | {(int(brightest[0]), int(brightest[1]))})
