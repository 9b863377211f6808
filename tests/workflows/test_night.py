# SPDX-License-Identifier: BSD-3-Clause
"""The workflow `difference-night` through the command line: light curves against the fluxes that were simulated."""

import json
import shutil

import numpy as np
import pytest
from support_cli import call
from support_night import CURVES, files, products, words

from skydelta.errors import InputError
from skydelta.io.catalog import Catalog
from skydelta.pipeline.receipts import read_json
from skydelta.pipeline.workflow import load
from skydelta.stages.sources import Sources


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    folder = tmp_path_factory.mktemp("night")
    fluxes, sky = files(folder)
    done = call(*words(folder, folder / "out"))
    assert done.exit_code == 0, done.output
    assert "second pass: 3 done, 0 failed" in done.stdout
    return folder, fluxes, sky


def curve(out, sky):
    """The rows of the object at a place."""
    objects, curves = Catalog.load(out / "objects.ecsv"), Catalog.load(out / "lightcurves.parquet")
    away = np.hypot(*[(objects[c].value - at) for c, at in zip(("ra", "dec"), sky, strict=True)]) * 3600
    assert away.min() < 0.3
    return curves[np.asarray(curves["object"]) == objects["object"][np.argmin(away)]]


def test_fluxes_of_every_visit(night, figure):
    folder, fluxes, sky = night
    pulls = []
    for n in range(3):
        rows = curve(folder / "out", sky[n])
        assert list(rows["item"]) == ["v0", "v1", "v2"], "also where it was not detected, in order of time"
        np.testing.assert_allclose(rows["mjd"].value, 60700 + 0.1 * np.arange(3))
        assert list(np.asarray(rows["detected"])) == list(CURVES[n] > 0)
        np.testing.assert_allclose(rows["flux_limit"].value, 5 * rows["flux_err"].value)
        # the error of the kernel went with the whitened difference into its file, and came back
        part = rows["flux_err_kernel"].value / rows["flux_err"].value
        assert ((part > 0) & (part < 0.5)).all()
        pulls += list((rows["flux"].value - fluxes[n]) / rows["flux_err"].value)
    # 9 pulls of a standard normal: rms within these with a probability of 0.995
    figure("difference-night: rms pull of the light curves", float(np.sqrt(np.mean(np.square(pulls)))), (0.4, 1.7))
    figure("difference-night: largest pull", float(np.abs(pulls).max()), (0, 3.7))
    assert list(curve(folder / "out", sky[3])["item"]) == ["v0"], "no row where the visit did not look"
    text = (folder / "out" / "report.html").read_text()
    assert "<h2>Light curves</h2>" in text and "Failed in the second pass" not in text


def test_threads_leave_the_same_bytes(night, tmp_path):
    folder, *_ = night
    done = call(
        *words(folder, tmp_path / "out", "--executor", "threads", "--workers", "2", "--prometheus", tmp_path / "n.prom")
    )
    assert done.exit_code == 0, done.output
    assert products(tmp_path / "out") == products(folder / "out")
    said = (tmp_path / "n.prom").read_text()
    assert 'items_planned{workflow="difference-night"} 6' in said, "items of both passes"
    assert 'items_total{workflow="difference-night",status="done"} 6' in said


def test_what_is_missing_is_done_again_and_a_fault_is_said(night, tmp_path, monkeypatch):
    folder, *_ = night
    out = tmp_path / "out"
    shutil.copytree(folder / "out", out)
    shutil.rmtree(out / "items" / "v2")
    shutil.rmtree(out / "second_pass" / "v0")
    measure = Sources.run

    def broken(self, ctx, **inputs):
        if ctx.id == "v0":  # which alone has seen one of the objects
            raise InputError("sources: no luck")
        return measure(self, ctx, **inputs)

    monkeypatch.setattr(Sources, "run", broken)
    done = call(*words(folder, out))
    assert done.exit_code == 1 and "second pass of v0: sources: no luck" in done.stderr, done.output
    assert done.stdout.count("done already") == 2 and "v2: done, " in done.stdout
    assert set(Catalog.load(out / "lightcurves.parquet")["item"]) == {"v1", "v2"}
    report = (out / "report.html").read_text()
    assert "<code>v0</code> sources: no luck" in report and "<h2>Light curves</h2>" in report
    monkeypatch.undo()
    done = call(*words(folder, out))
    assert done.exit_code == 0, done.output
    assert products(out) == products(folder / "out")
    ended = {p.parent.name: read_json(p)["steps"] for p in (out / "second_pass").glob("*/receipt.json")}
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    last = events[max(n for n, e in enumerate(events) if e["event"] == "second_pass_started") :]
    assert sorted(e["item"] for e in last if e["event"] == "item_resumed") == ["v1", "v2"]
    assert set(ended) == {"v0", "v1", "v2"}


def test_the_plan_and_references_by_footprint(night, tmp_path):
    folder, *_ = night
    shown = call(*words(folder, tmp_path / "out", "--dry-run"))
    assert shown.exit_code == 0, shown.output
    for text in ("second pass, when the objects are known", "whitened.fits", "objects.ecsv, lightcurves.parquet"):
        assert text in shown.stdout
    paired = call(*words(folder, tmp_path / "out", "--dry-run", "--pair-by", "sky"))
    assert paired.exit_code == 0 and "items: 3 (v0, v1, v2)" in paired.stdout, paired.output


def test_first_steps_are_those_of_difference():
    night, plain = load("difference-night"), load("difference")
    assert [s.described() for s in night.steps[:-1]] == [s.described() for s in plain.steps]
    assert plain.second is None and [s.stage.name for s in night.second.steps][2] == "sources"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("second_pass.sources.threshold=-1", "second_pass[2].sources.threshold: -1 is not above 0"),
        ("second_pass.images.dtype=native", "no step 'images'; the steps are image, positions, sources, write_catalog"),
        ("second_pass.sources=1", "second_pass.<id or stage>.<key>=value is needed"),
        ("second_pass.image.inputs={path='white'}", "'white' is nothing that the items leave; known: objects,"),
        ("second_pass.sources.inputs={image='score'}", "second_pass: steps[2] (sources): input image = 'score'"),
        ("second_pass.positions.id=image", "second_pass[1].id: 'image' is used twice"),
        ("steps.write.enabled=false", "second_pass: no step leaves a catalogue"),
    ],
)  # fmt: skip
def test_mistakes_are_named(night, tmp_path, setting, said):
    folder, *_ = night
    done = call(*words(folder, tmp_path / "out", "--set", setting))
    assert done.exit_code == 2 and said in done.stderr, done.output
    assert not (tmp_path / "out").exists()
