# SPDX-License-Identifier: BSD-3-Clause
"""The batched fit: gradients, pulls, covariance, recovery of dipoles, and stamps that go wrong."""

import json

import numba
import numpy as np
import pytest
import support_host_cuda
from cases import fit_lobes as case
from scipy.ndimage import map_coordinates
from support_sources import SIGMA, flux_of, gaussian

from skydelta.kernels.cpu.fit import _fit_all, _subtract_all
from skydelta.kernels.cpu.shifted import _lines, _padded, _row
from skydelta.kernels.fit import FIT, LobeFit, Status, fit_lobes, spline_coefficients, subtract_lobes

SIDE = 21
PSF = spline_coefficients(gaussian(31, 0, 0)[None])


def stamps(rng, at, flux, noise=1.0, background=0.0):
    """Stamps with lobes at (n, k, 2) px from the middle, of these fluxes (n, k), and their weights."""
    model = [sum(f * gaussian(SIDE, *q) for f, q in zip(fs, qs, strict=True)) for fs, qs in zip(flux, at, strict=True)]
    sigma = np.broadcast_to(noise, (len(at), SIDE, SIDE))
    data = np.array(model) + background + rng.normal(0, 1, sigma.shape) * sigma
    return data.astype(np.float32), (1 / sigma**2).astype(np.float32)


def fit(data, weight, start):
    return fit_lobes(data, weight, np.repeat(PSF, len(data), 0), start)


def dipoles(rng, n, low=20, high=200):
    """Lobes (n, 2, 2), fluxes (n, 2) and starts 0.3 px off; separation 1 to 3 PSF sigma, S/N of the brighter lobe."""
    separation, angle = rng.uniform(1, 3, n) * SIGMA, rng.uniform(0, 2 * np.pi, n)
    half = 0.5 * separation[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    middle = rng.uniform(-0.5, 0.5, (n, 2))
    at = np.stack([middle + half, middle - half], 1)
    flux = flux_of(np.exp(rng.uniform(np.log(low), np.log(high), n)))[:, None] * np.array([1, -1])
    flux[np.arange(n), rng.integers(0, 2, n)] *= rng.uniform(0.6, 1, n)
    return at, flux, at + rng.normal(0, 0.3, at.shape)


def lobe(coefficients, x, y, side):
    """Value and derivatives by position (3, s, s) of the PSF at (x, y) px from the middle of a stamp."""
    lines, w, out = np.empty((2, side + 3, side)), np.empty((2, 2, 4)), np.zeros((3, side, side))
    low, high = _lines(_padded(coefficients), False, x, y, side, w, lines)
    for row in range(low, high + 1):
        _row(lines, row, w[1], *out[:, row])
    return out


@pytest.mark.parametrize(("p", "side"), [(15, 9), (9, 15), (7, 31)])
def test_psf_and_its_gradient_against_scipy_and_differences(rng, p, side):
    coefficients = spline_coefficients(rng.normal(0, 1, (1, p, p)))[0]
    h = 1e-5
    # a whole number puts taps of no weight beyond the edge; off all pixels there is nothing
    for x, y in [*rng.uniform(-6.9, 6.9, (50, 2)), (2, -3), (0, 0.5), (-30.5, 0), (0, np.nan), (1e9, 0)]:
        o = np.arange(side) - side // 2 + p // 2
        yy, xx = np.meshgrid(o - y, o - x, indexing="ij")
        inside = (yy >= 0) & (xx >= 0) & (yy <= p - 1) & (xx <= p - 1)
        want = map_coordinates(coefficients, np.nan_to_num([yy, xx]), order=3, prefilter=False, mode="mirror")
        value, dx, dy = lobe(coefficients, x, y, side)
        np.testing.assert_allclose(value, np.where(inside, want, 0), atol=1e-12)
        assert not dx[~inside].any()
        # within h of the edge one of the differences is outside
        core = (yy > 2 * h) & (xx > 2 * h) & (yy < p - 1 - 2 * h) & (xx < p - 1 - 2 * h)
        if core.any():
            numeric = [lobe(coefficients, x + a, y + b, side)[0] for a, b in ((h, 0), (-h, 0), (0, h), (0, -h))]
            np.testing.assert_allclose(dx[core], (numeric[0] - numeric[1])[core] / (2 * h), atol=1e-6)
            np.testing.assert_allclose(dy[core], (numeric[2] - numeric[3])[core] / (2 * h), atol=1e-6)


def test_light_that_is_taken_away_is_gone(rng):
    at, flux, _ = dipoles(rng, 30)
    data, weight = stamps(rng, at, flux)
    weight[:, 3, 4] = 0
    first, lobes = 2 * np.arange(31), np.c_[flux.ravel(), at.reshape(-1, 2)]
    left = subtract_lobes(data, weight, np.repeat(PSF, 30, 0), first, lobes)
    np.testing.assert_array_equal(left[:, 3, 4], data[:, 3, 4])
    used = weight > 0
    assert left[used].std() == pytest.approx(1, abs=0.05)
    assert abs(left[used].mean()) < 0.05
    none = subtract_lobes(data, weight, np.repeat(PSF, 30, 0), np.zeros(31, int), np.zeros((0, 3)))
    np.testing.assert_array_equal(none, data)


def test_stamps_may_be_fitted_several_times_and_once_only(rng):
    at, flux, start = dipoles(rng, 12)
    data, weight = stamps(rng, at, flux)
    psf, stamp = np.repeat(PSF, 12, 0), rng.integers(0, 12, 40)
    shifted = start[stamp] + rng.normal(0, 0.1, (40, 2, 2))
    got = fit_lobes(data, weight, psf, shifted, stamp)
    want = fit_lobes(data[stamp], weight[stamp], psf[stamp], shifted)
    for name in LobeFit.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name))
    for k in (1, 2):
        once = fit_lobes(data, weight, psf, start[:, :k], limit=1)
        np.testing.assert_array_equal(once.evaluations, 1)
        np.testing.assert_array_equal(once.parameters.reshape(12, -1)[:, [1, 2]], start[:, 0])
        whole = fit_lobes(data, weight, psf, start[:, :k])
        np.testing.assert_array_equal(once.moment, whole.moment)


