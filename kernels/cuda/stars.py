# SPDX-License-Identifier: BSD-3-Clause
"""Launchers of the star kernels; arguments and results as the twins of ``kernels/cpu/stars.py``."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.module import kernel
from skydelta.kernels.stars import STILL, USUAL_RADIUS, rings

SIDE = 32
"""Side of the square a block smooths: as in ``stars.cu``."""

BLOCK = (32, 8)

WARPS = 4
"""Stars a block, one warp each: as in ``stars.cu``."""


def _grid(shape: tuple[int, int], block: tuple[int, int]) -> tuple[int, int]:
    return -(-shape[1] // block[0]), -(-shape[0] // block[1])


def _sizes(*values: int) -> tuple[np.int32, ...]:
    return tuple(np.int32(v) for v in values)


def smooth_masked(image: Array, good: Array, taps: np.ndarray) -> Array:
    backend = backend_of(image)
    out = backend.xp.empty(image.shape, np.float32)
    radius = len(taps) - 1
    pitch = SIDE + 2 * radius
    arguments = (image, good, *_sizes(*image.shape), backend.asarray(taps), np.int32(radius), out)
    shared = 4 * pitch * (pitch + SIDE)
    function = kernel("stars.cu", "smooth_masked", (str(radius if radius == USUAL_RADIUS else 0),))
    function(_grid(image.shape, (SIDE, SIDE)), BLOCK, arguments, shared_mem=shared)
    return out


def light_peaks(
    light: Array, good: Array, variance: Array | None, gain: float, limit: Array, radius: int
) -> tuple[Array, Array, Array]:
    xp = backend_of(light).xp
    h, w = light.shape
    # no two peaks touch
    capacity = ((h + 1) // 2) * ((w + 1) // 2)
    count, found = xp.zeros(1, np.int32), xp.empty((3, capacity), np.int32)
    pixel, snr, height = found[0], found[1].view(np.float32), found[2].view(np.float32)
    plane = np.uintp(0) if variance is None else variance
    scalars = (*_sizes(h, w), np.float32(gain), limit, *_sizes(radius, capacity))
    arguments = (light, good, plane, *scalars, count, pixel, snr, height)
    kernel("stars.cu", "light_peaks")(_grid(light.shape, BLOCK), BLOCK, arguments)
    n = int(count[0])
    sorted_ = found[:, xp.argsort(pixel[:n])]
    return sorted_[0], sorted_[1].view(np.float32), sorted_[2].view(np.float32)


def ring_medians(image: Array, good: Array, pixel: Array, half: int, core: int) -> tuple[Array, Array]:
    backend = backend_of(image)
    n = pixel.size
    medians, clean = backend.xp.empty((n, half + 1)), backend.xp.empty(n, np.bool_)
    if n:
        member = rings(half)[0]
        table = (backend.asarray(member), np.int32(len(member)))
        arguments = (image, good, *_sizes(*image.shape), pixel, *table, *_sizes(half, core), medians, clean)
        shared = 4 * (len(member) + 3 * (half + 1) + 1)
        kernel("stars.cu", "ring_medians")((n,), (256,), arguments, shared_mem=shared)
    return medians, clean


def star_shapes(
    image: Array, good: Array, pixel: Array, half: int, core: int, sigma: float, iterations: int = 10
) -> Array:
    n = pixel.size
    measures = backend_of(image).xp.empty((5, n))
    if n:
        limits = (np.float64(sigma), np.int32(iterations), np.float64(STILL), np.float64(np.inf))
        arguments = (image, good, *_sizes(*image.shape), pixel, *_sizes(n, half, core), *limits, measures)
        shared = 8 * WARPS * 2 * (2 * half + 1)
        kernel("stars.cu", "star_shapes")((-(-n // WARPS),), (32 * WARPS,), arguments, shared_mem=shared)
    return measures


def star_apertures(
    image: Array, good: Array, pixel: Array, centre: Array, half: int, aperture: float, core: float
) -> Array:
    n = pixel.size
    measures = backend_of(image).xp.empty((3, n))
    if n:
        radii = (np.float64(aperture), np.float64(core), np.float64(np.inf))
        arguments = (image, good, *_sizes(*image.shape), pixel, centre, *_sizes(n, half), *radii, measures)
        kernel("stars.cu", "star_apertures")((-(-n // WARPS),), (32 * WARPS,), arguments)
    return measures


def neighbours(pixel: Array, height: Array, star: Array, width: int, radius: float, share: float) -> Array:
    n = star.size
    counts = backend_of(pixel).xp.empty(n, np.int32)
    if n:
        numbers = (np.int32(width), np.float64(radius), np.float64(share))
        arguments = (pixel, height, np.int32(pixel.size), star, np.int32(n), *numbers, counts)
        kernel("stars.cu", "neighbours")((-(-n // 64),), (64,), arguments)
    return counts
