# SPDX-License-Identifier: BSD-3-Clause
"""Plain NumPy and SciPy references of the star kernels: whole planes, and stamps cut out around each peak."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import correlate1d, maximum_filter
from scipy.spatial import cKDTree

from skydelta.kernels.cutouts import cutouts


def smooth_masked(image: np.ndarray, good: np.ndarray, taps: np.ndarray) -> np.ndarray:
    filter_ = np.concatenate([taps[:0:-1], taps])
    smooth = np.where(good, image, np.float32(0))
    for axis in (0, 1):
        smooth = correlate1d(smooth, filter_, axis, mode="constant")
    return np.where(good, smooth, np.float32(0))


def light_peaks(
    light: np.ndarray, good: np.ndarray, variance: np.ndarray | None, gain: float, limit: np.ndarray, radius: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    noise = np.full_like(light, gain) if variance is None else variance * np.float32(gain)
    usable = good & (noise > 0)
    snr = np.where(usable, light / np.sqrt(np.where(usable, noise, 1)), np.float32(0))
    o = np.arange(-radius, radius + 1)
    circle = o * o + o[:, None] ** 2 <= radius * radius + 1
    later = (o[:, None] > 0) | ((o[:, None] == 0) & (o > 0))
    earlier = later[::-1, ::-1]
    above, not_below = (
        maximum_filter(light, footprint=circle & half, mode="constant", cval=-np.inf) for half in (later, earlier)
    )
    pixel = np.flatnonzero((snr > limit) & (light > above) & (light >= not_below))
    return pixel.astype(np.int32), snr.ravel()[pixel], light.ravel()[pixel]


def sample_snr(light: np.ndarray, good: np.ndarray, variance: np.ndarray | None, gain: float, every: int) -> np.ndarray:
    noise = np.full_like(light, gain) if variance is None else variance * np.float32(gain)
    snr = np.where(noise > 0, light / np.sqrt(np.where(noise > 0, noise, 1)), np.float32(0))
    return np.ascontiguousarray(np.where(good, snr, np.float32(np.nan))[::every, ::every])


def robust_levels(ascending: np.ndarray, times: float, least: float) -> np.ndarray:
    values = ascending[~np.isnan(ascending)]
    if not len(values):
        return np.full(3, np.nan, np.float32)
    centre = np.median(values)
    spread = np.float32(1.4826) * np.median(np.abs(values - centre))
    return np.array([centre, spread, centre + np.float32(times) * max(np.float32(least), spread)], np.float32)


def _stamps(plane: np.ndarray, pixel: np.ndarray, half: int) -> np.ndarray:
    return cutouts(plane, *np.divmod(pixel, plane.shape[1])[::-1], half)


def _light(image: np.ndarray, good: np.ndarray, pixel: np.ndarray, half: int) -> np.ndarray:
    return _stamps(np.where(good, image, np.float32(0)), pixel, half).astype(float)


def ring_medians(image: np.ndarray, good: np.ndarray, pixel: np.ndarray, half: int, core: int) -> np.ndarray:
    stamps = _light(image, good, pixel, half)
    o = np.arange(-half, half + 1)
    ring = np.rint(np.hypot(o, o[:, None])).astype(int)
    medians = [np.median(stamps[:, ring == r], axis=1) for r in range(half + 1)]
    return np.stack([*medians, _stamps(good, pixel, core).all(axis=(1, 2))], axis=1)


def star_shapes(
    image: np.ndarray, good: np.ndarray, pixel: np.ndarray, half: int, core: int, sigma: float, iterations: int = 10
) -> np.ndarray:
    clean = _stamps(good, pixel, core).all(axis=(1, 2))
    return np.stack([*windowed_moments(_light(image, good, pixel, half), sigma, iterations), clean])


def windowed_moments(stamps: np.ndarray, sigma: float, iterations: int = 10) -> np.ndarray:
    """The first measures (4, n) of `star_shapes` for stamps (n, m, m) of odd side."""
    n, m = stamps.shape[:2]
    half, variance = m // 2, sigma * sigma
    o = np.arange(-half, half + 1.0)
    centre = np.zeros((2, n))

    def moments() -> np.ndarray:
        d = o - centre[:, :, None]
        w = np.exp(-d * d / (2 * variance))
        x, y = np.stack([w, w * d, w * d * d], axis=-1)
        return np.matmul(y.transpose(0, 2, 1), np.matmul(stamps, x))

    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(iterations):
            s = moments()
            step = 2 * np.stack([s[:, 0, 1], s[:, 1, 0]]) / s[:, 0, 0]
            centre += np.clip(np.nan_to_num(step), -1, 1)
            np.clip(centre, -half, half, out=centre)
        s = moments()
        mean = np.stack([s[:, 0, 1], s[:, 1, 0]]) / s[:, 0, 0]
        xx, yy = s[:, 0, 2] / s[:, 0, 0] - mean[0] ** 2, s[:, 2, 0] / s[:, 0, 0] - mean[1] ** 2
        xy = s[:, 1, 1] / s[:, 0, 0] - mean[0] * mean[1]
        positive = (s[:, 0, 0] > 0) & np.isfinite(xx + yy + xy)
        # eigenvalues of M, each freed of the window: 1 / c = 1 / m - 1 / w
        mid, spread = (xx + yy) / 2, np.hypot((xx - yy) / 2, xy)
        major, minor = mid + spread, np.maximum(mid - spread, 0)
        wide = ~positive | (major >= variance)
        major, minor = (np.where(wide, np.inf, v * variance / (variance - v)) for v in (major, minor))
        width = np.where(wide, np.inf, (major * minor) ** 0.25)
        ellipticity = np.where(wide | (major <= 0), 1.0, 1 - np.sqrt(minor / major))
    return np.stack([*centre, width, ellipticity])


def star_apertures(
    image: np.ndarray,
    good: np.ndarray,
    pixel: np.ndarray,
    centre: np.ndarray,
    half: int,
    aperture: float,
    core: float,
) -> np.ndarray:
    stamps, usable = _light(image, good, pixel, half), _stamps(good, pixel, half)
    o = np.arange(-half, half + 1)
    r = np.hypot(o - centre[0][:, None, None], o[:, None] - centre[1][:, None, None])
    flux = (stamps * np.clip(aperture + 0.5 - r, 0, 1)).sum(axis=(1, 2))
    peak = np.where(r <= core, stamps, -np.inf).max(axis=(1, 2))
    return np.stack([flux, peak, ((r <= core) & ~usable).any(axis=(1, 2))])


def neighbours(
    pixel: np.ndarray, height: np.ndarray, star: np.ndarray, width: int, radius: float, share: float
) -> np.ndarray:
    at = np.column_stack(np.divmod(pixel, width))
    near = cKDTree(at).query_ball_point(at[star], radius)
    level = height.astype(float)
    counts = [(level[n] > share * level[k]).sum() for n, k in zip(near, star, strict=True)]
    return np.array(counts, np.int32)
