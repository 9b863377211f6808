# SPDX-License-Identifier: BSD-3-Clause
"""KvikIO and page-locked staging against stand-ins: short reads, ends of files, pages, faults, hangs; nothing without a
device.
"""

import functools
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import support_kvikio
import support_standin

from skydelta.errors import ConfigError, InputError
from skydelta.io import direct, staging
from skydelta.io.routes import open_source, summary
from skydelta.io.storage import Memory
from skydelta.kernels.backend import Backend

ROOT = Path(__file__).resolve().parents[2]
SIZE = 5 * 4096 + 777
RANGES = [(0, SIZE), (0, 4096), (2880, 5000), (4096, 4096), (SIZE - 1, 1), (SIZE - 5000, 5000), (17, 0)]


@pytest.fixture
def device(monkeypatch):
    support_standin.install(monkeypatch)
    return Backend("cuda", 0, "cuda")


@pytest.fixture
def kvikio(monkeypatch, device):
    """The stand-in in place of the package, found usable."""
    support_kvikio.reset()
    monkeypatch.setenv(direct.SWITCH, "on")
    monkeypatch.setattr(direct, "_kvikio", lambda: support_kvikio)
    monkeypatch.setattr(direct, "probe", lambda index: direct.Probe(True, "stand-in"))
    monkeypatch.setattr(direct.Direct, "_failed", "")
    return support_kvikio


@pytest.fixture
def file(tmp_path, rng):
    data = rng.integers(0, 256, SIZE, np.uint8)
    path = tmp_path / "a.fits"
    path.write_bytes(data.tobytes())
    return path, data


def read(path, backend, ranges=RANGES):
    """Ranges of a file on the device, as host arrays, and the note about them."""
    content, counted, _ = open_source(path)
    try:
        got = [staging.to_device(content, *r, backend) for r in ranges]
    finally:
        content.close()
    assert all(isinstance(a, support_standin.OnDevice) for a in got)
    return [a.get() for a in got], summary([counted])


def assert_ranges(found, data):
    for (start, size), got in zip(RANGES, found, strict=True):
        assert np.array_equal(got, data[start : start + size])


@pytest.mark.parametrize("faults", [(), ("late",), ("short",), ("alignment",), ("short", "open"), ("open",), ("read",)])
def test_every_range_comes_back_whole(kvikio, device, file, faults):
    kvikio.reset(*faults)
    found, note = read(file[0], device)
    assert_ranges(found, file[1])
    assert note["kvikio"] == {"files": 1, "reads": len(RANGES), "bytes": sum(n for _, n in RANGES)}
    assert note["posix"]["reads"] == 1, "the first bytes, which tell compression, come the usual way"
    assert all(offset % 4096 == 0 or "short" in faults for offset, _, _ in kvikio.READS)
    assert (kvikio.SETTINGS["compat_mode"] is kvikio.CompatMode.ON) == bool({"open", "read"} & set(faults))


def test_reads_are_rounded_out_to_pages_within_the_file(kvikio, device, file):
    read(file[0], device, [(2880, 5000), (SIZE - 10, 10)])
    assert [r[:2] for r in kvikio.READS] == [(0, 8192), (5 * 4096, 777)]


def test_the_end_of_the_file_is_a_short_answer(kvikio, device, file):
    (got, none), _ = read(file[0], device, [(SIZE - 100, 500), (SIZE + 5000, 10)])
    assert np.array_equal(got, file[1][-100:])
    assert none.size == 0


def test_a_file_that_shrinks_is_short_and_blames_nobody(kvikio, device, file):
    content, _, _ = open_source(file[0])
    os.truncate(file[0], 9000)
    got = staging.to_device(content, 8000, 5000, device).get()
    assert np.array_equal(got, file[1][8000:9000])
    assert direct.Direct._failed == ""


def test_a_library_that_always_fails_is_given_up_once(kvikio, device, file, caplog):
    kvikio.reset("always")
    for _ in range(2):
        found, note = read(file[0], device)
        assert_ranges(found, file[1])
        assert list(note) == ["posix"]
    assert [r.message for r in caplog.records if "KvikIO fails" in r.message] == [
        "KvikIO fails (cuFile internal error; in compatibility mode: cuFile internal error); files are read without it"
    ]


def test_files_are_opened_once_and_closed(kvikio, device, file, monkeypatch):
    opened, closed = [], []
    real = support_kvikio.CuFile

    class Watched(real):
        def __init__(self, *args):
            opened.append(args[0])
            super().__init__(*args)

        def close(self):
            closed.append(1)
            super().close()

    monkeypatch.setattr(support_kvikio, "CuFile", Watched)
    read(file[0].as_uri(), device)
    assert opened == [str(file[0])]
    assert closed == [1]


