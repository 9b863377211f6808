# SPDX-License-Identifier: BSD-3-Clause
"""The last steps of decoding on the CPU: swap, unquantise, scale, flag nulls and store a batch of tiles.

Each function takes the stored values of tiles t0 to t1 in ``source``, tile t from index ``first[t - t0]``, and writes
the pixels that fall into the window. They differ in what they read and write, so that each inner loop is one vector
loop.
"""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.bits import as_float, cast, swapped, unsigned
from skydelta.kernels.cpu.jit import inline, serial
from skydelta.kernels.decode import EXACT_ZERO
from skydelta.kernels.dither import COUNT, STRETCH


@inline
def rows_of(t, extent):
    """Number of rows (runs along the fastest axis) of a tile."""
    rows = 1
    for d in range(extent.shape[1] - 1):
        rows *= extent[t, d]
    return rows


@inline
def run_of(t, row, origin, extent, corner, shape):
    """(index in the tile, flat index in the window, length) of the part of a row that lies in the window."""
    last = extent.shape[1] - 1
    rest = row
    flat = np.int64(0)
    stride = shape[last]
    for d in range(last - 1, -1, -1):
        p = origin[t, d] + rest % extent[t, d] - corner[d]
        rest //= extent[t, d]
        if p < 0 or p >= shape[d]:
            return np.int64(0), np.int64(0), np.int64(0)
        flat += p * stride
        stride *= shape[d]
    start = origin[t, last] - corner[last]
    low, high = max(start, 0), min(start + extent[t, last], shape[last])
    return row * extent[t, last] + low - start, flat + low, max(high - low, 0)


@inline
def flag_run(out, mask, mask_bit):
    """Make infinite pixels of a run NaN and set a mask bit where one is NaN; (NaN, infinite). ``mask`` may be empty.

    A mask that stays as it is is not touched: a new one costs its pages when it is written first.
    """
    missing, infinite = 0, 0
    for i in range(mask.size):
        missing += out[i] - out[i] != 0
    if missing:
        for i in range(mask.size):
            v = out[i]
            if v - v != 0:
                mask[i] |= mask_bit
                if not np.isnan(v):
                    infinite += 1
                    out[i] = np.nan
    return missing, infinite


@serial
def flag(out, mask, mask_bit):
    """As `flag_run`, for pixels that are decoded already."""
    return flag_run(out, mask, mask_bit)


@inline
def flag_tile(t, out, mask, mask_bit, missing, infinite):
    m, n = flag_run(out, mask, mask_bit)
    missing[t] += m
    infinite[t] += n


@inline
def count_equal(source, swap, blank):
    """How many stored values equal a null value."""
    found = 0
    for i in range(source.size):
        s = swapped(source[i]) if swap else source[i]
        found += np.int64(s) == blank
    return found


@serial
def unshuffle(raw, first, count, out):
    """Bytes sorted by significance, tile by tile, to native integers (the shuffle of GZIP_2; FITS 4.0, 10.4.2)."""
    for t in range(len(first)):
        a, n = first[t] * out.itemsize, count[t]
        values = out[first[t] : first[t] + n]
        if out.itemsize == 2:
            b0, b1 = raw[a : a + n], raw[a + n : a + 2 * n]
            for i in range(n):
                values[i] = (np.int32(b0[i]) << 8) | np.int32(b1[i])
            continue
        for i in range(n):
            values[i] = 0
        for byte in range(out.itemsize):
            plane = raw[a + byte * n : a + (byte + 1) * n]
            for i in range(n):
                values[i] = (values[i] << 8) | plane[i]


@serial
def swap(bits, flip):
    """Swap integers in place and invert the bits of ``flip``."""
    for i in range(bits.size):
        bits[i] = swapped(bits[i]) ^ flip


@inline
def integer_run(source, swap, out, flip):
    if swap:
        for i in range(out.size):
            out[i] = swapped(source[i]) ^ flip
    else:
        for i in range(out.size):
            out[i] = source[i] ^ flip


@serial
def integers(
    source, swap, first, t0, t1, origin, extent, corner, shape, out, flip, blank, has_blank, common, has_common, nulls
):
    """Integers as they are; ``flip`` (0 or the top bit, of the type of ``out``) changes the signedness."""
    for t in range(t0, t1):
        for row in range(rows_of(t, extent)):
            k, o, n = run_of(t, row, origin, extent, corner, shape)
            stored = source[first[t - t0] + k : first[t - t0] + k + n]
            integer_run(stored, swap, out[o : o + n], flip)
            if has_blank[t]:
                nulls[t] += count_equal(stored, swap, blank[t])
            if has_common and not (has_blank[t] and blank[t] == common):
                nulls[t] += count_equal(stored, swap, common)


@inline
def plain_run(source, swap, out, flip):
    if flip and swap:
        for i in range(out.size):
            out[i] = unsigned(swapped(source[i]))
    elif flip:
        for i in range(out.size):
            out[i] = unsigned(source[i])
    elif swap:
        for i in range(out.size):
            out[i] = swapped(source[i])
    else:
        for i in range(out.size):
            out[i] = source[i]


@inline
def linear_run(source, swap, out, scale, zero):
    if swap:
        for i in range(out.size):
            out[i] = cast(scale, swapped(source[i])) * scale + zero
    else:
        for i in range(out.size):
            out[i] = cast(scale, source[i]) * scale + zero


