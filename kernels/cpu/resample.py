# SPDX-License-Identifier: BSD-3-Clause
"""CPU twins of the resampling kernels."""

from __future__ import annotations

import math

import numpy as np

from skydelta.kernels.cpu.interpolants import BSPLINE3, BSPLINE5, NEAREST, mirror, prefilter, weights
from skydelta.kernels.cpu.jit import inline, parallel, prange, unrolled
from skydelta.kernels.resample import CELL_INTERPOLATED, CELL_OUTSIDE, TAPS, MaskBits

FILLED = -(1 << 31)
"""Bit 31 of the working mask: the value was replaced."""

FILL_RADIUS = 3
"""Half side of the window of the weighted mean that replaces a pixel, px; its Gaussian has sigma 1 px."""

AT_PIXEL = 1e-3
"""Fractions closer than this to a pixel centre touch no other pixel along that axis: the weight of the neighbours is
below it."""


def prepare(
    image: np.ndarray,
    variance: np.ndarray | None,
    mask: np.ndarray | None,
    *,
    degree: int,
    fill: int,
    bad: int,
    no_data: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Fill unusable pixels and, for splines, filter to B-spline coefficients with mirrored borders.

    Parameters
    ----------
    image : float32 (h, w)
    variance : float32 (h, w) or None
        Pixels that are not a positive number are unusable.
    mask : int32 (h, w) or None
    degree : {0, 3, 5}
        Of the spline; 0 for none.
    fill, bad, no_data : int
        As in `MaskBits`.

    Returns
    -------
    values : float32 (h, w)
    work : int32 (h, w)
        The mask with ``bad`` and ``no_data`` added and bit 31 set on filled pixels.
    """
    values = np.empty(image.shape, np.float32)
    work = np.empty(image.shape, np.int32)
    _classify(image, *optional_planes(variance, mask), np.int32(fill), np.int32(bad), np.int32(no_data), work)
    _fill(image, work, values)
    if degree:
        prefilter(values, degree)
    return values, work


def gather(
    values: np.ndarray,
    variance: np.ndarray | None,
    work: np.ndarray,
    nodes: np.ndarray,
    cells: np.ndarray,
    exact: np.ndarray,
    *,
    shape: tuple[int, int],
    method: int,
    flux: bool,
    bits: MaskBits,
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, np.ndarray]:
    """Evaluate the map and gather all planes; arguments as `prepare` returns them and as `PixelMap` holds them.

    Returns
    -------
    image, variance, mask, weight
        As `Resampled`.
    """
    image_out = np.empty(shape, np.float32)
    variance_out = None if variance is None else np.empty(shape, np.float32)
    mask_out = np.empty(shape, np.int32)
    weight_out = np.empty(shape, np.float32)
    v_in, _ = optional_planes(variance, None)
    v_out, _ = optional_planes(variance_out, None)
    size = TAPS[method]
    touched, rows = np.empty(work.shape, np.uint8), np.empty(work.shape, np.uint8)
    _touched(work, size, rows, touched)
    _gather(
        values, v_in, work, touched, nodes, cells, exact, exact.shape[2], method, size, flux,
        np.array(bits, np.int32), image_out, v_out, mask_out, weight_out,
    )  # fmt: skip
    return image_out, variance_out, mask_out, weight_out


def optional_planes(variance: np.ndarray | None, mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Missing planes as empty arrays: one compiled signature for all cases."""
    return (
        np.empty((0, 0), np.float32) if variance is None else variance,
        np.empty((0, 0), np.int32) if mask is None else mask,
    )


@parallel
def _classify(image, variance, mask, fill, bad, no_data, work):
    h, w = image.shape
    for y in prange(h):
        for x in range(w):
            m = mask[y, x] if mask.size else np.int32(0)
            unusable = (m & fill) != 0
            if not math.isfinite(image[y, x]):
                m |= no_data
                unusable = True
            if variance.size:
                v = variance[y, x]
                if not (v > 0 and math.isfinite(v)):
                    m |= bad
                    unusable = True
            work[y, x] = m | np.int32(FILLED) if unusable else m


@parallel
def _fill(image, work, values):
    h, w = image.shape
    for y in prange(h):
        for x in range(w):
            values[y, x] = image[y, x] if work[y, x] >= 0 else _replacement(image, work, y, x)


@inline
def _replacement(image, work, y, x):
    """Gaussian mean of usable neighbours; in large holes the mean of the nearest usable pixels in 8 directions."""
    h, w = image.shape
    total = 0.0
    weight = 0.0
    for dy in range(-FILL_RADIUS, FILL_RADIUS + 1):
        for dx in range(-FILL_RADIUS, FILL_RADIUS + 1):
            yy, xx = y + dy, x + dx
            if 0 <= yy < h and 0 <= xx < w and work[yy, xx] >= 0:
                g = math.exp(-0.5 * (dx * dx + dy * dy))
                total += g * image[yy, xx]
                weight += g
    d = FILL_RADIUS + 1
    while weight == 0.0 and d < max(h, w):
        for sy in range(-1, 2):
            for sx in range(-1, 2):
                yy, xx = y + sy * d, x + sx * d
                if 0 <= yy < h and 0 <= xx < w and work[yy, xx] >= 0:
                    total += image[yy, xx]
                    weight += 1.0
        d *= 2
    return total / weight if weight > 0.0 else 0.0


@inline
def lagrange(t, w, d, i):
    """Weights (4, n) of 4 nodes at -1, 0, 1, 2 for position t, and their derivatives, in column i."""
    a, b, c, e = t + 1.0, t, t - 1.0, t - 2.0
    w[0, i] = -b * c * e / 6.0
    w[1, i] = a * c * e / 2.0
    w[2, i] = -a * b * e / 2.0
    w[3, i] = a * b * c / 6.0
    d[0, i] = -(b * c + b * e + c * e) / 6.0
    d[1, i] = (a * c + a * e + c * e) / 2.0
    d[2, i] = -(a * b + a * e + b * e) / 2.0
    d[3, i] = (a * b + a * c + b * c) / 6.0


@parallel
def _touched(work, size, rows, out):
    """out[y, x]: whether any of the size x size pixels from (y, x) on has a bit; ``rows`` is scratch (h, w)."""
    h, w = work.shape
    for y in prange(h):
        for x in range(w - size + 1):
            f = work[y, x]
            for k in range(1, size):
                f |= work[y, x + k]
            rows[y, x] = f != 0
    for y in prange(h - size + 1):
        for x in range(w - size + 1):
            f = rows[y, x]
            for n in range(1, size):
                f |= rows[y + n, x]
            out[y, x] = f


@parallel
def _gather(
    values, variance, work, touched, nodes, cells, exact, spacing, method, size, flux, bits,
    image_out, variance_out, mask_out, weight_out,
):  # fmt: skip
    h, w = image_out.shape
    basis = np.empty((2, 4, spacing))
    for t in range(spacing):
        lagrange(t / spacing, basis[0], basis[1], t)
    for y in prange(h):
        row = np.empty((4, 4))
        at = np.empty((5, spacing))
        taps = np.empty((4, 10, spacing))
        i = y // spacing
        for j in range(cells.shape[1]):
            x0, x1 = j * spacing, min((j + 1) * spacing, w)
            positions(nodes, cells[i, j], exact, i, j, y - i * spacing, basis, flux, row, at)
            planes = image_out[y, x0:x1], variance_out[y : y + 1, x0:x1], mask_out[y, x0:x1], weight_out[y, x0:x1]
            _strip(values, variance, work, touched, method, size, bits, at, taps, *planes)


@inline
def positions(nodes, cell, exact, i, j, ty, basis, flux, row, at):
    """Source x, y and area ratio (rows of ``at``) along row ty of cell (i, j)."""
    spacing = at.shape[1]
    if cell == CELL_INTERPOLATED:
        for k in range(4):
            for axis in range(2):
                value = slope = 0.0
                for n in range(4):
                    q = nodes[axis, i + n, j + k]
                    value += basis[0, n, ty] * q
                    slope += basis[1, n, ty] * q
                row[axis, k] = value
                row[2 + axis, k] = slope
        _line(basis[0], row[0], at[0])
        _line(basis[0], row[1], at[1])
        for x in range(spacing):
            at[2, x] = 1.0
        if flux:
            a, d = basis[0], basis[1]
            for x in range(spacing):
                xx = d[0, x] * row[0, 0] + d[1, x] * row[0, 1] + d[2, x] * row[0, 2] + d[3, x] * row[0, 3]
                yx = d[0, x] * row[1, 0] + d[1, x] * row[1, 1] + d[2, x] * row[1, 2] + d[3, x] * row[1, 3]
                xy = a[0, x] * row[2, 0] + a[1, x] * row[2, 1] + a[2, x] * row[2, 2] + a[3, x] * row[2, 3]
                yy = a[0, x] * row[3, 0] + a[1, x] * row[3, 1] + a[2, x] * row[3, 2] + a[3, x] * row[3, 3]
                at[2, x] = abs(xx * yy - xy * yx) / (spacing * spacing)
    elif cell == CELL_OUTSIDE:
        for x in range(spacing):
            at[0, x] = at[1, x] = at[2, x] = np.nan
    else:
        for x in range(spacing):
            at[0, x], at[1, x] = exact[cell, 0, ty, x], exact[cell, 1, ty, x]
            at[2, x] = exact[cell, 2, ty, x] if flux else 1.0


@inline
def _line(a, row, out):
    """Cubic through 4 values at every position of the basis (4, n)."""
    r0, r1, r2, r3 = row[0], row[1], row[2], row[3]
    for x in range(out.size):
        out[x] = a[0, x] * r0 + a[1, x] * r1 + a[2, x] * r2 + a[3, x] * r3


@inline
def _strip(
    values, variance, work, touched, method, size, bits, at, taps, image_out, variance_out, mask_out, weight_out
):
    """All planes of one row of a cell; ``variance_out`` is (0 or 1, n)."""
    h, w = values.shape
    for x in range(at.shape[1]):
        qx, qy = at[0, x], at[1, x]
        if not (-0.5 <= qx <= w - 0.5 and -0.5 <= qy <= h - 0.5):
            qx = qy = 0.0
            at[2, x] = np.nan
        if method == NEAREST:
            qx, qy = min(np.floor(qx + 0.5), w - 1.0), min(np.floor(qy + 0.5), h - 1.0)
        at[0, x], at[1, x] = np.floor(qx), np.floor(qy)
        at[3, x], at[4, x] = qx - at[0, x], qy - at[1, x]
    fx, fy = at[3], at[4]
    bx, by, wx, wy = taps[0], taps[1], taps[2], taps[3]
    weights(method, fx, bx, wx)
    weights(method, fy, by, wy)
    of_values = 4 if method == BSPLINE3 else 6 if method == BSPLINE5 else size
    vx, vy = (bx, by) if of_values != size else (wx, wy)
    # a constant size is a loop without a counter
    if of_values == 4:
        _interpolate(values, at, vy, vx, image_out, 4)
    elif of_values == 6:
        _interpolate(values, at, vy, vx, image_out, 6)
    elif of_values == 2:
        _interpolate(values, at, vy, vx, image_out, 2)
    else:
        _interpolate(values, at, vy, vx, image_out, of_values)
    if size == 6:
        _propagate(variance, work, touched, at, wy, wx, bits, image_out, variance_out, mask_out, weight_out, 6)
    elif size == 2:
        _propagate(variance, work, touched, at, wy, wx, bits, image_out, variance_out, mask_out, weight_out, 2)
    else:
        _propagate(variance, work, touched, at, wy, wx, bits, image_out, variance_out, mask_out, weight_out, size)


@inline
def _inside(top, left, size, shape):
    return left >= 0 and top >= 0 and left + size <= shape[1] and top + size <= shape[0]


@unrolled
def _interpolate(plane, at, wy, wx, image_out, size):
    """Weighted sums over size x size pixels times the area, mirrored at the border; NaN without a map."""
    for x in range(image_out.size):
        if math.isnan(at[2, x]):
            image_out[x] = np.nan
            continue
        top, left = int(at[1, x]) - (size - 1) // 2, int(at[0, x]) - (size - 1) // 2
        total = 0.0
        if _inside(top, left, size, plane.shape):
            y0, x0 = np.uintp(top), np.uintp(left)  # unsigned: no test for negative indices
            for n in range(size):
                s = 0.0
                for k in range(size):
                    s += wx[k, x] * plane[y0 + np.uintp(n), x0 + np.uintp(k)]
                total += wy[n, x] * s
        else:
            for n in range(size):
                y = mirror(top + n, plane.shape[0])
                for k in range(size):
                    total += wy[n, x] * wx[k, x] * plane[y, mirror(left + k, plane.shape[1])]
        image_out[x] = total * at[2, x]


@unrolled
def _propagate(variance, work, touched, at, wy, wx, bits, image_out, variance_out, mask_out, weight_out, size):
    """Variance, mask and footprint; the image becomes NaN where too much weight is lost."""
    for x in range(image_out.size):
        v, flags, kept = np.nan, bits[3], 0.0
        if not math.isnan(at[2, x]):
            top, left = int(at[1, x]) - (size - 1) // 2, int(at[0, x]) - (size - 1) // 2
            if _inside(top, left, size, work.shape) and touched[top, left] == 0:
                v, flags, kept = 0.0, np.int32(0), 1.0
                if variance.size:
                    y0, x0 = np.uintp(top), np.uintp(left)
                    for n in range(size):
                        s = 0.0
                        for k in range(size):
                            s += wx[k, x] * wx[k, x] * variance[y0 + np.uintp(n), x0 + np.uintp(k)]
                        v += wy[n, x] * wy[n, x] * s
            else:
                v, flags, kept = _impaired(
                    variance, work, wx[:, x], wy[:, x], at[3, x], at[4, x], left, top, size, bits
                )
                if math.isnan(v):
                    image_out[x] = np.nan
        if variance_out.size:
            variance_out[0, x] = v * at[2, x] * at[2, x]
        mask_out[x] = flags
        weight_out[x] = kept


@inline
def _impaired(variance, work, wx, wy, fx, fy, left, top, taps, bits):
    """Variance, mask and weight near unusable pixels, flags or the border; NaN when too much weight is lost."""
    h, w = work.shape
    grow, no_data, edge, interp = bits[1], bits[3], bits[4], bits[5]
    inner = (taps - 1) // 2
    m = np.int32(0)
    lost = total = 0.0
    v = kept2 = total2 = 0.0
    for n in range(taps):
        live_y = _live(n - inner, fy)
        yy = mirror(top + n, h)
        for k in range(taps):
            xx = mirror(left + k, w)
            f = work[yy, xx]
            outside = yy != top + n or xx != left + k
            a = abs(wx[k] * wy[n])
            total += a
            total2 += a * a
            if f >= 0:
                kept2 += a * a
                if variance.size:
                    v += a * a * variance[yy, xx]
            if f < 0 or outside:
                lost += a
            if live_y and _live(k - inner, fx):
                if outside:
                    m |= edge
                    continue
                if f < 0:
                    m |= interp
                m |= f if 0 <= n - inner <= 1 and 0 <= k - inner <= 1 else f & grow
    m &= np.int32(0x7FFFFFFF)
    if lost > 0.5 * total or kept2 == 0.0:
        return np.nan, m | no_data, 1.0 - lost / total
    return v * total2 / kept2, m, 1.0 - lost / total


@inline
def _live(k, f):
    """Whether the pixel k px from the one below the position has weight at fraction f."""
    if f <= AT_PIXEL:
        return k == 0
    if f >= 1.0 - AT_PIXEL:
        return k == 1
    return True
