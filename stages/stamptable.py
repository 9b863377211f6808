# SPDX-License-Identifier: BSD-3-Clause
"""Stamps of plain arrays as the kernels want them, and what the table of `skydelta.fit` says of their fits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skydelta.io.catalog import bits
from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.kernels.fit import LobeFit, Status
from skydelta.stages.lobes import LINEAR_FREE, background_columns, dipole_columns, status_flags
from skydelta.stages.trails import badness, margins, segment_columns

NAMES = {
    Status.CONVERGED: "converged",
    Status.AT_BOUND: "at bound",
    Status.SINGULAR: "singular",
    Status.MAX_EVALUATIONS: "max iterations",
    Status.NO_DATA: "no data",
}
DEGENERATE = "degenerate"

COLUMNS = {
    "point": ("flux", "x", "y"),
    "dipole": (
        "flux_pos", "x_pos", "y_pos", "flux_neg", "x_neg", "y_neg", "moment_x", "moment_y", "separation", "angle",
    ),
}  # fmt: skip
COLUMNS["gaussian_dipole"] = (*COLUMNS["dipole"], "sigma")
COLUMNS["trail"] = COLUMNS["cosmic_ray"] = (*COLUMNS["point"], "length", "angle")
COLUMNS["best"] = (*COLUMNS["trail"], *(name for name in COLUMNS["dipole"] if name != "angle"))
"""Fitted columns of each model; each is followed by its error, then come those of `COMMON`."""

RIVALS = ("point", "dipole", "trail", "cosmic_ray")
"""Models that ``best`` chooses from."""

COMMON = ("background", "background_err", "chi2", "dof", "bic", "n_eval", "status", "flags")


MOST = 1e18
"""Of a pixel, in units of the noise: float32 holds its square; what is more counts as no number."""


@dataclass(frozen=True)
class Scaled:
    """Stamps in units of about their noise and less their mean, so that float32 holds them, with odd sides.

    Scales are powers of two: nothing is rounded by them. Where no variance is given (None) they follow from the median
    deviation from the median. Without a background (``floating`` is False) no mean is taken away. An even side gets a
    row and a column of weight zero. ``good`` are the pixels that were used.
    """

    data: Array
    weight: Array
    good: Array
    level: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, data: Array, variance: Array | None, good: Array, floating: bool) -> Scaled:
        xp, (n, side, _) = backend_of(data).xp, data.shape
        known = 1.0 if variance is None else xp.where(good, variance, 1.0)
        size = _spread(data, good) if variance is None else xp.sqrt(_mean(known, good))
        scale = xp.exp2(xp.rint(xp.log2(xp.where(size > 0, size, 1.0))))[:, None, None]
        data = xp.where(good, data, 0.0) / scale
        good = good & (xp.abs(data) < MOST)
        level = _mean(data, good) * floating
        weight = xp.where(good, (1.0 if variance is None else scale**2) / known, 0.0)
        odd = side + 1 - side % 2
        planes = xp.zeros((2, n, odd, odd), np.float32)
        planes[0, :, :side, :side] = xp.where(good, data - level[:, None, None], 0.0)
        planes[1, :, :side, :side] = weight
        scales = to_host(scale[:, 0, 0])
        return cls(planes[0], planes[1], good, to_host(level) * scales, scales)


def _mean(values: Array, good: Array) -> Array:
    xp = backend_of(good).xp
    return xp.where(good, values, 0.0).sum(axis=(1, 2)) / xp.maximum(good.sum(axis=(1, 2)), 1)


def _spread(data: Array, good: Array) -> Array:
    """Median deviation from the median of each stamp (n,); where it is 0 the mean one, where that is 0 the value."""
    xp, (n, height, width) = backend_of(data).xp, data.shape
    middle = (xp.maximum(good.sum(axis=(1, 2)), 1) - 1) // 2

    def median(values: Array) -> Array:
        return xp.sort(xp.where(good, values, np.inf).reshape(n, height * width), axis=1)[xp.arange(n), middle][
            :, None, None
        ]

    data = xp.where(good, data, 0.0)
    off = xp.where(good, xp.abs(data - xp.where(good, median(data), 0.0)), 0.0)
    size = xp.where(good.any(axis=(1, 2)), median(off)[:, 0, 0], 0.0)
    for less_robust in (off, xp.abs(data)):
        size = xp.where(size > 0, size, _mean(less_robust, good))
    return size


@dataclass(frozen=True)
class Found:
    """Fits of one batch, and what the table says of them.

    Attributes
    ----------
    fit : LobeFit
        Covariance already that of the free parameters, times what the noise turned out to be.
    free : int or int (n,)
        Number of free parameters.
    known : bool
        The variance was given.
    degenerate : bool (n,)
    linear : dict, optional
        What is known where the lobes are not determined.
    """

    fit: LobeFit
    free: int | np.ndarray
    known: bool
    degenerate: np.ndarray
    linear: dict[str, np.ndarray] | None = None

    def columns(self, scaled: Scaled, middle: int) -> dict[str, np.ndarray]:
        fit, scale, n = self.fit, scaled.scale, len(self.fit.chi2)
        linear = self.linear or {}
        # one point and two lobes in it are the same: what is left of the dipole is the linear model
        merged = (fit.status == Status.SINGULAR) & np.isfinite(linear.get("chi2", np.full(n, np.nan)))
        some, free = fit.usable | merged, np.where(merged, LINEAR_FREE + fit.terms, self.free)
        names = np.array([NAMES[Status(s)] for s in fit.status], dtype="U14")
        degenerate = self.degenerate & some
        names[(degenerate & (fit.status == Status.CONVERGED)) | merged] = DEGENERATE
        pixels = np.maximum(fit.pixels, 1)
        chi2 = np.where(merged, linear["chi2"], fit.chi2) if linear else fit.chi2
        background = background_columns(fit.background, fit.background_errors)
        if linear:
            background = {name: np.where(merged, linear[name], values) for name, values in background.items()}
        quality = badness(chi2, pixels, self.known)
        out = segment_columns(fit) if fit.is_trail else self._point() if fit.lobes == 1 else self._dipole(degenerate)
        out = {name: np.where(fit.usable | (merged & (name[:6] == "moment")), v, np.nan) for name, v in out.items()}
        common = {**background, "chi2": chi2, "bic": quality + free * np.log(pixels)}
        out |= {name: np.where(some, values, np.nan) for name, values in common.items()}
        for name in out:
            if name.startswith(("flux", "moment", "background")):
                out[name] = out[name] * scale
            elif name[0] in "xy" and not name.endswith("_err"):
                out[name] = out[name] + middle
        out["background"] = out["background"] + scaled.level
        if not self.known:
            out["chi2"] = out["chi2"] * scale**2
            out["bic"] = out["bic"] + 2 * pixels * np.log(scale)
        out |= {"dof": np.maximum(fit.pixels - free, 0), "n_eval": fit.evaluations, "status": names}
        flags = status_flags(fit.status) | np.where(some, 0, bits("NO_FIT"))
        out["flags"] = (flags | np.where(degenerate, bits("DEGENERATE"), 0)).astype(np.int32)
        return out

    def _point(self) -> dict[str, np.ndarray]:
        values, errors = self.fit.parameters, self.fit.errors
        return {f"{n}{e}": a[:, k] for k, n in enumerate(COLUMNS["point"]) for e, a in (("", values), ("_err", errors))}

    def _dipole(self, degenerate: np.ndarray) -> dict[str, np.ndarray]:
        fit, errors = self.fit, self.fit.errors
        lobes = dipole_columns(fit)
        for k, lobe in ((0, "pos"), (3, "neg")):
            lobes |= {f"{a}_{lobe}_err": errors[:, k + i] for i, a in enumerate(("flux", "x", "y"))}
        for name, values in (self.linear or {}).items():
            if name in lobes:
                lobes[name] = np.where(degenerate, values, lobes[name])
        for axis in "xy":
            lobes[f"moment_{axis}_err"] = np.sqrt(lobes[f"moment_{axis}{axis}"])
        if fit.has_width:
            lobes |= {"sigma": fit.parameters[:, 6], "sigma_err": errors[:, 6]}
        model = "gaussian_dipole" if fit.has_width else "dipole"
        return {n: lobes[n] for name in COLUMNS[model] for n in (name, f"{name}_err")}


def best(parts: dict[str, dict[str, np.ndarray]], sigma: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of the model with the lowest BIC of each stamp, those of no use to it NaN.

    Parameters
    ----------
    parts : dict
        Columns of every one of `RIVALS`.
    sigma : (n,)
        Of the PSF, px.
    """
    bic = np.stack([parts[name]["bic"] for name in RIVALS])
    lobes, trail = parts["dipole"], parts["trail"]
    # lobes of one sign are no dipole; those that ran into one have no fluxes, but a moment
    bic[1, (lobes["flux_pos"] <= 0) | (lobes["flux_neg"] <= 0)] = np.nan
    # what is shorter is a point as well, of a PSF that is not quite the right one
    bic[2, ~(trail["length"] > sigma)] = np.nan
    chosen, ahead = margins(bic)
    names = dict.fromkeys(name for model in RIVALS for name in parts[model])
    out = {}
    for name in names:
        like = next(part[name] for part in parts.values() if name in part)
        blank = np.full_like(like, np.nan, dtype=float)
        rows = [parts[model].get(name, blank) for model in RIVALS]
        out[name] = np.choose(chosen.reshape(-1, *[1] * (like.ndim - 1)), rows)
    out["n_eval"] = np.sum([part["n_eval"] for part in parts.values()], axis=0)
    out |= {f"bic_{name}": parts[name]["bic"] for name in RIVALS}
    return out | {"best_model": np.array(RIVALS)[chosen], "bic_difference": ahead}
