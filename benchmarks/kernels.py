# SPDX-License-Identifier: BSD-3-Clause
"""Every registered kernel on a CUDA device: milliseconds by events against the floor set by memory traffic.

python benchmarks/kernels.py [--size 4096] [--repeat 20] [--out FILE.json]

The floor is `KernelSpec.bytes_per_pixel` times the pixels over the bandwidth of a device copy measured in the same run.
Inputs are those of the conformance tests at this size (tests/support/cases); stamp kernels take about 1000 stamps.
"""

import argparse
import importlib
import sys
from pathlib import Path

import numpy as np
from events import copy_rate, milliseconds
from record import record

from skydelta.kernels.backend import cupy, resolve
from skydelta.kernels.core.fused import chains
from skydelta.kernels.core.spec import registry, resolve_target

PSF = dict.fromkeys(("profile_sums", "profile_stamps", "pixel_departure", "compare_stars"), (300, 33))
PSF["star_stamps"] = (300, 16)  # a half-size
STAMPS = {"stamp_basis": (900, 31), "fit_lobes": (25, 2), "subtract_lobes": (25, 25), "spline_coefficients": (25, 25)}
STAMPS |= PSF | {"tangent_points": (261, 261), "check_cells": (128, 128)}  # of a map of 4096 px
COPIES = {"fit_lobes": 42}  # 24 dipole stamps a case


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
    backend = resolve("cuda")
    cp = cupy()
    copy = copy_rate()
    rows = {}
    for name, target, traffic in [
        *((n, resolve_target(s.launch), s.bytes_per_pixel) for n, s in registry().items()),
        *((n, c, None) for n, c in chains().items()),
    ]:
        case = importlib.import_module(f"cases.{name}")
        shape = STAMPS.get(name, (a.size, a.size))
        values = case.make(np.random.default_rng(1), shape)
        if name in COPIES:
            values = {k: np.concatenate([v] * COPIES[name]) for k, v in values.items()}
        stay = getattr(case, "HOST", ())
        values = {
            k: backend.asarray(v) if isinstance(v, np.ndarray) and k not in stay else v for k, v in values.items()
        }
        try:
            ms = milliseconds(lambda target=target, values=values: target(**values), a.repeat)
        except Exception as e:  # one kernel's fault must not hide the others' times
            rows[name] = {"error": f"{type(e).__name__}: {e}"[:300]}
            continue
        per_pixel = traffic
        if traffic is None:
            planes = sum(v.nbytes for v in values.values() if hasattr(v, "nbytes"))
            per_pixel = (planes + 4 * len(target.outputs) * a.size**2) / a.size**2
        pixels = (
            a.size**2
            if name not in STAMPS
            else 300 * 33**2
            if name in PSF
            else len(next(iter(values.values()))) * STAMPS[name][name == "stamp_basis"] ** 2
        )
        floor = per_pixel * pixels / copy / 1e6
        ratio = round(ms / floor, 2) if floor > 0 else None  # a case may have nothing to move at this size
        rows[name] = {"ms": round(ms, 4), "floor_ms": round(floor, 4), "ratio": ratio, "shape": shape}
    result = {
        "device": cp.cuda.runtime.getDeviceProperties(0)["name"].decode(),
        "copy_TB_per_s": round(copy / 1e3, 3),
        "dtype": "float32",
        "state": "warm",
        "kernels": rows,
    }
    record(result, a.out)


if __name__ == "__main__":
    main()
