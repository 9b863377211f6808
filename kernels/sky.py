# SPDX-License-Identifier: BSD-3-Clause
"""Sky level and noise of the blocks of an image whose variance nobody has stated.

A kernel on the host. On a device array operations on many blocks at once, in the same order: the same bits.
"""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.kernels.cpu import sky as twins

LAG = 8
"""Distance of the pixel pairs whose difference gives the noise, px: beyond the correlation of resampled and smoothed
pixels; a quarter of a narrower block's width."""

SMOOTH = 1.0
"""Width (sigma, px) of the smoothing under which objects stand out of a block."""

STANDS_OUT = 4.0
"""Robust standard deviations of the smoothed block above its median that make an object.

At 3 the noise itself is cut, and what is left is 0.3 to 1 % too low (white, and smoothed by 1 px)."""

NEAR = 4
"""Pixels around those of an object that are not sky either."""

ENOUGH = 16
"""Pixels below which nothing is measured."""

SHARE = 0.1
"""And share of a block's pixels."""

LAPLACIAN = np.array([[0.25, -0.5, 0.25], [-0.5, 1.0, -0.5], [0.25, -0.5, 0.25]]) / 1.5
"""Keeps white noise as it is and takes away everything smooth on three pixels (Immerkaer 1996)."""

TOGETHER = 1 << 22
"""Pixels of the blocks that a device works on at once."""


