# SPDX-License-Identifier: BSD-3-Clause
"""Numba twins of the PSF kernels: a star a loop turn, or a row of pixels where stars are summed."""

from __future__ import annotations

import math

import numpy as np

from skydelta.kernels.cpu.jit import inline, parallel, prange, serial
from skydelta.kernels.psf import (
    MARGIN,
    MODEL_ERROR,
    NO_WIDTH,
    OWN,
    PIXEL_CLIP,
    SCALE_BOUND,
    SHAPE_BOUND,
    SHAPE_ERROR,
    Row,
)

FLUX, SKY, RESIDUAL, BROADER, ERROR, CHI2, EXCESS, PEAK = (int(r) for r in Row)
SIGMA_TO_FWHM = math.sqrt(8 * math.log(2))
TINY = float(np.finfo(float).tiny)


BLOCK = 16
"""Pixels that sums over stars are made for together: so few that a BLAS library does not start threads of its own."""


@inline
def _window(fade):
    """1, and sin^2 towards the ends."""
    w = fade.shape[0]
    fade[:] = 1.0
    for i in range(MARGIN):
        fade[i] = fade[w - 1 - i] = math.sin(math.pi / 2 * (i + 0.5) / MARGIN) ** 2


@inline
def _shift_weights(t, weights, shift):
    """Weights (w, m) of the pixels of a larger stamp for those of a stamp that is moved by ``t``."""
    w, m = shift.shape
    for i in range(2 * w - 1):
        d = w - 1 - i + t
        weights[i] = math.sin(math.pi * d) / (w * math.sin(math.pi * d / w)) if d != 0 else 1.0
    for r in range(w):
        for k in range(m):
            shift[r, k] = weights[w - 1 + MARGIN - r + k]


