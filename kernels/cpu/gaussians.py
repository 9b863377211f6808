# SPDX-License-Identifier: BSD-3-Clause
"""Gram sums of two round Gaussians of one width.

Every column is a sum of products of a function of x and one of y: what the weights do to all pairs of functions of x is
summed along a row of pixels, then multiplied by the functions of y.
"""

from __future__ import annotations

from itertools import combinations_with_replacement
from math import pi, sqrt

import numpy as np

from skydelta.kernels.cpu.jit import inline

FUNCTIONS = 8
"""Value, derivative by the centre and by the width of each lobe, 1, the offset."""

NORM = 1 / sqrt(2 * pi)


def _table() -> tuple[np.ndarray, np.ndarray]:
    """What the sums of all columns are made of, rows up to the constant first, then those of a plane.

    Rows (row and column of the Gram matrix, pair of functions of x, two functions of y), and (column, function of x,
    function of y) for those with the data.
    """
    lobe = [[(0, 0)], [(1, 0)], [(0, 1)], [(2, 0), (0, 2)]]
    columns = [[(3 * k + a, 3 * k + b) for a, b in parts] for k in range(2) for parts in lobe]
    columns += [[(6, 6)], [(7, 6)], [(6, 7)]]
    number = {p: i for i, p in enumerate(combinations_with_replacement(range(FUNCTIONS), 2))}
    pairs = [
        (i, j, number[min(a, c), max(a, c)], b, d)
        for i, one in enumerate(columns)
        for j, two in enumerate(columns[i:], i)
        for a, b in one
        for c, d in two
    ]
    return np.array(pairs), np.array([(i, a, b) for i, one in enumerate(columns) for a, b in one])


PAIRS, SIDES = _table()


@inline
def _profiles(q, first, side, out):
    """Functions (side, 8) of one axis, whose positions in ``q`` begin at ``first``."""
    width = q[len(q) - 1]
    for i in range(side):
        offset = i - side // 2
        for k in range(2):
            z = (offset - q[2 * k + first]) / width
            g = NORM / width * np.exp(-0.5 * z * z)
            out[i, 3 * k], out[i, 3 * k + 1], out[i, 3 * k + 2] = g, g * z / width, g * (z * z - 1) / width
        out[i, 6], out[i, 7] = 1, offset


@inline
def _sum_gaussians(weight, weighted, q, gram):
    """Gram sums at positions and width ``q``, but for the last element."""
    n, side = gram.shape[0] - 1, weight.shape[1]
    x, y = np.empty((side, FUNCTIONS)), np.empty((side, FUNCTIONS))
    _profiles(q, 0, side, x)
    _profiles(q, 1, side, y)
    count = FUNCTIONS * (FUNCTIONS + 1) // 2
    products, line, data = np.empty((side, count)), np.empty(count), np.empty(FUNCTIONS)
    for i in range(side):
        k = 0
        for a in range(FUNCTIONS):
            for b in range(a, FUNCTIONS):
                products[i, k] = x[i, a] * x[i, b]
                k += 1
    last = gram[n, n]
    gram[:, :] = 0
    gram[n, n] = last
    for j in range(side):
        line[:] = 0
        data[:] = 0
        for i in range(side):
            w, wd = weight[j, i], weighted[j, i]
            for k in range(count):
                line[k] += w * products[i, k]
            for k in range(FUNCTIONS):
                data[k] += wd * x[i, k]
        for k in range(len(PAIRS)):
            row, column = PAIRS[k, 0], PAIRS[k, 1]
            if column < n:
                gram[row, column] += line[PAIRS[k, 2]] * y[j, PAIRS[k, 3]] * y[j, PAIRS[k, 4]]
        for k in range(len(SIDES)):
            if SIDES[k, 0] < n:
                gram[n, SIDES[k, 0]] += data[SIDES[k, 1]] * y[j, SIDES[k, 2]]
    for i in range(n):
        for j in range(i):
            gram[i, j] = gram[j, i]
        gram[i, n] = gram[n, i]
