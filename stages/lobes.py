# SPDX-License-Identifier: BSD-3-Clause
"""Point sources and dipoles in stamps: where fits start, which start wins, and what follows from the parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from skydelta.io.catalog import bits
from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.kernels.fit import LobeFit, Status, fit_lobes, linear_dipole, of_background

SEPARATIONS = (2.5, 1.0)
"""Lobe distances tried along the dipole moment, PSF sigma."""

EXCESS = 3.0
"""Standard deviations of chi2 above its expectation from which on a model does not explain a stamp."""

REACH = 6
"""Peaks are taken for lobes up to this far from the middle, px an axis."""

LOBE_ERROR = 0.27
"""Error of a fitted lobe (px, either axis) from which on the lobes count as not determined one by one.

By simulation (S/N 10 to 300, separation 0.3 to 3 PSF sigma, flux ratio 0.5 to 2) this flags 99 % of the dipoles whose
true Fisher error is above 0.5 px and 0.5 % of those below 0.15 px; no limit on the chi2 that two lobes gain over the
moment does both."""

PSF_FREE, LINEAR_FREE, DIPOLE_FREE = 3, 5, 6
"""Free parameters but for the terms of the background; of the linear dipole with its centre free.

At a given place that has as many as a free PSF."""

MERGED = 2.0
"""Lobes that ran into one win over others where their chi2 is lower by more than this: the AIC of a parameter."""

TOGETHER = 1024
"""So many dipoles are fitted on a device from all their starts at once; no result depends on it."""


@dataclass(frozen=True)
class Stamps:
    """Pixels around objects, where the image lives, and where the objects are in them (host, float64).

    Attributes
    ----------
    data, weight : float32 (n, s, s)
        Weight is inverse variance; 0, and data 0, where there is no usable pixel.
    psf : float64 (n, p, p)
        Spline coefficients.
    middle : (n, 2)
        x, y of the stamp's middle in the image.
    start : (n, 2)
        Detected position from the middle, px.
    lobes : (n, 2, 2)
        Detected positive and negative lobe from the middle; NaN where there is one peak only.
    terms : int
        Of the background, as in `fit_lobes`.
    """

    data: Array
    weight: Array
    psf: Array
    middle: np.ndarray
    start: np.ndarray
    lobes: np.ndarray
    terms: int = 1

    def fit(self, start: np.ndarray, row: np.ndarray, **options: int) -> LobeFit:
        """`fit_lobes` of some rows from these positions."""
        return fit_lobes(self.data, self.weight, self.psf, start, row, terms=self.terms, **options)


def single_columns(psf: LobeFit) -> dict[str, np.ndarray]:
    """Columns of the one-PSF model."""
    n, pixels, fitted, error = len(psf.chi2), psf.pixels.astype(float), psf.usable, psf.errors
    flux, x, y = np.where(fitted[:, None], psf.parameters, np.nan)[:, :3].T
    kept = psf.status == Status.CONVERGED
    rows = {
        "x": np.where(kept, x, np.nan),
        "y": np.where(kept, y, np.nan),
        "flux": flux,
        "flux_err": error[:, 0],
        "model": np.full(n, "psf", dtype="U8"),
        "flags": np.where(fitted, 0, bits("NO_FIT")) | status_flags(psf.status),
        "x_err": error[:, 1],
        "y_err": error[:, 2],
        **{
            name: np.where(fitted, v, np.nan)
            for name, v in background_columns(psf.background, psf.background_errors).items()
        },
        "chi2": np.where(fitted, psf.chi2, np.nan),
        "dof": np.maximum(pixels - PSF_FREE - psf.terms, 0),
        "bic": np.where(fitted, psf.chi2 + (PSF_FREE + psf.terms) * np.log(np.maximum(pixels, 1)), np.nan),
        "n_eval": psf.evaluations.copy(),
        "status": psf.status.copy(),
        "sharpness": psf.sharpness,
        **moment_columns(psf.moment, psf.moment_covariance),
    }
    rows["model"][~fitted] = "none"
    rows.update(zip(LOBES, np.full((len(LOBES), n), np.nan), strict=True))
    return rows


LOBES = (
    *(f"{a}_{lobe}" for lobe in ("pos", "neg") for a in ("flux", "x", "y")),
    "flux_pos_err",
    "flux_neg_err",
    "separation",
    "separation_err",
    "angle",
    "angle_err",
)
"""Columns of two lobes; NaN of one source, and where the lobes ran into one."""


def status_flags(status: np.ndarray) -> np.ndarray:
    late, bound = status == Status.MAX_EVALUATIONS, status == Status.AT_BOUND
    return np.where(late, bits("NOT_CONVERGED"), 0) | np.where(bound, bits("AT_BOUND"), 0)


BACKGROUND = ("background", "background_x", "background_y")


def background_columns(values: np.ndarray, errors: np.ndarray) -> dict[str, np.ndarray]:
    """Level in the middle of the stamp and slopes per px (n, 3), with their errors."""
    columns = zip(BACKGROUND, values.T, errors.T, strict=True)
    return {n: v for name, value, error in columns for n, v in ((name, value), (f"{name}_err", error))}


def moment_columns(moment: np.ndarray, c: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of the linear dipole's parameters (n, 3 + b) and their covariance (n, 3 + b, 3 + b)."""
    return {
        "moment_x": moment[:, 1],
        "moment_y": moment[:, 2],
        "moment_xx": c[:, 1, 1],
        "moment_xy": c[:, 1, 2],
        "moment_yy": c[:, 2, 2],
    }


