# SPDX-License-Identifier: BSD-3-Clause
"""Robust sky statistics of mesh cells, and the blocks of pixels that stand out of the sky."""

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
"""Largest side of a cell, px: its values fit into the shared memory of a thread block."""

BLOCK = 4
"""Side of the blocks that sources are looked for in, px."""

CELLS = register(
    KernelSpec(
        name="cell_statistics",
        twin="skydelta.kernels.cpu.background:cell_statistics",
        launch="skydelta.kernels.cuda.background:cell_statistics",
        reference="skydelta.kernels.cpu.reference_background:cell_statistics",
        entries=(CudaEntry("background.cu", "cell_statistics", (("true",), ("false",))),),
        halo="none",
        bytes_per_pixel=5.0,
        tolerance=Tolerance(0.0, 0.0, "order statistics and single-precision comparisons: the same bits everywhere"),
    )
)

SCORES = register(
    KernelSpec(
        name="block_scores",
        twin="skydelta.kernels.cpu.background:block_scores",
        launch="skydelta.kernels.cuda.background:block_scores",
        reference="skydelta.kernels.cpu.reference_background:block_scores",
        entries=(CudaEntry("background.cu", "block_scores"),),
        halo="none",
        bytes_per_pixel=5.25,
        tolerance=Tolerance(1e-5, 1e-5, "float32 sums of 16 pixels; twin and device add in one order: the same bits"),
    )
)

BLANK = register(
    KernelSpec(
        name="blank_sky",
        twin="skydelta.kernels.cpu.background:blank_sky",
        launch="skydelta.kernels.cuda.background:blank_sky",
        reference="skydelta.kernels.cpu.reference_background:blank_sky",
        entries=(CudaEntry("background.cu", "blank_sky"),),
        halo="2 blocks",
        bytes_per_pixel=2.25,
        tolerance=Tolerance(0.0, 0.0, "comparisons"),
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


def block_scores(image: Array, good: Array, sigma: Array) -> Array:
    """Signal-to-noise of the sum of every block of `BLOCK` x `BLOCK` px.

    Parameters
    ----------
    image : float32 (H, W)
        Sky-subtracted.
    good : bool (H, W)
        Pixels to use, all finite.
    sigma : float32 (ny, nx)
        Standard deviation of a pixel in mesh cells, each of which covers an equal share of the rows and columns.

    Returns
    -------
    float32 (H // BLOCK, W // BLOCK)
        NaN where a block has no pixel to use.
    """
    return implementation(SCORES, backend_of(image))(image, good, sigma)


def blank_sky(good: Array, score: Array, limit: float) -> Array:
    """Usable pixels away from blocks that stand out of the sky, in either direction.

    Parameters
    ----------
    good : bool (H, W)
    score : float32 (H // BLOCK, W // BLOCK)
        As of `block_scores`; NaN stands out of nothing.
    limit : float
        Blocks whose score is beyond it leave, and the 8 around each.

    Returns
    -------
    bool (H, W)
    """
    return implementation(BLANK, backend_of(good))(good, score, limit)
