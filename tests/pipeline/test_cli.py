# SPDX-License-Identifier: BSD-3-Clause
"""The command line: quick to start, one line for each error, plans before deeds."""

import importlib
import itertools
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from astropy.io import fits
from astropy.table import Table
from click.testing import CliRunner

from skydelta import __version__
from skydelta.errors import AlgorithmError, DeviceError
from skydelta.io.catalog import Catalog
from skydelta.pipeline import doctor
from skydelta.pipeline.cli import cli
from skydelta.pipeline.events import log_as_json
from skydelta.stages import registry

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("numpy", "scipy", "astropy", "numba", "pydantic", "rich", "pyarrow", "cupy", "dask")


@pytest.mark.parametrize("word", ["--version", "--help"])
def test_help_and_version_import_nothing_heavy(word):
    code = (
        "import sys, click.testing; from skydelta.pipeline.cli import cli; "
        f"r = click.testing.CliRunner().invoke(cli, [{word!r}]); "
        f"print(r.exit_code, [m for m in {HEAVY!r} if m in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split(maxsplit=1) == ["0", "[]\n"]


def test_version_through_the_module():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "skydelta", "--version"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"skydelta, version {__version__}\n"


def test_commands(skydelta):
    words = skydelta("--help").stdout
    for name in (
        "align",
        "check",
        "difference",
        "doctor",
        "inspect",
        "report",
        "run",
        "simulate",
        "stages",
        "workflow",
    ):
        assert re.search(rf"^  {name} +\w", words, re.MULTILINE), name


@pytest.mark.parametrize(
    "words",
    [
        ["difference", "a.fits"],
        ["difference", "a.fits", "b.fits"],
        ["difference", "a.fits", "b.fits", "-o", "out", "--colour", "red"],
        ["run", "difference", "-o", "out", "--limit", "0"],
        ["paint"],
        ["--log-level", "loud", "stages"],
        ["run", "nothing", "-o", "out"],
        ["run", "difference", "-o", "out"],
        ["run", "difference", "-o", "out", "--set", "steps.match.order=77"],
        ["difference", "a.fits", "b.fits", "-o", "out", "--device", "tpu"],
        ["stages", "paint"],
        ["workflow", "show", "paint"],
        ["simulate"],
        ["simulate", "pair", "--colour", "red"],
    ],
    ids=" ".join,
)
def test_usage_errors_exit_2_with_one_line_and_no_trace(skydelta, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    result = skydelta(*words)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert result.stderr.strip().splitlines()[-1].startswith(("skydelta: ", "Error: "))
    assert not (tmp_path / "out").exists()


def test_a_device_that_is_missing_exits_5(skydelta, tmp_path, monkeypatch):
    def none(device):
        raise DeviceError(f"device {device!r} asked for, but no CUDA device")

    monkeypatch.setattr("skydelta.pipeline.runner.resolve", none)
    result = skydelta("difference", "a.fits", "b.fits", "-o", tmp_path / "out", "--device", "cuda")
    assert result.exit_code == 5
    assert result.stderr == "skydelta: device 'cuda' asked for, but no CUDA device\n"


def test_difference_names_what_it_did(skydelta, simulated, tmp_path):
    command = ("difference", simulated.science, simulated.reference, "-o", tmp_path / "out", "--device", "cpu")
    result = skydelta(*command)
    assert result.exit_code == 0
    assert "science on cpu" in result.stdout
    for step in ("background_science", "match", "difference", "fit", "write", "all"):
        assert step in result.stdout
    assert re.search(r"science: done, \d+ candidates", result.stdout)
    assert "flag correlated_noise_reference" in result.stdout
    assert str(tmp_path / "out/report.html") in result.stdout.replace("\n", "")
    assert "science: done already" in skydelta(*command).stdout
    again = skydelta("report", tmp_path / "out")
    assert again.exit_code == 0
    assert again.stdout.strip() == str(tmp_path / "out/report.html")


def test_difference_is_the_workflow_with_planes_as_settings(skydelta, simulated, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    planes = ["--science-variance", "v.fits[VAR]", "--reference-mask", 'odd "name".fits', "--reference-image", "2"]
    command = ["difference", simulated.science, simulated.reference, "-o", "out", "--device", "cpu", *planes]
    skydelta(*command, "--set", "steps.match.order=1", "--science-image", "SCI")
    made = json.loads((tmp_path / "out/run.json").read_text())
    assert made["files"] == {
        "science": {"variance": str(tmp_path / "v.fits[VAR]")},
        "reference": {"mask": str(tmp_path / 'odd "name".fits')},
    }
    steps = {s["id"]: s for s in made["workflow"]["steps"]}
    assert steps["science"]["config"]["image"] == "SCI"
    assert steps["reference"]["config"]["image"] == 2
    assert steps["match"]["config"]["order"] == 1


def test_dry_run_and_check_do_nothing_but_tell(skydelta, simulated, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = skydelta("difference", simulated.science, simulated.reference, "-o", "out", "--dry-run", "--device", "cpu")
    assert result.exit_code == 0
    assert "items: 1 (science)" in result.stdout
    assert "device: cpu (asked for)" in result.stdout
    size = (simulated.science.stat().st_size + simulated.reference.stat().st_size) / 1e6
    assert f"read: {size:.1f} MB; peak memory of an item: about" in result.stdout
    assert "background_science" in result.stdout
    assert not (tmp_path / "out").exists()


def test_check_lists_all_problems_at_once(skydelta, simulated, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.fits").write_text("hello")
    fits.PrimaryHDU().writeto("empty.fits")
    rows = [
        ("good", str(simulated.science), str(simulated.reference)),
        ("absent", "none.fits", str(simulated.reference)),
        ("text", str(simulated.science), "text.fits"),
        ("empty", "empty.fits", f"{simulated.reference}[NONE]"),
    ]
    Table(rows=rows, names=("id", "science", "reference")).write("pairs.ecsv", format="ascii.ecsv")
    Path("night.toml").write_text(skydelta("workflow", "show", "difference").stdout)
    settings = ("--set", "inputs.table=pairs.ecsv", "--set", "steps.science.mask=nomask.fits")
    result = skydelta("check", "night.toml", *settings)
    assert result.exit_code == 3
    problems = [line for line in result.stderr.splitlines() if line.startswith("problem: ")]
    assert len(problems) == 5
    for words in (
        "problem: steps.science.mask: ",
        f"problem: absent: {tmp_path}/none.fits: no such file",
        f"problem: text: {tmp_path}/text.fits: not FITS",
        f"problem: empty: {tmp_path}/empty.fits: no two-dimensional image",
        "problem: empty: ",
    ):
        assert any(p.startswith(words) for p in problems), words
    Table(rows=rows[:1], names=("id", "science", "reference")).write("one.ecsv", format="ascii.ecsv")
    result = skydelta("check", "night.toml", "--set", "inputs.table=one.ecsv")
    assert result.exit_code == 0
    assert result.stdout.endswith("no problems found\n")


def test_several_items_with_a_bad_one(skydelta, simulated, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [("a", "none.fits", str(simulated.reference)), ("b", str(simulated.science), str(simulated.reference))]
    Table(rows=rows, names=("id", "science", "reference")).write("pairs.ecsv", format="ascii.ecsv")
    result = skydelta("run", "difference", "--set", "inputs.table=pairs.ecsv", "-o", "out", "--device", "cpu")
    assert result.exit_code == 1
    assert "1 done, 1 failed" in result.stdout
    assert result.stderr == f"skydelta: science: {tmp_path}/none.fits: no such file\n"
    assert set(Table.read("out/summary.ecsv")["status"]) == {"done", "failed"}
    assert set(Catalog.load("out/catalog.parquet")["item"]) == {"b"}


def test_inspect(skydelta, simulated, tmp_path):
    result = skydelta("inspect", simulated.science, tmp_path / "none.fits")
    assert result.exit_code == 3
    assert "320 x 320" in result.stdout
    for role in ("image", "variance", "mask"):
        assert role in result.stdout
    assert result.stderr == f"skydelta: {tmp_path / 'none.fits'}: no such file\n"


def test_stages(skydelta):
    listed = skydelta("stages").stdout
    for name in registry.BUILTIN:
        assert name in listed
        shown = skydelta("stages", name)
        assert shown.exit_code == 0
        for key in registry.get(name).config_class().model_fields:
            assert key in shown.stdout
        for port in (*registry.get(name).inputs, *registry.get(name).outputs):
            assert port in shown.stdout


def test_workflow_commands(skydelta):
    assert "difference" in skydelta("workflow", "list").stdout
    assert skydelta("workflow", "show", "difference").stdout.startswith("# ")
    assert json.loads(skydelta("workflow", "schema").stdout)["properties"]["steps"]


def test_simulate_settings(skydelta, tmp_path):
    words = ("--size", "256", "--seed=3", "--stars", "30", "--transients", "1", "--same-grid", "--sky", "[300.0, 90.0]")
    result = skydelta("simulate", tmp_path / "pair", *words)
    assert result.exit_code == 0
    assert [Path(line).name for line in result.stdout.splitlines()] == ["science.fits", "reference.fits", "truth.ecsv"]
    assert fits.getdata(tmp_path / "pair/science.fits", "SCI").shape == (256, 256)
    assert "same_grid" in skydelta("simulate", "--list").stdout


def test_run_injects_as_difference_does(skydelta, simulated, tmp_path):
    pair = ("--science", simulated.science, "--reference", simulated.reference)
    words = ("-o", tmp_path / "out", "--inject", "20", "--dry-run", "--device", "cpu")
    result = skydelta("run", "difference", *pair, *words)
    assert result.exit_code == 0, result.stderr
    assert "injections.ecsv" in result.stdout


@pytest.mark.parametrize("words", [(), ("--dry-run",)], ids=["run", "plan"])
def test_a_kernel_that_is_none_is_found_before_anything_runs(skydelta, simulated, tmp_path, words):
    command = ("difference", simulated.science, simulated.reference, "-o", tmp_path / "out", "--device", "cpu", *words)
    for file, message in ((simulated.science, "KERNEL"), (tmp_path / "none.fits", "no such file")):
        result = skydelta(*command, "--kernel", file)
        assert result.exit_code == 3
        assert str(file) in result.stderr
        assert message in result.stderr
        assert "Traceback" not in result.stderr
        assert not (tmp_path / "out").exists()


def test_folders_and_memory_that_fail_are_one_line(skydelta, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    result = skydelta("simulate", tmp_path / "file/pair", "--size", "128", "--stars", "9", "--transients", "1")
    assert result.exit_code == 3
    assert result.stderr == f"skydelta: {tmp_path}/file/pair: cannot be written: Not a directory\n"

    def full(*_, **__):
        raise MemoryError("12 GiB")

    monkeypatch.setattr("skydelta.pipeline.simulate.build", full)
    result = skydelta("simulate", tmp_path / "pair")
    assert (result.exit_code, result.stderr) == (5, "skydelta: out of memory: 12 GiB\n")


def test_help_of_simulate_shows_its_settings(skydelta):
    from skydelta.pipeline.simulate import SimulationConfig

    words = skydelta("simulate", "--help").stdout
    assert "--list" in words
    for name in SimulationConfig.model_fields:
        assert re.search(rf"^  --{name.replace('_', '-')}( |$)", words, re.MULTILINE), name
    assert re.search(r"FWHM of the two PSFs.*default:\s+\(3.8,\s+2.9\)", words, re.DOTALL)


def test_doctor_says_what_is_used_and_why(skydelta):
    result = skydelta("doctor", "--device", "cpu")
    assert result.exit_code == 0
    for word in (
        "device",
        "CUDA",
        "reading",
        "cupy",
        "kvikio",
        "mpi4py",
        "numba threads",
        "thread-safe",
        "BLAS",
        "versions",
        "cache",
    ):
        assert word in result.stdout
    found = {f.name: f for f in doctor.examine("cpu")}
    assert found["device"].value == "cpu"
    assert found["numba threads"].value in ("tbb", "omp")
    assert re.match(rf"posix: .*\d reads, {doctor.PROBE + 8} bytes", found["reading"].value), (
        "and eight to see its kind"
    )
    assert "into host memory" in found["reading"].verdict
    assert found["reading to devices"].value == "page-locked host memory"


def test_doctor_refuses_a_missing_device_and_the_unsafe_thread_layer(skydelta, monkeypatch):
    def none(device):
        raise DeviceError("no CUDA device")

    monkeypatch.setattr(doctor, "resolve", none)
    assert skydelta("doctor", "--device", "cuda").exit_code == 5
    monkeypatch.undo()
    monkeypatch.setattr("numba.config.THREADING_LAYER", "workqueue")
    result = skydelta("doctor", "--device", "cpu")
    assert result.exit_code == 5
    assert "kills a process" in " ".join(result.stdout.split())


def test_warm_up_runs_the_job_and_says_when_it_cannot(skydelta, monkeypatch):
    begin = time.perf_counter()
    result = skydelta("doctor", "--warm", "--device", "cpu")
    assert result.exit_code == 0
    assert "compiling all kernels once" in result.stdout
    assert time.perf_counter() - begin < 300

    def broken(self, ctx, **inputs):
        raise AlgorithmError("match: broken")

    monkeypatch.setattr(registry.get("match"), "run", broken)
    result = skydelta("doctor", "--warm", "--device", "cpu")
    assert result.exit_code == 4
    assert result.stderr.splitlines()[-1] == "skydelta: the simulated pair fails here: match: broken"
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    result = skydelta("doctor", "--warm", "--device", "cpu")
    assert result.exit_code == 4
    assert result.stderr.splitlines()[-1] == "skydelta: the kernels beside the job do not compile here: exit 1"


def test_log_json_says_what_the_events_file_says(skydelta, sums):
    """A good item and a failed one: every line of standard error is an object, and the error is among them."""
    Table(rows=[("good", "1", "2"), ("bad", "6", "7")], names=("id", "a", "b")).write("t.csv", format="ascii.csv")
    words = ("run", "sum.toml", "--set", "inputs.table=t.csv", "--device", "cpu", "-o", "out")
    result = skydelta(*words, "--log-json")
    assert result.exit_code == 1
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    assert lines == [json.loads(line) for line in Path("out/events.jsonl").read_text().splitlines()]
    assert (lines[0]["event"], lines[-1]["event"]) == ("run_started", "run_done")
    failed = [line for line in lines if line["event"] == "item_failed"]
    assert [line["item"] for line in failed] == ["bad"]
    assert "thirteen" in failed[0]["message"]
    assert "1 done, 1 failed" in result.stdout
    without = skydelta(*words, "--overwrite").stderr
    assert not without.startswith("{")
    assert "thirteen" in without


def test_warnings_between_events_are_objects_too(capsys):
    root = logging.getLogger()
    handler = logging.StreamHandler(sys.stderr)
    root.addHandler(handler)
    try:
        log_as_json()
        logging.getLogger("skydelta.io").warning("%s: a card\nis broken", "a.fits")
    finally:
        root.removeHandler(handler)
    (line,) = capsys.readouterr().err.splitlines()
    said = json.loads(line)
    assert said.pop("time") > 1.7e9
    assert said == {"event": "log", "level": "warning", "logger": "skydelta.io", "message": "a.fits: a card\nis broken"}


def test_ctrl_c_while_the_command_line_is_imported_is_one_line(tmp_path):
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    made = subprocess.run(
        [sys.executable, "-m", "skydelta", "inspect", "a.fits"],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 130
    assert made.stderr == "skydelta: interrupted; nothing has begun\n"


def interrupted_in(folder, module, what, *words):
    """A command in which ``what`` is done with the signal when a module is imported."""
    (folder / "sitecustomize.py").write_text(
        f"""
import importlib.abc, signal, sys
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r} and sys.modules.get("click"):
            sys.meta_path.remove(self)
            press = lambda: signal.raise_signal(signal.SIGINT)
            {what}
sys.meta_path.insert(0, Finder())
"""
    )
    env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "skydelta", *map(str, words)]
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)


WAYS = {
    "raised": "press()",
    "swallowed": "exec('try: press()\\nexcept BaseException: pass')",
    "turned into another": "exec('try: press()\\nexcept BaseException: raise ImportError(\"half of it\") from None')",
    "turned into ours": "exec('from skydelta.errors import ConfigError\\ntry: press()\\n'"
    "'except BaseException: raise ConfigError(\"stage: cannot be loaded\") from None')",
    "in a callback from C": "import ctypes; ctypes.CFUNCTYPE(None)(press)()",
    "in a destructor": "type('T', (), {'__del__': lambda self: press()})()",
}
MODULES = ("skydelta.pipeline.commands.difference", "skydelta.stages.registry", "numba")


@pytest.mark.parametrize(
    ("module", "way"), [*itertools.product(MODULES, WAYS), ("skydelta.pipeline.reportitem", "swallowed")]
)
def test_ctrl_c_is_never_lost_in_an_import(tmp_path, simulated, module, way):
    out = tmp_path / "out"
    words = ["difference", simulated.science, simulated.reference, "-o", out, "--device", "cpu"]
    made = interrupted_in(tmp_path, module, WAYS[way], *words)
    assert made.returncode == 130, made.stderr
    assert made.stderr.splitlines()[-1].startswith("skydelta: interrupted; "), made.stderr
    assert made.stderr.count("interrupted") == 1
    assert "Traceback" not in made.stderr
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("way", ["raised", "swallowed", "in a callback from C"])
def test_ctrl_c_is_never_lost_in_other_commands(tmp_path, simulated, way):
    for i, (module, *words) in enumerate(
        (["skydelta.stages.align", "align", simulated.reference, "--onto", simulated.science, "-o", tmp_path / "a"],
         ["skydelta.io.fits.reader", "inspect", simulated.science])
    ):  # fmt: skip
        made = interrupted_in(tmp_path, module, WAYS[way], *words)
        assert made.returncode == 130, made.stderr
        assert made.stderr.count("skydelta: interrupted; ") == 1, i
        assert "Traceback" not in made.stderr


def test_ctrl_c_while_a_command_is_imported_is_one_line(monkeypatch):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    made = CliRunner().invoke(cli, ["inspect", "a.fits"])
    assert made.exit_code == 130
    assert made.stderr == "skydelta: interrupted; nothing has begun\n"
