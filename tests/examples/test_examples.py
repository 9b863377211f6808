# SPDX-License-Identifier: BSD-3-Clause
"""The examples run as they are."""

import os
import subprocess
import sys
from pathlib import Path

from astropy.table import Table

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
