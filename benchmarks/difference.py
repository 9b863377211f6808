# SPDX-License-Identifier: BSD-3-Clause
"""The main job on exposures that are already on the device: seconds by stage.

python benchmarks/difference.py [--size 4096] [--device auto] [--repeat 15] [--sets 1] [--basis delta] [--out FILE.json]

The pair is the package's own simulated one (one grid). The first pass compiles and is not counted. On CUDA every stage
ends with a synchronisation; transfers between host and device inside the stages are counted and the largest is shown.
Python's garbage is collected between the passes, not in them, as timeit does. Hosts change while they are looked at: of
several sets of passes the one of the middle total is shown, and the totals of all. Of a device the bytes are shown that
the pool of its memory has taken from it by the end: the most that was needed at any time, rounded up by the pool.
"""

import argparse
import gc
import platform
import time
from pathlib import Path

import numpy as np
from astropy.wcs import WCS
from record import record
from threadpoolctl import threadpool_limits

from skydelta.io.exposure import Exposure
from skydelta.kernels import backend as backends
from skydelta.kernels.backend import Backend, resolve
from skydelta.pipeline.simulate import build
from skydelta.stages.align import Align
from skydelta.stages.background import Background
from skydelta.stages.base import Context
from skydelta.stages.detect import Detect
from skydelta.stages.difference import Difference
from skydelta.stages.fit import Fit
from skydelta.stages.match import Match
from skydelta.stages.psf import MeasurePsf


class Transfers:
    """Counts host-device copies that pass through the two doors of the package."""

    def __init__(self):
        self.to_device = self.to_host = self.largest = 0
        self._asarray, self._to_host = Backend.asarray, backends.to_host

    def __enter__(self):
        count = self

        def asarray(backend, a, dtype=None):
            if backend.is_gpu and isinstance(a, np.ndarray):
                count.to_device += a.nbytes
                count.largest = max(count.largest, a.nbytes)
            return count._asarray(backend, a, dtype)

        Backend.asarray = asarray
        return self

    def __exit__(self, *_):
        Backend.asarray = self._asarray


def exposures(size, seed, backend):
    scene = build(size=(size, size), seed=seed, same_grid=True)
    out = []
    for frame in (scene.science, scene.reference):
        mask = np.where(np.asarray(frame.mask) != 0, 1, 0).astype(np.int32)
        wcs = frame.wcs if isinstance(frame.wcs, WCS) else None
        e = Exposure(frame.image.astype(np.float32), frame.variance.astype(np.float32), mask, wcs=wcs, id=frame.role)
        out.append(e.to(backend))
    return out


def job(science, reference, backend, basis):
    """One pass; seconds by stage and the outputs."""
    seconds, values = {}, {"science": science, "reference": reference}
    gc.collect()
    gc.disable()

    def step(name, stage, **inputs):
        ctx = Context(backend, id="benchmark")
        begin = time.perf_counter()
        made = stage.execute(ctx, inputs)
        backend.synchronize()
        seconds[name] = time.perf_counter() - begin
        return made

    for role in ("science", "reference"):
        values[role] = step(f"background_{role}", Background(), image=values[role])["image"]
    values["reference"] = step("align", Align(), image=values["reference"], onto=values["science"])["aligned"]
    stars = {}
    for role in ("science", "reference"):
        made = step(f"psf_{role}", MeasurePsf(), image=values[role])
        values[role], stars[f"{role}_stars"] = made["image"], made["stars"]
    kernel = step("match", Match(basis=basis), science=values["science"], reference=values["reference"], **stars)[
        "kernel"
    ]
    made = step("difference", Difference(), science=values["science"], reference=values["reference"], kernel=kernel)
    catalog = step("detect", Detect(), image=made["difference"], score=made["score"])["catalog"]
    catalog = step("fit", Fit(), image=made["whitened"], catalog=catalog)["catalog"]
    gc.enable()
    return seconds, made, catalog


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--sets", type=int, default=1, help="how often the passes are repeated")
    parser.add_argument("--basis", default="gaussian", choices=("gaussian", "delta", "auto"), help="of the kernel")
    parser.add_argument("--compare", action="store_true", help="also run on the CPU and compare the difference images")
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    backend = resolve(a.device)
    science, reference = exposures(a.size, a.seed, backend)
    limits = threadpool_limits(limits=1, user_api="blas")  # as in a run
    candidates = len(job(science, reference, backend, a.basis)[2])
    with Transfers() as transfers:
        sets = [[job(science, reference, backend, a.basis)[0] for _ in range(a.repeat)] for _ in range(a.sets)]
    medians = [float(np.median([sum(p.values()) for p in passes])) for passes in sets]
    passes = sets[int(np.argsort(medians)[(a.sets - 1) // 2])]
    stages = {name: float(np.median([p[name] for p in passes])) for name in passes[0]}
    totals = [sum(p.values()) for p in passes]
    result = {
        "device": backend.name,
        "machine": platform.machine(),
        "size": a.size,
        "basis": a.basis,
        "dtype": "float32",
        "state": "warm, arrays resident",
        "repeat": a.repeat,
        "milliseconds": {k: round(1e3 * v, 2) for k, v in stages.items()},
        "total_ms": round(1e3 * float(np.median(totals)), 2),
        "total_ms_range": [round(1e3 * f(totals), 2) for f in (min, max)],
        "total_ms_of_sets": [round(1e3 * m, 2) for m in medians],
        "candidates": candidates,
        "largest_upload_bytes": transfers.largest,
        "plane_bytes": 4 * a.size**2,
    }
    if backend.is_gpu:
        import cupy

        result["pool_bytes"] = cupy.get_default_memory_pool().total_bytes()
        result["device_name"] = cupy.cuda.runtime.getDeviceProperties(backend.index)["name"].decode()
    if a.compare and backend.is_gpu:
        made = job(science, reference, backend, a.basis)[1]
        host = resolve("cpu")
        _, cpu, cpu_catalog = job(*exposures(a.size, a.seed, host), host, a.basis)
        d, e = backends.to_host(made["difference"].image), cpu["difference"].image
        s, t = backends.to_host(made["score"].image), cpu["score"].image
        both = np.isfinite(d) & np.isfinite(e)
        sigma = np.sqrt(cpu["difference"].variance[both])
        result["difference_max_sigma"] = float(np.abs((d - e)[both] / sigma).max())
        result["valid_differ"] = int((np.isfinite(d) != np.isfinite(e)).sum())
        result["score_max"] = float(np.nanmax(np.abs(s - t)))
        result["cpu_candidates"] = len(cpu_catalog)
    limits.restore_original_limits()
    record(result, a.out)


if __name__ == "__main__":
    main()
