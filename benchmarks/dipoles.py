# SPDX-License-Identifier: BSD-3-Clause
"""Fluxes and moments of fitted dipoles by separation and signal-to-noise: the table of docs/stages/fit.md.

python benchmarks/dipoles.py [--stamps 1000] [--seed 1]

Equal lobes of a known Gaussian PSF on unit noise, in any direction, the middle up to half a pixel off that of the
stamp; the variance is given, a start is not.
"""

import argparse

import numpy as np

import skydelta

SIGMA, SIDE, OFF = 1.6, 21, 0.5

ROWS = (
    (0.7, 60), (0.7, 120), (0.7, 200), (1.0, 60), (1.0, 120), (1.6, 5), (1.6, 7.5), (1.6, 10), (1.6, 60),
    (2.4, 5), (2.4, 7.5), (2.4, 10), (2.4, 20), (2.4, 60), (4.0, 5), (4.0, 7.5), (4.0, 10),
    (6.4, 5), (6.4, 7.5), (6.4, 10),
)  # fmt: skip


def gaussian(side, x, y):
    """Unit-sum Gaussians (n, side, side) at x, y (n,)."""
    o = np.arange(side)
    across, down = (np.exp(-((o - a[:, None]) ** 2) / (2 * SIGMA**2)) for a in (x, y))
    return down[:, :, None] * across[:, None, :] / (2 * np.pi * SIGMA**2)


def judged(rng, separation, snr, n):
    """Share unflagged, four medians over the truth, and median and robust width of the pull of all moments."""
    flux = snr * 2 * np.sqrt(np.pi) * SIGMA  # of which the error is 1, alone and with a known sky
    angle = rng.uniform(0, 2 * np.pi, n)
    along = np.stack([np.cos(angle), np.sin(angle)])
    middle = SIDE // 2 + rng.uniform(-OFF, OFF, (2, n))
    plus, minus = middle + separation / 2 * along, middle - separation / 2 * along
    data = flux * (gaussian(SIDE, *plus) - gaussian(SIDE, *minus)) + rng.normal(0, 1, (n, SIDE, SIDE))
    psf = gaussian(31, *np.full((2, 1), 15.0))[0]
    got = skydelta.fit(data.astype(np.float32), model="dipole", psf=psf, variance=1.0)
    free, truth = ~got.has("DEGENERATE"), flux * separation
    moment = got["moment_x"] * along[0] + got["moment_y"] * along[1]
    error = np.hypot(got["moment_x_err"] * along[0], got["moment_y_err"] * along[1])
    pull = (moment - truth) / error
    medians = [np.median(values) if len(values) else np.nan for values in (
        got["flux_pos"][free] / flux, moment[free] / truth, moment[~free] / truth, moment / truth, pull,
    )]  # fmt: skip
    return [free.mean(), *medians, 1.4826 * np.median(np.abs(pull - medians[-1]))]


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--stamps", type=int, default=1000, help="dipoles of each row")
    words.add_argument("--seed", type=int, default=1)
    given = words.parse_args()
    print("| separation, px | S/N of a lobe | unflagged | their `flux_pos` | their moment | moment of the flagged "
          "| of all | pull of all: median, width |\n|" + "---|" * 8)  # fmt: skip
    for separation, snr in ROWS:
        rng = np.random.default_rng([given.seed, round(10 * separation), round(10 * snr)])
        free, *ratios, middle, width = judged(rng, separation, snr, given.stamps)
        cells = [
            f"{separation}",
            f"{snr:g}",
            f"{100 * free:.0f} %",
            *(f"{v:.2f}" if np.isfinite(v) else "" for v in ratios),
        ]
        print("| " + " | ".join([*cells, f"{middle:+.2f}, {width:.2f}"]) + " |", flush=True)


if __name__ == "__main__":
    main()
