# SPDX-License-Identifier: BSD-3-Clause
"""Photometric scales of the images of a stack: from zero points, or from the stars that they have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from astropy.io import fits
from scipy.spatial import cKDTree

from skydelta.errors import AlgorithmError, InputError
from skydelta.io.exposure import Exposure
from skydelta.io.fits.cards import number
from skydelta.kernels.backend import CPU, to_host
from skydelta.kernels.cutouts import cutouts
from skydelta.stages.background import Background
from skydelta.stages.base import Context
from skydelta.stages.robust import median
from skydelta.stages.stack.common import Series, solve
from skydelta.stages.stars import find_stars

ZERO_POINT_CARDS = ("MAGZERO", "MAGZP", "MAGZPT", "PHOTZP", "ZEROPT", "ZP", "SEXMGZPT")
"""Magnitude of one unit of the pixels."""

RADII = (4.0, 6.0, 8.0, 11.0, 15.0, 20.0, 27.0)
"""Apertures, px."""

WIDE, NARROW = 3.0, 1.0
"""Radii in FWHM of the worst seeing. Stars are measured in the narrow aperture; how much light the wide one holds
beyond is measured on the brighter ones of each image."""

GROWTH = (15.0, 3)
"""Least signal-to-noise in the wide aperture of stars that tell the growth, and the least number of them."""

MOST = 250
"""Brightest stars measured in one image."""

SNR = 10.0
"""Least signal-to-noise of an aperture."""

NEAR = 1.5
"""Stars of two images closer than this are the same, px."""

FLOOR = 0.003
"""Relative error of any aperture flux: what pixels, flat fields and the PSF's wings leave."""

PSF_VARIATION = 0.01
"""Relative error of the growth on any one star: the PSF varies over the field."""

LEAST = 4
"""Stars in common with other images, at least."""

GOOD = 0.02
"""Largest standard error of a scale that is used when nobody insists on it."""


def zero_point(header: fits.Header) -> tuple[str, float] | None:
    """Card and magnitude zero point, if there is a usable one."""
    for card in ZERO_POINT_CARDS:
        if card in header:
            try:
                value = number(header, card, float("nan"))
            except InputError:
                continue
            if np.isfinite(value):
                return card, value
    return None


@dataclass(frozen=True)
class Measured:
    """Stars of one image in target px, with fluxes in all `RADII` (n, radii) and their variances; unscaled."""

    x: np.ndarray
    y: np.ndarray
    flux: np.ndarray
    variance: np.ndarray
    fwhm: float


def measure(image: Exposure) -> Measured:
    """Bright isolated stars of an aligned image whose ``origin`` is its place on the target.

    The sky is that of a mesh with sources masked: a ring around each star would hold light of its neighbours.
    """
    none = np.empty((0, len(RADII)))
    try:
        flat = Background(model="mesh").run(Context(CPU), image=image)["image"]
    except AlgorithmError:
        return Measured(np.empty(0), np.empty(0), none, none, np.nan)
    stars = find_stars(flat)
    keep = np.flatnonzero(stars.isolated & ~stars.saturated & stars.compact)
    keep = keep[np.argsort(-stars.flux[keep], kind="stable")][:MOST]
    if not keep.size:
        return Measured(np.empty(0), np.empty(0), none, none, np.nan)
    x, y, half = stars.x[keep], stars.y[keep], int(RADII[-1]) + 2
    px, py = np.rint(x).astype(int), np.rint(y).astype(int)
    planes = (flat.image, flat.image * np.nan if flat.variance is None else flat.variance)
    values, noise = (to_host(cutouts(p, px, py, half, np.nan)).astype(float) for p in planes)
    usable = to_host(cutouts(flat.good().astype(np.uint8), px, py, half)) > 0
    side = np.arange(-half, half + 1)
    r = np.hypot(side[None, None, :] - (x - px)[:, None, None], side[None, :, None] - (y - py)[:, None, None])
    flux, variance = np.empty((len(x), len(RADII))), np.empty((len(x), len(RADII)))
    for k, radius in enumerate(RADII):
        inside = np.clip(radius + 0.5 - r, 0, 1)
        whole = (usable | (inside == 0)).all(axis=(1, 2))
        flux[:, k] = np.where(whole, np.where(inside > 0, inside * values, 0).sum(axis=(1, 2)), np.nan)
        variance[:, k] = np.where(inside > 0, inside**2 * noise, 0).sum(axis=(1, 2))
    y0, x0 = flat.origin
    return Measured(x + x0, y + y0, flux, variance, float(median(stars.fwhm[keep])))


