# SPDX-License-Identifier: BSD-3-Clause
"""Plain SciPy references of the convolution kernels."""

from __future__ import annotations

import numpy as np
from numpy.polynomial.chebyshev import chebgrid2d
from scipy.ndimage import gaussian_filter
from scipy.signal import fftconvolve


def convolve_tiles(plane: np.ndarray, kernels: np.ndarray, tile: int) -> np.ndarray:
    out = np.empty(plane.shape, np.float32)
    for ty in range(kernels.shape[0]):
        for tx in range(kernels.shape[1]):
            here = np.s_[ty * tile : (ty + 1) * tile, tx * tile : (tx + 1) * tile]
            out[here] = _same(plane, kernels[ty, tx])[here]
    return out


def bad_reach(doubt: np.ndarray, good: np.ndarray, kernels: np.ndarray, tile: int) -> tuple[np.ndarray, np.ndarray]:
    weight = np.abs(kernels)
    share = weight / weight.sum(axis=(2, 3), keepdims=True)
    return convolve_tiles(np.where(good, 0, doubt), weight, tile), 1 - convolve_tiles(good, share, tile)


def convolve_field(plane: np.ndarray, images: np.ndarray, u: np.ndarray, v: np.ndarray, order: int) -> np.ndarray:
    out = np.zeros(plane.shape)
    terms = [(degree - j, j) for degree in range(order + 1) for j in range(degree + 1)]
    for (i, j), image in zip(terms, images, strict=True):
        unit = np.zeros((order + 1, order + 1))
        unit[i, j] = 1
        out += chebgrid2d(u, v, unit).T * _same(plane, image)
    return out.astype(np.float32)


def fill_masked(
    image: np.ndarray, variance: np.ndarray, good: np.ndarray, sigma: float
) -> tuple[np.ndarray, np.ndarray]:
    def smooth(plane: np.ndarray) -> np.ndarray:
        return gaussian_filter(plane.astype(np.float64), sigma, mode="nearest", truncate=4.0)

    weight = np.maximum(smooth(good), 1e-3)
    made = [np.where(good, p, smooth(np.where(good, p, 0)) / weight) for p in (image, variance)]
    return made[0].astype(np.float32), made[1].astype(np.float32)


def _same(plane: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Full convolution in double precision, cut to the plane; also where the kernel is the larger one."""
    (h, w), (kh, kw) = plane.shape, kernel.shape
    full = fftconvolve(plane.astype(np.float64), kernel.astype(np.float64), "full")
    return full[kh // 2 : kh // 2 + h, kw // 2 : kw // 2 + w]
