# SPDX-License-Identifier: BSD-3-Clause
"""Pure noise, white and coloured: correlation, scale of the S/N map, and false alarms beside a Gaussian field's."""

import numpy as np
import pytest
from scipy import fft
from scipy.signal import fftconvolve
from support_noise import COLOURS, LEVELS, Fields, above, peaks
from support_sources import SIGMA, draw, exposure, flux_of, gaussian

import skydelta
from skydelta.io.variance import Detector, estimate
from skydelta.kernels.backend import CPU
from skydelta.kernels.significance import matched_filter
from skydelta.stages.base import Context
from skydelta.stages.detect import Detect
from skydelta.stages.noise import image_noise
from skydelta.stages.sources import Sources

SIDE = 1024


@pytest.mark.parametrize("colour", COLOURS)
def test_false_alarms_are_those_of_a_gaussian_field(figure, colour):
    """The field is the same noise, filtered by the test: nothing is left to chance but what the package measures."""
    noise, field = Fields(SIDE, colour), Fields(SIDE, colour, gaussian(31, 0, 0))
    truth, stated, measured = np.zeros((3, len(LEVELS)), int)
    for seed in range(4):
        image = noise.draw(np.random.default_rng(seed))
        truth += peaks(field.draw(np.random.default_rng(seed)))
        stated += above(np.asarray(Detect(threshold=LEVELS[0])(exposure(image), device="cpu")["snr"]))
        found = skydelta.detect(image, fwhm=2.3548 * SIGMA, threshold=LEVELS[0], negative=True, device="cpu")
        measured += above(np.asarray(found["snr"]))
    assert truth[0] > 400
    for name, count in (("stated", stated), ("measured", measured)):
        figure(
            f"detect: false alarms above 3.5 over a field's, {colour}, variance {name}",
            count[0] / truth[0],
            (0.95, 1.1),
        )
        figure(
            f"detect: false alarms above 4 over a field's, {colour}, variance {name}", count[1] / truth[1], (0.9, 1.15)
        )


@pytest.mark.parametrize("colour", COLOURS)
def test_variance_of_pure_noise_is_not_cut(figure, colour):
    """Nothing of the noise passes for an object, and no block knows its noise from itself alone."""
    image = np.concatenate([Fields(SIDE, colour).draw(np.random.default_rng(s)) for s in (21, 22)])
    found = estimate(image, np.ones(image.shape, bool), Detector()).values
    figure(f"estimated variance of noise, {colour}: mean", found.mean(), (0.99, 1.01))
    figure(f"estimated variance of noise, {colour}: std", found.std(), 0.025)


