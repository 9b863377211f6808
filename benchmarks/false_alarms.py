# SPDX-License-Identifier: BSD-3-Clause
"""False alarms in pure noise, white and coloured, against Gaussian fields of the same correlation.

PYTHONPATH=tests/support python benchmarks/false_alarms.py [--images 200] [--sources 60] [--side 1024] [--out FILE.json]

Rows of `detect` and of `sources` (both signs) above 3.5, 4, 4.5 and 5, beside the peaks of fields of unit variance that
are drawn in Fourier space with the correlation of the matched filter's output. A peak is the highest of a group of
touching pixels of one sign above 3.5. ``ratio`` has the counting error of both numbers beside it.
"""

import argparse
import os
import platform
import time
from pathlib import Path

import numpy as np
from record import record
from support_noise import COLOURS, LEVELS, Fields, above, peaks
from support_sources import exposure, gaussian

from skydelta.stages.detect import Detect
from skydelta.stages.sources import Sources


def compared(count, images, truth, fields):
    """Rates a Mpx and over those of the fields, with the counting error."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = count / images / (truth / fields)
        error = ratio * np.sqrt(1 / count + 1 / truth)
    pairs = [[round(float(r), 3), round(float(e), 3)] for r, e in zip(ratio, error, strict=True)]
    return {"images": images, "count": count.tolist(), "ratio_and_error": pairs}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--sources", type=int, default=60, help="images that `sources` looks at too")
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    begin, rows = time.process_time(), {}
    finders = {"detect": (Detect(threshold=LEVELS[0]), a.images),
               "sources": (Sources(threshold=LEVELS[0], negative=True), min(a.sources, a.images))}  # fmt: skip
    for k, colour in enumerate(COLOURS):
        noise, field = Fields(a.side, colour), Fields(a.side, colour, gaussian(31, 0, 0))
        ours, theirs = (np.random.default_rng([a.seed, k, which]) for which in (0, 1))
        truth, found = np.zeros(len(LEVELS), int), {name: np.zeros(len(LEVELS), int) for name in finders}
        for i in range(a.images):
            truth += peaks(field.draw(theirs))
            image = exposure(noise.draw(ours))
            for name, (stage, images) in finders.items():
                if i < images:
                    found[name] += above(np.asarray(stage(image, device="cpu")["snr"]))
        rows[colour] = {"fields": {"images": a.images, "count": truth.tolist()}}
        rows[colour] |= {name: compared(found[name], images, truth, a.images) for name, (_, images) in finders.items()}
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
