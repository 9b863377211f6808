# SPDX-License-Identifier: BSD-3-Clause
"""Fit every detection with the PSF, and with two opposite lobes where one does not do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Any, Literal

import numpy as np
from astropy import units as u
from pydantic import Field
from scipy.spatial import cKDTree

from skydelta.errors import InputError
from skydelta.io.catalog import Catalog, bits
from skydelta.io.exposure import Exposure
from skydelta.io.psf import GridPsf, Psf, fwhm
from skydelta.kernels.backend import Backend, to_host
from skydelta.kernels.cutouts import Windows
from skydelta.kernels.fit import BACKGROUNDS, LobeFit, Status, spline_coefficients, subtract_lobes
from skydelta.stages.base import Context, Port, Stage, StageConfig
from skydelta.stages.detect import sky_positions
from skydelta.stages.fluxerror import kernel_flux_errors, with_kernel
from skydelta.stages.lobes import (
    DIPOLE_FREE,
    EXCESS,
    LOBES,
    PSF_FREE,
    Stamps,
    dipole_columns,
    fit_dipoles,
    linear_columns,
    positive_first,
    settled,
    single_columns,
    status_flags,
    undetermined,
)
from skydelta.stages.robust import levels
from skydelta.stages.trails import MARGIN

BATCH = 2048
"""Stamps cut at a time: bounds the memory; no result depends on it."""

EXPLAINED = 0.3
"""Share of that excess which a dipole must take away; it leaves most of a cosmic ray's, whose light is no PSF."""

SIDES = (15, 31)
"""Smallest and largest stamp, px."""


class FitConfig(StageConfig):
    """Which models compete; their BIC decides."""

    background: Literal["none", "constant", "plane"] = Field(
        "constant", description="What is fitted under every object: nothing, a level, or a level and two slopes."
    )
    dipoles: bool = Field(
        True, description="Try two opposite lobes too; false for an image that is no difference, where none exist."
    )


class Fit(Stage[FitConfig]):
    """Flux, position and model of every detection, by maximum likelihood with the known PSF and variance.

    Every object is fitted with one PSF and b, a constant, a plane or nothing; a dipole F+ P(x - x+) - F- P(x - x-) + b
    is tried for those paired by detection and those that one PSF does not explain. The dipole moment M with its
    covariance is always given: of the lobes about (x, y) for dipoles, else of the linear model F P - M . grad P + b
    about the detected position. Where the lobes are not determined one by one the row is flagged DEGENERATE, and flux,
    moment and position are the mean of those of the lobes and of the linear model with its centre free, weighed by how
    well these explain the stamp. The light of neighbouring rows is taken away first.

    Raises
    ------
    InputError
        The image has no variance or no PSF.
    """

    name = "fit"
    version = 6
    inputs = {
        "image": Port(Exposure, "difference with white noise, its variance and PSF"),
        "catalog": Port(Catalog, "detections"),
    }
    outputs = {"catalog": Port(Catalog, "the same rows with fluxes, models and errors", replaces="catalog")}

    def memory(self, shape: tuple[int, int], kind: str) -> int:
        return BATCH * SIDES[1] ** 2 * 8 * 8

    def run(self, ctx: Context, *, image: Exposure, catalog: Catalog) -> dict[str, Any]:  # type: ignore[override]
        if image.variance is None or image.psf is None:
            raise InputError(f"fit: the image has no {'variance' if image.variance is None else 'PSF'}")
        width = fwhm(image.psf.at((image.shape[1] - 1) / 2, (image.shape[0] - 1) / 2))
        side = min(max(2 * ceil(2.5 * width) + 1, SIDES[0]), SIDES[1])
        found, sigma = Detections.of(catalog), width / 2.3548
        stamps = lru_cache(1)(Cutter(image, found, side, BACKGROUNDS[self.config.background]))
        tried = sigma if self.config.dipoles else None
        rows = _fit(stamps, tried, np.arange(len(catalog)), None)
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
                rows = _replaced(rows, again, _fit(stamps, tried, again, light))
        _settle(stamps, sigma, rows, light)
        _with_kernel(image, stamps, found, rows)
        out = _catalog(image, catalog, rows, self.config.background == "plane")
        dipole = rows["model"] == "dipole"
        ctx.metric("candidates", len(out))
        ctx.metric("dipoles", int(dipole.sum()))
        ctx.metric("degenerate_dipoles", int(out.has("DEGENERATE").sum()))
        ctx.metric("flux_limit_5sigma", flux_limit(image))
        ctx.metric("not_converged", int((out.has("NOT_CONVERGED") | out.has("NO_FIT")).sum()))
        return {"catalog": out}


