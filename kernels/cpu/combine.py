# SPDX-License-Identifier: BSD-3-Clause
"""CPU kernels of the combination of images; `skydelta.kernels.combine` says what each does."""

from __future__ import annotations

import math

import numpy as np

from skydelta.kernels.cpu.jit import inline, parallel, prange

COUNT = 0x3FFFFFFF
"""Bits of a number of used images; the next one says that they are of the second choice."""

SECOND = 0x40000000

SORTED = 32
"""Up to so many values are sorted by insertion."""

OUTLIER, SUSPECT = 1, 2

_EQUAL, _EXPOSURE, _PIXEL = range(3)


def present(plane: np.ndarray | None) -> np.ndarray:
    """A missing plane as an empty one: one compiled signature for both."""
    return np.empty((0, 0), np.float32) if plane is None else plane


@inline
def _choice(value, variance, has_variance, mask, bits):
    """1 for a good pixel, 2 for one that counts where there is no good one, 0 for none."""
    if not math.isfinite(value) or (has_variance and not (variance > 0 and math.isfinite(variance))):
        return 0
    bad = mask & bits[0]
    if bad == 0:
        return 1
    return 2 if (bad & ~bits[1]) == 0 else 0


@inline
def _covers(choice, value, variance, has_variance, mask, bits):
    """Whether an image has something to say about a pixel, good or bad."""
    if choice != 0:
        return True
    return (mask & bits[2]) == 0 and math.isfinite(value) and (not has_variance or variance > 0)


@inline
def _moved(value, terms, y, x):
    return terms[0] * value - (terms[1] + terms[2] * (x - terms[4]) + terms[3] * (y - terms[5]))


@parallel
def add(image, variance, mask, share, y0, x0, terms, pixel_weights, bits, totals, states):
    for y in prange(image.shape[0]):
        for x in range(image.shape[1]):
            m, yy, xx = mask[y, x], y + y0, x + x0
            v = variance[y, x] if variance.size else np.float32(0)
            choice = _choice(image[y, x], v, variance.size > 0, m, bits)
            if _covers(choice, image[y, x], v, variance.size > 0, m, bits):
                states[1, yy, xx] += 1
            used = states[0, yy, xx]
            if choice == 1 and used >= SECOND:  # the first good value displaces the others
                states[0, yy, xx] = used = 0
                states[3, yy, xx] |= states[2, yy, xx]
                states[2, yy, xx] = 0
                for k in range(3):
                    totals[k, yy, xx] = 0.0
            if choice == 0 or (choice == 2 and 0 < used < SECOND):
                states[3, yy, xx] |= m
                continue
            scaled = terms[0] * terms[0] * v
            w = terms[6] / scaled if pixel_weights else terms[6]
            if share.size:
                w *= share[y, x]
            totals[0, yy, xx] += w * _moved(image[y, x], terms, yy, xx)
            totals[1, yy, xx] += w
            totals[2, yy, xx] += w * w * scaled
            states[0, yy, xx] = (used + 1) | (SECOND if choice == 2 else 0)
            states[2, yy, xx] |= m


@inline
def _flags(used, covered, used_bits, other_bits, bits):
    """The mask of a combined pixel."""
    if used == 0:
        return other_bits | bits[2]
    return used_bits | bits[3] if covered > used else used_bits


@parallel
def finish(totals, states, bits, image, variance, mask, weight):
    for y in prange(image.shape[0]):
        for x in range(image.shape[1]):
            w = totals[1, y, x]
            used = states[0, y, x] & COUNT
            image[y, x] = totals[0, y, x] / w if used else np.nan
            variance[y, x] = totals[2, y, x] / (w * w) if used else np.nan
            weight[y, x] = w
            mask[y, x] = _flags(used, states[1, y, x], states[2, y, x], states[3, y, x], bits)


