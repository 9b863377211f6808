# SPDX-License-Identifier: BSD-3-Clause
"""Numba twin of the peak tree: one flood from the brightest pixel down, union-find of branches and of objects."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.detect import leader
from skydelta.kernels.cpu.jit import serial


@serial
def _rows(pixel, width, up, down):
    """First pixel, by its index, that is not before the upper left and the lower left neighbour of each, in order."""
    n, j, k = len(pixel), 0, 0
    for i in range(n):
        while pixel[j] < pixel[i] - width - 1:
            j += 1
        while k < n and pixel[k] < pixel[i] + width - 1:
            k += 1
        up[i], down[i] = j, k


@serial
def _flood(order, rank, pixel, up, down, width, label, light, noise, significance, contrast, owner):
    """Fill ``owner``: the pixel (rank in ``order``) that leads the object of each rank.

    ``pixel`` is in raster order, and the neighbours of a pixel are beside it, or from ``up`` or ``down`` on. A branch
    is led by its brightest pixel. Objects are merged into the one they touch when their branch turns out not to count.
    """
    n = len(order)
    branch, total, count = np.arange(n), np.empty(n), np.ones(n, np.int64)
    several = np.zeros(n, np.bool_)
    # light and pixels of each object, kept at the pixel that leads it
    own, area = np.zeros(n), np.zeros(n, np.int64)
    ranks, roots = np.empty(8, np.int64), np.empty(8, np.int64)
    for r in range(n):
        i = order[r]
        total[r], owner[r] = light[i], r
        here = pixel[i]
        x = here % width
        # neighbours that were flooded before, brightest first
        m = 0
        for dy in range(-1, 2):
            near = up[i] if dy < 0 else (i - 1 if dy == 0 else down[i])
            for step in range(3):
                k = near + step
                if k < 0 or k >= n or k == i or label[k] != label[i]:
                    continue
                dx = pixel[k] - here - dy * width
                if dx < -1 or dx > 1 or x + dx < 0 or x + dx >= width:
                    continue
                k = rank[k]
                if k >= r:
                    continue
                at = m
                while at > 0 and ranks[at - 1] > k:
                    ranks[at] = ranks[at - 1]
                    at -= 1
                ranks[at] = k
                m += 1
        if m == 0:
            own[r], area[r] = light[i], 1
            continue
        owner[r] = ranks[0]
        for j in range(m):
            roots[j] = leader(branch, ranks[j])
        best = roots[0]
        for j in range(1, m):
            best = min(best, roots[j])
        # where each branch is touched: at its brightest neighbour of this pixel
        to = -1
        for j in range(m):
            if roots[j] == best:
                to = ranks[j]
                break
        for j in range(m):
            lower = leader(branch, ranks[j])
            higher = leader(branch, best)
            if lower == higher:
                continue
            if lower < higher:
                lower, higher = higher, lower
            peak, level = light[order[lower]], light[i]
            above = total[lower] - count[lower] * level
            a, b = leader(owner, ranks[j]), leader(owner, to)
            other = own[b] - area[b] * level
            counts = peak - level > significance * noise[order[lower]] and above > contrast * other
            # what holds an object besides its own peak counts in any case
            if counts or several[lower]:
                several[higher] = True
            else:
                # the bump belongs to the object it stands on
                owner[a] = b
                own[b] += own[a]
                area[b] += area[a]
            branch[lower] = higher
            total[higher] += total[lower]
            count[higher] += count[lower]
        top = leader(branch, best)
        branch[r] = top
        lead = leader(owner, r)
        own[lead] += light[i]
        area[lead] += 1
        total[top] += total[r]
        count[top] += 1
    for r in range(n):
        owner[r] = leader(owner, r)


def peak_tree(
    pixel: np.ndarray,
    width: int,
    label: np.ndarray,
    light: np.ndarray,
    noise: np.ndarray,
    significance: float,
    contrast: float,
) -> tuple[np.ndarray, np.ndarray]:
    n = len(pixel)
    order = np.argsort(-light, kind="stable")
    rank, up, down, owner = np.empty((4, n), np.int64)
    rank[order] = np.arange(n)
    _rows(pixel, width, up, down)
    _flood(order, rank, pixel, up, down, width, label, light, noise, significance, contrast, owner)
    leader = np.empty(n, np.int64)
    leader[order] = order[owner]
    # numbered in raster order of their peaks
    leads = np.zeros(n, np.int64)
    leads[leader] = 1
    return np.flatnonzero(leads), (np.cumsum(leads) - 1)[leader]
