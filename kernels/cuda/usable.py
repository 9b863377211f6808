# SPDX-License-Identifier: BSD-3-Clause
"""Launcher of the judgement of pixels; arguments and result as the twin of ``kernels/cpu/usable.py``."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.module import kernel

NULL = np.uintp(0)
"""Pointer of a plane that is not there."""

RUN, THREADS = 4, 256


def usable_pixels(image: Array, variance: Array | None, mask: Array | None, invalid: int) -> Array:
    out = backend_of(image).xp.empty(image.shape, bool)
    planes = (image, variance, mask)
    # views may begin anywhere
    aligned = all(p is None or p.data.ptr % (RUN * p.itemsize) == 0 for p in planes)
    run = RUN if aligned else 1
    if out.size:
        kind = "float" if image.dtype == np.float32 else "double"
        kernel("usable.cu", "usable_pixels", template_args=(kind, str(run)))(
            (-(-image.size // (run * THREADS)),),
            (THREADS,),
            (*(NULL if p is None else p for p in planes), np.int32(invalid), np.int64(image.size), out),
        )
    return out
