# SPDX-License-Identifier: BSD-3-Clause
"""CPU twins of the convolution kernels."""

from __future__ import annotations

import numpy as np
from scipy import fft

from skydelta.kernels.convolve import filling_taps
from skydelta.kernels.cpu.jit import inline, parallel, prange
from skydelta.kernels.polynomial import chebyshev, polynomial_exponents

FIELD_TILE = 256
"""Side of the tiles that `convolve_field` transforms: their spectra stay in the cache, px."""

FILL_TILE = 32
"""Side of the tiles that `fill_masked` smooths where they hold a bad pixel, px."""


@inline
def _convolve_rows(padded, kernel, top, left, out):
    """One tile: ``out`` (h, w) from the padded plane, whose pixel (top, left) lies under the kernel's first tap."""
    kh, kw = kernel.shape
    height, width = out.shape
    for y in range(height):
        line = np.zeros(width, np.float32)
        for j in range(kh):
            for i in range(kw):
                k = kernel[j, i]
                if k != 0:
                    x0 = left + kw - 1 - i
                    source = padded[top + y + kh - 1 - j, x0 : x0 + width]
                    for x in range(width):
                        line[x] += k * source[x]
        out[y] = line


@parallel
def _convolve_tiles(padded, kernels, tile, out):
    height, width = out.shape
    for ty in prange(kernels.shape[0]):
        for tx in range(kernels.shape[1]):
            y0, x0 = ty * tile, tx * tile
            y1, x1 = min(height, y0 + tile), min(width, x0 + tile)
            _convolve_rows(padded, kernels[ty, tx], y0, x0, out[y0:y1, x0:x1])


