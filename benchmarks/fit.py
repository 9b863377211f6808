# SPDX-License-Identifier: BSD-3-Clause
"""Fits of dipole and point-source stamps: fits a second and accuracy, beside SciPy and astropy on the same stamps.

python benchmarks/fit.py [--stamps 20000] [--side 21] [--threads N] [--repeat 5] [--scipy 300] [--out FILE.json]

Dipoles of a known Gaussian PSF, S/N of each lobe log-uniform from 20 to 200, separation 1 to 3 PSF sigma, unit noise.
``kernel`` starts 0.3 px off the truth, as the fits of SciPy do, on float32 stamps; ``api`` is `skydelta.fit`, which is
given no start and tries up to three. SciPy fits the exact Gaussian of known width by Levenberg-Marquardt with analytic
derivatives. `gaussian dipole` is of two Gaussians whose width is free, 8 parameters: of SciPy and astropy too, with
analytic derivatives. The best of the repeats counts; CPU seconds are shown beside, since other work takes wall time.
"""

import argparse
import os
import platform
import time
from pathlib import Path

import numba
import numpy as np
from astropy.modeling import Fittable2DModel, Parameter
from astropy.modeling.fitting import LevMarLSQFitter
from record import record
from scipy.optimize import least_squares

import skydelta
from skydelta.kernels.fit import fit_gaussians, fit_lobes, spline_coefficients

SIGMA = 1.6


def gaussian(side, x, y):
    """Unit-sum Gaussians (n, side, side) around x, y (n,) px from the middle."""
    o = np.arange(side) - side // 2
    across, down = (np.exp(-((o - a[:, None]) ** 2) / (2 * SIGMA**2)) for a in (x, y))
    return down[:, :, None] * across[:, None, :] / (2 * np.pi * SIGMA**2)


def dipoles(rng, n, side):
    """Stamps, lobes (n, 2, 2) from the middle, fluxes (n, 2)."""
    half, angle = 0.5 * rng.uniform(1, 3, n) * SIGMA, rng.uniform(0, 2 * np.pi, n)
    step, middle = half[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1), rng.uniform(-0.5, 0.5, (n, 2))
    at = np.stack([middle + step, middle - step], 1)
    flux = np.exp(rng.uniform(np.log(20), np.log(200), (n, 2))) * np.sqrt(4 * np.pi) * SIGMA * [1, -1]
    data = rng.normal(0, 1, (n, side, side))
    for k in range(2):
        data += flux[:, k, None, None] * gaussian(side, *at[:, k].T)
    return data.astype(np.float32), at, flux


def by_scipy(data, start):
    """Positions (n, 2, 2) of the lobes, one stamp after the other."""
    side = data.shape[1]
    o = np.arange(side) - side // 2

    def parts(v):
        for x, y in ((v[1], v[2]), (v[4], v[5])):
            yield x, y, gaussian(side, np.array([x]), np.array([y]))[0]

    found = []
    for stamp, at in zip(data.astype(float), start, strict=True):

        def residual(v, stamp=stamp):
            (*_, p), (*_, q) = parts(v)
            return (v[0] * p + v[3] * q + v[6] - stamp).ravel()

        def jacobian(v):
            columns = []
            for flux, (x, y, p) in zip((v[0], v[3]), parts(v), strict=True):
                columns += [p, flux * p * (o - x) / SIGMA**2, flux * p * (o[:, None] - y) / SIGMA**2]
            return np.stack([*(c.ravel() for c in columns), np.ones(side * side)], 1)

        first = np.array([stamp.max() * 16, *at[0], stamp.min() * 16, *at[1], 0])
        found.append(least_squares(residual, first, jacobian, method="lm").x)
    return np.array(found)[:, [1, 2, 4, 5]].reshape(-1, 2, 2)


def parts(x, y, x1, y1, x2, y2, width):
    """Both unit Gaussians, each with its derivatives by x, y and width."""
    for cx, cy in ((x1, y1), (x2, y2)):
        dx, dy = (x - cx) / width, (y - cy) / width
        p = np.exp(-0.5 * (dx**2 + dy**2)) / (2 * np.pi * width**2)
        yield p, p * dx / width, p * dy / width, p * (dx**2 + dy**2 - 2) / width


class TwoGaussians(Fittable2DModel):
    """Two Gaussians of one width and a constant, for astropy."""

    f1, x1, y1, f2, x2, y2, width, level = (Parameter(default=1.0) for _ in range(8))

    @staticmethod
    def evaluate(x, y, f1, x1, y1, f2, x2, y2, width, level):
        (p, *_), (q, *_) = parts(x, y, x1, y1, x2, y2, width)
        return f1 * p + f2 * q + level

    @staticmethod
    def fit_deriv(x, y, f1, x1, y1, f2, x2, y2, width, level):
        (p, px, py, pw), (q, qx, qy, qw) = parts(x, y, x1, y1, x2, y2, width)
        return [p, f1 * px, f1 * py, q, f2 * qx, f2 * qy, f1 * pw + f2 * qw, np.ones_like(p)]


