# SPDX-License-Identifier: BSD-3-Clause
"""Numba twins of the work on stacks of tiles."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.jit import inline, parallel, prange


@inline
def scaled(a, factor):
    return a * factor


@inline
def sum_of_two(a, x, b, y):
    return a * x + b * y


@inline
def correlated(a, b):
    return a * np.conj(b)


@inline
def weigh(whitened, raw, floor, usable):
    variance = floor if raw < floor else raw
    inverse = np.float32(1) / variance if usable else np.float32(0)
    return inverse, variance, whitened * inverse


@parallel
def _cut_tiles(difference, fixed, moved, usable, good_fixed, good_moved, rows, columns, scale, out, usable_out):
    height, width = difference.shape
    size = out.shape[-1]
    for t in prange(out.shape[1]):
        top, left = rows[t // len(columns)], columns[t % len(columns)]
        for j in range(size):
            y = top + j
            for i in range(size):
                x = left + i
                inside = 0 <= y < height and 0 <= x < width
                use = inside and usable[y, x]
                usable_out[t, j, i] = use
                out[0, t, j, i] = difference[y, x] if use else 0
                out[1, t, j, i] = fixed[y, x] * scale if inside and good_fixed[y, x] else 0
                out[2, t, j, i] = moved[y, x] * scale if inside and good_moved[y, x] else 0


def cut_tiles(
    difference, fixed, moved, usable, good_fixed, good_moved, rows, columns, size, scale
) -> tuple[np.ndarray, np.ndarray]:
    shape = (len(rows) * len(columns), size, size)
    out, usable_out = np.empty((3, *shape), np.float32), np.empty(shape, bool)
    planes = (difference, fixed, moved, usable, good_fixed, good_moved)
    _cut_tiles(*planes, np.asarray(rows), np.asarray(columns), np.float32(scale), out, usable_out)
    return out, usable_out


@parallel
def _join_tiles(whitened, variance, exact, weight, plain, signal, usable, rows, columns, pad, out):
    nan = np.float32(np.nan)
    nx = len(columns) - 1
    for t in prange(whitened.shape[0]):
        r, c = t // nx, t % nx
        for y in range(rows[r], rows[r + 1]):
            for x in range(columns[c], columns[c + 1]):
                j, i = y - rows[r] + pad, x - columns[c] + pad
                v, u = y - rows[0], x - columns[0]
                good = usable[t, j, i]
                out[0, v, u] = whitened[t, j, i] if good else nan
                out[1, v, u] = variance[t, j, i] if good else nan
                a, b, d = weight[t, j, i], exact[t, j, i], plain[t, j, i]
                valid = good and a > 0 and b > 0 and d > 0
                out[2, v, u] = signal[t, j, i] / np.sqrt(a * b / d) if valid else nan


def join_tiles(whitened, variance, exact, weight, plain, signal, usable, rows, columns, pad) -> np.ndarray:
    rows, columns = np.asarray(rows), np.asarray(columns)
    out = np.empty((3, rows[-1] - rows[0], columns[-1] - columns[0]), np.float32)
    _join_tiles(whitened, variance, exact, weight, plain, signal, usable, rows, columns, int(pad), out)
    return out
