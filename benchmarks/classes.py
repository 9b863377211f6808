# SPDX-License-Identifier: BSD-3-Clause
"""How often `skydelta.fit(model="best")` names the class of simulated stamps, by PSF width, signal-to-noise and length.

Run ``python benchmarks/classes.py [stamps per case]``; it prints the table of docs/validation.md. Stamps of 31 px, unit
white noise, given. The signal-to-noise is that of the whole light in its true shape. Trails are closed-form Gaussians
along a segment, of 0.5 to 4 FWHM and 16 px at most; tracks are charges along a line of 1 to 10 px, uneven, each moved
by 0.3 px, counted in pixels; hot pixels are bare ones, three in ten with some light in a second; the lobes of dipoles
are 3 PSF sigma apart.
"""

from __future__ import annotations

import sys

import numpy as np
from scipy.special import erf

import skydelta

SIDE, WIDTHS, SNRS = 31, (1.5, 2.5, 4.0), (10, 15, 20, 30, 100)
TRAILS = {"trail 0.5-1": (0.5, 1), "trail 1-1.5": (1, 1.5), "trail 1.5-4": (1.5, 4)}
KINDS = {
    "point": "point",
    "dipole": "dipole",
    **dict.fromkeys(TRAILS, "trail"),
    "hot": "cosmic_ray",
    "track": "cosmic_ray",
}


def point(x: float, y: float, sigma: float, side: int = SIDE) -> np.ndarray:
    """A round Gaussian of unit sum, x, y px from the middle of the stamp."""
    o = np.arange(side) - side // 2
    return np.exp(-((o - x) ** 2 + (o[:, None] - y) ** 2) / (2 * sigma**2)) / (2 * np.pi * sigma**2)


def trail(x: float, y: float, sigma: float, length: float, turn: float) -> np.ndarray:
    """The same along a segment, in closed form."""
    o = np.arange(SIDE) - SIDE // 2
    along = (o - x) * np.cos(turn) + (o[:, None] - y) * np.sin(turn)
    across = (o[:, None] - y) * np.cos(turn) - (o - x) * np.sin(turn)
    ends = [erf((along + half) / (np.sqrt(2) * sigma)) for half in (length / 2, -length / 2)]
    return (ends[0] - ends[1]) * np.exp(-0.5 * (across / sigma) ** 2)


def track(rng: np.random.Generator) -> np.ndarray:
    """Charges along a line, uneven, in pixels."""
    place, turn, length = rng.uniform(0, 1, 3000), rng.uniform(0, np.pi), rng.uniform(1, 10)
    knots = int(np.ceil(length)) + 2
    weight = np.interp(place * (knots - 1), np.arange(knots), rng.gamma(3, 1, knots))
    at = rng.uniform(-0.5, 0.5, 2) + (place[:, None] - 0.5) * length * np.array([np.cos(turn), np.sin(turn)])
    at += rng.normal(0, 0.3, at.shape)
    edges = np.arange(SIDE + 1) - SIDE / 2
    return np.histogram2d(at[:, 1], at[:, 0], (edges, edges), weights=weight)[0]


def model(rng: np.random.Generator, kind: str, width: float) -> np.ndarray:
    """One stamp without noise."""
    sigma, at, turn = width / 2.3548, rng.uniform(-1, 1, 2), rng.uniform(0, np.pi)
    if kind == "point":
        return point(*at, sigma)
    if kind == "dipole":
        half = 1.5 * sigma * np.array([np.cos(turn), np.sin(turn)]) * rng.choice([-1, 1])
        return point(*(at + half), sigma) - point(*(at - half), sigma)
    if kind in TRAILS:
        return trail(*at, sigma, min(rng.uniform(*TRAILS[kind]) * width, 16.0), turn)
    if kind == "track":
        return track(rng)
    out = np.zeros((SIDE, SIDE))
    out[SIDE // 2, SIDE // 2] = 1
    if rng.random() < 0.3:
        out[SIDE // 2 + rng.integers(-1, 2), SIDE // 2 + rng.integers(-1, 2)] += rng.uniform(0.1, 1)
    return out


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    rng = np.random.default_rng(1)
    print("| FWHM, px | kind | " + " | ".join(f"S/N {snr}" for snr in SNRS) + " |")
    print("|---|---|" + "---|" * len(SNRS))
    for width in WIDTHS:
        for kind, right in KINDS.items():
            shares = []
            for snr in SNRS:
                models = np.array([model(rng, kind, width) for _ in range(count)])
                models *= snr / np.sqrt((models**2).sum(axis=(1, 2), keepdims=True))
                data = models + rng.normal(0, 1, models.shape)
                got = skydelta.fit(data, model="best", psf=point(0, 0, width / 2.3548, 25), variance=1.0)
                shares.append((got["best_model"] == right).mean())
            print(f"| {width} | {kind} | " + " | ".join(f"{100 * s:.1f} %" for s in shares) + " |", flush=True)


if __name__ == "__main__":
    main()
