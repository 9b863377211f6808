# SPDX-License-Identifier: BSD-3-Clause
"""Windows around positions: the one way stamps are cut, on whatever device the plane is."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from skydelta.kernels.backend import Array, Backend, backend_of


class Windows:
    """Square windows around whole pixels, to be cut from planes of one shape.

    Parameters
    ----------
    shape : (int, int)
        Height and width of the planes.
    x, y : (n,)
        Whole pixels on the host; may lie outside the plane.
    half : int
        Half-size, px.
    backend : Backend
        Where the planes are.
    """

    def __init__(self, shape: tuple[int, int], x: np.ndarray, y: np.ndarray, half: int, backend: Backend) -> None:
        y, x = (np.asarray(at).astype(np.int64) for at in (y, x))
        self._half, self._whole = half, None
        if (
            len(x)
            and not backend.is_gpu
            and all(((at >= half) & (at + half < n)).all() for at, n in zip((y, x), shape, strict=True))
        ):
            self._whole = y - half, x - half
            return
        o = np.arange(-half, half + 1)
        lines = []
        for at, n, step in ((y, shape[0], shape[1]), (x, shape[1], 1)):
            i = at[:, None] + o
            # so far below zero that the other axis cannot make up for it
            lines.append(np.where((i >= 0) & (i < n), i * step, -2 * shape[0] * shape[1] - 1))
        rows, columns = backend.asarray(np.stack(lines))
        index = rows[:, :, None] + columns[:, None, :]
        self._inside = index >= 0
        self._index = backend.xp.maximum(index, 0)

    def cut(self, plane: Array, outside: float = 0) -> Array:
        """The windows (n, 2 half + 1, 2 half + 1) of a plane, of its type; ``outside`` fills what lies beyond."""
        if self._whole is not None:
            # a CPU copies them row by row, without an index for every pixel
            return sliding_window_view(plane, (2 * self._half + 1,) * 2)[self._whole]
        xp = backend_of(plane).xp
        return xp.where(self._inside, plane.ravel().take(self._index), plane.dtype.type(outside))


def cutouts(plane: Array, x: np.ndarray, y: np.ndarray, half: int, outside: float = 0) -> Array:
    """`Windows` of one plane."""
    return Windows(plane.shape, x, y, half, backend_of(plane)).cut(plane, outside)
