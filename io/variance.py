# SPDX-License-Identifier: BSD-3-Clause
"""The variance of an image: from another plane, or estimated from the detector or from the image itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from skydelta.errors import InputError
from skydelta.kernels.backend import Array, Backend, backend_of, to_host
from skydelta.kernels.judge import median, stated_variance
from skydelta.kernels.polynomial import product_plane
from skydelta.kernels.sky import block_medians, block_sky, white_sky

BLOCK = 64
"""Side of the blocks in which sky and noise are measured, px."""

SMOOTH = 1.0
"""Width (sigma, px) of the smoothing under the photon noise of faint pixels."""

BRIGHT = 10.0
"""Above this many sigma a pixel is its own best signal: its noise biases its variance by less than one per cent."""

MODEL_TRUSTED = (0.6, 1.6)
"""Measured over modelled sky variance within which the detector model is used as it is."""

WHITE = 0.8
"""White over total noise variance above which the noise counts as white."""

AROUND, ALIKE = 5, 3.0
"""Blocks along a side of the square that is averaged over, and the largest difference in it, in robust standard
deviations of that of neighbours."""

LEAST, MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
FLOAT32 = f"{LEAST:.1e} to {MOST:.1e}"
"""Positive numbers that float32 holds with all digits, and whose inverse it holds; the same in words."""

SAMPLED = 200
"""Blocks that are enough for one number of the whole image."""


@dataclass(frozen=True)
class Detector:
    """What a header (or the user) says about the detector, in the unit u of the pixels.

    Attributes
    ----------
    gain : float or None
        Electrons per u.
    read_noise : float or None
        Electrons.
    bias : float
        Level that is no light, u.
    combined : int
        Exposures in the image; whether they were added or averaged shows in the noise.
    """

    gain: float | None = None
    read_noise: float | None = None
    bias: float = 0.0
    combined: int = 1


@dataclass
class Variance:
    """A variance plane and how it came about.

    Attributes
    ----------
    values : float32 (H, W)
        NaN where nothing is known; where the plane or the image is.
    note : dict
        source, numbers; JSON-able.
    """

    values: Array
    note: dict[str, Any] = field(default_factory=dict)


def from_plane(plane: Array, kind: str, source: str, overwrite: bool = False) -> Variance:
    """Variance from a stored plane; values that mean nothing become NaN and are counted.

    Parameters
    ----------
    plane : (H, W)
        On the host or on a device, where the variance stays.
    kind : {"variance", "sigma", "weight"}
        A sigma is squared, a weight (inverse variance) inverted; zero weight means no data.
    source : str
        Where it was, for the note.
    overwrite : bool
        The variance may take the memory of the plane.
    """
    backend = backend_of(plane)
    raw = backend.xp.ascontiguousarray(plane, np.float64 if plane.dtype.itemsize > 4 else np.float32)
    values, counts = stated_variance(raw, kind, overwrite or raw is not plane)
    note: dict[str, Any] = {"source": source, "kind": kind}
    note["invalid"] = {k: n for k, n in counts.items() if n}
    known = values.size - sum(counts.values())
    note["median"] = median(values, known) if known else None
    return Variance(values, note)


def local_sky(image: Array, good: Array) -> tuple[np.ndarray, np.ndarray]:
    """Sky level and noise (robust sigma) of blocks: float64 (ny, nx) each, NaN where too few pixels are good."""
    ny, nx = _counts(image.shape)
    sky, noise = block_sky(image, good, np.array(_boxes(image.shape)))
    return sky.reshape(ny, nx), noise.reshape(ny, nx)


def white_noise(image: Array, good: Array) -> float:
    """Noise (robust sigma) that is independent from pixel to pixel, median of blocks.

    Crowded fields hardly raise it; resampling, which correlates neighbours, lowers it.
    """
    (image, good), boxes = _fetched(_boxes(image.shape, SAMPLED), image, good)
    noise = white_sky(image, good, np.array(boxes))
    noise = noise[np.isfinite(noise)]
    return float(np.median(noise)) if noise.size else float("nan")


def estimate(image: Array, good: Array, detector: Detector) -> Variance:
    """Variance where a file has none.

    The sky's share is (sky - bias) / gain + (read noise / gain)^2 when that agrees with the measured noise (between
    distant pixels, or white noise; `MODEL_TRUSTED`); a stack, or an image whose sky was subtracted, has another
    noise, and then the measured one is used. Objects add their photon noise (image - sky) / gain. Their signal is not
    the noisy pixel itself, which would give downward fluctuations more weight, but the image smoothed by `SMOOTH`,
    except where a pixel stands `BRIGHT` sigma above the sky. Without a gain the measured noise is the variance
    everywhere, and bright objects are noisier than it says (the note tells so).

    Parameters
    ----------
    image : (H, W)
        On the host or on a device, where the variance will be.
    good : bool (H, W)
    detector : Detector

    Raises
    ------
    InputError
        Fewer good pixels than any noise can be measured from, or a variance beyond float32.
    """
    backend, xp = backend_of(image), backend_of(image).xp
    image = image.astype(np.float32, copy=False)
    sky, noise = local_sky(image, good)
    if not np.isfinite(noise).any():
        raise InputError(f"variance cannot be estimated: {int(good.sum())} good pixels of {image.size} are too few")
    noise = _pooled(noise)
    # a quarter of the blocks is free of objects in all but the densest fields
    measured, white = float(np.nanpercentile(noise, 25)) ** 2, white_noise(image, good) ** 2
    if white > WHITE * measured:
        measured = white  # the better measure where neighbours are not correlated
    level = float(np.nanpercentile(sky, 25))
    gain = detector.gain
    dark = ((detector.read_noise or 0.0) / gain) ** 2 if gain else 0.0
    modelled = max(level - detector.bias, 0.0) / gain + dark if gain else 0.0
    if measured == modelled == 0:
        raise InputError("variance cannot be estimated: neither gain and sky nor the image itself give any noise")
    if not LEAST <= (found := max(measured, modelled)) <= MOST:
        raise InputError(
            f"variance cannot be estimated: a noise of {np.sqrt(found):.3g} has a variance beyond float32 ({FLOAT32}); "
            "give the image in another unit"
        )
    sky_map = _spread(np.where(np.isfinite(sky), sky, level), image.shape, backend)
    note: dict[str, Any] = {"sky": level, "sky_variance_measured": measured}
    if gain is None:
        blocks = np.where(np.isfinite(noise), noise, np.sqrt(measured)) ** 2
        # blocks full of objects must not claim more than twice the quiet sky
        quiet = np.clip(blocks, 0.5 * measured, 2 * measured)
        values = _spread(quiet, image.shape, backend)
        note |= {"source": "measured", "why": "no variance plane and no gain: photon noise of objects is not included"}
        return _estimated(values, note)
    note |= {"gain": gain, "read_noise": detector.read_noise, "bias": detector.bias, "sky_variance_modelled": modelled}
    note["white_variance_measured"] = white
    low, high = MODEL_TRUSTED
    # a crowded field raises the first, resampled pixels lower the second
    agrees = any(low * modelled <= found <= high * modelled for found in (measured, white))
    if modelled > 0 and (agrees or measured == 0):
        sky_variance = xp.maximum(sky_map - detector.bias, 0) / gain + dark
        note["source"] = "gain"
    else:
        sky_variance = xp.full(image.shape, measured, np.float32)
        note |= {"source": "gain and measured sky noise", "why": "the measured noise is not that of gain and sky"}
        n = detector.combined
        if n > 1 and low * n <= modelled / measured <= high * n:
            gain *= n  # an average: every unit stands for n times the electrons
            note["effective_gain"] = gain
    excess = xp.where(good, image - sky_map, np.float32(0))
    smooth = backend.ndimage.gaussian_filter(excess, SMOOTH, truncate=3)
    quiet_noise = np.sqrt(measured)
    signal = xp.where(excess > BRIGHT * quiet_noise, excess, smooth)
    # what smoothing leaves of the sky's own noise is not signal
    signal[signal < quiet_noise] = 0
    return _estimated(sky_variance + signal / np.float32(gain), note)


def _pooled(noise: np.ndarray) -> np.ndarray:
    """Noise of blocks (ny, nx), each averaged with those of the `AROUND` x `AROUND` around it that are like it.

    A block of correlated noise knows its own noise to 2 to 4 % only, and at five standard deviations that alone makes a
    tenth more false alarms. Alike are blocks whose difference is within `ALIKE` of that of neighbours, so that real
    steps of the noise stay.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(noise > 0, np.log(noise), np.nan)
    steps = np.concatenate([np.abs(np.diff(scale, axis=axis)).ravel() for axis in (0, 1)])
    steps = steps[np.isfinite(steps)]
    if not steps.size:
        return noise
    limit = ALIKE * 1.4826 * float(np.median(steps))
    around = sliding_window_view(np.pad(scale, AROUND // 2, constant_values=np.nan), (AROUND, AROUND))
    alike = np.abs(around - scale[:, :, None, None]) <= limit
    count = np.maximum(alike.sum(axis=(2, 3)), 1)
    variance = np.where(alike, np.exp(2 * around), 0).sum(axis=(2, 3)) / count
    return np.where(np.isfinite(scale), np.sqrt(variance), noise)


def _estimated(values: Array, note: dict[str, Any]) -> Variance:
    out = values.astype(np.float32, copy=False)
    out[~(out > 0)] = np.nan
    return Variance(out, {**note, "kind": "estimated", "median": median(out)})


def _spread(blocks: np.ndarray, shape: tuple[int, int], backend: Backend) -> Array:
    """Bilinear between block centres, constant outside them: float32 (H, W)."""
    rows, columns = (_tents(n, k) for n, k in zip(shape, blocks.shape, strict=True))
    return product_plane(backend, rows @ blocks, columns.T)


def _tents(n: int, k: int) -> np.ndarray:
    """Weights of k values in n pixels between their centres: float64 (n, k)."""
    at = np.clip((np.arange(n) + 0.5) * (k / n) - 0.5, 0, k - 1)
    return np.maximum(1 - np.abs(at[:, None] - np.arange(k)), 0)


def sky_chi2(image: Array, variance: Array, good: Array) -> float | None:
    """Measured over stated variance of the sky; 1 when the plane means what its name says, None without enough sky."""
    (image, variance, good), found = _fetched(_boxes(image.shape, SAMPLED), image, variance, good)
    boxes = np.array(found)
    _, noise = block_sky(image, good, boxes)
    known = np.isfinite(noise)
    ratios = noise[known] ** 2 / block_medians(variance, good, boxes[known])
    return float(np.median(ratios)) if ratios.size else None


_Box = tuple[int, int, int, int]


def _fetched(boxes: list[_Box], *planes: Array) -> tuple[list[np.ndarray], list[_Box]]:
    """Planes on the host, and the boxes in them. Of planes on a device, only the boxes come: one under another."""
    backend = backend_of(planes[0])
    if not backend.is_gpu:
        return list(planes), boxes
    y0, y1, x0, x1 = np.array(boxes).T
    h, w = int((y1 - y0).max()), int((x1 - x0).max())
    # boxes differ by a pixel: what is behind the smaller ones, inside the image, comes along
    rows = np.minimum(y0[:, None] + np.arange(h), planes[0].shape[0] - 1)[:, :, None]
    columns = np.minimum(x0[:, None] + np.arange(w), planes[0].shape[1] - 1)[:, None, :]
    there = backend.asarray(rows), backend.asarray(columns)
    moved = [(h * i, h * i + int(b[1] - b[0]), 0, int(b[3] - b[2])) for i, b in enumerate(boxes)]
    return [to_host(plane[there]).reshape(-1, w) for plane in planes], moved


def _counts(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of blocks."""
    return max(1, round(shape[0] / BLOCK)), max(1, round(shape[1] / BLOCK))


def _boxes(shape: tuple[int, ...], at_most: int | None = None) -> list[_Box]:
    """The blocks (y0, y1, x0, x1) of an image in row order, or as many of them, spread evenly."""
    rows, columns = (np.linspace(0, n, k + 1).astype(int) for n, k in zip(shape, _counts(shape), strict=True))
    boxes = [(*r, *c) for r in pairwise(rows.tolist()) for c in pairwise(columns.tolist())]
    if at_most is None or len(boxes) <= at_most:
        return boxes
    return [boxes[i] for i in np.linspace(0, len(boxes) - 1, at_most).astype(int)]
