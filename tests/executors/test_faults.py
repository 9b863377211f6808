# SPDX-License-Identifier: BSD-3-Clause
"""Faults at load, match and write, under each executor: nothing lost, nothing half, the same command goes on."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import support_faults
import support_standin

import skydelta
from skydelta.errors import ConfigError, ExitCode, InputError, WorkerError
from skydelta.kernels import backend
from skydelta.pipeline import runner
from skydelta.pipeline.executors import dask

STAGES = ("load", "match", "write")
WORDS = ("run", "faults.toml", "--set", "inputs.table=t.csv", "--device", "cpu", "-o", "out")
EXECUTORS = ("serial", "threads", "dask")


@pytest.fixture(params=EXECUTORS)
def spread(request):
    """Options of a run in this process with each executor."""
    if request.param == "dask":
        return {"executor": "dask", "dask_address": request.getfixturevalue("cluster").scheduler_address}
    return {"executor": request.param, **({"workers": 2} if request.param == "threads" else {})}


def run(out="out", **options):
    return skydelta.run("faults.toml", {"table": "t.csv"}, out=out, device="cpu", **options)


def receipt(item, out="out"):
    path = Path(out, "items", item, "receipt.json")
    return json.loads(path.read_text()) if path.exists() else None


def products(out):
    found = {p.relative_to(out): p.read_bytes() for p in Path(out, "items").rglob("*.fits")}
    assert found
    return found


def nothing_half(out="out", killed=False):
    """Every item has a receipt and the files that it names, or is not there; an attempt is left only where who made it
    was killed, in its own folder."""
    assert not [p for p in Path(out).rglob("*.part") if not (killed and ".work" in p.parts)]
    for folder in Path(out, "items").glob("*"):
        named = receipt(folder.name, out)["outputs"]
        assert {p.name for p in folder.iterdir()} == {*named, "receipt.json"}


def whole(ids):
    """What a run without faults leaves; all items of ``out`` are as there, none more."""
    result = run("clean")
    assert result.exit_code == ExitCode.OK
    assert products("out") == products("clean")
    assert {p.name for p in Path("out", "items").iterdir()} == set(ids)
    assert not Path("out", ".work").exists()
    nothing_half()


SOFT = {
    "raise": ("unexpected ZeroDivisionError: built into", 0),
    "algorithm": ("no stars in", 0),
    "memory": ("out of memory: 12 GiB", 0),
    "read": ("Input/output error", 2),
    "full": ("No space left on device", 0),
    "read_once": (None, 1),
}
"""Faults of one item: what is said of it, and how many attempts came before the last."""

MATRIX = {f"{kind}-{stage}": (kind, stage) for kind in SOFT for stage in STAGES}


def soft(items):
    ids = ["first", *MATRIX, "last"]
    items(*ids, faults={f"{i} {stage}": kind for i, (kind, stage) in MATRIX.items()})
    return ids


def check_soft(statuses):
    assert statuses.pop("first") == statuses.pop("last") == "done", "others go on"
    for name, (kind, stage) in MATRIX.items():
        message, attempts = SOFT[kind]
        found = receipt(name)
        assert statuses[name] == ("failed" if message else "done")
        if kind == "full":
            assert found is None, "nothing could be left"
            continue
        assert len(found["attempts"]) == attempts, name
        assert all(a["step"] == stage and "Input/output error" in a["message"] for a in found["attempts"])
        if message:
            assert found["error"]["message"].startswith(f"{stage}: ")
            assert message in found["error"]["message"]
    nothing_half()


def test_faults_of_items(items, spread):
    ids = soft(items)
    result = run(**spread)
    assert [o.id for o in result.outcomes] == ids, "none lost, none twice"
    assert result.exit_code == ExitCode.SOME_FAILED
    said = {r["id"]: (r["error"] or {}).get("message", "") for r in result.receipts}
    assert all("No space left on device" in said[f"full-{stage}"] for stage in STAGES)
    check_soft({o.id: o.status for o in result.outcomes})
    items.happen()
    again = run(**spread)
    assert again.exit_code == ExitCode.OK
    assert [o.resumed for o in again.outcomes] == [i in ("first", "last") or "once" in i for i in ids]
    whole(ids)


def test_faults_of_items_under_mpi(items, finished):
    ids = soft(items)
    code, out, err = finished(*WORDS, "--executor", "mpi", ranks=2)
    assert code == ExitCode.SOME_FAILED, err
    said = dict(line.split(": ")[:2] for line in out.splitlines() if line.split(":")[0] in ids)
    check_soft({i: word.split()[0].rstrip(",") for i, word in said.items()})
    assert err.count("No space left on device") == 3
    items.happen()
    code, _, err = finished(*WORDS, "--executor", "mpi", ranks=2)
    assert (code, err) == (0, ""), err
    whole(ids)


def when_reached(act, after=("out/items/a/receipt.json",)):
    """Call ``act`` once an item hangs and another is done, then let it go on."""

    def wait():
        end = time.monotonic() + 120
        while not all(map(os.path.exists, ("reached", *after))) and time.monotonic() < end:
            time.sleep(0.02)
        act()
        time.sleep(0.2)
        Path("reached").unlink(missing_ok=True)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(items, spread, stage, number):
    items("a", "b", "c", faults={f"b {stage}": "hang"})
    thread = when_reached(lambda: os.kill(os.getpid(), number))
    with pytest.raises(KeyboardInterrupt):
        run(**spread)
    thread.join()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    items.happen()
    nothing_half()
    assert receipt("a")["status"] == "done"
    assert run(**spread).exit_code == ExitCode.OK
    whole("abc")


@pytest.mark.parametrize(
    ("stage", "number"), [("load", signal.SIGINT), ("match", signal.SIGTERM), ("write", signal.SIGINT)]
)
def test_interrupted_under_mpi(items, command, stage, number):
    items("a", "b", "c", faults={f"b {stage}": "hang"})
    process = command(*WORDS, "--executor", "mpi", ranks=2)
    when_reached(lambda: process.send_signal(number)).join()
    begin = time.monotonic()
    _, err = process.communicate(timeout=120)
    assert time.monotonic() - begin < 60
    assert process.returncode == ExitCode.INTERRUPTED, err
    assert err.count("skydelta: interrupted; the same command goes on where it stopped") == 1
    assert "Traceback" not in err
    items.happen()
    nothing_half()
    assert run().exit_code == ExitCode.OK
    whole("abc")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_the_process_is_killed(items, finished, stage, executor):
    items("a", "b", "c", faults={f"b {stage}": "kill_once"})
    options = {"executor": executor, **({"workers": 1} if executor == "threads" else {})}
    words = [w for name, value in options.items() for w in (f"--{name}", value)]
    assert finished(*WORDS, *words)[0] == -signal.SIGKILL
    nothing_half()
    (left,) = Path("out/.work").iterdir()
    assert re.fullmatch(r"b\.[0-9a-f]{12}", left.name), "as the docs say"
    assert receipt("a")["status"] == "done"
    result = run(**options)
    assert [(o.status, o.resumed) for o in result.outcomes] == [("done", True), ("done", False), ("done", False)]
    whole("abc")


def test_dask_workers_are_killed(items, cluster):
    """A worker that dies once costs nothing; an item that kills two fails; the others are done."""
    ids = ["a", *STAGES, "always", "z"]
    items(*ids, faults={f"{s} {s}": "kill_once" for s in STAGES} | {"always match": "kill"})
    address = {"executor": "dask", "dask_address": cluster.scheduler_address}
    result = run(**address)
    assert {o.id: o.status for o in result.outcomes} == dict.fromkeys(ids, "done") | {"always": "failed"}
    assert result.exit_code == ExitCode.SOME_FAILED
    assert receipt("always")["error"]["message"].startswith("2 workers died at this item, the last was tcp://")
    events = [json.loads(line) for line in Path("out/events.jsonl").read_text().splitlines()]
    assert sum(e["event"] == "item_retried" for e in events) == 4
    nothing_half()
    items.happen()
    assert run(**address).exit_code == ExitCode.OK
    whole(ids)


def test_a_dask_worker_dies_with_a_result(items, cluster, monkeypatch):
    """An item is done and its worker gone before the receipt was fetched: it is taken from the disk, not waited for."""
    items("a", "b", "c")
    whole_receipt, struck = dask.Dask._receipt, []

    def receipt_of_the_dead(self, task, flight, future, *rest):
        if future.status == "finished" and not struck:
            struck.append(flight.item.id)
            pid = self._client.run(os.getpid, workers=[flight.address])[flight.address]
            os.kill(pid, signal.SIGKILL)
        return whole_receipt(self, task, flight, future, *rest)

    monkeypatch.setattr(dask.Dask, "_receipt", receipt_of_the_dead)
    result = run(executor="dask", dask_address=cluster.scheduler_address)
    assert {o.id: o.status for o in result.outcomes} == dict.fromkeys("abc", "done")
    # another item may have been done on that worker meanwhile
    assert set(struck) <= {o.id for o in result.outcomes if o.resumed}
    whole("abc")


@pytest.mark.parametrize("stage", STAGES)
def test_a_rank_is_killed(items, finished, stage):
    """The launcher ends the job; what was done stays, and the same command does the rest."""
    items("a", "b", "c", "d", faults={f"c {stage}": "kill_once"})
    begin = time.monotonic()
    code, _, _ = finished(*WORDS, "--executor", "mpi", ranks=2)
    assert code != 0
    assert time.monotonic() - begin < 60
    nothing_half(killed=True)
    if stage == "match":
        assert finished(*WORDS, "--executor", "mpi", ranks=2)[0] == 0
    assert run().exit_code == ExitCode.OK
    nothing_half()
    whole("abcd")


ELSEWHERE = """
import sys, time, distributed
if __name__ == "__main__":
    running = distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=False, host="127.0.0.1", protocol="tcp://",
                                       dashboard_address="127.0.0.1:0", scheduler_kwargs={"dashboard": False})
    print(running.scheduler_address, flush=True)
    time.sleep(300)
