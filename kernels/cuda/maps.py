# SPDX-License-Identifier: BSD-3-Clause
"""Launchers of the map kernels; arguments and results as the twins of ``kernels/cpu/maps.py``."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.module import kernel


def tangent_points(chain: Array, origin: Array, step: float, shape: tuple[int, int]) -> Array:
    out = backend_of(chain).xp.empty((2, len(origin), *shape), np.float64)
    points = out.size // 2
    if points:
        sizes = [np.int32(i) for i in (len(origin), *shape)]
        kernel("maps.cu", "tangent_points")(
            (-(-points // 128),), (128,), (chain, origin, np.float64(step), *sizes, out)
        )
    return out


def check_cells(
    points: Array, spacing: int, source_shape: tuple[int, int], tolerance: float, goal: float, smooth: bool
) -> tuple[Array, Array, Array]:
    xp = backend_of(points).xp
    ny, nx = (n // 2 - 2 for n in points.shape[1:])
    nodes, cells, rows = xp.empty((2, ny + 3, nx + 3), np.float64), xp.empty((ny, nx), np.int32), xp.empty((ny, 6))
    limits = [np.float64(v) for v in (*source_shape, tolerance, goal)]
    kernel("maps.cu", "check_cells")(
        (ny,), (256,),
        (points, np.int32(ny), np.int32(nx), np.int32(spacing), *limits, np.int32(smooth), nodes, cells, rows),
    )  # fmt: skip
    return nodes, cells, rows
