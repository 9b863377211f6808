# SPDX-License-Identifier: BSD-3-Clause
"""The error of the fitted kernel in the errors of fluxes: against derivatives taken by force, and against the truth of
simulated pairs, for stars that had no part in the fit."""

from dataclasses import fields, replace

import numpy as np
import pytest
from astropy.io import fits
from astropy.table import QTable
from scipy.signal import fftconvolve
from support_pairs import context, pair, subtract

from skydelta.errors import InputError
from skydelta.io.catalog import Catalog
from skydelta.io.exposure import Exposure
from skydelta.io.fits.writer import write
from skydelta.io.matchkernel import MatchKernel
from skydelta.io.read import read
from skydelta.kernels.core.tiles import Box
from skydelta.kernels.response import flux_weights, kernel_response
from skydelta.pipeline.simulate import build
from skydelta.stages.detect import Detect
from skydelta.stages.difference import Difference
from skydelta.stages.fit import Fit
from skydelta.stages.match import Match
from skydelta.stages.recover import forced_fluxes
from skydelta.stages.sources import Sources
from skydelta.stages.stars import Stars, find_stars


def forced(image, x, y):
    """Fluxes, their errors and the kernel's part of these at places, by the stage `sources`."""
    table = Catalog(QTable({"x": np.asarray(x, float), "y": np.asarray(y, float)}))
    out = Sources().execute(context(), {"image": image, "positions": table})["catalog"]
    names = ("flux", "flux_err", "flux_err_kernel")
    return tuple(np.asarray(out[n].value, float) if n in out.colnames else None for n in names)


@pytest.mark.parametrize("terms", [0, 1, 3])
def test_weights_of_the_flux_are_those_of_least_squares(rng, terms):
    psf, weight = rng.uniform(0, 1, (4, 9, 9)), rng.uniform(0.5, 2, (4, 9, 9))
    weight[rng.random(weight.shape) < 0.2] = 0
    weight[3] = 0
    got = flux_weights(psf, weight, terms)
    j, i = np.mgrid[-4:5, -4:5]
    for k in range(3):
        design = np.stack([psf[k], np.ones((9, 9)), i, j][: 1 + terms]).reshape(1 + terms, -1).T
        want = np.linalg.solve(design.T @ (weight[k].ravel()[:, None] * design), design.T * weight[k].ravel())[0]
        np.testing.assert_allclose(got[k].ravel(), want, rtol=1e-9, atol=1e-12)
    assert np.isnan(got[3]).all()


@pytest.mark.parametrize("reach", [None, 2])
def test_response_is_the_direct_sum(rng, reach):
    half, side, more = 3, 7, reach or 0
    weights, kernel = rng.normal(size=(2, side, side)), rng.normal(size=(2 * half + 1,) * 2)
    light = rng.normal(size=(2, side + 2 * (half + more), side + 2 * (half + more)))
    filters = None if reach is None else rng.normal(size=(2, 2 * reach + 1, 2 * reach + 1))
    got = kernel_response(weights, light, half, filters)
    for k in range(2):
        seen = light[k] if filters is None else fftconvolve(light[k], filters[k], "valid")
        want = (weights[k] * fftconvolve(seen, kernel, "valid")).sum()
        assert (got[k] * kernel).sum() == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("widths", [(1.7, 1.25), (1.25, 1.7)])
