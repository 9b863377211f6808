# SPDX-License-Identifier: BSD-3-Clause
"""The matched filter on a device, its tiles shared by the core, agrees with the CPU."""

import numpy as np
import pytest
from support_pairs import gaussian

from skydelta.io.psf import PixelPsf
from skydelta.kernels.backend import resolve, to_host
from skydelta.kernels.significance import matched_filter

pytestmark = pytest.mark.gpu


def test_cuda_agrees_with_the_cpu():
    rng = np.random.default_rng(11)
    shape = (301, 517)
    image = rng.normal(0, 2, shape).astype(np.float32)
    variance = rng.uniform(3, 5, shape).astype(np.float32)
    good = rng.random(shape) > 0.02
    psf = PixelPsf.constant(gaussian(1.5, 9), shape)
    cuda = resolve("cuda")
    planes = [cuda.asarray(a) for a in (image, variance, good)]
    got = to_host(matched_filter(*planes, psf.render))
    np.testing.assert_allclose(got, matched_filter(image, variance, good, psf.render), rtol=1e-4, atol=1e-4)
