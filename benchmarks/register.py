# SPDX-License-Identifier: BSD-3-Clause
"""Registration of random star lists with known truth: ``python benchmarks/register.py [--pairs 3000] [--first 0]``.

Pair k comes from seed k: 10 to 1000 stars, flat or power-law fluxes, frames of any size, turn and parity, scales 0.5 to
2, overlaps 10 to 100 %, centroid noise 0.01 to 0.3 px, up to 30 % of the stars missing and 30 % spurious in each list,
images of unequal depth, a third of them with optical distortion; in every tenth pair the lists have nothing to do with
each other. The error of a map is its rms against the truth on a grid all over the overlap.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from skydelta.errors import AlgorithmError
from skydelta.stages.register.lists import StarList, register_lists

WRONG = 1.0
"""An rms from truth above this, px of the second image, is a wrong transform."""

SOLVABLE = 20
"""Common stars with which a pair should be solved."""


@dataclass(frozen=True)
class Pair:
    """Two lists, the true map, and positions all over the overlap (None where there is none)."""

    a: StarList
    b: StarList
    common: int
    truth: tuple[np.ndarray, np.ndarray] | None
    setup: dict[str, Any]

    def error(self, solution: Any) -> float:
        """rms distance of a map from the truth over the overlap, px; infinite where nothing is common."""
        if self.truth is None:
            return float("inf")
        return float(np.sqrt(((solution.map(self.truth[0]) - self.truth[1]) ** 2).sum(axis=0).mean()))


def make(seed: int, most: float = 1000.0) -> Pair:
    """Pair ``seed``; the first list has 10 to ``most`` true stars."""
    rng = np.random.default_rng([77, seed])
    related = seed % 10 != 9
    size = 10 ** rng.uniform(2.8, 3.6) * np.exp(rng.uniform(-0.3, 0.3, (2, 2)))  # frame, side
    number = int(10 ** rng.uniform(1.0, np.log10(most)))
    scale, overlap = 2 ** rng.uniform(-1, 1), rng.uniform(0.1, 1.0)
    turn = rng.choice([rng.uniform(0, 2 * np.pi), np.pi / 2 * rng.integers(4)])
    mirrored, flat = rng.random() < 0.5, rng.random() < 0.3
    noise = 10 ** rng.uniform(-2, np.log10(0.3), 2)
    missing, spurious = rng.uniform(0, 0.3, 2), rng.uniform(0, 0.3, 2)
    bend = rng.uniform(1, 10) if rng.random() < 1 / 3 else 0.0
    c, s = np.cos(turn), np.sin(turn)
    linear = scale * np.array([[c, -s], [s, c]]) @ np.diag([1.0, -1.0 if mirrored else 1.0])
    frame_a, frame_b = size[0], size[1] * scale
    shift = _shift(linear, frame_a, frame_b, overlap, rng.uniform(0, 2 * np.pi))
    warp = rng.normal(0, bend / 2, (2, 7))

    def true(at: np.ndarray) -> np.ndarray:
        u, v = (2 * at / frame_a[:, None] - 1).clip(-1.5, 1.5)
        terms = np.stack([u * u, u * v, v * v, u**3, u * u * v, u * v * v, v**3])
        return linear @ (at - frame_a[:, None] / 2) + shift[:, None] + frame_b[:, None] / 2 + warp @ terms

    # stars over everything that either frame sees, as many in the first as wanted
    reach = np.hypot(*frame_a) + np.hypot(*frame_b) / scale
    sky = rng.uniform(-reach, reach, (2, int(number * 4 * reach**2 / np.prod(frame_a)) + 1))
    sky = sky[:, (np.abs(sky - frame_a[:, None] / 2) < reach / 1.2 + np.hypot(*frame_a)).all(axis=0)]
    flux = rng.uniform(1, 1.5, sky.shape[1]) if flat else rng.pareto(rng.uniform(0.8, 2.0), sky.shape[1]) + 1
    other = sky if related else rng.uniform(-reach, reach, sky.shape)
    depth = rng.choice([0, 0, 1]) * rng.uniform(0, 0.5)
    limit = np.quantile(flux, depth)
    seen_a, list_a = _observe(rng, sky, flux, frame_a, noise[0], missing[0], spurious[0], 0.0)
    seen_b, list_b = _observe(rng, true(other), flux, frame_b, noise[1], missing[1], spurious[1], limit)
    grid = np.stack([g.ravel() for g in np.meshgrid(*(np.linspace(0, n, 40) for n in frame_a))])
    landed = true(grid)
    inside = ((landed >= 0) & (landed <= frame_b[:, None])).all(axis=0)
    setup = {
        "seed": seed, "related": bool(related), "stars": number, "scale": scale, "mirrored": bool(mirrored),
        "overlap": overlap if related else 0.0, "noise": float(np.hypot(noise[0] * scale, noise[1])), "bend": bend,
        "flat": bool(flat),
    }  # fmt: skip
    common = int((seen_a & seen_b).sum()) if related else 0
    truth = (grid[:, inside], landed[:, inside]) if related and inside.any() else None
    return Pair(list_a, list_b, common, truth, setup)


def _shift(linear, frame_a, frame_b, overlap, direction):
    """Displacement of the frames' middles in the second plane that leaves this share of the smaller frame common."""
    grid = np.stack([g.ravel() for g in np.meshgrid(*(np.linspace(-0.5, 0.5, 60) for _ in range(2)))])
    small = abs(np.linalg.det(linear)) * np.prod(frame_a) < np.prod(frame_b)
    there = linear @ (grid * frame_a[:, None]) if small else grid * frame_b[:, None]
    away, low, high = (
        np.array([np.cos(direction), np.sin(direction)]),
        0.0,
        3 * np.hypot(*frame_b) + 3 * np.hypot(*(linear @ frame_a)),
    )
    for _ in range(40):
        middle = (low + high) / 2
        at = there + (away * middle)[:, None] if small else np.linalg.solve(linear, there - (away * middle)[:, None])
        inside = (np.abs(at) <= (frame_b if small else frame_a)[:, None] / 2).all(axis=0).mean()
        low, high = (middle, high) if inside > overlap else (low, middle)
    return away * low