def test_the_kernels_part_is_the_derivative_of_the_flux(rng, widths, figure):
    """With a covariance v v^T it is |dF/ds| of a kernel that moves by s v: by force, with two more differences."""
    p = pair(seed=5, widths=widths, low=5e4, high=2e5, stars=40, transients=[(128.3, 77.6, 5e4)])
    kernel, made = subtract(p)
    inner = ((p.x > 25) & (p.x < 230) & (p.y > 25) & (p.y < 230)).nonzero()[0]
    x, y = np.r_[p.x[inner], 128.3, 60.0], np.r_[p.y[inner], 77.6, 61.0]
    free = [k for k, name in enumerate(kernel.parameters) if name[0] == "b"]
    v = np.zeros(len(kernel.parameters))
    v[free] = rng.normal(size=len(free)) * np.sqrt(np.diagonal(kernel.covariance)[free])
    one = replace(kernel, covariance=np.outer(v, v))
    step = np.zeros_like(kernel.coefficients)
    for k in free:
        b, term = (int(n) for n in kernel.parameters[k][1:].split("p"))
        step[b, term] = v[k]
    for name, count in (("difference", len(x)), ("whitened", len(inner))):
        # whitening changes with the kernel too: light that is in one image alone would show it
        x, y = x[:count], y[:count]
        moved = []
        for s in (1, -1):
            other = replace(kernel, coefficients=kernel.coefficients + s * step)
            inputs = {"science": p.science, "reference": p.reference, "kernel": other}
            again = Difference().execute(context(), inputs)[name]
            # variance and PSF as they were: the derivative is that of the pixels
            moved.append(forced(made[name].with_(image=again.image), x, y)[0])
        want = np.abs(moved[0] - moved[1]) / 2
        image = made[name].with_(kernel_error=replace(made[name].kernel_error, kernel=one))
        _, error, part = forced(image, x, y)
        plain = forced(image.with_(kernel_error=None), x, y)[1]
        # over the stamp of a source the spatial terms are those of its middle
        figure(
            f"kernel's part of a flux in {name}: off the derivative",
            np.hypot.reduce(part - want) / np.hypot.reduce(want),
            0.05,
        )
        np.testing.assert_allclose(error, np.hypot(plain, part), rtol=1e-12)


SCENE = {"size": 512, "stars": 300, "galaxies": 0, "transients": 12, "dipoles": 0, "saturated": 0, "same_grid": True,
         "defects": False, "registration_rms": 0.0, "sky": (400.0, 400.0)}  # fmt: skip
APART = 20.0
"""Of stars from the stamps of the fit, px: nothing of their noise is in the kernel then."""


def spared(seed, share=3, **scene):
    """A simulated pair whose kernel has not seen every third star: difference, whitened, and those stars' x, y, flux;
    what changed, in the same form."""
    scene = build(seed=seed, **{**SCENE, **scene})
    science, reference = (
        Exposure((f.image - f.sky).astype(np.float32), f.variance, (f.mask != 0).astype(np.int32), psf=f.psf.pixels())
        for f in (scene.science, scene.reference)
    )
    x, y, flux = (np.asarray(getattr(scene.stars[n], "value", scene.stars[n]), float) for n in ("x", "y", "flux"))
    test = np.argsort(-flux)[::share]

    def seen(exposure):
        stars = find_stars(exposure)
        far = np.hypot(stars.x[:, None] - x[test], stars.y[:, None] - y[test]).min(axis=1) > 3
        names = [f.name for f in fields(Stars) if f.name != "rejected"]
        return replace(stars, **{n: getattr(stars, n)[far] for n in names})

    inputs = {"science": science, "reference": reference}
    stars = {"science_stars": seen(science), "reference_stars": seen(reference)}
    kernel = Match().execute(context(), {**inputs, **stars})["kernel"]
    made = Difference().execute(context(), {**inputs, "kernel": kernel})
    fit = kernel.stamps[kernel.stamps["role"] == "fit"]
    changes = [np.asarray(getattr(scene.changes[n], "value", scene.changes[n]), float) for n in ("x", "y", "flux")]
    out = []
    for places, others in (((x[test], y[test], flux[test]), changes), (changes, (x, y))):
        a, b = places[:2]
        clear = np.hypot(a[:, None] - fit["x"], b[:, None] - fit["y"]).min(axis=1) > APART
        clear &= np.hypot(a[:, None] - others[0], b[:, None] - others[1]).min(axis=1) > APART
        clear &= (np.minimum(a, b) > APART) & (np.maximum(a, b) < SCENE["size"] - 1 - APART)
        out.append([column[clear] for column in places])
    return made, *out


