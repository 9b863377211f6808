# SPDX-License-Identifier: BSD-3-Clause
"""The files of the next item are in the page cache before the current one is done, under every executor."""

import ctypes
import json
import mmap
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import skydelta
from skydelta.errors import ExitCode
from skydelta.pipeline import readahead, receipts
from skydelta.pipeline.executors.base import Order

libc = ctypes.CDLL(None, use_errno=True)
NAMES = ("a", "b", "c", "d")
WORDS = ("run", "faults.toml", "--set", "inputs.table=t.csv", "--device", "cpu", "-o", "out")


def forget(path):
    """Drop a file from the page cache; it has been flushed."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident(path):
    """Share of a file's pages that are in the page cache, as the kernel says."""
    size = path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE) as memory:
        pages = -(-size // mmap.PAGESIZE)
        seen = (ctypes.c_ubyte * pages)()
        view = (ctypes.c_char * size).from_buffer(memory)
        assert libc.mincore(ctypes.byref(view), ctypes.c_size_t(size), seen) == 0
        del view
        return sum(b & 1 for b in seen) / pages


@pytest.fixture
def cold(items, tmp_path):
    """Four items that hang at match, each once; their files are not in the page cache."""
    items(*NAMES, faults={f"{name} match": "hang" for name in NAMES})
    files = {name: [tmp_path / f"{name}_{role}.fits" for role in ("science", "reference")] for name in NAMES}
    for path in (path for paths in files.values() for path in paths):
        forget(path)
    if resident(files["a"][0]):
        pytest.skip("this file system keeps what it is told to forget")
    return files


class Watch(threading.Thread):
    """Looks, until the first item is done, at which files are in the page cache; then lets all items go on."""

    def __init__(self, files, workers):
        super().__init__()
        self.files, self.workers, self.over, self.seen = files, workers, threading.Event(), set()
        self.start()

    def run(self):
        end = time.monotonic() + 100
        while time.monotonic() < end and not list(Path("out").glob("items/*/receipt.json")):
            whole = {name for name, paths in self.files.items() if all(resident(p) == 1 for p in paths)}
            self.seen |= whole
            if len(self.seen) >= 2 * self.workers:
                break
            time.sleep(0.02)
        while not self.over.wait(0.02):
            Path("reached").unlink(missing_ok=True)


@pytest.mark.parametrize("executor", ["serial", "threads", "dask", "mpi"])
def test_the_next_items_are_read_meanwhile(cold, executor, request):
    workers = 1 if executor == "serial" else 2
    watch = Watch(cold, workers)
    try:
        if executor == "mpi":
            code, _, err = request.getfixturevalue("finished")(*WORDS, "--executor", "mpi", ranks=2)
            assert code == ExitCode.OK, err
        else:
            options = {"executor": executor}
            if executor == "threads":
                options["workers"] = 2
            if executor == "dask":
                options["dask_address"] = request.getfixturevalue("cluster").scheduler_address
            result = skydelta.run("faults.toml", {"table": "t.csv"}, out="out", device="cpu", **options)
            assert result.exit_code == ExitCode.OK
    finally:
        watch.over.set()
        watch.join()
    assert len(watch.seen) >= 2 * workers, "those at work, and for each the next one"
    found = {name: json.loads(Path("out/items", name, "receipt.json").read_text()) for name in NAMES}
    sizes = {name: sum(p.stat().st_size for p in paths) for name, paths in cold.items()}
    ahead = {name: r["read_ahead_bytes"] for name, r in found.items() if r["read_ahead_bytes"]}
    assert ahead == {name: sizes[name] for name in ahead}
    assert len(ahead) >= 1


def test_no_more_than_memory_allows(tmp_path, monkeypatch):
    reader = readahead.ReadAhead()
    path = tmp_path / "f"
    path.write_bytes(b"x" * 1000)
    monkeypatch.setattr(readahead, "available", lambda: 1000 / readahead.SHARE - 1)
    reader.want("i", [path])
    assert reader.bytes_of("i") == 0
    monkeypatch.setattr(readahead, "available", lambda: 1000 / readahead.SHARE)
    reader.want("i", [path, path, tmp_path / "none"])
    assert reader.bytes_of("i") == 1000
    assert reader.bytes_of("i") == 0, "asked once"


def test_a_digest_is_kept_until_the_file_changes(tmp_path):
    path = tmp_path / "f"
    reads = []

    def write(text, age):
        path.write_text(text)
        then = time.time() - age
        os.utime(path, (then, then))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(receipts, "digest", lambda p: reads.append(p) or p.read_text())
        patch.setattr(receipts, "FRESH", -1.0)
        write("one", 100)
        assert [receipts.known_digest(path) for _ in range(3)] == ["one"] * 3
        assert len(reads) == 1
        write("two", 100)
        assert receipts.known_digest(path) == "two"
        path.unlink()
        with pytest.raises(FileNotFoundError):
            receipts.known_digest(path)
        patch.setattr(receipts, "FRESH", 2.0)
        write("one", 0)
        write("six", 0)
        assert receipts.known_digest(path) == "six"
        assert not receipts.knows(path), "it has changed just now"


def test_two_readers_of_one_file_read_it_once(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_text("x")
    monkeypatch.setattr(receipts, "FRESH", -1.0)
    reads, begun, go = [], threading.Event(), threading.Event()

    def digest(p):
        reads.append(p)
        begun.set()
        go.wait(10)
        return "d"

    monkeypatch.setattr(receipts, "digest", digest)
    found = []
    threads = [threading.Thread(target=lambda: found.append(receipts.known_digest(path))) for _ in range(2)]
    threads[0].start()
    begun.wait(10)
    threads[1].start()
    time.sleep(0.05)
    go.set()
    for thread in threads:
        thread.join(10)
    assert found == ["d", "d"]
    assert len(reads) == 1


@pytest.mark.parametrize("seed", range(20))
def test_each_item_is_handed_out_once_whatever_happens(seed):
    """Workers that come, take, look ahead, fail and never return: all items go out, those put back again."""
    rng = np.random.default_rng(seed)
    total = int(rng.integers(0, 30))
    order, given, again = Order(iter(range(1, total + 1))), [], []
    while order:
        worker = int(rng.integers(4))
        if rng.random() < 0.2:
            order.following(worker)
            continue
        promised = order.following(worker) if rng.random() < 0.5 else None
        item = order.next(worker)
        assert item is not None
        assert promised in (None, item), "what was promised is what comes"
        given.append(item)
        if rng.random() < 0.1:
            order.put_back(item)
            again.append(item)
    assert sorted(given) == sorted([*range(1, total + 1), *again])
    assert order.next(0) is None
    assert order.following(0) is None