def fit_dipoles(
    stamps: Stamps,
    row: np.ndarray,
    moment: np.ndarray,
    sigma: float | np.ndarray,
    known: bool = True,
    seek: Callable[[np.ndarray], np.ndarray] | None = None,
) -> LobeFit:
    """The best dipole of the stamps ``row`` from several starts: where lobes were seen, and along their moments (n, 2).

    Where the first start converges to determined lobes that explain the stamp no other is tried: of 40 000 simulated
    dipoles (S/N 5 to 200, separation 0.3 to 6 PSF sigma) half ended so, and no other start, nor the truth, had a lower
    chi2 for any.

    Parameters
    ----------
    stamps : Stamps
    row : int (n,)
    moment : float64 (n, 2)
    sigma : float or (n,)
        Of the PSF, px.
    known : bool
        The weights are the inverse variance, so that chi2 says whether the stamp is explained.
    seek : callable, optional
        Gives the lobes (m, 2, 2) of rows (m,) of the stamps that have none.
    """
    width = np.broadcast_to(np.asarray(sigma, float), len(row))[:, None]
    along = unit(moment)

    def about(which: np.ndarray, separation: float, direction: np.ndarray) -> np.ndarray:
        half = 0.5 * separation * width[which] * direction[which]
        here = stamps.start[row[which]]
        return np.stack([here + half, here - half], 1)

    every, across = np.arange(len(row)), along[:, ::-1] * np.array([-1, 1])
    seen = np.isfinite(stamps.lobes[row]).all(axis=(1, 2))
    wide, narrow = about(every, SEPARATIONS[0], along), about(every, SEPARATIONS[1], along)
    first = np.where(seen[:, None, None], stamps.lobes[row], wide)
    if seek is None and backend_of(stamps.data).is_gpu and len(row) <= TOGETHER:
        # a device has room for all starts beside each other, and every wait for it counts
        other = np.where(seen[:, None, None], wide, about(every, SEPARATIONS[0], across))
        fits = stamps.fit(np.concatenate([first, narrow, other]), np.tile(row, 3))
        best = fits.take(every)
        rest = np.flatnonzero(~_settled(best)) if known else every
        fits = fits.take((rest + len(row) * np.arange(3)[:, None]).ravel())
    else:
        best = stamps.fit(first, row)
        rest = np.flatnonzero(~_settled(best)) if known else every
        if not len(rest):
            return best
        other, blind = wide[rest], np.flatnonzero(~seen[rest])
        other[blind] = about(rest[blind], SEPARATIONS[0], across) if seek is None else seek(row[rest[blind]])
        fits = joined(best.take(rest), stamps.fit(np.concatenate([narrow[rest], other]), np.tile(row[rest], 2)))
    return put(best, rest, fits.take(best_of(fits, len(rest), MERGED)))


