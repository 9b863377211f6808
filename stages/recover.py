# SPDX-License-Identifier: BSD-3-Clause
"""What the job made of injected sources: completeness, flux bias and the depth they show."""

from __future__ import annotations

from typing import Any

import numpy as np
from astropy import units as u
from scipy.optimize import minimize
from scipy.special import log_ndtr

from skydelta.errors import InputError
from skydelta.io.catalog import Catalog
from skydelta.io.exposure import Exposure
from skydelta.io.psf import fwhm
from skydelta.kernels.fit import Status
from skydelta.stages.base import Context, Port, Stage, StageConfig
from skydelta.stages.fit import BATCH, SIDES, Cutter, Detections
from skydelta.stages.fluxerror import kernel_flux_errors, with_kernel
from skydelta.stages.lobes import forced_fit

EDGES = (2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 15.0, 25.0, 60.0)
"""Bins of true signal-to-noise in which completeness is counted."""

CLEAR = 10.0
"""Signal-to-noise from which on sources tell the flux bias."""

ENOUGH = 10
"""Sources that a figure needs."""

ZERO_POINTS = ("MAGZERO", "MAGZPT", "MAGZP", "PHOTZP", "ZPTMAG")
"""Cards with the magnitude of a source of one image unit."""

CARDS = {
    "injected": ("INJN", "injected sources"),
    "injected_found": ("INJFOUND", "of them found"),
    "snr_50": ("INJSN50", "signal-to-noise of 50 % completeness"),
    "flux_50": ("INJFL50", "flux of 50 % completeness, science units"),
    "magnitude_50": ("INJMAG50", "magnitude of 50 % completeness"),
    "flux_ratio": ("INJRATIO", "forced flux over true flux"),
    "flux_ratio_err": ("INJRATER", "error of that"),
    "pull_median": ("INJPULL", "median of (flux - true) / error"),
    "pull_std": ("INJPSTD", "standard deviation of that"),
}
"""Figures that go into the header of the difference: card and comment."""


class RecoverConfig(StageConfig):
    """Nothing to choose."""


class Recover(Stage[RecoverConfig]):
    """Compare the injected sources with what detection and photometry found of them.

    Fluxes are forced at the true places on the whitened difference, with their own errors: (flux - true) / error has
    mean 0 and standard deviation 1 where both are right. A source is found when a positive object of the catalogue
    lies within one FWHM. Completeness against signal-to-noise is fitted with a cumulative Gaussian (maximum
    likelihood), whose middle, times the typical error of a flux, is the flux of 50 % completeness.

    Raises
    ------
    InputError
        The whitened difference has no variance or PSF.
    """

    name = "recover"
    version = 2
    inputs = {
        "image": Port(Exposure, "whitened difference of the image with the sources"),
        "catalog": Port(Catalog, "what was found in it"),
        "sources": Port(Catalog, "what was injected"),
    }
    outputs = {"injections": Port(Catalog, "the sources with what became of them; figures in its meta")}

    def run(  # type: ignore[override]
        self, ctx: Context, *, image: Exposure, catalog: Catalog, sources: Catalog
    ) -> dict[str, Any]:
        if image.variance is None or image.psf is None:
            raise InputError("recover: the whitened difference has no variance or no PSF")
        x, y, true = (np.asarray(sources[n].value, float) for n in ("x", "y", "flux"))
        flux, error = forced_fluxes(image, x, y)
        found, fitted = _found(catalog, x, y, fwhm(image.psf.at(*_middle(image))))
        snr, pull = true / error, (flux - true) / error
        figures = _figures(true, flux, error, found)
        if np.isfinite(figures["flux_50"]):
            zero_point = next((image.header[c] for c in ZERO_POINTS if c in image.header), None)
            if isinstance(zero_point, int | float):
                figures["magnitude_50"] = float(zero_point - 2.5 * np.log10(figures["flux_50"]))
        lost = int((~np.isfinite(flux)).sum())
        if lost:
            ctx.flag("injections_lost", f"{lost} injected sources have no usable pixels in the difference")
        for name, value in figures.items():
            ctx.metric(name, value)
        ctx.metric("completeness_snr", [float(e) for e in EDGES])
        ctx.metric("completeness", _completeness(snr, found))
        columns = {
            **{n: np.asarray(getattr(sources[n], "value", sources[n])) for n in ("id", "x", "y", "ra", "dec", "flux")},
            "snr": snr,
            "host": np.asarray(sources["host"], bool),
            "found": found,
            "forced_flux": flux,
            "forced_flux_err": error,
            "pull": pull,
            "fitted_flux": fitted,
        }
        unit = image.unit or u.dimensionless_unscaled
        units = {"x": u.pix, "y": u.pix, "ra": u.deg, "dec": u.deg}
        units |= dict.fromkeys(("flux", "forced_flux", "forced_flux_err", "fitted_flux"), unit)
        return {"injections": Catalog.of(columns, units, meta=figures)}


