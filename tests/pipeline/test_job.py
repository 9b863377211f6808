# SPDX-License-Identifier: BSD-3-Clause
"""The main job as a whole: same input, same bytes; what a receipt says of it; what the memory does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest
from astropy.io import fits

from skydelta.io.catalog import Catalog
from skydelta.pipeline.plan import plan
from skydelta.pipeline.runner import run
from skydelta.pipeline.simulate import simulate
from skydelta.pipeline.workflow import load

ROOT = Path(__file__).resolve().parents[2]
PRODUCTS = ("difference.fits", "catalog.ecsv", "catalog.parquet", "stamps.fits", "preview.fits")


def job(truth, out, **keywords):
    inputs = {"science": truth.science, "reference": truth.reference}
    result = run("difference", inputs=inputs, out=out, id_="field", device="cpu", **keywords)
    assert result.receipts[0]["error"] is None
    return result


def products(out):
    return {name: (Path(out) / "items/field" / name).read_bytes() for name in PRODUCTS}


@pytest.fixture(scope="module")
def first(simulated, tmp_path_factory):
    out = tmp_path_factory.mktemp("first") / "out"
    job(simulated, out)
    return out


def same(a, b):
    for name in PRODUCTS:
        assert a[name] == b[name], name


def test_twice_gives_the_same_bytes(simulated, first, tmp_path):
    job(simulated, tmp_path / "out")
    same(products(first), products(tmp_path / "out"))
    assert (first / "catalog.parquet").read_bytes() == (tmp_path / "out/catalog.parquet").read_bytes()


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_changes_no_byte(simulated, first, tmp_path, threads):
    before = numba.get_num_threads()
    numba.set_num_threads(threads)
    try:
        job(simulated, tmp_path / "out")
    finally:
        numba.set_num_threads(before)
    same(products(first), products(tmp_path / "out"))


def test_two_processes_at_once_give_the_same_bytes(simulated, first, tmp_path):
    processes = []
    for threads in ("1", "2"):
        command = [sys.executable, "-m", "skydelta", "difference", simulated.science, simulated.reference]
        command += ["-o", tmp_path / threads, "--id", "field", "--device", "cpu"]
        # no limit on BLAS threads from outside: the run itself sees to that
        kept = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
        environment = {**kept, "PYTHONPATH": str(ROOT), "NUMBA_NUM_THREADS": threads}
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    for process in processes:
        _, stderr = process.communicate(timeout=300)
        assert process.returncode == 0, stderr.decode()
    for threads in ("1", "2"):
        same(products(first), products(tmp_path / threads))


def test_place_name_and_company_change_no_byte(simulated, first, tmp_path):
    """Neither the folder of the files, nor other items of the run, nor their order is in the products."""
    other = simulate(tmp_path / "other", size=256, seed=2, stars=50, transients=0, dipoles=0, saturated=0)
    rows = [f"other,{other.science},{other.reference}"]
    for role in ("science", "reference"):
        (tmp_path / f"{role}.fits").write_bytes(getattr(simulated, role).read_bytes())
    rows.append("field,science.fits,reference.fits")
    (tmp_path / "pairs.csv").write_text("\n".join(["id,science,reference", *rows]) + "\n")
    result = run("difference", inputs={"table": tmp_path / "pairs.csv"}, out=tmp_path / "out", device="cpu")
    assert [r["id"] for r in result.receipts] == ["other", "field"]
    assert result.exit_code == 0
    same(products(first), products(tmp_path / "out"))
    combined = Catalog.load(tmp_path / "out/catalog.parquet")
    assert combined.colnames[:3] == ["item", "id", "x"]
    assert (combined["item"] == "field").sum() == len(Catalog.load(first / "items/field/catalog.ecsv"))


def test_the_receipt_tells_the_whole_story(first):
    receipt = json.loads((first / "items/field/receipt.json").read_text())
    assert [s["id"] for s in receipt["steps"]][:3] == ["science", "reference", "background_science"]
    assert all(s["seconds"] >= 0 and s["config"] is not None and s["version"] >= 1 for s in receipt["steps"])
    assert set(receipt["outputs"]) == set(PRODUCTS)
    assert receipt["steps"][-1]["metrics"]["candidates"] == len(Catalog.load(first / "items/field/catalog.ecsv"))
    with fits.open(first / "items/field/difference.fits", checksum=True) as hdus:
        assert [h.name for h in hdus][:5] == ["PRIMARY", "SCI", "VAR", "DQ", "SNR"]
        text = "".join(h.header.tostring() for h in hdus)
    for secret in (str(first), "cpu", "serial", "DATE    ="):
        assert secret not in text


def test_a_damaged_product_is_made_again_with_the_same_bytes(simulated, first, tmp_path):
    out = tmp_path / "out"
    job(simulated, out)
    difference = out / "items/field/difference.fits"
    difference.write_bytes(difference.read_bytes()[:-2880])
    assert "resumed" not in job(simulated, out).receipts[0]
    same(products(first), products(out))
    assert job(simulated, out).receipts[0]["resumed"]


def test_settings_reach_the_stages(simulated, first, tmp_path):
    settings = ["steps.write.regions=true", "steps.align.method=lanczos3", "steps.match.order=1"]
    result = job(simulated, tmp_path / "out", set_=settings)
    assert (tmp_path / "out/items/field/catalog.reg").is_file()
    config = {s["id"]: s["config"] for s in result.receipts[0]["steps"]}
    assert config["align"]["method"] == "lanczos3"
    assert products(first)["difference.fits"] != products(tmp_path / "out")["difference.fits"]


MEMORY = """
import sys
from skydelta.pipeline.runner import run

