# SPDX-License-Identifier: BSD-3-Clause
"""Fit every detection with the PSF, and with two opposite lobes where one does not do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np
from astropy import units as u
from scipy.spatial import cKDTree

from skydelta.errors import InputError
from skydelta.io.catalog import Catalog, bits
from skydelta.io.exposure import Exposure
from skydelta.io.psf import GridPsf, Psf, fwhm
from skydelta.kernels.backend import Array, Backend
from skydelta.kernels.cutouts import Windows
from skydelta.kernels.fit import LobeFit, Status, fit_lobes, spline_coefficients, subtract_lobes
from skydelta.stages.base import Context, Port, Stage, StageConfig
from skydelta.stages.detect import sky_positions

BATCH = 2048
"""Stamps cut at a time: bounds the memory; no result depends on it."""

MARGIN = 6.0
"""BIC by which the dipole must win over the single source (2.2: 6 to 10)."""

EXCESS = 3.0
"""Standard deviations of chi2 above its expectation from which on a dipole is tried for any object."""

EXPLAINED = 0.3
"""Share of that excess which a dipole must take away; it leaves most of a cosmic ray's, whose light is no PSF."""

SEPARATIONS = (1.0, 2.5)
"""Lobe distances tried along the dipole moment, PSF sigma."""

LOBE_ERROR = 0.27
"""Error of a fitted lobe (px, either axis) from which on the lobes count as not determined one by one.

By simulation (S/N 10 to 300, separation 0.3 to 3 PSF sigma, flux ratio 0.5 to 2) this flags 99 % of the dipoles whose
true Fisher error is above 0.5 px and 0.5 % of those below 0.15 px; no limit on the chi2 that two lobes gain over the
moment does both."""

SIDES = (15, 31)
"""Smallest and largest stamp, px."""

PSF_FREE, DIPOLE_FREE = 4, 7
"""Free parameters; the moment at a given place has as many as a free PSF."""


class FitConfig(StageConfig):
    """Nothing to choose: models compete by their BIC."""


class Fit(Stage[FitConfig]):
    """Flux, position and model of every detection, by maximum likelihood with the known PSF and variance.

    Every object is fitted with one PSF and a constant; a dipole F+ P(x - x+) - F- P(x - x-) + b is tried for those
    paired by detection and those that one PSF does not explain. The dipole moment M with its covariance is always
    given: of the lobes about (x, y) for dipoles, else of the linear model F P - M . grad P + b about the detected
    position. Where the lobes are not determined one by one the row is flagged DEGENERATE, and flux, moment and position
    are those of the linear model with its centre free along M. The light of neighbouring rows is taken away first.

    Raises
    ------
    InputError
        The image has no variance or no PSF.
    """

    name = "fit"
    version = 1
    inputs = {
        "image": Port(Exposure, "difference with white noise, its variance and PSF"),
        "catalog": Port(Catalog, "detections"),
    }
    outputs = {"catalog": Port(Catalog, "the same rows with fluxes, models and errors", replaces="catalog")}

    def memory(self, shape: tuple[int, int]) -> int:
        return BATCH * SIDES[1] ** 2 * 8 * 8

    def run(self, ctx: Context, *, image: Exposure, catalog: Catalog) -> dict[str, Any]:  # type: ignore[override]
        if image.variance is None or image.psf is None:
            raise InputError(f"fit: the image has no {'variance' if image.variance is None else 'PSF'}")
        width = fwhm(image.psf.at((image.shape[1] - 1) / 2, (image.shape[0] - 1) / 2))
        side = min(max(2 * ceil(2.5 * width) + 1, SIDES[0]), SIDES[1])
        found, sigma = Detections.of(catalog), width / 2.3548
        stamps = lru_cache(1)(_Cutter(image, found, side))
        rows = _fit(stamps, sigma, np.arange(len(catalog)), None)
        pairs, light = _neighbours(found, side), None
        changed = np.ones(len(catalog), bool)
        # the faint of two neighbours would be fitted to the light of the other: take that away, brightest first
        for others in (pairs[_brighter(found, pairs)], pairs):
            # the second time only where there are more of them, or other ones
            news = changed[others[:, 1]] | ~_brighter(found, others)
            changed = np.zeros(len(catalog), bool)
            changed[others[news, 0]] = True
            if changed.any():
                light = Light(others, rows)
                again = np.flatnonzero(changed)
                rows = _replaced(rows, again, _fit(stamps, sigma, again, light))
        _settle(stamps, sigma, rows, light)
        out = _catalog(image, catalog, rows)
        dipole = rows["model"] == "dipole"
        ctx.metric("candidates", len(out))
        ctx.metric("dipoles", int(dipole.sum()))
        ctx.metric("degenerate_dipoles", int(out.has("DEGENERATE").sum()))
        ctx.metric("not_converged", int((out.has("NOT_CONVERGED") | out.has("NO_FIT")).sum()))
        return {"catalog": out}


