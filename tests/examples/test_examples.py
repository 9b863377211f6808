# SPDX-License-Identifier: BSD-3-Clause
"""The examples run as they are, and the code of the README."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from astropy.table import Table

import skydelta
from skydelta.io.catalog import Catalog
from skydelta.pipeline.runner import run
from skydelta.pipeline.simulate import simulate

ROOT = Path(__file__).resolve().parents[2]


def test_step_by_step(tmp_path):
    command = [sys.executable, ROOT / "examples" / "step_by_step.py", tmp_path / "out"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "flux_err" in done.stdout
    assert len(Catalog.load(tmp_path / "out" / "catalog.ecsv")) >= 3


def test_the_code_of_the_readme(tmp_path, monkeypatch):
    changes = simulate(tmp_path, size=320, seed=3).changes
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL):
        exec(block, names)
    found, plain = names["catalog"], skydelta.read("difference.fits")
    x, y = (np.rint(changes[c].value).astype(int) for c in ("x", "y"))
    bright = changes[(changes["snr"] > 10) & np.isfinite(plain.image[y, x])]
    assert len(bright) >= 3
    for row in bright:
        assert np.hypot(found["x"].value - row["x"].value, found["y"].value - row["y"].value).min() < 6, row["kind"]


def test_night(tmp_path):
    pairs = []
    for seed in (1, 2):
        truth = simulate(tmp_path / f"field-{seed}", size=384, seed=seed, transients=4, saturated=0)
        pairs.append((f"field-{seed}", str(truth.science), str(truth.reference)))
    table = tmp_path / "pairs.ecsv"
    Table(rows=pairs, names=("id", "science", "reference")).write(table, format="ascii.ecsv")
    result = run(ROOT / "examples" / "night.toml", inputs={"table": table}, out=tmp_path / "out", device="cpu")
    assert [r["error"] for r in result.receipts] == [None, None]
    assert (tmp_path / "out" / "items" / "field-2" / "catalog.reg").is_file()
    assert result.report.is_file()
