# SPDX-License-Identifier: BSD-3-Clause
"""Lines of light in an image: where the strongest one is, how far it reaches, how wide it is and what it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skydelta.kernels.backend import Array, Backend, to_host
from skydelta.kernels.radon import line_sums

CLIP = 3.0
"""Pixels count up to this many standard deviations: stars weigh no more than a streak."""

WIDTHS = (1, 2, 4)
"""Widths of the lines that are looked for, binned px."""

PIECE = 16
"""Length of the pieces in which a line is followed, px."""

HALF = 40
"""Half-width of the strip around a line that is looked at, px."""

ROBUST = 1.4826


@dataclass(frozen=True)
class Line:
    """A straight line of light.

    Attributes
    ----------
    start, end : (float, float)
        x, y of its ends, px.
    fwhm : float
        Across it, px.
    level : float
        Median of its brightest pixels, standard deviations of the noise of a pixel.
    snr : float
        Median light along it over the error of that.
    reach : float
        Distance from its axis up to which its light is seen, px.
    pieces : float64 (n,)
        Light in pieces of `PIECE` px from start to end, as ``level``.
    whole : bool
        It leaves the image at both ends.
    """

    start: tuple[float, float]
    end: tuple[float, float]
    fwhm: float
    level: float
    snr: float
    reach: float
    pieces: np.ndarray
    whole: bool

    @property
    def length(self) -> float:
        return float(np.hypot(self.end[0] - self.start[0], self.end[1] - self.start[1]))

    @property
    def angle(self) -> float:
        """Degrees from +x towards +y, 0 to 180."""
        return float(np.degrees(np.arctan2(self.end[1] - self.start[1], self.end[0] - self.start[0])) % 180)

    def along(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Place along the line from its start, and distance from its axis, of positions; px."""
        tx, ty = ((b - a) / self.length for a, b in zip(self.start, self.end, strict=True))
        dx, dy = x - self.start[0], y - self.start[1]
        return dx * tx + dy * ty, dy * tx - dx * ty

    def area(self, backend: Backend, shape: tuple[int, int], reach: float) -> Array:
        """Pixels within ``reach`` of the line: bool ``shape``, on the backend."""
        xp = backend.xp
        y, x = xp.arange(shape[0], dtype=np.float32)[:, None], xp.arange(shape[1], dtype=np.float32)
        u, v = self.along(x, y)
        return (xp.abs(v) <= np.float32(reach)) & (u >= np.float32(-reach)) & (u <= np.float32(self.length + reach))


@dataclass(frozen=True)
class Segment:
    """A line of the transform: ends in binned px, and its significance."""

    start: tuple[float, float]
    end: tuple[float, float]
    significance: float


def strongest(image: np.ndarray, weight: np.ndarray, least: int) -> Segment | None:
    """The most significant line.

    Parameters
    ----------
    image : float32 (h, w)
        Of unit variance where ``weight`` is 1, times its weight.
    weight : float32 (h, w)
        Share of the pixel that counts.
    least : int
        Length of the shortest line, px.
    """
    best: Segment | None = None
    for turned in (False, True):
        for mirrored in (False, True):
            light, part = (np.ascontiguousarray(_oriented(p, turned, mirrored)) for p in (image, weight))
            found = _strongest_of(light, part, least)
            if found is None or (best is not None and found.significance <= best.significance):
                continue
            ends = [found.start, found.end]
            if mirrored:
                ends = [(light.shape[1] - 1 - x, y) for x, y in ends]
            if turned:
                ends = [(y, x) for x, y in ends]
            best = Segment(ends[0], ends[1], found.significance)
    return best


def _oriented(plane: np.ndarray, turned: bool, mirrored: bool) -> np.ndarray:
    plane = plane.T if turned else plane
    return plane[:, ::-1] if mirrored else plane