"""


@pytest.mark.parametrize("stage", STAGES)
def test_the_scheduler_is_gone(items, plugin, monkeypatch, stage):
    monkeypatch.setattr(dask, "ANSWER", 3.0)
    items("a", "b", "c", faults={f"b {stage}": "hang"})
    line = [sys.executable, "-c", ELSEWHERE]
    with subprocess.Popen(line, env=plugin, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as other:
        address = other.stdout.readline().strip()
        thread = when_reached(other.kill)
        with pytest.raises(WorkerError, match="dask: the scheduler is gone; what is done stays"):
            run(executor="dask", dask_address=address)
        gone = time.monotonic()
        thread.join()
    assert time.monotonic() - gone < 60
    nothing_half()
    assert receipt("a")["status"] == "done"
    items.happen()
    assert [o.resumed for o in run().outcomes] == [True, False, False]
    whole("abc")


def test_the_scheduler_is_frozen(items, plugin, monkeypatch):
    """It is there and says nothing: Dask itself would wait for it without end."""
    monkeypatch.setattr(dask, "ANSWER", 3.0)
    monkeypatch.setattr(dask, "PATIENCE", 3.0)
    items("a", "b", faults={"b match": "hang"})
    line = [sys.executable, "-c", ELSEWHERE]
    with subprocess.Popen(line, env=plugin, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as other:
        address = other.stdout.readline().strip()
        thread = when_reached(lambda: other.send_signal(signal.SIGSTOP))
        with pytest.raises(
            WorkerError, match="dask: all workers are gone or frozen, or the scheduler is; what is done"
        ):
            run(executor="dask", dask_address=address)
        gone = time.monotonic()
        thread.join()
        other.kill()
    assert time.monotonic() - gone < 60
    assert receipt("a")["status"] == "done"
    items.happen()
    assert [o.resumed for o in run().outcomes] == [True, False]


def test_a_question_that_is_never_answered():
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        dask._within(0.05, threading.Event().wait)
    assert time.monotonic() - begin < 5
    assert dask._within(5.0, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        dask._within(5.0, lambda: 1 / 0)


def test_rank_0_is_killed_and_the_launcher_leaves_the_others(items, plugin):
    """The ranks that serve it see that it is gone, and end.

    The launcher here ends all ranks when one is killed, whatever it is told: it is stopped before, so it cannot.
    """
    items("a", "b", "c", faults={"a match": "hang", "b match": "hang"})
    line = [Path(sys.executable).with_name("mpiexec"), "-n", "2", sys.executable, "-m", "skydelta", *WORDS]
    nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    process = subprocess.Popen([*line, "--executor", "mpi"], env=plugin, **nowhere)
    ranks, stopped = [], []

    def strike():
        ranks.extend(ranks_of(process.pid))
        stopped.extend(above(ranks[0], process.pid))
        for pid in reversed(stopped):
            os.kill(pid, signal.SIGSTOP)
        os.kill(ranks[0], signal.SIGKILL)

    thread = when_reached(strike, after=())
    try:
        thread.join()
        assert len(ranks) == 2
        end = time.monotonic() + 40
        while time.monotonic() < end and alive(ranks[1]):
            time.sleep(0.05)
        assert not alive(ranks[1]), "it ends by itself"
        log = Path("out/logs/rank-0001.jsonl").read_text()
        assert "rank 0 has died: nobody is left to serve" in log
    finally:
        for pid in (*ranks[1:], *stopped):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait(60)
    items.happen()
    assert run().exit_code == ExitCode.OK
    whole("abc")


def above(pid, launcher):
    """The processes between a rank and its launcher, and the launcher."""
    found = []
    while pid != launcher:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found


def alive(pid):
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ranks_of(launcher):
    """Processes that run the command below a launcher, in the order of their ranks."""
    found, known = {}, {launcher}
    for _ in range(3):
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
                words = stat.with_name("cmdline").read_bytes()
                variables = stat.with_name("environ").read_bytes()
            except OSError:
                continue
            if parent in known:
                known.add(int(stat.parent.name))
                if b"skydelta" in words and b"PMI_RANK=" in variables:
                    found[int(variables.partition(b"PMI_RANK=")[2].partition(b"\0")[0])] = int(stat.parent.name)
    return [found[rank] for rank in sorted(found)]


def test_two_runs_in_one_folder(items, command):
    """A second run is refused whatever the first one's executor; a lock goes with its process, workers too."""
    for options, ranks in ((("--executor", "mpi"), 2), (("--executor", "dask", "--workers", "1"), None)):
        for folder in ("out", "clean"):
            shutil.rmtree(folder, ignore_errors=True)
        items("a", "b", faults={"a match": "hang", "b match": "hang"})
        process = command(*WORDS, *options, ranks=ranks)
        refused = []

        def second(refused=refused, process=process):
            try:
                run()
            except ConfigError as e:
                refused.append(str(e))
            os.killpg(process.pid, signal.SIGKILL) if ranks else process.kill()  # noqa: B023

        when_reached(second, after=()).join()
        process.communicate(timeout=120)
        assert refused == ["out: another process is running in this folder"]
        items.happen()
        assert run().exit_code == ExitCode.OK
        whole("ab")


