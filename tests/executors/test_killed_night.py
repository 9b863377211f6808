# SPDX-License-Identifier: BSD-3-Clause
"""The shipped workflow `difference-night`, killed under one executor and resumed under another: the bytes of a run."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import support_night
from support_cli import call

from skydelta.errors import ExitCode

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    """Folder of a small night, and the products of a serial run."""
    folder = tmp_path_factory.mktemp("night")
    support_night.files(folder)
    done = call(*support_night.words(folder, folder / "serial"))
    assert done.exit_code == ExitCode.OK, done.output
    return folder, support_night.products(folder / "serial")


def killed(process, out, after, whom):
    """Kill a process of a run when so many items of each pass have ended; what is left of it has ended then too."""
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        lines = (out / "events.jsonl").read_text().splitlines() if (out / "events.jsonl").exists() else []
        kinds = [json.loads(line)["event"] for line in lines if line.endswith("}")]
        first, second = kinds, []
        if "second_pass_started" in kinds:
            place = kinds.index("second_pass_started")
            first, second = kinds[:place], kinds[place:]
        if all(part.count("item_done") >= n for part, n in zip((first, second), after, strict=True)):
            break
        time.sleep(0.005)
    os.kill(whom(), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode not in (0, ExitCode.INTERRUPTED)
    assert (out / ".work").is_dir()
    return {place: {p.parent.name for p in (out / place).glob("*/receipt.json")} for place in ("items", "second_pass")}


def goes_on(folder, out, left, *options):
    """The same command does what is left, and no more; nothing of the killed run stays."""
    done = call(*support_night.words(folder, out, *options))
    assert done.exit_code == ExitCode.OK, done.output
    assert done.stdout.count("done already") == len(left["items"])
    lines = (out / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines if line.endswith("}")]
    last = events[max(n for n, e in enumerate(events) if e["event"] == "run_started") :]
    assert sum(e["event"] == "item_done" for e in last) == 6 - sum(map(len, left.values()))
    assert not (out / ".work").exists()
    assert not list(out.rglob("*.part"))
    return support_night.products(out)


def test_threads_killed_in_the_first_pass_and_dask_goes_on(night, tmp_path, command, cluster):
    folder, expected = night
    out = tmp_path / "out"
    words = support_night.words(folder, out, "--executor", "threads", "--workers", "1")
    process = command(*words)
    left = killed(process, out, (1, 0), lambda: process.pid)
    assert left["items"]
    address = ("--executor", "dask", "--dask-address", cluster.scheduler_address)
    assert goes_on(folder, out, left, *address) == expected


def test_rank_0_killed_in_the_second_pass_and_a_serial_run_goes_on(night, tmp_path, command):
    folder, expected = night
    out = tmp_path / "out"
    process = command(*support_night.words(folder, out, "--executor", "mpi"), ranks=2)
    left = killed(process, out, (3, 1), lambda: rank_0(process.pid))
    assert len(left["items"]) == 3
    workers = {json.loads(p.read_text())["worker"] for p in (out / "items").glob("*/receipt.json")}
    assert len(workers) == 2, "both ranks have worked"
    assert goes_on(folder, out, left) == expected


def rank_0(launcher):
    """The process of rank 0 below a launcher."""
    known = {launcher}
    for _ in range(3):
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
                words, variables = (stat.with_name(n).read_bytes() for n in ("cmdline", "environ"))
            except OSError:
                continue
            if parent in known:
                known.add(int(stat.parent.name))
                if b"skydelta" in words and b"PMI_RANK=0\0" in variables:
                    return int(stat.parent.name)
    raise AssertionError("no rank 0")
