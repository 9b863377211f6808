# SPDX-License-Identifier: BSD-3-Clause
"""CPU twin of exact resampling: a target pixel is the quadrilateral between its mapped corners.

The area that it shares with a source pixel comes from Green's theorem: the integral over y of the part of x below c is
a sum over the edges of the quadrilateral, and a source pixel lies between two values of c. No polygon is clipped.
"""

from __future__ import annotations

import math

import numpy as np

from skydelta.kernels.cpu.jit import inline, parallel, prange
from skydelta.kernels.cpu.resample import AT_PIXEL, lagrange, optional_planes, positions
from skydelta.kernels.resample import CELL_OUTSIDE, MaskBits

UPRIGHT = 1e-7
"""Edges that move by less than this along x, px, are taken as upright."""

SLIVER = 1e-9
"""Part of a target pixel that must lie on the source."""

SEAM = 4.0
"""A quadrilateral this many times larger than the derivatives of the map say has corners on both sides of a seam."""


def overlap(
    values: np.ndarray,
    variance: np.ndarray | None,
    work: np.ndarray,
    nodes: np.ndarray,
    cells: np.ndarray,
    exact: np.ndarray,
    *,
    shape: tuple[int, int],
    flux: bool,
    bits: MaskBits,
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, np.ndarray]:
    """Sums over source pixels, weighted by the area that each shares with a target pixel.

    Parameters
    ----------
    values, work
        As `prepare` returns them for degree 0.
    variance : float32 (h, w) or None
    nodes, cells, exact
        Of a `PixelMap` of pixel corners, (H + 1) x (W + 1): corner (y, x) is the lower left one of pixel (y, x).
    shape : (int, int)
        (H, W).
    flux : bool
        Sums, otherwise means.
    bits : MaskBits

    Returns
    -------
    image, variance, mask, weight
        As `Resampled`.
    """
    image_out, weight_out = np.empty(shape, np.float32), np.empty(shape, np.float32)
    variance_out = None if variance is None else np.empty(shape, np.float32)
    mask_out = np.empty(shape, np.int32)
    v_in, _ = optional_planes(variance, None)
    v_out, _ = optional_planes(variance_out, None)
    _overlap(values, v_in, work, nodes, cells, exact, exact.shape[2], flux, np.array(bits, np.int32),
             image_out, v_out, mask_out, weight_out)  # fmt: skip
    return image_out, variance_out, mask_out, weight_out


@parallel
def _overlap(
    values, variance, work, nodes, cells, exact, spacing, flux, bits, image_out, variance_out, mask_out, weight_out
):
    basis = np.empty((2, 4, spacing))
    for t in range(spacing):
        lagrange(t / spacing, basis[0], basis[1], t)
    for y in prange(image_out.shape[0]):
        _row(values, variance, work, nodes, cells, exact, basis, flux, bits, y, image_out[y], variance_out,
             mask_out[y], weight_out[y])  # fmt: skip


@inline
def _row(
    values, variance, work, nodes, cells, exact, basis, flux, bits, y, image_out, variance_out, mask_out, weight_out
):
    w = image_out.size
    below, above = np.empty((3, w + 1)), np.empty((3, w + 1))
    _corners(nodes, cells, exact, basis, y, below)
    _corners(nodes, cells, exact, basis, y + 1, above)
    xs, ys, edges, result = np.empty(4), np.empty(4), np.empty((5, 4)), np.empty(2)
    for x in range(w):
        for k in range(2):  # around the pixel
            xs[k], ys[k] = below[0, x + k] + 0.5, below[1, x + k] + 0.5
            xs[3 - k], ys[3 - k] = above[0, x + k] + 0.5, above[1, x + k] + 0.5
        limit = SEAM * max(below[2, x], below[2, x + 1], above[2, x], above[2, x + 1])
        mask_out[x], weight_out[x] = _pixel(values, variance, work, xs, ys, limit, flux, bits, edges, result)
        image_out[x] = result[0]
        if variance_out.size:
            variance_out[y, x] = result[1]


