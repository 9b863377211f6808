# SPDX-License-Identifier: BSD-3-Clause
"""Small items with faults for every executor, a Dask cluster that runs already, MPI ranks."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import support_faults

from skydelta.io.exposure import Exposure
from skydelta.io.fits.writer import write
from skydelta.stages import registry

ROOT = Path(__file__).resolve().parents[2]
HANG = 240
"""Seconds after which a run hangs; on a machine with nothing else to do, each takes a few."""


@pytest.fixture(scope="session")
def plugin(tmp_path_factory):
    """Variables of a process that finds the stages with faults."""
    folder = tmp_path_factory.mktemp("plugin")
    support_faults.install(folder)
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "support", folder)))
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PMI")}
    return {**kept, "PYTHONPATH": path, support_faults.VARIABLE: str(folder / "faults.json")}


@pytest.fixture
def items(tmp_path, monkeypatch, plugin):
    """``items("a", "b", faults={"a load": "raise"})``: pairs of images in a table, and the faults of those items."""
    for name, target in support_faults.STAGES.items():
        monkeypatch.setitem(registry.BUILTIN, name, target)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(support_faults.VARIABLE, plugin[support_faults.VARIABLE])
    monkeypatch.setattr(os, "write", os.write)  # a disk that is full here is none for the next test
    monkeypatch.setattr("skydelta.pipeline.job.PAUSE", 0.01)
    (tmp_path / "faults.toml").write_text(support_faults.WORKFLOW)

    def make(*ids, faults=None):
        rng = np.random.default_rng(1)
        lines = ["id,science,reference"]
        for name in ids:
            for role in ("science", "reference"):
                image = rng.normal(100, 10, (24, 32)).astype(np.float32)
                write(Exposure(image), tmp_path / f"{name}_{role}.fits")
            lines.append(f"{name},{name}_science.fits,{name}_reference.fits")
        (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
        happen(**(faults or {}))
        return {"table": "t.csv"}

    def happen(**faults):
        plan = {"dir": str(tmp_path), "faults": faults}
        Path(plugin[support_faults.VARIABLE]).write_text(json.dumps(plan))

    make.happen = happen
    return make


@pytest.fixture(scope="session")
def clusters(plugin):
    """A way to start a Dask cluster with two worker processes; all that were started end with the tests."""
    import distributed

    started = []

    def start():
        with pytest.MonkeyPatch.context() as patch:
            for name, value in plugin.items():
                patch.setenv(name, value)
            # spawned processes get sys.path from this one, not from the variable
            preload = "\n".join(["import sys", f"sys.path[:0] = {plugin['PYTHONPATH'].split(os.pathsep)}"])
            options = {
                "scheduler_kwargs": {"allowed_failures": 0, "dashboard": False},
                "dashboard_address": "127.0.0.1:0",
            }
            options |= {"host": "127.0.0.1", "silence_logs": 60, "preload": [preload], "memory_limit": 0}
            started.append(distributed.LocalCluster(n_workers=2, threads_per_worker=1, **options))

    start.started = started
    yield start
    for running in started:
        running.close(timeout=10)


@pytest.fixture
def cluster(clusters):
    """Scheduler of a Dask cluster with two worker processes, started by somebody else; a test may kill them."""
    end = time.monotonic() + 5
    while clusters.started and len(clusters.started[-1].scheduler.workers) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    if not clusters.started or len(clusters.started[-1].scheduler.workers) < 2:
        clusters()
    return clusters.started[-1]


@pytest.fixture
def command(plugin, tmp_path):
    """``command("run", "faults.toml", ..., ranks=2)``: the command line in processes of its own, started."""

    def start(*words, ranks=None, **variables):
        line = [sys.executable, "-m", "skydelta", *map(str, words)]
        if ranks is not None:
            line = [Path(sys.executable).with_name("mpiexec"), "-n", str(ranks), *line]
        pipe = subprocess.PIPE
        environment = {**plugin, **variables}
        return subprocess.Popen(
            line, env=environment, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )

    return start


@pytest.fixture
def finished(command):
    """The same, ended: exit code, what it said, and what it complained of."""

    def call(*words, **keywords):
        process = command(*words, **keywords)
        out, err = process.communicate(timeout=HANG)
        return process.returncode, out, err

    return call
