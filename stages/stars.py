# SPDX-License-Identifier: BSD-3-Clause
"""Stars of a sky-subtracted image: found, centred and sorted into isolated, blended and saturated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np

from skydelta.io.exposure import Exposure
from skydelta.io.field import Domain, polynomial_terms
from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.kernels.convolve import gaussian_taps
from skydelta.kernels.cpu.jit import inline, serial
from skydelta.kernels.stars import (
    light_peaks,
    neighbours,
    ring_medians,
    sample_snr,
    smooth_masked,
    star_apertures,
    star_shapes,
)
from skydelta.stages.robust import levels, median

THRESHOLD = 8.0
"""Least signal-to-noise of the smoothed image at a peak."""

SMOOTHING = 1.2
"""Gaussian sigma of the first detection filter, px: right for FWHM of 1.5 to `BROAD` px."""

BROAD = 5.5
"""FWHM, px, above which the image is searched again with a filter of the stars' own width."""

BRIGHTEST = 300
"""Peaks that the first estimate of the width rests on."""

MOST = 5000
"""Peaks that are measured, the brightest ones; fewer where their windows have more than `WINDOW_PIXELS` together."""

WINDOW_PIXELS = 8_000_000

CORE = (3, 2)
"""Half-size, px, of the square that must be usable for a peak to tell the first width, and the width of points."""

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

ALIKE = 0.05
"""Scatter of ln(FWHM) of the brighter peaks around a smooth field of widths, where stars prevail: 0.01 to 0.04, also
where they are crowded; of galaxies, which may have a common width too, 0.07 and more."""

NARROWER = (0.1, 0.05)
"""Where stars prevail, less than this share (second) of the brighter peaks is round and narrower than the field by more
than this in ln(FWHM) (first): measured at most 0.01; where galaxies do, the stars are: 0.06 and more."""

ROUND = 0.15
"""Largest ellipticity of a round peak."""

LIKE_IT = (0.75, 1.12)
"""Widths of stars among galaxies relative to the narrowest bright one."""

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
    """Local maxima of the smoothed image.

    Attributes
    ----------
    pixel, light : int32 (n,) and float32 (n,)
        y W + x and height in raster order, on the image's device.
    order, ordered : int32 (n,)
        Rows of those, highest signal-to-noise first, and their pixels; on the device.
    x, y, snr : (n,)
        On the host, in that order.
    """

    pixel: Array
    light: Array
    order: Array
    ordered: Array
    x: np.ndarray
    y: np.ndarray
    snr: np.ndarray

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Shapes:
    """Gaussian-weighted moments: centre relative to the peak (px; ``centre`` is both on the device), FWHM, ellipticity.

    ``clean`` tells where all pixels at the peak are usable.
    """

    centre: Array
    x: np.ndarray
    y: np.ndarray
    fwhm: np.ndarray
    ellipticity: np.ndarray
    clean: np.ndarray


@dataclass(frozen=True)
class PeakWindows:
    """The surroundings of peaks: planes and pixel numbers on the device, half-size in px."""

    image: Array
    good: Array
    pixel: Array
    half: int

    def shapes(self, fwhm: float) -> Shapes:
        """Moments under a Gaussian window of the stars' own width (px), `WINDOW` at least."""
        sigma = max(fwhm, WINDOW) / SIGMA_TO_FWHM
        measures = star_shapes(self.image, self.good, self.pixel, self.half, CORE[1], sigma)
        x, y, size, ellipticity, clean = to_host(measures)
        return Shapes(measures[:2], x, y, SIGMA_TO_FWHM * size, ellipticity, clean > 0)

    def only(self, k: int) -> PeakWindows:
        """The k-th one."""
        return PeakWindows(self.image, self.good, self.pixel[k : k + 1], self.half)


