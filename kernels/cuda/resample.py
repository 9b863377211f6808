# SPDX-License-Identifier: BSD-3-Clause
"""Launchers of the resampling kernels; arguments and results as the twins of ``kernels/cpu/resample.py``."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.module import kernel
from skydelta.kernels.resample import MaskBits

NULL = np.uintp(0)
"""Pointer of a plane that is not there."""


def prepare(
    image: Array,
    variance: Array | None,
    mask: Array | None,
    *,
    spline: bool,
    fill: int,
    bad: int,
    no_data: int,
) -> tuple[Array, Array]:
    """Fill unusable pixels and, for splines, filter to B-spline coefficients with mirrored borders."""
    xp = backend_of(image).xp
    h, w = image.shape
    values, work = xp.empty((h, w), np.float32), xp.empty((h, w), np.int32)
    function = kernel("resample.cu", "resample_prepare", template_args=("true" if spline else "false",))
    scalars = [np.int32(i) for i in (h, w, fill, bad, no_data)]
    planes = [NULL if p is None else p for p in (variance, mask)]
    function((-(-w // 64), -(-h // 32)), (256,), (image, *planes, *scalars, values, work))
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
    xp = backend_of(values).xp
    image_out, weight_out = xp.empty(shape, np.float32), xp.empty(shape, np.float32)
    variance_out = None if variance is None else xp.empty(shape, np.float32)
    mask_out = xp.empty(shape, np.int32)
    function = kernel("resample.cu", "resample_gather", template_args=(str(method),))
    size = [np.int32(i) for i in values.shape]
    spacing = exact.shape[2]
    grid = [*(np.int32(i) for i in (*cells.shape, spacing)), np.float64(1 / spacing)]
    scalars = [np.int32(i) for i in (flux, bits.grow, bits.no_data, bits.edge, bits.interp, *shape)]
    function(
        (-(-shape[1] // 32), -(-shape[0] // 8)),
        (32, 8),
        (values, NULL if variance is None else variance, work, *size, nodes, cells, exact, *grid, *scalars,
         image_out, NULL if variance_out is None else variance_out, mask_out, weight_out),
    )  # fmt: skip
    return image_out, variance_out, mask_out, weight_out
