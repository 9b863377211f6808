# SPDX-License-Identifier: BSD-3-Clause
"""A kernel that an earlier run has fitted: does it belong to this pair?"""

from __future__ import annotations

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord

from skydelta.errors import InputError
from skydelta.io.exposure import Exposure
from skydelta.io.matchkernel import MatchKernel
from skydelta.stages.base import Context
from skydelta.stages.detect import sky_positions


def corners_of(exposure: Exposure) -> np.ndarray | None:
    """ra, dec (degrees, ICRS) of the corner pixels, as in `MatchKernel.corners`: float64 (4, 2); None without a WCS."""
    if exposure.wcs is None:
        return None
    return np.stack(sky_positions(exposure, *_corner_pixels(exposure.shape)), axis=1)


def check_grid(ctx: Context, kernel: MatchKernel, science: Exposure, tolerance: float, convolve: str) -> None:
    """Is the kernel one for this grid?

    Parameters
    ----------
    tolerance : float
        Distance, px, that a corner of the kernel's field may have from that of the science image.
    convolve : {"auto", "reference", "science"}
        What was asked for.

    Raises
    ------
    InputError
        Another shape, another piece of sky or orientation, or the other image was asked to be convolved.
    """
    if kernel.domain.shape != science.shape:
        raise InputError(f"match: the stored kernel is for images of {kernel.domain.shape}, science is {science.shape}")
    if convolve not in ("auto", kernel.direction):
        raise InputError(f"match: the stored kernel convolves the {kernel.direction} image, convolve = {convolve!r}")
    if kernel.corners is None or science.wcs is None:
        missing = "the stored kernel has no sky positions" if kernel.corners is None else "the science image has no WCS"
        ctx.flag("kernel_grid_unchecked", f"{missing}: only the shape of its field was compared")
        return
    sky = SkyCoord(*kernel.corners.T, unit=u.deg, frame="icrs")
    off = np.hypot(*(np.array(science.wcs.world_to_pixel(sky)) - _corner_pixels(science.shape)))
    ctx.metric("kernel_grid_offset_px", float(off.max()))
    if not off.max() <= tolerance:
        raise InputError(
            f"match: the corners of the stored kernel's field are up to {off.max():.1f} px from those of the science "
            f"image (shifted, turned or another field); {tolerance:g} px is allowed",
            offset=float(off.max()),
        )


def _corner_pixels(shape: tuple[int, int]) -> np.ndarray:
    """x, y: float64 (2, 4)."""
    h, w = shape
    return np.array([[0, w - 1, 0, w - 1], [0, 0, h - 1, h - 1]], float)
