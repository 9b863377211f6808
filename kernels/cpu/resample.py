# SPDX-License-Identifier: BSD-3-Clause
"""CPU twins of the resampling kernels."""

from __future__ import annotations

import math

import numpy as np

from skydelta.kernels.cpu.jit import inline, parallel, prange
from skydelta.kernels.resample import CELL_INTERPOLATED, CELL_OUTSIDE, MaskBits

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
        values, v_in, work, nodes, cells, exact, exact.shape[2], method, flux,
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
    """Cubic B-spline weights (n, 4) of the coefficients at -1, 0, 1, 2 for fractions f (n,)."""
    for i in range(f.size):
        t, g = f[i], 1.0 - f[i]
        b[i, 0] = g * g * g / 6.0
        b[i, 1] = 2.0 / 3.0 - 0.5 * t * t * (2.0 - t)
        b[i, 2] = 2.0 / 3.0 - 0.5 * g * g * (2.0 - g)
        b[i, 3] = t * t * t / 6.0


@inline
def _cardinal(b, w):
    """Cardinal spline weights (n, 6) of the pixels at -2 ... 3 from the B-spline weights (n, 4).

    The outer two stand for all pixels further out: their squares are the sums of those squares, geometric series.
    """
    z, root3, tail = POLE, math.sqrt(3.0), POLE / math.sqrt(1.0 - POLE * POLE)
    for i in range(b.shape[0]):
        b0, b1, b2, b3 = b[i, 0], b[i, 1], b[i, 2], b[i, 3]
        w[i, 1] = root3 * (b0 + z * (b1 + z * (b2 + z * b3)))
        w[i, 2] = root3 * (b1 + z * (b0 + b2 + z * b3))
        w[i, 3] = root3 * (b2 + z * (b1 + b3 + z * b0))
        w[i, 4] = root3 * (b3 + z * (b2 + z * (b1 + z * b0)))
        w[i, 0] = tail * w[i, 1]
        w[i, 5] = tail * w[i, 4]


@inline
def _lanczos(f, w):
    """Lanczos3 weights (n, 6) of the pixels at -2 ... 3, normalised to sum 1.

    sin(pi (t + k)) is +-sin(pi t), and sin(pi (t + k) / 3) a rotation of (sin, cos)(pi t / 3) by a constant angle.
    """
    for i in range(f.size):
        s, s3, c3 = math.sin(math.pi * f[i]), math.sin(math.pi * f[i] / 3.0), math.cos(math.pi * f[i] / 3.0)
        total = 0.0
        for k in range(6):
            t = f[i] + (2 - k)
            angle = math.pi * (2 - k) / 3.0
            sign = 1.0 if k % 2 == 0 else -1.0
            at_pixel = abs(t) < 1e-6
            a = sign * s * (s3 * math.cos(angle) + c3 * math.sin(angle)) / (1.0 if at_pixel else t * t)
            w[i, k] = math.pi * math.pi / 3.0 if at_pixel else a
            total += w[i, k]
        for k in range(6):
            w[i, k] /= total


@inline
def _weights(method, f, b, w):
    """Weights of coefficients (b, only bspline3) and of pixels (w), lowest first, for fractions f (n,)."""
    if method == _NEAREST:
        w[:, 0] = 1.0
    elif method == _BILINEAR:
        for i in range(f.size):
            w[i, 0] = 1.0 - f[i]
            w[i, 1] = f[i]
    elif method == _BSPLINE3:
        _bspline(f, b)
        _cardinal(b, w)
    else:
        _lanczos(f, w)


@parallel
def _gather(
    values, variance, work, nodes, cells, exact, spacing, method, flux, bits,
    image_out, variance_out, mask_out, weight_out,
):  # fmt: skip
    h, w = image_out.shape
    basis = np.empty((2, spacing, 4))
    for t in range(spacing):
        _lagrange(t / spacing, basis[0, t], basis[1, t])
    for y in prange(h):
        row = np.empty((4, 4))
        at = np.empty((5, spacing))
        taps = np.empty((4, spacing, 6))
        i = y // spacing
        for j in range(cells.shape[1]):
            x0, x1 = j * spacing, min((j + 1) * spacing, w)
            _positions(nodes, cells[i, j], exact, i, j, y - i * spacing, basis, flux, row, at)
            planes = image_out[y, x0:x1], variance_out[y : y + 1, x0:x1], mask_out[y, x0:x1], weight_out[y, x0:x1]
            _strip(values, variance, work, method, bits, at, taps, *planes)


