# SPDX-License-Identifier: BSD-3-Clause
"""Launchers of the work on stacks of tiles; arguments and results as the twins of ``kernels/cpu/stacks.py``."""

from __future__ import annotations

from typing import Any

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.module import kernel

BLOCK = 256


def cut_tiles(
    difference: Array,
    fixed: Array,
    moved: Array,
    usable: Array,
    good_fixed: Array,
    good_moved: Array,
    rows: np.ndarray,
    columns: np.ndarray,
    size: int,
    scale: float,
) -> tuple[Array, Array]:
    backend = backend_of(difference)
    xp, (h, w), count = backend.xp, difference.shape, len(rows) * len(columns)
    out, usable_out = xp.empty((3, count, size, size), np.float32), xp.empty((count, size, size), bool)
    planes = (difference, fixed, moved, usable, good_fixed, good_moved)
    starts = _on_device(backend, rows, columns)
    scalars = [*(np.int32(i) for i in (h, w, len(columns), size)), np.float32(scale)]
    launch = kernel("stacks.cu", "cut_tiles")
    launch((-(-size * size // BLOCK), count), (BLOCK,), (*planes, *starts, *scalars, out, usable_out))
    return out, usable_out


def join_tiles(
    whitened: Array,
    variance: Array,
    exact: Array,
    weight: Array,
    plain: Array,
    signal: Array,
    usable: Array,
    rows: np.ndarray,
    columns: np.ndarray,
    pad: int,
) -> Array:
    backend = backend_of(whitened)
    h, w = int(rows[-1] - rows[0]), int(columns[-1] - columns[0])
    out = backend.xp.empty((3, h, w), np.float32)
    side = int(np.diff(columns).max())
    stacks = (whitened, variance, exact, weight, plain, signal, usable)
    scalars = [np.int32(i) for i in (len(columns) - 1, h, w, whitened.shape[-1], side, pad)]
    grid = (-(-side * int(np.diff(rows).max()) // BLOCK), len(whitened))
    arguments = (*stacks, *_on_device(backend, rows, columns), *scalars, out)
    kernel("stacks.cu", "join_tiles")(grid, (BLOCK,), arguments)
    return out


def _on_device(backend: Any, rows: np.ndarray, columns: np.ndarray) -> list[Array]:
    """Both lists in one transfer."""
    both = backend.asarray(np.concatenate([rows, columns]).astype(np.int32))
    return [both[: len(rows)], both[len(rows) :]]
