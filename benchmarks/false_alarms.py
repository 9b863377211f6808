# SPDX-License-Identifier: BSD-3-Clause
"""False alarms in pure noise, white and coloured, against Gaussian fields of the same correlation.

PYTHONPATH=tests/support python benchmarks/false_alarms.py [--images 200] [--sources 60] [--side 1024] [--out FILE.json]

Rows of `detect`, of `sources` and of `skydelta.detect` without a variance, which is then measured (all both signs),
above 3.5, 4, 4.5 and 5, beside the peaks of fields of unit variance: the same noise, through the matched filter in
Fourier space. A peak is the highest of a group of touching pixels of one sign above 3.5. ``ratio`` has beside it its
error by the scatter from image to image: the fields share their noise with the images, so that it is no counting
error.
"""

import argparse
import os
import platform
import time
from pathlib import Path

import numpy as np
from record import record
from support_noise import COLOURS, LEVELS, Fields, above, peaks
from support_sources import SIGMA, exposure, gaussian

import skydelta
from skydelta.stages.detect import Detect
from skydelta.stages.sources import Sources


def compared(counts, truth):
    """Rates over those of the fields, with the error that the scatter of the images (n, levels) gives."""
    n, whole = len(counts), truth[: len(counts)]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = counts.sum(0) / whole.sum(0)
        error = np.std(counts - ratio * whole, axis=0) * np.sqrt(n) / whole.sum(0)
    pairs = [[round(float(r), 3), round(float(e), 3)] for r, e in zip(ratio, error, strict=True)]
    return {"images": n, "count": counts.sum(0).tolist(), "ratio_and_error": pairs}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--sources", type=int, default=60, help="images that `sources` looks at too")
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    begin, rows = time.process_time(), {}
    detect, sources = Detect(threshold=LEVELS[0]), Sources(threshold=LEVELS[0], negative=True)
    few = min(a.sources, a.images)
    finders = {
        "detect": (lambda image: detect(exposure(image), device="cpu"), a.images),
        "sources": (lambda image: sources(exposure(image), device="cpu"), few),
        "skydelta.detect, variance measured": (
            lambda image: skydelta.detect(
                image, fwhm=2.3548 * SIGMA, threshold=LEVELS[0], negative=True, device="cpu"
            ), few),
    }  # fmt: skip
    for k, colour in enumerate(COLOURS):
        noise, field = Fields(a.side, colour), Fields(a.side, colour, gaussian(31, 0, 0))
        truth, found = [], {name: [] for name in finders}
        for i in range(a.images):
            image, theirs = (f.draw(np.random.default_rng([a.seed, k, i])) for f in (noise, field))
            truth.append(peaks(theirs))
            for name, (finder, images) in finders.items():
                if i < images:
                    found[name].append(above(np.asarray(finder(image)["snr"])))
        rows[colour] = {"fields": {"images": a.images, "count": np.sum(truth, axis=0).tolist()}}
        rows[colour] |= {name: compared(np.array(counts), np.array(truth)) for name, counts in found.items()}
        print(colour, rows[colour], flush=True)
    result = {
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "side": a.side,
        "levels": LEVELS,
        "cpu_s": round(time.process_time() - begin, 1),
        "rows": rows,
    }
    record(result, a.out)


if __name__ == "__main__":
    main()
