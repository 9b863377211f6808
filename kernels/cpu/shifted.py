# SPDX-License-Identifier: BSD-3-Clause
"""The pixels of a PSF at any place, with derivatives, and of one that moved along a segment.

PSF coefficients are padded by the mirrored ones around them. A PSF of one pixel stands for light that no PSF has
passed: a round Gaussian spot of `SPOT` px, whose light is summed over each pixel.
"""

from __future__ import annotations

from math import erf

import numpy as np

from skydelta.kernels.cpu.jit import inline
from skydelta.kernels.fit import SPOT

NODES, SHARES = (a / 2 for a in np.polynomial.legendre.leggauss(5))
"""Gauss-Legendre nodes and weights of an interval of length 1 around 0."""

PANEL = 2.5
"""Longest piece of a trail between sets of nodes, in widths of the PSF: a Gaussian is integrated to 1e-5."""


@inline
def _mirrored(i, n):
    i = abs(i)
    if i >= n:
        i = 2 * (n - 1) - i
    return min(max(i, 0), n - 1)


@inline
def _padded(c):
    """Coefficients (p + 3, p + 3) from -1 to p + 1; those of a spot (8, 8) are 1 in the middle."""
    p = c.shape[0]
    if p == 1:
        spot = np.zeros((8, 8))
        spot[3, 3] = 1
        return spot
    out = np.empty((p + 3, p + 3))
    for j in range(p + 3):
        for i in range(p + 3):
            out[j, i] = c[_mirrored(j - 1, p), _mirrored(i - 1, p)]
    return out


@inline
def _of_spot(t, w):
    """Weights, and their derivatives, of a pixel's four neighbours on an axis: light of a spot that reaches them."""
    for k in range(4):
        d = t + 1 - k
        high, low = (d + 0.5) / SPOT, (d - 0.5) / SPOT
        w[0, k] = 0.5 * (erf(high * np.sqrt(0.5)) - erf(low * np.sqrt(0.5)))
        w[1, k] = (np.exp(-0.5 * high * high) - np.exp(-0.5 * low * low)) / (np.sqrt(2 * np.pi) * SPOT)


@inline
def _place(q, side, p, w, spot):
    """Where one axis of a PSF centred q px from the middle lies on the pixels.

    Pixel i takes the padded coefficients i + first to i + first + 3 with the weights w[0], derivatives w[1]; outside
    low..high the PSF is zero. Returns first, low, high.
    """
    base = p // 2 - side // 2 - q
    if not abs(base) < 1e6:  # NaN too: nothing of it is on the stamp
        return 0, side, -1
    first = int(np.floor(base))
    t = base - first
    s = 1 - t
    if spot:
        _of_spot(t, w)
    else:
        w[0, 0] = s * s * s / 6
        w[0, 1] = (4 - 6 * t * t + 3 * t * t * t) / 6
        w[0, 2] = (4 - 6 * s * s + 3 * s * s * s) / 6
        w[0, 3] = t * t * t / 6
        w[1, 0] = -s * s / 2
        w[1, 1] = (-4 * t + 3 * t * t) / 2
        w[1, 2] = (4 * s - 3 * s * s) / 2
        w[1, 3] = t * t / 2
    return first, max(-first, 0), min(p - 1 - first - (1 if t > 0 else 0), side - 1)


@inline
def _lines(padded, spot, x, y, side, w, lines):
    """Lines (2, s + 3, s) of coefficients filtered across, value and derivative, for a lobe at (x, y).

    ``w`` takes the weights (2, 2, 4), across and down. Returns the lowest and highest row of pixels with light.
    """
    p = padded.shape[0] - 3
    across, left, right = _place(x, side, p, w[0], spot)
    down, low, high = _place(y, side, p, w[1], spot)
    if right < left:
        return side, -1
    a, b, c, d = w[0, 0, 0], w[0, 0, 1], w[0, 0, 2], w[0, 0, 3]
    e, f, g, h = w[0, 1, 0], w[0, 1, 1], w[0, 1, 2], w[0, 1, 3]
    for row in range(low, high + 4 if high >= low else low):
        source = padded[row + down, left + across : right + across + 4]
        for i in range(left):
            lines[0, row, i] = lines[1, row, i] = 0
        for i in range(right + 1, side):
            lines[0, row, i] = lines[1, row, i] = 0
        value, slope = lines[0, row, left : right + 1], lines[1, row, left : right + 1]
        for i in range(len(value)):
            value[i] = a * source[i] + b * source[i + 1] + c * source[i + 2] + d * source[i + 3]
            slope[i] = e * source[i] + f * source[i + 1] + g * source[i + 2] + h * source[i + 3]
    return low, high


@inline
def _row(lines, y, w, value, dx, dy):
    """One row of pixels of a lobe: value and derivatives by its position."""
    a, b, c, d = w[0, 0], w[0, 1], w[0, 2], w[0, 3]
    e, f, g, h = w[1, 0], w[1, 1], w[1, 2], w[1, 3]
    for x in range(len(dx)):
        value[x] = a * lines[0, y, x] + b * lines[0, y + 1, x] + c * lines[0, y + 2, x] + d * lines[0, y + 3, x]
        dx[x] = -(a * lines[1, y, x] + b * lines[1, y + 1, x] + c * lines[1, y + 2, x] + d * lines[1, y + 3, x])
        dy[x] = -(e * lines[0, y, x] + f * lines[0, y + 1, x] + g * lines[0, y + 2, x] + h * lines[0, y + 3, x])


@inline
def _width(padded):
    """Sigma, px, of the Gaussian with the PSF's sum and highest value: what the nodes of a trail must resolve."""
    highest, total, p = 0.0, 0.0, padded.shape[0] - 3
    for j in range(1, p + 1):
        for i in range(1, p + 1):
            total += padded[j, i]
            highest = max(highest, padded[j, i])
    return max(np.sqrt(max(total, 0.0) / (2 * np.pi * highest)), 0.4) if highest > 0 else 0.4


@inline
def _node(i, panels):
    """Where along a trail, from -1/2 to 1/2, its i-th node is, and its share of the light."""
    panel, k = i // len(NODES), i % len(NODES)
    return (panel + 0.5 + NODES[k]) / panels - 0.5, SHARES[k] / panels


@inline
def _trail(padded, spot, width, q, side, column):
    """The five columns of a trail: its PSF at every node, and what a change of its ends does to that."""
    lines, w, part = np.empty((2, side + 3, side)), np.empty((2, 2, 4)), np.empty((3, side))
    for i in range(5):
        for y in range(side):
            for x in range(side):
                column[i, y, x] = 0
    panels = int(np.hypot(q[2], q[3]) / (PANEL * width)) + 1
    for k in range(panels * len(NODES)):
        at, share = _node(k, panels)
        low, high = _lines(padded, spot, q[0] + at * q[2], q[1] + at * q[3], side, w, lines)
        for y in range(low, high + 1):
            _row(lines, y, w[1], part[0], part[1], part[2])
            for x in range(side):
                across, down = share * part[1, x], share * part[2, x]
                column[0, y, x] += share * part[0, x]
                column[1, y, x] += across
                column[2, y, x] += down
                column[3, y, x] += at * across
                column[4, y, x] += at * down
