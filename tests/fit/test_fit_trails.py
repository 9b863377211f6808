# SPDX-License-Identifier: BSD-3-Clause
"""Trails, cosmic rays and hot pixels: truth, scipy, derivatives, honest status, and the choice among models by BIC."""

import json
import warnings

import numpy as np
import pytest
from scipy.optimize import least_squares
from scipy.special import erf
from support_sources import SIGMA, gaussian

import skydelta
from skydelta.errors import ConfigError
from skydelta.kernels.fit import fit_trails, spline_coefficients, subtract_trails
from skydelta.stages.stamptable import COLUMNS, RIVALS

NAMES = ("flux", "x", "y", "length", "angle")


def trail(side, flux, x, y, length, angle, sigma=SIGMA):
    """A Gaussian along a segment about (x, y), 0-based, in closed form: Veres et al. (2012), eq. 3."""
    o, turn = np.arange(side), np.radians(angle)
    along = (o - x) * np.cos(turn) + (o[:, None] - y) * np.sin(turn)
    across = (o[:, None] - y) * np.cos(turn) - (o - x) * np.sin(turn)
    ends = [erf((along + half) / (np.sqrt(2) * sigma)) for half in (length / 2, -length / 2)]
    return flux / (2 * length) * (ends[0] - ends[1]) * np.exp(-0.5 * (across / sigma) ** 2) / np.sqrt(2 * np.pi) / sigma


def scaled(models, snr):
    """Models with this S/N in unit noise, and what they were multiplied by."""
    by = snr / np.sqrt((models**2).sum(axis=(1, 2)))
    return models * by[:, None, None], by


def trails(rng, n, snr, lengths=(2, 6), side=31, sigma=SIGMA):
    """Stamps without noise, and parameters (n, 5) in the order of `NAMES`; lengths in sigma."""
    middle = side // 2 + rng.uniform(-1, 1, (n, 2))
    truth = np.c_[np.ones(n), middle, rng.uniform(*lengths, n) * sigma, rng.uniform(-90, 90, n)]
    data, truth[:, 0] = scaled(np.array([trail(side, *p, sigma) for p in truth]), snr)
    return data, truth


def ray(rng, side, length):
    """Charges along a track through pixels, uneven, each moved by 0.3 px on its way to the electrodes."""
    place, turn = rng.uniform(0, 1, 2000), rng.uniform(0, np.pi)
    knots = int(np.ceil(length)) + 2
    weight = np.interp(place * (knots - 1), np.arange(knots), rng.gamma(3, 1, knots))
    at = rng.uniform(-0.5, 0.5, 2) + (place[:, None] - 0.5) * length * np.array([np.cos(turn), np.sin(turn)])
    at += rng.normal(0, 0.3, at.shape)
    edges = np.arange(side + 1) - side / 2
    return np.histogram2d(at[:, 1], at[:, 0], (edges, edges), weights=weight)[0]


