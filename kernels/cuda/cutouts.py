# SPDX-License-Identifier: BSD-3-Clause
"""Launcher of the windows; arguments and result as the twin of ``kernels/cpu/cutouts.py``."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.module import kernel

TYPES = {1: ("unsigned char", np.uint8), 2: ("short", np.int16), 4: ("int", np.int32), 8: ("long long", np.int64)}
"""C++ and NumPy type that stand for all types of a size, bytes."""

THREADS = 128
WINDOWS = 32768
"""Windows in one layer of blocks, at most."""


def cutouts(plane: Array, middle: Array, half: int, outside: np.generic) -> Array:
    backend = backend_of(plane)
    count, side = middle.shape[1], 2 * half + 1
    out = backend.xp.empty((count, side, side), plane.dtype)
    if count:
        name, kind = TYPES[plane.itemsize]
        h, w, n, m = (np.int32(i) for i in (*plane.shape, count, half))
        kernel("cutouts.cu", "cutouts", template_args=(name,))(
            (-(-side * side // THREADS), min(count, WINDOWS)),
            (THREADS,),
            (plane, h, w, backend.asarray(middle), n, m, np.asarray(outside).view(kind)[()], out),
        )
    return out