def find_stars(exposure: Exposure) -> Stars:
    """Find and measure the stars of a sky-subtracted exposure.

    Peaks of the smoothed signal-to-noise map above `THRESHOLD` (of the noise measured in the map where that exceeds
    the variance plane's) are measured in windows. Cosmic rays, galaxies and blends leave by the clump of widths, which
    may vary over the field. Only tables of the peaks go to the host.

    Parameters
    ----------
    exposure : Exposure
        On any backend; without variance the noise is measured.

    Returns
    -------
    Stars
        Possibly empty.
    """
    exposure = exposure.single()
    backend = exposure.backend
    image, good = backend.asarray(exposure.image), backend.asarray(exposure.good())
    variance = None if exposure.variance is None else backend.asarray(exposure.variance)
    peaks = _peaks(image, good, variance, SMOOTHING)
    if not len(peaks):
        return _empty({})
    width = _first_width(image, good, peaks)
    if width > BROAD:
        sharp = peaks
        peaks = _peaks(image, good, variance, min(width / SIGMA_TO_FWHM, 8.0))
        peaks = peaks if len(peaks) else sharp
    half = int(np.ceil(np.clip(2.0 * width, 5, 40)))
    rows = peaks.order[: min(MOST, WINDOW_PIXELS // (2 * half + 1) ** 2)]
    windows = PeakWindows(image, good, peaks.ordered[: len(rows)], half)
    shapes, snr = windows.shapes(width), peaks.snr[: len(rows)]
    clump = _clump(shapes, snr)
    if abs(np.log(clump / width)) > 0.1:
        shapes = windows.shapes(clump)
    point = _point_width(peaks, windows, shapes, snr, clump)
    if point is not None:
        clump, shapes = point, windows.shapes(point)
    return _table(peaks, rows, windows, shapes, clump, point is not None)


def _empty(rejected: Mapping[str, int]) -> Stars:
    none, no = np.zeros(0), np.zeros(0, bool)
    return Stars(none, none, none, none, none, none, none, no, no, no, rejected)


def _peaks(image: Array, good: Array, variance: Array | None, sigma: float) -> Peaks:
    """Local maxima of the image smoothed by a Gaussian of ``sigma`` px, in units of its noise."""
    taps = gaussian_taps(sigma)
    light = smooth_masked(image, good, taps)
    # variance of the smoothed image: that of a pixel times the sum of the filter's squares
    gain = float((2 * (taps**2).sum() - taps[0] ** 2) ** 2)
    if variance is None:
        gain *= _pixel_noise(image, good) ** 2
    limit = _limit(light, good, variance, gain)
    pixel, snr, height = light_peaks(light, good, variance, gain, limit, max(1, round(0.9 * sigma)))
    order = _descending(snr)
    ordered = pixel[order]
    # everything that the device needs in one copy
    table = backend_of(image).asarray(np.stack([pixel, height.view(np.int32), order, ordered]))
    y, x = np.divmod(ordered, np.int32(image.shape[1]))
    return Peaks(table[0], table[1].view(np.float32), table[2], table[3], x, y, snr[order].astype(float))


def _descending(values: np.ndarray) -> np.ndarray:
    """Rows (int32) of float32 numbers, the largest first, equal ones in order."""
    bits = values.view(np.int32)
    # as integers these sort as the numbers do
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys = (-bits.astype(np.int64) << 32) + np.arange(len(values))
    keys.sort()
    return (keys & 0xFFFFFFFF).astype(np.int32)


def _limit(light: Array, good: Array, variance: Array | None, gain: float) -> Array:
    """Least S/N of a peak, float32 (1,) on the device; NaN without a usable pixel."""
    every = max(1, int(np.sqrt(light.size / 2e5)))
    # the measured spread counts where it is larger: correlated noise, crowding
    return levels(sample_snr(light, good, variance, gain, every), THRESHOLD, 1.0)[2:]


def _pixel_noise(image: Array, good: Array) -> float:
    """Robust standard deviation of the usable pixels; 0 without any."""
    spread = float(levels(sample_snr(image, good, None, 1.0, 4))[1])
    return spread if np.isfinite(spread) else 0.0


def _first_width(image: Array, good: Array, peaks: Peaks) -> float:
    """FWHM (px) from the medians on rings around the brightest unspoilt peaks: neighbours hardly matter."""
    half = 16
    table = to_host(ring_medians(image, good, peaks.ordered[: 2 * BRIGHTEST], half, CORE[0]))
    core = table[:, -1] > 0
    profile = table[np.flatnonzero(core if core.any() else ~core)[:BRIGHTEST], :-1]
    profile /= np.where(profile[:, :1] > 0, profile[:, :1], 1)
    below = np.argmax(profile < 0.5, axis=1)
    below = np.where((profile < 0.5).any(axis=1), np.maximum(below, 1), half)
    row = np.arange(len(profile))
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
    return float(median(v))


def _clump(shapes: Shapes, snr: np.ndarray) -> float:
    """The most common width (px) of the brighter half of the peaks."""
    measured = np.isfinite(shapes.fwhm) & (shapes.fwhm > SHARPEST)
    if not measured.any():
        measured = np.isfinite(shapes.fwhm)
    if not measured.any():
        return 1.2 * SIGMA_TO_FWHM
    bright = measured & (snr >= median(snr[measured]))
    return max(float(np.exp(_mode(np.log(shapes.fwhm[bright if bright.sum() >= 3 else measured] + 1e-9)))), 1.2)


def _table(peaks: Peaks, rows: Array, windows: PeakWindows, shapes: Shapes, clump: float, galaxies: bool) -> Stars:
    shape = windows.image.shape
    use = slice(len(rows))
    x, y, snr = peaks.x[use] + shapes.x, peaks.y[use] + shapes.y, peaks.snr[use]
    measures = star_apertures(
        windows.image, windows.good, windows.pixel, shapes.centre, windows.half, 1.5 * clump, max(1.5, clump)
    )
    near = neighbours(peaks.pixel, peaks.light, rows, shape[1], NEIGHBOUR[0] * clump, NEIGHBOUR[1])
    flux, peak, spoilt = to_host(measures)
    saturated, alone = spoilt > 0, to_host(near) <= 1
    drifted = np.hypot(shapes.x, shapes.y) > max(1.5, 0.6 * clump)
    verdict = _verdict(shape, x, y, snr, shapes, clump, galaxies, ~saturated & ~drifted)
    sharp, broad, long = (v & ~saturated for v in verdict)
    other = sharp | broad | long
    keep = saturated | (~(sharp if galaxies else other) & ~drifted & (flux > 0))
    rejected = {
        "too sharp": int(sharp.sum()),
        "too broad": int((broad & ~sharp & ~keep).sum()),
        "elongated": int((long & ~sharp & ~broad & ~keep).sum()),
        "off centre": int((drifted & ~saturated & ~(sharp | broad | long)).sum()),
    }
    compact = ~other if galaxies else np.ones(len(snr), bool)
    stars = Stars(x, y, flux, peak, snr, shapes.fwhm, shapes.ellipticity, alone, saturated, compact, rejected)
    return stars.take(np.flatnonzero(keep))


def _point_width(peaks: Peaks, windows: PeakWindows, shapes: Shapes, snr: np.ndarray, clump: float) -> float | None:
    """FWHM (px) of a point source in a field where galaxies prevail; None where stars do.

    Stars have one width at one place. The widths of galaxies scatter, even where they crowd around a common one, and
    then the stars are the narrowest round sources.
    """
    bright = shapes.clean & np.isfinite(shapes.fwhm) & (shapes.fwhm > SHARPEST) & (snr >= 4 * THRESHOLD)
    if bright.sum() < 10:
        return None
    away = np.log(np.where(bright, shapes.fwhm, clump) / clump)
    rounded = bright & (shapes.ellipticity < ROUND)
    if (np.abs(away[bright]) < 0.15).mean() >= COMMON:
        near = bright & (away > np.log(CLUMP[0])) & (away < np.log(CLUMP[1]))
        use = slice(len(snr))
        x, y = peaks.x[use] + shapes.x, peaks.y[use] + shapes.y
        expected, spread = _smooth_field(windows.image.shape, x, y, away, near)
        narrower = near & rounded & (away - expected < -NARROWER[0])
        if spread <= ALIKE and narrower.sum() < NARROWER[1] * near.sum():
            return None
    first = np.flatnonzero(rounded)
    if not len(first):
        return None
    star = int(first[np.argmin(shapes.fwhm[first])])
    width = float(shapes.fwhm[star])
    for _ in range(3):  # its neighbours count under a window of the galaxies' width
        again = float(windows.only(star).shapes(width).fwhm[0])
        width = again if SHARPEST < again < clump else width
    return width


def _verdict(
    shape: tuple[int, int],
    x: np.ndarray,
    y: np.ndarray,
    snr: np.ndarray,
    shapes: Shapes,
    clump: float,
    galaxies: bool,
    trusted: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Peaks that are too sharp, too broad, too elongated for a star at their place."""
    with np.errstate(divide="ignore"):
        ratio = np.log(np.where(np.isfinite(shapes.fwhm), shapes.fwhm, np.inf) / clump)
    low, high = np.log(LIKE_IT if galaxies else CLUMP)
    noise = 2.0 / snr  # of ln(FWHM), 2 sigma
    near = trusted & (ratio > low - noise) & (ratio < high + noise)
    expected, tolerance = np.zeros(len(x)), np.full(len(x), np.inf)
    if near.sum() >= 30:
        bright = near & (snr > median(snr[near]))
        field, spread = _smooth_field(shape, x, y, ratio, bright if bright.any() else near)
        if spread <= ALIKE or not galaxies:
            expected, tolerance = field, np.maximum(3.5 * spread, 0.06) + noise
    away = ratio - expected
    sharp = (ratio <= low - noise) | (away < -tolerance)
    # a faint galaxy may look as narrow as a star; a faint star is not needed
    broad = (ratio >= high + (0 if galaxies else noise)) | (away > tolerance)
    stars = near & ~sharp & ~broad
    usual = median(shapes.ellipticity[stars]) if stars.any() else 1.0
    spread = median(np.abs(shapes.ellipticity[stars] - usual)) if stars.any() else 0.0
    return sharp, broad, shapes.ellipticity > usual + max(6 * spread, 0.15) + noise


def _smooth_field(
    shape: tuple[int, int], x: np.ndarray, y: np.ndarray, values: np.ndarray, use: np.ndarray
) -> tuple[np.ndarray, float]:
    """Robust quadratic over the field through the values in use, at all positions, and the scatter around it."""
    terms = polynomial_terms(*Domain.of(shape).uv(x, y), 2)
    basis, values = np.ascontiguousarray(terms[:, use].T), values[use]
    solution, spread = _field(basis, values)
    return solution @ terms, spread


@inline
def _field_step(basis, values, solution, kept):
    """The scatter of the kept values (n,) about a solution, which of all to keep then (in place; their number and
    whether they are others than before), and the normal equations of these. ``basis`` is (n, n_p)."""
    n, n_p = basis.shape
    residual, left, count = np.empty(n), np.empty(n), 0
    for i in range(n):
        residual[i] = values[i]
        for p in range(n_p):
            residual[i] -= solution[p] * basis[i, p]
        if kept[i]:
            left[count] = residual[i]
            count += 1
    left = left[:count]
    spread = 1.4826 * np.median(np.abs(left - np.median(left)))
    limit, count, changed = max(3 * spread, 0.02), 0, False
    normal, right = np.zeros((n_p, n_p)), np.zeros(n_p)
    for i in range(n):
        keep = abs(residual[i]) <= limit
        changed |= keep != kept[i]
        kept[i] = keep
        count += keep
        if keep:
            for p in range(n_p):
                right[p] += basis[i, p] * values[i]
                for q in range(p + 1):
                    normal[p, q] += basis[i, p] * basis[i, q]
    for p in range(n_p):
        for q in range(p):
            normal[q, p] = normal[p, q]
    return spread, count, changed, normal, right


@serial
def _field(basis, values):
    """Coefficients of a robust polynomial through values (n,) and the scatter around it; ``basis`` is (n, n_p)."""
    kept, solution = np.ones(len(values), np.bool_), np.zeros(basis.shape[1])
    solution[0] = np.median(values)  # the first one is a constant
    for step in range(6):
        spread, count, changed, normal, right = _field_step(basis, values, solution, kept)
        if count < 12 or (step and not changed):
            break
        # least norm where the stars lie on a line
        solution = np.linalg.lstsq(normal, right, 1e-14)[0]
    return solution, spread
