# SPDX-License-Identifier: BSD-3-Clause
"""CPU twins of the methods whose footprint follows the map: a target pixel is given by its four mapped corners.

`overlap`: the area that it shares with a source pixel comes from Green's theorem. The integral over y of the part of x
below c is a sum over the edges of the quadrilateral, and a source pixel lies between two values of c. No polygon is
clipped. `drizzle`: the same with source pixels shrunk about their centres. `adaptive`: a Gaussian around its middle.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from skydelta.kernels.cpu.jit import inline, parallel, prange
from skydelta.kernels.cpu.resample import AT_PIXEL, lagrange, optional_planes, positions
from skydelta.kernels.resample import CELL_OUTSIDE, CORNER_METHODS, MaskBits

UPRIGHT = 1e-7
"""Edges that move by less than this along x, px, are taken as upright."""

SLIVER = 1e-9
"""Part of a target pixel that must lie on the source."""

TRACE = 1e-5
"""Part of full cover that drops must have for a value: less comes from errors of positions."""

SEAM = 4.0
"""A quadrilateral this many times larger than the derivatives of the map say has corners on both sides of a seam."""

TAPER = 2.0 / 1.3**2
"""Gaussian of `adaptive`, exp(-TAPER r^2), r in pixels of the target or of the source, whichever are larger."""

REGION = 3.0
"""Half side of the square of such pixels whose box in the source is summed over: the largest weight at its rim is 2e-5,
so a source pixel that comes in or goes out by rounding is not seen in any flux."""

LIVE = math.log(1e3) / TAPER
"""r^2 up to which a weight counts for the mask: a thousandth of the largest."""

INNER = 1.0
"""r^2 up to which all planes are passed on."""

_EXACT, _ADAPTIVE, _DRIZZLE = range(len(CORNER_METHODS))


def by_corners(
    kind: int,
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
    pixfrac: float = 1.0,
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, np.ndarray]:
    """Sums or means of the source pixels under each target pixel.

    Parameters
    ----------
    kind : int
        Of `CORNER_METHODS`. Exact: sums over source pixels, weighted by the area that each shares with a target pixel.
        Drizzle: means, weighted by the area that the drop of each shares with it (Fruchter & Hook 2002); filled pixels
        have none. Adaptive: means under a Gaussian that a target pixel of 1 px or more has there (DeForest 2004).
    values, work
        As `prepare` returns them for degree 0.
    variance : float32 (h, w) or None
    nodes, cells, exact
        Of a `PixelMap` of pixel corners, (H + 1) x (W + 1): corner (y, x) is the lower left one of pixel (y, x).
    shape : (int, int)
        (H, W).
    flux : bool
        Sums, or means times the area of the target pixel; otherwise means.
    bits : MaskBits
    pixfrac : float
        Of drizzle: side of a drop over that of its pixel.

    Returns
    -------
    image, variance, mask, weight
        As `Resampled`. The weight of drizzle is the area of the drops there over that of full cover: 1 on average, up
        to 1 / pixfrac^2.
    """
    image_out, weight_out = np.empty(shape, np.float32), np.empty(shape, np.float32)
    variance_out = None if variance is None else np.empty(shape, np.float32)
    mask_out = np.empty(shape, np.int32)
    v_in, _ = optional_planes(variance, None)
    v_out, _ = optional_planes(variance_out, None)
    _gather(kind, values, v_in, work, nodes, cells, exact, exact.shape[2], flux, np.array(bits, np.int32), pixfrac,
            image_out, v_out, mask_out, weight_out)  # fmt: skip
    return image_out, variance_out, mask_out, weight_out


overlap, adaptive, drizzle = (functools.partial(by_corners, kind) for kind in (_EXACT, _ADAPTIVE, _DRIZZLE))


@parallel
def _gather(
    kind, values, variance, work, nodes, cells, exact, spacing, flux, bits, pixfrac,
    image_out, variance_out, mask_out, weight_out,
):  # fmt: skip
    basis = np.empty((2, 4, spacing))
    for t in range(spacing):
        lagrange(t / spacing, basis[0], basis[1], t)
    for y in prange(image_out.shape[0]):
        _row(kind, values, variance, work, nodes, cells, exact, basis, flux, bits, pixfrac, y, image_out[y],
             variance_out, mask_out[y], weight_out[y])  # fmt: skip


@inline
def _row(
    kind, values, variance, work, nodes, cells, exact, basis, flux, bits, pixfrac, y,
    image_out, variance_out, mask_out, weight_out,
):  # fmt: skip
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
        if kind != _ADAPTIVE:
            mask_out[x], weight_out[x] = _shared(
                values, variance, work, xs, ys, limit, flux, bits, kind == _DRIZZLE, pixfrac, edges, result
            )
        else:
            mask_out[x], weight_out[x] = _smoothed(values, variance, work, xs, ys, limit, flux, bits, result)
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
def _shared(values, variance, work, xs, ys, limit, flux, bits, drops, pixfrac, edges, result):
    """Mask and weight of one target pixel, its image and variance in ``result``. Source pixel i covers i to i + 1."""
    margin = 0.5 * (1.0 - pixfrac)
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
    cover = pixfrac * pixfrac * area  # of the drops under a pixel, where they are all there
    touches = AT_PIXEL * min(pixfrac * pixfrac, area)
    m = spoiled = np.int32(0)
    total = seen = lost = v = kept2 = total2 = 0.0
    for yy in range(max(int(y0), 0), min(math.ceil(top), h)):
        _edges(xs, ys, x0 + margin, y0 + margin, yy - y0, yy - y0 + pixfrac, edges)
        before = _below(edges, first - x0)
        for xx in range(first, last):
            if margin > 0.0:
                before = _below(edges, xx - x0)
            after = _below(edges, xx - x0 + pixfrac)
            a = after - before if signed > 0.0 else before - after
            before = after
            if a <= 0.0:
                continue
            f = work[yy, xx]
            if drops and f < 0:
                if a > touches:
                    spoiled |= f
                continue
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
    if seen <= (TRACE if drops else SLIVER) * cover:
        return (spoiled & np.int32(0x7FFFFFFF)) | no_data, 0.0
    if drops:
        cut = min(left, bottom) < -AT_PIXEL or right > w + AT_PIXEL or top > h + AT_PIXEL
        most, whole = 1.0 / (pixfrac * pixfrac), area / seen
    else:
        cut = seen < (1.0 - AT_PIXEL) * area
        most, whole = 1.0, 1.0  # with flux the sum, so that pixels cut by the border hold what they cover
    if cut:
        m |= bits[4]
    weight = min(most, (seen - lost) / cover)
    if lost > 0.5 * seen or kept2 == 0.0:
        return m | no_data, weight
    scale = whole if flux else 1.0 / seen
    result[0] = total * scale
    result[1] = v * total2 / kept2 * scale * scale
    return m, weight


@inline
def _edges(xs, ys, x0, y0, low, high, edges):
    """Of each edge between two heights: its smaller, larger and middle x, its signed height, and half its height per
    width (0: upright), in ``edges`` (5, 4)."""
    for k in range(4):
        n = (k + 1) % 4
        xa, ya, dx, dy = xs[k] - x0, ys[k] - y0, xs[n] - xs[k], ys[n] - ys[k]
        ca, cb = min(max(ya, low), high), min(max(ya + dy, low), high)
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


@inline
def _smoothed(values, variance, work, xs, ys, limit, flux, bits, result):
    """As `_shared`, by the Gaussian of DeForest (2004).

    With J the derivatives of the map and U the eigenvectors of J J^T, r^2 is a quadratic form of the offset in the
    source with the same U and the eigenvalues 1 / max(1, those of J J^T).
    """
    h, w = values.shape
    result[0] = result[1] = np.nan
    no_data = bits[3]
    area = 0.5 * abs((xs[2] - xs[0]) * (ys[3] - ys[1]) - (xs[3] - xs[1]) * (ys[2] - ys[0]))
    px, py = 0.25 * xs.sum() - 0.5, 0.25 * ys.sum() - 0.5
    if not (0.0 < area <= limit and -0.5 <= px <= w - 0.5 and -0.5 <= py <= h - 0.5):
        return no_data, 0.0
    a, b = 0.5 * (xs[1] - xs[0] + xs[2] - xs[3]), 0.5 * (xs[3] - xs[0] + xs[2] - xs[1])
    c, d = 0.5 * (ys[1] - ys[0] + ys[2] - ys[3]), 0.5 * (ys[3] - ys[0] + ys[2] - ys[1])
    mean, half, cross = 0.5 * (a * a + b * b + c * c + d * d), 0.5 * (a * a + b * b - c * c - d * d), a * c + b * d
    spread = math.sqrt(half * half + cross * cross)
    large = mean + spread
    det = a * d - b * c
    small = det * det / large
    cos, sin = (half / spread, cross / spread) if spread > 1e-12 * mean else (0.0, 0.0)  # of twice the angle of U
    i1, i2 = 1.0 / max(1.0, large), 1.0 / max(1.0, small)
    qxx, qyy, qxy = 0.5 * (i1 + i2 + (i1 - i2) * cos), 0.5 * (i1 + i2 - (i1 - i2) * cos), (i1 - i2) * sin
    k1, k2 = max(1.0, 1.0 / math.sqrt(large)), max(1.0, 1.0 / math.sqrt(small))
    kxx, kyy, kxy = 0.5 * (k1 + k2 + (k1 - k2) * cos), 0.5 * (k1 + k2 - (k1 - k2) * cos), 0.5 * (k1 - k2) * sin
    rx = REGION * (abs(kxx * a + kxy * c) + abs(kxx * b + kxy * d))
    ry = REGION * (abs(kxy * a + kyy * c) + abs(kxy * b + kyy * d))
    m = np.int32(0)
    total = whole = seen = lost = v = kept2 = total2 = 0.0
    for yy in range(math.ceil(py - ry), math.floor(py + ry) + 1):
        oy = yy - py
        for xx in range(math.ceil(px - rx), math.floor(px + rx) + 1):
            ox = xx - px
            r2 = qxx * ox * ox + qxy * ox * oy + qyy * oy * oy
            g = math.exp(-TAPER * r2)
            whole += g
            if not (0 <= yy < h and 0 <= xx < w):
                lost += g
                if r2 <= LIVE:
                    m |= bits[4]
                continue
            f = work[yy, xx]
            seen += g
            total += g * values[yy, xx]
            total2 += g * g
            if f < 0:
                lost += g
            else:
                kept2 += g * g
                if variance.size:
                    v += g * g * variance[yy, xx]
            if r2 <= LIVE:
                m |= f if r2 <= INNER else f & bits[1]
                if f < 0:
                    m |= bits[5]
    m &= np.int32(0x7FFFFFFF)
    weight = max(0.0, 1.0 - lost / whole)
    if lost > 0.5 * whole or kept2 == 0.0:
        return m | no_data, weight
    scale = (area if flux else 1.0) / seen
    result[0] = total * scale
    result[1] = v * total2 / kept2 * scale * scale
    return m, weight
