# SPDX-License-Identifier: BSD-3-Clause
"""Injected sources: placed, drawn and judged as they say, the same every time, and in none of the real products."""

import json
from dataclasses import replace

import numpy as np
import pytest
from astropy import units as u
from astropy.io import fits
from scipy.special import ndtr
from support_pairs import context, pair, subtract

from skydelta.errors import ConfigError, InputError
from skydelta.io.catalog import Catalog
from skydelta.pipeline.runner import run
from skydelta.pipeline.simulate import simulate
from skydelta.pipeline.workflow import load
from skydelta.stages.detect import Detect
from skydelta.stages.inject import Inject
from skydelta.stages.recover import Recover, forced_fluxes, half_complete


@pytest.fixture(scope="module")
def made():
    """A pair of 400 x 400 px, what was found in it, and 40 sources in its science image."""
    p = pair(seed=71, shape=(400, 400), stars=100)
    _, out = subtract(p)
    catalog = Detect().execute(context(), {"image": out["difference"], "score": out["score"]})["catalog"]
    inputs = {"image": p.science, "whitened": out["whitened"], "catalog": catalog}
    ctx = context()
    return p, inputs, ctx, Inject(count=40).execute(ctx, inputs)


def test_light_and_its_noise_are_those_asked_for(made):
    p, _, ctx, out = made
    sources, light = out["sources"], out["injected"].image.astype(float) - p.science.image
    added = out["injected"].variance.astype(float) - p.science.variance
    x, y, flux = (sources[n].value for n in ("x", "y", "flux"))
    assert len(x) == 40
    # the pair's gain is 1: flux electrons of which each is one unit
    assert ctx.metrics["electrons_per_unit"] == pytest.approx(1, rel=0.02)
    assert added.sum() == pytest.approx(flux.sum(), rel=0.02)
    assert (light.sum() - flux.sum()) ** 2 < 16 * flux.sum()
    j, i = np.indices(light.shape)
    expected = sum(
        f / (2 * np.pi * 1.7**2) * np.exp(-((i - a) ** 2 + (j - b) ** 2) / (2 * 1.7**2))
        for a, b, f in zip(x, y, flux, strict=True)
    )
    np.testing.assert_allclose(added, expected, atol=0.02 * expected.max())
    lit = expected > 3
    assert ((light - expected)[lit] ** 2 / expected[lit]).mean() == pytest.approx(1, abs=5 / np.sqrt(lit.sum() / 2))
    assert np.abs(light[expected < 1e-9]).max() < 0.01


def test_places_are_apart_usable_and_partly_on_stars(made):
    p, inputs, ctx, out = made
    x, y = (out["sources"][n].value for n in ("x", "y"))
    apart = np.maximum(np.abs(x[:, None] - x), np.abs(y[:, None] - y)) + 1e9 * np.eye(len(x))
    assert apart.min() > 41
    host = np.asarray(out["sources"]["host"])
    # 12 were asked for; no more than a tenth of the stars get one
    assert 5 <= host.sum() == ctx.metrics["injected_on_hosts"] <= 10
    nearest = np.array([np.hypot(p.x - a, p.y - b).min() for a, b in zip(x, y, strict=True)])
    assert nearest[host].max() < 0.8 * np.sqrt(2) * 4.1 + 1
    found = inputs["catalog"]
    if len(found):
        assert np.hypot(x[:, None] - found["x"].value, y[:, None] - found["y"].value).min() > 4 * 3.9


def test_the_item_decides_the_draw(made):
    _, inputs, _, out = made
    again = Inject(count=40).execute(context(), inputs)
    assert again["injected"].image.tobytes() == out["injected"].image.tobytes()
    other = Inject(count=60, seed=1).execute(context(), inputs)
    assert not np.array_equal(other["sources"]["x"], out["sources"]["x"])
    named = context()
    named.id = "other"
    assert not np.array_equal(Inject(count=40).execute(named, inputs)["sources"]["x"], out["sources"]["x"])


