# SPDX-License-Identifier: BSD-3-Clause
"""Every executor leaves the same bytes, on real items of the main job."""

import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from threadpoolctl import ThreadpoolController, threadpool_info

import skydelta
from skydelta.errors import ConfigError, ExitCode, WorkerError
from skydelta.pipeline.executors import dask
from skydelta.pipeline.executors.threads import SWITCH, Threads
from skydelta.pipeline.graph import bind, external
from skydelta.pipeline.items import WorkItem
from skydelta.pipeline.job import Job, one_blas_thread
from skydelta.pipeline.receipts import RunFolder
from skydelta.pipeline.simulate import simulate
from skydelta.pipeline.workflow import load

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("SKYDELTA_SHARED") or ROOT.parent / "shared")


def files(out):
    """Every product of a run, receipts aside: they name times and workers."""
    products = {p.relative_to(out): p for p in (out / "items").rglob("*") if p.name != "receipt.json"}
    found = {name: path.read_bytes() for name, path in products.items() if path.is_file()}
    assert found
    combined = out / "catalog.parquet"
    return found | ({combined.name: combined.read_bytes()} if combined.is_file() else {})


def run(table, out, **keywords):
    result = skydelta.run("difference", {"table": table}, out=out, device="cpu", **keywords)
    assert [r["error"] for r in result.receipts] == [None] * len(result.receipts)
    assert result.exit_code == ExitCode.OK
    return files(out)


@pytest.fixture(scope="module")
def visit(tmp_path_factory):
    """A table of pairs, compressed and raw ones where the shared tool is, and the products of a serial run."""
    folder = tmp_path_factory.mktemp("visit")
    rows = ["id,science,reference"]
    simulate(folder / "simulated", size=224, seed=1, stars=50, transients=3, saturated=0, galaxies=2)
    rows.append("simulated,simulated/science.fits,simulated/reference.fits")
    tool = SHARED / "tools" / "make_visit.py"
    for name, options in (("rice", ["--compress", "rice"]), ("raw", ["--raw", "--seed", "2"])):
        if tool.is_file():
            size = ["--detectors", "1", "--n", "256", "--stars", "60"]
            subprocess.run([sys.executable, tool, folder / name, *size, *options], check=True, capture_output=True)
            rows.append(f"{name},{name}/sci_d00.fits,{name}/ref_d00.fits")
    (folder / "pairs.csv").write_text("\n".join(rows) + "\n")
    return folder / "pairs.csv", run(folder / "pairs.csv", folder / "serial")


def test_the_job_on_threads(visit, tmp_path):
    table, expected = visit
    assert run(table, tmp_path / "out", executor="threads", workers=2) == expected


def test_blas_has_one_thread_in_items_of_any_thread():
    """Also after items of another thread that still lives, as after a serial run; the last to leave gives it back."""

    def numbers():
        return {i["num_threads"] for i in threadpool_info() if i["user_api"] == "blas"}

    seen, both = [], threading.Barrier(2)

    def work(late):
        with one_blas_thread():
            both.wait(10)
            seen.append(numbers())
            if late:
                first.join(10)
                seen.append(numbers())

    blas = ThreadpoolController().select(user_api="blas")
    before = blas.limit(limits=2)
    with blas.limit(limits=None):  # leaving it lets other threads set the number
        two = numbers()
    try:
        if two != {2}:
            pytest.skip("this BLAS has no second thread")
        with one_blas_thread():
            seen.append(numbers())
        first, second = (threading.Thread(target=work, args=(late,)) for late in (False, True))
        first.start(), second.start()
        second.join(10)
        assert seen == [{1}] * 4
        assert numbers() == {2}
    finally:
        before.restore_original_limits()
        with blas.limit(limits=None):
            pass


def test_threads_give_way_often_and_leave_the_interpreter_as_it_was():
    def task(item, seat, tell, following):
        if item.id == "b":
            raise ValueError(item.id)
        return {"interval": sys.getswitchinterval()}

    before = sys.getswitchinterval()
    seen = []
    with pytest.raises(ValueError, match="b"):
        for receipt in Threads("cpu", 1).map(task, [WorkItem(name, {}) for name in "ab"]):
            seen.append(receipt["interval"])
    assert seen == [pytest.approx(SWITCH)] and before > SWITCH
    assert sys.getswitchinterval() == before


def test_the_job_on_dask(visit, tmp_path, cluster):
    table, expected = visit
    address = {"executor": "dask", "dask_address": cluster.scheduler_address}
    assert run(table, tmp_path / "out", **address) == expected
    again = skydelta.run("difference", {"table": table}, out=tmp_path / "out", device="cpu", **address)
    assert all(r["resumed"] for r in again.receipts)


def test_the_job_under_mpi(visit, tmp_path, finished):
    table, expected = visit
    words = ["run", "difference", "--set", f"inputs.table={table}", "--device", "cpu", "-o", tmp_path / "out"]
    code, out, err = finished(*words, "--executor", "mpi", ranks=2)
    assert (code, err) == (0, ""), err
    assert files(tmp_path / "out") == expected
    assert out.count("report:") == 1, "one rank talks"


