# SPDX-License-Identifier: BSD-3-Clause
"""What each executor costs beyond the work of the items: many items of 128 x 128 px that are read and nothing more.

    python benchmarks/executors.py [--items 500] [--write FILE.json] [--executors serial threads dask mpi]

The overhead of an item is the time between the first event of the run and the end of its last item, less the seconds
that the steps took, over the workers at work, over the items: identity, folders, receipt, events and messages. Start
and end of the run (workers that start, summary, report) are given apart. ``memory`` is the resident memory of the
process that hands out the items, after a fifth of them and at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import skydelta
from skydelta.io.exposure import Exposure

SIZE = 128
LIMITS = {"serial": 15.0, "threads": 15.0, "dask": 25.0, "mpi": 15.0}
"""Milliseconds an item."""

WORKFLOW = """
version = 1
name = "read"
[[steps]]
id = "science"
stage = "load"
inputs = { path = "science" }
[[steps]]
id = "reference"
stage = "load"
inputs = { path = "reference" }
"""

RUN = """
import json, resource, sys
import skydelta
from skydelta.pipeline import events

class Memory:
    seen = []

    def __init__(self, path):
        self.lines = Lines(path)

    def tell(self, event):
        self.lines.tell(event)
        if event.kind in ("item_done", "run_done"):
            pages = int(open("/proc/self/statm").read().split()[1])
            self.seen.append(pages * resource.getpagesize())

    def close(self):
        self.lines.close()

if __name__ == "__main__":
    from skydelta.pipeline import runner

    Lines = events.JsonLines
    runner.JsonLines = Memory
    table, out, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    result = skydelta.run("read.toml", {"table": table}, out=out, device="cpu", **options)
    if Memory.seen:
        json.dump({"code": int(result.exit_code), "seen": Memory.seen}, open(out + ".json", "w"))
"""


def images(folder: Path, count: int) -> Path:
    """Eight images on disk, by hard links as many items as are wanted."""
    rng = np.random.default_rng(1)
    for n in range(8):
        image = rng.normal(100, 10, (SIZE, SIZE)).astype(np.float32)
        skydelta.write(Exposure(image), folder / f"image{n}.fits")
    rows = ["id,science,reference"]
    for n in range(count):
        os.link(folder / f"image{n % 8}.fits", folder / f"s{n}.fits")
        rows.append(f"i{n},s{n}.fits,image0.fits")
    (folder / "t.csv").write_text("\n".join(rows) + "\n")
    (folder / "read.toml").write_text(WORKFLOW)
    (folder / "run.py").write_text(RUN)
    return folder / "t.csv"


def measure(folder: Path, name: str, count: int) -> dict[str, object]:
    """Run all items with one executor in a process of its own."""
    workers = {"serial": 1}.get(name, 2)
    options: dict[str, object] = {"executor": name}
    if name in ("threads", "dask"):
        options["workers"] = workers
    line = [sys.executable, "run.py", "t.csv", name, json.dumps(options)]
    if name == "mpi":
        line = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(workers), *line]
    begin, cpu = time.perf_counter(), os.times()
    subprocess.run(line, check=True, cwd=folder)
    wall, used = time.perf_counter() - begin, os.times()
    events = [json.loads(text) for text in (folder / name / "events.jsonl").read_text().splitlines()]
    started = next(e["time"] for e in events if e["event"] == "run_started")
    ends = [e["time"] for e in events if e["event"] == "item_done"]
    work = sum(e["seconds"] for e in events if e["event"] == "item_done")
    left = json.loads((folder / f"{name}.json").read_text())
    assert left["code"] == 0, name
    assert len(ends) == count, name
    overhead = 1e3 * (max(ends) - started - work / workers) / count
    return {
        "workers": workers,
        "overhead_ms": round(overhead, 2),
        "limit_ms": LIMITS[name],
        "work_ms": round(1e3 * work / count, 2),
        "cpu_ms": round(1e3 * sum(used[i] - cpu[i] for i in (2, 3)) / count, 2),
        "start_and_end_s": round(wall - (max(ends) - started), 2),
        "memory_mb": [round(left["seen"][i] / 1e6, 1) for i in (count // 5, -1)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--executors", nargs="+", default=list(LIMITS), choices=list(LIMITS))
    parser.add_argument("--write", type=Path)
    a = parser.parse_args()
    load = os.getloadavg()[0]
    found: dict[str, object] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f} from elsewhere at the start",
        "items": a.items,
        "size": SIZE,
        "dtype": "float32",
        "state": "page cache warm, kernels compiled",
    }
    for name in a.executors:
        with tempfile.TemporaryDirectory() as folder:
            images(Path(folder), a.items)
            found[name] = measure(Path(folder), name, a.items)
            print(name, json.dumps(found[name]), flush=True)
    text = json.dumps(found, indent=1) + "\n"
    print(text)
    if a.write:
        a.write.write_text(text)


if __name__ == "__main__":
    main()