@inline
def blank_run(source, swap, out, blank):
    """NaN where the stored value is the null value."""
    found = 0
    for i in range(out.size):
        s = swapped(source[i]) if swap else source[i]
        if np.int64(s) == blank:
            out[i] = np.nan
            found += 1
    return found


@serial
def integers_to_floats(
    source, swap, first, t0, t1, origin, extent, corner, shape, out, flip, linear, scale, zero,
    blank, has_blank, common, has_common, nulls, mask, mask_bit, missing, infinite,
):  # fmt: skip
    """To float32 or float64, scaled in the type of ``scale`` and ``zero`` where ``linear``."""
    for t in range(t0, t1):
        for row in range(rows_of(t, extent)):
            k, o, n = run_of(t, row, origin, extent, corner, shape)
            stored = source[first[t - t0] + k : first[t - t0] + k + n]
            pixels = out[o : o + n]
            if linear:
                linear_run(stored, swap, pixels, scale, zero)
            else:
                plain_run(stored, swap, pixels, flip)
            if has_blank[t]:
                nulls[t] += blank_run(stored, swap, pixels, blank[t])
            if has_common and not (has_blank[t] and blank[t] == common):
                nulls[t] += blank_run(stored, swap, pixels, common)
            if has_blank[t] or has_common or linear:
                flag_tile(t, pixels, mask[o : o + n], mask_bit, missing, infinite)


@inline
def dither_at(start, k, table):
    """(index of the run, index in the table) of the random number of pixel ``k`` of a tile (FITS 4.0, appendix I)."""
    i = start
    p = np.int64(table[i] * np.float32(STRETCH))
    left = k
    while left >= COUNT - p:
        left -= COUNT - p
        i = (i + 1) % COUNT
        p = np.int64(table[i] * np.float32(STRETCH))
    return i, p + left


@inline
def dithered_run(source, swap, out, zscale, zzero, table, start, k, exact_zero, linear, scale, zero):
    i, p = dither_at(start, k, table)
    done = 0
    while done < out.size:
        m = min(out.size - done, COUNT - p)
        for x in range(m):
            s = swapped(source[done + x]) if swap else source[done + x]
            v = (np.float64(s) - np.float64(table[p + x]) + 0.5) * zscale + zzero
            v = 0.0 if exact_zero and s == EXACT_ZERO else v
            out[done + x] = cast(scale, v) * scale + zero if linear else v
        done += m
        p += m
        if p == COUNT:
            i = (i + 1) % COUNT
            p = np.int64(table[i] * np.float32(STRETCH))


@inline
def undithered_run(source, swap, out, zscale, zzero, linear, scale, zero):
    for x in range(out.size):
        s = swapped(source[x]) if swap else source[x]
        v = np.float64(s) * zscale + zzero
        out[x] = cast(scale, v) * scale + zero if linear else v


@serial
def quantized(
    source, swap, first, t0, t1, origin, extent, corner, shape, out, dither, zscale, zzero, table, exact_zero,
    linear, scale, zero, blank, has_blank, common, has_common, nulls, mask, mask_bit, missing, infinite,
):  # fmt: skip
    """Quantised integers to float32 or float64; ``scale`` and ``zero`` as in `integers_to_floats`."""
    for t in range(t0, t1):
        for row in range(rows_of(t, extent)):
            k, o, n = run_of(t, row, origin, extent, corner, shape)
            if n == 0:
                continue
            stored = source[first[t - t0] + k : first[t - t0] + k + n]
            pixels = out[o : o + n]
            if dither[t] >= 0:
                dithered_run(
                    stored, swap, pixels, zscale[t], zzero[t], table, dither[t], k, exact_zero, linear, scale, zero
                )  # fmt: skip
            else:
                undithered_run(stored, swap, pixels, zscale[t], zzero[t], linear, scale, zero)
            if has_blank[t]:
                nulls[t] += blank_run(stored, swap, pixels, blank[t])
            if has_common and not (has_blank[t] and blank[t] == common):
                nulls[t] += blank_run(stored, swap, pixels, common)
            flag_tile(t, pixels, mask[o : o + n], mask_bit, missing, infinite)


@inline
def float_run(source, swap, out, linear, scale, zero):
    if linear:
        for i in range(out.size):
            s = swapped(source[i]) if swap else source[i]
            out[i] = cast(scale, as_float(s)) * scale + zero
    elif swap:
        for i in range(out.size):
            out[i] = as_float(swapped(source[i]))
    else:
        for i in range(out.size):
            out[i] = as_float(source[i])


@serial
def floats(
    source, swap, first, t0, t1, origin, extent, corner, shape, out, linear, scale, zero,
    mask, mask_bit, missing, infinite,
):  # fmt: skip
    """Bits of float32 or float64 (as int32 or int64) to floats."""
    for t in range(t0, t1):
        for row in range(rows_of(t, extent)):
            k, o, n = run_of(t, row, origin, extent, corner, shape)
            stored = source[first[t - t0] + k : first[t - t0] + k + n]
            pixels = out[o : o + n]
            float_run(stored, swap, pixels, linear, scale, zero)
            flag_tile(t, pixels, mask[o : o + n], mask_bit, missing, infinite)