def kilobytes(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key))

for science, reference, out in (sys.argv[1:4], sys.argv[4:7]):
    print(kilobytes("VmRSS"))
    run("difference", inputs={"science": science, "reference": reference}, out=out, device="cpu")
print(kilobytes("VmHWM"))
"""


@pytest.mark.slow
def test_peak_memory_of_a_2048_pair(simulated, tmp_path, figure):
    truth = simulate(tmp_path / "pair", size=2048, seed=1)
    small = (simulated.science, simulated.reference, tmp_path / "small")
    command = [sys.executable, "-c", MEMORY, *small, truth.science, truth.reference, tmp_path / "out"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    _, loaded, peak = (int(kilobytes) * 1024 for kilobytes in done.stdout.split())
    figure("peak memory of the 2048 pair, GB", peak / 1e9, 2.0)
    planned = plan(load("difference", inputs={"science": truth.science, "reference": truth.reference})).memory
    figure("planned memory over that of the job", planned / (peak - loaded), (0.7, 1.5))


def test_a_stored_kernel_gives_the_same_products(simulated, first, tmp_path, skydelta):
    kernel = first / "items/field/difference.fits"
    words = ["difference", simulated.science, simulated.reference, "--device", "cpu", "--id", "field", "--no-progress"]
    result = skydelta(*words, "--kernel", kernel, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    item = tmp_path / "out/items/field"
    for name in ("catalog.ecsv", "catalog.parquet", "stamps.fits"):
        assert (item / name).read_bytes() == (first / "items/field" / name).read_bytes(), name
    with fits.open(kernel) as old, fits.open(item / "difference.fits") as new:
        assert [h.name for h in old] == [h.name for h in new]
        for a, b in zip(old[1:], new[1:], strict=True):
            assert a.data.tobytes() == b.data.tobytes(), a.name
        assert old["KERNEL"].header["KFITTED"]
        assert not new["KERNEL"].header["KFITTED"]
    receipt = json.loads((item / "receipt.json").read_text())
    metrics = {k: v for s in receipt["steps"] for k, v in s["metrics"].items()}
    assert metrics["kernel_file"] == str(kernel)
    assert metrics["stamps_fit"] == 0