def test_read_only_arrays_compile_nothing_again(rng):
    data, weight = stamps(rng, np.zeros((1, 1, 2)), np.array([[1000.0]]))
    given = [data, weight, PSF.copy(), np.zeros((1, 1, 2))]
    away = [data, weight, given[2], np.array([0, 1]), np.array([[1000.0, 0, 0]])]
    want = fit_lobes(*given).parameters, subtract_lobes(*away)
    compiled = len(_fit_all.signatures), len(_subtract_all.signatures)
    for array in (*given, *away):
        array.flags.writeable = False
    got = fit_lobes(*given).parameters, subtract_lobes(*away)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (len(_fit_all.signatures), len(_subtract_all.signatures)) == compiled


def test_sharpness_by_hand(rng):
    """A star is as sharp as the PSF, a hot pixel far sharper, and what is hidden is not known."""
    data, weight = stamps(rng, np.full((4, 1, 2), 0.2), np.full((4, 1), 1e5), noise=1e-3)
    data[1, 10, 9] *= 3
    weight[2, 9:12, 9:12] = 0
    weight[3, 10, 10] = 0
    got = fit(data, weight, np.zeros((4, 1, 2)))
    flux, x, y, background = got.parameters[1]
    assert got.sharpness[0] == pytest.approx(1, abs=2e-3)
    assert got.sharpness[1] == pytest.approx((data[1, 10, 9] - background) / (flux * _spline(x, y)[10, 9]), rel=1e-6)
    assert got.sharpness[1] > 1.5
    assert np.isnan(got.sharpness[2])
    assert got.sharpness[3] == pytest.approx(1, abs=2e-3)
    np.testing.assert_array_equal(got.pixels, [441, 441, 432, 440])


