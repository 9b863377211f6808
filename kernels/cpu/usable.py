# SPDX-License-Identifier: BSD-3-Clause
"""Numba twin of the judgement of pixels."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.jit import parallel, prange


@parallel
def _usable(image, variance, has_variance, mask, has_mask, invalid, out):
    for y in prange(image.shape[0]):
        for x in range(image.shape[1]):
            ok = np.isfinite(image[y, x])
            if has_variance:
                ok &= variance[y, x] > 0 and np.isfinite(variance[y, x])
            if has_mask:
                ok &= mask[y, x] & invalid == 0
            out[y, x] = ok


def usable_pixels(image: np.ndarray, variance: np.ndarray | None, mask: np.ndarray | None, invalid: int) -> np.ndarray:
    out = np.empty(image.shape, bool)
    no_mask = np.empty((0, 0), np.int32)
    _usable(
        image,
        image if variance is None else variance,
        variance is not None,
        no_mask if mask is None else mask,
        mask is not None,
        np.int32(invalid),
        out,
    )
    return out
