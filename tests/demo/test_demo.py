# SPDX-License-Identifier: BSD-3-Clause
"""The demo says what it recovered and fails when that is too little."""

import re

import numpy as np
import pytest
from astropy import units as u
from astropy.io import fits
from astropy.table import QTable

from skydelta.io.catalog import Catalog, bits
from skydelta.pipeline import demo


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """The demo in an empty folder, kernels taken as compiled, on a smaller field."""
    small = demo.simulate
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "warm_up", lambda: 0.0)
    monkeypatch.setattr(demo, "simulate", lambda out, **k: small(out, **{**k, "size": 512}))
    return tmp_path


def test_demo_recovers_the_truth_and_names_the_report(quick, capsys):
    assert demo.main() == 0
    text = capsys.readouterr().out
    assert re.search(r"transients above S/N 5 found.*\d+ of \d+", text)
    assert "seconds: match" in text
    report = re.search(r"report: (.*)", text)[1].strip()
    assert report == str(quick / "demo-output" / "run" / "report.html")
    assert demo.main() == 0, "a second time, over the first"


def test_demo_fails_when_the_truth_is_not_recovered(quick, monkeypatch, capsys):
    monkeypatch.setattr(demo, "recover", lambda *a: lost(demo.Recovery))
    assert demo.main() == 1
    assert "are expected" in capsys.readouterr().out


def lost(recovery):
    n = 10
    return recovery(np.full(n, "transient"), np.full(n, 9.0), np.arange(n) < 7, np.full(n, 1.0), 0, 0)


@pytest.fixture
def truth_and_files(tmp_path):
    rows = [
        ("transient", 50.0, 50.0, 100.0, 10.0),
        ("transient", 80.0, 20.0, -100.0, 10.0),
        ("transient", 20.0, 80.0, 100.0, 4.0),
        ("transient", 10.0, 10.0, 100.0, 10.0),
        ("dipole", 70.0, 70.0, 500.0, 12.0),
    ]
    truth = QTable(rows=rows, names=("kind", "x", "y", "flux", "snr"), units={"x": u.pix, "y": u.pix, "flux": u.adu})
    image = np.zeros((100, 100), np.float32)
    image[5:15, 5:15] = np.nan
    path = tmp_path / "difference.fits"
    fits.HDUList([fits.PrimaryHDU(), fits.ImageHDU(image, name="SCI")]).writeto(path)
    return truth, path


def catalog(*rows):
    x, y, flux, flags = np.array(rows, float).reshape(-1, 4).T
    return Catalog({"x": x * u.pix, "y": y * u.pix, "flux": flux * u.adu, "flags": flags.astype(np.int32)})


def test_recover_counts_sign_distance_and_usable_pixels(truth_and_files):
    truth, path = truth_and_files
    found = demo.recover(
        truth,
        catalog((51, 50, 98, 0), (80, 21, 90, 0), (73, 71, -30, 0), (40, 10, 9, 0), (40, 90, 9, bits("MASKED"))),
        path,
    )
    assert list(found.kind) == ["transient", "transient", "dipole"]
    assert list(found.found) == [True, False, True]
    assert found.counts("transient") == "1 of 2"
    assert found.share == 0.5
    assert found.flux == (pytest.approx(0.98), pytest.approx(0.1))
    assert (found.unexplained, found.doubtful) == (1, 1)


def test_recover_with_an_empty_catalogue(truth_and_files):
    found = demo.recover(*truth_and_files[:1], catalog(), truth_and_files[1])
    assert found.share == 0
    assert np.isnan(found.flux[0])
