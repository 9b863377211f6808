# SPDX-License-Identifier: BSD-3-Clause
"""One small run with a good item, a failed one and a misaligned one, shared by the tests of the report."""

import shutil

import pytest
from astropy.table import Table

from skydelta.pipeline.runner import run
from skydelta.pipeline.simulate import simulate


@pytest.fixture(scope="package")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    good = simulate(folder / "good", size=384, seed=3, stars=160, transients=6, saturated=1)
    shifted = simulate(folder / "shifted", size=384, seed=3, stars=160, transients=6, saturated=1, wcs_error=(5, 0))
    rows = [
        ("good", good.science, good.reference),
        ("nothing", good.science, folder / "absent & gone.fits"),
        ("shifted", shifted.science, shifted.reference),
    ]
    table = Table(rows=[(i, str(s), str(r)) for i, s, r in rows], names=("id", "science", "reference"))
    table.write(folder / "pairs.ecsv", format="ascii.ecsv")
    return run("difference", inputs={"table": folder / "pairs.ecsv"}, out=folder / "run", device="cpu")


@pytest.fixture
def run_copy(finished, tmp_path):
    """The run's folder to change at will."""
    return shutil.copytree(finished.out, tmp_path / "run")