@dataclass(frozen=True)
class Detections:
    """What is known of each object beforehand: host, float64.

    Attributes
    ----------
    at : (n, 2)
        Detected x, y.
    lobes : (n, 2, 2)
        x, y of the detected positive and negative lobe; NaN where there is one peak only.
    snr : (n,)
    """

    at: np.ndarray
    lobes: np.ndarray
    snr: np.ndarray

    @classmethod
    def of(cls, catalog: Catalog) -> Detections:
        x, y, *four, snr = (_value(catalog, n) for n in ("x", "y", "x_pos", "y_pos", "x_neg", "y_neg", "snr"))
        return cls(np.stack([x, y], 1), np.stack(four, 1).reshape(-1, 2, 2), snr)


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
    """

    data: Array
    weight: Array
    psf: Array
    middle: np.ndarray
    start: np.ndarray
    lobes: np.ndarray

    def fit(self, start: np.ndarray, row: np.ndarray, **options: int) -> LobeFit:
        """`fit_lobes` of some rows from these positions."""
        return fit_lobes(self.data, self.weight, self.psf, start, row, **options)


def _value(catalog: Catalog, name: str) -> np.ndarray:
    column = catalog[name]
    return np.asarray(getattr(column, "value", column), float)


@dataclass(frozen=True, eq=False)
class Light:
    """What neighbours shine into stamps.

    Attributes
    ----------
    others : int (m, 2)
        Rows, in order, and the rows whose light is in their stamps.
    rows : dict
        The columns of all rows that say how much.
    """

    others: np.ndarray
    rows: dict[str, np.ndarray]


class _Cutter:
    """Cuts the stamps of the batch that begins at a row, on the image's device, less the light of neighbours."""

    def __init__(self, image: Exposure, found: Detections, side: int) -> None:
        assert image.psf is not None
        self.image, self.found, self.side = image, found, side
        self.psf = _filtered(image.psf, image.backend)
        self._whole = lru_cache(1)(self._cut)  # a catalogue of one batch is cut once

    def __call__(self, first: int, light: Light | None) -> Stamps:
        whole = self._whole(first)
        return whole if light is None else _without(whole, first, light)

    def _cut(self, first: int) -> Stamps:
        image, backend, xp = self.image, self.image.backend, self.image.backend.xp
        at, lobes = (a[first : first + BATCH] for a in (self.found.at, self.found.lobes))
        middle = np.rint(at)
        windows = Windows(image.shape, middle[:, 0], middle[:, 1], self.side // 2, backend)
        data, variance = windows.cut(image.image, np.nan), windows.cut(image.variance)
        good = xp.isfinite(data) & xp.isfinite(variance) & (variance > 0)
        if image.mask is not None:
            good &= (windows.cut(image.mask) & image.planes.invalid) == 0
        one, zero = np.float32(1), np.float32(0)
        psf = self.psf.render(at[:, 0], at[:, 1])
        return Stamps(
            data=xp.where(good, data, zero),
            weight=xp.where(good, one / xp.where(good, variance, one), zero),
            psf=psf if isinstance(self.psf, GridPsf) else spline_coefficients(backend.asarray(psf)),
            middle=middle,
            start=at - middle,
            lobes=lobes - middle[:, None],
        )


def _filtered(psf: Psf, backend: Backend) -> Psf:
    """A grid of spline coefficients on the device; any other PSF as it is.

    Interpolation between the stamps of a grid is linear, and so is the filter: that of the grid does for all objects.
    """
    if not isinstance(psf, GridPsf):
        return psf
    nodes = spline_coefficients(backend.asarray(psf.stamps.reshape(-1, *psf.shape)))
    return replace(psf, stamps=nodes.reshape(psf.stamps.shape))


Source = Callable[[int, Light | None], Stamps]
"""The stamps of a batch, by its first row, less some light."""


def _batches(wanted: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """First row of every batch with wanted rows, and these, counted from there."""
    for first in np.unique(wanted // BATCH) * BATCH:
        yield int(first), wanted[(wanted >= first) & (wanted < first + BATCH)] - first


def _fit(stamps: Source, sigma: float, wanted: np.ndarray, light: Light | None) -> dict[str, np.ndarray]:
    """Columns of the rows ``wanted``."""
    parts = [_measure(stamps(first, light), batch, sigma) for first, batch in _batches(wanted)]
    parts = parts or [_measure(stamps(0, light), wanted, sigma)]
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def _replaced(rows: dict[str, np.ndarray], again: np.ndarray, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All columns with those rows replaced; what was stays as it is."""
    out = {}
    for name, column in rows.items():
        out[name] = column.copy()
        out[name][again] = values[name]
    return out


def _neighbours(found: Detections, side: int) -> np.ndarray:
    """Pairs (m, 2) of rows, in order, whose second has light in the first's stamp."""
    pairs = cKDTree(found.at).query_pairs(side, output_type="ndarray")
    pairs = np.concatenate([pairs, pairs[:, ::-1]])
    # what is nearer than a pixel is the same object listed twice
    pairs = pairs[np.hypot(*(found.at[pairs[:, 0]] - found.at[pairs[:, 1]]).T) > 1]
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def _brighter(found: Detections, pairs: np.ndarray) -> np.ndarray:
    """bool (m,): the second of these rows is the brighter one."""
    one, two = np.abs(found.snr)[pairs.T]
    return two > one


def _without(stamps: Stamps, first: int, light: Light) -> Stamps:
    """The stamps of the batch from row ``first`` less the fitted models of their neighbours."""
    begin, end = np.searchsorted(light.others[:, 0], (first, first + len(stamps.start)))
    own, other = light.others[begin:end].T
    dipole = light.rows["model"][other] == "dipole"
    lobes = np.empty((len(own), 2, 3))  # one lobe of a point source, two of a dipole
    for k, name in enumerate(("flux", "x", "y")):
        columns = [light.rows[n][other] for n in (name, f"{name}_pos", f"{name}_neg")]
        lobes[:, 0, k] = np.where(dipole, columns[1], columns[0])
        lobes[:, 1, k] = np.where(dipole, columns[2], np.nan)
    lobes[:, 1, 0] *= -1
    lobes[:, :, 1:] -= stamps.middle[own - first, None]
    known = np.isfinite(lobes).all(axis=2)
    count = np.bincount(own - first, known.sum(axis=1), len(stamps.start)).astype(int)
    ends = np.concatenate([[0], np.cumsum(count)])
    return replace(stamps, data=subtract_lobes(stamps.data, stamps.weight, stamps.psf, ends, lobes[known]))


def _measure(stamps: Stamps, row: np.ndarray, sigma: float) -> dict[str, np.ndarray]:
    """Both models of the stamps ``row``, the choice between them, and all measured columns; positions in the image."""
    psf = stamps.fit(stamps.start[row, None], row)
    rows = _single(psf)
    expected = np.maximum(psf.pixels - PSF_FREE, 1)
    tried = np.isfinite(stamps.lobes[row]).all(axis=(1, 2)) | (psf.chi2 - expected > EXCESS * np.sqrt(2 * expected))
    tried = np.flatnonzero(tried & np.isfinite(psf.moment_chi2))
    if len(tried):
        _dipoles(stamps, row[tried], psf.take(tried), tried, sigma, rows)
    for k, axis in enumerate("xy"):
        for name in (axis, f"{axis}_pos", f"{axis}_neg"):
            rows[name] = rows[name] + stamps.middle[row, k]
    return rows


def _single(psf: LobeFit) -> dict[str, np.ndarray]:
    """Columns of the one-PSF model."""
    n, pixels, fitted, error = len(psf.chi2), psf.pixels.astype(float), psf.usable, psf.errors
    flux, x, y, background = np.where(fitted[:, None], psf.parameters, np.nan).T
    kept = psf.status == Status.CONVERGED
    rows = {
        "x": np.where(kept, x, np.nan),
        "y": np.where(kept, y, np.nan),
        "flux": flux,
        "flux_err": error[:, 0],
        "model": np.full(n, "psf", dtype="U8"),
        "flags": np.where(fitted, 0, bits("NO_FIT")) | _status_flags(psf.status),
        "x_err": error[:, 1],
        "y_err": error[:, 2],
        "background": background,
        "chi2": np.where(fitted, psf.chi2, np.nan),
        "dof": np.maximum(pixels - PSF_FREE, 0),
        "bic": np.where(fitted, psf.chi2 + PSF_FREE * np.log(np.maximum(pixels, 1)), np.nan),
        "n_eval": psf.evaluations.copy(),
        "status": psf.status.copy(),
        "sharpness": psf.sharpness,
        **_moment_columns(psf),
    }
    rows["model"][~fitted] = "none"
    rows.update(zip(_LOBES, np.full((len(_LOBES), n), np.nan), strict=True))
    return rows


_LOBES = (
    *(f"{a}_{lobe}" for lobe in ("pos", "neg") for a in ("flux", "x", "y")),
    "flux_pos_err",
    "flux_neg_err",
    "separation",
    "separation_err",
    "angle",
    "angle_err",
)


def _status_flags(status: np.ndarray) -> np.ndarray:
    late, bound = status == Status.MAX_EVALUATIONS, status == Status.AT_BOUND
    return np.where(late, bits("NOT_CONVERGED"), 0) | np.where(bound, bits("AT_BOUND"), 0)


def _moment_columns(fit: LobeFit) -> dict[str, np.ndarray]:
    c = fit.moment_covariance
    return {
        "moment_x": fit.moment[:, 1],
        "moment_y": fit.moment[:, 2],
        "moment_xx": c[:, 1, 1],
        "moment_xy": c[:, 1, 2],
        "moment_yy": c[:, 2, 2],
    }


def _dipoles(
    stamps: Stamps, row: np.ndarray, psf: LobeFit, tried: np.ndarray, sigma: float, rows: dict[str, np.ndarray]
) -> None:
    """Fit dipoles to the stamps ``row`` and put those that win into the columns ``rows``, there at ``tried``."""
    here, lobes = stamps.start[row], stamps.lobes[row]
    along = _unit(psf.moment[:, 1:3])
    across = along[:, ::-1] * np.array([-1, 1])
    trials = [(SEPARATIONS[0], along), (SEPARATIONS[1], along), (SEPARATIONS[1], across)]
    starts = [np.stack([here + d, here - d], 1) for d in (0.5 * s * sigma * direction for s, direction in trials)]
    starts[-1] = np.where(np.isfinite(lobes), lobes, starts[-1])
    fits = stamps.fit(np.concatenate(starts), np.tile(row, len(starts)))
    best = _best(fits, len(row))
    chi2, fluxes = fits.chi2[best], fits.parameters[best, :4:3]
    opposite = (fluxes.max(axis=1) > 0) & (fluxes.min(axis=1) < 0)
    degenerate = ~(fits.errors[best][:, [1, 2, 4, 5]].max(axis=1) < LOBE_ERROR)
    log_n = np.log(psf.pixels)
    bic, linear = chi2 + DIPOLE_FREE * log_n, psf.moment_chi2 + PSF_FREE * log_n
    merit = np.where(degenerate, np.minimum(bic, linear), bic)
    gain, excess = psf.chi2 - chi2, psf.chi2 - (psf.pixels - PSF_FREE)
    wins = np.flatnonzero(opposite & (merit < rows["bic"][tried] - MARGIN) & (gain > EXPLAINED * excess))
    if not len(wins):
        return
    fit, degenerate, won = _positive_first(fits.take(best[wins])), degenerate[wins], tried[wins]
    columns = _dipole_columns(fit)
    columns["bic"], columns["dof"] = bic[wins], fit.pixels - DIPOLE_FREE
    columns["flags"] = _status_flags(fit.status) | bits("DIPOLE") | np.where(degenerate, bits("DEGENERATE"), 0)
    for name, value in columns.items():
        rows[name][won] = value
    rows["model"][won] = "dipole"


def _settle(stamps: Source, sigma: float, rows: dict[str, np.ndarray], light: Light | None) -> None:
    """Give degenerate rows the flux, moment and position of the linear dipole.

    No other row depends on these, so that one time at the end is enough. ``light`` is that taken away last.
    """
    for first, batch in _batches(np.flatnonzero(rows["flags"] & bits("DEGENERATE"))):
        own, at = stamps(first, light), np.stack([rows["x"], rows["y"]], 1)[first + batch]
        middle = own.middle[batch]
        columns = _linear(own, batch, at - middle, sigma)
        for k, axis in enumerate("xy"):
            columns[axis] = columns[axis] + middle[:, k]
        for name, value in columns.items():
            rows[name][first + batch] = value


def _unit(v: np.ndarray) -> np.ndarray:
    """Vectors (n, 2) of length 1."""
    return v / np.maximum(np.hypot(*v.T), 1e-300)[:, None]


def _linear(stamps: Stamps, row: np.ndarray, middle: np.ndarray, sigma: float) -> dict[str, np.ndarray]:
    """Flux, moment and position of the linear dipole with its centre free along the moment.

    chi2 at three places gives the best centre and its variance, which the errors of flux and moment contain.
    """

    def about(*places: np.ndarray) -> list[LobeFit]:
        fit, n = stamps.fit(np.concatenate(places)[:, None], np.tile(row, len(places)), limit=1), len(row)
        return [fit.take(slice(k * n, (k + 1) * n)) for k in range(len(places))]

    (here,) = about(middle)
    along, h = _unit(here.moment[:, 1:3]), 0.25 * sigma
    after, before = about(middle + h * along, middle - h * along)
    curve = (after.moment_chi2 + before.moment_chi2 - 2 * here.moment_chi2) / h**2
    known = curve > 2 / sigma**2
    safe = np.where(known, curve, 2 / sigma**2)
    move = np.where(known, (before.moment_chi2 - after.moment_chi2) / (2 * h * safe), 0)
    shift = np.clip(move, -sigma, sigma)[:, None] * along
    slope = (after.moment - before.moment) / (2 * h)
    (best,) = about(middle + shift)
    extra = (2 / safe)[:, None, None] * slope[:, :, None] * slope[:, None, :]
    best = replace(best, moment_covariance=best.moment_covariance + extra)
    return {
        "x": middle[:, 0] + shift[:, 0],
        "y": middle[:, 1] + shift[:, 1],
        "x_err": np.sqrt(2 / safe),
        "y_err": np.sqrt(2 / safe),
        "flux": best.moment[:, 0],
        "flux_err": np.sqrt(best.moment_covariance[:, 0, 0]),
        **_moment_columns(best),
    }


def _best(fit: LobeFit, n: int) -> np.ndarray:
    """Of several fits of each of n objects, one round after the other, which has the lowest chi2 among the usable."""
    best, usable = np.arange(n), fit.usable
    for other in np.arange(n, len(usable)).reshape(-1, n):
        better = fit.chi2[other] < fit.chi2[best] - 1e-6
        take = (usable[other] & ~usable[best]) | ((usable[other] == usable[best]) & better)
        best = np.where(take, other, best)
    return best


def _positive_first(fit: LobeFit) -> LobeFit:
    """Lobes swapped where the second is the brighter one, sign included."""
    swap = np.flatnonzero(fit.parameters[:, 3] > fit.parameters[:, 0])
    if not len(swap):
        return fit
    order = np.array([3, 4, 5, 0, 1, 2, 6])
    parameters, covariance = fit.parameters.copy(), fit.covariance.copy()
    parameters[swap] = parameters[swap][:, order]
    covariance[swap] = covariance[swap][:, order][:, :, order]
    return replace(fit, parameters=parameters, covariance=covariance)


def _dipole_columns(fit: LobeFit) -> dict[str, np.ndarray]:
    """What follows from the two lobes, errors to first order in their covariance."""
    f1, x1, y1, f2, x2, y2, background = fit.parameters.T
    total = np.maximum(f1 - f2, 1e-300)
    dx, dy = x1 - x2, y1 - y2
    length = np.maximum(np.hypot(dx, dy), 1e-300)
    # M = F+ (x+ - c) - F- (x- - c) about c = (F+ x+ + F- x-) / (F+ + F-) is 2 F+ F- / (F+ + F-) times x+ - x-
    mean = -2 * f1 * f2 / total
    m1, m2 = 2 * (f2 / total) ** 2, -2 * (f1 / total) ** 2
    # gradients with respect to F1, x1, y1, F2, x2, y2, b; F2 is negative
    slopes = {
        "flux": [1, 0, 0, 1, 0, 0],
        "x": [-f2 * dx / total**2, f1 / total, 0, f1 * dx / total**2, -f2 / total, 0],
        "y": [-f2 * dy / total**2, 0, f1 / total, f1 * dy / total**2, 0, -f2 / total],
        "separation": [0, dx / length, dy / length, 0, -dx / length, -dy / length],
        "angle": [0, -dy / length**2, dx / length**2, 0, dy / length**2, -dx / length**2],
        "moment_x": [m1 * dx, mean, 0, m2 * dx, -mean, 0],
        "moment_y": [m1 * dy, 0, mean, m2 * dy, 0, -mean],
    }
    gradients = np.zeros((len(f1), len(slopes), 7))
    for k, slope in enumerate(slopes.values()):
        for i, value in enumerate(slope):
            gradients[:, k, i] = value
    spread = gradients @ fit.covariance @ gradients.transpose(0, 2, 1)
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
        "background": background,
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


def _catalog(image: Exposure, catalog: Catalog, rows: dict[str, np.ndarray]) -> Catalog:
    """The table with units; positions stay as detected where the fit gives none."""
    unit = image.unit or u.dimensionless_unscaled
    x, y = (np.where(np.isfinite(rows[n]), rows[n], _value(catalog, n)) for n in ("x", "y"))
    ra, dec = _value(catalog, "ra"), _value(catalog, "dec")
    if image.wcs is not None and len(catalog):
        ra, dec = sky_positions(image, x, y)
    flags = np.asarray(catalog["flags"]) | rows["flags"]
    moved = dict.fromkeys(("moment_x", "moment_y"), unit * u.pix)
    spread = dict.fromkeys(("moment_xx", "moment_xy", "moment_yy"), (unit * u.pix) ** 2)
    fluxes = ("flux", "flux_err", "background", "flux_pos", "flux_pos_err", "flux_neg", "flux_neg_err")
    pixels = ("x", "y", "x_err", "y_err", "x_pos", "y_pos", "x_neg", "y_neg", "separation", "separation_err")
    units = {**moved, **spread, **dict.fromkeys(fluxes, unit), **dict.fromkeys(pixels, u.pix)}
    units |= dict.fromkeys(("ra", "dec", "angle", "angle_err"), u.deg)
    columns = {
        "id": np.array(catalog["id"]),
        "x": x,
        "y": y,
        "ra": ra,
        "dec": dec,
        "flux": rows["flux"],
        "flux_err": rows["flux_err"],
        "snr": np.array(catalog["snr"]),
        "model": rows["model"],
        "flags": flags.astype(np.int32),
        **{name: rows[name] for name in ORDER},
    }
    return Catalog.of(columns, units, meta=catalog.meta)


ORDER = (
    "x_err", "y_err", "background", "chi2", "dof", "bic", "n_eval", "status",
    "moment_x", "moment_y", "moment_xx", "moment_xy", "moment_yy",
    "flux_pos", "flux_pos_err", "x_pos", "y_pos", "flux_neg", "flux_neg_err", "x_neg", "y_neg",
    "separation", "separation_err", "angle", "angle_err", "sharpness",
)  # fmt: skip
"""Measured columns after the first ten."""