@serial
def _star_stamp(image, variance, mask, invalid, x, y, values, own, usable):
    """One stamp; returns the typical variance."""
    height, width = image.shape
    m = values.shape[0]
    w = m + 2 * MARGIN
    i, j = round(x), round(y)
    good, stamp, filled = np.zeros((w, w), np.bool_), np.zeros((w, w)), np.empty((w, w))
    fade, weights, shift = np.empty(w), np.empty(2 * w - 1), np.empty((w, m))
    for r in range(w):
        b = j + r - w // 2
        for c in range(w):
            a = i + c - w // 2
            if b < 0 or a < 0 or b >= height or a >= width or not math.isfinite(image[b, a]):
                continue
            if mask.size and mask[b, a] & invalid != 0:
                continue
            if variance.size and not (variance[b, a] > 0 and math.isfinite(variance[b, a])):
                continue
            good[r, c] = True
            stamp[r, c] = image[b, a]
    _window(fade)
    for r in range(w):
        for c in range(w):
            value = stamp[r, c] if good[r, c] else stamp[w - 1 - r, w - 1 - c]
            filled[r, c] = value * fade[r] * fade[c]
    _shift_weights(i - x, weights, shift)
    along = np.dot(filled, shift)
    _shift_weights(j - y, weights, shift)
    values[:] = np.dot(shift.T, along)
    found, count = np.empty(m * m, np.float32), 0
    for r in range(m):
        for c in range(m):
            usable[r, c] = good[r + MARGIN, c + MARGIN]
            if usable[r, c] and variance.size:
                found[count] = variance[j + r - m // 2, i + c - m // 2]
                count += 1
    typical = 0.0
    if count:
        middle = (count - 1) // 2
        typical = float(np.partition(found[:count], middle)[middle])
    for r in range(m):
        for c in range(m):
            inside = usable[r, c] and variance.size
            own[r, c] = variance[j + r - m // 2, i + c - m // 2] if inside else typical
    return typical


@parallel
def _star_stamps(image, variance, mask, invalid, x, y, values, own, usable, typical):
    for s in prange(len(x)):
        typical[s] = _star_stamp(image, variance, mask, invalid, x[s], y[s], values[s], own[s], usable[s])


def star_stamps(
    image: np.ndarray,
    variance: np.ndarray | None,
    mask: np.ndarray | None,
    invalid: int,
    x: np.ndarray,
    y: np.ndarray,
    half: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    n, m = len(x), 2 * half + 1
    out = np.empty((n, m, m)), np.empty((n, m, m)), np.empty((n, m, m), bool), np.empty(n)
    variance = np.empty((0, 0), np.float32) if variance is None else variance
    mask = np.empty((0, 0), np.int32) if mask is None else mask
    _star_stamps(image, variance, mask, np.int32(invalid), x, y, *out)
    return out


@inline
def _place(coefficients, phi):
    """ln a, e1 and e2 of a star."""
    log_a, e1, e2 = 0.0, 0.0, 0.0
    for p in range(phi.shape[0]):
        log_a += coefficients[0, p] * phi[p]
        e1 += coefficients[1, p] * phi[p]
        e2 += coefficients[2, p] * phi[p]
    middle = coefficients[0, 0]
    log_a = min(max(log_a, middle - SCALE_BOUND), middle + SCALE_BOUND)
    return log_a, min(max(e1, -SHAPE_BOUND), SHAPE_BOUND), min(max(e2, -SHAPE_BOUND), SHAPE_BOUND)


@serial
def _star_sums(values, kept, flux, sky, noise, phi, coefficients, slope, reach, out):
    """One row of `profile_sums`."""
    m = values.shape[0]
    half = m // 2
    log_a, e1, e2 = _place(coefficients, phi)
    beta, rest, scale = 1 + math.exp(slope), 1 - e1 * e1 - e2 * e2, math.exp(-2 * log_a)
    shear = 1 / math.sqrt(rest)
    amplitude = flux * math.exp(slope) * scale / math.pi
    a, b, c = np.zeros((5, 5)), np.zeros(5), np.empty(5)
    span = min(int(reach), half)
    for y in range(half - span, half + span + 1):
        dy = float(y - half)
        for x in range(half - span, half + span + 1):
            dx = float(x - half)
            if dx * dx + dy * dy > reach * reach or not kept[y, x]:
                continue
            r2 = shear * ((1 - e1) * dx * dx - 2 * e2 * dx * dy + (1 + e1) * dy * dy)
            u = r2 * scale
            log_u = math.log(1 + u)
            value = math.exp(-beta * log_u)
            by_r2 = -amplitude * beta * scale * value / (1 + u)
            c[0] = value
            c[1] = -2 * r2 * by_r2
            c[2] = by_r2 * (shear * (dy * dy - dx * dx) + r2 * e1 / rest)
            c[3] = by_r2 * (-2 * shear * dx * dy + r2 * e2 / rest)
            c[4] = -amplitude * value * log_u * (beta - 1)
            soft = SHAPE_ERROR * amplitude * value
            w = 1 / (noise * noise + soft * soft)
            left = values[y, x] - sky - amplitude * value
            for i in range(5):
                wc = w * c[i]
                for j in range(i, 5):
                    a[i, j] += wc * c[j]
                b[i] += wc * left
    if not a[0, 0] > 0:
        return
    for i in range(1, 5):
        for j in range(1, 5):
            both = a[min(i, j), max(i, j)]
            out[4 * (i - 1) + j - 1] = both - a[0, i] * a[0, j] / a[0, 0]
        out[15 + i] = b[i] - a[0, i] * b[0] / a[0, 0]


@parallel
def _profile_sums(values, kept, flux, sky, noise, used, phi, coefficients, slope, reach, out):
    for s in prange(values.shape[0]):
        if used[s]:
            _star_sums(values[s], kept[s], flux[s], sky[s], noise[s], phi[s], coefficients, slope, reach, out[s])


def profile_sums(
    values: np.ndarray,
    kept: np.ndarray,
    flux: np.ndarray,
    sky: np.ndarray,
    noise: np.ndarray,
    used: np.ndarray,
    phi: np.ndarray,
    coefficients: np.ndarray,
    slope: float,
    reach: float,
) -> np.ndarray:
    out = np.zeros((len(values), 20))
    _profile_sums(values, kept, flux, sky, noise, used, phi, coefficients, float(slope), float(reach), out)
    return out


@serial
def _profile_stamp(phi, coefficients, slope, stamp):
    """One profile of unit sum; a pixel and the opposite one are alike."""
    m = stamp.shape[0]
    log_a, e1, e2 = _place(coefficients, phi)
    beta, scale = 1 + math.exp(slope), math.exp(-2 * log_a)
    shear = scale / math.sqrt(1 - e1 * e1 - e2 * e2)
    flat, last, total = stamp.reshape(m * m), m * m - 1, 0.0
    for i in range(last // 2 + 1):
        dy, dx = float(i // m - m // 2), float(i % m - m // 2)
        u = shear * ((1 - e1) * dx * dx - 2 * e2 * dx * dy + (1 + e1) * dy * dy)
        value = math.exp(-beta * math.log(1 + u))
        flat[i] = value
        total += 2 * value
    over = 1 / (total - flat[last // 2])
    for i in range(last // 2 + 1):
        flat[i] *= over
        flat[last - i] = flat[i]


@parallel
def _profile_stamps(phi, coefficients, slope, out):
    for s in prange(out.shape[0]):
        _profile_stamp(phi[s], coefficients, slope, out[s])


def profile_stamps(phi: np.ndarray, coefficients: np.ndarray, slope: float, side: int) -> np.ndarray:
    out = np.empty((len(phi), side, side))
    if len(phi) == 1:  # waking other threads would take longer
        _profile_stamp(phi[0], coefficients, float(slope), out[0])
    else:
        _profile_stamps(phi, coefficients, float(slope), out)
    return out


@serial
def _solve(a, b):
    """Solve for ``b`` in place by Cholesky; the lower triangle of ``a`` becomes the factor."""
    n = b.shape[0]
    for i in range(n):
        for j in range(i + 1):
            v = a[i, j]
            for k in range(j):
                v -= a[i, k] * a[j, k]
            a[i, j] = math.sqrt(v) if i == j else v / a[j, j]
    for i in range(n):
        for k in range(i):
            b[i] -= a[i, k] * b[k]
        b[i] /= a[i, i]
    for i in range(n - 1, -1, -1):
        for k in range(i + 1, n):
            b[i] -= a[k, i] * b[k]
        b[i] /= a[i, i]


@parallel
def _pixel_departure(values, kept, profiles, flux, sky, star, phi, information, out):
    n, count = values.shape
    n_p = phi.shape[1]
    pairs = np.empty((n_p * n_p, n))
    for s in range(n):
        for p in range(n_p):
            for q in range(n_p):
                pairs[p * n_p + q, s] = phi[s, p] * phi[s, q]
    for block in prange((count + BLOCK - 1) // BLOCK):
        first = block * BLOCK
        size = min(BLOCK, count - first)
        w, d = np.zeros((n, BLOCK)), np.zeros((n, BLOCK))
        for s in range(n):
            if star[s] > 0:
                v, k, p = values[s, first:], kept[s, first:], profiles[s, first:]
                over = 1 / flux[s]
                for x in range(size):
                    w[s, x] = star[s] if k[x] else 0.0
                    d[s, x] = w[s, x] * ((v[x] - sky[s]) * over - p[x])
        matrices, sides = np.dot(pairs, w), np.dot(phi.T, d)
        a, b = np.empty((n_p, n_p)), np.empty(n_p)
        for x in range(size):
            for p in range(n_p):
                for q in range(p + 1):
                    a[p, q] = matrices[p * n_p + q, x] + 1e-6 * information[p, q]
                b[p] = sides[p, x]
            _solve(a, b)
            for p in range(n_p):
                out[p, first + x] = b[p]


def pixel_departure(
    values: np.ndarray,
    kept: np.ndarray,
    profiles: np.ndarray,
    flux: np.ndarray,
    sky: np.ndarray,
    noise: np.ndarray,
    used: np.ndarray,
    phi: np.ndarray,
) -> np.ndarray:
    n, m = values.shape[:2]
    peak = profiles[:, m // 2, m // 2]
    star = used / ((noise / flux) ** 2 + (MODEL_ERROR * peak) ** 2)
    information = (phi * star[:, None]).T @ phi
    out = np.empty((phi.shape[1], m * m + phi.shape[1]))
    out[:, m * m :] = information
    flat = [a.reshape(n, -1) for a in (values, kept, profiles)]
    _pixel_departure(*flat, flux, sky, star, phi, information, out)
    return out


@serial
def _model(profile, phi, departure, model):
    """Model of unit sum; returns its largest pixel. Stamps are flat."""
    for i in range(model.shape[0]):
        model[i] = profile[i]
    for p in range(phi.shape[0]):
        f, image = phi[p], departure[p]
        for i in range(model.shape[0]):
            model[i] += f * image[i]
    total, largest = 0.0, -math.inf
    for i in range(model.shape[0]):
        total += model[i]
        largest = max(largest, model[i])
    over = 1 / total
    for i in range(model.shape[0]):
        model[i] *= over
    return largest * over


@serial
def _fit_flux(values, kept, model):
    """Flux and sky level by linear least squares. Stamps are flat."""
    s1, sp, spp, sv, spv = 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(model.shape[0]):
        if kept[i]:
            p, v = model[i], values[i]
            s1 += 1
            sp += p
            spp += p * p
            sv += v
            spv += p * v
    determinant = max(s1 * spp - sp * sp, 1e-30)
    return (s1 * spv - sp * sv) / determinant, (spp * sv - sp * spv) / determinant


@serial
def _residual(values, variance, usable, model, flux, sky, deviation, kept):
    """Star minus model, zero where unusable, and the pixels that are not clipped. Stamps are flat."""
    for i in range(model.shape[0]):
        signal = flux * model[i]
        d = values[i] - sky - signal
        kept[i] = usable[i] & (d * d < PIXEL_CLIP * PIXEL_CLIP * (variance[i] + 0.01 * signal * signal))
        deviation[i] = d if usable[i] else 0.0


@serial
def _compare(variance, usable, model, deviation, flux, fwhm, kept, rows):
    """All sums of a star over the pixels around its centre."""
    m = model.shape[0]
    half = m // 2
    span = min(int(1.5 * fwhm), half)
    count, chi2, square, expected = 0, 0.0, 0.0, 0.0
    power, cross, own, by_mode, by_model = 0.0, 0.0, 0.0, 0.0, 0.0
    for y in range(half - span, half + span + 1):
        dy, above, below = y - half, max(y - 1, 0), min(y + 1, m - 1)
        for x in range(half - span, half + span + 1):
            dx, left, right = x - half, max(x - 1, 0), min(x + 1, m - 1)
            r2 = float(dx * dx + dy * dy)
            if not usable[y, x] or r2 > 2.25 * fwhm * fwhm:
                continue
            d, v, p = deviation[y, x], variance[y, x], model[y, x]
            # differences, one-sided at the ends
            by_x = (model[y, right] - model[y, left]) / (right - left)
            by_y = (model[below, x] - model[above, x]) / (below - above)
            w, mode = 1 / v, -(2 * p + dx * by_x + dy * by_y)
            power += w * p * p
            cross += w * p * mode
            own += w * mode * mode
            by_mode += w * d * mode
            by_model += w * d * p
            if r2 <= fwhm * fwhm:
                count += 1
                chi2 += d * d * w
                square += d * d
                expected += v
            if r2 <= 0.25 * fwhm * fwhm:
                kept[y, x] = True
    power = max(power, TINY)
    information = max(own - cross * cross / power, TINY)
    if flux == 0:
        rows[BROADER], rows[ERROR] = 0.0, NO_WIDTH
    else:
        rows[BROADER] = (by_mode - by_model * cross / power) / (information * flux)
        rows[ERROR] = min(1 / (math.sqrt(information) * abs(flux)), NO_WIDTH)
    free = max(count - OWN, 1)
    rows[CHI2] = chi2 / free
    rows[EXCESS] = (square / free - expected / max(count, 1)) / (rows[PEAK] * rows[PEAK])


@serial
def _strongest(deviation, model, blurred, flux, fwhm, taps, lines):
    """Largest signal-to-noise of the filtered residual within 2 FWHM; ``lines`` is (2, m, m) scratch."""
    m, width = model.shape[0], taps.shape[0] // 2
    half = m // 2
    search = min(int(2 * fwhm), half)
    low, high = max(half - search - width, 0), min(half + search + width, m - 1)
    left, right = half - search, half + search + 1
    # slices, so that no index may count from the end: then the loops along x are vectors
    for y in range(low, high + 1):
        for x in range(left, right):
            lines[0, y, x] = 0.0
            lines[1, y, x] = 0.0
        for k in range(-width, width + 1):
            t, first, end = taps[width + k], max(left, -k), min(right, m - k)
            a, b = lines[0, y, first:end], lines[1, y, first:end]
            from_a, from_b = deviation[y, first + k : end + k], model[y, first + k : end + k]
            for x in range(a.shape[0]):
                a[x] += t * from_a[x]
                b[x] += t * from_b[x]
    best, d, p = 0.0, np.empty(m), np.empty(m)
    for y in range(left, right):
        d[:] = 0
        p[:] = 0
        for k in range(max(-width, low - y), min(width, high - y) + 1):
            t = taps[width + k]
            a, b = lines[0, y + k], lines[1, y + k]
            for x in range(left, right):
                d[x] += t * a[x]
                p[x] += t * b[x]
        for x in range(left, right):
            if (x - half) ** 2 + (y - half) ** 2 <= 4 * fwhm * fwhm:
                own = MODEL_ERROR * flux * p[x]
                best = max(best, abs(d[x]) / math.sqrt(blurred[y, x] + own * own))
    return best


@parallel
def _compare_stars(values, variance, usable, kept, profiles, phi, departure, blurred, fwhm, taps, rows, after):
    m = blurred.shape[1]
    for s in prange(values.shape[0]):
        model, deviation, lines = np.empty((m, m)), np.empty((m, m)), np.empty((2, m, m))
        row, pixels = np.empty(rows.shape[0]), model.reshape(m * m)
        largest = _model(profiles[s], phi[s], departure, pixels)
        flux, sky = _fit_flux(values[s], kept[s], pixels)
        row[FLUX], row[SKY], row[PEAK] = flux, sky, flux * largest
        _residual(values[s], variance[s], usable[s], pixels, flux, sky, deviation.reshape(m * m), after[s])
        v, u, k = variance[s].reshape(m, m), usable[s].reshape(m, m), after[s].reshape(m, m)
        _compare(v, u, model, deviation, flux, fwhm, k, row)
        row[RESIDUAL] = _strongest(deviation, model, blurred[s], flux, fwhm, taps, lines)
        for i in range(rows.shape[0]):
            rows[i, s] = row[i]


def compare_stars(
    values: np.ndarray,
    variance: np.ndarray,
    usable: np.ndarray,
    kept: np.ndarray,
    profiles: np.ndarray,
    phi: np.ndarray,
    departure: np.ndarray,
    blurred: np.ndarray,
    fwhm: float,
) -> tuple[np.ndarray, np.ndarray]:
    sigma = fwhm / SIGMA_TO_FWHM
    o = np.arange(-int(3 * sigma + 0.5), int(3 * sigma + 0.5) + 1)
    taps = np.exp(-0.5 * (o / sigma) ** 2)
    rows, after = np.empty((len(Row), len(values))), np.empty(values.shape, bool)
    flat = [a.reshape(len(values), -1) for a in (values, variance, usable, kept, profiles)]
    flat += [phi, departure.reshape(len(departure), -1)]
    _compare_stars(*flat, blurred, float(fwhm), taps / taps.sum(), rows, after.reshape(len(values), -1))
    return rows, after
