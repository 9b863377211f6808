# SPDX-License-Identifier: BSD-3-Clause
"""Windows around positions: the one way stamps are cut, on whatever device the plane is."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of


def cutouts(plane: Array, x: np.ndarray, y: np.ndarray, half: int, outside: float = 0) -> Array:
    """Square windows around whole pixels, on the plane's device.

    Parameters
    ----------
    plane : (H, W)
        Of any type.
    x, y : (n,)
        Whole pixels on the host; may lie outside the plane.
    half : int
        Half-size, px.
    outside : float
        Value beyond the frame.

    Returns
    -------
    (n, 2 half + 1, 2 half + 1), of the plane's type
    """
    backend = backend_of(plane)
    xp, (h, w) = backend.xp, plane.shape
    o = np.arange(-half, half + 1)
    rows, columns = (backend.asarray(np.asarray(a).astype(np.int64)[:, None] + o) for a in (y, x))
    inside = ((rows >= 0) & (rows < h))[:, :, None] & ((columns >= 0) & (columns < w))[:, None, :]
    values = plane[xp.clip(rows, 0, h - 1)[:, :, None], xp.clip(columns, 0, w - 1)[:, None, :]]
    return xp.where(inside, values, plane.dtype.type(outside))
