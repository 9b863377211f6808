# SPDX-License-Identifier: BSD-3-Clause
"""Stars of a sky-subtracted image: found, centred and sorted into isolated, blended and saturated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from skydelta.io.exposure import Exposure
from skydelta.io.field import Domain, polynomial_terms
from skydelta.kernels.backend import Array, to_host
from skydelta.kernels.cutouts import cutouts

THRESHOLD = 8.0
"""Least signal-to-noise of the smoothed image at a peak."""

SMOOTHING = 1.2
"""Gaussian sigma of the first detection filter, px: right for FWHM of 1.5 to `BROAD` px."""

BROAD = 5.5
"""FWHM, px, above which the image is searched again with a filter of the stars' own width."""

BRIGHTEST = 300
"""Peaks that the first estimate of the width rests on."""

MOST = 5000
"""Peaks that are measured, the brightest ones; fewer where their stamps would not fit `STAMP_PIXELS`."""

STAMP_PIXELS = 8_000_000

NEIGHBOUR = (4.0, 0.05)
"""A star is isolated without another peak of this share of its own within this many FWHM."""

SHARPEST = 1.1
"""Single hot pixels have a FWHM of 1 px; no sampled star is that narrow."""

WINDOW = 2.4
"""Least FWHM of the window that stars are measured under, px: under a narrower one sampling pulls the centroids."""

CLUMP = (0.7, 1.5)
"""Widths relative to the most common one that can be stars of a varying PSF."""

COMMON = 0.4
"""Share of the brighter peaks within 15 % of the most common width, where stars prevail: above 0.5, of galaxies 0.2."""

BRIGHT_ROUND = 30
"""Where galaxies prevail, the narrowest of this many brightest round peaks is a star."""

LIKE_IT = (0.75, 1.25)
"""Widths relative to that one of other stars among galaxies."""

SIGMA_TO_FWHM = float(np.sqrt(8 * np.log(2)))


@dataclass(frozen=True)
class Stars:
    """A table of stars, brightest signal-to-noise first; arrays of the same length on the host.

    Attributes
    ----------
    x, y : float64
        Windowed centroid, 0-based px.
    flux : float64
        Inside a circle of 1.5 times the field's FWHM, image units.
    peak : float64
        Brightest pixel, image units.
    snr : float64
        Of the smoothed image at the peak.
    fwhm, ellipticity : float64
        From Gaussian-weighted second moments: 2.355 (det C)^(1/4) px and 1 - b / a.
    isolated : bool
        No peak above 5 % of this one within 4 FWHM.
    saturated : bool
        Unusable pixels within one FWHM of the centre: saturated, masked or outside the frame.
    compact : bool
        As narrow as a point source. False only in fields of galaxies, which are kept: they too tell where two images
        line up and how their widths differ.
    rejected : dict of str to int
        Peaks that are no stars, by reason.
    """

    x: np.ndarray
    y: np.ndarray
    flux: np.ndarray
    peak: np.ndarray
    snr: np.ndarray
    fwhm: np.ndarray
    ellipticity: np.ndarray
    isolated: np.ndarray
    saturated: np.ndarray
    compact: np.ndarray
    rejected: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: np.ndarray) -> Stars:
        """The rows of an index or bool array."""
        columns = {f.name: getattr(self, f.name)[index] for f in fields(self) if f.name != "rejected"}
        return Stars(**columns, rejected=self.rejected)


@dataclass(frozen=True)
class Peaks:
    """Local maxima of the smoothed image, brightest first, on the host: integer positions, S/N and height."""

    x: np.ndarray
    y: np.ndarray
    snr: np.ndarray
    height: np.ndarray

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Shapes:
    """Gaussian-weighted moments: centre relative to the stamp's middle (px), FWHM (px), ellipticity."""

    x: np.ndarray
    y: np.ndarray
    fwhm: np.ndarray
    ellipticity: np.ndarray


