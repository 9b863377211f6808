# SPDX-License-Identifier: BSD-3-Clause
"""What reading the next item's files ahead gives: the same items, dropped from the page cache, with it and without.

    python benchmarks/read_ahead.py [--items 12] [--size 2048] [--rounds 3] [--out FILE.json]

Each item reads a science and a reference image and measures their sky. Rounds alternate; the first item of a run, which
nothing can read ahead, counts too. ``digest`` is the time in which the first attempt at an item waits for its bytes.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from pathlib import Path

import numpy as np
from executors import WORKFLOW as READING
from record import record

import skydelta
from skydelta.io.exposure import Exposure
from skydelta.pipeline import readahead, receipts

WORKFLOW = (
    READING
    + """
[[steps]]
id = "sky_science"
stage = "background"
inputs = { image = "science" }
[[steps]]
id = "sky_reference"
stage = "background"
inputs = { image = "reference" }
"""
)


def images(folder: Path, count: int, size: int) -> list[Path]:
    rng = np.random.default_rng(1)
    image = rng.normal(100, 10, (size, size)).astype(np.float32)
    files = []
    rows = ["id,science,reference"]
    for n in range(count):
        for role in "sr":
            files.append(folder / f"{role}{n}.fits")
            skydelta.write(Exposure(image + np.float32(n), variance=np.full_like(image, 100)), files[-1])
        rows.append(f"i{n},s{n}.fits,r{n}.fits")
    (folder / "t.csv").write_text("\n".join(rows) + "\n")
    (folder / "sky.toml").write_text(WORKFLOW)
    return files


def forget(files: list[Path]) -> None:
    for path in files:
        with path.open("rb") as f:
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(folder: Path, files: list[Path], ahead: bool, number: int) -> dict[str, float]:
    want = readahead.ReadAhead.want
    if not ahead:
        readahead.ReadAhead.want = lambda self, name, files: None  # type: ignore[method-assign]
    waited = []
    whole = receipts.identity

    def identity(*given: object) -> str:
        begin = time.perf_counter()
        found = whole(*given)  # type: ignore[arg-type]
        waited.append(time.perf_counter() - begin)
        return found

    receipts.identity = identity
    receipts._digests.clear()
    forget(files)
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        out = folder / f"out{number}"
        result = skydelta.run(folder / "sky.toml", {"table": folder / "t.csv"}, out=out, device="cpu")
    finally:
        readahead.ReadAhead.want, receipts.identity = want, whole  # type: ignore[method-assign]
    assert result.exit_code == 0
    return {
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "digest_s": sum(waited),
        "steps_s": sum(r["seconds"] for r in result.receipts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=12)
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as name:
        folder = Path(name)
        files = images(folder, a.items, a.size)
        time.sleep(receipts.FRESH + 0.5)
        measure(folder, files, True, 0)  # compiles
        rounds = {"with": [], "without": []}
        for n in range(a.rounds):
            rounds["without"].append(measure(folder, files, False, 2 * n + 1))
            rounds["with"].append(measure(folder, files, True, 2 * n + 2))
    best = {k: {q: round(min(r[q] for r in v), 3) for q in v[0]} for k, v in rounds.items()}
    ratios = [w["wall_s"] / o["wall_s"] for w, o in zip(rounds["with"], rounds["without"], strict=True)]
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f} from elsewhere at the start",
        "items": a.items,
        "size": a.size,
        "dtype": "float32, with a variance plane",
        "state": "page cache cold, kernels compiled",
        "fastest": best,
        "wall_with_over_without": {"median": round(float(np.median(ratios)), 3), "all": [round(r, 3) for r in ratios]},
    }
    record(result, a.out)


if __name__ == "__main__":
    main()
