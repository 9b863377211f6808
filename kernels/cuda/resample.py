# SPDX-License-Identifier: BSD-3-Clause
"""Launchers of the resampling kernels; arguments and results as the twins of ``kernels/cpu/resample.py``."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.module import kernel
from skydelta.kernels.resample import CORNER_METHODS, TAPS, MaskBits

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
    function((-(-w // 64), -(-h // 32)), (256,), (filled, np.int32(h), np.int32(w), values))
    return values, work


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
    h, w = values.shape
    touched = backend_of(values).xp.empty((h, -(-w // 32)), np.uint32)
    function = kernel("resample.cu", "resample_touched", template_args=(str(TAPS[method]),))
    function((-(-w // 256), -(-h // 32)), (256,), (work, np.int32(h), np.int32(w), touched))
    function = kernel("resample.cu", "resample_gather", template_args=(str(method), str(flux).lower()))
    return _run(function, (32, 8), (values, variance, work, touched), (nodes, cells, exact), shape, bits)


def _by_corners(
    kind: int,
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
    pixfrac: float = 1.0,
) -> tuple[Array, Array | None, Array, Array]:
    """Sums or means of the source pixels under each target pixel, by its corners."""
    function = kernel("resample.cu", "resample_by_corners", template_args=(str(kind), str(flux).lower()))
    planes, pixel_map = (values, variance, work), (nodes, cells, exact)
    return _run(function, (16, 4), planes, pixel_map, shape, bits, np.float64(pixfrac))


overlap, adaptive, drizzle = (functools.partial(_by_corners, kind) for kind in range(len(CORNER_METHODS)))


def _run(
    function: Callable[..., None],
    tall: tuple[int, int],
    planes: tuple[Array, ...],
    pixel_map: tuple[Array, Array, Array],
    shape: tuple[int, int],
    bits: MaskBits,
    *more: np.float64,
) -> tuple[Array, Array | None, Array, Array]:
    """Blocks of 32 columns, of so many rows of the target and of threads, with source planes (values, variance and what
    else the kernel reads), map, and last arguments."""
    values, variance, *others = planes
    nodes, cells, exact = pixel_map
    xp = backend_of(values).xp
    image_out, weight_out = xp.empty(shape, np.float32), xp.empty(shape, np.float32)
    variance_out = None if variance is None else xp.empty(shape, np.float32)
    mask_out = xp.empty(shape, np.int32)
    size = [np.int32(i) for i in values.shape]
    spacing = exact.shape[2]
    grid = [*(np.int32(i) for i in (*cells.shape, spacing)), np.float64(1 / spacing)]
    scalars = [np.int32(i) for i in (bits.grow, bits.no_data, bits.edge, bits.interp, *shape)]
    function(
        (-(-shape[1] // 32), -(-shape[0] // tall[0])),
        (32, tall[1]),
        (values, NULL if variance is None else variance, *others, *size, nodes, cells, exact, *grid, *scalars,
         image_out, NULL if variance_out is None else variance_out, mask_out, weight_out, *more),
    )  # fmt: skip
    return image_out, variance_out, mask_out, weight_out