def test_what_failed_stays_open_for_those_who_read_with_it(kvikio, device, file, monkeypatch):
    closed = []
    monkeypatch.setattr(support_kvikio.CuFile, "close", lambda self: closed.append(self._fd))
    kvikio.reset("read")
    content, _, _ = open_source(file[0])
    assert staging.to_device(content, 5, 9000, device).get().tobytes() == file[1][5:9005].tobytes()
    assert closed == []
    content.close()
    assert len(set(closed)) == 2
    for number in closed:
        os.close(number)


def test_many_readers_start_one_probe(device, file, monkeypatch):
    started = []

    def run(*_, **__):
        started.append(1)
        time.sleep(0.2)
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setenv(direct.SWITCH, "on")
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(direct, "probe", functools.cache(direct.probe.__wrapped__))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: direct.Direct(file[0], SIZE).start(0, 9, device), range(4)))
    assert found == [None] * 4
    assert started == [1]


@pytest.mark.parametrize("piece", [1, 1000, 4096, 1 << 20])
@pytest.mark.parametrize("cores", [1, 5])
def test_staging_in_pieces(device, file, monkeypatch, piece, cores):
    monkeypatch.setattr(staging, "PIECE", piece if piece > 1 else 777)
    monkeypatch.setattr(staging, "SHARE", 10_000)
    monkeypatch.setattr("skydelta.io.storage._File.span", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setenv(direct.SWITCH, "off")
    found, note = read(file[0], device)
    assert_ranges(found, file[1])
    assert list(note) == ["posix"]
    short, _ = read(file[0], device, [(SIZE - 3000, 5000), (SIZE, 1)])
    assert np.array_equal(short[0], file[1][-3000:])
    assert short[1].size == 0


def test_what_is_in_memory_already_is_staged_too(device, file):
    data = file[1].tobytes()
    for source in (Memory(data), open_source(data)[0]):
        assert staging.to_device(source, 5, 9000, device).get().tobytes() == data[5:9005]


def test_an_error_of_a_reader_comes_through(device, monkeypatch):
    content = Memory(bytes(100_000))

    def fail(offset, out):
        raise InputError("a.fits: cannot be read at byte 7: Input/output error")

    monkeypatch.setattr(content, "read_into", fail)
    monkeypatch.setattr(staging, "PIECE", 1000)
    monkeypatch.setattr(staging, "SHARE", 1000)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(content, "span", 1, raising=False)
    with pytest.raises(InputError, match="Input/output error"):
        staging.to_device(content, 0, 100_000, device)
    with staging._share(content, 100_000) as threads:
        assert threads == 6  # nothing is taken to be under way any more


def test_transfers_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    content = Memory(b"")
    with staging._share(content, 20 << 20) as alone, staging._share(content, 1 << 30) as second:
        with staging._share(content, 1 << 30) as third:
            assert (alone, second, third) == (3, 4, 2)
        with staging._share(content, 1 << 30) as again:
            assert again == 2


def test_helpers_end_before_their_memory_goes(device, monkeypatch):
    """A helper that is slow is waited for, whatever became of the others; one that has not begun is not."""
    content, ended = Memory(bytes(100_000)), []
    real = content.read_into
    first = threading.get_ident()

    def slow(offset, out):
        if threading.get_ident() == first:
            raise InputError("a.fits: cannot be read at byte 7: Input/output error")
        time.sleep(0.2)
        ended.append(real(offset, out))
        return ended[-1]

    begun = threading.Barrier(3)
    monkeypatch.setattr(content, "read_into", slow)
    real_pinned = staging.pinned

    def pinned(size):
        begun.wait(10)  # this thread and two helpers have a piece each
        return real_pinned(size)

    monkeypatch.setattr(staging, "pinned", pinned)
    for name, value in (("PIECE", 1000), ("SHARE", 1000), ("PLACES", 1)):
        monkeypatch.setattr(staging, name, value)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(content, "span", 1, raising=False)
    with pytest.raises(InputError, match="Input/output error"):
        staging.to_device(content, 0, 3000, device)
    assert ended == [1000, 1000]


@pytest.mark.parametrize("end", ["wait", "leave"])
def test_helpers_begin_before_they_are_waited_for(device, monkeypatch, end):
    data = bytes(range(250)) * 400
    content, begun, go_on = Memory(data), threading.Semaphore(0), threading.Event()
    real = content.read_into

    def slow(offset, out):
        begun.release()
        assert go_on.wait(10)
        return real(offset, out)

    monkeypatch.setattr(content, "read_into", slow)
    monkeypatch.setattr(content, "span", 1, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    for name, value in (("PIECE", 1000), ("SHARE", 1000)):
        monkeypatch.setattr(staging, name, value)
    with staging.Transfer(content, 0, len(data), device) as transfer:
        for _ in range(3):
            assert begun.acquire(timeout=10)  # three helpers have a piece each, and nobody has waited
        threading.Timer(0.1, go_on.set).start()
        if end == "wait":
            assert transfer.wait() == transfer.wait() == len(data)
            assert transfer.array.get().tobytes() == data
    left = 0
    while begun.acquire(blocking=False):
        left += 1
    assert left == (97 if end == "wait" else 0)
    assert staging._under_way[0] == 0


@pytest.mark.parametrize(
    ("switch", "devices", "why"),
    [
        ("off", 1, "SKYDELTA_KVIKIO = off"),
        ("auto", 1, r"nvidia-fs driver is not loaded \(SKYDELTA_KVIKIO=on"),
        ("on", 0, "no CUDA device, so KvikIO is not touched"),
        ("auto", 0, "no CUDA device, so KvikIO is not touched"),
    ],
)
def test_when_it_is_not_asked(monkeypatch, tmp_path, switch, devices, why):
    monkeypatch.setenv(direct.SWITCH, switch)
    monkeypatch.setattr(direct, "cuda_device_count", lambda: (devices, "no CUDA device"))
    monkeypatch.setattr(direct, "NVIDIA_FS", tmp_path / "no")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("a child process was started"))
    asked, said = direct.wanted()
    assert not asked
    assert direct.re.search(why, said)
    assert direct.probe.__wrapped__(0) == direct.Probe(False, said)


def test_switch_is_checked(monkeypatch):
    monkeypatch.setenv(direct.SWITCH, "yes")
    with pytest.raises(ConfigError, match="SKYDELTA_KVIKIO = 'yes'; allowed are auto, on, off"):
        direct.wanted()


def test_nothing_of_it_is_imported_without_a_device(tmp_path):
    """In a process where importing KvikIO ends it."""
    (tmp_path / "kvikio.py").write_text("import os\nos._exit(77)\n")
    (tmp_path / "a.fits").write_bytes(b"SIMPLE  =" + bytes(99))
    code = (
        "import skydelta, skydelta.io.read\n"
        "from skydelta.io.routes import open_source\n"
        f"open_source({str(tmp_path / 'a.fits')!r})[0].read(0, 9)\n"
        "from skydelta.io import direct\n"
        "print(direct.probe(0).why)\n"
    )
    environment = {
        **os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "CUDA_VISIBLE_DEVICES": "", direct.SWITCH: "on",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "KvikIO is not touched" in done.stdout


@pytest.fixture
def children(monkeypatch, tmp_path, device):
    """Child processes of the probe find stand-ins of cupy and KvikIO."""
    (tmp_path / "kvikio").mkdir()
    package = "from support_kvikio import *\nfrom support_kvikio import __version__\n"
    (tmp_path / "kvikio/__init__.py").write_text(package)
    (tmp_path / "kvikio/defaults.py").write_text(
        "from support_kvikio import defaults as d\nset, is_compat_mode_preferred = d.set, d.is_compat_mode_preferred\n"
    )
    (tmp_path / "cupy.py").write_text("import sys, support_standin\nsys.modules[__name__] = support_standin.Cupy()\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT / 'tests/support'}:{ROOT}")
    monkeypatch.setenv(direct.SWITCH, "on")
    return lambda: direct.probe.__wrapped__(0)


def test_probe(children):
    found = children()
    assert found.usable, found.why
    assert found.seen["version"] == "stand-in"
    json.dumps(found.seen)


def test_probe_names_what_carried_bytes(device, monkeypatch):
    seen = {"by_backend": {"POSIX": 1060941, "GDS": 0, "MMAP": 0}, "compatibility_mode": True}
    done = subprocess.CompletedProcess([], 0, json.dumps(seen) + "\n", "")
    monkeypatch.setenv(direct.SWITCH, "on")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert direct.probe.__wrapped__(0) == direct.Probe(True, "POSIX", seen)


@pytest.mark.parametrize(("fault", "why"), [("always", "KvikIO fails: RuntimeError: cuFile internal error")])
def test_probe_that_fails(children, monkeypatch, fault, why):
    monkeypatch.setenv("KVIKIO_FAULTS", fault)
    assert children() == direct.Probe(False, why)


def test_probe_that_hangs_is_ended(children, monkeypatch):
    monkeypatch.setenv("KVIKIO_FAULTS", "hang")
    monkeypatch.setattr(direct, "TIME_LIMIT", 2.0)
    start = time.monotonic()
    assert children() == direct.Probe(False, "KvikIO did not return within 2 s")
    assert time.monotonic() - start < 30


def test_reads_of_the_driver(monkeypatch, tmp_path):
    monkeypatch.setattr(direct, "NVIDIA_FS", tmp_path)
    assert direct.driver_reads() == {}
    (tmp_path / "stats").write_text(
        "GDS Version: 1.7.1\nReads\t\t\t: n=12 ok=11 err=1 readMiB=48 io_state_err=0\nWrites\t: n=3 ok=3\n"
    )
    assert direct.driver_reads() == {"n": 12, "ok": 11, "err": 1, "readMiB": 48, "io_state_err": 0}
