# SPDX-License-Identifier: BSD-3-Clause
"""Subtraction alone, speed and quality in one table: kernel and ZOGY, and which peers are installed.

python benchmarks/subtract.py [--size 2048] [--seed 1] [--out FILE.json]

Arrays in memory, simulated pair on one grid, sky subtracted and PSFs measured before the clock starts; CPU seconds of
the whole process, second pass. ``match`` fits the kernel, ``difference`` applies it: variance, mask and SNR too. Found
are changes of S/N 5 or more within 3 px of the truth of the simulator; flux ratio is forced over true above S/N 10.
"""

import argparse
import importlib.util
import json
import os
import platform
import shutil
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from skydelta.io.exposure import Exposure
from skydelta.kernels.backend import CPU
from skydelta.pipeline.simulate import build
from skydelta.stages.background import Background
from skydelta.stages.base import Context
from skydelta.stages.detect import Detect
from skydelta.stages.difference import Difference
from skydelta.stages.match import Match
from skydelta.stages.psf import MeasurePsf
from skydelta.stages.recover import forced_fluxes


def timed(stage, **inputs):
    """CPU seconds of the second of two passes, outputs, figures."""
    for _ in range(2):
        ctx, begin = Context(CPU, id="benchmark"), time.process_time()
        made = stage.execute(ctx, inputs)
        seconds = time.process_time() - begin
    return round(seconds, 3), made, ctx.metrics


def prepared(scene):
    inputs = {}
    for frame in (scene.science, scene.reference):
        mask = np.where(np.asarray(frame.mask) != 0, 1, 0).astype(np.int32)
        image = Exposure(frame.image.astype(np.float32), frame.variance.astype(np.float32), mask)
        flat = Background().execute(Context(CPU), {"image": image})["image"]
        made = MeasurePsf().execute(Context(CPU), {"image": flat})
        inputs[frame.role], inputs[f"{frame.role}_stars"] = made["image"], made["stars"]
    return inputs


def quality(scene, made, metrics):
    truth = scene.changes[scene.changes["kind"] == "transient"]
    x, y, flux = (np.asarray(truth[n].value, float) for n in ("x", "y", "flux"))
    usable = np.isfinite(made["difference"].image[np.rint(y).astype(int), np.rint(x).astype(int)])
    catalog = Detect().execute(Context(CPU), {"image": made["difference"], "score": made["score"]})["catalog"]
    distance = np.hypot(x[:, None] - catalog["x"].value, y[:, None] - catalog["y"].value)
    counted = usable & (np.asarray(truth["snr"]) >= 5)
    got, _ = forced_fluxes(made["whitened"], x, y)
    clear = usable & (np.asarray(truth["snr"]) >= 10) & np.isfinite(got)
    weight = np.asarray(truth["snr"])[clear] ** 2
    return {
        "noise_ratio": round(metrics["noise_ratio"], 4),
        "snr_std": round(metrics["snr_std"], 4),
        "found": int((distance.min(axis=1) < 3)[counted].sum()),
        "expected": int(counted.sum()),
        "flux_ratio": round(float((weight * (got / flux)[clear]).sum() / weight.sum()), 4),
        "flux_ratio_err": round(float(weight.sum() ** -0.5), 4),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    scene = build(size=(a.size, a.size), seed=a.seed, same_grid=True)
    rows = {}
    with threadpool_limits(limits=1, user_api="blas"):
        inputs = prepared(scene)
        fit, made, _ = timed(Match(), **inputs)
        pair = {name: inputs[name] for name in ("science", "reference")}
        for method in ("kernel", "zogy"):
            seconds, out, metrics = timed(Difference(method=method), **pair, kernel=made["kernel"])
            cpu = {"match": fit, "difference": seconds, "sum": round(fit + seconds, 3)}
            rows[method] = {"cpu_seconds": cpu, **quality(scene, out, metrics)}
    here = {name: importlib.util.find_spec(name) is not None for name in ("sfft", "properimage")}
    here["hotpants"] = shutil.which("hotpants") is not None
    result = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "size": a.size,
        "seed": a.seed,
        "dtype": "float32",
        "state": "warm, arrays in memory",
        "methods": rows,
        "peers": {name: "installed, not run" if there else "absent" for name, there in here.items()},
    }
    print(
        f"{'method':8} {'match':>7} {'diff.':>7} {'sum':>7} {'noise':>7} {'SNR std':>8} {'found':>9} {'flux ratio':>17}"
    )
    for name, r in rows.items():
        cpu, found = r["cpu_seconds"], f"{r['found']}/{r['expected']}"
        ratio = f"{r['flux_ratio']:.4f} +- {r['flux_ratio_err']:.4f}"
        times = " ".join(f"{cpu[k]:7.2f}" for k in ("match", "difference", "sum"))
        print(f"{name:8} {times} {r['noise_ratio']:7.3f} {r['snr_std']:8.3f} {found:>9} {ratio:>17}")
    print("peers: " + ", ".join(f"{name} {state}" for name, state in result["peers"].items()))
    if a.out:
        a.out.parent.mkdir(parents=True, exist_ok=True)
        a.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