def _middle(image: Exposure) -> tuple[float, float]:
    return (image.shape[1] - 1) / 2, (image.shape[0] - 1) / 2


def forced_fluxes(image: Exposure, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Flux of a point source and its error at given places of an image of white noise: float64 (n,) each.

    The error has the matching kernel's part where the image brings that. NaN where too few pixels are usable.
    """
    assert image.psf is not None
    half = min(max(int(np.ceil(2.5 * fwhm(image.psf.at(*_middle(image))))), SIDES[0] // 2), SIDES[1] // 2)
    places = Detections(np.stack([x, y], 1), np.full((len(x), 2, 2), np.nan), np.zeros(len(x)))
    cutter, fluxes, errors = Cutter(image, places, 2 * half + 1), [np.zeros(0)], [np.zeros(0)]
    for first in range(0, len(x), BATCH):
        stamps = cutter(first, None)
        made, _ = forced_fit(stamps, stamps.start[:, None])
        usable = made.usable & (made.status == Status.CONVERGED)
        flux = np.where(usable, made.parameters[:, 0], np.nan)
        error = with_kernel(made.errors[:, 0], kernel_flux_errors(image, stamps, stamps.start, flux))
        fluxes.append(flux)
        errors.append(np.where(usable, error, np.nan))
    return np.concatenate(fluxes), np.concatenate(errors)


def _found(catalog: Catalog, x: np.ndarray, y: np.ndarray, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """bool (n,), and the catalogue's flux of the nearest positive object (NaN where none)."""
    positive = np.flatnonzero(np.asarray(catalog["snr"]) > 0)
    if not len(positive):
        return np.zeros(len(x), bool), np.full(len(x), np.nan)
    cx, cy, flux = (np.asarray(catalog[n].value, float)[positive] for n in ("x", "y", "flux"))
    distance = np.hypot(x[:, None] - cx, y[:, None] - cy)
    nearest = distance.argmin(axis=1)
    found = distance[np.arange(len(x)), nearest] < reach
    return found, np.where(found, flux[nearest], np.nan)


def _completeness(snr: np.ndarray, found: np.ndarray) -> list[float]:
    """Share found in each bin of `EDGES`; NaN in an empty one."""
    which = np.digitize(snr, EDGES) - 1
    return [float(found[which == k].mean()) if (which == k).any() else float("nan") for k in range(len(EDGES) - 1)]


def _figures(true: np.ndarray, flux: np.ndarray, error: np.ndarray, found: np.ndarray) -> dict[str, Any]:
    known = np.isfinite(flux) & (error > 0)
    snr, nan = true[known] / error[known], float("nan")
    pull = (flux - true)[known] / error[known]
    figures: dict[str, Any] = {"injected": len(true), "injected_found": int(found.sum())}
    enough = len(pull) >= ENOUGH
    figures["pull_median"] = float(np.median(pull)) if enough else nan
    figures["pull_mean"] = float(pull.mean()) if enough else nan
    figures["pull_std"] = float(pull.std(ddof=1)) if enough else nan
    clear = snr >= CLEAR
    weight, ratio = snr[clear] ** 2, (flux / true)[known][clear]
    enough = clear.sum() >= ENOUGH
    figures["flux_ratio"] = float((weight * ratio).sum() / weight.sum()) if enough else nan
    figures["flux_ratio_err"] = float(weight.sum() ** -0.5) if enough else nan
    figures["snr_50"] = half_complete(snr, found[known])
    # errors of faint sources: their own light adds nothing
    faint = error[known][snr <= np.median(snr)] if known.any() else np.array([nan])
    figures["flux_50"] = figures["snr_50"] * float(np.median(faint))
    return figures


def half_complete(snr: np.ndarray, found: np.ndarray) -> float:
    """Signal-to-noise at which half of the sources are found: middle of a cumulative Gaussian, maximum likelihood.

    NaN where too few sources, or found and lost ones do not tell it.
    """
    if min(found.sum(), (~found).sum()) < 3:
        return float("nan")

    def loss(p: np.ndarray) -> float:
        t = (snr - p[0]) * np.exp(-p[1])
        return -float(log_ndtr(np.where(found, t, -t)).sum())

    start = np.array([0.5 * (np.median(snr[found]) + np.median(snr[~found])), 0.0])
    # a width of at least e^-2: few sources may be told apart without overlap
    best = minimize(loss, start, method="L-BFGS-B", bounds=[(float(snr.min()), float(snr.max())), (-2.0, 3.0)])
    return float(best.x[0])