def test_a_step_of_the_noise_stays(figure):
    image = np.random.default_rng(23).normal(0, 1, (SIDE, SIDE)).astype(np.float32)
    image[:, SIDE // 2 :] *= 1.3
    found = estimate(image, np.ones(image.shape, bool), Detector()).values
    figure("estimated variance beside a step, quiet side", found[:, SIDE // 2 - 64].mean(), (0.97, 1.03))
    figure("estimated variance beside a step, noisy side", found[:, SIDE // 2 + 64].mean() / 1.69, (0.97, 1.03))


def test_the_correlation_of_one_image_is_measured(figure):
    rng = np.random.default_rng(8)
    assert image_noise(exposure(Fields(SIDE, "white").draw(rng))) is None
    rho = image_noise(exposure(Fields(SIDE, "resampled").draw(rng)))
    triangle = np.zeros(13)
    triangle[5:8] = 0.5, 1, 0.5
    figure("noise: correlation of resampled noise less the true one", np.abs(rho - np.outer(triangle, triangle)).max(),
           0.02)  # fmt: skip
    smoothed = image_noise(exposure(Fields(SIDE, "smoothed").draw(rng)))
    o = np.arange(-6, 7)
    figure("noise: correlation of smoothed noise less the true one",
           np.abs(smoothed - np.exp(-(o**2 + o[:, None] ** 2) / 4)).max(), 0.03)  # fmt: skip


@pytest.mark.parametrize("colour", ["resampled", "smoothed"])
def test_the_noise_of_a_matched_filter_is_neither_cut_nor_levelled_off(figure, colour):
    """Blocks lose their own level and the rarest peaks: what the correlations say of the noise is right still."""
    stamp = gaussian(31, 0, 0)
    filtered = fftconvolve(stamp, stamp[::-1, ::-1])[24:37, 24:37]
    filtered /= filtered[6, 6]
    noise = Fields(512, colour)
    near = np.ix_(np.arange(-6, 7), np.arange(-6, 7))
    rho = fft.irfft2(np.abs(noise.filter.astype(complex)) ** 2, noise.shape)[near]
    truth = (filtered * rho / rho[6, 6]).sum()
    found = [(filtered * image_noise(exposure(noise.draw(np.random.default_rng([12, i]))))).sum() for i in range(40)]
    figure(f"noise of a matched filter, {colour}: stated over true", np.mean(found) / truth, (0.996, 1.004))


def test_sources_do_not_colour_white_noise():
    rng = np.random.default_rng(9)
    n, shape = 2500, (512, 512)
    snr = 0.5 / np.maximum(rng.random(n), 1e-3)
    image = draw(rng.normal(0, 1, shape), rng.uniform(0, 511, n), rng.uniform(0, 511, n), flux_of(snr))
    assert image_noise(exposure(image - np.median(image))) is None
    # nor do few pixels
    assert all(image_noise(exposure(rng.normal(0, 1, (40, 40)))) is None for _ in range(30))


@pytest.mark.parametrize("side", [*range(13, 40, 3), 64])
def test_a_correlation_of_few_pixels_is_one_or_none(side):
    for i in range(20):
        rho = image_noise(exposure(Fields(side, "smoothed").draw(np.random.default_rng([13, i]))))
        assert rho is None or (np.abs(rho).max() == rho[6, 6] == 1 and rho.sum() > 0)


@pytest.mark.parametrize("masked", [False, True])
def test_coloured_noise_has_unit_signal_to_noise(figure, masked):
    rng = np.random.default_rng(10)
    noise = Fields(SIDE, "resampled").draw(rng)
    scale = 1 + np.arange(SIDE) / SIDE  # fourfold variance across the field
    mask = (rng.random(noise.shape) < 0.02).astype(np.int32) if masked else None
    image = exposure(noise * scale, variance=scale**2, mask=mask)
    triangle = np.array([0.5, 1, 0.5])
    snr = matched_filter(
        image.image, image.variance, image.good(), image.psf.render, correlation=np.outer(triangle, triangle)
    )
    figure(f"detect: std of the S/N of coloured noise, masked {masked}", snr[np.isfinite(snr)].std(), (0.985, 1.015))


def test_coloured_noise_is_said(figure):
    noise = Fields(SIDE // 2, "resampled").draw(np.random.default_rng(11))
    x = y = np.array([200.0])
    image = exposure(draw(noise.astype(float), x, y, flux_of(np.array([40.0]))))
    for stage in (Detect(), Sources()):
        ctx = Context(CPU, id="one")
        ports = {"image": image} | ({"score": None} if stage.name == "detect" else {"positions": None})
        catalog = stage.execute(ctx, ports)["catalog"]
        assert "correlated (0.50 from pixel to pixel)" in ctx.flags["correlated_noise"]
        assert ctx.metrics["noise_correlation"] == pytest.approx(0.5, abs=0.02)
        # 1 / 1.907 of what it is on white noise, by the sum of P (rho (x) P) over that of P squared
        stamp, triangle = gaussian(31, 0, 0), np.array([0.5, 1, 0.5])
        smooth = np.apply_along_axis(np.convolve, 0, stamp, triangle, "same")
        smooth = np.apply_along_axis(np.convolve, 1, smooth, triangle, "same")
        want = 40 * np.sqrt((stamp**2).sum() / (stamp * smooth).sum())
        assert np.asarray(catalog["snr"]).max() == pytest.approx(want, abs=3)
    assert SIGMA == 1.6
