# SPDX-License-Identifier: BSD-3-Clause
"""Launcher of the lobe fits; arguments and results as the twin of ``kernels/cpu/fit.py``."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.module import kernel
from skydelta.kernels.fit import BOUND, MAX_EVALUATIONS

WARPS = 4
"""Stamps a block, one warp each: as in ``fit.cu``."""


def fit_lobes(data: Array, weight: Array, psf: Array, start: Array) -> tuple[Array, ...]:
    backend = backend_of(data)
    xp = backend.xp
    count, lobes = start.shape[:2]
    n = 3 * lobes + 1
    parameters, covariance, chi2 = xp.empty((count, n)), xp.empty((count, n, n)), xp.empty(count)
    evaluations, status = xp.empty(count, np.int32), xp.empty(count, np.int32)
    moment = (xp.full((count, 4), np.nan), xp.full((count, 4, 4), np.nan), xp.full(count, np.nan))
    out = (parameters, covariance, chi2, evaluations, status, *moment)
    if count:
        stamps = [backend.asarray(a, np.float32) for a in (data, weight)]
        tables = [backend.asarray(a, np.float64) for a in (psf, start)]
        sizes = [np.int32(v) for v in (count, data.shape[1], psf.shape[1])]
        limits = (np.float64(BOUND), np.int32(MAX_EVALUATIONS))
        function = kernel("fit.cu", "fit_lobes", (str(lobes),))
        function((-(-count // WARPS),), (32 * WARPS,), (*stamps, *tables, *sizes, *limits, *out))
    return out
