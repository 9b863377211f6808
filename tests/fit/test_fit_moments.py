# SPDX-License-Identifier: BSD-3-Clause
"""Moments of dipoles whose lobes are not determined one by one: close ones, faint ones, and batches of none."""

import numpy as np
import pytest
from scipy.ndimage import map_coordinates
from scipy.optimize import least_squares
from support_sources import SIGMA, draw, exposure, flux_of, gaussian, lattice, nearest

import skydelta
from skydelta.kernels.fit import Status, spline_coefficients
from skydelta.stages.detect import Detect
from skydelta.stages.fit import Fit
from skydelta.stages.lobes import LOBES, Stamps, linear_columns
from skydelta.stages.stamptable import COLUMNS

PSF = gaussian(31, 0, 0)
SIDE = 21


def equal_dipoles(rng, n, separation, flux, off):
    """Stamps with unit noise, unit vectors (n, 2) to the positive lobe, chi2 of the truth (n,)."""
    angle = rng.uniform(0, 2 * np.pi, n)
    along = np.stack([np.cos(angle), np.sin(angle)], 1)
    middle = (SIDE - 1) / 2 + rng.uniform(-off, off, (n, 2))
    at = middle[:, None] + 0.5 * separation * np.stack([along, -along], 1)
    model = [flux * (gaussian(SIDE, *(p - SIDE // 2)) - gaussian(SIDE, *(q - SIDE // 2))) for p, q in at]
    noise = rng.normal(0, 1, (n, SIDE, SIDE))
    return np.array(model) + noise, along, (noise**2).sum(axis=(1, 2))


def moment_along(table, along):
    """The moment along unit vectors, and its error to first order in a covariance that has no cross term."""
    value = table["moment_x"] * along[:, 0] + table["moment_y"] * along[:, 1]
    return value, np.hypot(table["moment_x_err"] * along[:, 0], table["moment_y_err"] * along[:, 1])


def robust(pull):
    return 1.4826 * np.median(np.abs(pull))


@pytest.mark.parametrize("noise", ["given", "unknown"])
@pytest.mark.parametrize("off", [0.5, 1.5, 3.0])
@pytest.mark.parametrize(("separation", "flux"), [(0.7, 1000), (1.0, 1500)])
def test_close_lobes_are_explained_wherever_they_are(rng, figure, separation, flux, off, noise):
    """Equal lobes a fraction of the PSF apart, their middle off that of the stamp: no chi2 is far above the truth's."""
    data, along, chi2 = equal_dipoles(rng, 300, separation, flux, off)
    got = skydelta.fit(data, model="dipole", psf=PSF, variance=1.0 if noise == "given" else None)
    name = f"lobes of flux {flux} {separation} px apart, up to {off} px off, noise {noise}"
    figure(f"{name}: chi2 above the truth's by 20", (got["chi2"] > chi2 + 20).mean(), 0.0)
    value, error = moment_along(got, along)
    pull = (value - flux * separation) / error
    figure(f"{name}: pull of the moment, robust std", robust(pull), (0.8, 1.3))
    figure(f"{name}: |median| of the pull of the moment", abs(np.median(pull)), 0.5)
    if separation < 1:  # of wider ones the flag picks those that noise makes narrower
        flagged = got.has("DEGENERATE")
        assert flagged.mean() > 0.4
        figure(f"{name}: pull of the moment where flagged, robust std", robust(pull[flagged]), (0.8, 1.4))
        figure(f"{name}: moment where flagged, median over the truth",
               np.median(value[flagged]) / (flux * separation), (0.97, 1.03))  # fmt: skip


@pytest.mark.parametrize("noise", ["given", "unknown"])
@pytest.mark.parametrize("separation", [4, 6, 8])
def test_moment_of_faint_lobes_far_apart(rng, figure, separation, noise):
    """At S/N 7.5 a lobe's place is known to 0.3 px only, which flags the row: the moment is that of the lobes still."""
    flux = flux_of(7.5)
    data, along, _ = equal_dipoles(rng, 300, separation, flux, 0.5)
    got = skydelta.fit(data, model="dipole", psf=PSF, variance=1.0 if noise == "given" else None)
    flagged = got.has("DEGENERATE")
    assert flagged.sum() > 200
    value, error = moment_along(got, along)
    name = f"lobes of S/N 7.5 {separation} px apart, noise {noise}"
    figure(f"{name}: moment where flagged, median over the truth",
           np.median(value[flagged]) / (flux * separation), (0.95, 1.05))  # fmt: skip
    pull = ((value - flux * separation) / error)[flagged]
    figure(f"{name}: pull of the moment where flagged, robust std", robust(pull), (0.8, 1.3))


def test_moment_of_detected_faint_lobes_far_apart(rng, figure):
    """The same in an image, where the stage chooses the model."""
    separation, flux = 4.0, flux_of(10)
    x, y = lattice(rng, (900, 900))
    image = draw(rng.normal(0, 1, (900, 900)), x - separation / 2, y, np.full(len(x), -flux))
    image = exposure(draw(image, x + separation / 2, y, np.full(len(x), flux)))
    own = Fit()(image=image, catalog=Detect()(image, device="cpu"), device="cpu")
    row, distance = nearest(own, x, y)
    own = own[row[distance < 2]]
    own = own[(own["model"] == "dipole") & own.has("DEGENERATE")]
    assert len(own) > 40
    figure("detected lobes of S/N 10 4 px apart: moment where flagged, median over the truth",
           np.median(own["moment_x"].value) / (flux * separation), (0.95, 1.05))  # fmt: skip
    for name, want, error in (
        ("moment_x", flux * separation, np.sqrt(own["moment_xx"].value)),
        ("moment_y", 0, np.sqrt(own["moment_yy"].value)),
        ("flux", 0, own["flux_err"].value),
    ):
        pull = (own[name].value - want) / error
        figure(f"detected lobes of S/N 10 4 px apart: pull of {name}, robust std", robust(pull), (0.8, 1.3))


def test_scipy_finds_the_same_linear_dipole(rng):
    """Flux, moment, background and centre of F P - M . grad P + b, from 0.7 px off the middle of the lobes.

    Steps end where the next would be shorter than a two-hundredth of an error.
    """
    data, along, _ = equal_dipoles(rng, 12, 0.5, 2000, 0.4)
    data += 300 * gaussian(SIDE, 0, 0)
    stamps = Stamps(
        data=data.astype(np.float32),
        weight=np.ones(data.shape, np.float32),
        psf=np.repeat(spline_coefficients(PSF[None]), 12, 0),
        middle=np.zeros((12, 2)),
        start=np.zeros((12, 2)),
        lobes=np.full((12, 2, 2), np.nan),
    )
    got = linear_columns(stamps, np.arange(12), 0.7 * along, SIGMA)
    o, h, spline = np.arange(SIDE) - SIDE // 2 + 15, 1e-4, stamps.psf[0]

    def light(x, y):
        at = np.meshgrid(o - y, o - x, indexing="ij")
        return map_coordinates(spline, at, order=3, prefilter=False)

    def residual(v, stamp):
        flux, mx, my, background, x, y = v
        dx, dy = light(x + h, y) - light(x - h, y), light(x, y + h) - light(x, y - h)
        return (flux * light(x, y) + (mx * dx + my * dy) / (2 * h) + background - stamp).ravel()

    for k in range(12):
        first = [got[name][k] for name in ("flux", "moment_x", "moment_y", "background", "x", "y")]
        best = least_squares(residual, first, "3-point", args=(data[k],), x_scale="jac", xtol=1e-12, ftol=1e-12)
        error = np.sqrt(np.diag(np.linalg.inv(best.jac.T @ best.jac)))
        assert np.all(np.abs(first - best.x) < 0.2 * error)
        assert got["chi2"][k] == pytest.approx(2 * best.cost, abs=0.2)
        own = [got["flux_err"][k], *(np.sqrt(got[f"moment_{a}"][k]) for a in ("xx", "yy"))]
        np.testing.assert_allclose(own, error[:3], rtol=0.1)


def test_lobes_that_ran_into_one_are_none(rng):
    """In an image as in stamps: no number stands for them, the moment is that of the linear dipole."""
    x, y = lattice(rng, (300, 300))
    flux = np.full(len(x), flux_of(100.0))
    image = exposure(draw(draw(rng.normal(0, 1, (300, 300)), x - 0.15, y, -flux), x + 0.15, y, flux))
    own = Fit()(image=image, catalog=Detect()(image, device="cpu"), device="cpu")
    one = own[(own["model"] == "dipole") & (own["status"] == Status.SINGULAR)]
    assert len(one) > 5
    assert one.has("DEGENERATE").all()
    for name in LOBES:
        assert np.isnan(one[name]).all(), name
    pull = (one["moment_x"].value - flux[0] * 0.3) / np.sqrt(one["moment_xx"].value)
    assert abs(np.median(pull)) < 1


@pytest.mark.parametrize("side", [20, 21])
@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("model", ["point", "dipole"])
def test_no_stamps_give_no_rows(model, forced, side):
    lobes = 2 if model == "dipole" else 1
    starts = [np.zeros((0, lobes, 2) if lobes == 2 else (0, 2)), np.full((lobes, 2) if lobes == 2 else 2, 10.0)]
    nothing = np.zeros((0, side, side))
    for start in starts if forced else [None, *starts]:
        for planes in ({}, {"variance": 1.0}, {"variance": nothing + 1, "mask": nothing > 0}):
            for psf in (PSF, np.zeros((0, 31, 31))):
                got = skydelta.fit(
                    nothing, model=model, psf=psf, start=start, forced=forced, residuals=True, **planes
                )  # fmt: skip
                assert len(got) == 0
                assert {f"{n}_err" for n in COLUMNS[model]} < set(got.colnames)
                assert got["residual"].shape == nothing.shape