def test_stars_that_the_fit_has_not_seen_have_pulls_of_one(figure):
    """And sources that are in one image alone keep theirs."""
    bright, without, isolated = [], [], []
    for seed in range(1, 11):
        made, (x, y, flux), changes = spared(seed)
        use = flux > 3000
        image = made["whitened"]
        got, error, part = forced(image, x[use], y[use])
        bright += list(got / error)
        without += list(got / np.sqrt(error**2 - part**2))
        f, e = forced_fluxes(image, x[use], y[use])
        np.testing.assert_allclose(e, error, rtol=0.03)
        np.testing.assert_allclose(f, got, atol=0.2 * error.max())
        got, error, part = forced(image, *changes[:2])
        isolated += list((got - changes[2]) / error)
        assert (part < 0.5 * error).all()
    counting = 1 / np.sqrt(2 * len(bright))
    figure("pulls of bright stars outside of the fit: std, from 1, in its error", abs(np.std(bright) - 1) / counting, 3)
    figure("the same without the error of the kernel: std", -np.std(without), -1.03 - 2 * counting)
    isolated = np.array(isolated)
    figure("pulls of changes: std, from 1", abs(isolated.std() - 1), 3 / np.sqrt(2 * len(isolated)))
    figure("pulls of changes: mean", abs(isolated.mean()), 3 / np.sqrt(len(isolated)))


@pytest.fixture(scope="module")
def one():
    """Kernel, outputs of `difference` and places of stars of a pair."""
    p = pair(seed=8, low=5e3, high=2e5)
    return (*subtract(p), p)


def test_all_ways_to_a_flux_report_the_same_error(one):
    """The catalogue, fluxes at given places, injections, and the plane that is not whitened."""
    _, made, p = one
    x, y = (a[(p.x > 25) & (p.x < 230) & (p.y > 25) & (p.y < 230)] for a in (p.x, p.y))
    _, error, part = forced(made["whitened"], x, y)
    assert (part > 0).all()
    _, of_injections = forced_fluxes(made["whitened"], x, y)
    np.testing.assert_allclose(of_injections, error, rtol=0.03)
    n, none = len(x), np.full(len(x), np.nan)
    columns = {
        "id": np.arange(n),
        "x": x,
        "y": y,
        "ra": none,
        "dec": none,
        "snr": np.ones(n),
        "flags": np.zeros(n, int),
    }
    columns |= dict.fromkeys(("x_pos", "y_pos", "x_neg", "y_neg"), none)
    inputs = {"image": made["whitened"], "catalog": Catalog.of(columns, {})}
    fitted = Fit(dipoles=False).execute(context(), inputs)["catalog"]
    near = np.hypot(fitted["x"].value - x, fitted["y"].value - y) < 0.2
    assert near.sum() > 5
    got = fitted["flux_err_kernel"].value[near]
    np.testing.assert_allclose(got, part[near], rtol=0.1, atol=0.1 * part.max())
    plain = forced(made["difference"], x, y)[2]
    np.testing.assert_allclose(plain, part, rtol=0.5, atol=0.2 * part.max())
    detected = Detect().execute(context(), {"image": made["difference"], "score": made["score"]})["catalog"]
    without = Fit().execute(context(), {"image": made["whitened"].with_(kernel_error=None), "catalog": detected})[
        "catalog"
    ]
    assert np.isnan(without["flux_err_kernel"].value).all()
    assert forced(made["whitened"].with_(kernel_error=None), x, y)[2] is None


