# SPDX-License-Identifier: BSD-3-Clause
"""A visit: many pairs from packed files to catalogues and packed differences with `skydelta run`.

    python benchmarks/visit.py [--pairs 189] [--size 4096] [--runs threads:4 mpi:12] [--folder DIR] [--out FILE.json]

A few pairs are simulated, packed (RICE_1) and repeated by hard links, so that their bytes come from the page cache. A
run is an executor and its workers; for mpi those are ranks. Of each run: seconds from its command to its end, pairs a
second in all and between an eighth and seven eighths of its items (start, first compilation and what covers the night
left out), the median seconds of each step, and, on CUDA, the share of samples in which a kernel ran (nvidia-smi). The
first run compiles where nothing is compiled yet; give one that does not count, `serial:1:8` (of 8 pairs).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from record import record

import skydelta

ROLES = ("science", "reference")


def packed(folder: Path, scenes: int, size: int) -> list[Path]:
    """Folders of simulated pairs, each with packed files of both roles."""
    out = [folder / f"scene{k}" for k in range(scenes)]
    command = [sys.executable, "-m", "skydelta", "simulate"]
    jobs = [
        subprocess.Popen([*command, str(scene), "--size", str(size), "--seed", str(k + 1)], stdout=subprocess.DEVNULL)
        for k, scene in enumerate(out)
        if not (scene / "packed-reference.fits").exists()
    ]
    codes = [job.wait() for job in jobs]
    if any(codes):
        sys.exit("a pair could not be simulated")
    for scene in out:
        for role in ROLES:
            if not (scene / f"packed-{role}.fits").exists():
                skydelta.write(
                    skydelta.read(scene / f"{role}.fits", device="cpu"),
                    scene / f"packed-{role}.fits",
                    compression="RICE_1",
                )
    return out


def table_of(folder: Path, scenes: list[Path], pairs: int) -> Path:
    """A table of that many pairs, each with files of its own name."""
    rows = [f"id,{','.join(ROLES)}"]
    for i in range(pairs):
        names = []
        for role in ROLES:
            path = folder / f"pair{i:03d}-{role}.fits"
            if not path.exists():
                os.link(scenes[i % len(scenes)] / f"packed-{role}.fits", path)
            names.append(path.name)
        rows.append(f"pair{i:03d},{','.join(names)}")
    table = folder / f"pairs{pairs}.csv"
    table.write_text("\n".join(rows) + "\n")
    return table


@contextmanager
def busy(wanted: bool):
    """(time, per cent) samples of the device's use while the block runs."""
    samples: list[tuple[float, float]] = []
    command = shutil.which("nvidia-smi") if wanted else None
    if command is None:
        yield samples
        return
    ask = [command, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"]
    with tempfile.TemporaryFile("w+") as lines:
        begin = time.time()
        process = subprocess.Popen(ask, stdout=lines, stderr=subprocess.DEVNULL)
        try:
            yield samples
        finally:
            process.terminate()
            process.wait()
            took = time.time() - begin
            lines.seek(0)
            values = [float(line) for line in lines.read().split() if line.strip().isdigit()]
            samples += [(begin + took * (k + 0.5) / len(values), v) for k, v in enumerate(values)]


def run(folder: Path, scenes: list[Path], device: str, executor: str, workers: int, pairs: int, launcher: str) -> dict:
    """One run and what it took."""
    out = folder / f"out-{executor}-{workers}"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "skydelta", "run", "difference", "-o", str(out), "--no-progress"]
    command += ["--device", device, "--executor", executor]
    for setting in (f"inputs.table={table_of(folder, scenes, pairs)}", "steps.write.compress=RICE_1"):
        command += ["--set", setting]
    if executor == "mpi":
        command = [*shlex.split(launcher), "-n", str(workers), *command]
    elif executor != "serial":
        command += ["--workers", str(workers)]
    begin = time.time()
    with busy(device != "cpu") as samples:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    wall = time.time() - begin
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    ends = sorted(e["time"] for e in events if e["event"] == "item_done")
    first, last = ends[len(ends) // 8], ends[-1 - len(ends) // 8]
    steps: dict[str, list[float]] = {}
    for e in events:
        if e["event"] == "step_done" and first <= e["time"] <= last:
            steps.setdefault(e["step"], []).append(e["seconds"])
    use = [v for at, v in samples if first <= at <= last]
    result = {
        "executor": executor,
        "workers": workers,
        "pairs": len(ends),
        "seconds": round(wall, 2),
        "seconds_to_first_item": round(ends[0] - begin, 2),
        "seconds_after_last_item": round(begin + wall - ends[-1], 2),
        "pairs_per_s": round(len(ends) / wall, 2),
        "pairs_per_s_in_the_middle": round((len(ends) - 1 - 2 * (len(ends) // 8)) / (last - first), 2)
        if last > first
        else None,
        "median_seconds_by_step": {name: round(statistics.median(s), 4) for name, s in steps.items()},
        "device_busy_percent_in_the_middle": round(statistics.fmean(use), 1) if use else None,
        "bytes_out": sum(p.stat().st_size for p in out.rglob("*") if p.is_file()),
    }
    shutil.rmtree(out)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=189)
    parser.add_argument("--scenes", type=int, default=8)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--runs", nargs="+", default=["serial:1:8", "threads:4", "mpi:12"], metavar="EXECUTOR:WORKERS[:PAIRS]"
    )
    parser.add_argument("--folder", type=Path, help="where files are made and kept; a temporary one if left out")
    parser.add_argument("--launcher", default="mpiexec", help="of MPI, with its options")
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (a.folder or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        scenes = packed(folder, a.scenes, a.size)
        result = {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "size": a.size,
            "scenes": a.scenes,
            "state": "packed files in the page cache, packed differences",
            "file_bytes": [(scene / f"packed-{role}.fits").stat().st_size for scene in scenes[:1] for role in ROLES],
            "runs": [],
        }
        for words in a.runs:
            executor, workers, *pairs = words.split(":")
            number = int(pairs[0]) if pairs else a.pairs
            made = run(folder, scenes, a.device, executor, int(workers), number, a.launcher)
            print(json.dumps(made), flush=True)
            result["runs"].append(made)
    record(result, a.out)


if __name__ == "__main__":
    main()
