# SPDX-License-Identifier: BSD-3-Clause
"""CPU twins of the resampling kernels."""

from __future__ import annotations

import math

import numpy as np

from skydelta.kernels.cpu.jit import inline, parallel, prange, serial
from skydelta.kernels.resample import CELL_INTERPOLATED, CELL_OUTSIDE, TAPS, MaskBits

POLE = math.sqrt(3.0) - 2.0
"""Pole of the cubic B-spline prefilter (Unser 1999)."""

HORIZON = 28
"""Pixels after which a recursion has forgotten its start to float64."""

COLUMNS = 32
"""Columns filtered together."""

FILLED = -(1 << 31)
"""Bit 31 of the working mask: the value was replaced."""

FILL_RADIUS = 3
"""Half side of the window of the weighted mean that replaces a pixel, px; its Gaussian has sigma 1 px."""

AT_PIXEL = 1e-3
"""Fractions closer than this to a pixel centre touch no other pixel along that axis: the weight of the neighbours is
below it."""

_NEAREST, _BILINEAR, _BSPLINE3, _LANCZOS3 = range(4)


def prepare(
    image: np.ndarray,
    variance: np.ndarray | None,
    mask: np.ndarray | None,
    *,
    spline: bool,
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
    spline : bool
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
    _classify(image, *_planes(variance, mask), np.int32(fill), np.int32(bad), np.int32(no_data), work)
    _fill(image, work, values)
    if spline:
        _filter_rows(values)
        _filter_columns(values)
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
    v_in, _ = _planes(variance, None)
    v_out, _ = _planes(variance_out, None)
    _gather(
        values, v_in, work, nodes, cells, exact, exact.shape[2], method, TAPS[method], flux,
        np.array(bits, np.int32), image_out, v_out, mask_out, weight_out,
    )  # fmt: skip
    return image_out, variance_out, mask_out, weight_out


def _planes(variance: np.ndarray | None, mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
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


@parallel
def _filter_rows(values):
    h, w = values.shape
    if w > 1:
        for y in prange(h):
            line = np.empty((w, 1))
            for x in range(w):
                line[x, 0] = values[y, x]
            _filter_lines(line)
            for x in range(w):
                values[y, x] = line[x, 0]


@parallel
def _filter_columns(values):
    h, w = values.shape
    if h > 1:
        for block in prange((w + COLUMNS - 1) // COLUMNS):
            x0 = block * COLUMNS
            n = min(COLUMNS, w - x0)
            lines = np.empty((h, n))
            for y in range(h):
                for k in range(n):
                    lines[y, k] = values[y, x0 + k]
            _filter_lines(lines)
            for y in range(h):
                for k in range(n):
                    values[y, x0 + k] = lines[y, k]


@inline
def _filter_lines(lines):
    """Causal and anti-causal recursion along axis 0, in place; mirrored borders (Unser 1999, box 2)."""
    n, m = lines.shape
    for k in range(m):
        start = 0.0
        z = 1.0
        for i in range(HORIZON):
            start += z * lines[_mirror(i, n), k]
            z *= POLE
        lines[0, k] = start  # pixel 0 is read for i = 0 only until here, or again when the line is short
    for i in range(1, n):
        for k in range(m):
            lines[i, k] += POLE * lines[i - 1, k]
    for k in range(m):
        lines[n - 1, k] = POLE / (POLE * POLE - 1.0) * (lines[n - 1, k] + POLE * lines[n - 2, k])
    for i in range(n - 2, -1, -1):
        for k in range(m):
            lines[i, k] = POLE * (lines[i + 1, k] - lines[i, k])
    for i in range(n):
        for k in range(m):
            lines[i, k] *= 6.0


@inline
def _mirror(i, n):
    """Index of a line of n pixels mirrored about its end pixels."""
    if 0 <= i < n:
        return i
    if n == 1:
        return 0
    period = 2 * (n - 1)
    i = abs(i) % period
    return period - i if i >= n else i


@inline
def _lagrange(t, w, d):
    """Weights of 4 nodes at -1, 0, 1, 2 for position t, and their derivatives."""
    a, b, c, e = t + 1.0, t, t - 1.0, t - 2.0
    w[0] = -b * c * e / 6.0
    w[1] = a * c * e / 2.0
    w[2] = -a * b * e / 2.0
    w[3] = a * b * c / 6.0
    d[0] = -(b * c + b * e + c * e) / 6.0
    d[1] = (a * c + a * e + c * e) / 2.0
    d[2] = -(a * b + a * e + b * e) / 2.0
    d[3] = (a * b + a * c + b * c) / 6.0


@inline
def _bspline(f, b):
    """Cubic B-spline weights of the coefficients at -1, 0, 1, 2 for fraction f."""
    g = 1.0 - f
    b[0] = g * g * g / 6.0
    b[1] = 2.0 / 3.0 - 0.5 * f * f * (2.0 - f)
    b[2] = 2.0 / 3.0 - 0.5 * g * g * (2.0 - g)
    b[3] = f * f * f / 6.0


@inline
def _pixel_weights(method, f, w):
    """Weights of source pixels along one axis; bspline3: the cardinal spline, its tails in the outer taps' size."""
    if method == _NEAREST:
        w[0] = 1.0
    elif method == _BILINEAR:
        w[0] = 1.0 - f
        w[1] = f
    elif method == _BSPLINE3:
        z, root3 = POLE, math.sqrt(3.0)
        _bspline(f, w)
        b0, b1, b2, b3 = w[0], w[1], w[2], w[3]
        w[1] = root3 * (b0 + z * (b1 + z * (b2 + z * b3)))
        w[2] = root3 * (b1 + z * (b0 + b2 + z * b3))
        w[3] = root3 * (b2 + z * (b1 + b3 + z * b0))
        w[4] = root3 * (b3 + z * (b2 + z * (b1 + z * b0)))
        tail = z / math.sqrt(1.0 - z * z)  # the squares of all further taps, a geometric series, in one
        w[0] = tail * w[1]
        w[5] = tail * w[4]
    else:
        if f < 1e-6 or f > 1.0 - 1e-6:
            for k in range(6):
                w[k] = 0.0
            w[2 if f < 0.5 else 3] = 1.0
            return
        total = 0.0
        s = math.sin(math.pi * f)
        for k in range(6):
            t = f + 2.0 - k
            w[k] = s * math.sin(math.pi * t / 3.0) / (t * t) * (1.0 if k % 2 == 0 else -1.0)
            total += w[k]
        for k in range(6):
            w[k] /= total


@parallel
def _gather(
    values, variance, work, nodes, cells, exact, spacing, method, taps, flux, bits,
    image_out, variance_out, mask_out, weight_out,
):  # fmt: skip
    h, w = image_out.shape
    basis = np.empty((2, spacing, 4))
    for t in range(spacing):
        _lagrange(t / spacing, basis[0, t], basis[1, t])
    for y in prange(h):
        row = np.empty((4, 4))  # x, y, dx/dy, dy/dy of the four nodes around a cell, at this row
        scratch = np.empty((4, 6))
        for j in range(cells.shape[1]):
            i = y // spacing
            cell = cells[i, j]
            x0, x1 = j * spacing, min((j + 1) * spacing, w)
            ty = y - i * spacing
            if cell == CELL_INTERPOLATED:
                _collapse(nodes, i, j, basis[0, ty], basis[1, ty], row)
            for x in range(x0, x1):
                tx = x - x0
                area = 1.0
                if cell == CELL_INTERPOLATED:
                    qx, qy, area = _evaluate(row, basis[0, tx], basis[1, tx], spacing, flux)
                elif cell == CELL_OUTSIDE:
                    qx = qy = np.nan
                else:
                    qx, qy = exact[cell, 0, ty, tx], exact[cell, 1, ty, tx]
                    if flux:
                        area = exact[cell, 2, ty, tx]
                a, v, m, g = _pixel(values, variance, work, qx, qy, method, taps, bits, scratch)
                image_out[y, x] = a * area
                if variance.size:
                    variance_out[y, x] = v * area * area
                mask_out[y, x] = m
                weight_out[y, x] = g


@inline
def _collapse(nodes, i, j, wy, dy, row):
    """Interpolate the 4 x 4 nodes of cell (i, j) along y."""
    for k in range(4):
        for axis in range(2):
            value = slope = 0.0
            for n in range(4):
                q = nodes[axis, i + n, j + k]
                value += wy[n] * q
                slope += dy[n] * q
            row[axis, k] = value
            row[2 + axis, k] = slope


@inline
def _evaluate(row, wx, dx, spacing, flux):
    """Source position and, for flux, the area of a target pixel in source pixels."""
    qx = qy = 0.0
    for k in range(4):
        qx += wx[k] * row[0, k]
        qy += wx[k] * row[1, k]
    area = 1.0
    if flux:
        xx = yx = xy = yy = 0.0
        for k in range(4):
            xx += dx[k] * row[0, k]
            yx += dx[k] * row[1, k]
            xy += wx[k] * row[2, k]
            yy += wx[k] * row[3, k]
        area = abs(xx * yy - xy * yx) / (spacing * spacing)
    return qx, qy, area


@serial
def _pixel(values, variance, work, qx, qy, method, taps, bits, scratch):
    """Image, variance, mask and weight at one source position."""
    h, w = values.shape
    if not (-0.5 <= qx <= w - 0.5 and -0.5 <= qy <= h - 0.5):
        return np.nan, np.nan, bits[3], 0.0
    if method == _NEAREST:
        qx, qy = min(math.floor(qx + 0.5), w - 1.0), min(math.floor(qy + 0.5), h - 1.0)
    ix, iy = math.floor(qx), math.floor(qy)
    fx, fy = qx - ix, qy - iy
    wx, wy = scratch[0], scratch[1]
    _pixel_weights(method, fx, wx)
    _pixel_weights(method, fy, wy)
    left, top = ix - (taps - 1) // 2, iy - (taps - 1) // 2
    inside = left >= 0 and top >= 0 and left + taps <= w and top + taps <= h

    value = 0.0
    if method == _BSPLINE3:
        bx, by = scratch[2], scratch[3]
        _bspline(fx, bx)
        _bspline(fy, by)
        for n in range(4):
            yy = _mirror(iy - 1 + n, h)
            s = 0.0
            for k in range(4):
                s += bx[k] * values[yy, _mirror(ix - 1 + k, w)]
            value += by[n] * s
    else:
        for n in range(taps):
            yy = _mirror(top + n, h)
            s = 0.0
            for k in range(taps):
                s += wx[k] * values[yy, _mirror(left + k, w)]
            value += wy[n] * s

    if inside:
        v = 0.0
        m = np.int32(0)
        for n in range(taps):
            s = 0.0
            for k in range(taps):
                m |= work[top + n, left + k]
                if variance.size:
                    s += wx[k] * wx[k] * variance[top + n, left + k]
            v += wy[n] * wy[n] * s
        if m == 0:
            return value, v, m, 1.0
    return _flagged(value, variance, work, wx, wy, fx, fy, left, top, taps, bits)


@serial
def _flagged(value, variance, work, wx, wy, fx, fy, left, top, taps, bits):
    """The same near unusable pixels, flags or the border: what was lost, and what must be said about it."""
    h, w = work.shape
    grow, no_data, edge, interp = bits[1], bits[3], bits[4], bits[5]
    inner = (taps - 1) // 2
    m = np.int32(0)
    lost = total = 0.0
    v = kept2 = total2 = 0.0
    for n in range(taps):
        live_y = _live(n - inner, fy)
        yy = _mirror(top + n, h)
        for k in range(taps):
            xx = _mirror(left + k, w)
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
        return np.nan, np.nan, m | no_data, 1.0 - lost / total
    return value, v * total2 / kept2, m, 1.0 - lost / total


@inline
def _live(k, f):
    """Whether the pixel k px from the one below the position has weight at fraction f."""
    if f <= AT_PIXEL:
        return k == 0
    if f >= 1.0 - AT_PIXEL:
        return k == 1
    return True
