# SPDX-License-Identifier: BSD-3-Clause
"""Launchers of the convolutions; arguments and results as the twins of ``kernels/cpu/convolve.py``."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.convolve import FIELD_ROWS, filling_taps
from skydelta.kernels.core.module import kernel
from skydelta.kernels.polynomial import chebyshev, polynomial_exponents

SIDE, RUN, BANDS = 32, 8, 4


def convolve_tiles(plane: Array, kernels: Array, tile: int) -> Array:
    """A block makes 32 x 32 pixels: tiles are a multiple of that."""
    out = backend_of(plane).xp.empty(plane.shape, np.float32)
    _launch_tiles("convolve_tiles", (plane,), kernels, tile, (out,))
    return out


def bad_reach(doubt: Array, good: Array, kernels: Array, tile: int) -> tuple[Array, Array]:
    xp = backend_of(doubt).xp
    leak, lost = xp.empty(doubt.shape, np.float32), xp.empty(doubt.shape, np.float32)
    _launch_tiles("bad_reach", (doubt, good), kernels, tile, (leak, lost))
    return leak, lost


def _launch_tiles(name: str, planes: tuple[Array, ...], kernels: Array, tile: int, out: tuple[Array, ...]) -> None:
    if tile % SIDE:
        raise ValueError(f"tiles of {tile} px; on a device a multiple of {SIDE} is needed")
    (h, w), (kh, kw) = planes[0].shape, kernels.shape[2:]
    if not kh % 2 or not kw % 2:
        raise ValueError(f"kernels of {kh} x {kw} px; odd sides are needed")
    scalars = [np.int32(i) for i in (h, w, kh, kw, tile, kernels.shape[1])]
    pitch = SIDE + (kw // RUN + 1) * RUN + 4  # as `run_pitch`
    shared = 4 * ((SIDE + kh - 1) * pitch + kh * -(-kw // RUN) * RUN)
    launch = kernel("convolve.cu", name, (str(kw % RUN),))
    launch((-(-w // SIDE), -(-h // SIDE)), (SIDE * SIDE // RUN,), (*planes, kernels, *scalars, *out), shared_mem=shared)


def convolve_field(plane: Array, images: np.ndarray, u: np.ndarray, v: np.ndarray, order: int) -> Array:
    if order not in FIELD_ROWS:
        raise ValueError(f"order {order}; on a device 0 to {max(FIELD_ROWS)} are allowed")
    backend = backend_of(plane)
    (h, w), (kh, kw), rows = plane.shape, images.shape[1:], FIELD_ROWS[order]
    number = {exponents: p for p, exponents in enumerate(polynomial_exponents(order))}
    size = -(-len(number) // 4) * 4
    # turned round, tap by tap down the columns, the terms of a tap by their degree along y
    terms = np.zeros((kw, kh, size), np.float32)
    terms[..., : len(number)] = np.stack(
        [images[number[i, j], ::-1, ::-1].T for j in range(order + 1) for i in range(order + 1 - j)], axis=2
    )
    tables = [np.stack(chebyshev(t, order)).astype(np.float32) for t in (u, v)]
    out = backend.xp.empty(plane.shape, np.float32)
    shared = 4 * (2 * kh * size + (BANDS * rows + kh - 1) * (SIDE + kw - 1))
    scalars = [np.int32(i) for i in (h, w, kh, kw)]
    launch = kernel("convolve.cu", "convolve_field", (str(order), str(rows)))
    arguments = (plane, *(backend.asarray(a) for a in (terms, *tables)), *scalars, out)
    launch((-(-w // SIDE), -(-h // (BANDS * rows))), (SIDE, BANDS), arguments, shared_mem=shared)
    return out


def fill_masked(image: Array, variance: Array, good: Array, sigma: float) -> tuple[Array, Array]:
    backend = backend_of(image)
    taps, (h, w) = filling_taps(sigma), image.shape
    out = backend.xp.empty(image.shape, np.float32), backend.xp.empty(image.shape, np.float32)
    side, scalars = SIDE + len(taps) - 1, [np.int32(i) for i in (h, w, len(taps) // 2)]
    shared = 4 * side * (side + SIDE)
    launch = kernel("convolve.cu", "fill_masked")
    arguments = (*(backend.asarray(a) for a in (image, variance, good, taps)), *scalars, *out)
    launch((-(-w // SIDE), -(-h // SIDE)), (SIDE * SIDE,), arguments, shared_mem=shared)
    return out