def block_sky(image: Array, good: Array, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Median, and noise as a robust sigma, of blocks.

    The noise is that of differences of pixels up to `LAG` apart along a row, so that gradients do not count, both of
    them away from what stands out of the smoothed block. Where that leaves nothing, objects take part.

    Parameters
    ----------
    image : float32 (H, W)
        Another type is taken as float32 where that holds all its values, else as float64, in a copy.
    good : bool (H, W)
        Pixels to use; all finite.
    boxes : int (n, 4)
        On the host. First and last row, first and last column of each block, the last ones not in it.

    Returns
    -------
    sky, noise : float64 (n,)
        On the host; NaN where too few pixels are good.
    """
    sky, noise = np.full((2, len(boxes)), np.nan)
    weights = np.exp(-0.5 * (np.arange(-int(3 * SMOOTH), int(3 * SMOOTH) + 1) / SMOOTH) ** 2)
    weights /= weights.sum()
    if not backend_of(image).is_gpu:
        # one type of image compiles for seconds, so there are two and not one for every type that a file can have
        image = image.astype(np.promote_types(image.dtype, np.float32), copy=False)
        twins.block_sky(image, good, boxes, weights, (LAG, STANDS_OUT, NEAR, ENOUGH, SHARE), sky, noise)
        return sky, noise
    sides = boxes[:, 1::2] - boxes[:, ::2]
    for h, w in np.unique(sides, axis=0).tolist():
        alike = np.flatnonzero((sides == (h, w)).all(axis=1))
        for some in np.array_split(alike, -(-alike.size * h * w // TOGETHER)):
            sky[some], noise[some] = _blocks(image, good, boxes[some, 0], boxes[some, 2], h, w, weights)
    return sky, noise


def block_medians(plane: np.ndarray, good: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Median of the good pixels of blocks of a plane on the host: float64 (n,), NaN without any.

    Parameters
    ----------
    plane : float32 (H, W)
        Finite where good.
    good : bool (H, W)
    boxes : int (n, 4)
        As of `block_sky`.
    """
    found = np.full(len(boxes), np.nan)
    twins.block_medians(plane, good, boxes, found)
    return found


def white_sky(image: np.ndarray, good: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Noise that is independent from pixel to pixel, as a robust sigma of blocks, from what `LAPLACIAN` leaves.

    Parameters
    ----------
    image, good, boxes
        As of `block_sky`, on the host.

    Returns
    -------
    float64 (n,)
        NaN where fewer than `ENOUGH` pixels have eight good neighbours in their block.
    """
    noise = np.full(len(boxes), np.nan)
    twins.white_sky(image, good, boxes, LAPLACIAN, ENOUGH, noise)
    return noise


def _blocks(
    image: Array, good: Array, y: np.ndarray, x: np.ndarray, h: int, w: int, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sky and noise of blocks of one size on a device, from their first rows and columns."""
    backend = backend_of(image)
    xp = backend.xp
    rows, columns = (backend.asarray(first[:, None] + np.arange(n)) for first, n in ((y, h), (x, w)))
    there = rows[:, :, None], columns[:, None, :]
    ok, part = good[there], image[there].astype(np.float64)
    n = xp.count_nonzero(ok, axis=(1, 2))
    level = _medians(part, ok, n)
    part = xp.where(ok, part - level[:, None, None], 0.0)
    smooth = _smoothed(_smoothed(part, 1, weights), 2, weights)
    spread = _medians(abs(smooth), ok, n)
    objects = _near(_near(smooth > (STANDS_OUT * 1.4826 * spread)[:, None, None], 1), 2)
    lag = max(min(LAG, w // 4), 1)
    quiet = ok & ~objects
    use = quiet[:, :, lag:] & quiet[:, :, :-lag]
    few = xp.count_nonzero(use, axis=(1, 2)) < ENOUGH
    use = xp.where(few[:, None, None], ok[:, :, lag:] & ok[:, :, :-lag], use)
    pairs = xp.count_nonzero(use, axis=(1, 2))
    steps = part[:, :, lag:] - part[:, :, :-lag]
    noise = 1.4826 * _medians(abs(steps - _medians(steps, use, pairs)[:, None, None]), use, pairs) / np.sqrt(2.0)
    enough = n >= max(SHARE * h * w, ENOUGH)
    sky = xp.where(enough, level, np.nan)
    return to_host(sky), to_host(xp.where(enough & (pairs >= ENOUGH), noise, np.nan))


def _medians(values: Array, use: Array, n: Array) -> Array:
    """Median of the used values of each block: float64 (blocks,); of none, anything.

    Sorting would take longer: the bits of the middle value are found one by one, by counting.
    """
    xp = backend_of(values).xp
    bits = values.view(np.int64)
    keys = xp.where(use, xp.where(bits < 0, bits ^ np.int64(2**63 - 1), bits), np.int64(2**63 - 1))
    keys = keys.reshape(len(values), -1)
    rank = ((n - 1) // 2)[:, None]
    low = xp.full(rank.shape, -(2**63), np.int64)
    # the largest number with no more than rank values below it
    for bit in range(63, -1, -1):
        tried = low ^ np.int64(-(2**63)) if bit == 63 else low | np.int64(1 << bit)
        low = xp.where(xp.count_nonzero(keys < tried, axis=1)[:, None] <= rank, tried, low)
    more = xp.count_nonzero(keys <= low, axis=1)[:, None] > n[:, None] // 2
    high = xp.where(more, low, xp.where(keys > low, keys, np.int64(2**63 - 1)).min(axis=1)[:, None])
    lower, upper = (xp.where(k < 0, k ^ np.int64(2**63 - 1), k).view(np.float64)[:, 0] for k in (low, high))
    return xp.where(n % 2 == 1, lower, (lower + upper) / 2)


def _smoothed(part: Array, axis: int, weights: np.ndarray) -> Array:
    """Filtered along an axis; blocks are mirrored at their edges."""
    xp, n, reach = backend_of(part).xp, part.shape[axis], len(weights) // 2
    at = np.arange(-reach, n + reach) % (2 * n)
    at = backend_of(part).asarray(np.where(at < n, at, 2 * n - 1 - at))
    wide, out = xp.take(part, at, axis=axis), xp.zeros_like(part)
    for k, weight in enumerate(weights.tolist()):
        out += weight * (wide[:, k : k + n] if axis == 1 else wide[:, :, k : k + n])
    return out


def _near(objects: Array, axis: int) -> Array:
    """True up to `NEAR` pixels from what is true, along an axis, within a block."""
    out, n = objects.copy(), objects.shape[axis]
    for k in range(1, min(NEAR, n - 1) + 1):
        if axis == 1:
            out[:, k:] |= objects[:, :-k]
            out[:, :-k] |= objects[:, k:]
        else:
            out[:, :, k:] |= objects[:, :, :-k]
            out[:, :, :-k] |= objects[:, :, k:]
    return out
