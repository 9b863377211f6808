# SPDX-License-Identifier: BSD-3-Clause
"""Robust sky statistics of mesh cells."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance, implementation, register

CLIP = np.float32(3 * 1.4826)
"""Pixels further from the median than this many median absolute deviations leave: 3 sigma."""

SIGMA = np.float32(1.4826)
"""Standard deviation of a normal distribution in median absolute deviations."""

ROUNDS = 20
"""At most; clipping stops when nothing leaves, after about 5."""

SHARE = 10
"""A cell with fewer usable pixels than its area over this has no statistics."""

LARGEST = 128
"""Largest side of a cell, px: a block of 512 threads holds 32 pixels each in registers."""

CELLS = register(
    KernelSpec(
        name="cell_statistics",
        twin="skydelta.kernels.cpu.background:cell_statistics",
        launch="skydelta.kernels.cuda.background:cell_statistics",
        reference="skydelta.kernels.cpu.reference_background:cell_statistics",
        entries=(CudaEntry("background.cu", "cell_statistics", (("8",), ("32",))),),
        halo="none",
        bytes_per_pixel=5.0,
        tolerance=Tolerance(0.0, 0.0, "order statistics and single-precision comparisons: the same bits everywhere"),
    )
)


def cell_statistics(image: Array, good: Array, size: int) -> tuple[Array, Array, Array]:
    """Median and standard deviation of every mesh cell after 3-sigma clipping to convergence.

    Both come from order statistics (the lower median of an even number): median, and 1.4826 times the median absolute
    deviation, of the pixels that clipping leaves. Clipping also stops when more than half of them are equal.

    Parameters
    ----------
    image : float32 (H, W)
    good : bool (H, W)
        Pixels to use; those that are not finite never are.
    size : int
        Largest side of a cell, px, at most `LARGEST`; the cells are those of `TileGrid` (image.shape, size).

    Returns
    -------
    median, sigma : float32 (ceil(H / size), ceil(W / size))
        NaN where fewer than a cell's area over `SHARE` pixels are usable.
    count : int32, same shape
        Pixels left after clipping; 0 where NaN.
    """
    return implementation(CELLS, backend_of(image))(image, good, size)
