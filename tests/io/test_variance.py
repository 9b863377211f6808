# SPDX-License-Identifier: BSD-3-Clause
"""Variance from every form a file can have, and the estimate against what the noise really is."""

import numpy as np
import pytest
import support_standin
from scipy.ndimage import binary_erosion, convolve, gaussian_filter

from skydelta.errors import ConfigError, InputError
from skydelta.io.read import read
from skydelta.io.variance import Detector, estimate, from_plane, sky_chi2, white_noise
from skydelta.kernels.backend import resolve
from skydelta.kernels.cpu import reference_sky
from skydelta.kernels.cpu.medians import middle
from skydelta.kernels.sky import ENOUGH, LAPLACIAN, block_medians, block_sky, white_sky

BAD = [np.nan, np.inf, -np.inf, 0.0, -2.0]


@pytest.mark.parametrize(("kind", "stored"), [("variance", 9.0), ("sigma", 3.0), ("weight", 1 / 9)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_each_kind_becomes_a_variance_once(kind, stored, dtype):
    plane = np.full((4, 5), stored, dtype)
    plane.flat[: len(BAD)] = BAD
    found = from_plane(plane, kind, "here")
    assert found.values.dtype == np.float32
    assert np.allclose(found.values.flat[len(BAD) :], 9, rtol=1e-6)
    assert np.isnan(found.values.flat[: len(BAD)]).all()
    assert found.note["invalid"] == {"not_finite": 3, "negative": 1, "zero": 1}
    assert found.note["kind"] == kind


def test_a_negative_sigma_is_invalid_not_squared():
    found = from_plane(np.array([[-1.4e-5, 2.0]], np.float32), "sigma", "here")
    assert np.isnan(found.values[0, 0])
    assert found.values[0, 1] == 4


def test_values_beyond_float32_are_invalid():
    found = from_plane(np.array([[1e-60, 1e30, 1.0]]), "sigma", "here")
    assert np.isfinite(found.values).tolist() == [[False, False, True]]
    assert found.note["invalid"]["out_of_range"] == 2


@pytest.mark.parametrize("value", BAD)
def test_pixels_without_a_valid_variance_carry_no_data(rng, value):
    image = rng.normal(100, 3, (40, 50)).astype(np.float32)
    variance = np.full(image.shape, 9.0, np.float32)
    variance[7, 8] = value
    exposure = read(image, variance=variance, device="cpu")
    assert (exposure.mask != 0).sum() == 1
    assert exposure.mask[7, 8] == exposure.planes.bit("NO_DATA")
    assert not exposure.good()[7, 8]
    assert sum(exposure.notes["variance"]["invalid"].values()) == 1


def field(rng, gain=1.5, read_noise=6.0, sky=400.0, n=256, stars=40):
    """Counts, noise-free counts and their true variance."""
    model = np.full((n, n), float(sky))
    points = np.zeros((n, n))
    for x, y, f in zip(*rng.integers(5, n - 5, (2, stars)), 10 ** rng.uniform(3, 5.3, stars), strict=True):
        points[y, x] += f
    model += gaussian_filter(points, 1.7)
    counts = (rng.poisson(model * gain) + rng.normal(0, read_noise, model.shape)) / gain
    return counts, model, model / gain + (read_noise / gain) ** 2


def test_estimate_from_gain_is_the_true_variance(rng, figure):
    counts, model, truth = field(rng)
    found = estimate(counts, np.ones(counts.shape, bool), Detector(1.5, 6.0))
    assert found.note["source"] == "gain"
    ratio = found.values / truth
    quiet = model < 410
    figure("variance from gain / truth, sky", np.median(ratio[quiet]), (0.98, 1.02))
    figure("variance from gain / truth, stars", np.median(ratio[model > 2000]), (0.97, 1.03))
    figure("chi2 of the noise", np.mean((counts - model) ** 2 / found.values), (0.97, 1.03))


def test_weights_do_not_pull_the_mean_down(rng, figure):
    """With the noisy pixel as its own variance the weighted mean sits one count low per gain."""
    counts = rng.poisson(np.full((300, 300), 30.0)).astype(np.float32)
    good = np.ones(counts.shape, bool)
    weight = 1 / estimate(counts, good, Detector(1.0, None)).values
    noisy = 1 / np.maximum(counts, 1)
    mean = (weight * counts).sum() / weight.sum()
    figure("bias of the weighted mean of 30 counts", abs(mean - 30), 0.1)
    assert abs((noisy * counts).sum() / noisy.sum() - 30) > 0.8


def test_a_sky_subtracted_stack_has_the_measured_noise_as_floor(rng, figure):
    counts, model, truth = field(rng)
    found = estimate(counts - 400, np.ones(counts.shape, bool), Detector(1.5, 6.0))
    assert found.note["source"] == "gain and measured sky noise"
    ratio = found.values / truth
    figure("sky-subtracted: variance / truth, sky", np.median(ratio[model < 410]), (0.95, 1.06))
    figure("sky-subtracted: variance / truth, stars", np.median(ratio[model > 2000]), (0.95, 1.05))


def test_an_average_of_exposures(rng, figure):
    frames = []
    state = rng.bit_generator.state
    for i in range(6):
        rng.bit_generator.state = state
        _, model, truth = field(rng)
        again = np.random.default_rng(i)
        frames.append((again.poisson(model * 1.5) + again.normal(0, 6, model.shape)) / 1.5)
    found = estimate(np.mean(frames, axis=0), np.ones(model.shape, bool), Detector(1.5, 6.0, combined=6))
    assert found.note["effective_gain"] == 9
    figure("average of 6: variance / truth, stars", np.median((found.values / truth)[model > 2000]) * 6, (0.95, 1.05))


def test_without_gain_the_noise_is_measured(rng, figure):
    image = rng.normal(0, 0.01, (256, 256)).astype(np.float32)  # as scaled to 0..1
    exposure = read(image, device="cpu")
    note = exposure.notes["variance"]
    assert note["source"] == "measured"
    assert "no gain" in note["why"]
    figure("measured variance / truth", np.median(exposure.variance) / 1e-4, (0.97, 1.03))


def test_a_crowded_field_does_not_hide_the_detector(rng):
    counts, _, _ = field(rng, gain=1.9, read_noise=5, sky=900, stars=1500)
    found = estimate(counts, np.ones(counts.shape, bool), Detector(1.9, 5.0))
    assert found.note["source"] == "gain"
    assert found.note["sky_variance_measured"] > 1.6 * found.note["sky_variance_modelled"]


@pytest.mark.parametrize("shape", [(5, 4), (3, 3), (1, 70), (64, 64), (63, 66), (130, 97)])
def test_sky_of_blocks_is_that_of_scipy(monkeypatch, rng, shape):
    image = rng.normal(100, 3, shape).astype(np.float32)
    image[rng.random(shape) < 0.02] += 200
    good = rng.random(shape) > 0.05
    image[~good] = np.nan
    boxes = np.array([(0, shape[0], 0, shape[1]), (0, (shape[0] + 1) // 2, shape[1] // 3, shape[1])])
    for use in (good, good & (rng.random(shape) < 0.08)):
        made, expected = block_sky(image, use, boxes), reference_sky.block_sky(image, use, boxes)
        np.testing.assert_allclose(made, expected, rtol=1e-12, equal_nan=True)
        with monkeypatch.context() as patch:
            support_standin.install(patch)
            device = resolve("cuda")
            there = block_sky(device.asarray(image), device.asarray(use), boxes)
        np.testing.assert_array_equal(there, made)


def test_white_noise_and_medians_of_blocks_are_those_of_scipy(rng):
    image = rng.normal(100, 3, (150, 97)).astype(np.float32)
    good = rng.random(image.shape) > 0.02
    image[~good] = np.nan
    boxes = np.array([(0, 64, 0, 97), (64, 150, 3, 70), (0, 2, 0, 97), (10, 13, 10, 30)])
    white, levels = white_sky(image, good, boxes), block_medians(image, good, boxes)
    for (a, b, c, d), noise, level in zip(boxes, white, levels, strict=True):
        ok = good[a:b, c:d]
        assert level == np.median(image[a:b, c:d][ok])
        left = convolve(np.where(ok, image[a:b, c:d], 0).astype(float), LAPLACIAN)
        inner = binary_erosion(ok, np.ones((3, 3)))
        assert noise == 1.4826 * np.median(np.abs(left[inner])) if inner.sum() >= ENOUGH else np.isnan(noise)


@pytest.mark.parametrize("n", [1, 2, 64, 65, 100, 4095, 4096])
def test_medians_of_thousands(rng, n):
    for values in (
        rng.normal(0, 1, n), rng.integers(0, 3, n), np.arange(n), -np.arange(n) ** 2, np.full(n, 7),
        rng.standard_cauchy(n), np.where(np.arange(n) % max(n // 64, 1) == 0, 1e6 + np.arange(n), rng.normal(0, 1, n)),
    ):  # fmt: skip
        for dtype in (np.float32, np.float64):
            given = values.astype(dtype)
            kept = given.copy()
            assert middle(given, np.empty_like(given)) == np.median(kept)
            np.testing.assert_array_equal(given, kept)


def test_white_noise(rng, figure):
    noise = rng.normal(0, 3, (256, 256))
    figure("white noise / truth", white_noise(noise, np.ones(noise.shape, bool)) / 3, (0.97, 1.02))


def test_a_plane_of_another_kind_is_doubted(rng):
    image = rng.normal(100, 3, (128, 128)).astype(np.float32)
    sigma = np.full(image.shape, 3.0, np.float32)
    assert "warnings" not in read(image, sigma=sigma, device="cpu").notes
    doubted = read(image, variance=sigma, device="cpu").notes
    assert "(read as variance); 0.5 to 2.0 are expected" in doubted["warnings"][0]
    assert doubted["variance"]["sky_chi2"] == pytest.approx(3, rel=0.05)


def test_sky_chi2(rng, figure):
    image = rng.normal(0, 2, (200, 200))
    ok = np.ones(image.shape, bool)
    figure("sky chi2 of the right variance", sky_chi2(image, np.full(image.shape, 4.0), ok), (0.96, 1.04))


def test_too_few_pixels_for_an_estimate():
    with pytest.raises(InputError, match="0 good pixels of 100 are too few"):
        estimate(np.zeros((10, 10)), np.zeros((10, 10), bool), Detector())


def test_gain_cards_and_arguments(rng, tmp_path):
    from astropy.io import fits

    counts, _, _ = field(rng, n=128, stars=0)
    for cards, expected in (
        ({"GAIN": 1.5, "RDNOISE": 6.0}, (1.5, 6.0)),
        ({"EGAIN": 1.5, "READNOIS": 6.0}, (1.5, 6.0)),
        ({"GAINA": 1.4, "GAINB": 1.6, "RDNOISEA": 5.0, "RDNOISEB": 7.0}, (1.5, 6.0)),
        ({"GAIN": "1.5", "RDNOISE": "6.0D0"}, (1.5, 6.0)),
        ({"GAIN": -1.0, "EGAIN": 1.5}, (1.5, None)),
    ):
        note = read((counts, fits.Header(cards)), device="cpu").notes["variance"]
        assert (note["gain"], note["read_noise"]) == expected
    note = read((counts, fits.Header({"GAIN": 9.0})), gain=1.5, read_noise=6.0, device="cpu").notes["variance"]
    assert (note["gain"], note["read_noise"]) == (1.5, 6.0)
    odd = read((counts, fits.Header({"GAIN": "high"})), device="cpu").notes
    assert "GAIN = 'high'; a number is needed; the card is left aside" in odd["warnings"]
    with pytest.raises(ConfigError, match=r"gain = -1; a positive number"):
        read(counts, gain=-1, device="cpu")


def test_bias_level_is_not_light(rng, figure):
    from astropy.io import fits

    counts, _, truth = field(rng, stars=0)
    note = read((counts + 1000, fits.Header({"GAIN": 1.5, "RDNOISE": 6.0, "BIASLVL": 1000.0})), device="cpu")
    assert note.notes["variance"]["source"] == "gain"
    figure("bias level: variance / truth", np.median(note.variance / truth), (0.98, 1.02))


def test_an_image_without_noise(tmp_path):
    from astropy.io import fits

    flat = np.full((64, 64), 1890, np.uint16)
    exposure = read(flat, device="cpu")
    assert not exposure.good().any()
    assert exposure.notes["warnings"] == [
        "variance cannot be estimated: neither gain and sky nor the image itself give any noise",
        "no usable pixel: none has a variance; give a variance, or a gain",
    ]
    known = read((flat, fits.Header({"GAIN": 2.0})), device="cpu")
    assert np.allclose(known.variance, 945)
