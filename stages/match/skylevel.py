# SPDX-License-Identifier: BSD-3-Clause
"""The differential background from the blank sky of the whole field."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from skydelta.io.field import polynomial_terms
from skydelta.io.matchkernel import MatchKernel
from skydelta.io.pairnoise import PairNoise
from skydelta.stages.background import fit_cells


def with_sky(kernel: MatchKernel, noise: PairNoise, order: int, pixels: int) -> MatchKernel:
    """The kernel with the background that blank sky has, where there is more of it than of pixels in the stamps.

    In a sparse field the stamps hold a fortieth of the sky. A background fitted to these alone adds its noise to the
    difference on the scale of the field, as much as the images' own noise leaves in squares of 64 px.

    Parameters
    ----------
    kernel : MatchKernel
        As fitted.
    noise : PairNoise
        Of the two images.
    order : int
        Of the background; it does not depend on how many stamps there are.
    pixels : int
        Pixels of the stamps in the fit.
    """
    sky = noise.sky
    if sky is None or sky.count.sum() <= pixels:
        return kernel
    gain = kernel.sums(sky.x, sky.y)
    fixed, moved, *sigma = sky.science, sky.reference, noise.sigma_science, noise.sigma_reference
    if kernel.direction == "science":
        fixed, moved, sigma = moved, fixed, sigma[::-1]
    terms = polynomial_terms(*kernel.domain.uv(sky.x, sky.y), order).T
    background = fit_cells(fixed - gain * moved, sky.count, np.hypot(sigma[0], gain * sigma[1]), terms)
    return replace(kernel, background=background, background_order=order)