@pytest.mark.parametrize("noise", ["flat", "tenfold"])
def test_pulls_of_point_sources(rng, figure, noise):
    """The flux at the best of all positions is high by sigma / (S/N), that of a cubic spline of this PSF by 5e-4."""
    n = 2500
    at = rng.uniform(-0.7, 0.7, (n, 1, 2))
    flux = flux_of(np.exp(rng.uniform(np.log(10), np.log(200), n)))[:, None]
    sigma = np.ones((SIDE, SIDE)) if noise == "flat" else np.geomspace(0.3, 3, SIDE)[None, :] + np.zeros((SIDE, 1))
    data, weight = stamps(rng, at, flux, sigma, background=3.0)
    weight[rng.random(data.shape) < 0.03] = 0
    got = fit(data, weight, np.zeros((n, 1, 2)))
    assert (got.status == Status.CONVERGED).all()
    pulls = (got.parameters - np.c_[flux, at[:, 0], np.full(n, 3.0)]) / np.sqrt(np.einsum("nii->ni", got.covariance))
    for k, name in enumerate(("flux", "x", "y", "background")):
        figure(f"pull of {name}, {noise} noise: std", pulls[:, k].std(), (0.95, 1.05))
        figure(f"pull of {name}, {noise} noise: |mean|", abs(pulls[:, k].mean()), 0.12 if name == "flux" else 0.06)
    dof = (weight > 0).sum(axis=(1, 2)) - 4
    figure(f"chi2 over degrees of freedom, {noise} noise", (got.chi2 / dof).mean(), (0.99, 1.01))


def test_dipoles_are_recovered(rng, figure):
    at, flux, start = dipoles(rng, 2000)
    got = fit(*stamps(rng, at, flux), start)
    q = got.parameters
    error = np.hypot(q[:, [1, 4]] - at[:, :, 0], q[:, [2, 5]] - at[:, :, 1]).max(axis=1)
    figure("dipoles with both lobes within 0.5 px, S/N 20 to 200", (error < 0.5).mean(), (0.95, 1))
    figure("evaluations per dipole, mean", got.evaluations.mean(), 10)
    ok = error < 0.5
    pulls = (q[:, [0, 1, 4]] - np.c_[flux[:, 0], at[:, :, 0]]) / np.sqrt(np.einsum("nii->ni", got.covariance))[
        :, [0, 1, 4]
    ]
    figure("robust std of the pull of a lobe's position", 1.4826 * np.median(np.abs(pulls[ok, 1:])), (0.9, 1.05))
    assert (got.status[ok] == Status.CONVERGED).mean() > 0.99


def test_converged_means_at_the_minimum(rng, figure):
    """Starts 10 to 100 sigma off: what calls itself converged has no slope left and explains the stamp."""
    at, flux, _ = dipoles(rng, 400, low=50)
    data, weight = stamps(rng, at, flux)
    got = fit(data, weight, at + 1.2 * np.array([[1, 0], [0, 1]]))
    converged = got.status == Status.CONVERGED
    error = np.sqrt(np.einsum("nii->ni", got.covariance))
    figure("converged from 1.2 px off", converged.mean(), (0.9, 1))
    figure(
        "slope of chi2 / 2 per sigma where converged, largest",
        np.abs(_slope(data, weight, got) * error)[converged].max(),
        0.02,
    )
    explained = got.chi2 / (SIDE**2 - 7) < 1.3
    figure("converged fits that explain the stamp", explained[converged].mean(), (0.97, 1))


def _slope(data, weight, got, h=1e-4):
    """Numeric derivative of chi2 / 2 with respect to every parameter, by a model of its own."""
    out = np.empty_like(got.parameters)
    for k, p in enumerate(got.parameters):
        for j in range(len(p)):
            step = h * max(1.0, abs(p[j])) if j % 3 == 0 else h
            chi2 = []
            for sign in (1, -1):
                v = p.copy()
                v[j] += sign * step
                model = v[0] * _spline(v[1], v[2]) + v[3] * _spline(v[4], v[5]) + v[6]
                chi2.append((weight[k] * (data[k].astype(float) - model) ** 2).sum())
            out[k, j] = (chi2[0] - chi2[1]) / (4 * step)
    return out


def _spline(x, y):
    o = np.arange(SIDE) - SIDE // 2 + 15
    yy, xx = np.meshgrid(o - y, o - x, indexing="ij")
    value = map_coordinates(PSF[0], [yy, xx], order=3, prefilter=False, mode="mirror")
    return np.where((yy >= 0) & (xx >= 0) & (yy <= 30) & (xx <= 30), value, 0)


