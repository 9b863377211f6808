# SPDX-License-Identifier: BSD-3-Clause
"""Rules of the suite: one BLAS thread, skips that say why, missing data or peers and NaN figures that fail."""

import os

for _library in ("OPENBLAS", "MKL", "OMP", "BLIS", "VECLIB"):
    os.environ[f"{_library}_NUM_THREADS"] = "1"  # read when numpy is first imported, so before it
# Two at least: thread counts are compared byte by byte even on one core.
os.environ.setdefault("NUMBA_NUM_THREADS", str(max(2, min(4, os.cpu_count() or 1))))

import importlib
import math
from collections import Counter
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from skydelta.kernels.backend import cuda_device_count

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("SKYDELTA_SHARED") or ROOT.parent / "shared").resolve()
SHARED_FIXTURES = {"shared", "shared_data", "shared_tools"}

# The same examples every time, however slow the machine is.
hypothesis.settings.register_profile("suite", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("suite")


def pytest_configure(config):
    config.option.loadscopereorder = False  # xdist's own order, by the number of tests; ours is below


SLOW = 10
"""How many other tests a slow one counts for where files are put in order."""


def _longest_files_first(items):
    """In a parallel run a process takes a whole file at a time: a slow one shall not be begun when all others end."""
    files = [item.nodeid.partition("::")[0] for item in items]
    long = Counter(files)
    for file, item in zip(files, items, strict=True):
        long[file] += SLOW * (item.get_closest_marker("slow") is not None)
    items.sort(key=lambda item: -long[item.nodeid.partition("::")[0]])  # stable: a file's tests stay together


def pytest_collection_modifyitems(config, items):
    if hasattr(config, "workerinput"):
        _longest_files_first(items)
    count, why = cuda_device_count() if any(item.get_closest_marker("gpu") for item in items) else (0, "")
    for item in items:
        gpu = item.get_closest_marker("gpu") is not None
        if SHARED_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("data")
        if gpu and count == 0:
            item.add_marker(pytest.mark.skip(reason=why))
        elif item.get_closest_marker("data"):
            item.user_properties.append(("needs_shared_data", True))
            if not SHARED.is_dir():
                item.add_marker(pytest.mark.skip(reason=f"no shared data at {SHARED}"))


@pytest.fixture(scope="session")
def shared():
    """Folder of the shared data, tools and references."""
    if not SHARED.is_dir():
        pytest.skip(f"no shared data at {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def shared_data(shared):
    return shared / "data"


@pytest.fixture(scope="session")
def shared_tools(shared):
    return shared / "tools"


@pytest.fixture
def rng(request):
    """A generator seeded from the test's own name: other tests do not shift its numbers."""
    return np.random.default_rng(list(request.node.nodeid.encode()))


@pytest.fixture
def figure(request):
    """``figure(name, value, limit)``: hold a figure to its limit and show it in the summary.

    ``limit`` is the largest value allowed, or a pair (lowest, highest). NaN fails.
    """

    def record(name, value, limit):
        # plain numbers: NumPy's do not travel between the processes of a parallel run
        low, high = map(float, limit if isinstance(limit, tuple) else (-math.inf, limit))
        value = float(value)
        request.node.user_properties.append(("figure", [name, value, low, high]))
        assert not math.isnan(value), f"{name} is NaN"
        assert low <= value <= high, f"{name} = {value:.6g}, allowed {_interval(low, high)}"

    return record


@pytest.fixture
def peer():
    """``peer("reproject")``: import another package to compare with; a missing one fails, it never skips."""

    def find(name):
        try:
            return importlib.import_module(name)
        except ImportError as e:
            pytest.fail(f"peer {name} is missing, so this comparison was not made: {e}")

    return find


def _interval(low, high):
    return f"<= {high:g}" if low == -math.inf else f"{low:g} .. {high:g}"


def _skipped_data_tests(config):
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    return [r.nodeid for r in skipped if ("needs_shared_data", True) in map(tuple, getattr(r, "user_properties", ()))]


def pytest_sessionfinish(session):
    on_worker = hasattr(session.config, "workerinput")
    if not on_worker and SHARED.is_dir() and _skipped_data_tests(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    figures = [
        value
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        if report.when == "call"
        for name, value in report.user_properties
        if name == "figure"
    ]
    if figures:
        terminalreporter.section("figures")
        for name, value, low, high in sorted(figures, key=lambda f: f[0]):
            terminalreporter.write_line(f"{name:<60} {value:>12.6g}   allowed {_interval(low, high)}")
    reasons = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", []))
    if reasons:
        terminalreporter.section("skips by reason")
        for reason, count in reasons.most_common():
            terminalreporter.write_line(f"{count:5d}  {reason}")
    lost = _skipped_data_tests(config) if SHARED.is_dir() else []
    if lost:
        terminalreporter.section("failed: shared data is there, but these data tests were skipped")
        for nodeid in lost:
            terminalreporter.write_line(nodeid)


def _reason(report):
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")