@dataclass(frozen=True)
class Scales:
    """Factors that bring images to the flux scale of the first.

    Attributes
    ----------
    scale, error : float64 (n,)
        Relative errors; NaN where nothing was fitted.
    stars : int64 (n,)
        In common with other images.
    radius : float
        Of the aperture, px.
    """

    scale: np.ndarray
    error: np.ndarray
    stars: np.ndarray
    radius: float


def _radius(least: float) -> int:
    """Number of the smallest of `RADII` that is at least this, or of the largest."""
    return min(int(np.searchsorted(RADII, least)), len(RADII) - 1)


def _wide_flux(m: Measured, fwhm: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Flux in the wide aperture, relative variance of each, and relative error that all have in common."""
    narrow, wide = _radius(NARROW * fwhm), _radius(WIDE * fwhm)
    with np.errstate(invalid="ignore", divide="ignore"):
        noise = np.where(np.isfinite(m.variance), m.variance, 0.0)
        relative = noise / m.flux**2
        ratio = m.flux[:, wide] / m.flux[:, narrow]
        bright = np.isfinite(ratio) & (m.flux[:, wide] > 0) & (relative[:, wide] < 1 / GROWTH[0] ** 2)
    if bright.sum() < GROWTH[1] or narrow == wide:
        return m.flux[:, wide], relative[:, wide], 0.0
    r, full = ratio[bright], 1 / (relative[bright, wide] + PSF_VARIATION**2)
    w = full
    for _ in range(5):
        growth = float(np.sum(w * r) / np.sum(w))
        away = np.abs(r / growth - 1) * np.sqrt(full)
        w = np.where(away > 3 * max(1.4826 * float(np.median(away)), 1.0), 0.0, full)
    left = w > 0
    scatter = max(float(np.sqrt(np.mean(w[left] * (r[left] / growth - 1) ** 2))), 1.0)
    return growth * m.flux[:, narrow], relative[:, narrow], scatter / float(np.sqrt(np.sum(w)))


def fit(measured: list[Measured]) -> Scales:
    """Scales from the stars in common, robust and all at once.

    ln flux = ln flux of the star - ln scale of the image. Images that no chain of common stars connects with the first
    keep NaN.
    """
    widths = np.array([m.fwhm for m in measured])
    widest = float(np.nanmax(widths)) if np.isfinite(widths).any() else 0.0
    series, star, growth_error, wide = [], 0, [], RADII[_radius(WIDE * widest)]
    known_x, known_y = np.empty(0), np.empty(0)
    for m in measured:
        flux, relative, beyond = _wide_flux(m, widest)
        growth_error.append(beyond)
        with np.errstate(invalid="ignore"):
            use = (flux > 0) & (relative < 1 / SNR**2)
        x, y = m.x[use], m.y[use]
        place = np.full(len(x), -1)
        if len(known_x) and len(x):
            ours, theirs = cKDTree(np.stack([x, y], 1)), cKDTree(np.stack([known_x, known_y], 1))
            away, near = theirs.query(ours.data, distance_upper_bound=NEAR)
            hit = np.flatnonzero(np.isfinite(away))
            back = ours.query(theirs.data[near[hit]])[1]
            place[hit[back == hit]] = near[hit[back == hit]]
        new = place < 0
        place[new] = star + np.arange(new.sum())
        star += int(new.sum())
        known_x, known_y = np.append(known_x, x[new]), np.append(known_y, y[new])
        value, weight = np.log(flux[use]), 1 / (relative[use] + FLOOR**2)
        series.append(Series(place, value, weight, np.ones((1, len(x)))))
    found = solve(series, max(star, 1))
    tied = (found.group == found.group[0]) & (found.links >= LEAST)
    tied[0] = True
    scale = np.where(tied, np.exp(found.offsets[0, 0] - found.offsets[:, 0]), np.nan)
    # the gauge takes the mean of all as exact: the first one's own error belongs to every ratio
    own = np.hypot(found.errors[:, 0], np.array(growth_error))
    error = np.where(tied, np.hypot(own, own[0]), np.nan)
    scale[0], error[0] = 1.0, 0.0
    return Scales(scale, error, found.links, wide)
