# SPDX-License-Identifier: BSD-3-Clause
"""The whitened difference and its signal-to-noise plane: one kernel, PSF and sky level for each tile."""

from __future__ import annotations

import numpy as np
from scipy.fft import next_fast_len

from skydelta.io.matchkernel import MatchKernel
from skydelta.io.psf import GridPsf, Psf, fwhm, on_device
from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.devices import DeviceSet
from skydelta.kernels.core.tiles import TileGrid
from skydelta.kernels.significance import Kernels, Planes, score_image

TILE = 256
"""Largest side of a tile: one kernel, PSF and sky level each, px."""

ACROSS = 8
"""At least this many tiles along the field while they are not smaller than `SMALLEST`."""

SMALLEST = 64

FILTER = 3.0
"""Half-size of the matched filter in FWHM."""

SAMPLES = 64
"""Samples of the sky level along a side of a tile, about."""


def score(
    planes: Planes,
    kernel: MatchKernel,
    psf: Psf,
    correlation_fixed: np.ndarray | None,
    correlation_moved: np.ndarray | None,
    devices: DeviceSet | None = None,
) -> tuple[Array, Array, Array, GridPsf, GridPsf]:
    """Whitened difference, its variance and S/N (float32 (H, W), NaN where unusable), the whitened PSF, and the filter
    that whitens each tile, on the device.

    Parameters
    ----------
    planes : Planes
    kernel : MatchKernel
    psf : Psf
        Of the difference.
    correlation_fixed, correlation_moved : (2 l + 1, 2 l + 1) or None
        Noise correlation of the two inputs by lag; None is white.
    devices : DeviceSet, optional
        Share the tiles.
    """
    shape = planes.difference.shape
    side = int(np.clip(-(-max(shape) // ACROSS), SMALLEST, TILE))
    grid = TileGrid(shape, side)
    x, y = grid.centres()
    middle, backend = len(grid) // 2, backend_of(planes.difference)
    kernels, psfs = kernel.render(x, y, backend), on_device(psf, backend).render(x, y)
    reach = int(np.ceil(FILTER * fwhm(psf.at(x[middle], y[middle]))))
    reach = min(reach, psfs.shape[-1] // 2)
    # the whitened PSF is cut at `reach`: its ingredients are needed a little further only
    beyond = max(psfs.shape[-1] // 2 - 2 * reach, 0)
    psfs = psfs[:, beyond : psfs.shape[1] - beyond, beyond : psfs.shape[2] - beyond]
    around = kernels.shape[-1] // 2 + 2 * reach
    fixed, moved = sky_levels(planes, grid, around)
    tiles = Kernels(kernels, psfs, fixed, moved, correlation_fixed, correlation_moved, reach)
    made, own, filters = score_image(planes, tiles, grid, devices)
    nodes = x[: grid.counts[1]], y[:: grid.counts[1]]
    return made[0], made[1], made[2], GridPsf(own, *nodes), GridPsf(filters, *nodes)


def sky_levels(planes: Planes, grid: TileGrid, around: int) -> Array:
    """Median variance of the usable pixels in and around each tile, of the fixed and the moved image: float64 (2, n).

    A tile without usable pixels gets the mean of the others: its output is NaN anyway.
    """
    backend = backend_of(planes.difference)
    xp, samples, inside = backend.xp, [], []
    for axis, length in enumerate(grid.shape):
        edges = np.array(grid.edges(axis))
        starts, window = edges[:-1], next_fast_len(int(np.diff(edges).max()) + 2 * around, True)
        at = starts[:, None] - around + np.arange(0, window, max(1, window // SAMPLES))
        inside.append(backend.asarray((at >= 0) & (at < length)))
        samples.append(backend.asarray(np.clip(at, 0, length - 1) * (1 if axis else grid.shape[1])))
    place = samples[0][:, None, :, None] + samples[1][None, :, None, :]
    good = planes.usable.ravel().take(place) & inside[0][:, None, :, None] & inside[1][None, :, None, :]
    sampled = (plane.ravel().take(place) for plane in (planes.fixed, planes.moved))
    values = xp.stack([xp.where(good, plane, np.float32(np.inf)) for plane in sampled])
    values = xp.sort(values.reshape(2, len(grid), -1), axis=-1)
    count = good.reshape(len(grid), -1).sum(axis=1)
    middle = xp.stack([xp.maximum(count - 1, 0) // 2, count // 2], axis=-1)[None]
    levels = np.float32(planes.scale) * xp.take_along_axis(values, xp.repeat(middle, 2, axis=0), axis=-1)
    levels = (levels.sum(axis=-1) / 2).astype(np.float64)
    known = ((count > 0) & xp.isfinite(levels) & (levels > 0)).all(axis=0)
    others = xp.where(known, levels, 0).sum(axis=1, keepdims=True) / xp.maximum(known.sum(), 1)
    return xp.where(known, levels, xp.where(known.any(), others, 1.0))
