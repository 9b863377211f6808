# SPDX-License-Identifier: BSD-3-Clause
"""No background, a constant and a plane: truth, scipy, columns, and what does not change."""

import numpy as np
import pytest
from astropy import units as u
from scipy.optimize import curve_fit
from support_sources import SIGMA, draw, exposure, flux_of, gaussian, lattice, nearest

import skydelta
from skydelta.errors import ConfigError
from skydelta.stages.detect import Detect
from skydelta.stages.fit import Fit

PSF = gaussian(31, 0, 0)
SLOPES = 0.4, -0.25
NAMES = ("background", "background_x", "background_y")
KINDS = ("none", "constant", "plane")


def dipoles(rng, n, side=21, snr=(40, 200), level=5.0, slopes=SLOPES):
    """Stamps with a plane under two lobes, their places (n, 2, 2) and signed fluxes (n, 2); unit noise."""
    separation, angle = rng.uniform(1.5, 3, n) * SIGMA, rng.uniform(0, 2 * np.pi, n)
    half = 0.5 * separation[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    at = side // 2 + rng.uniform(-0.5, 0.5, (n, 1, 2)) + np.stack([half, -half], 1)
    flux = flux_of(np.exp(rng.uniform(*np.log(snr), (n, 2)))) * np.array([1, -1])
    o = np.arange(side) - side // 2
    data = rng.normal(level, 1, (n, side, side)) + slopes[0] * o + slopes[1] * o[:, None]
    for k in range(n):
        data[k] += sum(f * gaussian(side, *(q - side // 2)) for f, q in zip(flux[k], at[k], strict=True))
    return data, at, flux


@pytest.mark.parametrize("noise", ["given", "unknown"])
def test_pulls_of_all_parameters_of_a_plane(rng, figure, noise):
    data, at, flux = dipoles(rng, 2000)
    hidden = rng.random(data.shape) < 0.05
    variance = None if noise == "unknown" else 1.0
    got = skydelta.fit(data, model="dipole", background="plane", psf=PSF, variance=variance, mask=hidden)
    truth = {"flux_pos": flux[:, 0], "flux_neg": -flux[:, 1], "x_pos": at[:, 0, 0], "y_neg": at[:, 1, 1]}
    truth |= dict(zip(NAMES, (5.0, *SLOPES), strict=True))
    for name, want in truth.items():
        pull = (got[name] - want) / got[f"{name}_err"]
        figure(f"dipoles on a plane, noise {noise}: std of the pull of {name}", pull.std(), (0.95, 1.05))
        figure(f"dipoles on a plane, noise {noise}: |mean| of the pull of {name}", abs(pull.mean()), 0.12)
    assert (got["dof"] == 441 - 9 - hidden.sum(axis=(1, 2))).all()
    figure(f"dipoles on a plane, noise {noise}: chi2 over dof", (got["chi2"] / got["dof"]).mean(), (0.99, 1.01))


def test_a_constant_on_a_plane_is_wrong_and_says_so(rng):
    """The tilt makes a dipole of a constant's residuals; the plane wins by its BIC, and loses without a tilt."""
    for slopes, wins in ((SLOPES, True), ((0, 0), False)):
        data, _, _ = dipoles(rng, 100, slopes=slopes)
        bic = [skydelta.fit(data, model="dipole", background=b, psf=PSF, variance=1.0)["bic"] for b in KINDS]
        assert ((bic[2] < bic[1]).mean() > 0.95) == wins
        assert (bic[1] < bic[0]).all()


@pytest.mark.parametrize("side", [7, 20, 63])
@pytest.mark.parametrize("model", ["point", "dipole"])
def test_curve_fit_finds_the_same(rng, model, side):
    """Every parameter and its error, of sources on a plane."""
    psf, one = gaussian(65, 0, 0), model == "point"
    data, at, flux = dipoles(rng, 4, side, (30, 60))
    sigma = rng.uniform(0.5, 2, data.shape)
    if one:
        data = data - np.array([
            f[1] * gaussian(side, *(q[1] - side // 2)) for f, q in zip(flux, at, strict=True)
        ])  # fmt: skip
    start = at[:, 0] if one else at
    got = skydelta.fit(data, model=model, background="plane", psf=psf, variance=sigma**2, start=start)
    o = np.arange(side) - side // 2

    def function(_, *v):
        light = v[0] * gaussian(side, v[1] - side // 2, v[2] - side // 2)
        if not one:
            light = light - v[3] * gaussian(side, v[4] - side // 2, v[5] - side // 2)
        return (light + v[-3] + v[-2] * o + v[-1] * o[:, None]).ravel()

    names = ("flux", "x", "y") if one else ("flux_pos", "x_pos", "y_pos", "flux_neg", "x_neg", "y_neg")
    for k, row in enumerate(got):
        first = [flux[k, 0], *at[k, 0], *(() if one else (-flux[k, 1], *at[k, 1])), 5, *SLOPES]
        best, covariance = curve_fit(function, 0, data[k].ravel(), first, sigma[k].ravel(), absolute_sigma=True)
        error = np.sqrt(np.diag(covariance))
        found = np.array([row[n] for n in (*names, *NAMES)])
        errors = np.array([row[f"{n}_err"] for n in (*names, *NAMES)])
        # the spline through the PSF's pixels is not exactly the Gaussian
        np.testing.assert_allclose(errors, error, rtol=0.08)
        assert np.abs((found - best) / error).max() < 0.5
        assert row["dof"] == side**2 - len(best)


def test_without_a_background_nothing_is_taken_away(rng):
    """The mean of the stamp is light of the source then: that of a wide one on a small stamp above all."""
    wide = gaussian(45, 0, 0, 4.0)
    data = 1e4 * gaussian(11, 0.3, -0.2, 4.0)[None] + rng.normal(0, 1, (200, 11, 11))
    got = skydelta.fit(data, background="none", psf=wide, variance=1.0)
    assert not got["background"].any()
    assert not got["background_err"].any()
    assert (got["dof"] == 121 - 3).all()
    pull = (got["flux"] - 1e4) / got["flux_err"]
    assert pull.std() == pytest.approx(1, abs=0.15)
    assert abs(pull.mean()) < 0.25
    free = skydelta.fit(data, psf=wide, variance=1.0)
    assert (free["flux_err"] > 2.5 * got["flux_err"]).all()


@pytest.mark.parametrize("model", ["point", "dipole"])
@pytest.mark.parametrize("background", KINDS)
def test_columns_residuals_units_and_batches(rng, model, background):
    data, at, _ = dipoles(rng, 40, 20)
    options = {"model": model, "background": background, "psf": PSF, "start": at[:, 0] if model == "point" else at}
    got = skydelta.fit(data * u.nJy, variance=np.ones((20, 20)) * u.nJy**2, residuals=True, **options)
    assert [n for n in got.colnames if n in NAMES] == list(NAMES if background == "plane" else NAMES[:1])
    assert all(got[n].unit == got[f"{n}_err"].unit == u.nJy for n in got.colnames if n in NAMES)
    chi2 = (got["residual"].value ** 2).sum(axis=(1, 2))
    some = np.isfinite(got["chi2"]) & np.isfinite(chi2)
    np.testing.assert_allclose(chi2[some], got["chi2"][some], rtol=1e-4)
    assert some.mean() > 0.7
    order = rng.permutation(40)
    options["start"] = options["start"][order]
    again = skydelta.fit(data[order], variance=1.0, **options)
    for name in again.colnames:
        np.testing.assert_array_equal(np.asarray(again[name]), np.asarray(got[name])[order], err_msg=name)


def test_forced_and_joint_fits_on_planes(rng, figure):
    data, at, flux = dipoles(rng, 500)
    forced = skydelta.fit(data, model="dipole", background="plane", psf=PSF, variance=1.0, start=at, forced=True)
    assert (forced["dof"] == 441 - 5).all()
    o = np.arange(21) - 10
    planes = [
        np.array([abs(f[k]) * gaussian(21, *(q[k] - 10)) for f, q in zip(flux, at, strict=True)]) for k in range(2)
    ]
    science = planes[0] + rng.normal(3, 1, data.shape) + 0.3 * o
    template = planes[1] + rng.normal(1, 0.7, data.shape) + 0.1 * o + 0.2 * o[:, None]
    joint = skydelta.fit(
        science, model="dipole", background="plane", psf=PSF, variance=1.0, template=template, template_variance=0.49
    )
    assert (joint["dof"] == 2 * (441 - 6)).all()
    for table, want in ((forced, (5, *SLOPES)), (joint, (2, 0.2, -0.2))):
        for name, truth in (*zip(NAMES, want, strict=True), ("flux_pos", flux[:, 0]), ("flux_neg", -flux[:, 1])):
            kind = "forced" if table is forced else "joint"
            pull = (table[name] - truth) / table[f"{name}_err"]
            figure(f"{kind} dipoles on planes, pull of {name}: std", pull.std(), (0.9, 1.1))
            figure(f"{kind} dipoles on planes, pull of {name}: |mean|", abs(pull.mean()), 0.15)


def test_merged_lobes_have_the_plane_of_the_linear_model(rng):
    close = np.array([[0.05, 0.0], [-0.05, 0.0]])
    light = sum(f * gaussian(21, *q) for f, q in zip(flux_of(np.array([100, -100])), close, strict=True))
    o = np.arange(21) - 10
    data = light + rng.normal(5, 1, (60, 21, 21)) + 0.4 * o - 0.25 * o[:, None]
    got = skydelta.fit(data, model="dipole", background="plane", psf=PSF, variance=1.0)
    merged = np.isnan(got["flux_pos"]) & np.isfinite(got["chi2"])
    assert (got.has("DEGENERATE")).mean() > 0.9
    for name, want in zip(NAMES, (5, *SLOPES), strict=True):
        pull = ((got[name] - want) / got[f"{name}_err"])[merged]
        assert not merged.any() or np.abs(pull).max() < 5


def test_the_stage_on_a_sky_that_slopes(rng, figure):
    """Sources of both signs on a sky with a tilt: the plane takes it away, its columns are there with units."""
    shape = (500, 500)
    x, y = lattice(rng, shape)
    flux = flux_of(np.exp(rng.uniform(np.log(20), np.log(100), len(x)))) * rng.choice([-1, 1], len(x))
    flat = exposure(draw(rng.normal(0, 1, shape), x, y, flux), unit=u.nJy)
    found = Detect()(flat, device="cpu")
    i, j = np.arange(500) - 250, np.arange(500)[:, None] - 250
    image = flat.with_(image=(np.asarray(flat.image) + 0.3 * i - 0.2 * j).astype(np.float32))
    out = Fit(background="plane")(image=image, catalog=found, device="cpu")
    usual = Fit()(image=flat, catalog=found, device="cpu").colnames
    extra = [f"{n}{e}" for n in NAMES for e in ("", "_err")][1:]
    at = usual.index("background") + 1
    assert out.colnames == usual[:at] + extra + usual[at:]
    assert {str(out[n].unit) for n in ("background", *extra)} == {"nJy"}
    row, distance = nearest(out, x, y)
    own, truth = out[row[distance < 1.5]], flux[distance < 1.5]
    assert (own["model"] == "psf").mean() > 0.98
    assert (own["dof"] == own["dof"].max()).mean() > 0.9
    for name, want in (("flux", truth), ("background_x", 0.3), ("background_y", -0.2)):
        pull = (own[name].value - want) / own[f"{name}_err"].value
        figure(f"fit stage on a sloping sky, pull of {name}: std", pull.std(), (0.9, 1.1))
        figure(f"fit stage on a sloping sky, pull of {name}: |mean|", abs(pull.mean()), 0.2)


def test_an_unknown_background_is_refused():
    with pytest.raises(ConfigError, match="background 'sky'; allowed: none, constant, plane"):
        skydelta.fit(np.zeros((1, 21, 21)), background="sky", psf=PSF)
    with pytest.raises(ConfigError, match="background"):
        Fit(background="sky")
