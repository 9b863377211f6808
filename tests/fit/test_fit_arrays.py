# SPDX-License-Identifier: BSD-3-Clause
"""`skydelta.fit` on plain arrays: truth, scipy, sizes, units, masks, honest status, and independence of the batch."""

import json
import warnings

import numpy as np
import pytest
import support_standin
from astropy import units as u
from scipy.optimize import curve_fit
from support_sources import SIGMA, exposure, fisher_error, flux_of, gaussian

import skydelta
import skydelta.io.catalog
import skydelta.kernels.backend
from skydelta.errors import ConfigError, InputError
from skydelta.kernels.fit import fit_lobes, spline_coefficients
from skydelta.stages.detect import Detect
from skydelta.stages.fit import BATCH, Fit
from skydelta.stages.stampfit import FitResult
from skydelta.stages.stamptable import COLUMNS, COMMON

PSF = gaussian(31, 0, 0)


def stamps(rng, at, flux, side=21, noise=1.0):
    """Stamps (n, side, side) with sources at ``at`` (n, k, 2), 0-based, of these fluxes (n, k)."""
    model = [
        sum(f * gaussian(side, *(q - side // 2)) for f, q in zip(fs, qs, strict=True))
        for fs, qs in zip(flux, at, strict=True)
    ]
    return np.array(model) + rng.normal(0, 1, (len(at), side, side)) * noise


def points(rng, n, low, high, side=21):
    at = (side - 1) / 2 + rng.uniform(-0.7, 0.7, (n, 1, 2))
    return at, flux_of(np.exp(rng.uniform(np.log(low), np.log(high), n)))[:, None]


def dipoles(rng, n, snr=(20, 200), separations=(1, 3), side=21):
    """Lobes (n, 2, 2) and signed fluxes (n, 2), the S/N of each lobe log-uniform."""
    separation, angle = rng.uniform(*separations, n) * SIGMA, rng.uniform(0, 2 * np.pi, n)
    half = 0.5 * separation[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    middle = (side - 1) / 2 + rng.uniform(-0.5, 0.5, (n, 2))
    flux = flux_of(np.exp(rng.uniform(*np.log(snr), (n, 2)))) * np.array([1, -1])
    return np.stack([middle + half, middle - half], 1), flux


def same(one, two):
    assert one.colnames == two.colnames
    for name in one.colnames:
        np.testing.assert_array_equal(np.asarray(one[name]), np.asarray(two[name]), err_msg=name)


# against truth


@pytest.mark.parametrize("noise", ["given", "tenfold", "unknown"])
def test_pulls_of_forced_fluxes(rng, figure, noise):
    at, flux = points(rng, 2000, 5, 200)
    sigma = np.geomspace(0.3, 3, 21)[:, None] * np.ones(21) if noise == "tenfold" else 1.0
    data = stamps(rng, at, flux, noise=sigma) + 40.0
    variance = None if noise == "unknown" else sigma**2
    got = skydelta.fit(data, psf=PSF, variance=variance, start=at[:, 0], forced=True)
    pull = (got["flux"] - flux[:, 0]) / got["flux_err"]
    figure(f"forced flux, S/N 5 to 200, noise {noise}: std of the pull", pull.std(), (0.95, 1.05))
    figure(f"forced flux, S/N 5 to 200, noise {noise}: |mean| of the pull", abs(pull.mean()), 0.07)
    assert (got["status"] == "converged").all()
    np.testing.assert_array_equal(got["x"], at[:, 0, 0])
    assert not got["x_err"].any()
    assert (got["dof"] == 439).all()


@pytest.mark.parametrize("noise", ["given", "unknown"])
def test_pulls_of_free_fluxes_and_positions(rng, figure, noise):
    """The flux at the best of all positions is high by sigma / (S/N): 0.02 to 0.1 sigma here."""
    at, flux = points(rng, 2000, 10, 200)
    data = stamps(rng, at, flux) - 7.0
    got = skydelta.fit(data, psf=PSF, variance=1.0 if noise == "given" else None)
    for name, want in (("flux", flux[:, 0]), ("x", at[:, 0, 0]), ("y", at[:, 0, 1])):
        pull = (got[name] - want) / got[f"{name}_err"]
        figure(f"free {name}, S/N 10 to 200, noise {noise}: std of the pull", pull.std(), (0.95, 1.05))
        figure(
            f"free {name}, S/N 10 to 200, noise {noise}: |mean| of the pull",
            abs(pull.mean()),
            0.12 if name == "flux" else 0.07,
        )
    assert (got["status"] == "converged").all()


def test_dipoles_from_the_middle_of_the_stamp(rng, figure):
    """No start is given; a fit from the truth finds no better minimum."""
    at, flux = dipoles(rng, 2000)
    data = stamps(rng, at, flux)
    got = skydelta.fit(data, model="dipole", psf=PSF, variance=1.0)
    off = [np.hypot(got[f"x_{p}"] - at[:, k, 0], got[f"y_{p}"] - at[:, k, 1]) for k, p in enumerate(("pos", "neg"))]
    figure("array dipoles with both lobes within 0.5 px, S/N 20 to 200", (np.max(off, axis=0) < 0.5).mean(), (0.97, 1))
    helped = skydelta.fit(data, model="dipole", psf=PSF, variance=1.0, start=at)
    figure("array dipoles with a better minimum at the truth", (got["chi2"] > helped["chi2"] + 1e-3).mean(), 0.005)
    good = got["status"] == "converged"
    moment = 2 * flux[:, :1] * flux[:, 1:] / (flux[:, 1:] - flux[:, :1]) * (at[:, 0] - at[:, 1])
    step = at[:, 0] - at[:, 1]
    truths = {
        "flux_pos": flux[:, 0],
        "flux_neg": -flux[:, 1],
        "x_pos": at[:, 0, 0],
        "y_neg": at[:, 1, 1],
        "separation": np.hypot(*step.T),
        "angle": np.degrees(np.arctan2(step[:, 1], step[:, 0])),
        "moment_x": moment[:, 0],
        "moment_y": moment[:, 1],
    }
    for name, want in truths.items():
        off = (got[name] - want)[good]
        pull = ((off + 180) % 360 - 180 if name == "angle" else off) / got[f"{name}_err"][good]
        figure(f"array dipoles, pull of {name}: robust std", 1.4826 * np.median(np.abs(pull)), (0.88, 1.12))


@pytest.mark.parametrize("separations", [(0.3, 1.5), (1, 3), (3, 6)])
def test_no_start_has_a_better_minimum_than_the_first_that_will_do(rng, separations):
    """Where lobes are determined fits are not begun again: one kernel call from each other start, and the truth."""
    at, flux = dipoles(rng, 400, (8, 200), separations)
    data = stamps(rng, at, flux).astype(np.float32)
    got = skydelta.fit(data, model="dipole", psf=PSF, variance=1.0)
    firm = (got["status"] == "converged") & (got["dof"] > 0)
    assert firm.mean() > 0.2
    psf = np.repeat(spline_coefficients(PSF[None]), len(data), 0)
    step = at[:, 0] - at[:, 1]
    step /= np.hypot(*step.T)[:, None]
    for start in (at - 10, *(0.5 * s * SIGMA * np.stack([step, -step], 1) for s in (0.7, 1.5, 3.0, 5.0))):
        other = fit_lobes(data, np.ones_like(data), psf, start)
        better = other.usable & (other.chi2 < got["chi2"] - 1e-3)
        assert not (better & firm).any()


def test_degenerate_means_undetermined_lobes(rng, figure):
    at, flux = dipoles(rng, 1000, (20, 200), (0.2, 2.5))
    got = skydelta.fit(stamps(rng, at, flux), model="dipole", psf=PSF, variance=1.0)
    lobe = np.array([fisher_error(a, f) for a, f in zip(at, flux * [1, -1], strict=True)])
    flagged = got.has("DEGENERATE")
    figure("array dipoles with lobe error above 0.5 px flagged", flagged[lobe > 0.5].mean(), (0.95, 1))
    figure("array dipoles with lobe error below 0.15 px flagged", flagged[lobe < 0.15].mean(), 0.01)
    assert min((lobe > 0.5).sum(), (lobe < 0.15).sum()) > 150
    assert (got["status"][flagged] != "converged").all()
    # of lobes of unlike flux the linear model cannot tell a moment from a source beside the middle
    like = flagged & (np.abs(np.log(-flux[:, 0] / flux[:, 1])) < np.log(1.5))
    step = at[:, 0] - at[:, 1]
    length = np.hypot(*step.T)
    along = (step[:, 0] * got["moment_x"] + step[:, 1] * got["moment_y"]) / length
    ratio = along / (np.sqrt(-flux[:, 0] * flux[:, 1]) * length)
    figure("degenerate array dipoles, moment over the true one, median", np.median(ratio[like]), (0.9, 1.05))
    error = np.hypot(step[:, 0] * got["moment_x_err"], step[:, 1] * got["moment_y_err"]) / length
    pull = (along / ratio * (ratio - 1) / error)[like]
    figure("degenerate array dipoles, pull of the moment: robust std", 1.4826 * np.median(np.abs(pull)), (0.85, 1.8))


def test_rubin_dipoles_against_their_published_moment(shared_data, figure):
    """The four sources that the survey calls dipoles: |M| against its length times mean flux (their fit, not truth)."""
    with np.load(shared_data / "stamps" / "rubin_triplets.npz", allow_pickle=False) as archive:
        image, variance, psf = (archive[n][:, 2] for n in ("stamps", "uncertainty", "psf"))
        meta = json.loads(str(archive["meta"]))
    rows = [k for k, m in enumerate(meta) if m["isDipole"]]
    assert len(rows) == 4
    kernel = psf[rows, 4:45, 4:45]  # the rest is padding, NaN
    kernel = kernel / np.nansum(kernel, axis=(1, 2), keepdims=True)
    got = skydelta.fit(image[rows] * u.nJy, model="dipole", psf=kernel, variance=variance[rows] * u.nJy**2)
    assert got["moment_x"].unit == u.nJy
    theirs = np.array([meta[k]["dipoleLength"] / 0.2 * meta[k]["dipoleMeanFlux"] for k in rows])
    ratio = np.hypot(got["moment_x"], got["moment_y"]).value / theirs
    figure("Rubin dipoles through the array fit: moment within 35 % of the survey's, of 4",
           (np.abs(np.log(ratio)) < np.log(1.35)).sum(), (3, 4))  # fmt: skip


def test_scipy_finds_the_same_minimum(rng):
    at, flux = dipoles(rng, 12, (40, 100), (2, 3))
    sigma = rng.uniform(0.5, 2, (12, 21, 21))
    data = stamps(rng, at, flux, noise=sigma)
    got = skydelta.fit(data, model="dipole", psf=PSF, variance=sigma**2)

    def model(_, f1, x1, y1, f2, x2, y2, b):
        return (f1 * gaussian(21, x1 - 10, y1 - 10) - f2 * gaussian(21, x2 - 10, y2 - 10) + b).ravel()

    names = ("flux_pos", "x_pos", "y_pos", "flux_neg", "x_neg", "y_neg")
    for k, row in enumerate(got):
        truth = [flux[k, 0], *at[k, 0], -flux[k, 1], *at[k, 1], 0]
        best, covariance = curve_fit(model, 0, data[k].ravel(), truth, sigma[k].ravel(), absolute_sigma=True)
        # the spline through the PSF's pixels is not exactly the Gaussian
        np.testing.assert_allclose([row[n] for n in names], best[:6], rtol=5e-3, atol=0.01)
        np.testing.assert_allclose([row[f"{n}_err"] for n in names], np.sqrt(np.diag(covariance))[:6], rtol=0.02)
        assert row["chi2"] == pytest.approx(
            (((model(0, *best) - data[k].ravel()) / sigma[k].ravel()) ** 2).sum(), rel=4e-3
        )


# what goes in


@pytest.mark.parametrize("side", [7, 8, 20, 33, 62, 63])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_size_and_type(rng, side, dtype):
    at = (side - 1) / 2 + rng.uniform(-1, 1, (20, 1, 2))
    data = stamps(rng, at, np.full((20, 1), 5e4), side).astype(dtype)
    got = skydelta.fit(data, psf=PSF, variance=1)
    np.testing.assert_allclose(np.c_[got["x"], got["y"]], at[:, 0], atol=2e-3)
    np.testing.assert_allclose(got["flux"], 5e4, rtol=3e-3)
    assert (got["dof"] == side**2 - 4).all()


def test_whole_numbers_and_one_stamp(rng):
    data = np.rint(stamps(rng, np.array([[[9.4, 10.7]]]), np.array([[9e4]])) + 1000)
    want = skydelta.fit(data, psf=PSF, variance=1.0)
    same(skydelta.fit(data[0].astype(np.uint16), psf=PSF[None], variance=np.ones((21, 21))), want)
    assert want["x"][0] == pytest.approx(9.4, abs=2e-3)
    assert want["y"][0] == pytest.approx(10.7, abs=2e-3)
    assert want["background"][0] == pytest.approx(1000, abs=1)


@pytest.mark.parametrize("model", ["point", "dipole"])
def test_scale_and_pedestal_change_nothing(rng, model):
    at, flux = dipoles(rng, 60, (40, 200), (2, 3)) if model == "dipole" else points(rng, 60, 20, 200)
    data = stamps(rng, at, flux)
    want = skydelta.fit(data, model=model, psf=PSF, variance=1.0)
    for scale, pedestal in ((1e-30, 0.0), (1e12, 0.0), (1.0, 1e6)):
        got = skydelta.fit(data * scale + pedestal, model=model, psf=PSF, variance=scale**2)
        for name in COLUMNS[model]:
            by = scale if name.startswith(("flux", "moment")) else 1.0
            error = np.asarray(want[f"{name}_err"])
            np.testing.assert_allclose(got[name] / by, want[name], atol=2e-3 * error.max(), rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(got["bic"], want["bic"], rtol=1e-4)


@pytest.mark.parametrize("model", list(COLUMNS))
def test_no_unit_is_too_large_or_too_small(rng, model):
    """Without a variance too; powers of two round nothing, so that every bit is the same."""
    data = stamps(rng, *(points(rng, 20, 20, 200) if model == "point" else dipoles(rng, 20, (40, 200), (2, 3))))
    data[0] = 5.0
    data[1, ::2] = 0.0  # more than half the pixels of one value
    psf = None if model == "gaussian_dipole" else PSF
    for variance in (None, 1.0):
        want = skydelta.fit(data, model=model, psf=psf, variance=variance)
        for power in (-180, -100, 40, 120, 170):
            by, size = 2.0**power, variance and 4.0**power
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                got = skydelta.fit(data * by, model=model, psf=psf, variance=size)
            for name in (*COLUMNS[model], "n_eval", "status", "flags"):
                linear = name.startswith(("flux", "moment"))
                np.testing.assert_array_equal(np.asarray(got[name]), want[name] * by if linear else want[name], name)


def test_pixels_that_float32_cannot_hold_do_not_count(rng):
    """As those that are no numbers: nobody can have measured 1e18 times the noise."""
    data = stamps(rng, *points(rng, 20, 50, 200))
    spoiled = np.zeros(data.shape, bool)
    spoiled[:10, 3, 4:7] = True
    want = skydelta.fit(np.where(spoiled, np.nan, data), psf=PSF, variance=1.0)
    for value in (1e19, -1e30, 1e39, 1e200):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = skydelta.fit(np.where(spoiled, value, data), psf=PSF, variance=1.0, residuals=True)
            same(got[want.colnames], want)
            assert (np.isnan(got["residual"]) == spoiled).all()
            assert skydelta.fit(np.full((1, 21, 21), value), psf=PSF, variance=1.0)["status"] == "no data"


def test_units_only_where_the_input_had_them(rng):
    at, flux = points(rng, 5, 50, 100)
    data = stamps(rng, at, flux)
    plain = skydelta.fit(data, psf=PSF, variance=4.0, residuals=True)
    assert all(getattr(plain[n], "unit", None) is None for n in plain.colnames)
    with_unit = skydelta.fit(data * u.uJy, psf=PSF, variance=4e6 * u.nJy**2, residuals=True)
    assert {str(with_unit[n].unit) for n in ("flux", "flux_err", "background", "residual")} == {"uJy"}
    assert all(getattr(with_unit[n], "unit", None) is None for n in ("x", "y_err", "chi2", "status"))
    np.testing.assert_allclose(with_unit["flux"].value, plain["flux"], rtol=1e-12)
    assert skydelta.fit(data * u.adu, psf=PSF)["chi2"].unit == u.adu**2
    with pytest.raises(InputError, match="variance is in nJy, which is no uJy2"):
        skydelta.fit(data * u.uJy, psf=PSF, variance=4 * u.nJy)
    with pytest.raises(InputError, match="the stamps have no unit"):
        skydelta.fit(data, psf=PSF, variance=4 * u.nJy)


def test_masked_pixels_do_not_count(rng):
    at, flux = points(rng, 40, 50, 200)
    data, hidden = stamps(rng, at, flux), rng.random((40, 21, 21)) < 0.2
    want = skydelta.fit(data, psf=PSF, variance=1.0, mask=hidden)
    assert (want["dof"] == 441 - 4 - hidden.sum(axis=(1, 2))).all()
    spoiled = np.where(hidden, 1e9, data)
    same(skydelta.fit(spoiled, psf=PSF, variance=1.0, mask=hidden), want)
    same(skydelta.fit(np.where(hidden, np.nan, data), psf=PSF, variance=1.0), want)
    same(skydelta.fit(np.ma.array(spoiled, mask=hidden), psf=PSF, variance=1.0), want)
    same(skydelta.fit(spoiled, psf=PSF, variance=np.where(hidden, np.nan, 1.0)), want)
    same(skydelta.fit(spoiled, psf=PSF, variance=np.where(hidden, 0, 1.0)), want)
    one = skydelta.fit(spoiled[:1], psf=PSF, variance=1.0, mask=hidden[0])
    same(one, want[:1])


def test_a_source_away_from_the_middle_is_searched_for(rng):
    at = np.array([[[3.2, 16.1]], [[16.8, 10.2]], [[10.0, 10.0]]])
    got = skydelta.fit(stamps(rng, at, flux_of(np.full((3, 1), 40.0))), psf=PSF, variance=1.0)
    np.testing.assert_allclose(np.c_[got["x"], got["y"]], at[:, 0], atol=0.3)
    assert (got["status"] == "converged").all()


# what comes out


def test_columns_are_those_of_the_model(rng):
    for model, count in (("point", 1), ("dipole", 2)):
        for data in (rng.normal(0, 1, (3, 21, 21)), np.zeros((0, 21, 21))):
            got = skydelta.fit(data, model=model, psf=PSF, variance=1.0)
            assert isinstance(got, FitResult)
            assert got.colnames == [c for n in COLUMNS[model] for c in (n, f"{n}_err")] + list(COMMON)
            assert len(got) == len(data)
            assert got["n_eval"].dtype.kind == got["dof"].dtype.kind == got["flags"].dtype.kind == "i"
        assert len(COLUMNS[model]) == (3, 10)[count - 1]


@pytest.mark.parametrize("side", [20, 21])
@pytest.mark.parametrize("model", ["point", "dipole"])
def test_residuals_are_the_stamps_less_the_model(rng, model, side):
    at, flux = dipoles(rng, 50, side=side) if model == "dipole" else points(rng, 50, 20, 200, side)
    data = 3 * stamps(rng, at, flux, side) + 500
    hidden = rng.random(data.shape) < 0.1
    got = skydelta.fit(data, model=model, psf=PSF, variance=9.0, mask=hidden, residuals=True)
    assert np.array_equal(np.isnan(got["residual"]), hidden)
    used = got["residual"][~hidden]
    assert used.std() == pytest.approx(3, rel=0.02)
    np.testing.assert_allclose(np.nansum(got["residual"] ** 2, axis=(1, 2)) / 9, got["chi2"], rtol=1e-4)
    assert "residual" not in skydelta.fit(data, model=model, psf=PSF).colnames


@pytest.mark.parametrize("model", ["point", "dipole"])
def test_order_and_size_of_the_batch_change_nothing(rng, model):
    n = 60
    at, flux = dipoles(rng, n) if model == "dipole" else points(rng, n, 10, 200)
    data, variance = stamps(rng, at, flux), rng.uniform(0.5, 2, (n, 21, 21))
    psf = np.array([gaussian(25, 0, 0, s) for s in rng.uniform(1.4, 1.8, n)])

    def fitted(rows):
        return skydelta.fit(data[rows], model=model, psf=psf[rows], variance=variance[rows])

    whole, order = fitted(np.arange(n)), rng.permutation(n)
    same(fitted(order), whole[order])
    same(fitted(np.arange(7)), whole[:7])
    many = np.arange(BATCH + n) % n
    same(fitted(many), whole[many])
    data[3], variance[5] = np.nan, 0  # two that cannot be fitted spoil none
    rest = np.setdiff1d(np.arange(n), [3, 5])
    broken = fitted(np.arange(n))
    same(broken[rest], whole[rest])
    assert list(broken["status"][[3, 5]]) == ["no data", "no data"]
    assert np.isnan(broken["chi2"][3])


def test_status_is_honest(rng):
    at, flux = points(rng, 6, 100, 200)
    data = stamps(rng, at, flux)
    mask = np.zeros(data.shape, bool)
    data[0] = np.nan
    mask[1, :, :19] = True  # nothing is left of the source: where it is cannot be told
    data[2] = stamps(rng, np.array([[[24.0, 10.0]]]), np.array([[1e5]]))[0]  # beyond the border
    got = skydelta.fit(data, psf=PSF, variance=1.0, mask=mask)
    assert got["status"][0] == "no data"
    assert got.has("NO_FIT")[0]
    assert np.isnan(got["flux"][0])
    assert got["status"][1] != "converged" or got["flux_err"][1] > 50 * got["flux_err"][3]
    assert list(got["status"][3:]) == ["converged"] * 3
    wide = gaussian(45, 0, 0, 5.0)
    stuck = skydelta.fit(
        1e5 * gaussian(33, 6.5, 0, 5.0) + rng.normal(0, 1, (33, 33)), psf=wide, variance=1.0, start=(16, 16)
    )
    assert stuck["status"][0] == "at bound"
    assert stuck.has("AT_BOUND")[0]
    close = np.array([[[10.1, 10.0], [9.9, 10.0]]])
    tight = skydelta.fit(stamps(rng, close, flux_of(np.array([[100, -90.0]]))), model="dipole", psf=PSF, variance=1.0)
    assert tight["status"][0] in ("degenerate", "singular", "max iterations")
    assert tight.has("DEGENERATE")[0]
    nothing = skydelta.fit(np.zeros((1, 21, 21)), psf=PSF, variance=1.0)
    assert nothing["status"][0] == "singular"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for level in (0.0, 7.0):  # nothing scatters, and no variance says what the errors are
            for model in ("point", "dipole"):
                flat = skydelta.fit(np.full((2, 21, 21), level), model=model, psf=PSF)
                assert list(flat["status"]) == ["singular"] * 2
                assert flat.has("NO_FIT").all()
                assert all(np.isnan(flat[n]).all() for n in flat.colnames if n.endswith("_err") or n == "chi2")
    forced = skydelta.fit(np.zeros((1, 21, 21)), psf=PSF, variance=1.0, start=(10, 10), forced=True)
    assert forced["status"][0] == "converged"
    assert forced["flux_err"][0] == pytest.approx(flux_of(1), rel=0.05)  # the background is free


def test_forced_dipoles_are_linear_least_squares(rng):
    at, flux = dipoles(rng, 30)
    data = stamps(rng, at, flux)
    got = skydelta.fit(data, model="dipole", psf=PSF, variance=1.0, start=at, forced=True)
    for k in range(30):
        columns = [gaussian(21, *(q - 10)).ravel() for q in at[k]] + [np.ones(441)]
        a = np.array(columns).T * [1, -1, 1]
        best = np.linalg.lstsq(a, data[k].ravel(), rcond=None)[0]
        error = np.sqrt(np.diag(np.linalg.inv(a.T @ a)))
        for j, name in enumerate(("flux_pos", "flux_neg")):
            assert got[f"{name}_err"][k] == pytest.approx(error[j], rel=0.02)
            assert got[name][k] == pytest.approx(best[j], abs=0.1 * error[j], rel=2e-3)
    assert not got["separation_err"].any()


def test_arrays_on_a_device_stay_there(monkeypatch, rng):
    at, flux = dipoles(rng, 20, side=20)
    data = stamps(rng, at, flux, 20)
    want = {m: skydelta.fit(data, model=m, psf=PSF, variance=np.ones((20, 20))) for m in COLUMNS}
    support_standin.install(monkeypatch)
    device = skydelta.kernels.backend.resolve("cuda")
    for model in COLUMNS:
        there = skydelta.fit(device.asarray(data), model=model, psf=PSF, variance=device.asarray(np.ones((20, 20))))
        for name in COLUMNS[model]:
            here, error = np.asarray(want[model][name]), np.asarray(want[model][f"{name}_err"])
            absent = np.isnan(here)  # what the best model does not have
            np.testing.assert_array_equal(np.isnan(there[name]), absent, err_msg=name)
            off = np.abs(np.asarray(there[name]) - here)[~absent]
            np.testing.assert_array_less(off / error[~absent], 1e-3, err_msg=name)


# both uses of the name, and what is refused


def test_an_exposure_and_its_catalogue_are_the_stage(rng):
    image = rng.normal(0, 1, (80, 80))
    image[20:51, 25:56] += flux_of(50) * gaussian(31, 0.2, 0.3)
    image = exposure(image)
    found = Detect()(image, device="cpu")
    want = Fit()(image=image, catalog=found, device="cpu")
    same(skydelta.fit(image, found), want)
    same(skydelta.fit(image=image, catalog=found, device="cpu"), want)
    assert len(want) >= 1


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"stamps": np.zeros((2, 5, 5))}, InputError, r"\(2, 5, 5\); \(n, k, k\) with k from 7 to 63"),
        ({"stamps": np.zeros((2, 65, 65))}, InputError, r"\(2, 65, 65\)"),
        ({"stamps": np.zeros((2, 9, 11))}, InputError, r"\(2, 9, 11\)"),
        ({"stamps": np.zeros(9)}, InputError, r"\(9,\)"),
        ({"stamps": np.array([["a"]])}, InputError, "holds <U1"),
        ({"psf": None}, ConfigError, "need a psf"),
        ({"psf": PSF[:, 1:]}, InputError, r"psf has shape \(31, 30\)"),
        ({"psf": PSF[1:, 1:]}, InputError, "odd p"),
        ({"psf": np.zeros((2, 9, 9))}, InputError, "psf 0 has the sum 0"),
        ({"psf": np.stack([PSF] * 3)}, InputError, r"psf has shape \(3, 31, 31\)"),
        ({"psf": exposure(np.zeros((9, 9))).psf}, ConfigError, r"psf.render\(x, y\)"),
        ({"variance": np.ones(2)}, InputError, r"variance has shape \(2,\)"),
        ({"variance": 0}, InputError, "variance is 0; a number above 0 is needed"),
        ({"variance": np.nan}, InputError, "variance is nan"),
        ({"variance": np.inf}, InputError, "variance is inf"),
        ({"stamps": np.zeros((2, 9, 9)) * u.mag}, InputError, "stamps: unit is mag: logarithms"),
        ({"stamps": u.Magnitude(np.zeros((2, 9, 9)))}, InputError, "logarithms"),
        ({"psf": PSF * u.adu}, InputError, "psf is in adu; a PSF has no unit"),
        ({"psf": PSF * np.nan}, InputError, "psf 0 has no finite pixel"),
        ({"mask": np.ones((2, 3))}, InputError, r"mask has shape \(2, 3\)"),
        ({"model": "streak"}, ConfigError, "'streak'; allowed: point, dipole"),
        ({"forced": True}, ConfigError, "needs the positions"),
        ({"start": np.zeros((5, 2))}, InputError, r"start has shape \(5, 2\)"),
        ({"start": [np.nan, 3]}, InputError, "1 numbers that are not finite"),
        ({"model": "dipole", "start": [3, 3], "forced": True}, ConfigError, "both lobes"),
        ({"catalog": skydelta.io.catalog.Catalog()}, ConfigError, "needs an Exposure"),
        ({"stamps": exposure(np.zeros((9, 9)))}, ConfigError, "psf belong to stamps"),
        ({"stamps": exposure(np.zeros((9, 9))), "psf": None, "model": "best"}, ConfigError, "model belong"),
        ({"stamps": exposure(np.zeros((9, 9))), "psf": None, "template_psf": PSF}, ConfigError, "template_psf belong"),
    ],
)
def test_what_cannot_be_is_said(arguments, error, words):
    with pytest.raises(error, match=words):
        skydelta.fit(**{"stamps": np.zeros((2, 21, 21)), "psf": PSF, **arguments})
