# SPDX-License-Identifier: BSD-3-Clause
"""Trails and cosmic rays in stamps: where their fits start, and what follows from the parameters.

Both are light along a segment: of a trail (Veres et al. 2012) as wide as the PSF, of a cosmic ray or hot pixel as
narrow as the detector allows (`skydelta.kernels.fit.SPOT`). A hot pixel is a segment without length: it has two
parameters less.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from skydelta.kernels.backend import backend_of, to_host
from skydelta.kernels.fit import LobeFit, fit_trails
from skydelta.stages.lobes import PSF_FREE, Stamps, best_of, matched, put

MARGIN = 6.0
"""BIC by which another model must win over a single source (2.2: 6 to 10)."""

TRAIL_FREE = 5
"""Free parameters of a trail but for the terms of the background."""

DIRECTIONS = np.pi / 8 * np.arange(8)
"""Of the trails that are tried at the start, besides that of the light's own moments."""

LENGTHS = (3.0, 7.0)
"""Of these, PSF sigma."""

BRIGHT, NOISE = 0.3, 3.0
"""Pixels of the matched filter whose moments count: above this share of the peak, and above so many sigma."""

WIDTH = 0.6
"""Of a cosmic ray, px: half a pixel and its spot, for lengths and the filter that starts are found with."""

TRIED = 2
"""So many starts, the best ones, are followed to their minimum."""


def on_host(stamps: Stamps, row: np.ndarray) -> Stamps:
    """Some of the stamps, on the host."""
    index = backend_of(stamps.data).asarray(row)
    data, weight, psf = (to_host(plane[index]) for plane in (stamps.data, stamps.weight, stamps.psf))
    return Stamps(data, weight, psf, stamps.middle[row], stamps.start[row], stamps.lobes[row], stamps.terms)


def fit_segments(own: Stamps, sigma: np.ndarray) -> LobeFit:
    """The best trail of every stamp, on the host, of several starts; parameters as those of `fit_trails`.

    Parameters
    ----------
    own : Stamps
        On the host; with a PSF of one pixel the light is as narrow as that of a cosmic ray.
    sigma : (n,)
        Of the PSF, px.
    """
    n, every = len(own.start), np.arange(len(own.start))
    if not n:
        return _follow(own, np.zeros((0, 4)), every)
    moments = by_moments(own, sigma)
    lengths, angles = (a.ravel() for a in np.meshgrid(LENGTHS, DIRECTIONS))
    grid = lengths[:, None] * np.stack([np.cos(angles), np.sin(angles)], 1)
    count = len(grid) + 1
    starts = np.empty((count, n, 4))
    starts[0] = moments
    starts[1:, :, :2], starts[1:, :, 2:] = moments[:, :2], grid[:, None] * sigma[:, None]
    first = _follow(own, starts.reshape(-1, 4), np.tile(every, count), limit=1)
    chi2 = np.where(np.isfinite(first.chi2) & first.usable, first.chi2, np.inf).reshape(count, n)
    best = np.argsort(chi2, axis=0, kind="stable")[:TRIED]
    fits = _follow(own, starts[best, every].reshape(-1, 4), np.tile(every, TRIED))
    return fits.take(best_of(fits, n))


def fit_rays(own: Stamps, known: bool) -> tuple[LobeFit, np.ndarray]:
    """The best segment or single spot of light that no PSF has passed, with as many free parameters (n,) as that has.

    Parameters are those of a trail; of a spot the ends apart are 0, with errors NaN.

    Parameters
    ----------
    own : Stamps
        On the host.
    known : bool
        The weights are the inverse variance.
    """
    n = len(own.start)
    own = replace(own, psf=np.ones((1, 1, 1)))
    segment = fit_segments(own, np.full(n, WIDTH))
    bright = np.abs(own.data) * np.sqrt(own.weight)
    side = bright.shape[1]
    place = np.stack(np.divmod(bright.reshape(n, -1).argmax(axis=1), side)[::-1], 1) - side // 2.0
    spot = _follow(own, place, np.arange(n))
    free, at = TRAIL_FREE + own.terms, np.r_[:PSF_FREE, TRAIL_FREE : TRAIL_FREE + own.terms]
    parameters, covariance = np.zeros((n, free)), np.full((n, free, free), np.nan)
    parameters[:, at], covariance[:, at[:, None], at] = spot.parameters, spot.covariance
    one, two = (badness(fit.chi2, fit.pixels, known) for fit in (spot, segment))
    more = (TRAIL_FREE - PSF_FREE) * np.log(np.maximum(spot.pixels, 1))
    longer = segment.usable & ~(two + more > one)
    fit = put(
        segment, np.flatnonzero(~longer), replace(spot, parameters=parameters, covariance=covariance).take(~longer)
    )
    return fit, np.where(longer, free, PSF_FREE + own.terms)


