# SPDX-License-Identifier: BSD-3-Clause
"""How a run scales: a discrete-event model of workers, storage and hand-out, fed with measured times of stages.

    python benchmarks/scaling.py [--items 24] [--size 384] [--out FILE.json]

First, runs are measured that this machine can do: one worker, two threads, two Dask workers. The model gets the times
of the stages of every second item, from the receipts of the run (in a run of their own the load of a shared machine
would be another), those of the first item of each worker, and the overhead of an item that `executors.py` has stored;
what it predicts of all items is stored beside what the run took. Then it predicts a visit of 189 pairs of 4096 px on 1,
8, 64 and 512 GPUs, from stored times of one GPU for stages and decoding, and from CPU seconds of reading and writing as
measured here. Those runs were never made.

The model: items are handed out one at a time by one process, in the order of `executors.base.Order`, the real one. A
worker waits for the bytes of its item, which share the storage with those of all others, and for their digest; then it
reads the next item ahead while it computes; then it writes. A worker is slower at its first item.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from record import record

from skydelta.pipeline.executors.base import Order

RESULTS = Path(__file__).parent / "results"
GPUS = (1, 8, 64, 512)
DETECTORS, SIDE = 189, 4096
PER_NODE = 8
PLANES = 12
"""Bytes of a pixel with variance and mask."""

STORAGE = {"5 GB/s": 5e9, "50 GB/s": 50e9, "no limit": float("inf")}
NODE_RATE = 10e9
"""Bytes a second that one node reads or writes, assumed."""


@dataclass(frozen=True)
class Work:
    """What one item asks for.

    Attributes
    ----------
    read, written : float
        Bytes.
    digest : float
        Seconds between the last byte read and the first step, hidden where the item was read ahead.
    seconds : float
        Of all steps.
    """

    seconds: float
    read: float = 0.0
    written: float = 0.0
    digest: float = 0.0


@dataclass(frozen=True)
class Site:
    """Where it runs.

    Attributes
    ----------
    workers, per_node : int
    overhead : float
        Seconds of an item beside its steps, on its worker.
    hand_out : float
        Seconds of the one process that hands out, for each item.
    first : float
        Further seconds of the first item of each worker.
    storage, node : float
        Bytes a second of the whole storage, and of one node.
    """

    workers: int
    per_node: int = PER_NODE
    overhead: float = 0.0
    hand_out: float = 0.0
    first: float = 0.0
    storage: float = float("inf")
    node: float = float("inf")


@dataclass
class _Transfer:
    node: int
    left: float
    then: Callable[[], None]


@dataclass
class Simulation:
    """Events in the order of their time; transfers share storage and nodes equally (processor sharing)."""

    site: Site
    now: float = 0.0
    _heap: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _transfers: list[_Transfer] = field(default_factory=list)
    _number: Any = field(default_factory=count)

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + seconds, next(self._number), then))

    def transfer(self, node: int, size: float, then: Callable[[], None]) -> None:
        if not size or (self.site.storage == self.site.node == float("inf")):
            self.after(0, then)
        else:
            self._transfers.append(_Transfer(node, size, then))

    def run(self) -> float:
        """Seconds until nothing is left to happen."""
        while self._heap or self._transfers:
            rates = self._rates()
            ends = [t.left / rate for t, rate in zip(self._transfers, rates, strict=True)]
            soonest = min(ends, default=float("inf"))
            step = min(self._heap[0][0] - self.now if self._heap else float("inf"), soonest)
            for t, rate in zip(self._transfers, rates, strict=True):
                t.left -= rate * step
            self.now += step
            if step == soonest:  # the one that was soonest has nothing left, whatever rounding says
                done = self._transfers.pop(ends.index(soonest))
                done.then()
            else:
                heapq.heappop(self._heap)[2]()
        return self.now

    def _rates(self) -> list[float]:
        here: dict[int, int] = {}
        for t in self._transfers:
            here[t.node] = here.get(t.node, 0) + 1
        share = self.site.storage / max(len(self._transfers), 1)
        return [min(share, self.site.node / here[t.node]) for t in self._transfers]


@dataclass
class _Fetch:
    """Bytes of an item on their way to a worker."""

    ready: bool = False
    waiting: Callable[[], None] | None = None

    def arrived(self) -> None:
        self.ready = True
        if self.waiting:
            self.waiting()


class Model:
    """One run; `seconds` is from its start to the end of its last item."""

    def __init__(self, site: Site, works: list[Work]) -> None:
        self.site, self.works = site, works
        self._events = Simulation(site)
        self._order: Any = Order(range(len(works)))
        self._fetches: dict[tuple[int, int], _Fetch] = {}
        self._free_at = 0.0
        self._begun: set[int] = set()
        self._ends: list[float] = []

    def seconds(self) -> float:
        for worker in range(self.site.workers):
            self._ask(worker)
        self._events.run()
        if len(self._ends) != len(self.works):
            raise AssertionError(f"{len(self._ends)} of {len(self.works)} items have ended")
        return max(self._ends)

    def _ask(self, worker: int) -> None:
        """The next item for a worker, when whoever hands out has time."""
        item = self._order.next(worker)
        if item is None:
            return
        self._free_at = max(self._free_at, self._events.now) + self.site.hand_out
        following = self._order.following(worker)
        self._events.after(self._free_at - self._events.now, lambda: self._begin(worker, item, following))

    def _begin(self, worker: int, item: int, following: int | None) -> None:
        fetch = self._fetch(worker, item)

        def go() -> None:
            if following is not None:
                self._fetch(worker, following)
            work = self.works[item]
            first = 0.0 if worker in self._begun else self.site.first
            self._begun.add(worker)
            self._events.after(work.seconds + self.site.overhead + first, lambda: self._write(worker, item))

        if fetch.ready:
            go()
        else:
            fetch.waiting = go

    def _fetch(self, worker: int, item: int) -> _Fetch:
        key = worker, item
        if key not in self._fetches:
            self._fetches[key] = fetch = _Fetch()
            work = self.works[item]
            node = worker // self.site.per_node
            self._events.transfer(node, work.read, lambda: self._events.after(work.digest, fetch.arrived))
        return self._fetches[key]

    def _write(self, worker: int, item: int) -> None:
        def done() -> None:
            self._ends.append(self._events.now)
            self._ask(worker)

        self._events.transfer(worker // self.site.per_node, self.works[item].written, done)


def pairs(folder: Path, numbers: range, size: int) -> Path:
    """Simulated pairs and their table."""
    from skydelta.pipeline.simulate import simulate

    rows = ["id,science,reference"]
    for n in numbers:
        simulate(folder / f"p{n}", size=size, seed=n, overwrite=True)
        rows.append(f"p{n},p{n}/science.fits,p{n}/reference.fits")
    table = folder / f"from{numbers[0]}.csv"
    table.write_text("\n".join(rows) + "\n")
    return table


def measured(table: Path, out: Path, executor: str) -> dict[str, Any]:
    """A run in a process of its own: seconds from its start to its last item, and those of the steps of every item."""
    line = [sys.executable, "-m", "skydelta", "run", "difference", "--set", f"inputs.table={table}", "-o", str(out)]
    line += ["--device", "cpu", "--executor", executor, *([] if executor == "serial" else ["--workers", "2"])]
    begin = time.perf_counter()
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    whole = time.perf_counter() - begin
    events = [json.loads(text) for text in (out / "events.jsonl").read_text().splitlines()]
    started = next(e["time"] for e in events if e["event"] == "run_started")
    ended = [(e["time"], e["item"]) for e in events if e["event"] == "item_done"]
    receipts = [json.loads((out / "items" / name / "receipt.json").read_text()) for _, name in sorted(ended)]
    return {
        "seconds": max(ended)[0] - started,
        "start_and_end_s": whole - (max(ended)[0] - started),
        "items": [r["seconds"] for r in receipts],
        "workers": [r["worker"] for r in receipts],
        "steps": {s["id"]: [r["steps"][k]["seconds"] for r in receipts] for k, s in enumerate(receipts[0]["steps"])},
    }


def calibrated(run: dict[str, Any]) -> tuple[float, float]:
    """Mean seconds of every second item that is not the first of its worker, and how many more a first one takes."""
    seen: set[str] = set()
    first, later = [], []
    for worker, seconds in zip(run["workers"], run["items"], strict=True):
        (later if worker in seen else first).append(seconds)
        seen.add(worker)
    usual = statistics.mean(later[::2])
    return usual, statistics.mean(first) - usual


def validation(folder: Path, items: int, size: int) -> dict[str, Any]:
    """The runs that can be made here, predicted from every second of their items, and measured."""
    known = json.loads((RESULTS / "executors-2cpu.json").read_text())
    table = pairs(folder, range(1, 1 + items), size)
    out: dict[str, Any] = {}
    for executor in ("serial", "threads", "dask"):
        run = measured(table, folder / executor, executor)
        usual, first = calibrated(run)
        workers = 1 if executor == "serial" else 2
        overhead = known[executor]["overhead_ms"] / 1e3 * workers
        site = Site(workers, overhead=overhead, first=first)
        predicted = Model(site, [Work(usual)] * items).seconds()
        out[executor] = {
            "workers": workers,
            "predicted_s": round(predicted, 2),
            "measured_s": round(run["seconds"], 2),
            "predicted_over_measured": round(predicted / run["seconds"], 3),
            "item_s": round(usual, 3),
            "first_item_more_s": round(first, 3),
            "overhead_s": round(overhead, 4),
            "measured_start_and_end_s": round(run["start_and_end_s"], 2),
        }
        print(executor, json.dumps(out[executor]), flush=True)
    return out


def host_work(folder: Path, size: int) -> dict[str, float]:
    """CPU seconds and bytes of reading and writing a pair on the host, page cache warm."""
    import skydelta
    from skydelta.io.exposure import Exposure

    rng = np.random.default_rng(1)
    image = rng.normal(400, 20, (size, size)).astype(np.float32)
    whole = Exposure(image, np.full_like(image, 400), np.zeros(image.shape, np.int32))
    files = [folder / "big0.fits", folder / "big1.fits"]
    for path in files:
        skydelta.write(whole, path, compression="RICE_1")
    found = {"read": float(sum(p.stat().st_size for p in files))}

    def best(call: Callable[[], object]) -> float:
        times = []
        for _ in range(3):
            begin = time.process_time()
            call()
            times.append(time.process_time() - begin)
        return min(times)

    def digests(paths: list[Path]) -> None:
        for path in paths:
            with path.open("rb") as f:
                hashlib.file_digest(f, "sha256")

    found["digest_s"] = best(lambda: digests(files))
    found["load_s"] = best(lambda: [skydelta.read(p, device="cpu") for p in files])
    written = folder / "made.fits"
    # SCI, VAR and DQ here; a difference.fits has SNR too
    planes = 4 / 3
    found["write_s"] = planes * best(lambda: skydelta.write(whole, written))
    found["written"] = planes * written.stat().st_size
    found["digest_written_s"] = planes * best(lambda: digests([written]))
    return {k: round(v, 4) for k, v in found.items()}


def visit(host: dict[str, float]) -> dict[str, Any]:
    """A visit of 189 detectors on GPUs that were never had."""
    stored = json.loads((RESULTS / "difference-4096-h200.json").read_text())
    device = stored["total_ms"] / 1e3
    overhead = json.loads((RESULTS / "executors-2cpu.json").read_text())["mpi"]["overhead_ms"] / 1e3
    files = json.loads((RESULTS / "fits-read-h200-rice.json").read_text())["files"]
    rate = 1e9 * min(min(r.values()) for name, r in files.items() if "float32" in name)
    decoding = 2 * PLANES * SIDE**2 / rate
    write = host["write_s"] + host["digest_written_s"]
    out: dict[str, Any] = {
        "device_s": device,
        "decoding_on_the_device_s": round(decoding, 4),
        "load_on_the_host_s": host["load_s"],
        "write_s": round(write, 4),
        "hand_out_s": overhead,
        "pairs_per_s": {},
    }
    for how, seconds, digest in (
        ("decoded and written by one core", host["load_s"] + device + write, host["digest_s"]),
        ("decoded on the device, written by one core", decoding + device + write, host["digest_s"]),
        ("host hidden behind the device", decoding + device, 0.0),
    ):
        work = Work(seconds, host["read"], host["written"], digest)
        for name, rate in STORAGE.items():
            row = {}
            for gpus in GPUS:
                node = NODE_RATE if np.isfinite(rate) else rate
                site = Site(gpus, overhead=overhead, hand_out=overhead, storage=rate, node=node)
                row[gpus] = round(Model(site, [work] * DETECTORS).seconds(), 2)
            out["pairs_per_s"][f"{how}; storage {name}"] = {
                gpus: {"seconds": s, "pairs_per_s": round(DETECTORS / s, 1)} for gpus, s in row.items()
            }
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=24)
    parser.add_argument("--size", type=int, default=384)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as name:
        checked = validation(Path(name), a.items, a.size)
        host = host_work(Path(name), SIDE)
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f} from elsewhere at the start",
        "validated": {
            "items": a.items,
            "size": a.size,
            "dtype": "float32",
            "state": "warm",
            **checked,
        },
        "never_run": {
            "detectors": DETECTORS,
            "size": SIDE,
            "gpus_per_node": PER_NODE,
            "node_rate_assumed": NODE_RATE,
            "host": host,
            **visit(host),
        },
    }
    record(result, a.out)


if __name__ == "__main__":
    main()