def flux_limit(image: Exposure, snr: float = 5.0, samples: float = 2e5) -> float:
    """Flux of a point source at this signal-to-noise, for the image's median noise and the PSF of its centre.

    The noise is white, so that the variance of the best flux is V / sum P^2. NaN where no pixel is usable.

    Parameters
    ----------
    image : Exposure
        With white noise, its variance and PSF.
    samples : float
        The median is that of about so many pixels.
    """
    assert image.variance is not None and image.psf is not None
    every = max(1, int(np.sqrt(image.image.size / samples)))
    xp, variance = image.backend.xp, image.variance[::every, ::every]
    usable = xp.isfinite(variance) & (variance > 0)
    middle = float(levels(xp.where(usable, variance, np.float32(np.nan)))[0])
    stamp = to_host(image.psf.at((image.shape[1] - 1) / 2, (image.shape[0] - 1) / 2)).astype(float)
    return float(snr * np.sqrt(middle / np.sum(stamp**2)))


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


class Cutter:
    """Cuts the stamps of the batch that begins at a row, on the image's device, less the light of neighbours."""

    def __init__(self, image: Exposure, found: Detections, side: int, terms: int = 1) -> None:
        assert image.psf is not None
        self.image, self.found, self.side, self.terms = image, found, side, terms
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
            terms=self.terms,
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


def _fit(stamps: Source, sigma: float | None, wanted: np.ndarray, light: Light | None) -> dict[str, np.ndarray]:
    """Columns of the rows ``wanted``; dipoles are tried with the PSF's ``sigma``, px, where that is given."""
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


def _measure(stamps: Stamps, row: np.ndarray, sigma: float | None) -> dict[str, np.ndarray]:
    """Both models of the stamps ``row``, the choice between them, and all measured columns; positions in the image."""
    psf = stamps.fit(stamps.start[row, None], row)
    rows = single_columns(psf)
    expected = np.maximum(psf.pixels - PSF_FREE - psf.terms, 1)
    tried = np.isfinite(stamps.lobes[row]).all(axis=(1, 2)) | (psf.chi2 - expected > EXCESS * np.sqrt(2 * expected))
    tried = np.flatnonzero(tried & np.isfinite(psf.moment_chi2))
    if len(tried) and sigma is not None:
        _dipoles(stamps, row[tried], psf.take(tried), tried, sigma, rows)
    for k, axis in enumerate("xy"):
        for name in (axis, f"{axis}_pos", f"{axis}_neg"):
            rows[name] = rows[name] + stamps.middle[row, k]
    return rows


def _dipoles(
    stamps: Stamps, row: np.ndarray, psf: LobeFit, tried: np.ndarray, sigma: float, rows: dict[str, np.ndarray]
) -> None:
    """Fit dipoles to the stamps ``row`` and put those that win into the columns ``rows``, there at ``tried``."""
    fit = fit_dipoles(stamps, row, psf.moment[:, 1:3], sigma)
    chi2, fluxes = fit.chi2, fit.parameters[:, :4:3]
    opposite = (fluxes.max(axis=1) > 0) & (fluxes.min(axis=1) < 0)
    degenerate = undetermined(fit)
    log_n, single, double = np.log(psf.pixels), PSF_FREE + psf.terms, DIPOLE_FREE + psf.terms
    bic, linear = chi2 + double * log_n, psf.moment_chi2 + single * log_n
    merit = np.where(degenerate, np.minimum(bic, linear), bic)
    gain, excess = psf.chi2 - chi2, psf.chi2 - (psf.pixels - single)
    wins = np.flatnonzero(opposite & (merit < rows["bic"][tried] - MARGIN) & (gain > EXPLAINED * excess))
    if not len(wins):
        return
    fit, degenerate, won = positive_first(fit.take(wins)), degenerate[wins], tried[wins]
    columns = dipole_columns(fit)
    columns["bic"], columns["dof"] = bic[wins], fit.pixels - double
    columns["flags"] = status_flags(fit.status) | bits("DIPOLE") | np.where(degenerate, bits("DEGENERATE"), 0)
    for name, value in columns.items():
        rows[name][won] = value
    rows["model"][won] = "dipole"