def gaussians_by(fitter, data, start, width):
    """Positions (n, 2, 2) of two Gaussians of free width, by ``scipy`` or ``astropy``."""
    side = data.shape[1]
    y, x = np.indices((side, side)) - side // 2
    fit, found = LevMarLSQFitter(), []
    for stamp, at in zip(data.astype(float), start, strict=True):
        first = [stamp.max() * 16, *at[0], stamp.min() * 16, *at[1], width, 0.0]
        if fitter == "astropy":
            v = fit(TwoGaussians(*first), x, y, stamp).parameters
        else:
            v = least_squares(
                lambda v, stamp=stamp: (TwoGaussians.evaluate(x, y, *v) - stamp).ravel(),
                first,
                lambda v: np.stack([c.ravel() for c in TwoGaussians.fit_deriv(x, y, *v)], 1),
                method="lm",
            ).x
        found.append(v)
    return np.array(found)[:, [1, 2, 4, 5]].reshape(-1, 2, 2)


def timed(function, count, repeat):
    """What the last call gave, fits a second by the wall clock and by CPU time, best of the repeats."""
    wall, cpu, out = [], [], None
    for _ in range(repeat):
        begin, used = time.perf_counter(), time.process_time()
        out = function()
        wall.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - used)
    rates = {"fits_per_s": round(count / min(wall)), "fits_per_cpu_s": round(count / min(cpu))}
    return out, rates


def good(at, truth):
    """Share with both lobes within 0.5 px."""
    return round(float((np.hypot(*np.moveaxis(at - truth, 2, 0)).max(axis=1) < 0.5).mean()), 4)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stamps", type=int, default=20000)
    parser.add_argument("--side", type=int, default=21)
    parser.add_argument("--scipy", type=int, default=300, help="stamps that SciPy fits, the first of the same")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    numba.set_num_threads(a.threads)
    rng, n, half = np.random.default_rng(a.seed), a.stamps, a.side // 2
    data, at, flux = dipoles(rng, n, a.side)
    start = at + rng.normal(0, 0.3, at.shape)
    psf = gaussian(31, np.zeros(1), np.zeros(1))
    weight, coefficients = np.ones_like(data), np.repeat(spline_coefficients(psf), n, 0)
    fit_lobes(data[:8], weight[:8], coefficients[:8], start[:8])  # compiles
    rows = {}
    found, rates = timed(lambda: fit_lobes(data, weight, coefficients, start), n, a.repeat)
    places = found.parameters[:, [1, 2, 4, 5]].reshape(-1, 2, 2)
    rows["dipole, kernel"] = {**rates, "both_lobes_within_half_px": good(places, at)}
    few = slice(a.scipy)
    theirs, rates = timed(lambda: by_scipy(data[few], start[few]), a.scipy, 1)
    rows["dipole, scipy least_squares lm"] = {
        **rates,
        "both_lobes_within_half_px": good(theirs, at[few]),
        "kernel_on_the_same": good(places[few], at[few]),
    }
    table, rates = timed(lambda: skydelta.fit(data, model="dipole", psf=psf, variance=1.0), n, a.repeat)
    names = ("x_pos", "y_pos", "x_neg", "y_neg")
    places = np.stack([table[c] for c in names], 1).reshape(-1, 2, 2) - half
    rows["dipole, api without a start"] = {
        **rates,
        "both_lobes_within_half_px": good(np.nan_to_num(places, nan=99), at),
        "degenerate": round(float(table.has("DEGENERATE").mean()), 4),
    }
    width = 1.2 * SIGMA
    begin = np.c_[start.reshape(n, 4), np.full(n, width)]
    fit_gaussians(data[:8], weight[:8], begin[:8])
    found, rates = timed(lambda: fit_gaussians(data, weight, begin), n, a.repeat)
    places = found.parameters[:, [1, 2, 4, 5]].reshape(-1, 2, 2)
    rows["gaussian dipole, kernel"] = {
        **rates,
        "both_lobes_within_half_px": good(places, at),
        "evaluations": round(float(found.evaluations.mean()), 2),
    }
    for fitter in ("scipy", "astropy"):
        theirs, rates = timed(lambda fitter=fitter: gaussians_by(fitter, data[few], start[few], width), a.scipy, 1)
        rows[f"gaussian dipole, {fitter}"] = {
            **rates,
            "both_lobes_within_half_px": good(theirs, at[few]),
            "kernel_on_the_same": good(places[few], at[few]),
        }
    table, rates = timed(lambda: skydelta.fit(data, model="gaussian_dipole", variance=1.0), n, a.repeat)
    places = np.stack([table[c] for c in names], 1).reshape(-1, 2, 2) - half
    rows["gaussian dipole, api without a start"] = {
        **rates,
        "both_lobes_within_half_px": good(np.nan_to_num(places, nan=99), at),
        "converged": round(float((table["status"] == "converged").mean()), 4),
    }
    single = rng.normal(0, 1, data.shape) + flux[:, :1, None] * gaussian(a.side, *(at[:, 0] * 0.3).T)
    table, rates = timed(lambda: skydelta.fit(single, psf=psf, variance=1.0), n, a.repeat)
    pull = (table["flux"] - flux[:, 0]) / table["flux_err"]
    rows["point, api without a start"] = {**rates, "std_of_the_pull_of_flux": round(float(pull.std()), 4)}
    result = {
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "threads": a.threads,
        "stamps": n,
        "side": a.side,
        "dtype": "float32 pixels, float64 sums",
        "state": "warm",
        "rows": rows,
    }
    record(result, a.out)


if __name__ == "__main__":
    main()
