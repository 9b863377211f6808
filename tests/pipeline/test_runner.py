# SPDX-License-Identifier: BSD-3-Clause
"""What a run does with its items: receipts, resume, failures, exit codes; on toy stages."""

import contextlib
import fcntl
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import support_toys
from astropy.table import Table
from threadpoolctl import threadpool_info, threadpool_limits

from skydelta.errors import ConfigError, DeviceError, ExitCode, InputError
from skydelta.pipeline import runner
from skydelta.pipeline.job import one_blas_thread
from skydelta.pipeline.runner import run
from skydelta.stages import registry

ROOT = Path(__file__).resolve().parents[2]


def go(out="out", a="1", b="2", **keywords):
    return run("sum.toml", inputs={"a": a, "b": b}, out=out, device="cpu", **keywords)


def receipt(item="1", out="out"):
    return json.loads(Path(out, "items", item, "receipt.json").read_text())


def snapshot(folder):
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in Path(folder, "items").rglob("*") if p.is_file()}


def table(rows):
    Table(rows=rows, names=("id", "a", "b")).write("t.csv", format="ascii.csv", overwrite=True)
    return {"table": "t.csv"}


def test_a_run_leaves_receipt_result_summary_events_and_report(sums):
    result = go()
    assert result.exit_code == ExitCode.OK
    assert (sums / "out/items/1/number.txt").read_text() == "3.0\n"
    r = receipt()
    assert r["status"] == "done"
    assert [s["id"] for s in r["steps"]] == ["first", "second", "toy_add", "toy_save"]
    assert r["steps"][0]["config"] == {"scale": 1.0, "offset": None}
    assert r["steps"][0]["version"] == 2
    assert r["steps"][1]["metrics"] == {"read": 2.0}
    assert all(s["seconds"] >= 0 and s["cpu_seconds"] >= 0 for s in r["steps"])
    assert set(r["outputs"]) == {"number.txt"}
    assert r["device"] == {"asked": "cpu", "used": "cpu"}
    made = json.loads((sums / "out/run.json").read_text())
    assert made["workflow"]["steps"][0]["stage"] == "toy_read"
    assert made["versions"]["numpy"]
    row = Table.read(sums / "out/summary.ecsv")[0]
    assert (row["id"], row["status"]) == ("1", "done")
    assert not row["error"]
    events = [json.loads(line) for line in (sums / "out/events.jsonl").read_text().splitlines()]
    assert [e["event"] for e in events][:3] == ["run_started", "item_started", "step_started"]
    assert events[-1]["event"] == "run_done"
    assert sum(e["event"] == "step_done" for e in events) == 4
    assert result.report.read_text().startswith("<!")
    assert not list((sums / "out").rglob("*.part"))
    assert "done" in result._repr_html_()


def test_what_no_later_step_reads_is_gone(sums):
    gc.collect()  # what earlier tests have left in cycles
    go()
    alive = receipt()["steps"][-1]["metrics"]["alive"]
    assert alive == 1, "both summands are needed no more when the sum is written"


def test_a_done_item_is_not_run_again(sums):
    go()
    before = snapshot("out")
    again = go()
    assert again.receipts[0]["resumed"] is True
    assert again.exit_code == ExitCode.OK
    assert snapshot("out") == before
    go(overwrite=True)
    after = snapshot("out")
    assert {p: b[1] for p, b in after.items()} != {p: b[1] for p, b in before.items()}
    assert after[Path("out/items/1/number.txt")][0] == before[Path("out/items/1/number.txt")][0]


@pytest.mark.parametrize("damage", ["changed", "missing", "receipt", "half a receipt"])
def test_a_damaged_item_is_done_again(sums, damage):
    go()
    number, paper = sums / "out/items/1/number.txt", sums / "out/items/1/receipt.json"
    if damage == "changed":
        number.write_text("4.0\n")
    elif damage == "missing":
        number.unlink()
    elif damage == "receipt":
        paper.unlink()
    else:
        paper.write_text(paper.read_text()[:100])
    assert "resumed" not in go().receipts[0]
    assert number.read_text() == "3.0\n"
    assert receipt()["status"] == "done"


