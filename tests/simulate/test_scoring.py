# SPDX-License-Identifier: BSD-3-Clause
"""The scoring itself: the perfect difference scores as perfect, and each kind of damage shows in its own figure."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter
from support_scoring import Planes, matching_kernel, measure, perfect_difference, shortfalls

from skydelta.pipeline.simulate import build


@pytest.fixture(scope="module")
def scene():
    return build(size=512, seed=6, same_grid=True)


@pytest.fixture(scope="module")
def perfect(scene):
    return perfect_difference(scene)


def test_perfect_difference_is_perfect(scene, perfect):
    figures = measure(scene, perfect)
    assert figures.noise_std == pytest.approx(1, abs=0.01)
    assert figures.score_std == pytest.approx(1, abs=0.03)
    assert figures.chi2_stars == pytest.approx(1, abs=0.1)
    assert figures.flux_ratio == pytest.approx(1, abs=0.02)
    assert figures.found >= figures.expected - 1
    assert figures.false_positive + figures.false_negative <= 1
    assert shortfalls(figures, figures) == []


def test_true_kernel_turns_the_reference_psf_into_the_science_psf(scene):
    x, y = 300.0, 180.0
    k = matching_kernel(scene, x, y)
    rx, ry = (float(a[0]) for a in scene.transform(np.array([x]), np.array([y])))
    r = scene.reference.psf.stamp(x, y, 40, rx - x, ry - y)
    s = scene.science.psf.stamp(x, y, 16) * scene.config.flux_ratio
    n = 144
    moved = np.fft.ifft2(np.fft.fft2(r, (n, n)) * np.fft.fft2(k, (n, n))).real[:129, :129]
    np.testing.assert_allclose(moved[48:81, 48:81], s, atol=2e-5 * s.max())


@pytest.mark.parametrize(
    ("damage", "figure"),
    [
        (lambda p: replace(p, image=p.image * 1.02), "noise_std"),
        (lambda p: replace(p, score=p.score * 1.06), "score_std"),
        (lambda p: replace(p, image=p.image + 3 * np.sin(np.arange(512) / 60)), "background_rms"),
        (lambda p: replace(p, score=np.where(np.arange(512) % 40 == 0, p.score + 9, p.score)), "false_positive"),
        (lambda p: replace(p, score=np.where(np.arange(512) % 40 == 0, p.score - 9, p.score)), "false_negative"),
        (lambda p: replace(p, score=np.minimum(p.score, 4.9)), "found"),
        (lambda p: replace(p, image=gaussian_filter(np.nan_to_num(p.image), 1.0) + 0 * p.image), "flux_ratio"),
    ],
)
def test_damage_shows(scene, perfect, damage, figure):
    figures = measure(scene, damage(perfect), perfect.variance)
    missed = [line.split()[0] for line in shortfalls(figures, measure(scene, perfect))]
    assert figure in missed


def test_residuals_at_stars_show(scene, perfect):
    """A kernel 3 % too strong leaves stars behind."""
    light = gaussian_filter(scene.science.static - scene.science.sky, 0.5)
    damaged = Planes(perfect.image + 0.03 * light, perfect.variance, perfect.score)
    missed = [line.split()[0] for line in shortfalls(measure(scene, damaged), measure(scene, perfect))]
    assert "chi2_bright" in missed


def test_needs_one_grid():
    with pytest.raises(ValueError, match="same_grid"):
        perfect_difference(build(size=128, stars=5, galaxies=0, transients=0, saturated=0))