def _strongest_of(image: np.ndarray, weight: np.ndarray, least: int) -> Segment | None:
    """Of the lines 0 to 45 degrees off the columns."""
    best: Segment | None = None
    for (rows, sums), (_, weights) in zip(line_sums(image), line_sums(weight), strict=True):
        n = sums.shape[2] - image.shape[1]
        if 2 * rows < least:
            continue
        for width in WIDTHS:
            x_last = sums.shape[2] - width + 1
            light, part = sums[:, :, :x_last].copy(), weights[:, :, :x_last].copy()
            for k in range(1, width):
                light += sums[:, :, k : x_last + k]
                part += weights[:, :, k : x_last + k]
            with np.errstate(invalid="ignore", divide="ignore"):
                score = np.where(part >= 0.6 * width * min(least, rows), light / np.sqrt(part), np.float32(np.nan))
            known = score[np.isfinite(score)]
            if not known.size:
                continue
            sample = known[:: max(known.size // 20_000, 1)]
            middle = float(np.median(sample))
            spread = max(ROBUST * float(np.median(np.abs(sample - middle))), 1.0)
            p, s, x = np.unravel_index(np.nanargmax(score), score.shape)
            value = (float(score[p, s, x]) - middle) / spread
            if best is None or value > best.significance:
                left = float(x) - n + (width - 1) / 2
                best = Segment((left, float(p * rows)), (left + float(s), float(p * rows + rows - 1)), value)
    return best


class Tracer:
    """Follows a line at full resolution.

    Parameters
    ----------
    plane : float32 (H, W)
        Sky-subtracted image over its noise, NaN where it does not count; on any device.
    backend : Backend
    """

    def __init__(self, plane: Array, backend: Backend) -> None:
        self.plane, self.backend = plane, backend
        self.shape = plane.shape

    def follow(self, start: tuple[float, float], end: tuple[float, float], slack: float) -> Line | None:
        """The line near a first guess of its ends, which may be ``slack`` px off; None when there is none."""
        for wander in (slack, 2.0):
            ends = _to_border(start, end, self.shape)
            if ends is None:
                return None
            u, strip = self._strip(*ends)
            seen = [self._place(p, *ends) for p in (start, end)]
            part = (u >= min(seen)) & (u <= max(seen))
            if part.sum() < 2 * PIECE:
                return None
            offsets = _fitted(u[part], strip[part], wander)
            length = float(np.hypot(ends[1][0] - ends[0][0], ends[1][1] - ends[0][1]))
            low, high = (offsets[0] + (offsets[1] - offsets[0]) * (at - u[part][0]) / np.ptp(u[part]) for at in seen)
            tx, ty = ((b - a) / length for a, b in zip(*ends, strict=True))
            start, end = (
                (ends[0][0] + at * tx - off * ty, ends[0][1] + at * ty + off * tx)
                for at, off in zip(seen, (low, high), strict=True)
            )
        ends = _to_border(start, end, self.shape)
        if ends is None:
            return None
        u, strip = self._strip(*ends)
        return self._measured(ends, u, strip, *sorted(self._place(p, *ends) for p in (start, end)))

    @staticmethod
    def _place(p: tuple[float, float], a: tuple[float, float], b: tuple[float, float]) -> float:
        """How far along the line from a to b."""
        length = float(np.hypot(b[0] - a[0], b[1] - a[1]))
        return ((p[0] - a[0]) * (b[0] - a[0]) + (p[1] - a[1]) * (b[1] - a[1])) / length

    def _strip(self, a: tuple[float, float], b: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
        """Places along a line, px, and the nearest pixels across it (n, 2 `HALF` + 1), NaN outside."""
        length = float(np.hypot(b[0] - a[0], b[1] - a[1]))
        u = np.arange(int(length) + 1, dtype=float)
        tx, ty = (b[0] - a[0]) / length, (b[1] - a[1]) / length
        v = np.arange(-HALF, HALF + 1)
        x = np.rint(a[0] + u[:, None] * tx - v * ty).astype(int)
        y = np.rint(a[1] + u[:, None] * ty + v * tx).astype(int)
        h, w = self.shape
        inside = (x >= 0) & (y >= 0) & (x < w) & (y < h)
        index = np.where(inside, y * w + x, 0).astype(np.int32)
        values = to_host(self.plane.ravel()[self.backend.asarray(index)])
        return u, np.where(inside, values, np.float32(np.nan))

    def _measured(
        self, ends: tuple[tuple[float, float], tuple[float, float]], u: np.ndarray, strip: np.ndarray, low: float,
        high: float,
    ) -> Line | None:  # fmt: skip
        """Extent, profile and light of the line in the middle of a strip; it is seen from ``low`` to ``high``."""
        count = len(u) // PIECE
        if count < 2:
            return None
        parts = strip[: count * PIECE].reshape(count, PIECE, -1)
        cut = np.clip(parts, -10 * CLIP, 10 * CLIP)
        known = np.isfinite(cut)
        number = known.sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = np.where(known, cut, 0).sum(axis=1) / number  # (piece, v)
        v = np.arange(-HALF, HALF + 1)
        middles = (np.arange(count) + 0.5) * PIECE
        active = (middles >= low) & (middles <= high)
        active |= np.abs(middles - (low + high) / 2) <= PIECE
        core_half = 2
        for _ in range(3):
            far = np.abs(v) > min(4 * core_half + 4, HALF - 8)
            level = _nanmedian(means[:, far], 1)
            near = np.abs(v) <= core_half
            light = _nanmean(means[:, near], 1) - level
            noise = 1 / np.sqrt(np.maximum(number[:, near].sum(axis=1), 1))
            typical = float(_nanmedian(light[active], 0))
            if not np.isfinite(typical) or typical <= 0:
                return None
            active = _longest(light, typical)
            profile = _nanmedian(means[active] - level[active][:, None], 0)
            fwhm = _width(v, profile)
            core_half = int(np.clip(round(fwhm / 2), 1, HALF // 5))
        measured = np.isfinite(light[active])
        pieces = light[active][measured]
        if not len(pieces):
            return None
        error = 1.2533 * float(np.median(noise[active])) / np.sqrt(len(pieces))
        first, last = np.flatnonzero(active)[[0, -1]]
        begin = 0.0 if first <= 1 else first * PIECE
        stop = u[-1] if last >= count - 2 else (last + 1.0) * PIECE
        spread = 1.2533 / np.sqrt(max(active.sum() * PIECE, 1))
        tx, ty = ((b - a) / max(u[-1], 1) for a, b in zip(*ends, strict=True))
        return Line(
            (ends[0][0] + begin * tx, ends[0][1] + begin * ty),
            (ends[0][0] + stop * tx, ends[0][1] + stop * ty),
            fwhm,
            float(np.nanmax(profile)),
            float(np.median(pieces)) / error,
            _reach(v, profile, max(0.2, 2.5 * spread), fwhm),
            pieces,
            bool(begin == 0.0 and stop == u[-1]),
        )


def _nanmedian(values: np.ndarray, axis: int) -> np.ndarray:
    """Median of what is finite, NaN where nothing is; silent."""
    some = np.isfinite(values).any(axis=axis, keepdims=True)
    out = np.nanmedian(np.where(some, values, 0), axis=axis)
    return np.where(some.squeeze(axis), out, np.nan)


def _nanmean(values: np.ndarray, axis: int) -> np.ndarray:
    known = np.isfinite(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(known, values, 0).sum(axis=axis) / known.sum(axis=axis)


def _to_border(
    a: tuple[float, float], b: tuple[float, float], shape: tuple[int, int]
) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Where the line through two points enters and leaves the image."""
    h, w = shape
    d = np.array([b[0] - a[0], b[1] - a[1]], float)
    length = float(np.hypot(*d))
    if length == 0:
        return None
    d /= length
    low, high = -np.inf, np.inf
    for at, step, size in ((a[0], d[0], w), (a[1], d[1], h)):
        if abs(step) < 1e-12:
            if not -0.5 <= at <= size - 0.5:
                return None
            continue
        near, far = sorted(((0 - at) / step, (size - 1 - at) / step))
        low, high = max(low, near), min(high, far)
    if high - low < 2 * PIECE:
        return None
    return (a[0] + low * d[0], a[1] + low * d[1]), (a[0] + high * d[0], a[1] + high * d[1])


def _fitted(u: np.ndarray, strip: np.ndarray, slack: float) -> tuple[float, float]:
    """Offsets across a strip, at its first and last place, of the line with the most light."""
    cut = np.where(np.isfinite(strip), np.clip(strip, -CLIP, CLIP), 0)
    o = np.arange(-4, 5)
    taps = np.exp(-0.5 * (o / 1.5) ** 2)
    smooth = sum(t * np.roll(cut, k, axis=1) for t, k in zip(taps, o, strict=True))
    steps = np.arange(-slack, slack + 0.25, 0.5)
    rows, at = np.arange(len(u)), (u - u[0]) / max(float(np.ptp(u)), 1.0)
    best = (-np.inf, 0.0, 0.0)
    for first in steps:
        for last in steps:
            v = first + (last - first) * at + HALF
            k = np.floor(v).astype(int)
            part = v - k
            total = float(((1 - part) * smooth[rows, k] + part * smooth[rows, k + 1]).sum())
            if total > best[0]:
                best = (total, float(first), float(last))
    return best[1], best[2]


def _longest(light: np.ndarray, typical: float) -> np.ndarray:
    """The run of pieces with the largest sum of light above half of what is typical: bool (n,)."""
    gain = np.clip(np.nan_to_num(light, nan=typical / 2), -typical, 2 * typical) - typical / 2
    best, total, begin = (-np.inf, 0, 0), 0.0, 0
    for k, g in enumerate(gain):
        if total <= 0:
            total, begin = 0.0, k
        total += g
        if total > best[0]:
            best = (total, begin, k + 1)
    out = np.zeros(len(light), bool)
    out[best[1] : best[2]] = True
    return out


def _width(v: np.ndarray, profile: np.ndarray) -> float:
    """FWHM of a profile around its highest point near the middle, px; what is NaN counts as light."""
    near = np.abs(v) <= 6
    top = float(np.nanmax(np.where(near, profile, np.nan))) if np.isfinite(profile[near]).any() else np.nan
    if not np.isfinite(top) or top <= 0:
        return float(len(v))
    p = np.where(np.isfinite(profile), profile, top)
    peak = int(np.argmax(np.where(near, p, -np.inf)))
    sides = []
    for step in (1, -1):
        k = peak
        while 0 < k + step < len(p) - 1 and p[k + step] > top / 2:
            k += step
        beyond = min(max(k + step, 0), len(p) - 1)
        fall = p[k] - p[beyond]
        sides.append(abs(k - peak) + (float((p[k] - top / 2) / fall) if fall > 0 else 1.0))
    return float(sum(sides))


def _reach(v: np.ndarray, profile: np.ndarray, limit: float, fwhm: float) -> float:
    """Distance up to which a profile, smoothed over three px, stays above a limit on either side."""
    p = np.where(np.isfinite(profile), profile, np.inf)
    padded = np.pad(p, 1, mode="edge")
    p = (padded[:-2] + padded[1:-1] + padded[2:]) / 3
    reach = 0
    for side in (p[HALF:], p[HALF::-1]):
        below = np.flatnonzero(side <= limit)
        reach = max(reach, int(below[0]) if len(below) else HALF)
    return max(reach + 0.5, 1.0 * fwhm)
