# SPDX-License-Identifier: BSD-3-Clause
"""Sums along all lines of an image by the approximate discrete Radon transform, at every length of a power of two.

Brady 1998, SIAM J. Comput. 27, 107; for streaks Nir, Zackay and Ofek 2018, AJ 156, 229. On the host, for images that
were binned: N^2 log N additions.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def line_sums(image: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Sums along lines that run 0 to 45 degrees off the columns, towards growing x.

    Parameters
    ----------
    image : float32 (H, W)

    Yields
    ------
    rows : int
        1, 2, 4 ... up to the first power of two that is H or more.
    sums : float32 (P, rows, W + N)
        At [p, s, N + x]: along the line from (x, p * rows) to (x + s, (p + 1) * rows - 1), one pixel of each row; N is
        the power of two. x may be negative; what is outside the image is 0. Each pixel of the line is within one pixel
        of the straight one.
    """
    h, w = image.shape
    n = 1 << max(h - 1, 0).bit_length()
    sums = np.zeros((n, 1, w + n), np.float32)
    sums[:h, 0, n:] = image
    rows = 1
    yield rows, sums
    while rows < n:
        upper, lower = sums[0::2], sums[1::2]
        joined = np.empty((len(upper), 2 * rows, w + n), np.float32)
        for s in range(rows):
            for more in (0, 1):
                shift, out = s + more, joined[:, 2 * s + more]
                out[:] = upper[:, s]
                out[:, : w + n - shift] += lower[:, s, shift:]
        rows, sums = 2 * rows, joined
        yield rows, sums
