# SPDX-License-Identifier: BSD-3-Clause
"""Plain NumPy/SciPy references of the detection kernels."""

from __future__ import annotations

import numpy as np
from scipy import ndimage


def extrema(image: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    out = np.zeros(image.shape, bool)
    before = np.array([[1, 1, 1], [1, 0, 0], [0, 0, 0]], bool)
    for sign in (1, -1):
        v = np.where(np.isnan(image), -np.inf, sign * image)
        options = {"mode": "constant", "cval": -np.inf}
        peak = v > np.float32(threshold)
        peak &= v >= ndimage.maximum_filter(v, footprint=before, **options)
        peak &= v > ndimage.maximum_filter(v, footprint=before[::-1, ::-1], **options)
        out |= peak
    index = np.flatnonzero(out)
    return index, image.ravel()[index]


def components(image: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    eight = np.ones((3, 3), int)
    first: list[int] = []
    labels = np.zeros(image.shape, np.int32)
    for sign in (1, -1):
        part, count = ndimage.label(np.nan_to_num(sign * image) > np.float32(threshold), eight)
        offset = len(first)
        labels[part > 0] = part[part > 0] + offset
        first += [int(np.flatnonzero(part.ravel() == k)[0]) for k in range(1, count + 1)]
    number = np.zeros(len(first) + 1, np.int32)
    number[1 + np.argsort(first, kind="stable")] = np.arange(1, len(first) + 1)
    return number[labels], np.bincount(number[labels].ravel(), minlength=len(first) + 1)[1:]
