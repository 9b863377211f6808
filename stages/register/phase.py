# SPDX-License-Identifier: BSD-3-Clause
"""A shift between images without stars, by phase correlation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from skydelta.errors import AlgorithmError
from skydelta.io.exposure import Exposure
from skydelta.kernels.backend import Array, Backend, to_host
from skydelta.kernels.core.tiles import Box
from skydelta.stages.robust import levels

PASSED = 0.12
"""Sigma of the Gaussian low-pass, cycles per px: beyond it images have little but noise."""

SIGNIFICANT = 12.0
"""Least height of the peak, robust standard deviations of the correlation."""

SECOND = 0.6
"""Largest height of any other peak, in units of the first."""

APART = 6
"""Another peak is at least so far away, px."""

TAPER = 0.15
"""Share of a side over which an image fades to nothing at its edges, on either side."""

LEAST_OVERLAP = 0.2


@dataclass(frozen=True)
class Shift:
    """x, y of the second image minus those of the first, px, and what speaks for it.

    Attributes
    ----------
    x, y : float
    significance : float
        Height of the peak, robust standard deviations.
    second : float
        Height of the next peak, in units of the first.
    overlap : float
        Part of the second image that the first covers.
    """

    x: float
    y: float
    significance: float
    second: float
    overlap: float


def phase_shift(first: Exposure, second: Exposure) -> Shift:
    """Shift between two exposures of the same orientation and pixel scale.

    The whitened cross-power spectrum under a Gaussian low-pass has a Gaussian peak of known width at the shift (Kuglin
    & Hines 1975).

    Raises
    ------
    AlgorithmError
        No peak that stands out, or two (``numbers``: significance, second_peak, shift_px, overlap_fraction).
    """
    backend = first.backend
    shape = tuple(backend.fft.next_fast_len(a + b, True) for a, b in zip(first.shape, second.shape, strict=True))
    spectra = [backend.fft.rfft2(_prepared(backend, e), s=shape) for e in (first, second.to(backend))]
    cross = spectra[1] * backend.xp.conj(spectra[0])
    cross /= backend.xp.maximum(abs(cross), np.float32(1e-30))
    fy, fx = np.fft.fftfreq(shape[0])[:, None], np.fft.rfftfreq(shape[1])
    cross *= backend.asarray(np.exp(-0.5 * (fx**2 + fy**2) / PASSED**2), np.float32)
    correlation = to_host(backend.fft.irfft2(cross, s=shape))
    return _refined(_judged(correlation, first.shape, second.shape), first, second.to(backend))


def _refined(found: Shift, first: Exposure, second: Exposure) -> Shift:
    """The fraction of a pixel from the slope of the phases (Stone et al. 2001) of what both have in common.

    Phases are weighed by the power they stand for. Both parts fade out alike, so that the window itself is not shifted.
    """
    backend = first.backend
    sx, sy = round(found.x), round(found.y)
    (h1, w1), (h2, w2) = first.shape, second.shape
    box = Box(max(0, -sy), min(h1, h2 - sy), max(0, -sx), min(w1, w2 - sx))
    parts = first.section(box), second.section(Box(box.y0 + sy, box.y1 + sy, box.x0 + sx, box.x1 + sx))
    shape = parts[0].shape
    a, b = (backend.fft.rfft2(_prepared(backend, p)) for p in parts)
    cross = b * backend.xp.conj(a)
    f = [backend.asarray(k, np.float32) for k in (np.fft.fftfreq(shape[0])[:, None], np.fft.rfftfreq(shape[1])[None])]
    weight = abs(cross) * backend.xp.exp(-0.5 * (f[0] ** 2 + f[1] ** 2) / np.float32(PASSED**2))
    angle = backend.xp.angle(cross) / np.float32(-2 * np.pi)
    right = [float(to_host((weight * angle * k).sum())) for k in f]
    left = [[float(to_host((weight * k * m).sum())) for m in f] for k in f]
    dy, dx = np.linalg.lstsq(np.array(left), np.array(right), rcond=None)[0]
    if max(abs(dx), abs(dy)) > 1:
        return found  # not the slope of one shift
    return replace(found, x=sx + float(dx), y=sy + float(dy))


def _prepared(backend: Backend, exposure: Exposure) -> Array:
    """The image without its level, single bad pixels and hard edges; unusable pixels are zero."""
    xp = backend.xp
    good = exposure.good()
    image = xp.where(good, exposure.image, np.float32(np.nan))
    level, spread = (float(v) for v in _level(image))
    flat = xp.where(good, image - np.float32(level), np.float32(0))
    flat = backend.ndimage.median_filter(flat, size=3, mode="nearest")
    limit = np.float32(50 * spread)
    if spread > 0:
        flat = xp.clip(flat, -limit, limit)
    rows, columns = (backend.asarray(_taper(n), np.float32) for n in exposure.shape)
    return flat * rows[:, None] * columns


def _level(image: Array) -> tuple[float, float]:
    median, spread, _ = to_host(levels(image))
    return (float(median), float(spread)) if np.isfinite(median) else (0.0, 0.0)


def _taper(n: int) -> np.ndarray:
    edge = np.minimum(np.arange(n) + 0.5, n - np.arange(n) - 0.5) / max(TAPER * n, 1)
    return 0.5 - 0.5 * np.cos(np.pi * np.clip(edge, 0, 1))


def _judged(correlation: np.ndarray, first: tuple[int, int], second: tuple[int, int]) -> Shift:
    h, w = correlation.shape
    middle = float(np.median(correlation))
    spread = 1.4826 * float(np.median(np.abs(correlation - middle)))
    y, x = (int(k) for k in np.unravel_index(int(correlation.argmax()), correlation.shape))
    peak = float(correlation[y, x]) - middle
    rolled = np.roll(correlation, (h // 2 - y, w // 2 - x), axis=(0, 1)) - middle
    cy, cx = h // 2, w // 2
    dy, dx = _summit(rolled[cy - 1 : cy + 2, cx]), _summit(rolled[cy, cx - 1 : cx + 2])
    around = rolled.copy()
    around[max(0, cy - APART) : cy + APART + 1, max(0, cx - APART) : cx + APART + 1] = 0
    shift_y, shift_x = (k + d if k <= n // 2 else k + d - n for k, d, n in ((y, dy, h), (x, dx, w)))
    significance = peak / spread if spread > 0 else 0.0
    other = float(around.max()) / peak if peak > 0 else 1.0
    overlap = 1.0
    for s, a, b in zip((shift_y, shift_x), first, second, strict=True):
        overlap *= max(0.0, min(b, a + s) - max(0.0, s)) / b
    numbers = {
        "significance": significance,
        "second_peak": other,
        "shift_px": [shift_x, shift_y],
        "overlap_fraction": overlap,
    }
    if significance < SIGNIFICANT or other > SECOND or overlap < LEAST_OVERLAP:
        raise AlgorithmError(
            f"phase correlation: a peak of {significance:.1f} standard deviations ({SIGNIFICANT:g} are needed), "
            f"the next {other:.2f} of it ({SECOND:g} are allowed), "
            f"overlap {overlap:.0%} ({LEAST_OVERLAP:.0%} is needed)",
            **numbers,
        )
    return Shift(float(shift_x), float(shift_y), significance, other, overlap)


def _summit(three: np.ndarray) -> float:
    """Where the parabola through the logarithms of three values has its top, -0.5 to 0.5."""
    if three.min() <= 0:
        return 0.0
    a, b, c = np.log(three)
    bend = a - 2 * b + c
    return float(np.clip(0.5 * (a - c) / bend, -0.5, 0.5)) if bend < 0 else 0.0