def _settle(stamps: Source, sigma: float, rows: dict[str, np.ndarray], light: Light | None) -> None:
    """Give degenerate rows the flux, moment and position that the linear dipole and their lobes agree on.

    No other row depends on these, so that one time at the end is enough. ``light`` is that taken away last.
    """
    for first, batch in _batches(np.flatnonzero(rows["flags"] & bits("DEGENERATE"))):
        own, at = stamps(first, light), first + batch
        two = {name: column[at] for name, column in rows.items()}
        for k, axis in enumerate("xy"):
            two[axis] = two[axis] - own.middle[batch, k]
        linear = linear_columns(own, batch, np.stack([two["x"], two["y"]], 1), sigma)
        columns = settled(two, linear, linear["chi2"] - two["chi2"])
        for k, axis in enumerate("xy"):
            columns[axis] = columns[axis] + own.middle[batch, k]
        columns |= {name: np.where(two["status"] == Status.SINGULAR, np.nan, two[name]) for name in LOBES}
        for name, value in columns.items():
            rows[name][at] = value


def _with_kernel(image: Exposure, stamps: Source, found: Detections, rows: dict[str, np.ndarray]) -> None:
    """Add the error of the matching kernel to that of the fluxes, as of a point source where each row is."""
    every, parts = np.arange(len(rows["flux"])), []
    fitted = np.stack([rows["x"], rows["y"]], axis=1)
    at = np.where(np.isfinite(fitted), fitted, found.at)
    for first, batch in _batches(every):
        own, here = stamps(first, None), first + batch
        parts.append(kernel_flux_errors(image, own, at[here] - own.middle[batch], rows["flux"][here]))
    rows["flux_err_kernel"] = np.concatenate(parts) if parts else np.zeros(0)
    rows["flux_err"] = with_kernel(rows["flux_err"], rows["flux_err_kernel"])


def _catalog(image: Exposure, catalog: Catalog, rows: dict[str, np.ndarray], plane: bool) -> Catalog:
    """The table with units; positions stay as detected where the fit gives none."""
    unit = image.unit or u.dimensionless_unscaled
    x, y = (np.where(np.isfinite(rows[n]), rows[n], _value(catalog, n)) for n in ("x", "y"))
    ra, dec = _value(catalog, "ra"), _value(catalog, "dec")
    if image.wcs is not None and len(catalog):
        ra, dec = sky_positions(image, x, y)
    flags = np.asarray(catalog["flags"]) | rows["flags"]
    moved = dict.fromkeys(("moment_x", "moment_y"), unit * u.pix)
    spread = dict.fromkeys(("moment_xx", "moment_xy", "moment_yy"), (unit * u.pix) ** 2)
    fluxes = (
        "flux",
        "flux_err",
        "flux_err_kernel",
        *SLOPES,
        "background",
        "flux_pos",
        "flux_pos_err",
        "flux_neg",
        "flux_neg_err",
    )
    pixels = ("x", "y", "x_err", "y_err", "x_pos", "y_pos", "x_neg", "y_neg", "separation", "separation_err")
    order = list(ORDER)
    if plane:
        at = order.index("background") + 1
        order[at:at] = SLOPES
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
        **{name: rows[name] for name in order},
    }
    return Catalog.of(columns, units, meta=catalog.meta)


ORDER = (
    "x_err", "y_err", "flux_err_kernel", "background", "chi2", "dof", "bic", "n_eval", "status",
    "moment_x", "moment_y", "moment_xx", "moment_xy", "moment_yy",
    "flux_pos", "flux_pos_err", "x_pos", "y_pos", "flux_neg", "flux_neg_err", "x_neg", "y_neg",
    "separation", "separation_err", "angle", "angle_err", "sharpness",
)  # fmt: skip
"""Measured columns after the first ten."""

SLOPES = ("background_err", "background_x", "background_x_err", "background_y", "background_y_err")
"""Those of a plane, after its level in the middle of the stamp."""