def test_an_input_with_other_bytes_is_done_again_one_that_moved_is_not(sums):
    go()
    (sums / "moved").mkdir()
    (sums / "moved/1").write_text("1")
    assert go(a="moved/1").receipts[0].get("resumed")
    (sums / "1").write_text("5")
    assert "resumed" not in go().receipts[0]
    assert (sums / "out/items/1/number.txt").read_text() == "7.0\n"


def test_files_named_in_the_steps_belong_to_the_identity_by_content(sums):
    (sums / "deep").mkdir()
    (sums / "deep/sum.toml").write_text(support_toys.WORKFLOW)
    text = support_toys.WORKFLOW.replace('{ path = "a" }', '{ path = "a" }\noffset = "more"', 1)
    (sums / "deep/sum.toml").write_text(text)
    (sums / "deep/more").write_text("10")
    pair = {"a": "1", "b": "2"}
    go_deep = lambda: run("deep/sum.toml", inputs=pair, out="out", device="cpu")  # noqa: E731
    assert go_deep().receipts[0]["status"] == "failed", "1 + 10 + 2 is 13"
    (sums / "deep/more").write_text("20")
    go_deep()
    assert (sums / "out/items/1/number.txt").read_text() == "23.0\n"
    assert go_deep().receipts[0].get("resumed")
    (sums / "deep/more").write_text("21")
    assert "resumed" not in go_deep().receipts[0]
    assert json.loads((sums / "out/run.json").read_text())["files"] == {"first": {"offset": str(sums / "deep/more")}}
    # another file by option is the same workflow with other content
    (sums / "more").write_text("21")
    assert run("deep/sum.toml", inputs=pair, out="out", set_=["steps.first.offset=more"]).receipts[0].get("resumed")


def test_the_folder_of_another_workflow_is_refused(sums):
    go()
    before = snapshot("out")
    with pytest.raises(ConfigError, match="holds a run of another workflow or configuration"):
        go(set_=["steps.toy_add.highest=50"])
    assert snapshot("out") == before
    assert go(a="3", set_=["steps.toy_add.highest=50"], overwrite=True).exit_code == ExitCode.OK
    assert [p.name for p in (sums / "out/items").iterdir()] == ["3"], "items of the other workflow would mislead"


def test_a_folder_with_other_files_is_refused(sums):
    (sums / "data").mkdir()
    (sums / "data/precious").write_text("x")
    with pytest.raises(ConfigError, match="not empty and no run"):
        go("data")
    go("data", overwrite=True)
    assert (sums / "data/precious").read_text() == "x"
    with pytest.raises(InputError, match="cannot be written: Not a directory") as error:
        go("1/out")
    assert error.value.exit_code == ExitCode.NOTHING_USABLE  # as of every other command


def test_two_runs_in_one_folder_at_once_are_refused_and_a_dead_one_is_no_obstacle(sums):
    go()
    with (sums / "out/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another process is running in this folder"):
            go()
    assert go().exit_code == ExitCode.OK


@pytest.mark.parametrize(
    ("b", "code", "message"),
    [
        ("12", ExitCode.SOME_FAILED, r"toy_add: unexpected ZeroDivisionError: thirteen is bad luck (support_toys.py:"),
        ("14", ExitCode.DEVICE, "toy_add: out of memory: 15 GiB"),
        ("15", ExitCode.NOTHING_USABLE, "toy_add: 16 is off by 5"),
        ("none", ExitCode.NOTHING_USABLE, "second: "),
    ],
)
def test_one_item_that_fails_gives_the_code_of_its_error(sums, b, code, message):
    result = go(b=b)
    assert result.exit_code == code
    error = receipt()["error"]
    assert error["message"].startswith(message)
    assert "\n" not in error["message"]
    assert ("traceback" in error) == (b in ("12", "14"))
    row = Table.read(sums / "out/summary.ecsv")[0]
    assert (row["status"], row["error"]) == ("failed", error["message"])


def test_an_algorithm_that_fails_leaves_its_numbers(sums):
    (sums / "big").write_text("200")
    result = go(b="big")
    assert result.exit_code == ExitCode.ALGORITHM
    error = receipt()["error"]
    assert error == {
        "step": "toy_add",
        "message": "toy_add: 201.0 is above 100.0",
        "exit_code": 4,
        "numbers": {"total": 201.0},
    }
    assert [s["id"] for s in receipt()["steps"]] == ["first", "second", "toy_add"]