def test_ctrl_c_on_a_terminal_with_dask_of_ones_own(items, command):
    """There the workers get the signal too."""
    items("a", "b", "c", faults={"b match": "hang"})
    process = command(*WORDS, "--executor", "dask", "--workers", "1")
    when_reached(lambda: os.killpg(process.pid, signal.SIGINT)).join()
    _, err = process.communicate(timeout=120)
    assert process.returncode == ExitCode.INTERRUPTED, err
    assert err == "skydelta: interrupted; the same command goes on where it stopped\n"
    items.happen()
    nothing_half()
    assert run().exit_code == ExitCode.OK
    whole("abc")


def test_out_of_memory_on_a_device(items, monkeypatch):
    support_standin.install(monkeypatch)
    items("a", "b", faults={"b match": "memory on device"})
    inputs = {"table": "t.csv"}
    result = skydelta.run("faults.toml", inputs, out="fail", device="cuda")
    assert [o.status for o in result.outcomes] == ["done", "failed"]
    assert receipt("b", "fail")["error"]["exit_code"] == ExitCode.DEVICE
    result = skydelta.run("faults.toml", inputs, out="out", device="cuda", set_=["run.out_of_memory=cpu"])
    assert [r["device"] for r in result.receipts] == [{"asked": "cuda", "used": d} for d in ("cuda:0", "cpu")]
    (attempt,) = receipt("b")["attempts"]
    assert attempt["device"] == "cuda:0"
    assert attempt["message"].startswith("match: out of memory: 12 GiB")
    assert backend.cupy().freed == 1, "others have the memory"