def find_stars(exposure: Exposure) -> Stars:
    """Find and measure the stars of a sky-subtracted exposure.

    Peaks of the smoothed signal-to-noise map above `THRESHOLD` (of the noise measured in the map where that exceeds
    the variance plane's) are measured in stamps. Cosmic rays, galaxies and blends leave by the clump of widths, which
    may vary over the field. Only peaks and stamps go to the host.

    Parameters
    ----------
    exposure : Exposure
        On any backend; without variance the noise is measured.

    Returns
    -------
    Stars
        Possibly empty.
    """
    backend = exposure.backend
    xp = backend.xp
    good = exposure.good()
    image = xp.where(good, exposure.image, np.float32(0))
    peaks = _peaks(exposure, image, good, SMOOTHING)
    if not len(peaks):
        return _empty({})
    width = _first_width(image, good, peaks)
    if width > BROAD:
        sharp = peaks
        peaks = _peaks(exposure, image, good, min(width / SIGMA_TO_FWHM, 8.0))
        peaks = peaks if len(peaks) else sharp
    half = int(np.ceil(np.clip(2.0 * width, 5, 40)))
    use = slice(min(MOST, STAMP_PIXELS // (2 * half + 1) ** 2))
    x, y = peaks.x[use], peaks.y[use]
    stamps, usable = host_cutouts(image, x, y, half), host_cutouts(good, x, y, half)
    shapes = measure_shapes(stamps, width)
    clump = _clump(shapes, peaks.snr[use])
    if abs(np.log(clump / width)) > 0.1:
        shapes = measure_shapes(stamps, clump)
    core = np.all(usable[:, half - 2 : half + 3, half - 2 : half + 3], axis=(1, 2))
    point = _point_width(stamps, shapes, peaks.snr[use], core, clump)
    if point is not None:
        clump, shapes = point, measure_shapes(stamps, point)
    return _table(exposure, peaks, use, stamps, usable, shapes, clump, point is not None)


def host_cutouts(plane: Array, x: np.ndarray, y: np.ndarray, half: int) -> np.ndarray:
    """`cutouts` on the host, zero outside the frame: float64 of an image, bool of a mask."""
    values = to_host(cutouts(plane, x, y, half))
    return values if values.dtype == bool else values.astype(float)


def measure_shapes(stamps: np.ndarray, fwhm: float, iterations: int = 10) -> Shapes:
    """Windowed centroids and the moments of the light under a Gaussian window of the stars' own width.

    The window is removed from the moments as if the star were Gaussian: C^-1 = M^-1 - W^-1.

    Parameters
    ----------
    stamps : float64 (n, m, m)
    fwhm : float
        Of the window, px; `WINDOW` at least.

    Returns
    -------
    Shapes
        FWHM inf where the light is too wide or not positive, 0 where it is a point.
    """
    n, m = stamps.shape[:2]
    half, variance = m // 2, (max(fwhm, WINDOW) / SIGMA_TO_FWHM) ** 2
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
        width = SIGMA_TO_FWHM * (major * minor) ** 0.25
        ellipticity = np.where(wide | (major <= 0), 1.0, 1 - np.sqrt(minor / major))
    return Shapes(centre[0], centre[1], np.where(wide, np.inf, width), ellipticity)


def _empty(rejected: Mapping[str, int]) -> Stars:
    none, no = np.zeros(0), np.zeros(0, bool)
    return Stars(none, none, none, none, none, none, none, no, no, no, rejected)


def _peaks(exposure: Exposure, image: Array, good: Array, sigma: float) -> Peaks:
    """Local maxima of the image smoothed by a Gaussian of ``sigma`` px, in units of its noise."""
    backend = exposure.backend
    xp = backend.xp
    smooth = backend.ndimage.gaussian_filter(image, sigma, mode="constant", truncate=3.0)
    variance = _noise(exposure, image, good, sigma)
    snr = smooth / xp.sqrt(xp.where(good & (variance > 0), variance, np.float32(np.inf)))
    every = max(1, int(np.sqrt(image.size / 2e5)))
    sample = to_host(snr[::every, ::every][good[::every, ::every]])
    if not sample.size:
        return Peaks(*[np.zeros(0)] * 4)
    level = float(np.median(sample))
    # the measured spread counts where it is larger: correlated noise, crowding
    limit = level + THRESHOLD * max(1.0, 1.4826 * float(np.median(np.abs(sample - level))))
    index, w = xp.flatnonzero(snr.ravel() > np.float32(limit)), image.shape[1]
    # of the light, not of the S/N: the variance of a narrow star is as peaked as the star
    flat = xp.where(good, smooth, np.float32(0)).ravel()
    x, y = index % w, index // w
    for dy, dx in _nearest_first(max(1, round(0.9 * sigma))):
        inside = (x + dx >= 0) & (x + dx < w) & (y + dy >= 0) & (y + dy < image.shape[0])
        other = flat[xp.where(inside, index + (dy * w + dx), index)]
        # strict towards one half of the neighbours: a plateau has one peak
        keep = (flat[index] > other) if (dy, dx) > (0, 0) else (flat[index] >= other)
        keep |= ~inside
        index, x, y = index[keep], x[keep], y[keep]
    found = [to_host(a) for a in (x, y, snr.ravel()[index], flat[index])]
    order = np.lexsort((to_host(index), -found[2]))
    return Peaks(*(a[order] for a in (found[0], found[1], found[2].astype(float), found[3].astype(float))))


def _nearest_first(radius: int) -> list[tuple[int, int]]:
    """(dy, dx) of the pixels around one, inside a circle, the nearest first."""
    r = range(-radius, radius + 1)
    around = [(dy, dx) for dy in r for dx in r if (dy, dx) != (0, 0) and dy * dy + dx * dx <= radius * radius + 1]
    return sorted(around, key=lambda p: p[0] ** 2 + p[1] ** 2)


def _noise(exposure: Exposure, image: Array, good: Array, sigma: float) -> Any:
    """Variance of the smoothed image: that of a pixel times the sum of the filter's squares."""
    line = np.exp(-(np.arange(-int(3 * sigma + 0.5), int(3 * sigma + 0.5) + 1) ** 2) / (2 * sigma**2))
    gain = float((line**2).sum() / line.sum() ** 2) ** 2
    if exposure.variance is not None:
        return exposure.variance * np.float32(gain)
    sample = to_host(image[::4, ::4][good[::4, ::4]])
    spread = 1.4826 * np.median(np.abs(sample - np.median(sample))) if sample.size else 0.0
    return np.float32(spread) ** 2 * np.float32(gain)


def _first_width(image: Array, good: Array, peaks: Peaks) -> float:
    """FWHM (px) from the medians on rings around the brightest unspoilt peaks: neighbours hardly matter."""
    x, y = peaks.x[: 2 * BRIGHTEST], peaks.y[: 2 * BRIGHTEST]
    core = host_cutouts(good, x, y, 3).all(axis=(1, 2))
    pick = np.flatnonzero(core if core.any() else ~core)[:BRIGHTEST]
    half = 16
    stamps = host_cutouts(image, x[pick], y[pick], half)
    o = np.arange(-half, half + 1)
    ring = np.rint(np.hypot(o, o[:, None])).astype(int)
    profile = np.stack([np.median(stamps[:, ring == r], axis=1) for r in range(half + 1)], axis=1)
    profile /= np.where(profile[:, :1] > 0, profile[:, :1], 1)
    below = np.argmax(profile < 0.5, axis=1)
    below = np.where((profile < 0.5).any(axis=1), np.maximum(below, 1), half)
    row = np.arange(len(pick))
    high, low = profile[row, below - 1], profile[row, below]
    width = 2 * (below - 1 + np.clip((high - 0.5) / np.maximum(high - low, 1e-3), 0, 1))
    real = width > SHARPEST
    return float(np.clip(_mode(width[real] if real.any() else width), 1.2, 2.0 * half))


def _mode(values: np.ndarray) -> float:
    """Half-sample mode: the middle of the densest values."""
    v = np.sort(values)
    while len(v) > 3:
        k = (len(v) + 1) // 2
        start = int(np.argmin(v[k - 1 :] - v[: len(v) - k + 1]))
        v = v[start : start + k]
    return float(np.median(v))


def _clump(shapes: Shapes, snr: np.ndarray) -> float:
    """The most common width (px) of the brighter half of the peaks."""
    measured = np.isfinite(shapes.fwhm) & (shapes.fwhm > SHARPEST)
    if not measured.any():
        measured = np.isfinite(shapes.fwhm)
    if not measured.any():
        return 1.2 * SIGMA_TO_FWHM
    bright = measured & (snr >= np.median(snr[measured]))
    return max(float(np.exp(_mode(np.log(shapes.fwhm[bright if bright.sum() >= 3 else measured] + 1e-9)))), 1.2)


def _table(
    exposure: Exposure,
    peaks: Peaks,
    use: slice,
    stamps: np.ndarray,
    usable: np.ndarray,
    shapes: Shapes,
    clump: float,
    galaxies: bool,
) -> Stars:
    x, y = peaks.x[use] + shapes.x, peaks.y[use] + shapes.y
    snr, height = peaks.snr[use], peaks.height[use]
    o = np.arange(stamps.shape[1]) - stamps.shape[1] // 2
    r = np.hypot(o - shapes.x[:, None, None], (o[:, None]) - shapes.y[:, None, None])
    saturated = ((r <= max(1.5, clump)) & ~usable).any(axis=(1, 2))
    flux = (stamps * np.clip(1.5 * clump + 0.5 - r, 0, 1)).sum(axis=(1, 2))
    peak = np.where(r <= max(1.5, clump), stamps, -np.inf).max(axis=(1, 2))
    drifted = np.hypot(shapes.x, shapes.y) > max(1.5, 0.6 * clump)
    limits = LIKE_IT if galaxies else CLUMP
    verdict = _verdict(exposure.shape, x, y, snr, shapes, clump, limits, ~saturated & ~drifted)
    sharp, broad, long = (v & ~saturated for v in verdict)
    other = sharp | broad | long
    keep = saturated | (~(sharp if galaxies else other) & ~drifted & (flux > 0))
    tree = cKDTree(np.column_stack([peaks.x, peaks.y]))
    near = tree.query_ball_point(np.column_stack([peaks.x[use], peaks.y[use]]), NEIGHBOUR[0] * clump)
    alone = np.array([(peaks.height[n] > NEIGHBOUR[1] * s).sum() <= 1 for n, s in zip(near, height, strict=True)])
    rejected = {
        "too sharp": int(sharp.sum()),
        "too broad": int((broad & ~sharp & ~keep).sum()),
        "elongated": int((long & ~sharp & ~broad & ~keep).sum()),
        "off centre": int((drifted & ~saturated & ~(sharp | broad | long)).sum()),
    }
    compact = ~other if galaxies else np.ones(len(snr), bool)
    stars = Stars(x, y, flux, peak, snr, shapes.fwhm, shapes.ellipticity, alone, saturated, compact, rejected)
    return stars.take(np.flatnonzero(keep))


def _point_width(stamps: np.ndarray, shapes: Shapes, snr: np.ndarray, usable: np.ndarray, clump: float) -> float | None:
    """FWHM (px) of a point source in a field where galaxies prevail: no width is common. None where stars do."""
    bright = usable & np.isfinite(shapes.fwhm) & (shapes.fwhm > SHARPEST) & (snr >= 4 * THRESHOLD)
    if bright.sum() < 10 or (np.abs(np.log(shapes.fwhm[bright] / clump)) < 0.15).mean() >= COMMON:
        return None
    first = np.flatnonzero(bright & (shapes.ellipticity < 0.15))[:BRIGHT_ROUND]
    if not len(first):
        return None
    star = first[[np.argmin(shapes.fwhm[first])]]
    width = float(shapes.fwhm[star[0]])
    for _ in range(3):  # its neighbours count under a window of the galaxies' width
        again = float(measure_shapes(stamps[star], width).fwhm[0])
        width = again if SHARPEST < again < clump else width
    return width


def _verdict(
    shape: tuple[int, int],
    x: np.ndarray,
    y: np.ndarray,
    snr: np.ndarray,
    shapes: Shapes,
    clump: float,
    limits: tuple[float, float],
    trusted: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Peaks that are too sharp, too broad, too elongated for a star at their place."""
    with np.errstate(divide="ignore"):
        ratio = np.log(np.where(np.isfinite(shapes.fwhm), shapes.fwhm, np.inf) / clump)
    low, high = np.log(limits)
    noise = 2.0 / snr  # of ln(FWHM), 2 sigma
    near = trusted & (ratio > low - noise) & (ratio < high + noise)
    expected, tolerance = np.zeros(len(x)), np.full(len(x), np.inf)
    if near.sum() >= 30:
        expected, spread = _smooth_field(shape, x, y, ratio, near & (snr > np.median(snr[near])))
        tolerance = np.maximum(3.5 * spread, 0.06) + noise
    away = ratio - expected
    sharp = (ratio <= low - noise) | (away < -tolerance)
    broad = (ratio >= high + noise) | (away > tolerance)
    stars = near & ~sharp & ~broad
    usual = float(np.median(shapes.ellipticity[stars])) if stars.any() else 1.0
    spread = float(np.median(np.abs(shapes.ellipticity[stars] - usual))) if stars.any() else 0.0
    return sharp, broad, shapes.ellipticity > usual + max(6 * spread, 0.15) + noise


def _smooth_field(
    shape: tuple[int, int], x: np.ndarray, y: np.ndarray, values: np.ndarray, use: np.ndarray
) -> tuple[np.ndarray, float]:
    """Robust quadratic over the field through the values in use, at all positions, and the scatter around it."""
    terms = polynomial_terms(*Domain.of(shape).uv(x, y), 2).T
    spread, kept = np.inf, use
    fitted = np.full(len(x), np.median(values[use]))
    for _ in range(6):
        residual = values - fitted
        spread = 1.4826 * float(np.median(np.abs(residual[kept] - np.median(residual[kept]))))
        kept = use & (np.abs(residual) <= max(3 * spread, 0.02))
        if kept.sum() < 12:
            break
        fitted = terms @ np.linalg.lstsq(terms[kept], values[kept], rcond=None)[0]
    return fitted, spread
