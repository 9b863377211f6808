# SPDX-License-Identifier: BSD-3-Clause
"""The proper difference of two aligned exposures with PSFs, by `skydelta.kernels.zogy`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skydelta.io.convolved import doubt
from skydelta.io.exposure import Exposure
from skydelta.io.matchkernel import MatchKernel
from skydelta.io.psf import GridPsf
from skydelta.kernels.backend import Array, to_host
from skydelta.kernels.convolve import fill_masked
from skydelta.kernels.core.tiles import TileGrid
from skydelta.kernels.significance import Planes
from skydelta.kernels.zogy import TileValues, proper_image
from skydelta.stages.difference.score import TILE, sky_levels


@dataclass(frozen=True)
class Proper:
    """Planes (H, W) in science units: D and its variance and S_corr (NaN where unusable), and where filters reach bad
    pixels of each image; P_D."""

    image: Array
    variance: Array
    score: Array
    usable: Array
    reached_science: Array
    reached_reference: Array
    psf: GridPsf
    reach: int


def proper_difference(
    science: Exposure,
    reference: Exposure,
    kernel: MatchKernel,
    correlations: tuple[np.ndarray | None, np.ndarray | None],
    lost_weight: float,
    leak: float,
    shift_error: float,
) -> Proper:
    """ZOGY with the PSFs of both, the flux scale and background of the kernel.

    Parameters
    ----------
    correlations
        Noise correlation of science and reference by lag; None is white.
    lost_weight, leak : float
        As the settings of `difference`.
    shift_error : float
        Registration error of an axis, px.
    """
    assert science.psf is not None and reference.psf is not None
    backend, shape = science.backend, science.shape
    xp = backend.xp
    forward = kernel.direction == "reference"
    background = kernel.domain.plane(backend, shape, kernel.background, kernel.background_order)
    parts = []
    for exposure, offset in ((science, forward), (reference, not forward)):
        good = exposure.good()
        filled, variance = fill_masked(exposure.image, exposure.variance, good)
        wrong = doubt(exposure, filled, good)
        # the background between the images is in the unit of the one that is not convolved
        parts.append((filled - background if offset else filled, variance, ~good, wrong))
    grid = TileGrid(shape, TILE)
    x, y = grid.centres()
    sums = kernel.sums(x, y)
    good_science, good_reference = ~parts[0][2], ~parts[1][2]
    both = good_science & good_reference
    levels = to_host(
        sky_levels(
            Planes(science.image, science.variance, reference.variance, both, good_science, good_reference, 1.0),
            grid,
            0,
        )
    )
    half = min(science.psf.shape[0], reference.psf.shape[0]) // 2
    values = TileValues(
        science.psf.render(x, y), reference.psf.render(x, y), 1 / sums if forward else sums, levels[0], levels[1],
        *correlations, shift_error,
    )  # fmt: skip
    reach = max(*science.psf.shape, *reference.psf.shape) // 2
    grid = TileGrid(shape, TILE, 2 * reach)
    planes = [a.astype(np.float32) for pair in zip(*parts, strict=True) for a in pair]
    (image, variance, score, lost_science, lost_reference, leak2), psfs = proper_image(
        tuple(planes), values, grid, half
    )
    reached = [~(a <= np.float32(lost_weight)) for a in (lost_science, lost_reference)]
    usable = both & ~(reached[0] | reached[1] | (leak2 > np.float32(leak**2) * variance)) & (variance > 0)
    nan, nx = np.float32(np.nan), grid.counts[1]
    image, variance, score = (xp.where(usable, a, nan) for a in (image, variance, score))
    psf = GridPsf(psfs.reshape(*grid.counts, *psfs.shape[1:]), x[:nx], y[::nx])
    return Proper(image, variance, score, usable, reached[0], reached[1], psf, reach)