def _settled(dipole: LobeFit) -> np.ndarray:
    """bool (n,): converged, the lobes determined, and the stamp explained."""
    expected = np.maximum(dipole.pixels - DIPOLE_FREE - dipole.terms, 1)
    explained = dipole.chi2 - expected <= EXCESS * np.sqrt(2 * expected)
    return (dipole.status == Status.CONVERGED) & explained & ~undetermined(dipole)


def joined(*fits: LobeFit) -> LobeFit:
    """Several batches of fits as one."""
    return LobeFit(*(np.concatenate(a) for a in zip(*(vars(f).values() for f in fits), strict=True)))


def put(fit: LobeFit, rows: np.ndarray, new: LobeFit) -> LobeFit:
    """The fits with some of them replaced."""
    out = [a.copy() for a in vars(fit).values()]
    for a, b in zip(out, vars(new).values(), strict=True):
        a[rows] = b
    return LobeFit(*out)


def forced_fit(stamps: Stamps, places: np.ndarray) -> tuple[LobeFit, int]:
    """Fluxes and background with the lobes held at ``places`` (n, k, 2), and the number of free parameters.

    The covariance is that of the linear parameters, zero for positions.
    """
    found = stamps.fit(places, np.arange(len(places)), limit=1)
    size, terms = found.covariance.shape[1], found.terms
    linear = np.r_[np.arange(0, size - terms, 3), size - terms : size]
    # the covariance of some with the others held fast is the inverse of a part of the inverse
    single = places.shape[1] == 1
    whole, part = (found.moment_covariance, np.r_[0, 3 : 3 + terms]) if single else (found.covariance, linear)
    covariance, known = np.zeros_like(found.covariance), np.isfinite(whole).all(axis=(1, 2))
    held = np.linalg.inv(np.linalg.inv(whole[known])[:, part[:, None], part])
    covariance[np.flatnonzero(known)[:, None, None], linear[:, None], linear] = held
    covariance[~known] = np.nan
    status = np.where(found.status == Status.MAX_EVALUATIONS, Status.CONVERGED, found.status)
    status = np.where(known | (status != Status.CONVERGED), status, Status.SINGULAR).astype(np.int32)
    return replace(found, covariance=covariance, status=status), len(linear)


def undetermined(dipole: LobeFit) -> np.ndarray:
    """bool (n,): the lobes are not determined one by one."""
    return ~(dipole.errors[:, [1, 2, 4, 5]].max(axis=1) < LOBE_ERROR)


def unit(v: np.ndarray) -> np.ndarray:
    """Vectors (n, 2) of length 1."""
    return v / np.maximum(np.hypot(*v.T), 1e-300)[:, None]


def linear_columns(stamps: Stamps, row: np.ndarray, middle: np.ndarray, sigma: float | np.ndarray) -> dict[str, Any]:
    """Flux, moment and position of the linear dipole of some rows, its centre free, and chi2 and background with them.

    The centre starts at ``middle`` (n, 2); ``sigma`` is that of the PSF, px.
    """
    width = np.broadcast_to(np.asarray(sigma, float), len(row))
    found = linear_dipole(stamps.data, stamps.weight, stamps.psf, middle, width, row, stamps.terms)
    errors = np.sqrt(np.diagonal(found.covariance, axis1=1, axis2=2))
    return {
        "x": found.place[:, 0],
        "y": found.place[:, 1],
        "x_err": found.error[:, 0],
        "y_err": found.error[:, 1],
        "flux": found.moment[:, 0],
        "flux_err": errors[:, 0],
        **background_columns(of_background(found.moment, stamps.terms), of_background(errors, stamps.terms)),
        "chi2": found.chi2,
        **moment_columns(found.moment, found.covariance),
    }


