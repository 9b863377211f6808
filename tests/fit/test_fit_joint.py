# SPDX-License-Identifier: BSD-3-Clause
"""Dipoles from the science image and the template together: truth, errors, and what goes wrong."""

import numpy as np
import pytest
from astropy import units as u
from scipy.optimize import curve_fit
from support_sources import SIGMA, flux_of, gaussian

import skydelta
from skydelta.errors import ConfigError, InputError

PSF = gaussian(31, 0, 0)
NOISE = 1.0, 0.7


def pair(rng, n, snr=(20, 200), separations=(1, 3), side=21):
    """Science and template stamps, places (n, 2, 2) and fluxes (n, 2) of the lobes; backgrounds 3 and 1."""
    separation, angle = rng.uniform(*separations, n) * SIGMA, rng.uniform(0, 2 * np.pi, n)
    half = 0.5 * separation[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    middle = (side - 1) / 2 + rng.uniform(-0.5, 0.5, (n, 2))
    at = np.stack([middle + half, middle - half], 1)
    flux = flux_of(np.exp(rng.uniform(*np.log(snr), (n, 2)))) * np.array(NOISE)
    planes = []
    for k in range(2):
        light = np.array([f * gaussian(side, *(q - side // 2)) for f, q in zip(flux[:, k], at[:, k], strict=True)])
        planes.append(light + rng.normal(0, NOISE[k], light.shape) + (3, 1)[k])
    return *planes, at, flux


def joint(science, template, **options):
    given = {"variance": NOISE[0] ** 2, "template_variance": NOISE[1] ** 2, **options}
    return skydelta.fit(science, model="dipole", psf=PSF, template=template, **given)


@pytest.mark.parametrize("separations", [(1, 3), (0.2, 1)])
def test_against_truth(rng, figure, separations):
    science, template, at, flux = pair(rng, 1000, separations=separations)
    got = joint(science, template)
    off = [np.hypot(got[f"x_{k}"] - at[:, i, 0], got[f"y_{k}"] - at[:, i, 1]) for i, k in enumerate(("pos", "neg"))]
    figure(
        f"joint dipoles with both lobes within 0.5 px, {separations} sigma", (np.max(off, 0) < 0.5).mean(), (0.99, 1)
    )
    assert (got["status"] == "converged").all()
    between = at[:, 0] - at[:, 1]
    mean = 2 * flux.prod(axis=1) / flux.sum(axis=1)
    truth = {
        "flux_pos": flux[:, 0],
        "flux_neg": flux[:, 1],
        "x_pos": at[:, 0, 0],
        "y_neg": at[:, 1, 1],
        "separation": np.hypot(*between.T),
        "moment_x": mean * between[:, 0],
        "moment_y": mean * between[:, 1],
    }
    for name, values in truth.items():
        if name != "separation" or separations[0] >= 1:  # a length is not Gaussian near 0
            pull = (got[name] - values) / got[f"{name}_err"]
            figure(f"joint dipoles, pull of {name}, {separations} sigma", pull.std(), (0.92, 1.08))
    figure(f"joint dipoles, chi2 over dof, {separations} sigma", (got["chi2"] / got["dof"]).mean(), (0.99, 1.01))
    assert abs(np.mean(got["background"]) - 2) < 0.02


def test_one_against_scipy(rng):
    """The whole of the two planes by a general optimiser."""
    science, template, at, flux = pair(rng, 1, (30, 60))
    side = science.shape[-1]

    def model(_, f1, x1, y1, f2, x2, y2, b1, b2):
        one, two = (f * gaussian(side, x - side // 2, y - side // 2) for f, x, y in ((f1, x1, y1), (f2, x2, y2)))
        return np.concatenate([(one + b1).ravel(), (two + b2).ravel()])

    start = [flux[0, 0], *at[0, 0], flux[0, 1], *at[0, 1], 3, 1]
    data = np.concatenate([science.ravel(), template.ravel()])
    sigma = np.repeat(NOISE, side**2)
    best, covariance = curve_fit(model, np.arange(len(data)), data, start, sigma, absolute_sigma=True)
    got = joint(science, template)
    for name, value, error in zip(
        ("flux_pos", "x_pos", "y_pos", "flux_neg", "x_neg", "y_neg"), best, np.sqrt(np.diag(covariance)), strict=False
    ):
        assert got[name][0] == pytest.approx(value, abs=0.05 * error)  # of a sampled PSF
        assert got[f"{name}_err"][0] == pytest.approx(error, rel=0.03)
    assert got["background"][0] == pytest.approx(best[6] - best[7], abs=1e-3)
    chi2 = (((data - model(None, *best)) / sigma) ** 2).sum()
    assert got["chi2"][0] == pytest.approx(chi2, abs=0.2)
    assert got["dof"][0] == len(data) - 8
    assert got["bic"][0] == pytest.approx(chi2 + 8 * np.log(len(data)), abs=0.2)


def test_starts_held_positions_masks_and_residuals(rng):
    science, template, at, flux = pair(rng, 60, (50, 100))
    free = joint(science, template, start=at, residuals=True)
    np.testing.assert_allclose(free["chi2"], joint(science, template)["chi2"], rtol=1e-5)
    for name, noise in zip(("residual", "residual_template"), NOISE, strict=True):
        assert np.std(free[name]) == pytest.approx(noise, rel=0.03)
    held = joint(science, template, start=at, forced=True)
    np.testing.assert_allclose(held["x_pos"], at[:, 0, 0], atol=1e-6)
    np.testing.assert_allclose(held["y_neg"], at[:, 1, 1], atol=1e-6)
    pull = (held["flux_neg"] - flux[:, 1]) / held["flux_neg_err"]
    assert 0.75 < pull.std() < 1.25
    assert (held["dof"] == 2 * 21**2 - 4).all()
    broken = template.copy()
    broken[:, 4, 4] = 1e6
    mask = np.zeros((21, 21), bool)
    mask[4, 4] = True
    np.testing.assert_allclose(joint(science, broken, template_mask=mask)["x_neg"], free["x_neg"], atol=0.05)
    part = joint(science[7:9], template[7:9])
    for name in ("flux_pos", "x_neg", "moment_y", "chi2"):
        np.testing.assert_array_equal(part[name], joint(science, template)[name][7:9])


def test_a_source_that_is_new_has_no_negative_lobe(rng):
    science, template, _, _ = pair(rng, 50)
    template[:] = rng.normal(0, NOISE[1], template.shape)
    got = joint(science, template)
    assert (got["status"] != "converged").mean() > 0.9
    assert (np.abs(got["flux_neg"]) < 6 * got["flux_neg_err"])[got["status"] == "converged"].all()


def test_psf_of_its_own_units_and_no_stamps(rng):
    side = 25
    wide = gaussian(31, 0, 0, 1.5 * SIGMA)
    science = 900 * gaussian(side, 1, 0) + rng.normal(0, 1, (side, side))
    template = 800 * gaussian(side, -1, 0, 1.5 * SIGMA) + rng.normal(0, 1, (side, side))
    got = joint(science, template, template_psf=wide, variance=1.0, template_variance=1.0)
    assert got["flux_neg"][0] == pytest.approx(800, abs=5 * got["flux_neg_err"][0])
    nJy = u.nJy
    with_unit = joint(
        science * nJy, template * nJy, template_psf=wide, variance=1 * nJy**2, template_variance=1 * nJy**2
    )
    assert with_unit["moment_x"].unit == nJy
    np.testing.assert_array_equal(with_unit["moment_x"].value, got["moment_x"])
    assert len(joint(np.zeros((0, 21, 21)), np.zeros((0, 21, 21)))) == 0


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"model": "point"}, ConfigError, "needs the model dipole"),
        ({"variance": None}, ConfigError, "variance and template_variance"),
        ({"template_variance": None}, ConfigError, "variance and template_variance"),
        ({"template": None}, ConfigError, "template_variance without a template"),
        ({"template": np.zeros((2, 19, 19))}, InputError, r"template has shape \(2, 19, 19\)"),
        ({"template": np.zeros((2, 21, 21)) * u.nJy}, InputError, "template is in nJy"),
    ],
)
def test_what_is_not_allowed(change, error, words):
    given = {
        "model": "dipole",
        "psf": PSF,
        "variance": 1.0,
        "template": np.zeros((2, 21, 21)),
        "template_variance": 1.0,
    }
    with pytest.raises(error, match=words):
        skydelta.fit(np.zeros((2, 21, 21)), **(given | change))
