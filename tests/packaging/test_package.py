# SPDX-License-Identifier: BSD-3-Clause
"""What is installed: every package and data file; and a checkout that runs without installation."""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import skydelta

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = PROJECT["tool"]["setuptools"]["package-dir"]


def packages_on_disk():
    """Import name of every folder with an ``__init__.py``."""
    return {
        ".".join((package, *init.parent.relative_to(ROOT / folder).parts))
        for package, folder in FOLDERS.items()
        for init in (ROOT / folder).rglob("__init__.py")
    }


def test_package_list_is_complete():
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages_on_disk()


def test_version_is_the_same_everywhere():
    assert PROJECT["project"]["version"] == skydelta.__version__


def test_the_console_script_is_ready_for_ctrl_c():
    """What it imports before it can catch an interruption is small: neither click nor numpy."""
    module, _, function = PROJECT["project"]["scripts"]["skydelta"].partition(":")
    code = (
        f"import sys; from {module} import {function}; print(*sorted({{'click', 'numpy', 'rich'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == []


def test_dask_cuda_stays_installable():
    (dask,) = [d for d in PROJECT["project"]["dependencies"] if d.startswith("dask")]
    lowest = tuple(int(n) for n in dask.partition(">=")[2].split("."))
    assert lowest <= (2026, 7, 1)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    # A copy: setuptools leaves build folders in the tree, and stale ones would end up in the wheel.
    for entry in ("pyproject.toml", "README.md", "LICENSE", *FOLDERS.values()):
        (source / entry).symlink_to(ROOT / entry)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_wheel_holds_every_file(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        f"{package.replace('.', '/')}/{path.relative_to(ROOT / folder).as_posix()}"
        for package, folder in FOLDERS.items()
        for pattern in ("*.py", "*.cu", "*.cuh", "*.toml", "py.typed")
        for path in (ROOT / folder).rglob(pattern)
    }
    assert {f for f in inside if not f.partition("/")[0].endswith(".dist-info")} == expected
    assert any(f.endswith(".cuh") for f in inside)
    assert "skydelta/py.typed" in inside


def test_wheel_runs_from_its_own_files(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "import skydelta, skydelta.io.exposure as e, skydelta.kernels.core.source as s\n"
        "s.load('common.cuh')\nprint(skydelta.__file__, e.__file__)"
    )
    out = run(code, tmp_path, tmp_path).split()
    assert out == [str(tmp_path / "skydelta" / "__init__.py"), str(tmp_path / "skydelta" / "io" / "exposure.py")]


def test_checkout_runs_without_installation(tmp_path):
    out = run(
        "import skydelta.stages.registry as r, skydelta; print(r.__file__, skydelta.Exposure.__name__)", ROOT, tmp_path
    )
    assert out.split() == [str(ROOT / "stages" / "registry.py"), "Exposure"]
    assert "Usage" in run(None, ROOT, tmp_path)


def test_importing_the_package_is_light():
    code = (
        "import sys, skydelta\n"
        "print([m for m in ('numpy', 'astropy', 'numba', 'dask', 'mpi4py', 'cupy', 'pyarrow') if m in sys.modules])"
    )
    assert run(code, ROOT, ROOT).strip() == "[]"


def run(code, python_path, cwd):
    """Output of a new process: a snippet, or ``python -m skydelta --help``."""
    environment = {**os.environ, "PYTHONPATH": str(python_path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *(["-c", code] if code else ["-m", "skydelta", "--help"])]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
