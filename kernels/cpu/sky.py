# SPDX-License-Identifier: BSD-3-Clause
"""CPU kernel of the sky of blocks; `skydelta.kernels.sky` says what it does."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.jit import inline, parallel, prange
from skydelta.kernels.cpu.medians import middle


@inline
def _smoothed(part, weights):
    """Separable filter; the block is mirrored at its edges."""
    h, w = part.shape
    reach = weights.size // 2
    along = np.zeros_like(part)
    for y in range(h):
        for k in range(-reach, reach + 1):
            yy = y + k
            while yy < 0 or yy >= h:
                yy = -1 - yy if yy < 0 else 2 * h - 1 - yy
            for x in range(w):
                along[y, x] += weights[k + reach] * part[yy, x]
    out = np.zeros_like(part)
    for y in range(h):
        for k in range(-reach, reach + 1):
            weight, first, stop = weights[k + reach], min(max(-k, 0), w), max(w - max(k, 0), 0)
            for x in range(first, stop):
                out[y, x] += weight * along[y, x + k]
            for x in range(w) if first >= stop else range(first) if k < 0 else range(stop, w):
                xx = x + k
                while xx < 0 or xx >= w:
                    xx = -1 - xx if xx < 0 else 2 * w - 1 - xx
                out[y, x] += weight * along[y, xx]
    return out


@inline
def _objects(smooth, limit, near):
    """Pixels above the limit, and all within a square around them."""
    h, w = smooth.shape
    out = np.zeros(smooth.shape, np.bool_)
    for y in range(h):
        for x in range(w):
            if smooth[y, x] > limit:
                out[max(y - near, 0) : y + near + 1, max(x - near, 0) : x + near + 1] = True
    return out


@inline
def _pairs(part, use, lag, out):
    """Differences of usable pixels that are so far apart: how many."""
    n = 0
    for y in range(part.shape[0]):
        for x in range(part.shape[1] - lag):
            if use[y, x] and use[y, x + lag]:
                out[n] = part[y, x + lag] - part[y, x]
                n += 1
    return n


@parallel
def block_sky(image, good, boxes, weights, settings, sky, noise):
    far, stands_out, near, enough, share = settings
    for b in prange(len(boxes)):
        y0, y1, x0, x1 = boxes[b]
        lag = max(min(far, (x1 - x0) // 4), 1)
        ok = good[y0:y1, x0:x1]
        values, room = np.empty((2, (y1 - y0) * (x1 - x0)), np.float64)
        n = 0
        for y in range(y0, y1):
            for x in range(x0, x1):
                if good[y, x]:
                    values[n] = image[y, x]
                    n += 1
        if n < max(share * values.size, enough):
            continue
        level = middle(values[:n], room)
        sky[b] = level
        part = np.zeros(ok.shape, np.float64)
        for y in range(y1 - y0):
            for x in range(x1 - x0):
                if ok[y, x]:
                    part[y, x] = image[y + y0, x + x0] - level
        smooth = _smoothed(part, weights)
        n = 0
        for y in range(y1 - y0):
            for x in range(x1 - x0):
                if ok[y, x]:
                    values[n] = abs(smooth[y, x])
                    n += 1
        objects = _objects(smooth, stands_out * 1.4826 * middle(values[:n], room), near)
        n = _pairs(part, ok & ~objects, lag, values)
        if n < enough:
            n = _pairs(part, ok, lag, values)
        if n >= enough:
            d = values[:n]
            noise[b] = 1.4826 * middle(np.abs(d - middle(d, room)), room) / np.sqrt(2.0)


@parallel
def block_medians(plane, good, boxes, found):
    for b in prange(len(boxes)):
        y0, y1, x0, x1 = boxes[b]
        values, room = np.empty((2, (y1 - y0) * (x1 - x0)), plane.dtype)
        n = 0
        for y in range(y0, y1):
            for x in range(x0, x1):
                if good[y, x]:
                    values[n] = plane[y, x]
                    n += 1
        if n:
            found[b] = middle(values[:n], room)


@parallel
def white_sky(image, good, boxes, weights, enough, noise):
    for b in prange(len(boxes)):
        y0, y1, x0, x1 = boxes[b]
        values, room = np.empty((2, (y1 - y0) * (x1 - x0)), np.float64)
        n = 0
        for y in range(y0 + 1, y1 - 1):
            for x in range(x0 + 1, x1 - 1):
                total, whole = 0.0, True
                for j in range(3):
                    for i in range(3):
                        whole &= good[y + j - 1, x + i - 1]
                        total += weights[j, i] * image[y + j - 1, x + i - 1]
                if whole:
                    values[n] = abs(total)
                    n += 1
        if n >= enough:
            noise[b] = 1.4826 * middle(values[:n], room)