def settled(two: dict[str, Any], linear: dict[str, Any], gain: np.ndarray) -> dict[str, np.ndarray]:
    """Position, flux and moment of dipoles whose lobes are not determined: the mean of what both models say.

    Weights are Akaike's, exp(-AIC / 2) (Burnham & Anderson 2002), and the spread of the two is part of the errors
    (Buckland et al. 1997): lobes far enough apart are taken as they are, however faint, and close ones as the linear
    dipole, which between them is too small.

    Parameters
    ----------
    two, linear : dict
        `dipole_columns` and `linear_columns` of the same rows.
    gain : (n,)
        chi2 of the linear dipole less that of the lobes, in units of the noise.
    """
    odds = np.clip(gain - 2 * (DIPOLE_FREE - LINEAR_FREE), -100, 100)
    share = np.where(np.isfinite(two["moment_xx"]) & np.isfinite(gain), 1 / (1 + np.exp(-odds / 2)), 0)

    def mean(name: str) -> np.ndarray:
        return linear[name] + share * apart[name]

    apart = {name: np.where(share > 0, two[name] - linear[name], 0) for name in linear if name in two}
    out = {name: mean(name) for name in ("x", "y", "flux", "moment_x", "moment_y")}
    between = share * (1 - share)
    for name in ("x", "y", "flux"):
        of_two = np.where(share > 0, two[f"{name}_err"], 0)
        variance = share * of_two**2 + (1 - share) * linear[f"{name}_err"] ** 2
        out[f"{name}_err"] = np.sqrt(variance + between * apart[name] ** 2)
    for a, b in ("xx", "xy", "yy"):
        out[f"moment_{a}{b}"] = mean(f"moment_{a}{b}") + between * apart[f"moment_{a}"] * apart[f"moment_{b}"]
    return out


def best_of(fit: LobeFit, n: int, merged: float = np.inf) -> np.ndarray:
    """Of several fits of each of n objects, one round after the other, which has the lowest chi2.

    One that is not usable wins only where its chi2 is lower by more than ``merged``, in units of the noise it leaves.
    """
    best, usable = np.arange(n), fit.usable
    if not n:
        return best
    for other in np.arange(n, len(usable)).reshape(-1, n):
        left = np.minimum(fit.chi2[other], fit.chi2[best]) / np.maximum(fit.pixels[best], 1)
        lead = merged * np.maximum(left, 1e-300)
        # a little, so that rounding does not decide between two that ended alike
        lead = np.where(usable[best] == usable[other], 1e-6, np.where(usable[best], lead, -lead))
        best = np.where(fit.chi2[other] < fit.chi2[best] - lead, other, best)
    return best


def positive_first(fit: LobeFit) -> LobeFit:
    """Lobes swapped where the second is the brighter one, sign included."""
    swap = np.flatnonzero(fit.parameters[:, 3] > fit.parameters[:, 0])
    if not len(swap):
        return fit
    order = np.r_[3, 4, 5, 0, 1, 2, 6 : fit.parameters.shape[1]]
    parameters, covariance = fit.parameters.copy(), fit.covariance.copy()
    parameters[swap] = parameters[swap][:, order]
    covariance[swap] = covariance[swap][:, order][:, :, order]
    return replace(fit, parameters=parameters, covariance=covariance)