NAMES = [f"i{n}" for n in range(7)]


@pytest.fixture
def small(items, tmp_path):
    """The same of a short chain on small images."""
    result = skydelta.run("faults.toml", items(*NAMES), out="serial", device="cpu")
    assert result.exit_code == ExitCode.OK
    return files(tmp_path / "serial")


@pytest.mark.parametrize("workers", [1, 3])
def test_threads(small, tmp_path, workers):
    result = skydelta.run(
        "faults.toml", {"table": "t.csv"}, out="out", device="cpu", executor="threads", workers=workers
    )
    assert [o.id for o in result.outcomes] == NAMES, "in the order of the items, whoever was first"
    assert files(tmp_path / "out") == small
    used = {r["worker"] for r in result.receipts}
    assert used <= {f"thread {n}" for n in range(workers)}


@pytest.mark.parametrize(("gpus", "count", "kind"), [(2, 2, "cuda"), (1, 4, "plain"), (0, 2, "plain")])
def test_dask_on_gpus(monkeypatch, gpus, count, kind):
    """dask-cuda, where it is installed, has a worker for a GPU; more workers than that are plain ones."""
    made = []

    def cluster(name):
        return lambda n_workers, **_: made.append((name, n_workers))

    monkeypatch.setattr(dask, "resolve", lambda device: SimpleNamespace(is_gpu=gpus > 0))
    monkeypatch.setattr(dask, "cuda_device_count", lambda: (gpus, ""))
    monkeypatch.setattr(dask, "_dask_cuda", lambda: SimpleNamespace(LocalCUDACluster=cluster("cuda")))
    executor = dask.Dask.__new__(dask.Dask)
    executor._device = "cuda"
    executor._distributed = SimpleNamespace(LocalCluster=cluster("plain"), Client=lambda *_, **__: None)
    executor._start(count)
    assert made == [(kind, count)]


def test_dask_client_of_a_notebook(small, tmp_path, cluster):
    from distributed import Client

    with Client(cluster) as client, client.as_current():
        skydelta.run("faults.toml", {"table": "t.csv"}, out="out", device="cpu", executor="dask")
        assert files(tmp_path / "out") == small
        assert client.status == "running", "a client that is lent stays open"
        with pytest.raises(ConfigError, match=r"run\.workers: the workers are those of the Dask cluster"):
            skydelta.run("faults.toml", {"table": "t.csv"}, out="more", executor="dask", workers=2)
    assert len({r["worker"] for r in map(receipt, NAMES)}) == 2


def receipt(item):
    return json.loads(Path("out", "items", item, "receipt.json").read_text())


def test_dask_of_ones_own(small, tmp_path, finished):
    words = ["run", "faults.toml", "--set", "inputs.table=t.csv", "--device", "cpu", "-o", "out"]
    code, out, err = finished(*words, "--executor", "dask", "--workers", 2)
    assert (code, err) == (0, ""), err
    assert files(tmp_path / "out") == small
    assert "7 done, 0 failed" in out


@pytest.mark.parametrize("ranks", [1, 4])
def test_mpi(small, tmp_path, finished, ranks):
    words = ["run", "faults.toml", "--set", "inputs.table=t.csv", "--device", "cpu", "-o", "out"]
    code, out, err = finished(*words, "--executor", "mpi", ranks=ranks)
    assert (code, err) == (0, ""), err
    assert files(tmp_path / "out") == small
    assert out.count("7 done, 0 failed") == 1
    assert len(list((tmp_path / "out").glob("logs/*"))) == ranks - 1


def test_what_travels_is_small_and_has_no_pixels(tmp_path):
    flow = load("difference", inputs={"science": "a.fits", "reference": "b.fits"})
    bind(flow.steps, dict.fromkeys(external(flow.steps), str))
    job = Job.of(flow, RunFolder(tmp_path), False, None)
    sent = pickle.dumps((job, WorkItem("a", {"science": "a.fits", "reference": "b.fits"})))
    assert len(sent) < 20_000
    assert pickle.loads(sent)[0].described == flow.described()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"executor": "serial", "workers": 2}, "run.workers: serial has no such option; threads and dask have"),
        ({"executor": "mpi", "workers": 2}, "run.workers: mpi has no such option"),
        ({"executor": "threads", "dask_address": "tcp://x:1"}, "run.dask_address: threads has no scheduler; only dask"),
        ({"executor": "slurm"}, "run.executor: 'slurm' is not one of"),
        ({"executor": "threads", "workers": 0}, "run.workers: 0 is below 1"),
    ],
)
def test_options_that_do_not_go_together(items, options, message):
    with pytest.raises(ConfigError) as error:
        skydelta.run("faults.toml", items("a"), out="out", **options)
    assert message in str(error.value)


def test_no_scheduler_there(items, monkeypatch):
    monkeypatch.setattr(dask, "ANSWER", 1.0)
    with pytest.raises(WorkerError, match=r"dask: no scheduler answers at tcp://127\.0\.0\.1:1"):
        skydelta.run("faults.toml", items("a"), out="out", executor="dask", dask_address="tcp://127.0.0.1:1")
