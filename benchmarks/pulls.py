# SPDX-License-Identifier: BSD-3-Clause
"""Pulls of injected sources, forced at their true positions: in open field, and on stars that the kernel is fitted to.

python benchmarks/pulls.py [--fields 22] [--size 512] [--count 110] [--hosts 0] [--out FILE.json]

Simulated pairs on one grid, one seed a field; sky, PSFs and kernel are measured, the kernel again with the sources.
"""

import argparse
from pathlib import Path

import numpy as np
from record import record
from subtract import prepared
from threadpoolctl import threadpool_limits

from skydelta.kernels.backend import CPU
from skydelta.pipeline.simulate import build
from skydelta.stages.base import Context
from skydelta.stages.detect import Detect
from skydelta.stages.difference import Difference
from skydelta.stages.inject import Inject
from skydelta.stages.match import Match
from skydelta.stages.recover import forced_fluxes


def difference(pair):
    kernel = Match().execute(Context(CPU), pair)["kernel"]
    return Difference().execute(Context(CPU), {**pair, "kernel": kernel})


def field(seed, size, count, hosts):
    """Pull, S/N, flux ratio and host of each source: (n, 4)."""
    scene = build(size=(size, size), seed=seed, same_grid=True, stars=size * size // 1750, saturated=1)
    inputs = prepared(scene)
    pair = {name: inputs[name] for name in ("science", "reference")}
    plain = difference(pair)
    found = Detect().execute(Context(CPU), {"image": plain["difference"], "score": plain["score"]})["catalog"]
    drawn = {"image": pair["science"], "whitened": plain["whitened"], "catalog": found}
    made = Inject(count=count, hosts=hosts).execute(Context(CPU, id=str(seed)), drawn)
    again = difference({**pair, "science": made["injected"]})
    x, y, true = (np.asarray(made["sources"][n].value, float) for n in ("x", "y", "flux"))
    flux, error = forced_fluxes(again["whitened"], x, y)
    rows = np.stack([(flux - true) / error, true / error, flux / true, np.asarray(made["sources"]["host"], float)], 1)
    return rows[np.isfinite(rows).all(axis=1)]


def figures(rows):
    pull, clear = rows[:, 0], rows[:, 1] >= 10
    weight = rows[clear, 1] ** 2
    return {
        "sources": len(rows),
        "pull_mean": round(float(pull.mean()), 4),
        "pull_std": round(float(pull.std(ddof=1)), 4),
        "flux_ratio": round(float((weight * rows[clear, 2]).sum() / weight.sum()), 5),
        "flux_ratio_err": round(float(weight.sum() ** -0.5), 5),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fields", type=int, default=22)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--count", type=int, default=110)
    parser.add_argument("--hosts", type=float, default=0.0)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    with threadpool_limits(limits=1, user_api="blas"):
        rows = np.concatenate([field(seed, a.size, a.count, a.hosts) for seed in range(1, a.fields + 1)])
    result = {"size": a.size, "fields": a.fields, "hosts": a.hosts}
    for name, which in (("open field", rows[:, 3] == 0), ("on stars", rows[:, 3] == 1)):
        if which.sum() > 1:
            result[name] = figures(rows[which])
    record(result, a.out)


if __name__ == "__main__":
    main()
