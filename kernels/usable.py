# SPDX-License-Identifier: BSD-3-Clause
"""Which pixels may be used: image, variance and mask judged in one pass."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance, implementation, register

USABLE = register(
    KernelSpec(
        name="usable_pixels",
        twin="skydelta.kernels.cpu.usable:usable_pixels",
        launch="skydelta.kernels.cuda.usable:usable_pixels",
        reference="skydelta.kernels.cpu.reference_usable:usable_pixels",
        entries=(
            CudaEntry("usable.cu", "usable_pixels", tuple((t, n) for t in ("float", "double") for n in ("1", "4"))),
        ),
        halo="none",
        bytes_per_pixel=13.0,
        tolerance=Tolerance(0.0, 0.0, "comparisons"),
    )
)


def usable_pixels(image: Array, variance: Array | None, mask: Array | None, invalid: int) -> Array:
    """Pixels without an invalid bit, with a finite value and, where there is a variance, a positive one.

    Parameters
    ----------
    image, variance : (H, W) of real numbers
    mask : int32 (H, W) or None
    invalid : int
        Bits of the mask that forbid a pixel.

    Returns
    -------
    bool (H, W)
    """
    backend = backend_of(image)
    planes = [p for p in (image, variance) if p is not None]
    kind = np.float32 if all(p.dtype == np.float32 for p in planes) else np.float64
    image, variance, mask = (
        None if p is None else backend.xp.ascontiguousarray(p, t)
        for p, t in ((image, kind), (variance, kind), (mask, np.int32))
    )
    return implementation(USABLE, backend)(image, variance, mask, invalid)
