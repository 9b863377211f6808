# SPDX-License-Identifier: BSD-3-Clause
"""Sources of a crowded image: recall and purity beside time, next to SEP and photutils on the same pixels.

PYTHONPATH=tests/support python benchmarks/detect.py [--side 4096] [--sources 5000] [--images 1] [--fwhm 3.5]
    [--threads 2] [--repeat 3] [--out FILE.json]

Gaussian sources of random places and S/N log-uniform from 5 to 200 on white noise, its variance and the PSF known to
all. Recall is that of sources of S/N above 7 with a row within 2 px, of all and of those without another within 15 px;
purity the share of rows within 2 px of a source. ``noiseless`` are the peaks above 5 of the matched-filtered image
before noise was added: what no noise could hide, if a source must be a peak there. The best of the repeats counts; CPU
seconds are shown beside, since other work takes wall time. Packages that are not installed are left out.
"""

import argparse
import importlib
import os
import platform
import time
from pathlib import Path

import numba
import numpy as np
from record import record
from scipy.ndimage import gaussian_filter, maximum_filter
from scipy.spatial import cKDTree
from support_sources import draw, exposure, flux_of, gaussian
from threadpoolctl import threadpool_limits

import skydelta
from skydelta.kernels.backend import CPU
from skydelta.stages.base import Context
from skydelta.stages.sources import SourcesConfig, find

THRESHOLD, BRIGHT, RADIUS, ISOLATED = 5.0, 7.0, 2.0, 15.0


def scene(rng, side, n, sigma):
    """x, y, S/N and an image without noise, float64."""
    x, y = rng.uniform(0, side - 1, (2, n))
    snr = np.exp(rng.uniform(np.log(5), np.log(200), n))
    return x, y, snr, draw(np.zeros((side, side)), x, y, flux_of(snr, sigma), sigma)


def noiseless(light, sigma):
    """Peaks above the threshold of the matched-filtered image, x and y."""
    snr = gaussian_filter(light, sigma, truncate=6) * np.sqrt(4 * np.pi) * sigma
    return np.flip(np.nonzero((snr == maximum_filter(snr, 3)) & (snr > THRESHOLD)), axis=0)


def methods(stamp, width):
    """Name of each method, and what takes an image and its variance and gives x and y."""
    o = SourcesConfig()

    def ours(image, variance):
        e = exposure(image, width / 2.3548)
        e = e.with_(variance=variance, mask=np.zeros(image.shape, np.int32))
        found = find(Context(CPU, id="detect"), e, width, THRESHOLD, o.contrast, False)
        return found.x, found.y

    def whole(image, variance):
        e = exposure(image, width / 2.3548).with_(variance=variance)
        table = skydelta.detect(e, background="none", threshold=THRESHOLD, device="cpu")
        return table["x"].value, table["y"].value

    yield "skydelta, S/N map, peaks, deblending", ours
    yield "skydelta.detect, all measurements too", whole
    if sep := installed("sep"):

        def matched(image, variance, **how):
            found = sep.extract(image, THRESHOLD, var=variance, filter_kernel=stamp, filter_type="matched", **how)
            return found["x"], found["y"]

        yield "sep, matched filter with variance", matched
        yield "sep, the same without cleaning", lambda image, variance: matched(image, variance, clean=False)
    if installed("photutils"):
        from astropy.convolution import convolve_fft
        from photutils.segmentation import SourceCatalog, SourceFinder

        def segments(image, variance):
            # on white noise of one variance, this is the S/N of a matched filter
            snr = convolve_fft(image / np.sqrt(variance), stamp, normalize_kernel=False) / np.sqrt((stamp**2).sum())
            found = SourceFinder(n_pixels=5, progress_bar=False)(snr, THRESHOLD)
            table = SourceCatalog(image, found)
            return table.x_centroid, table.y_centroid

        yield "photutils, SourceFinder on the S/N map", segments


def installed(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def judged(found, x, y, snr):
    """Numbers of sources found and asked for, isolated and all, and of rows that are real and are there."""
    rows, at = np.stack([np.asarray(a, float) for a in found], 1), np.c_[x, y]
    truth = cKDTree(at)
    alone, bright = truth.query(at, 2)[0][:, 1] > ISOLATED, snr > BRIGHT
    near = cKDTree(rows).query(at)[0] < RADIUS
    real = truth.query(rows)[0] < RADIUS
    parts = near[bright & alone], near[bright], real
    return np.array([[p.sum(), p.size] for p in parts])


def timed(function, image, variance, repeat):
    best, found = np.full(2, np.inf), None
    for _ in range(repeat):
        begin, used = time.perf_counter(), time.process_time()
        found = function(image, variance)
        best = np.minimum(best, [time.perf_counter() - begin, time.process_time() - used])
    return found, best


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--sources", type=int, default=5000)
    parser.add_argument("--images", type=int, default=1)
    parser.add_argument("--fwhm", type=float, default=3.5)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    numba.set_num_threads(a.threads)
    sigma, load = a.fwhm / 2.3548, os.getloadavg()[0]
    stamp = gaussian(2 * int(np.ceil(1.3 * a.fwhm)) + 1, 0, 0, sigma)
    counts, seconds = {}, {}
    with threadpool_limits(limits=1, user_api="blas"):
        for k in range(a.images):
            rng = np.random.default_rng([a.seed, k])
            x, y, snr, light = scene(rng, a.side, a.sources, sigma)
            image = (light + rng.normal(0, 1, light.shape)).astype(np.float32)
            variance = np.ones_like(image)
            counts.setdefault("noiseless", np.zeros((3, 2)))
            counts["noiseless"] += judged(noiseless(light, sigma), x, y, snr)
            for name, method in methods(stamp, a.fwhm):
                if not k:
                    method(image[:512, :512].copy(), variance[:512, :512].copy())  # compiles
                found, took = timed(method, image, variance, a.repeat)
                counts[name] = counts.get(name, 0) + judged(found, x, y, snr)
                seconds[name] = np.minimum(seconds.get(name, np.inf), took)
                print(name, *np.round(took, 2), flush=True)
    rows = {}
    for name, count in counts.items():
        share = np.round(count[:, 0] / count[:, 1], 4).tolist()
        rows[name] = dict(zip(("recall_isolated", "recall_all", "purity"), share, strict=True))
        if name in seconds:
            wall, cpu = np.round(seconds[name], 2).tolist()
            rows[name] |= {"wall_s": wall, "cpu_s": cpu, "rows": int(count[2, 1])}
    result = {
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load_before": round(load, 2),
        "threads": a.threads,
        "side": a.side,
        "sources": a.sources,
        "images": a.images,
        "fwhm_px": a.fwhm,
        "dtype": "float32",
        "state": "warm",
        "rows": rows,
    }
    record(result, a.out)


if __name__ == "__main__":
    main()
