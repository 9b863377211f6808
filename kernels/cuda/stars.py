# SPDX-License-Identifier: BSD-3-Clause
"""Launchers of the star kernels; arguments and results as the twins of ``kernels/cpu/stars.py``."""

from __future__ import annotations

import functools

import numpy as np

from skydelta.kernels.backend import Array, Backend, backend_of, to_host
from skydelta.kernels.core.module import kernel
from skydelta.kernels.stars import STILL, USUAL_RADIUS, rings

SIDE = 32
"""Side of the square a block smooths: as in ``stars.cu``."""

BLOCK = (32, 8)

USUAL_PEAKS = 16384
"""As many come to the host without asking for their number first; an image with more is searched again."""

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
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    xp = backend_of(light).xp
    h, w = light.shape
    # no two peaks touch
    most = ((h + 1) // 2) * ((w + 1) // 2)
    plane = np.uintp(0) if variance is None else variance

    def search(capacity: int) -> tuple[np.ndarray, int]:
        # one table, so that the peaks come with their number
        table = xp.zeros(3 * capacity + 1, np.int32)
        pixel, snr, height = table[:-1].reshape(3, capacity)
        scalars = (*_sizes(h, w), np.float32(gain), limit, *_sizes(radius, capacity))
        arguments = (light, good, plane, *scalars, table[-1:], pixel, snr, height)
        kernel("stars.cu", "light_peaks")(_grid(light.shape, BLOCK), BLOCK, arguments)
        found = to_host(table)
        return found[:-1].reshape(3, capacity), int(found[-1])

    capacity = min(most, USUAL_PEAKS)
    found, n = search(capacity)
    if n > capacity:
        found, n = search(most)
    found = found[:, np.argsort(found[0, :n])]
    return found[0], found[1].view(np.float32), found[2].view(np.float32)


def sample_snr(light: Array, good: Array, variance: Array | None, gain: float, every: int) -> Array:
    out = backend_of(light).xp.empty([-(-n // every) for n in light.shape], np.float32)
    plane = np.uintp(0) if variance is None else variance
    arguments = (light, good, plane, np.int32(light.shape[1]), np.float32(gain), *_sizes(every, *out.shape), out)
    kernel("stars.cu", "sample_snr")((-(-out.size // 256),), (256,), arguments)
    return out


def robust_levels(ascending: Array, times: float, least: float) -> Array:
    out = backend_of(ascending).xp.empty(3, np.float32)
    arguments = (ascending, np.int32(ascending.size), np.float32(times), np.float32(least), out)
    kernel("stars.cu", "robust_levels")((1,), (1,), arguments)
    return out


def ring_medians(image: Array, good: Array, pixel: Array, half: int, core: int) -> Array:
    backend = backend_of(image)
    n = pixel.size
    table = backend.xp.empty((n, half + 2))
    if n:
        member = _members(half, backend)
        arguments = (image, good, *_sizes(*image.shape), pixel, member, *_sizes(len(member), half, core), table)
        shared = 4 * (len(member) + 3 * (half + 1) + 1)
        kernel("stars.cu", "ring_medians")((n,), (256,), arguments, shared_mem=shared)
    return table


@functools.cache
def _members(half: int, backend: Backend) -> Array:
    """Pixels of `rings` on a device, for every stream."""
    member = backend.asarray(rings(half)[0])
    backend.synchronize()
    return member


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
