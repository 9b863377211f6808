# SPDX-License-Identifier: BSD-3-Clause
"""A kernel that an earlier run has fitted: does it belong to this pair, and how well does it do."""

from __future__ import annotations

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord

from skydelta.errors import InputError
from skydelta.io.exposure import Exposure
from skydelta.io.matchkernel import MatchKernel
from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.stages.base import Context
from skydelta.stages.detect import sky_positions
from skydelta.stages.match.stamps import Selection, Stamps


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


def stamp_chi2(kernel: MatchKernel, stamps: Stamps, at: Selection, weight: Array) -> np.ndarray:
    """chi2 per pixel of each stamp, with the kernel at its middle: float64 (n,) on the host.

    Parameters
    ----------
    stamps : Stamps
        With a margin of at least half the kernel.
    weight : float32 (n, m, m)
        Inverse variance of the difference.
    """
    backend = backend_of(stamps.broad)
    xp, fft, (h, w) = backend.xp, backend.fft, kernel.shape
    m, pad = stamps.broad.shape[1], max(h, w) // 2
    sharp = stamps.within(pad).astype(np.float64)
    side = fft.next_fast_len(sharp.shape[1] + 2 * pad, True)
    kernels = backend.asarray(kernel.render(at.x, at.y))
    full = fft.irfft2(fft.rfft2(sharp, (side, side)) * fft.rfft2(kernels, (side, side)), (side, side))
    j, i = pad + h // 2, pad + w // 2
    o = np.arange(m) - m // 2
    x, y = np.broadcast_arrays(at.x[:, None, None] + o, at.y[:, None, None] + o[:, None])
    left = stamps.broad - full[:, j : j + m, i : i + m] - backend.asarray(kernel.background_at(x, y))
    return to_host((weight * left * left).sum(axis=(1, 2)) / xp.maximum((weight > 0).sum(axis=(1, 2)), 1))