def hot(rng, side):
    """One pixel, and in a third of the cases some light in a second one."""
    out = np.zeros((side, side))
    out[side // 2, side // 2] = 1
    if rng.random() < 1 / 3:
        out[side // 2 + rng.integers(-1, 2), side // 2 + rng.integers(-1, 2)] += rng.uniform(0.1, 1)
    return out


def psf(sigma=SIGMA):
    return gaussian(31, 0, 0, sigma)


def off(got, truth, name):
    """Differences from the truth; of angles modulo 180."""
    apart = got[name] - truth[:, NAMES.index(name)]
    return (apart + 90) % 180 - 90 if name == "angle" else apart


def test_pulls_of_trails(rng, figure):
    data, truth = trails(rng, 1500, np.exp(rng.uniform(np.log(40), np.log(200), 1500)), (2.5, 4), 17)
    data += rng.normal(0, 1, data.shape) + 5
    hidden = rng.random(data.shape) < 0.03
    got = skydelta.fit(np.where(hidden, 1e9, data), model="trail", psf=psf(), variance=1.0, mask=hidden)
    figure("trails: converged", (got["status"] == "converged").mean(), (0.99, 1))
    for name in NAMES:
        pull = off(got, truth, name) / got[f"{name}_err"]
        # 1500 fits: the deviation of a width is 0.018
        figure(f"trails, S/N 40 to 200: std of the pull of {name}", pull.std(), (0.95, 1.05))
        figure(f"trails, S/N 40 to 200: |mean| of the pull of {name}", abs(pull.mean()), 0.12)
    assert (got["dof"] == 17 * 17 - 6 - hidden.sum(axis=(1, 2))).all()


@pytest.mark.parametrize("side", [7, 20, 63])
def test_scipy_finds_the_same_trail(rng, side):
    """least_squares of the closed form from the truth: the same minimum and errors, with a variance for each pixel."""
    sigma = 1.4 if side == 7 else SIGMA
    data, truth = trails(rng, 5, 25 if side == 7 else 60, (2, 2.5) if side == 7 else (3, 6), side, sigma)
    error = rng.uniform(0.5, 2, data.shape)
    data += rng.normal(0, 1, data.shape) * error
    # a stamp of 7 px holds little but the trail: its level is known
    level = "none" if side == 7 else "constant"
    got = skydelta.fit(data, model="trail", psf=psf(sigma), variance=error**2, background=level)
    for k, stamp in enumerate(data):

        def residual(p, k=k, stamp=stamp):
            model = trail(side, *p[:5], sigma) + (p[5] if level == "constant" else 0)
            return ((model - stamp) / error[k]).ravel()

        first = np.r_[truth[k], 0] if level == "constant" else truth[k]
        best = least_squares(residual, first, x_scale=np.maximum(abs(first), 1), xtol=1e-12, ftol=1e-12, gtol=1e-12)
        spread = np.sqrt(np.diag(np.linalg.inv(best.jac.T @ best.jac)))[:5]
        mine = np.array([got[name][k] for name in NAMES])
        apart = mine - best.x[:5]
        apart[4] = (apart[4] + 90) % 180 - 90
        assert np.abs(apart / spread).max() < 0.05
        np.testing.assert_allclose([got[f"{name}_err"][k] for name in NAMES], spread, rtol=0.03)
        # the spline through pixels of a PSF this narrow is not quite the Gaussian
        assert got["chi2"][k] == pytest.approx(2 * best.cost, abs=0.3)


@pytest.mark.parametrize("narrow", [False, True], ids=["trail", "ray"])
def test_covariance_is_that_of_differences(rng, narrow):
    """The kernel's derivatives against central differences of what it takes away as the model."""
    data, _ = trails(rng, 1, 500, (3, 4), 15)
    data = data.astype(np.float32)
    weight = rng.uniform(0.5, 2, data.shape).astype(np.float32)
    coefficients = None if narrow else spline_coefficients(psf()[None])
    got = fit_trails(data, weight, coefficients, np.array([[0.2, -0.3, 3.1, 1.3]]), limit=1)
    p = got.parameters[0, :5].copy()
    p[0] = 1e3 if narrow else p[0]

    def model(q):
        return -subtract_trails(np.zeros_like(data), weight, coefficients, q[None]).astype(float).ravel()

    # float32 pixels: steps that leave four digits
    steps = np.diag([0.1 * p[0], 0.02, 0.02, 0.02, 0.02])
    jacobian = np.stack([(model(p + h) - model(p - h)) / (2 * h.sum()) for h in steps] + [np.ones(225)], 1)
    flux = got.parameters[0, 0]
    jacobian[:, 1:5] *= flux / p[0]
    want = np.linalg.inv((jacobian * weight.reshape(-1, 1)).T @ jacobian)
    scale = np.sqrt(np.diag(want))
    np.testing.assert_allclose(got.covariance[0] / np.outer(scale, scale), want / np.outer(scale, scale), atol=0.01)


def test_short_and_endless_trails_say_so(rng):
    points = 100 * np.array([gaussian(21, x, y) for x, y in rng.uniform(-0.5, 0.5, (20, 2))])
    short = skydelta.fit(points + rng.normal(0, 1, points.shape), model="trail", psf=psf(), variance=1.0)
    assert np.isin(short["status"], ["degenerate", "singular", "max iterations"]).mean() >= 0.9
    long = np.array([trail(21, 4e4, 10, 10, 400, angle) for angle in (0.0, 30.0, 90.0)])
    endless = skydelta.fit(long + rng.normal(0, 1, long.shape), model="trail", psf=psf(), variance=1.0)
    assert not (endless["status"] == "converged").any()
    nothing = skydelta.fit(np.full((1, 9, 9), np.nan), model="cosmic_ray", variance=1.0)
    assert nothing["status"][0] == "no data"
    assert np.isnan(nothing["flux"][0])


def test_hot_pixels_and_tracks_need_no_psf(rng):
    pixel = np.zeros((2, 15, 15))
    pixel[0, 7, 8] = pixel[1, 5:10, 4] = 300.0
    got = skydelta.fit(pixel + rng.normal(0, 1, pixel.shape), model="cosmic_ray", variance=1.0, residuals=True)
    np.testing.assert_allclose(got["x"], [8, 4], atol=0.05)
    np.testing.assert_allclose(got["y"], [7, 7], atol=0.05)
    np.testing.assert_allclose(got["length"], [0, 5], atol=0.2)
    np.testing.assert_allclose(got["flux"], [300, 1500], rtol=0.15)
    assert np.isnan(got["angle"][0])
    assert abs(abs(got["angle"][1]) - 90) < 1
    assert (got["dof"] == [225 - 4, 225 - 6]).all()
    left = np.asarray(got["residual"])
    np.testing.assert_allclose((left**2).sum(axis=(1, 2)), got["chi2"], rtol=1e-3)


@pytest.mark.parametrize("width", [1.5, 2.5, 4.0])
def test_classes(rng, figure, width):
    """Of truths that are none of the models' own: tracks of charge, bare pixels, trails and stars in closed form."""
    n, side, sigma = 30, 23, width / 2.3548
    snr = np.exp(rng.uniform(np.log(30 if width < 2 else 20), np.log(100), n))
    half = 1.5 * sigma * np.stack([np.cos(turn := rng.uniform(0, 2 * np.pi, n)), np.sin(turn)], 1)
    at = rng.uniform(-1, 1, (n, 2))
    stars = [gaussian(side, *q, sigma) for q in at]
    pairs = [gaussian(side, *(q + h), sigma) - gaussian(side, *(q - h), sigma) for q, h in zip(at, half, strict=True)]
    streaks, _ = trails(rng, n, 1, (1.5 * width / sigma, 12 / sigma), side, sigma)
    rays = [hot(rng, side) if k % 2 else ray(rng, side, rng.uniform(1, 10)) for k in range(n)]
    for name, models in zip(RIVALS, (stars, pairs, streaks, rays), strict=True):
        data = scaled(np.array(models), snr)[0] + rng.normal(0, 1, (n, side, side))
        got = skydelta.fit(data, model="best", psf=psf(sigma), variance=1.0)
        figure(f"PSF of {width} px: share of {name} so classified", (got["best_model"] == name).mean(), (0.95, 1))
        right = got["best_model"] == name
        assert (got["bic_difference"][right] > 0).mean() > 0.97
        np.testing.assert_array_equal(got["bic"][right], got[f"bic_{name}"][right])
        assert np.isfinite(got["flux_pos" if name == "dipole" else "flux"][right]).mean() > 0.97
        assert np.isnan(got["length"][right]).all() == (name in ("point", "dipole"))


def test_the_choice_does_not_depend_on_the_batch_or_the_type(rng):
    data, _ = trails(rng, 6, 60, (3, 6), 21)
    data[3:] = scaled(np.array([ray(rng, 21, 4) for _ in range(3)]), 60)[0]
    data += rng.normal(0, 1, data.shape)
    data = data.astype(np.float32)
    whole = skydelta.fit(data, model="best", psf=psf(), variance=1.0, residuals=True)
    order = rng.permutation(6)
    turned = skydelta.fit(data[order].astype(float), model="best", psf=psf(), variance=1.0, residuals=True)
    alone = [skydelta.fit(stamp, model="best", psf=psf(), variance=1.0, residuals=True) for stamp in data]
    for name in whole.colnames:
        np.testing.assert_array_equal(np.asarray(turned[name]), np.asarray(whole[name])[order], err_msg=name)
        np.testing.assert_array_equal(np.concatenate([np.asarray(a[name]) for a in alone]), np.asarray(whole[name]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        json.dumps(whole["best_model"].tolist())
    assert set(COLUMNS["best"]) < set(whole.colnames)


def test_places_cannot_be_held():
    with pytest.raises(ConfigError, match="forced"):
        skydelta.fit(np.zeros((1, 9, 9)), model="trail", psf=psf(), start=(4, 4), forced=True)