def test_what_does_not_fit_or_has_no_noise_is_said(made):
    p, inputs, _, _ = made
    ctx = context()
    few = Inject(count=500).execute(ctx, inputs)
    assert "fewer_injections" in ctx.flags
    assert len(few["sources"]) < 100
    flat = p.science.with_(variance=np.full_like(p.science.variance, 400))
    ctx = context()
    made = Inject(count=5).execute(ctx, {**inputs, "image": flat})
    assert "no_photon_noise" in ctx.flags
    assert made["injected"].variance.tobytes() == flat.variance.tobytes()
    nothing = p.science.with_(mask=np.full(p.science.shape, 1, np.int32))
    with pytest.raises(InputError, match="no place for a source"):
        Inject(count=5).execute(context(), {**inputs, "image": nothing})


def test_completeness_is_that_of_a_known_curve(rng):
    snr = rng.uniform(1, 12, 4000)
    found = rng.random(4000) < ndtr((snr - 5.3) / 1.1)
    assert half_complete(snr, found) == pytest.approx(5.3, abs=0.1)
    assert np.isnan(half_complete(snr, np.ones(4000, bool)))
    assert np.isnan(half_complete(np.zeros(0), np.zeros(0, bool)))


def test_figures_react_to_a_wrong_flux_and_a_wrong_error(made):
    """Sources of known flux in white noise, then 2 % too bright, then with half the error."""
    _, inputs, _, out = made
    white, sources = inputs["whitened"], out["sources"]
    x, y, flux = (sources[n].value for n in ("x", "y", "flux"))
    rng = np.random.default_rng(72)

    def figures(scale=1.0, error=1.0):
        image = rng.normal(0, 1, white.shape) * np.sqrt(white.variance)
        half = white.psf.shape[0] // 2
        for a, b, f in zip(x, y, flux, strict=True):
            j, i = round(b), round(a)
            box = np.s_[j - half : j + half + 1, i - half : i + half + 1]
            image[box] += 30 * scale * f * white.psf.at(i, j)
        exact = sources.copy()
        exact["x"], exact["y"], exact["flux"] = np.rint(sources["x"]), np.rint(sources["y"]), 30 * sources["flux"]
        ctx = context()
        seen = white.with_(image=image.astype(np.float32), variance=(error**2 * white.variance).astype(np.float32))
        Recover().execute(ctx, {"image": seen, "catalog": inputs["catalog"], "sources": exact})
        return ctx.metrics

    plain, bright, narrow = figures(), figures(scale=1.02), figures(error=0.5)
    assert abs(plain["flux_ratio"] - 1) < 4 * plain["flux_ratio_err"] < 0.01
    assert bright["flux_ratio"] == pytest.approx(1.02, abs=4 * plain["flux_ratio_err"])
    assert plain["pull_std"] == pytest.approx(1, abs=0.35)
    assert narrow["pull_std"] == pytest.approx(2, abs=0.7)


def test_pulls_in_the_open_field_are_those_of_a_normal_distribution(figure):
    """Kernel, difference and error are skydelta's own; `benchmarks/pulls.py` does it for 2000 sources."""
    rows = []
    for seed in range(81, 84):
        p = pair(seed=seed, shape=(512, 512), stars=150, low=2000, high=2e5)
        _, out = subtract(p)
        none = Catalog.of({n: np.zeros(0) for n in "xy"}, {"x": u.pix, "y": u.pix})
        inputs = {"image": p.science, "whitened": out["whitened"], "catalog": none}
        made = Inject(count=100, hosts=0).execute(context(), inputs)
        _, again = subtract(replace(p, science=made["injected"]))
        x, y, true = (made["sources"][n].value for n in ("x", "y", "flux"))
        flux, error = forced_fluxes(again["whitened"], x, y)
        rows.append(np.stack([flux - true, error, true]))
    residual, error, true = np.concatenate(rows, axis=1)
    pull, n = residual / error, len(true)
    assert n > 180
    # four standard errors of each
    figure("injections: mean pull", abs(pull.mean()), 4 / np.sqrt(n))
    figure("injections: |std of pulls - 1|", abs(pull.std() - 1), 4 / np.sqrt(2 * n))
    weight = error**-2
    bias = (weight * true * residual).sum() / (weight * true**2).sum()
    figure("injections: flux bias over its error", abs(bias) * np.sqrt((weight * true**2).sum()), 4)


