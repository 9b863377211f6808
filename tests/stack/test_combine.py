# SPDX-License-Identifier: BSD-3-Clause
"""The combination kernels against plain NumPy, and their variance against Monte Carlo."""

import numpy as np
import pytest

from skydelta.kernels.combine import HALO, MEDIAN_NOISE, Band, Bits, Sums, Terms, median_noise
from skydelta.kernels.cpu import reference_combine as reference

BITS = Bits(invalid=0b1111, soft=0b0010, no_data=0b1000, inexact=1 << 10, clipped=1 << 11)
SHAPE = (40, 53)


def cube(rng, n):
    """Values with outliers and NaN, variances with holes, masks of all kinds, terms of each image."""
    values = rng.normal(100, 3, (n, *SHAPE)).astype(np.float32)
    values[rng.random(values.shape) < 0.02] += 500
    values[rng.random(values.shape) < 0.02] = np.nan
    variances = np.full(values.shape, 9, np.float32) * rng.uniform(0.8, 1.2, values.shape).astype(np.float32)
    variances[rng.random(values.shape) < 0.02] = 0
    masks = np.where(rng.random(values.shape) < 0.2, 1 << rng.integers(0, 7, values.shape), 0).astype(np.int32)
    values[:, :3, :3], masks[:, :3, :3] = np.nan, BITS.no_data  # nothing there
    masks[:, 5:9, 5:9] |= 0b10  # only a second choice there
    terms = [
        Terms(s, level, 0.01 * k, -0.02 * k, 20, 10, w, 9 * s * s)
        for k, (s, level, w) in enumerate(
            zip(rng.uniform(0.9, 1.1, n), rng.normal(0, 1, n), rng.uniform(0.5, 2, n), strict=True)
        )
    ]
    return values, variances, masks, terms


def in_bands(planes, terms, rows, what):
    parts = []
    for y0 in range(0, SHAPE[0], rows):
        band = Band(len(terms), y0, min(y0 + rows, SHAPE[0]), SHAPE[1], BITS)
        low = max(y0 - HALO, 0)
        for k, (v, s, m) in enumerate(zip(*planes, strict=True)):
            here = slice(low, band.y1 + HALO)
            band.put(k, v[here], s[here], m[here], (low, 0), terms[k])
        parts.append(what(band))
    return parts


def joined(parts):
    return [np.concatenate([getattr(p, name) for p in parts]) for name in Combined]


Combined = ("image", "variance", "mask", "count", "weight")


def same(found, wanted):
    for name, a, b in zip(Combined, found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, err_msg=name)


@pytest.mark.parametrize("pixel", [False, True])
@pytest.mark.parametrize("n", [1, 5])
def test_running_sums_are_the_mean(n, pixel, rng):
    *planes, terms = cube(rng, n)
    sums = Sums(SHAPE, BITS, pixel)
    for v, s, m, t in zip(*planes, terms, strict=True):
        sums.add(v, s, m, (0, 0), t)
    out = sums.finish()
    same([getattr(out, name) for name in Combined], reference.mean(*planes, terms, BITS, pixel))
    assert np.isnan(out.image[:3, :3]).all() and (out.mask[:3, :3] & BITS.no_data).all()


@pytest.mark.parametrize("n", [1, 2, 3, 8, 37])
def test_bands_give_the_median(n, rng):
    *planes, terms = cube(rng, n)
    same(joined(in_bands(planes, terms, 16, Band.median)), reference.median(*planes, terms, BITS))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 34])
def test_bands_give_the_clipped_mean(n, rng):
    *planes, terms = cube(rng, n)
    sky = np.full((SHAPE[0] + 2 * HALO, SHAPE[1]), 100, np.float32)
    parts = in_bands(planes, terms, SHAPE[0], lambda band: band.clipped(sky, 4.0, 0.5))
    *wanted, gone = reference.clipped(*planes, terms, BITS, sky[0, 0], 4.0, 0.5)
    same(joined([p for p, _ in parts]), wanted)
    np.testing.assert_array_equal(parts[0][1], gone.sum(axis=(1, 2)))
    assert n < 3 or gone.any()


@pytest.mark.parametrize("rows", [1, 3, 7, 40])
def test_the_size_of_the_bands_changes_no_byte(rows, rng):
    *planes, terms = cube(rng, 6)

    def clip(band):
        sky = np.full((band.y1 - band.y0 + 2 * HALO, SHAPE[1]), 100, np.float32)
        return band.clipped(sky, 4.0, 0.3)[0]

    for what in (Band.median, clip):
        one, many = (joined(in_bands(planes, terms, r, what)) for r in (16, rows))
        for a, b in zip(one, many, strict=True):
            assert a.tobytes() == b.tobytes()


def test_without_variance_there_is_none(rng):
    values, _, masks, terms = cube(rng, 3)
    band, sums = Band(3, 0, SHAPE[0], SHAPE[1], BITS), Sums(SHAPE, BITS)
    for k in range(3):
        band.put(k, values[k], None, masks[k], (0, 0), terms[k])
        sums.add(values[k], None, masks[k], (0, 0), terms[k])
    ones = np.ones_like(values)
    for out, wanted in (
        (band.median(), reference.median(values, ones, masks, terms, BITS)),
        (sums.finish(), reference.mean(values, ones, masks, terms, BITS)),
    ):
        assert out.variance is None
        np.testing.assert_allclose(out.image, wanted[0], rtol=2e-6)
        np.testing.assert_array_equal(out.count, wanted[3])


@pytest.mark.parametrize("n", [3, 4, 9, 10, 33, 45, 60, 81])
def test_noise_of_a_median_is_that_of_normal_deviates(n, rng, figure):
    trials = 40000
    found = n * np.median(rng.normal(size=(trials, n)), axis=1).var()
    figure(f"variance of the median of {n} over Monte Carlo", abs(median_noise(n) / found - 1), 4 * np.sqrt(2 / trials))


def test_the_formula_goes_on_where_the_table_ends():
    for n in (39, 40):
        first, second = (-0.4292, -0.07) if n % 2 else (-1.4292, 2.75)
        assert np.pi / 2 * (1 + first / n + second / n**2) == pytest.approx(MEDIAN_NOISE[n - 1], rel=1e-4)


@pytest.mark.parametrize("method", ["mean", "weighted", "pixel", "median", "clipped"])
@pytest.mark.parametrize("n", [2, 3, 6])
def test_variance_is_that_of_monte_carlo(method, n, rng, figure):
    """Images of different depth: sigma from 2 to 2.8."""
    shape = (200, 200)
    v = np.linspace(4, 8, n)
    terms = [Terms(weight=1 / s if method != "mean" else 1.0, noise=s) for s in v]
    band, sums = Band(n, 0, shape[0], shape[1], BITS), Sums(shape, BITS, method == "pixel")
    for k in range(n):
        image = rng.normal(10, np.sqrt(v[k]), shape).astype(np.float32)
        planes = image, np.full(shape, v[k], np.float32), np.zeros(shape, np.int32)
        t = terms[k]._replace(weight=1.0) if method == "pixel" else terms[k]
        band.put(k, *planes, (0, 0), t)
        sums.add(*planes, (0, 0), t)
    sky = np.full((shape[0] + 2 * HALO, shape[1]), 10, np.float32)
    out = band.median() if method == "median" else band.clipped(sky, 4.0, 0.5)[0] if method == "clipped" else None
    out = out or sums.finish()
    figure(f"variance of {method} of {n} over Monte Carlo - 1", abs(out.variance.mean() / out.image.var() - 1), 0.03)