def convolve_tiles(plane: np.ndarray, kernels: np.ndarray, tile: int) -> np.ndarray:
    kh, kw = kernels.shape[2:]
    padded = np.pad(plane, ((kh // 2, kh // 2), (kw // 2, kw // 2)))
    out = np.empty(plane.shape, np.float32)
    _convolve_tiles(padded, np.ascontiguousarray(kernels, np.float32), tile, out)
    return out


@parallel
def _bad_reach(doubt, good, kernels, tile, leak, lost):
    height, width = good.shape
    kh, kw = kernels.shape[2:]
    for ty in prange(kernels.shape[0]):
        for tx in range(kernels.shape[1]):
            y0, x0 = ty * tile, tx * tile
            y1, x1 = min(height, y0 + tile), min(width, x0 + tile)
            bad = np.zeros((y1 - y0 + kh - 1, x1 - x0 + kw - 1), np.float32)
            light = np.zeros(bad.shape, np.float32)
            count = 0
            for j in range(bad.shape[0]):
                for i in range(bad.shape[1]):
                    y, x = y0 - kh // 2 + j, x0 - kw // 2 + i
                    inside = 0 <= y < height and 0 <= x < width
                    if not inside or not good[y, x]:
                        bad[j, i] = 1
                        count += 1
                        if inside:
                            light[j, i] = doubt[y, x]
            if count == 0:
                leak[y0:y1, x0:x1] = 0
                lost[y0:y1, x0:x1] = 0
                continue
            weight = np.abs(kernels[ty, tx])
            total = np.float32(0)
            for j in range(kh):
                for i in range(kw):
                    total += weight[j, i]
            _convolve_rows(light, weight, 0, 0, leak[y0:y1, x0:x1])
            _convolve_rows(bad, weight, 0, 0, lost[y0:y1, x0:x1])
            lost[y0:y1, x0:x1] *= np.float32(1) / total


def bad_reach(doubt: np.ndarray, good: np.ndarray, kernels: np.ndarray, tile: int) -> tuple[np.ndarray, np.ndarray]:
    leak, lost = np.empty(good.shape, np.float32), np.empty(good.shape, np.float32)
    _bad_reach(doubt, good, np.ascontiguousarray(kernels, np.float32), tile, leak, lost)
    return leak, lost


def convolve_field(plane: np.ndarray, images: np.ndarray, u: np.ndarray, v: np.ndarray, order: int) -> np.ndarray:
    (h, w), (kh, kw) = plane.shape, images.shape[1:]
    columns, rows = (np.stack(chebyshev(t, order)).astype(np.float32) for t in (u, v))
    side = tuple(min(FIELD_TILE, n) for n in (h, w))
    size = tuple(fft.next_fast_len(n + k - 1, True) for n, k in zip(side, (kh, kw), strict=True))
    spectra = fft.rfft2(images.astype(np.float32), size)
    out = np.empty(plane.shape, np.float32)
    cut = np.zeros(size, np.float32)
    for y0 in range(0, h, side[0]):
        for x0 in range(0, w, side[1]):
            y1, x1 = min(h, y0 + side[0]), min(w, x0 + side[1])
            top, left = max(y0 - kh // 2, 0), max(x0 - kw // 2, 0)
            window = plane[top : y1 + kh // 2, left : x1 + kw // 2]
            cut[:] = 0
            cut[: window.shape[0], : window.shape[1]] = window
            # the output of a pixel of the window lies half a kernel further on
            j, i = y0 - top + kh // 2, x0 - left + kw // 2
            terms = fft.irfft2(spectra * fft.rfft2(cut), size)[:, j : j + y1 - y0, i : i + x1 - x0]
            here = out[y0:y1, x0:x1]
            here[:] = terms[0]
            for p, (along_x, along_y) in enumerate(polynomial_exponents(order)[1:], 1):
                terms[p] *= columns[along_x, x0:x1]
                terms[p] *= rows[along_y, y0:y1, None]
                here += terms[p]
    return out


@parallel
def _fill_masked(first, second, good, taps, first_out, second_out):
    height, width = good.shape
    radius, side = len(taps) // 2, FILL_TILE + len(taps) - 1
    tiles_x = (width + FILL_TILE - 1) // FILL_TILE
    for ty in prange((height + FILL_TILE - 1) // FILL_TILE):
        halo = np.empty((3, side, side), np.float32)
        down = np.empty(side, np.float32)
        for tx in range(tiles_x):
            y0, x0 = ty * FILL_TILE, tx * FILL_TILE
            y1, x1 = min(height, y0 + FILL_TILE), min(width, x0 + FILL_TILE)
            first_out[y0:y1, x0:x1] = first[y0:y1, x0:x1]
            second_out[y0:y1, x0:x1] = second[y0:y1, x0:x1]
            if good[y0:y1, x0:x1].all():
                continue
            for j in range(side):
                y = min(max(y0 - radius + j, 0), height - 1)
                for i in range(side):
                    x = min(max(x0 - radius + i, 0), width - 1)
                    ok = good[y, x]
                    halo[0, j, i] = 1 if ok else 0
                    halo[1, j, i] = first[y, x] if ok else 0
                    halo[2, j, i] = second[y, x] if ok else 0
            for y in range(y0, y1):
                if good[y, x0:x1].all():
                    continue
                sums = np.zeros((3, FILL_TILE), np.float32)
                for q in range(3):
                    down[:] = 0
                    for t in range(len(taps)):
                        for i in range(side):
                            down[i] += taps[t] * halo[q, y - y0 + t, i]
                    for t in range(len(taps)):
                        for i in range(FILL_TILE):
                            sums[q, i] += taps[t] * down[i + t]
                for x in range(x0, x1):
                    if not good[y, x]:
                        weight = max(sums[0, x - x0], np.float32(1e-3))
                        first_out[y, x] = sums[1, x - x0] / weight
                        second_out[y, x] = sums[2, x - x0] / weight


def fill_masked(
    image: np.ndarray, variance: np.ndarray, good: np.ndarray, sigma: float
) -> tuple[np.ndarray, np.ndarray]:
    out = np.empty(image.shape, np.float32), np.empty(image.shape, np.float32)
    _fill_masked(image, variance, good, filling_taps(sigma), *out)
    return out