@pytest.mark.parametrize("lobes", [1, 2])
def test_covariance_is_the_inverse_of_the_numeric_curvature(rng, lobes):
    at, flux, _ = dipoles(rng, 20, low=50)
    at, flux = at[:, :lobes], flux[:, :lobes]
    data, weight = stamps(rng, at, flux)
    got = fit(data, weight, at)
    for p, covariance, w in zip(got.parameters, got.covariance, weight, strict=True):
        columns = []
        for j in range(len(p)):
            h = 1e-4 * (max(1.0, abs(p[j])) if j % 3 == 0 else 1.0)
            models = []
            for sign in (1, -1):
                v = p.copy()
                v[j] += sign * h
                models.append(sum(v[3 * k] * _spline(v[3 * k + 1], v[3 * k + 2]) for k in range(lobes)) + v[-1])
            columns.append(((models[0] - models[1]) / (2 * h) * np.sqrt(w)).ravel())
        a = np.array(columns)
        scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
        np.testing.assert_allclose(covariance / scale, np.linalg.inv(a @ a.T) / scale, atol=1e-5)


def test_moment_of_a_tight_dipole(rng, figure):
    n = 1500
    angle, middle = rng.uniform(0, 2 * np.pi, n), rng.uniform(-0.5, 0.5, (n, 2))
    half = 0.1 * SIGMA * np.stack([np.cos(angle), np.sin(angle)], 1)
    flux = flux_of(rng.uniform(50, 200, n))
    data, weight = stamps(rng, np.stack([middle + half, middle - half], 1), np.stack([flux, -0.9 * flux], 1))
    got = fit(data, weight, middle[:, None])
    want = np.c_[0.1 * flux, 1.9 * flux[:, None] * half]
    pulls = (got.moment[:, :3] - want) / np.sqrt(np.einsum("nii->ni", got.moment_covariance))[:, :3]
    for k, name in enumerate(("flux", "moment_x", "moment_y")):
        figure(f"pull of {name} of the linear dipole: std", pulls[:, k].std(), (0.95, 1.06))
        figure(f"pull of {name} of the linear dipole: |mean|", abs(pulls[:, k].mean()), 0.1)


def test_one_bad_stamp_and_the_order_of_the_batch_change_nothing(rng):
    at, flux, start = dipoles(rng, 200)
    data, weight = stamps(rng, at, flux)
    alone = fit(data, weight, start)
    spoiled, empty = np.insert(data, 77, 0, axis=0), np.insert(weight, 77, 0, axis=0)
    together = fit(spoiled, empty, np.insert(start, 77, 0, axis=0))
    order = rng.permutation(200)
    shuffled = fit(data[order], weight[order], start[order])
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        single = fit(data, weight, start)
    finally:
        numba.set_num_threads(before)
    for name in LobeFit.__dataclass_fields__:
        want = getattr(alone, name)
        np.testing.assert_array_equal(np.delete(getattr(together, name), 77, axis=0), want)
        np.testing.assert_array_equal(getattr(shuffled, name), want[order])
        np.testing.assert_array_equal(getattr(single, name), want)
    assert together.status[77] == Status.NO_DATA
    assert np.isnan(together.covariance[77]).all()


def test_what_cannot_be_fitted_says_so(rng):
    at, flux, start = dipoles(rng, 3)
    data, weight = stamps(rng, at, flux)
    weight[0, 3:, :] = 0  # no pixel near the lobes
    data[1] = 0
    start[2] = start[2, 0]  # both lobes at one place
    got = fit(np.where(weight > 0, data, 0), weight, start)
    assert got.status[2] == Status.SINGULAR
    assert np.isfinite(got.parameters).all()
    assert np.isfinite(got.chi2).all()
    one = fit(*stamps(rng, np.full((1, 1, 2), 8.5), np.array([[5000.0]])), np.zeros((1, 1, 2)))
    assert one.status[0] != Status.CONVERGED or abs(one.parameters[0, 1]) < 5


def test_empty_batch():
    for lobes in (1, 2):
        nothing = np.zeros((0, SIDE, SIDE), np.float32)
        got = fit_lobes(nothing, nothing, np.zeros((0, 31, 31)), np.zeros((0, lobes, 2)))
        assert got.parameters.shape == (0, 3 * lobes + 1)


