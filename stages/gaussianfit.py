# SPDX-License-Identifier: BSD-3-Clause
"""Dipoles of two round Gaussians whose common width is fitted too: for stamps whose PSF is not known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from skydelta.kernels.fit import LEAST_WIDTH, LobeFit, fit_gaussians
from skydelta.stages.lobes import Stamps, best_of, peaks

GUESS = 1.6
"""Width of the filter that looks for the lobes where no PSF was given, px."""

WIDTHS = (0.7, 1.4)
"""Widths that fits start from, over that of the filter."""


def gaussian_dipoles(stamps: Stamps, sigma: np.ndarray) -> LobeFit:
    """The best fit of each stamp from three starts.

    The lobes told or the peaks of both signs, with two widths, and half as far apart with the width that the peaks of a
    close pair would have.

    Parameters
    ----------
    stamps : Stamps
    sigma : float64 (n,)
        Of the PSF, px; NaN where it is not known.
    """
    n, row = len(stamps.start), np.arange(len(stamps.start))
    width = np.where(np.isfinite(sigma), sigma, GUESS)
    lobes = np.where(np.isfinite(stamps.lobes), stamps.lobes, peaks(stamps, width, row))
    middle, apart = lobes.mean(axis=1, keepdims=True), np.hypot(*(lobes[:, 0] - lobes[:, 1]).T)
    most = stamps.data.shape[1] / 3
    # the peaks of two opposite Gaussians that nearly cancel are two widths apart
    tries = [(lobes, width * by) for by in WIDTHS] + [(0.5 * (lobes + middle), apart / 2)]
    starts = [np.c_[at.reshape(n, 4), np.clip(s, LEAST_WIDTH, most)] for at, s in tries]
    rows = np.tile(row, len(tries))
    fits = fit_gaussians(stamps.data, stamps.weight, np.concatenate(starts), rows, terms=stamps.terms)
    best = fits.take(best_of(fits, n))
    # how far each start went is part of the work
    return replace(best, evaluations=fits.evaluations.reshape(len(tries), n).sum(axis=0).astype(np.int32))


def gaussian_light(fit: LobeFit, side: int) -> np.ndarray:
    """Both lobes (n, side, side), less their background."""
    o, p = np.arange(side) - side // 2, fit.parameters
    width = p[:, 6, None]
    out = np.zeros((len(p), side, side))
    for k in (0, 3):
        across, down = (np.exp(-0.5 * ((o - p[:, k + a, None]) / width) ** 2) for a in (1, 2))
        out += (p[:, k] / (2 * np.pi * p[:, 6] ** 2))[:, None, None] * down[:, :, None] * across[:, None, :]
    return out