def test_a_failure_that_still_writes(sums):
    go(b="15")
    assert receipt()["status"] == "failed"
    assert (sums / "out/items/1/number.txt").read_text() == "16.0\n"
    assert receipt()["steps"][2]["flags"] == {"misaligned": "toy_add: 16 is off by 5"}


def test_a_failed_item_is_tried_again(sums):
    go(b="none")
    (sums / "none").write_text("3")
    assert go(b="none").exit_code == ExitCode.OK


def test_others_go_on_after_a_failure(sums):
    rows = [("x", "1", "2"), ("bad", "1", "12"), ("y", "3", "4")]
    result = run("sum.toml", inputs=table(rows), out="out")
    assert result.exit_code == ExitCode.SOME_FAILED
    assert [r["status"] for r in result.receipts] == ["done", "failed", "done"]
    summary = Table.read("out/summary.ecsv")
    assert list(summary["id"]) == ["bad", "x", "y"]
    assert list(summary["status"]) == ["failed", "done", "done"]
    result = run("sum.toml", inputs=table(rows[1:2]), out="out2")
    assert result.exit_code == ExitCode.SOME_FAILED, "one item: the code of its error"
    result = run("sum.toml", inputs=table([("p", "1", "12"), ("q", "0", "13")]), out="out3")
    assert result.exit_code == ExitCode.NOTHING_USABLE


def test_stop_after_the_first_failure(sums):
    rows = [("x", "1", "2"), ("bad", "1", "12"), ("y", "3", "4")]
    result = run("sum.toml", inputs=table(rows), out="out", set_=["run.on_error=stop"])
    assert [r["id"] for r in result.receipts] == ["x", "bad"]
    assert result.exit_code == ExitCode.SOME_FAILED


def test_limit_and_a_later_run_of_all(sums):
    inputs = table([("x", "1", "2"), ("y", "3", "4")])
    assert len(run("sum.toml", inputs=inputs, out="out", limit=1).receipts) == 1
    result = run("sum.toml", inputs=inputs, out="out")
    assert [bool(r.get("resumed")) for r in result.receipts] == [True, False]


def test_the_summary_covers_the_whole_folder(sums):
    go()
    go(a="3")
    assert list(Table.read("out/summary.ecsv")["id"]) == ["1", "3"]


def test_flags_reach_the_summary(sums):
    go(b="16")
    assert Table.read("out/summary.ecsv")[0]["flags"] == "odd"


def test_interrupted_and_taken_up_again(sums):
    inputs = table([("x", "1", "2"), ("stop", "1", "13"), ("y", "3", "4")])
    with pytest.raises(KeyboardInterrupt):
        run("sum.toml", inputs=inputs, out="out")
    assert list(Table.read("out/summary.ecsv")["id"]) == ["x"]
    assert not (sums / "out/items/stop/receipt.json").exists()
    (sums / "13").write_text("20")
    result = run("sum.toml", inputs=inputs, out="out")
    assert [bool(r.get("resumed")) for r in result.receipts] == [True, False, False]
    assert result.exit_code == ExitCode.OK


