# SPDX-License-Identifier: BSD-3-Clause
"""Mask bits of two images in one."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance, implementation, register

MERGE = register(
    KernelSpec(
        name="merge_masks",
        twin="skydelta.kernels.cpu.masks:merge_masks",
        launch="skydelta.kernels.cuda.masks:merge_masks",
        reference="skydelta.kernels.cpu.reference_masks:merge_masks",
        entries=(CudaEntry("masks.cu", "merge_masks"),),
        halo="reach",
        bytes_per_pixel=14.0,
        tolerance=Tolerance(0.0, 0.0, "bits"),
    )
)


def merge_masks(
    moved: Array,
    fixed: Array,
    moved_bits: np.ndarray,
    fixed_bits: np.ndarray,
    spreading: int,
    reached: Array,
    usable: Array,
    reach: int,
    invalid: int,
    edge: int,
    no_data: int,
) -> Array:
    """Bits of both images, those of the convolved one carried to the pixels that its kernel spoils.

    Parameters
    ----------
    moved, fixed : int32 (H, W)
        Masks of the image that is convolved and of the other.
    moved_bits, fixed_bits : int32 (31,)
        New value of each bit of the two.
    spreading : int
        Bits of ``moved``, old values, that a spoilt pixel takes over from the box around it.
    reached, usable : bool (H, W)
        The kernel touches bad pixels there; the result holds a value there.
    reach : int
        Half-size of the box, px.
    invalid : int
        New bits that make a pixel unusable. A pixel that was reached and has none of them gets the bits ``edge``, one
        that is not usable and still has none the bits ``no_data``.

    Returns
    -------
    int32 (H, W)
    """
    return implementation(MERGE, backend_of(moved))(
        moved, fixed, moved_bits, fixed_bits, spreading, reached, usable, reach, invalid, edge, no_data
    )