def test_places_without_pixels_have_no_flux(made):
    _, inputs, _, _ = made
    white = inputs["whitened"]
    blind = white.with_(image=np.full_like(white.image, np.nan))
    flux, error = forced_fluxes(blind, np.array([200.0]), np.array([200.0]))
    assert np.isnan(flux[0])
    assert np.isnan(error[0])
    assert len(forced_fluxes(white, np.zeros(0), np.zeros(0))[0]) == 0


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One pair run without and with injections."""
    folder = tmp_path_factory.mktemp("runs")
    truth = simulate(folder / "pair", size=384, seed=5, stars=90, transients=4, saturated=1, same_grid=True)
    inputs = {"science": truth.science, "reference": truth.reference}
    out = []
    for n in (0, 40):
        result = run(
            "difference",
            inputs=inputs,
            out=folder / str(n),
            id_="a",
            device="cpu",
            set_=[f"run.inject={n}"] if n else [],
        )
        assert result.receipts[0]["error"] is None
        out.append(folder / str(n) / "items/a")
    return out


def test_real_products_know_nothing_of_the_sources(runs):
    plain, injected = runs
    for name in ("catalog.ecsv", "catalog.parquet", "stamps.fits", "preview.fits"):
        assert (plain / name).read_bytes() == (injected / name).read_bytes(), name
    with fits.open(plain / "difference.fits") as a, fits.open(injected / "difference.fits") as b:
        for one, two in zip(a[1:], b[1:], strict=True):
            assert one.data.tobytes() == two.data.tobytes(), one.name
        assert "INJN" not in a["SCI"].header
        assert b["SCI"].header["INJN"] == 40


def test_figures_are_in_receipt_header_table_and_report(runs):
    _, item = runs
    receipt = json.loads((item / "receipt.json").read_text())
    steps = {s["id"]: s for s in receipt["steps"]}
    twins = [s for s in steps if s.endswith("_injected")]
    assert twins == ["match_injected", "difference_injected", "detect_injected", "fit_injected"]
    assert steps["match_injected"]["config"] == steps["match"]["config"]
    metrics, header = steps["recover"]["metrics"], fits.getheader(item / "difference.fits", "SCI")
    table = Catalog.load(item / "injections.ecsv")
    assert header["INJFOUND"] == metrics["injected_found"] == table["found"].sum()
    assert header["INJPSTD"] == pytest.approx(metrics["pull_std"])
    pull = (table["forced_flux"] - table["flux"]) / table["forced_flux_err"]
    np.testing.assert_allclose(table["pull"], pull.value, rtol=1e-9)
    # faint ones are lost, clear ones found
    assert table["found"][table["snr"] > 10].mean() > 0.85
    assert table["found"][table["snr"] < 3].mean() < 0.3
    report = (item.parents[1] / "report.html").read_text()
    assert "Depth from injected sources" in report
    assert f"of {header['INJN']} fake sources found" in report


def test_a_workflow_without_the_steps_is_refused(tmp_path):
    path = tmp_path / "w.toml"
    path.write_text(
        'version = 1\nname = "w"\n[run]\ninject = 5\n[[steps]]\nstage = "load"\ninputs = { path = "science" }\n'
    )
    with pytest.raises(ConfigError, match=r"run.inject: the workflow has no step match, difference, detect, fit"):
        load(path)