HOST = """
  constexpr int K = {lobes}, B = {terms}, N = 3 * K + B;
  const int s = {side}, p = {p};
  for (int k = 0; k < {n}; ++k) {{
    Optimiser<K, B> fit;
    const float *d = data + stamp[k] * s * s, *w = weight + stamp[k] * s * s;
    fit.begin(start + k * 2 * K, {bound}, {limit});
    while (fit.running) {{
      Taps taps[2 * K];
      for (int i = 0; i < 2 * K; ++i) taps[i].place(fit.trial[i], s, p);
      Sums<K, B> sums;
      sums.clear();
      for (int x = 0; x < s; ++x) {{
        Sums<K, B> column;
        column.clear();
        add_column(column, d, w, psf + stamp[k] * p * p, p, s, taps, x, 0, s);
        for (int i = 0; i < Sums<K, B>::COUNT; ++i) sums.s[i] += column.s[i];
      }}
      fit.step(sums);
    }}
    double c[N * N];
    const bool ok = fit.covariance(c);
    for (int i = 0; i < N * N; ++i) covariance[k * N * N + i] = ok ? c[i] : quiet_nan();
    for (int i = 0; i < K; ++i) {{
      parameters[k * N + 3 * i] = fit.flux[i];
      parameters[k * N + 3 * i + 1] = fit.q[2 * i];
      parameters[k * N + 3 * i + 2] = fit.q[2 * i + 1];
    }}
    for (int i = 0; i < B; ++i) parameters[k * N + 3 * K + i] = fit.flux[K + i];
    chi2[k] = fit.chi2;
    evaluations[k] = fit.evaluations;
    status[k] = fit.status;
  }}
"""


@pytest.mark.parametrize("shape", case.SHAPES)
def test_cuda_maths_on_the_host(tmp_path, rng, shape):
    """fit.cuh under the sanitizers takes the twin's way: the same number of evaluations to the same numbers."""
    from skydelta.kernels.fit import BOUND, MAX_EVALUATIONS

    inputs = case.make(rng, shape)
    n, lobes = inputs["start"].shape[:2]
    terms = inputs["terms"]
    free = 3 * lobes + terms
    body = HOST.format(
        lobes=lobes, terms=terms, side=shape[0], p=inputs["psf"].shape[1], n=n, bound=BOUND, limit=MAX_EVALUATIONS
    )  # fmt: skip
    outputs = {
        "parameters": (np.float64, (n, free)), "covariance": (np.float64, (n, free, free)), "chi2": (np.float64, (n,)),
        "evaluations": (np.int32, (n,)), "status": (np.int32, (n,)),
    }  # fmt: skip
    got = support_host_cuda.run(tmp_path, "fit.cuh", body, inputs, outputs)
    want = fit_lobes(**inputs)
    for name in outputs:
        close = {"rtol": FIT.tolerance.relative, "atol": FIT.tolerance.absolute}
        np.testing.assert_allclose(got[name], getattr(want, name), err_msg=name, **close)


def test_moments_of_rubin_dipoles(shared_data, figure):
    """The four sources that the survey calls dipoles: |M| against its length times mean flux (their fit, not truth)."""
    with np.load(shared_data / "stamps" / "rubin_triplets.npz", allow_pickle=False) as archive:
        image, variance, psf = (archive[n][:, 2] for n in ("stamps", "uncertainty", "psf"))
        meta = json.loads(str(archive["meta"]))
    rows = [k for k, m in enumerate(meta) if m["isDipole"]]
    assert len(rows) == 4
    good = np.isfinite(image) & np.isfinite(variance) & (variance > 0)
    data = np.where(good, image, 0)[rows, 1:, 1:].astype(np.float32)  # 29 x 29 about the source at pixel 15
    weight = np.where(good, 1 / np.where(good, variance, 1), 0)[rows, 1:, 1:].astype(np.float32)
    stamp = psf[rows, 4:45, 4:45].astype(float)  # the rest is padding
    stamp = stamp / stamp.sum(axis=(1, 2), keepdims=True)
    got = fit_lobes(data, weight, spline_coefficients(stamp), np.zeros((4, 1, 2)))
    ratio = np.hypot(got.moment[:, 1], got.moment[:, 2])
    ratio /= np.array([meta[k]["dipoleLength"] / 0.2 * meta[k]["dipoleMeanFlux"] for k in rows])
    near = np.abs(np.log(ratio)) < np.log(1.35)
    figure("Rubin dipoles whose moment is that of the survey within 35 %, of 4", near.sum(), (3, 4))
