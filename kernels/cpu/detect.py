# SPDX-License-Identifier: BSD-3-Clause
"""Numba twins of the detection kernels."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.jit import inline, parallel, prange, serial


@parallel
def _peaks(image, threshold, out):
    height, width = image.shape
    for y in prange(height):
        for x in range(width):
            v = image[y, x]
            out[y, x] = False
            if not abs(v) > threshold:
                continue
            sign = np.float32(1) if v > 0 else np.float32(-1)
            v *= sign
            peak = True
            for j in range(max(y - 1, 0), min(y + 2, height)):
                for i in range(max(x - 1, 0), min(x + 2, width)):
                    w = sign * image[j, i]
                    later = j > y or (j == y and i > x)
                    if w > v or (later and w == v):
                        peak = False
            out[y, x] = peak


def extrema(image: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    peak = np.empty(image.shape, bool)
    _peaks(image, np.float32(threshold), peak)
    index = np.flatnonzero(peak)
    return index, image.ravel()[index]


@inline
def leader(parent, i):
    """Leader of the set that ``i`` is in; the path to it is halved."""
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@serial
def _components(image, threshold, labels):
    height, width = image.shape
    parent = np.zeros(height * ((width + 1) // 2) + 1, np.int32)
    count = np.int32(0)
    for y in range(height):
        for x in range(width):
            v = image[y, x]
            labels[y, x] = 0
            if not abs(v) > threshold:
                continue
            own = np.int32(0)
            for k in range(4):
                j, i = (y, x - 1) if k == 0 else (y - 1, x + k - 2)
                if j < 0 or i < 0 or i >= width or labels[j, i] == 0 or (image[j, i] > 0) != (v > 0):
                    continue
                root = leader(parent, labels[j, i])
                if own == 0:
                    own = root
                elif root != own:
                    low, high = min(root, own), max(root, own)
                    parent[high] = low
                    own = low
            if own == 0:
                count += 1
                parent[count] = count
                own = count
            labels[y, x] = own
    number = np.zeros(count + 1, np.int32)
    found = np.int32(0)
    for i in range(1, count + 1):
        if parent[i] == i:
            found += 1
            number[i] = found
    area = np.zeros(found, np.int32)
    for y in range(height):
        for x in range(width):
            if labels[y, x] > 0:
                labels[y, x] = number[leader(parent, labels[y, x])]
                area[labels[y, x] - 1] += 1
    return area


def components(image: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    labels = np.empty(image.shape, np.int32)
    return labels, _components(image, np.float32(threshold), labels)
