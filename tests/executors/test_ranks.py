# SPDX-License-Identifier: BSD-3-Clause
"""MPI ranks: numbers on a machine, logs, errors that one rank tells, and what examples for clusters say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import skydelta
from skydelta.errors import ConfigError, ExitCode
from skydelta.pipeline.executors import base, mpi

ROOT = Path(__file__).resolve().parents[2]
SLURM = ROOT / "examples" / "slurm"
WORDS = ("faults.toml", "--set", "inputs.table=t.csv", "--device", "cpu", "-o", "out", "--executor", "mpi")


def test_two_nodes_simulated(items, plugin, tmp_path):
    """Temporary folders of their own, local ranks replaced: what a rank sees of its node is what it is told."""
    names = [f"i{n}" for n in range(12)]
    items(*names, faults={"i3 match": "algorithm"})
    line = []
    for node, ranks in (("n0", 2), ("n1", 2)):
        (tmp_path / node).mkdir()
        for local in range(ranks):
            line += [":"] if line else [Path(sys.executable).with_name("mpiexec")]
            line += ["-n", "1", "-env", "TMPDIR", tmp_path / node, "-env", mpi.LOCAL_RANK, str(local)]
            line += [sys.executable, "-m", "skydelta", "run", *WORDS]
    done = subprocess.run(line, env=plugin, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == ExitCode.SOME_FAILED, done.stderr
    assert "11 done, 1 failed" in done.stdout
    logs = [[json.loads(text) for text in p.read_text().splitlines()] for p in sorted(Path("out/logs").iterdir())]
    first = [lines[0] for lines in logs]
    assert [Path(f["temporary"]).name for f in first] == ["n0", "n1", "n1"]
    assert [f["seat"].rpartition(" ")[2] for f in first] == ["1", "0", "1"]
    expected = skydelta.run("faults.toml", {"table": "t.csv"}, out="serial", device="cpu")
    for name in names:
        for file in ("first.fits", "second.fits"):
            paths = [Path(out, "items", name, file) for out in ("out", "serial")]
            assert name == "i3" or paths[0].read_bytes() == paths[1].read_bytes()
    assert len(expected.outcomes) == 12
    ended = [
        e["item"]
        for e in map(json.loads, Path("out/events.jsonl").read_text().splitlines())
        if "item" in e and e["event"] in ("item_done", "item_failed")
    ]
    assert sorted(ended) == sorted(names), "each once"


def test_gpus_of_a_node_go_to_its_ranks_in_turn(monkeypatch):
    from skydelta.kernels.backend import Backend

    monkeypatch.setattr(base, "resolve", lambda asked: Backend("cuda", int(asked.partition(":")[2] or 0), asked))
    monkeypatch.setattr(base, "cuda_device_count", lambda: (4, ""))
    assert [base.device_of("auto", n) for n in range(6)] == ["cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:0", "cuda:1"]
    assert [base.device_of("cuda:2", n) for n in range(2)] == ["cuda:2", "cuda:2"]
    assert base.workers_for("auto", None, 1) == 4
    assert base.workers_for("cuda:2", None, 1) == 1
    assert base.workers_for("cuda", 8, 1) == 8


def test_workers_of_a_machine_share_cores_and_memory(monkeypatch):
    monkeypatch.setattr(base, "cores", lambda: 12)
    assert [base.share_of(n) for n in (1, 2, 5, 12, 40)] == [12, 6, 2, 1, 1]
    assert base.workers_for("cpu", None, 1000) == 12
    memory = base.DeviceSet.of(base.CPU).memory_budget()
    assert base.workers_for("cpu", None, memory // 3) == 3
    assert base.workers_for("cpu", None, 2 * memory) == 1


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--set", "steps.match.factr=1"), ExitCode.USAGE, "match.factr: unknown key"),
        (("--set", "inputs.table=none.csv"), ExitCode.NOTHING_USABLE, "none.csv: no such file"),
    ],
)
def test_one_rank_says_what_is_wrong(items, finished, words, code, message):
    items("a")
    status, out, err = finished("run", *WORDS, *words, ranks=2)
    assert status == code
    assert out == ""
    assert err.count("skydelta: ") == err.count(message) == 1


def test_a_local_rank_that_is_none(monkeypatch):
    monkeypatch.setenv(mpi.LOCAL_RANK, "one")
    with pytest.raises(ConfigError, match="SKYDELTA_LOCAL_RANK='one': a number from 0 is needed"):
        mpi._local_rank(3)
    monkeypatch.setenv(mpi.LOCAL_RANK, "1")
    assert mpi._local_rank(3) == 1
    monkeypatch.delenv(mpi.LOCAL_RANK)
    assert mpi._local_rank(3) == 3


@pytest.mark.parametrize("script", sorted(SLURM.iterdir()), ids=lambda p: p.name)
def test_examples_for_slurm(script):
    if script.suffix == ".py":
        compile(script.read_text(), str(script), "exec")
        return
    subprocess.run(["bash", "-n", script], check=True)
    from click.testing import CliRunner

    from skydelta.pipeline.cli import cli

    text = CliRunner().invoke(cli, ["run", "--help"]).output
    used = {
        w for line in script.read_text().splitlines() if "skydelta run" in line for w in line.split() if w[:2] == "--"
    }
    assert used
    assert all(option in text for option in used)
    assert os.access(script, os.R_OK)
