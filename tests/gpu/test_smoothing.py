# SPDX-License-Identifier: BSD-3-Clause
"""Stacks smoothed by products with a matrix, against the filters of SciPy."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from skydelta.kernels.backend import resolve, to_host
from skydelta.kernels.cuda.linalg import gaussian_stack

CASES = [(5, 0.7, "constant", 3.0), (31, 1.5, "nearest", 4.0), (64, 3.2, "reflect", 3.0), (9, 6.0, "nearest", 4.0)]


@pytest.mark.parametrize(("side", "sigma", "mode", "truncate"), CASES)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_products_smooth_as_filters_do(rng, device, side, sigma, mode, truncate):
    planes = rng.normal(0, 1, (7, side, side)).astype(np.float32)
    want = gaussian_filter(planes.astype(float), (0, sigma, sigma), mode=mode, truncate=truncate)
    there = resolve(device).asarray(planes)
    got = to_host(gaussian_stack(there, sigma, mode, truncate))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, atol=3e-6)
    np.testing.assert_allclose(to_host(resolve(device).gaussian_stack(there, sigma, mode, truncate)), want, atol=3e-6)
