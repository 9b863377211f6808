# SPDX-License-Identifier: BSD-3-Clause
"""Which stars constrain the kernel, and their pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skydelta.io.exposure import Exposure
from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.kernels.background import cell_statistics
from skydelta.kernels.cutouts import Windows, cutouts
from skydelta.stages.stars import Stars

CELL = 50
"""Least side of the selection cells, px."""

CELLS = 300
"""At most this many cells: beyond 900 stamps the fit gains nothing but time."""

PER_CELL = 3
"""Stamps of one cell."""

HELD_OUT = 5
"""Every fifth stamp takes no part in the fit, but the `KEPT` brightest all do."""

KEPT = 3
"""In sparse fields one star may know more of the kernel than the others together."""


def _cell(shape: tuple[int, int]) -> int:
    """Side of the selection cells, px."""
    return max(CELL, int(np.ceil(np.sqrt(shape[0] * shape[1] / CELLS))))


def most_stamps(shape: tuple[int, int]) -> int:
    """No image of this shape gives more."""
    cell = _cell(shape)
    return PER_CELL * (shape[0] // cell + 1) * (shape[1] // cell + 1)


@dataclass(frozen=True)
class Selection:
    """Chosen stamp centres (integer pixels), which are held out, what became of others, and the room one needs, px."""

    x: np.ndarray
    y: np.ndarray
    held_out: np.ndarray
    rejected: dict[str, int]
    margin: int = 0

    def __len__(self) -> int:
        return len(self.x)


def select(stars: Stars, good_sharp: Array, good_broad: Array, half: int, reach: int) -> Selection:
    """The brightest stars of each cell of a grid.

    Neighbours do no harm: the kernel acts on whatever is in the stamp, and a blend that varies is clipped.

    Parameters
    ----------
    stars : Stars
        Of the image to convolve.
    good_sharp, good_broad : bool (H, W)
        Usable pixels of the image to convolve and of the other one.
    half : int
        Half-size of a stamp, px.
    reach : int
        Half-size of the kernel, px: pixels of the convolved image are needed that far around the stamp.
    """
    shape = good_sharp.shape
    x, y = np.rint(stars.x).astype(int), np.rint(stars.y).astype(int)
    margin = half + reach
    inside = (x >= margin) & (y >= margin) & (x < shape[1] - margin) & (y < shape[0] - margin)
    rejected = {"edge": int((~inside).sum()), "saturated": int((inside & stars.saturated).sum())}
    index = np.flatnonzero(inside & ~stars.saturated)
    clean = np.zeros(0, bool)
    if len(index):
        windows = Windows(shape, x[index], y[index], margin, backend_of(good_sharp))
        stamp = windows.cut(good_broad)[:, reach : reach + 2 * half + 1, reach : reach + 2 * half + 1]
        clean = to_host(windows.cut(good_sharp).all(axis=(1, 2)) & stamp.all(axis=(1, 2)))
    rejected["masked"] = int((~clean).sum())
    index = index[clean]
    cell = _cell(shape)
    order = index[np.lexsort((index, -stars.flux[index]))]
    key = (y[order] // cell) * (shape[1] // cell + 1) + x[order] // cell
    rank = np.zeros(len(order), int)
    by_key = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(key[by_key]) != 0]) if len(order) else np.zeros(0, int)
    rank[by_key] = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    chosen = order[rank < PER_CELL]
    rejected["fainter in cell"] = len(order) - len(chosen)
    chosen = chosen[np.lexsort((x[chosen], y[chosen]))]
    held = np.arange(len(chosen)) % HELD_OUT == HELD_OUT // 2
    held[np.argsort(-stars.snr[chosen], kind="stable")[:KEPT]] = False
    return Selection(
        x[chosen], y[chosen], held if len(chosen) >= 2 * HELD_OUT else np.zeros(len(chosen), bool), rejected, margin
    )


@dataclass(frozen=True)
class Stamps:
    """Pixels around the stamp centres, float32 on the device of the images.

    Attributes
    ----------
    sharp : (n, m + 2 r, m + 2 r)
        Of the image to convolve, with the margin r that kernel and weights reach.
    broad, sharp_variance, broad_variance : (n, m, m)
    """

    sharp: Array
    broad: Array
    sharp_variance: Array
    broad_variance: Array

    @classmethod
    def cut(cls, sharp: Exposure, broad: Exposure, at: Selection, half: int, margin: int) -> Stamps:
        inner = Windows(sharp.shape, at.x, at.y, half, sharp.backend)
        planes = (broad.image, sharp.variance, broad.variance)
        return cls(cutouts(sharp.image, at.x, at.y, half + margin), *(inner.cut(plane) for plane in planes))

    def within(self, margin: int) -> Array:
        """``sharp`` with this margin only."""
        cut = (self.sharp.shape[1] - self.broad.shape[1]) // 2 - margin
        return self.sharp[:, cut : self.sharp.shape[1] - cut, cut : self.sharp.shape[2] - cut]


def weight_margin(spread: float) -> int:
    """Pixels around a stamp that `smoothed` looks at."""
    return int(np.ceil(3 * spread))


def smoothed(stamps: Stamps, spread: float) -> Array:
    """The image to convolve, smoothed to about the width of the other one: float32 (n, m, m).

    Parameters
    ----------
    stamps : Stamps
        With a margin of at least `weight_margin` (spread).
    spread : float
        Gaussian matching width, px.
    """
    pad = weight_margin(spread)
    full = backend_of(stamps.sharp).gaussian_stack(stamps.within(pad), spread, "reflect", 3.0)
    return full[:, pad : full.shape[1] - pad, pad : full.shape[2] - pad]


def model_weights(stamps: Stamps, light: Array, scale: float, spread: float) -> tuple[Array, float]:
    """Inverse variance of the difference in each stamp from a model, never from the noisy pixels themselves.

    V = v_0 + g m with v_0 the stamp's sky variance, m the expected signal (the sharp image smoothed to the broad
    one's width) and g one slope for all, regressed on the variance planes: weights that follow the noise of the data
    pull the kernel sum low.

    Parameters
    ----------
    light : float32 (n, m, m)
        `smoothed` with this spread.
    scale : float
        Flux ratio broad / sharp.
    spread : float
        Gaussian matching width, px.

    Returns
    -------
    float32 (n, m, m), and the slope g in the unit of the broad image.
    """
    xp = backend_of(stamps.sharp).xp
    total = stamps.broad_variance + np.float32(scale**2 / (4 * np.pi * spread**2)) * stamps.sharp_variance
    signal = xp.maximum(light * np.float32(scale), 0)
    # the clipped median of a stamp's variance is that of its sky
    n, m = total.shape[:2]
    sky = cell_statistics(total.reshape(-1, m), xp.ones((n * m, m), bool), m)[0].reshape(n, 1, 1)
    bright = signal > 3 * xp.sqrt(sky)
    light = xp.where(bright, signal, 0).astype(np.float64)
    share = light / total
    # sums, not products of vectors: those of a threaded BLAS depend on its threads
    norm, excess = to_host(xp.stack([(light * share).sum(), (share * (total - sky)).sum()]))
    slope = max(float(excess / norm), 0.0) if norm > 0 else 0.0
    return (1 / (sky + np.float32(slope) * signal)).astype(np.float32), slope