def test_sigint_ends_the_command_with_130_and_the_same_command_goes_on(tmp_path, simulated):
    command = [sys.executable, "-m", "skydelta", "difference", simulated.science, simulated.reference]
    command += ["-o", tmp_path / "out", "--id", "f", "--device", "cpu"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    events = tmp_path / "out/events.jsonl"
    deadline = time.monotonic() + 120
    while not (events.exists() and "step_started" in events.read_text()):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == ExitCode.INTERRUPTED, stderr
    assert stderr.splitlines()[-1] == "skydelta: interrupted; the same command goes on where it stopped"
    assert "Traceback" not in stderr
    result = run(
        "difference",
        inputs={"science": simulated.science, "reference": simulated.reference},
        out=tmp_path / "out",
        id_="f",
        device="cpu",
    )
    assert result.exit_code == ExitCode.OK


def test_a_signal_whose_exception_is_lost_ends_the_run_at_the_next_step(sums, monkeypatch):
    """Python drops what a signal raises inside a callback from C, as in a compiler."""
    whole = support_toys.ToyRead.run

    def deaf(self, ctx, *, path):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        return whole(self, ctx, path=path)

    monkeypatch.setattr(support_toys.ToyRead, "run", deaf)
    with pytest.raises(KeyboardInterrupt):
        go()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert not list(Path("out").rglob("*.part"))
    assert not Path("out/items/1").exists()
    monkeypatch.undo()
    monkeypatch.chdir(sums)
    for name, target in support_toys.STAGES.items():
        monkeypatch.setitem(registry.BUILTIN, name, target)
    assert go().exit_code == ExitCode.OK, "it is forgotten then"


def test_a_device_that_is_missing(sums, monkeypatch):
    def none(_):
        raise DeviceError("device 'cuda' asked for, but no CUDA device")

    monkeypatch.setattr(runner, "resolve", none)
    with pytest.raises(DeviceError):
        go()
    assert not (sums / "out").exists()


def test_blas_has_one_thread_inside_an_item(sums, monkeypatch):
    from threadpoolctl import threadpool_info

    seen = []

    def spy(self, ctx, *, number, before=support_toys.ToySave.run):
        seen.extend(i["num_threads"] for i in threadpool_info() if i["user_api"] == "blas")
        return before(self, ctx, number=number)

    monkeypatch.setattr(support_toys.ToySave, "run", spy)
    go()
    assert seen
    assert set(seen) == {1}


def test_every_thread_limits_blas_and_lifts_it():
    """Also when another thread has set a limit before, and when another one lifts it."""
    found = []

    def count():
        return [i["num_threads"] for i in threadpool_info() if i["user_api"] == "blas"]

    def item(hold=None):
        with one_blas_thread():
            found.append(count())
            if hold is not None:
                hold.wait(30)

    with threadpool_limits(limits=2, user_api="blas"):
        before = count()
        assert set(before) == {2}
        item()
        for _ in range(2):
            other = threading.Thread(target=item)
            other.start()
            other.join()
            assert count() == before
        hold = threading.Event()
        first = threading.Thread(target=item, args=(hold,))
        first.start()
        while len(found) < 4:
            time.sleep(0.01)
        with one_blas_thread():  # outlasts the thread that has set the limit
            hold.set()
            first.join()
            found.append(count())
        assert count() == before
    assert all(n == 1 for counts in found for n in counts), found


def test_bad_workflow_or_inputs_touch_nothing(sums):
    for keywords in ({"set_": ["steps.first.scale=9"]}, {"id_": "../x"}):
        with pytest.raises((ConfigError, InputError)):
            go(**keywords)
    with pytest.raises(ConfigError, match=r"inputs\.c: no step reads it"):
        run("sum.toml", inputs={"a": "1", "b": "2", "c": "3"}, out="out")
    assert not (sums / "out").exists()


def test_settings_of_an_item_belong_to_its_identity(sums):
    rows = [("x", "1", "2", "2.0"), ("y", "1", "2", "")]
    names = ("id", "a", "b", "first.scale")
    Table(rows=rows, names=names).write("t.csv", format="ascii.csv", overwrite=True)
    result = run("sum.toml", inputs={"table": "t.csv"}, out="out")
    assert [(sums / f"out/items/{i}/number.txt").read_text() for i in "xy"] == ["4.0\n", "3.0\n"]
    assert [r["settings"] for r in result.receipts] == [{"first.scale": 2.0}, {}]
    rows[0] = ("x", "1", "2", "3.0")
    Table(rows=rows, names=names).write("t.csv", format="ascii.csv", overwrite=True)
    again = run("sum.toml", inputs={"table": "t.csv"}, out="out")
    assert [o.resumed for o in again.outcomes] == [False, True]
    assert (sums / "out/items/x/number.txt").read_text() == "5.0\n"
    rows[1] = ("y", "1", "2", "9")
    Table(rows=rows, names=names).write("t.csv", format="ascii.csv", overwrite=True)
    with pytest.raises(ConfigError, match=r"item y: steps\[0\]\.toy_read\.scale: 9 is above"):
        run("sum.toml", inputs={"table": "t.csv"}, out="out")
