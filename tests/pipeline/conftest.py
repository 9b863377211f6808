# SPDX-License-Identifier: BSD-3-Clause
"""Toy stages for what a run does; one small simulated pair for the main job."""

import pytest
import support_cli
import support_toys

from skydelta.pipeline.simulate import simulate
from skydelta.stages import registry


@pytest.fixture
def sums(tmp_path, monkeypatch):
    """Folder with the workflow ``sum.toml``, the files ``1`` ... ``17``, and the toy stages registered."""
    for name, target in support_toys.STAGES.items():
        monkeypatch.setitem(registry.BUILTIN, name, target)
    (tmp_path / "sum.toml").write_text(support_toys.WORKFLOW)
    for n in range(1, 18):
        (tmp_path / str(n)).write_text(str(n))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def simulated(tmp_path_factory):
    """A dithered pair of 320 x 320 px."""
    return simulate(tmp_path_factory.mktemp("simulated"), size=320, seed=5, stars=80, transients=4, saturated=1)


@pytest.fixture
def skydelta():
    """``skydelta("run", "wf.toml", ...)``: the command line in this process."""

    return support_cli.call
