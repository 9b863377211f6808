# SPDX-License-Identifier: BSD-3-Clause
"""Cell statistics against astropy's sigma clipping, on what a clipped median must not notice."""

import numba
import numpy as np
import pytest
from astropy.stats import SigmaClip, mad_std

from skydelta.kernels.background import SHARE, cell_statistics


def clipped(values):
    """Median and robust standard deviation after 3-sigma clipping, by astropy."""
    kept = SigmaClip(3, cenfunc="median", stdfunc=mad_std, maxiters=20)(values, masked=False)
    return np.median(kept), mad_std(kept), len(kept)


def test_agrees_with_astropy(rng):
    image = rng.normal(30000, 20, (130, 195)).astype(np.float32)
    stars = rng.random(image.shape) < 0.05
    image[stars] += rng.exponential(3000, stars.sum()).astype(np.float32)
    good = rng.random(image.shape) > 0.1
    median, sigma, count = cell_statistics(image, good, 65)
    assert median.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        cell = np.s_[i * 65 : i * 65 + 65, j * 65 : j * 65 + 65]
        expected = clipped(image[cell][good[cell]].astype(float))
        # an even number has two middle values, here a few hundredths of a sigma apart
        assert median[i, j] == pytest.approx(expected[0], abs=0.1)
        assert sigma[i, j] == pytest.approx(expected[1], rel=0.02)
        assert count[i, j] == pytest.approx(expected[2], rel=0.01)


def test_median_has_the_scatter_of_a_median(rng, figure):
    image = rng.normal(0, 1, (2048, 1024)).astype(np.float32)
    median, sigma, _ = cell_statistics(image, np.ones(image.shape, bool), 64)
    # of a normal median sqrt(pi / 2) / sqrt(n)
    figure("sky: scatter of cell medians over theory", median.std() * 64 / np.sqrt(np.pi / 2), (0.9, 1.1))
    figure("sky: mean sigma of cells", sigma.mean(), (0.97, 1.01))


def test_unusable_pixels_and_cells(rng):
    image = rng.normal(5, 1, (64, 96)).astype(np.float32)
    good = np.ones(image.shape, bool)
    good[:, :32] = False
    good[:32, :32].ravel()[:: 32 * 32 // (32 * 32 // SHARE)] = True
    image[:, 64:] = np.nan
    image[:32, 32:64][good[:32, 32:64] & (rng.random((32, 32)) < 0.3)] = np.inf
    median, sigma, count = cell_statistics(image, good, 32)
    assert np.isnan(median[:, 2]).all() and np.isnan(sigma[:, 2]).all() and (count[:, 2] == 0).all()
    assert np.isnan(median[1, 0]) and count[1, 0] == 0
    assert median[0, 1] == pytest.approx(5, abs=0.2)
    assert median[1, 1] == pytest.approx(5, abs=0.2)


def test_scale_and_sign(rng):
    image = (rng.normal(3, 1, (64, 65)) + (rng.random((64, 65)) < 0.1) * 50).astype(np.float32)
    good = rng.random(image.shape) > 0.2
    median, sigma, count = cell_statistics(image, good, 32)
    for scale in (2.0**-30, 2.0**30):
        scaled = cell_statistics(image * np.float32(scale), good, 32)
        np.testing.assert_array_equal(scaled[0], median * np.float32(scale))
        np.testing.assert_array_equal(scaled[1], sigma * np.float32(scale))
        np.testing.assert_array_equal(scaled[2], count)
    negative = cell_statistics(-image, good, 32)
    np.testing.assert_allclose(-negative[0], median, atol=0.02)


def test_constant_cells_have_no_spread():
    median, sigma, count = cell_statistics(np.full((32, 32), 7.5, np.float32), np.ones((32, 32), bool), 16)
    assert (median == 7.5).all() and (sigma == 0).all() and (count == 256).all()


def test_same_bytes_with_one_and_two_threads(rng):
    image = rng.normal(0, 1, (300, 401)).astype(np.float32)
    good = rng.random(image.shape) > 0.2
    before, results = numba.get_num_threads(), []
    try:
        for threads in (1, 2):
            numba.set_num_threads(threads)
            results.append(b"".join(a.tobytes() for a in cell_statistics(image, good, 64)))
    finally:
        numba.set_num_threads(before)
    assert results[0] == results[1]
