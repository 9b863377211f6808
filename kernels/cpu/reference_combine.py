# SPDX-License-Identifier: BSD-3-Clause
"""Plain NumPy references of the combination of images: whole planes (n, H, W) at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.ndimage import maximum_filter

from skydelta.kernels.combine import Bits, Terms, median_noise


def moved(values: np.ndarray, variances: np.ndarray, terms: list[Terms]) -> tuple[np.ndarray, np.ndarray]:
    """Scaled values minus their background planes, and their variances: float64."""
    y, x = np.indices(values.shape[1:])
    out = [
        t.scale * v - (t.level + t.x * (x - t.x0) + t.y * (y - t.y0))
        for v, t in zip(values.astype(float), terms, strict=True)
    ]
    scales = np.array([t.scale**2 for t in terms])[:, None, None]
    return np.stack(out), variances * scales


def chosen(values: np.ndarray, variances: np.ndarray, masks: np.ndarray, bits: Bits) -> tuple[np.ndarray, np.ndarray]:
    """bool (n, H, W): values of the best choice there is at each pixel, and images that cover it."""
    real = np.isfinite(values) & (variances > 0) & np.isfinite(variances)
    good = real & ((masks & bits.invalid) == 0)
    second = real & ((masks & bits.invalid & ~bits.soft) == 0)
    return np.where(good.any(axis=0), good, second), second | (real & ((masks & bits.no_data) == 0))


def flags(masks: np.ndarray, use: np.ndarray, covering: np.ndarray, bits: Bits) -> np.ndarray:
    """The combined mask."""
    ours, others = (np.bitwise_or.reduce(np.where(u, masks, 0), axis=0) for u in (use, ~use))
    partial = np.where(covering.sum(axis=0) > use.sum(axis=0), bits.inexact, 0)
    return np.where(use.any(axis=0), ours | partial, others | bits.no_data)


def mean(values: Any, variances: Any, masks: Any, terms: list[Terms], bits: Bits, pixel: bool = False) -> Any:
    """Image, variance, mask, count and weight of the weighted mean."""
    use, covering = chosen(values, variances, masks, bits)
    x, v = moved(values, variances, terms)
    with np.errstate(invalid="ignore", divide="ignore"):
        w = np.array([t.weight for t in terms])[:, None, None] / (v if pixel else np.ones_like(v))
        total = np.where(use, w, 0).sum(axis=0)
        image = np.where(use, w * x, 0).sum(axis=0) / total
        noise = np.where(use, w * w * v, 0).sum(axis=0) / total**2
    return image, noise, flags(masks, use, covering, bits), use.sum(axis=0), total


def median(values: Any, variances: Any, masks: Any, terms: list[Terms], bits: Bits) -> Any:
    """The same of the median; the weight is the count."""
    use, covering = chosen(values, variances, masks, bits)
    x, v = moved(values, variances, terms)
    n = use.sum(axis=0)
    image = np.ma.median(np.ma.array(x, mask=~use), axis=0).filled(np.nan)
    factor = np.array([np.nan, *(median_noise(k) for k in range(1, len(values) + 1))])[n]
    with np.errstate(invalid="ignore", divide="ignore"):
        several = factor * n / np.where(use, 1 / np.sqrt(v), 0).sum(axis=0) ** 2
        noise = np.where(n <= 2, np.where(use, v, 0).sum(axis=0) / n**2, several)
    return image, noise, flags(masks, use, covering, bits), n, n


def clipped(
    values: Any, variances: Any, masks: Any, terms: list[Terms], bits: Bits, sky: Any, sigma: float, core: float
) -> Any:
    """The same of the clipped mean with weights of the images, and bool (n, H, W) of what is clipped."""
    good = chosen(values, variances, masks, bits)[0] & ((masks & bits.invalid) == 0)
    use, covering = chosen(values, variances, masks, bits)
    x, v = moved(values, variances, terms)
    sky_noise = np.array([t.noise for t in terms])[:, None, None]
    n = use.sum(axis=0)
    centre = np.ma.median(np.ma.array(x, mask=~use), axis=0).filled(np.nan)
    centre = np.where(n == 2, np.where(use, x, np.inf).min(axis=0), centre)
    excess = np.ma.median(np.ma.array(v / sky_noise, mask=~use), axis=0).filled(np.nan)
    noise = np.where(use, sky_noise, 0).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.sqrt(1.5 * excess * noise) / n
        top = maximum_filter(np.where(np.isnan(centre), -np.inf, centre), 3, mode="nearest")
        signal = np.maximum(top - sky - 3 * error, 0)
        spread = excess * np.where(good.sum(axis=0) > 2, sky_noise, np.where(good, sky_noise, 0).sum(axis=0))
        limit, away = sigma * np.sqrt(spread), np.abs(x - centre)
    able = good & (good.sum(axis=0) > 1)
    outlier = able & (away > limit + core * signal)
    near = np.stack([maximum_filter(o, 3, mode="constant") for o in outlier])
    gone = outlier | (able & near & (away > 0.5 * limit + core * signal))
    gone &= ~(gone.sum(axis=0) == n)
    left = use & ~gone
    w = np.array([t.weight for t in terms])[:, None, None] * np.ones_like(v)
    with np.errstate(invalid="ignore", divide="ignore"):
        total = np.where(left, w, 0).sum(axis=0)
        image = np.where(left, w * x, 0).sum(axis=0) / total
        variance = np.where(left, w * w * v, 0).sum(axis=0) / total**2
    mask = flags(masks, use, covering, bits)
    ours = np.bitwise_or.reduce(np.where(left, masks, 0), axis=0)
    partial = np.where(covering.sum(axis=0) > left.sum(axis=0), bits.inexact, 0)
    mask = np.where(left.any(axis=0), ours | partial | np.where(gone.any(axis=0), bits.clipped, 0), mask)
    return image, variance, mask, left.sum(axis=0), total, gone