def test_little_memory_on_a_device(items, monkeypatch):
    """Tiles are split, which the receipt says; the product has the same bytes."""
    support_standin.install(monkeypatch)
    items("a", faults={"a match": "little memory on device"})
    (found,) = skydelta.run("faults.toml", {"table": "t.csv"}, out="out", device="cuda").receipts
    assert (found["status"], found["device"]["used"], found["attempts"]) == ("done", "cuda:0", [])
    assert [s["metrics"].get("tiles_split") for s in found["steps"]] == [None, None, 3, None]
    items.happen()
    assert run("clean").exit_code == ExitCode.OK
    assert products("out") == products("clean")


def test_what_covers_the_run_cannot_be_written(items, monkeypatch):
    def full(path, *_):
        raise InputError(f"{path}: cannot be written: No space left on device")

    items("a")
    monkeypatch.setattr(runner, "write_bytes", full)
    result = run()
    assert [o.status for o in result.outcomes] == ["done"]
    assert result.exit_code == ExitCode.SOME_FAILED


def test_bad_input_is_not_tried_again(items):
    items("a", "b")
    Path("b_science.fits").write_text("no FITS file")
    result = run()
    assert [o.status for o in result.outcomes] == ["done", "failed"]
    assert receipt("b")["attempts"] == []


def test_no_retries_when_none_are_allowed(items):
    items("a", faults={"a load": "read_once"})
    assert run(set_=["run.retries=0"]).exit_code != ExitCode.OK
    assert support_faults.PATIENCE > 0