def dipole_columns(fit: LobeFit) -> dict[str, np.ndarray]:
    """What follows from the two lobes, errors to first order in their covariance."""
    f1, x1, y1, f2, x2, y2 = fit.parameters[:, :6].T
    total = np.maximum(f1 - f2, 1e-100)
    dx, dy = x1 - x2, y1 - y2
    length = np.maximum(np.hypot(dx, dy), 1e-100)
    # M = F+ (x+ - c) - F- (x- - c) about c = (F+ x+ + F- x-) / (F+ + F-) is 2 F+ F- / (F+ + F-) times x+ - x-
    mean = -2 * f1 * f2 / total
    m1, m2 = 2 * (f2 / total) ** 2, -2 * (f1 / total) ** 2
    # gradients with respect to F1, x1, y1, F2, x2, y2; F2 is negative
    slopes = {
        "flux": [1, 0, 0, 1, 0, 0],
        "x": [-f2 * dx / total**2, f1 / total, 0, f1 * dx / total**2, -f2 / total, 0],
        "y": [-f2 * dy / total**2, 0, f1 / total, f1 * dy / total**2, 0, -f2 / total],
        "separation": [0, dx / length, dy / length, 0, -dx / length, -dy / length],
        "angle": [0, -dy / length**2, dx / length**2, 0, dy / length**2, -dx / length**2],
        "moment_x": [m1 * dx, mean, 0, m2 * dx, -mean, 0],
        "moment_y": [m1 * dy, 0, mean, m2 * dy, 0, -mean],
    }
    gradients = np.zeros((len(f1), len(slopes), 6))
    for k, slope in enumerate(slopes.values()):
        for i, value in enumerate(slope):
            gradients[:, k, i] = value
    spread = gradients @ fit.covariance[:, :6, :6] @ gradients.transpose(0, 2, 1)
    # rounding makes the variance of a nearly singular combination negative
    variances = np.maximum(np.diagonal(spread, axis1=1, axis2=2), 0)
    errors, own = dict(zip(slopes, np.sqrt(variances).T, strict=True)), fit.errors
    return {
        "x": (f1 * x1 - f2 * x2) / total,
        "y": (f1 * y1 - f2 * y2) / total,
        "flux": f1 + f2,
        "flux_err": errors["flux"],
        "x_err": errors["x"],
        "y_err": errors["y"],
        **background_columns(fit.background, fit.background_errors),
        "chi2": fit.chi2,
        "n_eval": fit.evaluations,
        "status": fit.status,
        "flux_pos": f1,
        "flux_pos_err": own[:, 0],
        "x_pos": x1,
        "y_pos": y1,
        "flux_neg": -f2,
        "flux_neg_err": own[:, 3],
        "x_neg": x2,
        "y_neg": y2,
        "separation": np.hypot(dx, dy),
        "separation_err": errors["separation"],
        "angle": np.degrees(np.arctan2(dy, dx)),
        "angle_err": np.degrees(errors["angle"]),
        "moment_x": mean * dx,
        "moment_y": mean * dy,
        "moment_xx": spread[:, 5, 5],
        "moment_xy": spread[:, 5, 6],
        "moment_yy": spread[:, 6, 6],
    }


def matched(own: Stamps, sigma: np.ndarray, rows: np.ndarray) -> Array:
    """Signal-to-noise (m, s, s) of a Gaussian of about the PSF's width at every pixel of some stamps."""
    backend = backend_of(own.data)
    xp, fft, side = backend.xp, backend.fft, own.data.shape[1]
    index = backend.asarray(rows)
    data, weight = own.data[index], own.weight[index]
    o = np.arange(side) - side // 2
    wide = np.exp(-((o[:, None] ** 2 + o**2) / (2 * np.maximum(sigma[rows], 0.7)[:, None, None] ** 2)))
    size = fft.next_fast_len(side + side // 2, True)

    def through(plane: Array, kernel: np.ndarray) -> Array:
        spectrum = fft.rfft2(backend.asarray(kernel, np.float32), (size, size))
        return fft.irfft2(fft.rfft2(plane, (size, size)) * xp.conj(spectrum), (size, size))

    top, bottom = through(weight * data, wide), through(weight, wide**2)
    # correlation with a kernel whose middle is at side // 2 is moved back by that
    top, bottom = (xp.roll(a, (side // 2, side // 2), (1, 2))[:, :side, :side] for a in (top, bottom))
    least = 1e-3 * bottom.max(axis=(1, 2))[:, None, None]
    return xp.where(bottom > least, top / xp.sqrt(xp.maximum(bottom, least + 1e-30)), 0)


def peaks(own: Stamps, sigma: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Highest and lowest pixel (n, 2, 2), from the middle, of some stamps' matched filter near their starts."""
    backend, side = backend_of(own.data), own.data.shape[1]
    xp = backend.xp
    if not len(rows):
        return np.zeros((0, 2, 2))
    snr, o = matched(own, sigma, rows), np.arange(side) - side // 2
    near = np.abs(o - own.start[rows][:, None, :].transpose(0, 2, 1)) <= REACH
    inside = backend.asarray(near[:, 1, :, None] & near[:, 0, None, :])
    ends: list[Callable[..., Array]] = [partial(xp.argmax, axis=1), partial(xp.argmin, axis=1)]
    place = np.stack([to_host(end(xp.where(inside, snr, 0).reshape(len(snr), -1))) for end in ends], 1)
    return np.stack([place % side, place // side], 2) - side // 2.0
