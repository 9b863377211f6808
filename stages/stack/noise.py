# SPDX-License-Identifier: BSD-3-Clause
"""The noise correlation of a stack, of those of its exposures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from skydelta.io.correlation import NoiseCorrelation
from skydelta.kernels.core.tiles import Box
from skydelta.stages.align.correlation import tile_side


def tile_means(plane: np.ndarray, box: Box, shape: tuple[int, int]) -> np.ndarray:
    """Means, float64 (ny, nx), over tiles of a target (H, W) of a plane that fills a box of it and is 0 elsewhere."""
    side = tile_side(shape)
    out = np.zeros((-(-shape[0] // side), -(-shape[1] // side)))
    for i in range(box.y0 // side, -(-box.y1 // side)):
        y0, y1 = max(i * side, box.y0), min((i + 1) * side, box.y1)
        for j in range(box.x0 // side, -(-box.x1 // side)):
            x0, x1 = max(j * side, box.x0), min((j + 1) * side, box.x1)
            total = plane[y0 - box.y0 : y1 - box.y0, x0 - box.x0 : x1 - box.x0].sum(dtype=float)
            out[i, j] = total / (min(side, shape[0] - i * side) * min(side, shape[1] - j * side))
    return out


def joined(parts: Sequence[NoiseCorrelation], shares: Sequence[np.ndarray]) -> NoiseCorrelation:
    """The correlation of a weighted sum of independent exposures.

    Parameters
    ----------
    parts : sequence of NoiseCorrelation
        Of the exposures, on the same tiles.
    shares : sequence of float64 (ny, nx)
        What each adds to the variance of the sum.
    """
    total, weight = np.zeros_like(parts[0].moments), np.zeros(parts[0].moments.shape[1:])
    for part, share in zip(parts, shares, strict=True):
        known = np.isfinite(part.moments[0])
        total += np.where(known, share * part.moments, 0.0)
        weight += np.where(known, share, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return NoiseCorrelation(total / weight, parts[0].side)
