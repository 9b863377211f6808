# SPDX-License-Identifier: BSD-3-Clause
"""The matched filter does not depend on how many devices share its tiles."""

import numpy as np
import pytest
from scipy import ndimage
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


def test_constant_variance_is_no_other_case(figure):
    """Tiles of one variance take a shorter way; a variance that differs in the last digits goes the long one."""
    rng = np.random.default_rng(8)
    image = rng.normal(0, 2, (700, 800)).astype(np.float32)
    image[300, 400:420] = 1e5
    psf, good = PixelPsf.constant(gaussian(1.5, 9), image.shape), np.ones(image.shape, bool)
    flat = np.full_like(image, 4)
    other = flat * (1 + 1e-6 * (np.indices(image.shape).sum(axis=0) % 2)).astype(np.float32)
    for rho in (None, np.outer([0.5, 1, 0.5], [0.5, 1, 0.5])):
        one, two = (matched_filter(image, v, good, psf.render, correlation=rho) for v in (flat, other))
        figure(
            "matched filter: constant variance less a variable one", np.abs(one - two).max() / np.abs(two).max(), 2e-6
        )
        # against the sum itself, in float64
        stamp = gaussian(1.5, 9)
        spread = stamp if rho is None else ndimage.convolve(stamp, rho, mode="constant")
        want = ndimage.correlate(image.astype(float), stamp, mode="constant") / (2 * np.sqrt((stamp * spread).sum()))
        inside = np.s_[20:-20, 20:-20]
        figure("matched filter less the sum in float64", np.abs(one - want)[inside].max() / want.max(), 2e-6)


@pytest.mark.parametrize("power", [-60, -30, 30, 55])
@pytest.mark.parametrize("constant", [True, False])
def test_any_unit_of_the_pixels(power, constant):
    """Of noise such as 1e-18 (flux densities in cgs units), 1 / V and its sums are beyond float32."""
    rng = np.random.default_rng(9)
    image = rng.normal(0, 2, (300, 270)).astype(np.float32)
    variance = np.full_like(image, 4) if constant else rng.uniform(3, 5, image.shape).astype(np.float32)
    good = rng.random(image.shape) > (-1 if constant else 0.02)
    psf, unit = PixelPsf.constant(gaussian(1.5, 9), image.shape), np.float32(2.0**power)
    one = matched_filter(image, variance, good, psf.render)
    other = matched_filter(image * unit, variance * unit * unit, good, psf.render)
    assert one.tobytes() == other.tobytes()