def test_a_file_of_a_difference_gives_the_same_errors(one, tmp_path):
    """Of the whole, of a part, and of a part in memory; the light is stored in steps of a quarter of its noise."""
    _, made, p = one
    x, y = (a[(p.x > 60) & (p.x < 190) & (p.y > 75) & (p.y < 200)] for a in (p.x, p.y))
    for name in ("difference", "whitened"):
        image = made[name]
        want = forced(image, x, y)[2]
        write(image, tmp_path / f"{name}.fits")
        part = image.section(Box(y0=50, y1=230, x0=40, x1=220))
        np.testing.assert_allclose(forced(part, x - 40, y - 50)[2], want, rtol=1e-6)
        back = read(tmp_path / f"{name}.fits")
        got = forced(back, x, y)[2]
        np.testing.assert_allclose(got, want, rtol=0.02, atol=0.01 * want.max())
        piece = read(f"{tmp_path / name}.fits[SCI][41:220,51:230]")
        np.testing.assert_allclose(forced(piece, x - 40, y - 50)[2], got, rtol=1e-6)
        write(back, tmp_path / "again.fits")
        assert read(tmp_path / "again.fits").kernel_error.kernel.covariance.tobytes() == (
            image.kernel_error.kernel.covariance.tobytes()
        )


def test_the_covariance_is_stored_to_the_last_bit(one, tmp_path):
    kernel = one[0]
    kernel.save(tmp_path / "k.fits")
    back = MatchKernel.load(tmp_path / "k.fits")
    assert np.array_equal(kernel.covariance, kernel.covariance.T)
    assert back.covariance.tobytes() == kernel.covariance.tobytes()
    assert back.parameters == kernel.parameters
    assert back.own_basis.tobytes() == kernel.own_basis.tobytes()
    assert back.sum_error(100, 90) == kernel.sum_error(100, 90)
    back.save(tmp_path / "again.fits")
    assert (tmp_path / "again.fits").stat().st_size == (tmp_path / "k.fits").stat().st_size
    assert MatchKernel.load(tmp_path / "again.fits").covariance.tobytes() == kernel.covariance.tobytes()


def test_a_kernel_without_covariance_is_said(one, tmp_path):
    kernel, _, p = one
    replace(kernel, covariance=None).save(tmp_path / "old.fits")
    old = MatchKernel.load(tmp_path / "old.fits")
    assert old.covariance is None
    ctx = context()
    made = Difference().execute(ctx, {"science": p.science, "reference": p.reference, "kernel": old})
    assert made["whitened"].kernel_error is None
    assert "kernel_error_unknown" in ctx.flags
    assert ctx.metrics["kernel_error_known"] is False
    assert np.isnan(old.sum_error(100, 90))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("KCOVAR", lambda a: a[:-1], r"KCOVAR.*finite numbers"),
        ("KCOVAR", lambda a: a * np.nan, r"KCOVAR.*finite numbers"),
        ("KTERMS", lambda a: a + np.int16(100), r"parameters beyond"),
        ("KIMAGES", lambda a: a[:, 1:-1], r"covariance of a basis"),
    ],
)
def test_damaged_covariances_are_refused(one, tmp_path, name, change, message):
    one[0].save(tmp_path / "k.fits")
    with fits.open(tmp_path / "k.fits") as hdus:
        hdus[name].data = change(hdus[name].data)
        for hdu in hdus:
            hdu.header.remove("CHECKSUM", ignore_missing=True)
            hdu.header.remove("DATASUM", ignore_missing=True)
        hdus.writeto(tmp_path / "bad.fits")
    with pytest.raises(InputError, match=message):
        MatchKernel.load(tmp_path / "bad.fits")


def test_light_of_another_shape_is_refused(one, tmp_path):
    write(one[1]["difference"], tmp_path / "d.fits")
    with fits.open(tmp_path / "d.fits") as hdus:
        at = hdus.index_of("UNMATCHED")
        hdus[at] = fits.ImageHDU(np.zeros((10, 12), np.float32), name="UNMATCHED")
        hdus.writeto(tmp_path / "bad.fits")
    with pytest.raises(InputError, match=r"UNMATCHED.*shape \(10, 12\), the image has \(256, 256\)"):
        read(tmp_path / "bad.fits")