@parallel
def place(image, variance, mask, share, y0, x0, first, terms, values, variances, masks, shares):
    for row in prange(values.shape[0]):
        y = row + first - y0
        if 0 <= y < image.shape[0]:
            for x in range(image.shape[1]):
                value = _moved(image[y, x], terms, y + y0, x + x0)
                if variance.size:
                    v = terms[0] * terms[0] * variance[y, x]
                    variances[row, x + x0] = v
                    if not (v > 0 and math.isfinite(v)):
                        value = np.nan
                values[row, x + x0] = value
                masks[row, x + x0] = mask[y, x]
                if share.size:
                    shares[row, x + x0] = share[y, x]


@inline
def _sort(values, n):
    """The first n numbers in order, in place."""
    if n > SORTED:
        values[:n] = np.sort(values[:n])
        return
    for i in range(1, n):
        v = values[i]
        j = i - 1
        while j >= 0 and values[j] > v:
            values[j + 1] = values[j]
            j -= 1
        values[j + 1] = v


@inline
def _middle(values, n):
    """Median of the first n numbers; they are sorted by it."""
    _sort(values, n)
    return values[n // 2] if n % 2 else 0.5 * (values[n // 2 - 1] + values[n // 2])


@inline
def _chosen(values, masks, y, x, bits, choices):
    """Which choice each image is at a pixel, into ``choices``; returns the best one there is (0: none), the number of
    images of it, the number that cover the pixel, and the bits of those in use and of the others."""
    n = values.shape[0]
    best, covered = 0, 0
    for i in range(n):
        m = masks[i, y, x]
        choices[i] = _choice(values[i, y, x], np.float32(1), False, m, bits)
        if _covers(choices[i], values[i, y, x], np.float32(1), False, m, bits):
            covered += 1
        if choices[i] == 1 or (choices[i] == 2 and best == 0):
            best = choices[i]
    used, used_bits, other_bits = 0, np.int32(0), np.int32(0)
    for i in range(n):
        if choices[i] == best and best != 0:
            used += 1
            used_bits |= masks[i, y, x]
        else:
            other_bits |= masks[i, y, x]
    return best, used, covered, used_bits, other_bits


@parallel
def median(values, variances, masks, bits, halo, factors, image, noise, mask, count, weight):
    n = values.shape[0]
    for row in prange(image.shape[0]):
        choices = np.empty(n, np.int8)
        buffer = np.empty(n)
        y = row + halo
        for x in range(image.shape[1]):
            best, used, covered, used_bits, other_bits = _chosen(values, masks, y, x, bits, choices)
            mask[row, x] = _flags(used, covered, used_bits, other_bits, bits)
            count[row, x] = used
            weight[row, x] = used
            if used == 0:
                image[row, x] = noise[row, x] = np.nan
                continue
            k, total, inverse = 0, 0.0, 0.0
            for i in range(n):
                if choices[i] == best:
                    buffer[k] = values[i, y, x]
                    total += variances[i, y, x]
                    inverse += 1.0 / math.sqrt(variances[i, y, x])
                    k += 1
            image[row, x] = _middle(buffer, k)
            noise[row, x] = total / (k * k) if k <= 2 else factors[k] * k / (inverse * inverse)


@parallel
def centre(values, variances, masks, bits, terms, middle, excess, error):
    """Median (of two values: the lower), median of variance over sky variance, and standard error of the median."""
    n = values.shape[0]
    for y in prange(middle.shape[0]):
        choices = np.empty(n, np.int8)
        buffer = np.empty(n)
        ratios = np.empty(n)
        for x in range(middle.shape[1]):
            best, used, _, _, _ = _chosen(values, masks, y, x, bits, choices)
            if used == 0:
                middle[y, x] = excess[y, x] = error[y, x] = np.nan
                continue
            k, total = 0, 0.0
            for i in range(n):
                if choices[i] == best:
                    buffer[k] = values[i, y, x]
                    ratios[k] = variances[i, y, x] / terms[i, 7]
                    total += terms[i, 7]
                    k += 1
            middle[y, x] = _middle(buffer, k) if k != 2 else min(buffer[0], buffer[1])
            excess[y, x] = _middle(ratios, k)
            error[y, x] = math.sqrt(1.5 * excess[y, x] * total) / k


@parallel
def judge(values, masks, bits, terms, middle, excess, error, sky, sigma, core, judged):
    """Mark good values that are far from the median: `OUTLIER`, or `SUSPECT` beyond half the distance."""
    n, h, w = values.shape
    for y in prange(h):
        for x in range(w):
            if math.isnan(middle[y, x]):
                continue
            top = middle[y, x]
            for yy in range(max(y - 1, 0), min(y + 2, h)):
                for xx in range(max(x - 1, 0), min(x + 2, w)):
                    top = max(top, middle[yy, xx])
            signal = max(top - sky[y, x] - 3.0 * error[y, x], 0.0)
            used, other = 0, 0.0
            for i in range(n):
                if (masks[i, y, x] & bits[0]) == 0 and math.isfinite(values[i, y, x]):
                    used += 1
                    other += terms[i, 7]
            for i in range(n):
                if (masks[i, y, x] & bits[0]) != 0 or not math.isfinite(values[i, y, x]):
                    continue
                spread = excess[y, x] * (terms[i, 7] if used > 2 else other)
                limit = sigma * math.sqrt(spread)
                away = abs(values[i, y, x] - middle[y, x])
                if used > 1 and away > limit + core * signal:
                    judged[i, y, x] = OUTLIER
                elif used > 1 and away > 0.5 * limit + core * signal:
                    judged[i, y, x] = SUSPECT


@inline
def _is_clipped(judged, y, x):
    """Whether a value is an outlier, or suspect beside one of its image."""
    if judged[y, x] != SUSPECT:
        return judged[y, x] == OUTLIER
    for yy in range(y - 1, y + 2):
        for xx in range(max(x - 1, 0), min(x + 2, judged.shape[1])):
            if judged[yy, xx] == OUTLIER:
                return True
    return False


@parallel
def keep(values, variances, masks, shares, judged, bits, terms, kind, halo, lost, image, noise, mask, count, weight):
    """Weighted mean of what is not clipped, each value with its share; ``lost`` (rows, n) counts what is."""
    n = values.shape[0]
    for row in prange(image.shape[0]):
        choices = np.empty(n, np.int8)
        y = row + halo
        for x in range(image.shape[1]):
            best, used, covered, _, other_bits = _chosen(values, masks, y, x, bits, choices)
            if used == 0:
                image[row, x] = noise[row, x] = np.nan
                weight[row, x] = 0.0
                count[row, x] = 0
                mask[row, x] = other_bits | bits[2]
                continue
            gone = 0
            if best == 1:
                for i in range(n):
                    if choices[i] == 1 and judged[i, y, x] != 0 and _is_clipped(judged[i], y, x):
                        choices[i] = 3
                        gone += 1
                if gone == used:
                    gone = 0
                    for i in range(n):
                        if choices[i] == 3:
                            choices[i] = 1
            total, sum_w, sum_v = 0.0, 0.0, 0.0
            flags = np.int32(0)
            for i in range(n):
                if choices[i] == 3:
                    lost[row, i] += 1
                elif choices[i] == best:
                    v = variances[i, y, x]
                    w = 1.0 if kind == _EQUAL else terms[i, 6] if kind == _EXPOSURE else terms[i, 6] / v
                    if shares.size:
                        w *= shares[i, y, x]
                    total += w * values[i, y, x]
                    sum_w += w
                    sum_v += w * w * v
                    flags |= masks[i, y, x]
            image[row, x] = total / sum_w
            noise[row, x] = sum_v / (sum_w * sum_w)
            weight[row, x] = sum_w
            count[row, x] = used - gone
            if covered > used - gone:
                flags |= bits[3]
            mask[row, x] = flags | bits[4] if gone else flags