def badness(chi2: np.ndarray, pixels: np.ndarray, known: bool) -> np.ndarray:
    """-2 log of the likelihood, but for a constant: chi2, or what it is where the noise follows from it."""
    pixels = np.maximum(pixels, 1)
    return chi2 if known else pixels * np.log(np.maximum(chi2 / pixels, 1e-300))


def margins(bic: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which model (n,) has the lowest BIC, and by how much it leads the next.

    Another than the first must lead that by `MARGIN`, or the first is taken; the lead is then below 0.

    Parameters
    ----------
    bic : (k, n)
        NaN where a model is out of question.
    """
    merit = np.where(np.isfinite(bic), bic, np.inf)
    handicap = merit.copy()
    handicap[1:] += MARGIN
    chosen, every = handicap.argmin(axis=0), np.arange(bic.shape[1])
    others = merit.copy()
    others[chosen, every] = np.inf
    with np.errstate(invalid="ignore"):
        return chosen, others.min(axis=0) - merit[chosen, every]


def no_longer(fit: LobeFit) -> np.ndarray:
    """bool (n,): the length of a trail is not told from none.

    Short trails differ from points by their length squared, whose error is twice length times error: two of these.
    """
    columns = segment_columns(fit)
    return ~(columns["length"] > 4 * columns["length_err"]) & fit.usable


def segment_columns(fit: LobeFit) -> dict[str, np.ndarray]:
    """Flux, place, length, angle (-90 to 90 degrees from +x to +y), with errors to first order in their covariance."""
    across, down = fit.parameters[:, 3:5].T
    length = np.hypot(across, down)
    known = np.maximum(length, 1e-100)
    along = np.stack([across, down], 1) / known[:, None]
    aside = np.stack([-down, across], 1) / known[:, None] ** 2
    spread = fit.covariance[:, 3:5, 3:5]
    xx, xy, yy = spread[:, 0, 0], spread[:, 0, 1], spread[:, 1, 1]
    errors = [np.sqrt(np.maximum(gx**2 * xx + 2 * gx * gy * xy + gy**2 * yy, 0)) for gx, gy in (along.T, aside.T)]
    angle = np.degrees(np.arctan2(down, across))
    columns = {name: fit.parameters[:, k] for k, name in enumerate(("flux", "x", "y"))}
    columns |= {f"{name}_err": fit.errors[:, k] for k, name in enumerate(("flux", "x", "y"))}
    columns |= {"length": length, "length_err": errors[0]}
    columns["angle"] = np.where(length > 0, angle - 180 * np.rint(angle / 180), np.nan)
    return columns | {"angle_err": np.degrees(errors[1])}


def _follow(own: Stamps, start: np.ndarray, row: np.ndarray, **options: int) -> LobeFit:
    return fit_trails(own.data, own.weight, own.psf, start, row, terms=own.terms, **options)


def by_moments(own: Stamps, sigma: np.ndarray) -> np.ndarray:
    """Middle and ends apart (n, 4) of the segment with the moments of the light about the highest pixel."""
    n, side = len(own.start), own.data.shape[1]
    o = np.arange(side) - side // 2
    snr = matched(own, sigma, np.arange(n)).astype(float)
    highest, lowest = snr.max(axis=(1, 2))[:, None, None], snr.min(axis=(1, 2))[:, None, None]
    snr, peak = np.where(highest >= -lowest, snr, -snr), np.maximum(highest, -lowest)
    light = np.where(snr >= np.maximum(BRIGHT * peak, np.minimum(NOISE, peak)), snr, 0.0)
    total = np.maximum(light.sum(axis=(1, 2)), 1e-300)
    x, y = ((light * a).sum(axis=(1, 2)) / total for a in (o, o[:, None]))
    dx, dy = o - x[:, None, None], o[:, None] - y[:, None, None]
    xx, xy, yy = ((light * a * b).sum(axis=(1, 2)) / total for a, b in ((dx, dx), (dx, dy), (dy, dy)))
    angle = 0.5 * np.arctan2(2 * xy, xx - yy)
    # along and across differ by what the segment is long: length squared over twelve
    length = np.sqrt(12 * np.maximum(np.hypot(xx - yy, 2 * xy), (0.5 * sigma) ** 2))
    # in parts of a pixel, lest the last bit of a transform of many stamps at once decide where a fit ends
    return np.rint(64 * np.stack([x, y, length * np.cos(angle), length * np.sin(angle)], 1)) / 64
