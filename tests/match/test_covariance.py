# SPDX-License-Identifier: BSD-3-Clause
"""The covariance of the kernel's coefficients, against draws of the noise."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter
from scipy.signal import fftconvolve
from support_pairs import context, pair

from skydelta.kernels.backend import resolve
from skydelta.stages.match import Match
from skydelta.stages.match import covariance as module
from skydelta.stages.match.covariance import MOST, drawn, fit_covariance

CROWDED = {"shape": (220, 220), "stars": 14, "low": 4e3, "high": 4e4, "margin": 45, "sky": (300.0, 300.0)}
"""Stamps that overlap, in images whose noise is alike."""


def fitted(monkeypatch, **settings):
    """A pair, and the problem, basis and solution of its fit, of one kernel for the whole field."""
    seen = []
    monkeypatch.setattr("skydelta.stages.match.fit_covariance", lambda *a: seen.extend(a) or fit_covariance(*a))
    p = pair(**settings)
    Match(order=0).execute(context(), {"science": p.science, "reference": p.reference})
    return p, *seen


def noise(rng, exposure, smooth):
    draw = rng.normal(0, 1, exposure.shape)
    if smooth:
        draw = gaussian_filter(draw, smooth, mode="wrap")
        draw /= draw.std()
    return draw * np.sqrt(exposure.variance)


@pytest.mark.parametrize("smooth", [0.0, 0.8])
def test_the_noise_of_the_score_is_that_of_draws(monkeypatch, smooth, figure):
    """sum_s X_s^T W (n_S - K (x) n_R) over noise images: correlated by the kernel, twice where stamps overlap."""
    p, problem, basis, solved = fitted(monkeypatch, seed=21, correlate=smooth, **CROWDED)
    used, at = np.flatnonzero(solved.result.used), problem.chosen
    kernel, m = solved.kernel.at(*solved.kernel.domain.centre), problem.stamps.broad.shape[1]
    design = basis.planes(problem.stamps.within(basis.half)) * problem.weight.reshape(len(at), 1, -1)
    rng, draws = np.random.default_rng(5), []
    for _ in range(400):
        left = noise(rng, p.science, 0.0) - fftconvolve(noise(rng, p.reference, smooth), kernel, "same")
        cut = [left[y - m // 2 : y + m // 2 + 1, x - m // 2 : x + m // 2 + 1] for x, y in zip(at.x, at.y, strict=True)]
        draws.append(sum(design[s] @ cut[s].ravel() for s in used))
    want = np.var(draws, axis=0)
    made = solved.result.system.assembled(module._score_noise(problem, basis, solved), solved.result.used)
    got = np.diag(made)[: basis.size]
    assert (module._covered(resolve("cpu"), at.x, at.y, solved.result.used, used, m) > 1).any()
    figure("variance of the score over that of draws, less 1", abs(np.mean(got / want) - 1), 0.06)
    assert np.abs(got / want - 1).max() < 0.4


def test_few_stamps_that_stand_for_many_give_the_same_sum():
    rng = np.random.default_rng(6)
    signal, used = rng.lognormal(0, 1.5, 900), rng.random(900) < 0.9
    rows, weight = drawn(signal, used)
    assert len(rows) <= MOST + 1
    assert used[rows].all()
    for value in (signal, np.ones(900)):
        assert (value * weight)[rows].sum() == pytest.approx(value[used].sum(), rel=0.15)
    few = used & (np.arange(900) < 50)
    rows, weight = drawn(signal, few)
    np.testing.assert_array_equal(rows, np.flatnonzero(few))
    np.testing.assert_array_equal(weight[rows], 1)


def test_the_error_of_the_flux_scale_is_its_scatter_with_many_parameters(figure):
    """Thirty stars that are not much above the noise of both images, and 295 parameters."""
    pulls = []
    for seed in range(8):
        ctx = context()
        p = pair(seed=300 + seed, shape=(300, 300), stars=30, low=3e3, high=6e3, margin=45, sky=(400.0, 400.0))
        Match(photometric="constant").execute(ctx, {"science": p.science, "reference": p.reference})
        pulls.append((ctx.metrics["kernel_sum"] - 0.8) / ctx.metrics["kernel_sum_err"])
    figure("flux scale, scatter over its error", np.sqrt(np.mean(np.square(pulls))), 1.35)
    assert np.sqrt(np.mean(np.square(pulls))) > 0.65
