# SPDX-License-Identifier: BSD-3-Clause
"""Kernels behind the star finder against analytic stars, scipy and plain searches."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from skydelta.kernels.convolve import gaussian_taps
from skydelta.kernels.stars import (
    light_peaks,
    neighbours,
    ring_medians,
    rings,
    smooth_masked,
    star_apertures,
    star_shapes,
)

SHAPE = (61, 75)


def ellipse(x0, y0, long, short, angle, shape=SHAPE):
    """A Gaussian of sigma ``long`` and ``short`` px, the long axis at ``angle``."""
    y, x = np.indices(shape)
    c, s = np.cos(angle), np.sin(angle)
    u, v = c * (x - x0) + s * (y - y0), -s * (x - x0) + c * (y - y0)
    return (1e4 * np.exp(-(u * u / long**2 + v * v / short**2) / 2)).astype(np.float32)


def pixels(*at):
    return np.array([y * SHAPE[1] + x for x, y in at], np.int32)


@pytest.mark.parametrize("sigma", [1.2, 4.0, 8.0])
def test_smoothing_is_that_of_scipy(rng, sigma):
    image = rng.normal(0, 1, SHAPE).astype(np.float32)
    good = rng.random(SHAPE) > 0.1
    want = gaussian_filter(np.where(good, image, 0).astype(float), sigma, mode="constant", truncate=3.0)
    got = smooth_masked(np.where(good, image, np.float32(np.nan)), good, gaussian_taps(sigma))
    np.testing.assert_allclose(got[good], want[good], atol=3e-7)
    assert (got[~good] == 0).all()


def test_filters_wider_than_a_block_allows_are_refused():
    with pytest.raises(ValueError, match="at most 24"):
        smooth_masked(np.zeros(SHAPE, np.float32), np.ones(SHAPE, bool), gaussian_taps(9))


@pytest.mark.parametrize("radius", [1, 2, 5])
def test_peaks_are_those_of_a_plain_search(rng, radius):
    light = rng.integers(0, 30, SHAPE).astype(np.float32)
    good = np.ones(SHAPE, bool)
    pixel, snr, height = light_peaks(light, good, None, 4.0, np.array([5], np.float32), radius)
    want = []
    for y, x in np.ndindex(*SHAPE):
        near = [
            (light[j, i], (j, i))
            for j, i in np.ndindex(*SHAPE)
            if abs(j - y) <= radius and abs(i - x) <= radius and (j - y) ** 2 + (i - x) ** 2 <= radius**2 + 1
        ]
        # of equal pixels, the last in raster order that no higher one is near
        if light[y, x] / 2 > 5 and max(near)[1] == (y, x):
            want.append(y * SHAPE[1] + x)
    assert pixel.tolist() == want
    np.testing.assert_array_equal(height, light.ravel()[pixel])
    np.testing.assert_array_equal(snr, height / 2)


def test_a_plateau_has_one_peak_and_nan_limits_none():
    light = np.zeros(SHAPE, np.float32)
    light[20:25, 30:40] = 9
    good = np.ones(SHAPE, bool)
    assert len(light_peaks(light, good, np.ones_like(light), 1.0, np.array([5], np.float32), 1)[0]) == 1
    assert len(light_peaks(light, good, np.ones_like(light), 1.0, np.array([np.nan], np.float32), 1)[0]) == 0
    assert len(light_peaks(light, ~good, np.ones_like(light), 1.0, np.array([5], np.float32), 1)[0]) == 0


@pytest.mark.parametrize("angle", [0.0, 0.6, 2.5])
def test_moments_of_an_elliptic_gaussian(figure, angle):
    x0, y0, long, short = 37.31, 29.77, 2.2, 1.6
    image, good = ellipse(x0, y0, long, short, angle), np.ones(SHAPE, bool)
    x, y, size, ellipticity, clean = star_shapes(image, good, pixels((38, 29)), 14, 2, 2.0)
    figure("star shapes: centroid of a Gaussian, px", np.hypot(x[0] + 38 - x0, y[0] + 29 - y0), 1e-5)
    assert size[0] == pytest.approx(np.sqrt(long * short), rel=1e-4)
    assert ellipticity[0] == pytest.approx(1 - short / long, rel=1e-3)
    assert clean.all()


def test_light_that_is_no_star():
    y, x = np.indices(SHAPE)
    flat, good = np.ones(SHAPE, np.float32), np.ones(SHAPE, bool)
    middle = pixels((37, 30))
    for image in (-flat, 0 * flat, ((x - 37.0) ** 2 + (y - 30) ** 2).astype(np.float32)):
        _, _, size, ellipticity, _ = star_shapes(image, good, middle, 8, 2, 1.5)
        assert np.isinf(size[0]) and ellipticity[0] == 1
    point = 0 * flat
    point[30, 37] = 1
    cx, cy, size, _, _ = star_shapes(point, good, middle, 8, 2, 1.5)
    assert (cx[0], cy[0], size[0]) == (0, 0, 0)


def test_a_bad_pixel_spoils_what_it_lies_in(rng):
    image, good = ellipse(37, 30, 2, 2, 0), np.ones(SHAPE, bool)
    good[30, 34] = False
    image[30, 34] = np.nan
    at = pixels((37, 30), (36, 30), (0, 30))
    assert star_shapes(image, good, at, 8, 2, 2.0)[4].tolist() == [1, 0, 0]
    assert ring_medians(image, good, at, 6, 3)[:, -1].tolist() == [0, 0, 0]
    assert ring_medians(image, good, at, 6, 2)[:, -1].tolist() == [1, 0, 0]
    centre = np.zeros((2, 3))
    assert star_apertures(image, good, at, centre, 8, 4.0, 2.9)[2].tolist() == [0, 1, 1]
    assert star_apertures(image, good, at, centre, 8, 4.0, 3.0)[2].tolist() == [1, 1, 1]


def test_flux_and_peak_of_an_aperture(figure):
    x0, y0, sigma = 36.8, 30.3, 1.8
    image, good = ellipse(x0, y0, sigma, sigma, 0), np.ones(SHAPE, bool)
    centre = np.array([[x0 - 37], [y0 - 30]])
    flux, peak, _ = star_apertures(image, good, pixels((37, 30)), centre, 14, 12.0, 2.0)
    figure("star apertures: all light of a Gaussian, relative error", abs(flux[0] / (2e4 * np.pi * sigma**2) - 1), 1e-4)
    assert peak[0] == image.max()
    area, _, _ = star_apertures(np.ones_like(image), good, pixels((37, 30)), centre, 14, 8.0, 2.0)
    # of a circle with an edge one pixel wide
    assert area[0] == pytest.approx(np.pi * (8.0**2 + 1 / 12), rel=2e-3)


def test_rings_follow_the_distance_and_shun_neighbours(rng):
    y, x = np.indices(SHAPE)
    image, good = np.hypot(x - 37, y - 30).astype(np.float32), np.ones(SHAPE, bool)
    image[:, :33] += 1e4  # a neighbour on less than half of each ring
    image[30, 37] = 0
    medians = ring_medians(image, good, pixels((37, 30)), 16, 3)[:, :-1]
    assert medians[0, 0] == 0
    assert np.abs(medians[0, 1:] - np.arange(1, 17)).max() < 1
    member, start = rings(16)
    assert start[-1] == len(member) == (np.rint(np.hypot(*np.indices((33, 33)) - 16)) <= 16).sum()


def test_neighbours_are_counted(rng):
    height = np.exp(rng.normal(0, 2, 300)).astype(np.float32)
    pixel = np.sort(rng.permutation(SHAPE[0] * SHAPE[1])[:300]).astype(np.int32)
    star = rng.permutation(300)[:100].astype(np.int32)
    y, x = np.divmod(pixel.astype(int), SHAPE[1])
    for radius in (5.0, 9.4, 200.0):
        near = (y - y[star][:, None]) ** 2 + (x - x[star][:, None]) ** 2 <= radius**2
        want = (near & (height > 0.05 * height[star][:, None].astype(float))).sum(axis=1)
        got = neighbours(pixel, height, star, SHAPE[1], radius, 0.05)
        np.testing.assert_array_equal(got, want)
