# SPDX-License-Identifier: BSD-3-Clause
"""Stars found on a device are those found on the host."""

from dataclasses import fields

import numpy as np
import pytest
from support_stars import draw, observe

from skydelta.io.exposure import Exposure
from skydelta.kernels.backend import resolve
from skydelta.stages.stars import find_stars

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("fwhm", [1.3, 3.5, 9.0, 25.0])
@pytest.mark.parametrize("bare", [False, True])
def test_same_stars(rng, fwhm, bare):
    shape, number = (501, 613), int(1000 / (3 + fwhm))
    model = np.zeros(shape)
    x, y = rng.uniform(0, shape[1], number), rng.uniform(0, shape[0], number)
    draw(model, x, y, fwhm * np.exp(rng.uniform(8, 12.5, number)), fwhm)
    exposure = observe(rng, model)
    if bare:
        exposure = Exposure(exposure.image)
    else:
        image = exposure.image.copy()
        image[rng.random(shape) < 1e-3] = np.nan
        exposure = exposure.with_(image=image, mask=(model > 3e4).astype(np.int32))
    host, device = find_stars(exposure), find_stars(exposure.to(resolve("cuda")))
    assert len(host) > 5
    assert host.rejected == device.rejected
    for column in fields(host):
        if column.name != "rejected":
            np.testing.assert_allclose(
                getattr(device, column.name), getattr(host, column.name), rtol=1e-6, atol=1e-6, err_msg=column.name
            )


def test_no_stars(rng):
    empty = Exposure(np.zeros((90, 80), np.float32), np.ones((90, 80), np.float32)).to(resolve("cuda"))
    assert len(find_stars(empty)) == 0
