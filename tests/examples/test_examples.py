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


def test_the_code_of_the_readme(tmp_path, monkeypatch, simulated):
    (tmp_path / "science.fits").symlink_to(simulated.science)
    (tmp_path / "reference.fits").symlink_to(simulated.reference)
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL):
        exec(block, names)
    assert len(names["catalog"])
    assert np.isfinite(skydelta.read("difference.fits").image).mean() > 0.9


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