@inline
def _corners(nodes, cells, exact, basis, y, line):
    """Source x, y and area per pixel (infinite where the map is smooth) of a row of corners (3, W + 1)."""
    spacing = basis.shape[2]
    row, at = np.empty((4, 4)), np.empty((3, spacing))
    i = y // spacing
    for j in range(cells.shape[1]):
        cell = cells[i, j]
        positions(nodes, cell, exact, i, j, y - i * spacing, basis, cell >= 0, row, at)
        for x in range(min(spacing, line.shape[1] - j * spacing)):
            line[0, j * spacing + x], line[1, j * spacing + x] = at[0, x], at[1, x]
            line[2, j * spacing + x] = at[2, x] if cell >= 0 or cell == CELL_OUTSIDE else np.inf


@inline
def _pixel(values, variance, work, xs, ys, limit, flux, bits, edges, result):
    """Mask and weight of one target pixel, its image and variance in ``result``. Source pixel i covers i to i + 1."""
    h, w = values.shape
    result[0] = result[1] = np.nan
    no_data = bits[3]
    signed = 0.5 * ((xs[2] - xs[0]) * (ys[3] - ys[1]) - (xs[3] - xs[1]) * (ys[2] - ys[0]))
    area = abs(signed)
    if not (0.0 < area <= limit):
        return no_data, 0.0
    left, right, bottom, top = xs.min(), xs.max(), ys.min(), ys.max()
    if right <= 0.0 or left >= w or top <= 0.0 or bottom >= h:
        return no_data, 0.0
    x0, y0 = math.floor(left), math.floor(bottom)  # positions are counted from here
    first, last = max(int(x0), 0), min(math.ceil(right), w)
    touches = AT_PIXEL * min(1.0, area)
    m = np.int32(0)
    total = seen = lost = v = kept2 = total2 = 0.0
    for yy in range(max(int(y0), 0), min(math.ceil(top), h)):
        _edges(xs, ys, x0, y0, yy - y0, edges)
        before = _below(edges, first - x0)
        for xx in range(first, last):
            after = _below(edges, xx + 1 - x0)
            a = after - before if signed > 0.0 else before - after
            before = after
            if a <= 0.0:
                continue
            f = work[yy, xx]
            seen += a
            total += a * values[yy, xx]
            total2 += a * a
            if f < 0:
                lost += a
            else:
                kept2 += a * a
                if variance.size:
                    v += a * a * variance[yy, xx]
            if a > touches:
                m |= f
                if f < 0:
                    m |= bits[5]
    m &= np.int32(0x7FFFFFFF)
    if seen <= SLIVER * area:
        return no_data, 0.0
    if seen < (1.0 - AT_PIXEL) * area:
        m |= bits[4]
    weight = min(1.0, (seen - lost) / area)
    if lost > 0.5 * seen or kept2 == 0.0:
        return m | no_data, weight
    scale = 1.0 if flux else 1.0 / seen
    result[0] = total * scale
    result[1] = v * total2 / kept2 * scale * scale
    return m, weight


@inline
def _edges(xs, ys, x0, y0, row, edges):
    """Of each edge inside a row of source pixels: its smaller, larger and middle x, its signed height, and half its
    height per width (0: upright), in ``edges`` (5, 4)."""
    for k in range(4):
        n = (k + 1) % 4
        xa, ya, dx, dy = xs[k] - x0, ys[k] - y0, xs[n] - xs[k], ys[n] - ys[k]
        ca, cb = min(max(ya, row), row + 1.0), min(max(ya + dy, row), row + 1.0)
        edges[3, k] = cb - ca
        if cb == ca:
            continue
        ua, ub = xa + dx * ((ca - ya) / dy), xa + dx * ((cb - ya) / dy)
        edges[0, k], edges[1, k], edges[2, k] = min(ua, ub), max(ua, ub), 0.5 * (ua + ub)
        edges[4, k] = 0.5 * abs(dy / dx) if abs(dx) > UPRIGHT else 0.0


@inline
def _below(edges, c):
    """Integral of min(x, c) dy along the edges."""
    total = 0.0
    for k in range(4):
        dy = edges[3, k]
        if dy == 0.0:
            continue
        if edges[1, k] <= c:
            total += dy * edges[2, k]
        elif edges[0, k] >= c:
            total += dy * c
        elif edges[4, k] == 0.0:
            total += dy * min(edges[2, k], c)
        else:  # less what lies beyond c
            beyond = (edges[1, k] - c) * (edges[1, k] - c) * edges[4, k]
            total += dy * edges[2, k] - (beyond if dy > 0.0 else -beyond)
    return total
