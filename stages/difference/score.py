# SPDX-License-Identifier: BSD-3-Clause
"""The whitened difference and its signal-to-noise plane, tile by tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from skydelta.io.matchkernel import MatchKernel
from skydelta.io.psf import GridPsf, Psf, fwhm
from skydelta.kernels.backend import Array, Backend, backend_of, to_host
from skydelta.kernels.core.tiles import Tile, TileGrid
from skydelta.kernels.significance import Kernels, score_tiles

TILE = 256
"""Largest side of a tile: one kernel, PSF and sky level each, px."""

ACROSS = 8
"""At least this many tiles along the field while they are not smaller than `SMALLEST`."""

SMALLEST = 64

BATCH = {"cpu": 2, "cuda": 64}
"""Tiles transformed at once."""

FILTER = 3.0
"""Half-size of the matched filter in FWHM."""


@dataclass(frozen=True)
class Inputs:
    """Planes of the difference, float32 (H, W), zero where unusable, and how they came about.

    ``fixed`` and ``moved`` are the variance planes of the image that was not convolved and of the one that was.
    """

    difference: Array
    fixed: Array
    moved: Array
    good: Array
    kernel: MatchKernel
    psf: Psf
    correlation_fixed: np.ndarray | None
    correlation_moved: np.ndarray | None


def score(planes: Inputs) -> tuple[Array, Array, Array, GridPsf]:
    """Whitened difference, its variance and S/N (float32 (H, W), NaN where unusable), and the whitened PSF."""
    backend = backend_of(planes.difference)
    shape = planes.difference.shape
    side = int(np.clip(-(-max(shape) // ACROSS), SMALLEST, TILE))
    grid = TileGrid(shape, side)
    x, y = grid.centres()
    kernels, psfs = planes.kernel.render(x, y), planes.psf.render(x, y)
    reach = int(np.ceil(FILTER * fwhm(psfs[len(psfs) // 2])))
    reach = min(reach, psfs.shape[-1] // 2)
    # the whitened PSF is cut at `reach`: its ingredients are needed a little further only
    beyond = max(psfs.shape[-1] // 2 - 2 * reach, 0)
    psfs = psfs[:, beyond : psfs.shape[1] - beyond, beyond : psfs.shape[2] - beyond]
    pad = kernels.shape[-1] // 2 + 2 * reach
    size = backend.fft.next_fast_len(side + 2 * pad, True)
    out = [backend.xp.full(shape, np.nan, np.float32) for _ in range(3)]
    tiles, stamps = list(grid), []
    batch = BATCH[backend.kind]
    padded = [_pad(backend, p, pad, size) for p in (planes.difference, planes.fixed, planes.moved, planes.good)]
    levels = _sky_levels(backend, padded, tiles, size)
    for s in range(0, len(tiles), batch):
        part = tiles[s : s + batch]
        difference, fixed, moved, good = (backend.xp.stack([p[_window(t, size)] for t in part]) for p in padded)
        here = slice(s, s + len(part))
        scored = score_tiles(
            difference,
            fixed,
            moved,
            good,
            Kernels(
                kernels[here],
                psfs[here],
                levels[here, 0],
                levels[here, 1],
                planes.correlation_fixed,
                planes.correlation_moved,
                reach,
            ),
        )
        stamps.append(scored.psf)
        for i, tile in enumerate(part):
            h, w = tile.core.shape
            for plane, values in zip(out, (scored.whitened, scored.variance, scored.snr), strict=True):
                plane[tile.core.slices] = values[i, pad : pad + h, pad : pad + w]
    ny, nx = grid.counts
    own = to_host(backend.xp.concatenate(stamps))
    psf = GridPsf(own.reshape(ny, nx, *own.shape[1:]), x[:nx], y[::nx])
    return out[0], out[1], out[2], psf


def _pad(backend: Backend, plane: Array, pad: int, size: int) -> Array:
    """The plane with zeros around it, wide enough for every window."""
    return backend.xp.pad(plane, ((pad, size), (pad, size)))


def _window(tile: Tile, size: int) -> tuple[slice, slice]:
    """Window of a tile in the padded plane: its core starts ``pad`` px inside."""
    return slice(tile.core.y0, tile.core.y0 + size), slice(tile.core.x0, tile.core.x0 + size)


def _sky_levels(backend: Backend, padded: list[Any], tiles: list[Tile], size: int) -> np.ndarray:
    """Median variance of the usable pixels around each tile, of the fixed and the moved image: float64 (n, 2).

    A tile without usable pixels gets the mean of the others: its output is NaN anyway.
    """
    xp = backend.xp
    every = max(1, size // 64)
    cuts = [tuple(slice(s.start, s.stop, every) for s in _window(tile, size)) for tile in tiles]
    good = xp.stack([padded[3][c] for c in cuts])
    levels = []
    for plane in padded[1:3]:
        # a tile without usable pixels keeps its zeros: a level of zero is none
        values = xp.where(good | ~good.any(axis=(1, 2), keepdims=True), xp.stack([plane[c] for c in cuts]), np.nan)
        levels.append(to_host(xp.nanmedian(values.reshape(len(tiles), -1), axis=1)))
    out = np.stack(levels, axis=1).astype(float)
    empty = ~(np.isfinite(out) & (out > 0)).all(axis=1)
    out[empty] = out[~empty].mean(axis=0) if not empty.all() else 1.0
    return out
