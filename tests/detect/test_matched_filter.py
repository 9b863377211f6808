# SPDX-License-Identifier: BSD-3-Clause
"""The matched filter does not depend on how many devices share its tiles."""

import numpy as np
import pytest
from support_pairs import gaussian

from skydelta.io.psf import PixelPsf
from skydelta.kernels.backend import CPU
from skydelta.kernels.core.devices import DeviceSet
from skydelta.kernels.significance import matched_filter


@pytest.mark.parametrize("count", [2, 3])
def test_the_same_bytes_with_any_number_of_devices(count):
    rng = np.random.default_rng(7)
    shape = (300, 530)
    image = rng.normal(0, 2, shape).astype(np.float32)
    variance = rng.uniform(3, 5, shape).astype(np.float32)
    good = rng.random(shape) > 0.02
    psf = PixelPsf.constant(gaussian(1.5, 9), shape)
    one = matched_filter(image, variance, good, psf.render)
    many = matched_filter(image, variance, good, psf.render, DeviceSet.of(CPU, count))
    assert one.tobytes() == many.tobytes()
    assert np.isnan(one[~good]).all()
