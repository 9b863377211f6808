# SPDX-License-Identifier: BSD-3-Clause
"""Numba twins of the star kernels."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.jit import inline, parallel, prange, serial
from skydelta.kernels.stars import STILL, rings

BAND = 64
"""Rows that a thread smooths at a time."""


@inline
def _middle(total, a, tap):
    for x in range(total.size):
        total[x] = np.float64(a[x]) * tap


@inline
def _pair(total, a, b, tap):
    for x in range(total.size):
        total[x] += (np.float64(a[x]) + np.float64(b[x])) * tap


@inline
def _masked(image, good, out):
    for x in range(out.size):
        out[x] = np.float32(image[x]) if good[x] else np.float32(0)


@parallel
def _smooth_masked(image, good, taps, out):
    height, width = image.shape
    radius = taps.size - 1
    for band in prange((height + BAND - 1) // BAND):
        y0 = np.int64(band) * BAND  # prange counts in unsigned numbers
        y1 = min(height, y0 + BAND)
        rows = np.zeros((y1 - y0 + 2 * radius, width), np.float32)
        for y in range(max(0, y0 - radius), min(height, y1 + radius)):
            _masked(image[y], good[y], rows[y - y0 + radius])
        line = np.zeros(width + 2 * radius, np.float32)
        inner = line[radius : radius + width]
        total = np.empty(width)
        for y in range(y0, y1):
            middle = y - y0 + radius
            # far to near and in pairs, as scipy: mirror images give the same bits
            _middle(total, rows[middle], taps[0])
            for k in range(radius, 0, -1):
                _pair(total, rows[middle - k], rows[middle + k], taps[k])
            for x in range(width):
                inner[x] = np.float32(total[x])
            _middle(total, inner, taps[0])
            for k in range(radius, 0, -1):
                _pair(total, line[radius - k :], line[radius + k :], taps[k])
            _masked(total, good[y], out[y])


def smooth_masked(image: np.ndarray, good: np.ndarray, taps: np.ndarray) -> np.ndarray:
    out = np.empty(image.shape, np.float32)
    _smooth_masked(image, good, taps, out)
    return out


@inline
def _snr(light, good, noise, gain, out):
    for x in range(out.size):
        v = noise[x] * gain
        usable = good[x] and v > np.float32(0)
        s = light[x] / np.sqrt(v if usable else np.float32(1))
        out[x] = s if usable else np.float32(0)


@inline
def _is_peak(light, y, x, radius):
    v = light[y, x]
    for j in range(max(-radius, -y), min(radius + 1, light.shape[0] - y)):
        for i in range(max(-radius, -x), min(radius + 1, light.shape[1] - x)):
            if (i == 0 and j == 0) or j * j + i * i > radius * radius + 1:
                continue
            other = light[y + j, x + i]
            later = j > 0 or (j == 0 and i > 0)
            if other > v or (later and other == v):
                return False
    return True


@parallel
def _peak_snr(light, good, variance, gain, limit, radius, out):
    height, width = light.shape
    for row in prange(height):
        y = np.int64(row)
        line = out[y]
        _snr(light[y], good[y], variance[y % variance.shape[0]], gain, line)
        for x in range(width):
            if not (line[x] > limit and _is_peak(light, y, x, radius)):
                line[x] = np.float32(np.nan)


def light_peaks(
    light: np.ndarray, good: np.ndarray, variance: np.ndarray | None, gain: float, limit: np.ndarray, radius: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    snr = np.empty(light.shape, np.float32)
    plane = np.ones((1, light.shape[1]), np.float32) if variance is None else variance
    _peak_snr(light, good, plane, np.float32(gain), limit.ravel()[0], radius, snr)
    pixel = np.flatnonzero(~np.isnan(snr))
    return pixel.astype(np.int32), snr.ravel()[pixel], light.ravel()[pixel]


@serial
def _sample_snr(light, good, variance, gain, every, out):
    for y in range(out.shape[0]):
        noise = variance[y * every % variance.shape[0]]
        for x in range(out.shape[1]):
            v = noise[x * every] * gain
            usable = v > np.float32(0)
            s = light[y * every, x * every] / np.sqrt(v if usable else np.float32(1))
            if not good[y * every, x * every]:
                out[y, x] = np.float32(np.nan)
            else:
                out[y, x] = s if usable else np.float32(0)


def sample_snr(light: np.ndarray, good: np.ndarray, variance: np.ndarray | None, gain: float, every: int) -> np.ndarray:
    plane = np.ones((1, light.shape[1]), np.float32) if variance is None else variance
    out = np.empty([-(-n // every) for n in light.shape], np.float32)
    _sample_snr(light, good, plane, np.float32(gain), every, out)
    return out


@inline
def _ranked_distance(ascending, n, centre, split, rank):
    """The rank-th smallest (from 0) of |a - centre|: sorted leftwards before ``split`` and rightwards from there."""
    low, high = max(0, rank - (n - split)), min(rank, split)
    while low < high:
        left = (low + high) // 2
        if abs(ascending[split - 1 - left] - centre) < abs(ascending[split + rank - left - 1] - centre):
            low = left + 1
        else:
            high = left
    best = np.float32(np.inf)
    if low < split:
        best = abs(ascending[split - 1 - low] - centre)
    if split + rank - low < n:
        best = min(best, abs(ascending[split + rank - low] - centre))
    return best


@serial
def _robust_levels(ascending, times, least, out):
    n = 0
    high = ascending.size
    while n < high:
        middle = (n + high) // 2
        if np.isnan(ascending[middle]):
            high = middle
        else:
            n = middle + 1
    if n == 0:
        out[:] = np.nan
        return
    half = np.float32(0.5)
    centre = (ascending[(n - 1) // 2] + ascending[n // 2]) * half
    split = np.searchsorted(ascending[:n], centre)
    inner = _ranked_distance(ascending, n, centre, split, (n - 1) // 2)
    outer = _ranked_distance(ascending, n, centre, split, n // 2)
    spread = np.float32(1.4826) * ((inner + outer) * half)
    out[0], out[1], out[2] = centre, spread, centre + times * max(least, spread)


def robust_levels(ascending: np.ndarray, times: float, least: float) -> np.ndarray:
    out = np.empty(3, np.float32)
    _robust_levels(ascending, np.float32(times), np.float32(least), out)
    return out


@inline
def _usable(good, y, x):
    return 0 <= y < good.shape[0] and 0 <= x < good.shape[1] and good[y, x]


@inline
def _clean(good, y, x, core):
    """All pixels of the square around one are usable."""
    for j in range(-core, core + 1):
        for i in range(-core, core + 1):
            if not _usable(good, y + j, x + i):
                return False
    return True


@inline
def _median(values):
    """Mean of the two middle values; reorders them (Hoare's selection)."""
    n = values.size
    middle, low, high = n // 2, 0, n - 1
    while low < high:
        pivot = values[middle]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while pivot < values[j]:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if j < middle:
            low = i
        if middle < i:
            high = j
    upper = np.float64(values[middle])
    if n % 2:
        return upper
    lower = values[0]
    for i in range(1, middle):
        lower = max(lower, values[i])
    return (np.float64(lower) + upper) / 2


@parallel
def _ring_medians(image, good, pixel, member, start, core, table):
    width = image.shape[1]
    for k in prange(pixel.size):
        y, x = pixel[k] // width, pixel[k] % width
        table[k, start.size - 1] = 1.0 if _clean(good, y, x, core) else 0.0
        values = np.zeros(member.shape[0], np.float32)
        for i in range(member.shape[0]):
            if _usable(good, y + member[i, 0], x + member[i, 1]):
                values[i] = image[y + member[i, 0], x + member[i, 1]]
        for r in range(start.size - 1):
            table[k, r] = _median(values[start[r] : start[r + 1]])


def ring_medians(image: np.ndarray, good: np.ndarray, pixel: np.ndarray, half: int, core: int) -> np.ndarray:
    table = np.empty((pixel.size, half + 2))
    _ring_medians(image, good, pixel, *rings(half), core, table)
    return table


@inline
def _window(w, d, half, centre, variance):
    """Gaussian weights and offsets of the pixels of a line from a centre."""
    for i in range(2 * half + 1):
        d[i] = i - half - centre
        w[i] = np.exp(-d[i] * d[i] / (2 * variance))


@inline
def _moments(stamp, wx, dx, wy, dy, columns, s):
    """Sums of light times weight times 1, x, y, x^2, xy, y^2."""
    m = wx.size
    columns[:] = 0.0
    for j in range(m):
        w0 = wy[j]
        w1 = w0 * dy[j]
        w2 = w1 * dy[j]
        for i in range(m):
            v = np.float64(stamp[j, i])
            columns[0, i] += v * w0
            columns[1, i] += v * w1
            columns[2, i] += v * w2
    s[:] = 0.0
    for i in range(m):
        x1 = wx[i] * dx[i]
        s[0] += columns[0, i] * wx[i]
        s[1] += columns[0, i] * x1
        s[2] += columns[1, i] * wx[i]
        s[3] += columns[0, i] * x1 * dx[i]
        s[4] += columns[1, i] * x1
        s[5] += columns[2, i] * wx[i]


@inline
def _limited(step):
    """A step of the centroid: at most 1 px, none where it is not a number."""
    return 0.0 if np.isnan(step) else min(max(step, -1.0), 1.0)


@parallel
def _star_shapes(image, good, pixel, half, core, sigma, iterations, measures):
    width = image.shape[1]
    m, variance = 2 * half + 1, sigma * sigma
    for k in prange(pixel.size):
        y, x = pixel[k] // width, pixel[k] % width
        measures[4, k] = 1.0 if _clean(good, y, x, core) else 0.0
        stamp = np.zeros((m, m), np.float32)
        for j in range(m):
            for i in range(m):
                if _usable(good, y + j - half, x + i - half):
                    stamp[j, i] = image[y + j - half, x + i - half]
        wx, dx, wy, dy, s = np.empty(m), np.empty(m), np.empty(m), np.empty(m), np.empty(6)
        columns = np.empty((3, m))
        cx = cy = 0.0
        for _ in range(iterations):
            _window(wx, dx, half, cx, variance)
            _window(wy, dy, half, cy, variance)
            _moments(stamp, wx, dx, wy, dy, columns, s)
            nx = min(max(cx + _limited(2 * s[1] / s[0]), -half), half)
            ny = min(max(cy + _limited(2 * s[2] / s[0]), -half), half)
            arrived = abs(nx - cx) < STILL and abs(ny - cy) < STILL
            cx, cy = nx, ny
            if arrived:
                break
        _window(wx, dx, half, cx, variance)
        _window(wy, dy, half, cy, variance)
        _moments(stamp, wx, dx, wy, dy, columns, s)
        mx, my = s[1] / s[0], s[2] / s[0]
        xx, xy, yy = s[3] / s[0] - mx * mx, s[4] / s[0] - mx * my, s[5] / s[0] - my * my
        mid, spread = (xx + yy) / 2, np.hypot((xx - yy) / 2, xy)
        major, minor = mid + spread, max(mid - spread, 0.0)
        measures[0, k], measures[1, k] = cx, cy
        measures[2, k], measures[3, k] = np.inf, 1.0
        if s[0] > 0 and np.isfinite(xx + yy + xy) and major < variance:
            # each eigenvalue freed of the window: 1 / c = 1 / m - 1 / w
            major, minor = major * variance / (variance - major), minor * variance / (variance - minor)
            measures[2, k] = np.sqrt(np.sqrt(major * minor)) if minor > 0 else 0.0
            if major > 0:
                measures[3, k] = 1 - np.sqrt(minor / major)


def star_shapes(
    image: np.ndarray, good: np.ndarray, pixel: np.ndarray, half: int, core: int, sigma: float, iterations: int = 10
) -> np.ndarray:
    measures = np.empty((5, pixel.size))
    _star_shapes(image, good, pixel, half, core, sigma, iterations, measures)
    return measures


@parallel
def _star_apertures(image, good, pixel, centre, half, aperture, core, measures):
    width = image.shape[1]
    for k in prange(pixel.size):
        y, x = pixel[k] // width, pixel[k] % width
        flux, peak, bad = 0.0, -np.inf, False
        for j in range(-half, half + 1):
            for i in range(-half, half + 1):
                dx, dy = i - centre[0, k], j - centre[1, k]
                r = np.sqrt(dx * dx + dy * dy)
                weight = min(max(aperture + 0.5 - r, 0.0), 1.0)
                if weight == 0 and r > core:
                    continue
                usable = _usable(good, y + j, x + i)
                v = np.float64(image[y + j, x + i]) if usable else 0.0
                flux += v * weight
                if r <= core:
                    peak = max(peak, v)
                    bad = bad or not usable
        measures[0, k], measures[1, k], measures[2, k] = flux, peak, 1.0 if bad else 0.0


def star_apertures(
    image: np.ndarray,
    good: np.ndarray,
    pixel: np.ndarray,
    centre: np.ndarray,
    half: int,
    aperture: float,
    core: float,
) -> np.ndarray:
    measures = np.empty((3, pixel.size))
    _star_apertures(image, good, pixel, centre, half, aperture, core, measures)
    return measures


@inline
def _first_at_least(sorted_, value):
    """Index of the first element that is not below a value."""
    low, high = 0, sorted_.size
    while low < high:
        middle = (low + high) // 2
        if sorted_[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@parallel
def _neighbours(pixel, height, star, width, radius, share, counts):
    rows = np.int64(radius)
    for k in prange(star.size):
        y0, x0 = np.int64(pixel[star[k]]) // width, np.int64(pixel[star[k]]) % width
        level = share * np.float64(height[star[k]])
        n = 0
        for i in range(_first_at_least(pixel, (y0 - rows) * width), pixel.size):
            y, x = np.int64(pixel[i]) // width, np.int64(pixel[i]) % width
            if y > y0 + rows:
                break
            near = np.float64((x - x0) ** 2 + (y - y0) ** 2) <= radius * radius
            n += near and np.float64(height[i]) > level
        counts[k] = n


def neighbours(
    pixel: np.ndarray, height: np.ndarray, star: np.ndarray, width: int, radius: float, share: float
) -> np.ndarray:
    counts = np.empty(star.size, np.int32)
    _neighbours(pixel, height, star, width, radius, share, counts)
    return counts
