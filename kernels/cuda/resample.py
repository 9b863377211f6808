# SPDX-License-Identifier: BSD-3-Clause
"""Launchers of the resampling kernels; arguments and results as the twins of ``kernels/cpu/resample.py``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.module import kernel
from skydelta.kernels.resample import TAPS, MaskBits

NULL = np.uintp(0)
"""Pointer of a plane that is not there."""


def prepare(
    image: Array,
    variance: Array | None,
    mask: Array | None,
    *,
    degree: int,
    fill: int,
    bad: int,
    no_data: int,
) -> tuple[Array, Array]:
    """Fill unusable pixels and, for splines, filter to B-spline coefficients with mirrored borders."""
    xp = backend_of(image).xp
    h, w = image.shape
    filled, work = xp.empty((h, w), np.float32), xp.empty((h, w), np.int32)
    scalars = [np.int32(i) for i in (h, w, fill, bad, no_data)]
    planes = [NULL if p is None else p for p in (variance, mask)]
    function = kernel("resample.cu", "resample_prepare")
    function((-(-h * w // 256),), (256,), (image, *planes, *scalars, filled, work))
    if not degree:
        return filled, work
    values = xp.empty((h, w), np.float32)
    function = kernel("resample.cu", "resample_filter", template_args=(str(degree),))
    function(_tiles(h, w), (256,), (filled, np.int32(h), np.int32(w), values))
    return values, work


def _tiles(h: int, w: int) -> tuple[int, int]:
    """Blocks of 64 x 32 px."""
    return -(-w // 64), -(-h // 32)


def gather(
    values: Array,
    variance: Array | None,
    work: Array,
    nodes: Array,
    cells: Array,
    exact: Array,
    *,
    shape: tuple[int, int],
    method: int,
    flux: bool,
    bits: MaskBits,
) -> tuple[Array, Array | None, Array, Array]:
    """Evaluate the map and gather all planes."""
    touched = backend_of(values).xp.empty(values.shape, np.uint8)
    function = kernel("resample.cu", "resample_touched", template_args=(str(TAPS[method]),))
    function(_tiles(*values.shape), (256,), (work, *(np.int32(i) for i in values.shape), touched))
    function = kernel("resample.cu", "resample_gather", template_args=(str(method),))
    return _run(function, (values, variance, work, touched), (nodes, cells, exact), shape, flux, bits)


def overlap(
    values: Array,
    variance: Array | None,
    work: Array,
    nodes: Array,
    cells: Array,
    exact: Array,
    *,
    shape: tuple[int, int],
    flux: bool,
    bits: MaskBits,
) -> tuple[Array, Array | None, Array, Array]:
    """Sums over source pixels, weighted by the area that each shares with a target pixel."""
    return _run(
        kernel("resample.cu", "resample_exact"), (values, variance, work), (nodes, cells, exact), shape, flux, bits
    )


def drizzle(
    values: Array,
    variance: Array | None,
    work: Array,
    nodes: Array,
    cells: Array,
    exact: Array,
    *,
    shape: tuple[int, int],
    flux: bool,
    bits: MaskBits,
    pixfrac: float,
) -> tuple[Array, Array | None, Array, Array]:
    """Means of source pixels, weighted by the area that the drop of each shares with a target pixel."""
    function = kernel("resample.cu", "resample_drizzle")
    planes, pixel_map = (values, variance, work), (nodes, cells, exact)
    return _run(function, planes, pixel_map, shape, flux, bits, np.float64(pixfrac))


def adaptive(
    values: Array,
    variance: Array | None,
    work: Array,
    nodes: Array,
    cells: Array,
    exact: Array,
    *,
    shape: tuple[int, int],
    flux: bool,
    bits: MaskBits,
) -> tuple[Array, Array | None, Array, Array]:
    """Means of source pixels under a Gaussian that follows the map."""
    return _run(
        kernel("resample.cu", "resample_adaptive"), (values, variance, work), (nodes, cells, exact), shape, flux, bits
    )


def _run(
    function: Callable[..., None],
    planes: tuple[Array, ...],
    pixel_map: tuple[Array, Array, Array],
    shape: tuple[int, int],
    flux: bool,
    bits: MaskBits,
    *more: np.float64,
) -> tuple[Array, Array | None, Array, Array]:
    """A thread for each target pixel, with source planes (values, variance and what else the kernel reads), map, and
    last arguments."""
    values, variance, *others = planes
    nodes, cells, exact = pixel_map
    xp = backend_of(values).xp
    image_out, weight_out = xp.empty(shape, np.float32), xp.empty(shape, np.float32)
    variance_out = None if variance is None else xp.empty(shape, np.float32)
    mask_out = xp.empty(shape, np.int32)
    size = [np.int32(i) for i in values.shape]
    spacing = exact.shape[2]
    grid = [*(np.int32(i) for i in (*cells.shape, spacing)), np.float64(1 / spacing)]
    scalars = [np.int32(i) for i in (flux, bits.grow, bits.no_data, bits.edge, bits.interp, *shape)]
    function(
        (-(-shape[1] // 32), -(-shape[0] // 8)),
        (32, 8),
        (values, NULL if variance is None else variance, *others, *size, nodes, cells, exact, *grid, *scalars,
         image_out, NULL if variance_out is None else variance_out, mask_out, weight_out, *more),
    )  # fmt: skip
    return image_out, variance_out, mask_out, weight_out