@inline
def _positions(nodes, cell, exact, i, j, ty, basis, flux, row, at):
    """Source x, y and area ratio (rows of ``at``) along row ty of cell (i, j)."""
    spacing = at.shape[1]
    if cell == CELL_INTERPOLATED:
        for k in range(4):
            for axis in range(2):
                value = slope = 0.0
                for n in range(4):
                    q = nodes[axis, i + n, j + k]
                    value += basis[0, ty, n] * q
                    slope += basis[1, ty, n] * q
                row[axis, k] = value
                row[2 + axis, k] = slope
        for x in range(spacing):
            a, d = basis[0, x], basis[1, x]
            at[0, x] = a[0] * row[0, 0] + a[1] * row[0, 1] + a[2] * row[0, 2] + a[3] * row[0, 3]
            at[1, x] = a[0] * row[1, 0] + a[1] * row[1, 1] + a[2] * row[1, 2] + a[3] * row[1, 3]
            at[2, x] = 1.0
            if flux:
                xx = d[0] * row[0, 0] + d[1] * row[0, 1] + d[2] * row[0, 2] + d[3] * row[0, 3]
                yx = d[0] * row[1, 0] + d[1] * row[1, 1] + d[2] * row[1, 2] + d[3] * row[1, 3]
                xy = a[0] * row[2, 0] + a[1] * row[2, 1] + a[2] * row[2, 2] + a[3] * row[2, 3]
                yy = a[0] * row[3, 0] + a[1] * row[3, 1] + a[2] * row[3, 2] + a[3] * row[3, 3]
                at[2, x] = abs(xx * yy - xy * yx) / (spacing * spacing)
    elif cell == CELL_OUTSIDE:
        at[:3] = np.nan
    else:
        at[:3] = exact[cell, :, ty]
        if not flux:
            at[2] = 1.0


@inline
def _strip(values, variance, work, method, bits, at, taps, image_out, variance_out, mask_out, weight_out):
    """All planes of one row of a cell; ``variance_out`` is (0 or 1, n)."""
    h, w = values.shape
    size = _size(method)
    for x in range(at.shape[1]):
        qx, qy = at[0, x], at[1, x]
        if not (-0.5 <= qx <= w - 0.5 and -0.5 <= qy <= h - 0.5):
            qx = qy = 0.0
            at[2, x] = np.nan
        if method == _NEAREST:
            qx, qy = min(np.floor(qx + 0.5), w - 1.0), min(np.floor(qy + 0.5), h - 1.0)
        at[0, x], at[1, x] = np.floor(qx), np.floor(qy)
        at[3, x], at[4, x] = qx - at[0, x], qy - at[1, x]
    fx, fy = at[3], at[4]
    bx, by, wx, wy = taps[0], taps[1], taps[2], taps[3]
    _weights(method, fx, bx, wx)
    _weights(method, fy, by, wy)
    if method == _BSPLINE3:
        _interpolate(values, at, by, bx, image_out, 4)
    elif method == _LANCZOS3:
        _interpolate(values, at, wy, wx, image_out, 6)
    else:
        _interpolate(values, at, wy, wx, image_out, size)
    if size == 6:  # a constant size is a loop without a counter
        _propagate(variance, work, at, wy, wx, bits, image_out, variance_out, mask_out, weight_out, 6)
    else:
        _propagate(variance, work, at, wy, wx, bits, image_out, variance_out, mask_out, weight_out, size)


@inline
def _size(method):
    """Side of the footprint on pixels, as `TAPS`."""
    return 1 if method == _NEAREST else 2 if method == _BILINEAR else 6


@inline
def _inside(top, left, size, shape):
    return left >= 0 and top >= 0 and left + size <= shape[1] and top + size <= shape[0]


@inline
def _interpolate(plane, at, wy, wx, image_out, size):
    """Weighted sums over size x size pixels times the area, mirrored at the border; NaN without a map."""
    for x in range(image_out.size):
        if math.isnan(at[2, x]):
            image_out[x] = np.nan
            continue
        top, left = int(at[1, x]) - (size - 1) // 2, int(at[0, x]) - (size - 1) // 2
        total = 0.0
        if _inside(top, left, size, plane.shape):
            for n in range(size):
                s = 0.0
                for k in range(size):
                    s += wx[x, k] * plane[top + n, left + k]
                total += wy[x, n] * s
        else:
            for n in range(size):
                y = _mirror(top + n, plane.shape[0])
                for k in range(size):
                    total += wy[x, n] * wx[x, k] * plane[y, _mirror(left + k, plane.shape[1])]
        image_out[x] = total * at[2, x]


@inline
def _propagate(variance, work, at, wy, wx, bits, image_out, variance_out, mask_out, weight_out, size):
    """Variance, mask and footprint; the image becomes NaN where too much weight is lost."""
    for x in range(image_out.size):
        v, flags, kept = np.nan, bits[3], 0.0
        if not math.isnan(at[2, x]):
            top, left = int(at[1, x]) - (size - 1) // 2, int(at[0, x]) - (size - 1) // 2
            inside = _inside(top, left, size, work.shape)
            v, flags, kept = 0.0, np.int32(0), 1.0
            if inside:
                for n in range(size):
                    s = 0.0
                    for k in range(size):
                        flags |= work[top + n, left + k]
                        if variance.size:
                            s += wx[x, k] * wx[x, k] * variance[top + n, left + k]
                    v += wy[x, n] * wy[x, n] * s
            if flags != 0 or not inside:
                v, flags, kept = _impaired(variance, work, wx[x], wy[x], at[3, x], at[4, x], left, top, size, bits)
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