def _observe(rng, at, flux, frame, noise, missing, spurious, limit):
    """Which stars are seen, and the list with noise and spurious entries, in random order."""
    seen = ((at >= 0) & (at <= frame[:, None])).all(axis=0) & (rng.random(len(flux)) >= missing) & (flux >= limit)
    n = int(seen.sum())
    false = int(rng.poisson(spurious / max(1 - spurious, 0.1) * n))
    x, y = np.concatenate(
        [at[:, seen] + rng.normal(0, noise, (2, n)), rng.uniform(0, 1, (2, false)) * frame[:, None]], 1
    )
    f = np.concatenate([flux[seen] * rng.lognormal(0, 0.05, n), rng.choice(flux, false)])
    order = rng.permutation(len(f))
    box = np.stack([np.zeros(2), frame], axis=1)
    return seen, StarList(x[order], y[order], f[order], np.full(len(f), noise), box)


def outcome(seed: int, most: float = 1000.0) -> dict[str, Any]:
    """What became of pair ``seed``: error in px where a map was given, the reason where none was."""
    pair = make(seed, most)
    start = time.process_time()
    out = {**pair.setup, "common": pair.common, "found": [len(pair.a), len(pair.b)]}
    try:
        solution = register_lists(pair.a, pair.b)
    except AlgorithmError as e:
        out |= {"success": False, "reason": str(e).split(":")[0].split(" stars")[0], "said": str(e)}
    else:
        out |= {"success": True, "error": pair.error(solution), "rms": solution.rms, "matched": solution.pairs}
    return {**out, "cpu_seconds": time.process_time() - start}


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts by outcome, and failures by reason and by how many stars were common."""
    related = [r for r in results if r["related"]]
    solved = [r for r in related if r["success"]]
    wrong = [r for r in results if r["success"] and not r["error"] <= WRONG]
    lost = [r for r in related if not r["success"]]
    errors = np.array([r["error"] for r in solved]) if solved else np.zeros(1)
    bins = [0, 5, 10, SOLVABLE, 50, 100, 10**6]
    table = {}
    for low, high in pairwise(bins):
        here = [r for r in related if low <= r["common"] < high]
        table[f"{low} to {high - 1} common stars"] = {"pairs": len(here), "solved": sum(r["success"] for r in here)}
    return {
        "pairs": len(results),
        "related": len(related),
        "solved": len(solved),
        "wrong": len(wrong),
        "wrong_seeds": [r["seed"] for r in wrong],
        "error_px": {"median": float(np.median(errors)), "p99": float(np.quantile(errors, 0.99)),
                     "worst": float(errors.max())},
        "by_common_stars": table,
        "failures_by_reason": dict(Counter(r["reason"] for r in lost).most_common()),
        "failures_with_enough_stars": [
            {k: r[k] for k in ("seed", "common", "found", "said")} for r in lost if r["common"] >= SOLVABLE
        ],
        "unrelated": {"pairs": len(results) - len(related), "solved": sum(r["success"] for r in results) -
                      len(solved)},
        "cpu_seconds": {"median": float(np.median([r["cpu_seconds"] for r in results])),
                        "worst": float(max(r["cpu_seconds"] for r in results))},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the summary and every outcome there, JSON")
    parser.add_argument("--log", type=Path, help="append every outcome as a line of JSON; those already there are kept")
    options = parser.parse_args()
    wanted = range(options.first, options.first + options.pairs)
    done = {}
    if options.log and options.log.is_file():
        done = {r["seed"]: r for r in map(json.loads, options.log.read_text().splitlines())}
    for seed in wanted:
        if seed in done:
            continue
        done[seed] = outcome(seed)
        if options.log:
            with options.log.open("a") as log:
                log.write(json.dumps(done[seed]) + "\n")
    results = [done[seed] for seed in wanted]
    found = summary(results)
    print(json.dumps(found, indent=1))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
