# SPDX-License-Identifier: BSD-3-Clause
"""`skydelta.fit`: the fit stage for a catalogue of an exposure, and the same fits for stamps in plain arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from astropy.table import QTable
from astropy.units import Quantity, UnitBase, UnitConversionError, dimensionless_unscaled

from skydelta.errors import ConfigError, InputError
from skydelta.io.arrays import taken_apart
from skydelta.io.catalog import FLAGS, Catalog
from skydelta.io.exposure import Exposure
from skydelta.io.header import check_flux
from skydelta.io.psf import fwhms
from skydelta.kernels.backend import Array, Backend, backend_of, resolve, to_host
from skydelta.kernels.fit import (
    BACKGROUNDS,
    BOUND,
    LobeFit,
    Status,
    spline_coefficients,
    subtract_lobes,
    subtract_trails,
)
from skydelta.stages.fit import BATCH, Fit
from skydelta.stages.gaussianfit import gaussian_dipoles, gaussian_light
from skydelta.stages.jointfit import in_units, lobes_of
from skydelta.stages.lobes import (
    BACKGROUND,
    DIPOLE_FREE,
    EXCESS,
    LINEAR_FREE,
    PSF_FREE,
    Stamps,
    best_of,
    dipole_columns,
    fit_dipoles,
    forced_fit,
    joined,
    linear_columns,
    peaks,
    positive_first,
    put,
    settled,
    undetermined,
)
from skydelta.stages.stamptable import COLUMNS, COMMON, RIVALS, Found, Scaled, best
from skydelta.stages.trails import TRAIL_FREE, fit_rays, fit_segments, no_longer, on_host

SIDES = (7, 63)
"""Smallest and largest side of a stamp, px."""

SEARCH = (-4.0, -2.0, 0.0, 2.0, 4.0)
"""Steps from the start, px an axis, at which a source is looked for when the fit from the start does not explain it."""


class FitResult(QTable):
    """Fitted stamps, one row each, in their order.

    Columns of model ``point``: ``flux x y``; of ``dipole``: ``flux_pos x_pos y_pos flux_neg x_neg y_neg moment_x
    moment_y separation angle``; of ``gaussian_dipole`` then ``sigma``, px; of ``trail`` and ``cosmic_ray``: ``flux x y
    length angle``, of the middle, the angle from -90 to 90 degrees; then ``background``, of a plane also its
    slopes per px ``background_x background_y``; each followed by its error ``NAME_err``. Then ``chi2 dof bic n_eval
    status flags``, of ``best``, which has the columns of all, ``best_model bic_difference`` and the ``bic_MODEL`` of
    each, and ``residual`` (k, k) when it was asked for. Positions are 0-based in the stamp, px; the angle
    runs from +x to +y, degrees, and points from the negative to the positive lobe; ``flux_neg`` is a positive number.
    Columns have units only where the stamps had one.
    The background is that in pixel (k // 2, k // 2).

    ``status`` is one of

    - converged: at the minimum.
    - at bound: a position ended 5 px off its start, where it is stopped.
    - degenerate: flux and separation of the lobes are not determined one by one, only the moment, which is then the
      mean of that of the lobes and that of the linear model F P - M . grad P + b, each weighed by how well it explains
      the stamp. Where the lobes ran into one they are NaN, and ``moment background chi2 dof bic`` are those of the
      linear model. Of a trail: its length is at most four of its errors.
    - max iterations: 60 evaluations were not enough.
    - singular: the pixels do not determine the parameters; no errors.
    - no data: fewer usable pixels than parameters; all values are NaN.
    """

    def has(self, flag: str) -> np.ndarray:
        """bool (n,): rows with this flag of `skydelta.io.catalog.FLAGS`."""
        return (np.asarray(self["flags"]) >> FLAGS[flag][0] & 1).astype(bool)


def fit(
    stamps: Any = None,
    catalog: Catalog | None = None,
    *,
    image: Exposure | None = None,
    model: Literal["point", "dipole", "gaussian_dipole", "trail", "cosmic_ray", "best"] | None = None,
    background: Literal["none", "constant", "plane"] = "constant",
    psf: Any = None,
    variance: Any = None,
    mask: Any = None,
    start: Any = None,
    forced: bool = False,
    residuals: bool = False,
    template: Any = None,
    template_psf: Any = None,
    template_variance: Any = None,
    template_mask: Any = None,
    device: str = "auto",
) -> Catalog | FitResult:
    """Fit point sources, dipoles, trails or cosmic rays by maximum likelihood.

    With an exposure and a catalogue of it this is the stage `fit`: every row is measured where it is in the image, and
    the model is chosen by BIC. With an array of stamps every stamp is fitted with ``model``, on its own: neither their
    order nor their number changes a result. The model is F P(x - x0) + b, or F+ P(x - x+) - F- P(x - x-) + b.

    Parameters
    ----------
    stamps : array or Quantity (n, k, k) or (k, k), or Exposure
        k from 7 to 63, even or odd, of any real type. NaN and masked pixels are left out.
    catalog : Catalog, optional
        Of an exposure: what to fit.
    image : Exposure, optional
        The same as ``stamps``.
    model : {"point", "dipole", "gaussian_dipole", "trail", "cosmic_ray", "best"}, optional
        Of stamps in an array: a point source if not given. A Gaussian dipole is of two round Gaussians of one width,
        at the centres of pixels, whose width is fitted too. A trail is a source that moved along a segment, a cosmic
        ray light on a segment or spot that no PSF has passed. "best" is that of point, dipole, trail and cosmic ray
        with the lowest BIC.
    background : {"none", "constant", "plane"}
        b: nothing, a level, or a level and two slopes. Of an exposure and its catalogue too.
    psf : array (p, p) or (n, p, p)
        Odd p, centred on the middle pixel; fluxes are its coefficients, so that a PSF of unit sum gives total fluxes.
        Cosmic rays and Gaussians need none; fits of Gaussians start from its width where it is given.
    variance : number or array (k, k) or (n, k, k), or Quantity, optional
        In the unit of the stamps squared. Without it the noise is taken to be the same in all pixels of a stamp, and
        errors follow from what the model leaves; ``chi2`` is then the plain sum of squares.
    mask : bool array (k, k) or (n, k, k), optional
        True where a pixel is not to be used.
    start : array (n, 2), (n, 2, 2) or one of these without n, optional
        Where to start: x, y of the source (of the middle of a dipole), or of its positive and negative lobe; 0-based
        in the stamp. The middle of the stamp if not given; a point source is then searched up to 9 px from it where
        one in the middle does not explain the pixels.
    forced : bool
        Hold the positions of ``start`` and fit fluxes and background alone.
    residuals : bool
        Add a column ``residual`` (k, k): stamp less model, NaN where a pixel was not used; with a template also
        ``residual_template``.
    template : array or Quantity, as ``stamps``, optional
        Of a dipole: the matched template (the reference) where the stamps are of the science image, both less their
        sky and in one flux scale. The positive lobe is the source in the stamps, the negative one that in the
        template: two planes with noise of their own, which tell more than their difference.
    template_psf, template_variance, template_mask : as those of the stamps, optional
        The PSF is that of the stamps if not given. With a template both variances are needed.
    device : str
        auto, cpu, cuda or cuda:N; arrays that are on a device stay there.

    Returns
    -------
    FitResult, or the Catalog of the stage

    Raises
    ------
    ConfigError
        Arguments that do not go together, or an unknown model.
    InputError
        Shapes or units that do not fit, or a PSF without light.
    """
    others = {"template_psf": template_psf, "template_variance": template_variance, "template_mask": template_mask}
    given = {"model": model, "psf": psf, "variance": variance, "mask": mask, "start": start, "template": template}
    stamps = image if stamps is None else stamps
    if isinstance(stamps, Exposure):
        used = [name for name, value in {**given, **others}.items() if value is not None]
        used += [name for name, on in (("forced", forced), ("residuals", residuals)) if on]
        if used:
            raise ConfigError(f"fit: {', '.join(used)} belong to stamps in arrays; an exposure brings its own")
        return Fit(background=background)(image=stamps, catalog=catalog, device=device)
    if catalog is not None:
        raise ConfigError("fit: a catalogue needs an Exposure to be fitted on, not an array")
    model = "point" if model is None else model
    if model not in COLUMNS:
        raise ConfigError(f"fit: model {model!r}; allowed: {', '.join(COLUMNS)}")
    if forced and model not in ("point", "dipole"):
        raise ConfigError(f"fit: forced needs a known PSF and one place a lobe, not {model}; models: point, dipole")
    if forced and start is None:
        raise ConfigError("fit: forced needs the positions, start")
    if background not in BACKGROUNDS:
        raise ConfigError(f"fit: background {background!r}; allowed: {', '.join(BACKGROUNDS)}")
    backend, terms = resolve(device), BACKGROUNDS[background]
    own = _Task.of(stamps, psf, variance, mask, start, model, terms, backend)
    task: _Task | _Joint = own
    if template is not None:
        if model != "dipole" or variance is None or template_variance is None:
            raise ConfigError("fit: a template needs the model dipole, variance and template_variance")
        other_psf = psf if template_psf is None else template_psf
        other = _Task.of(template, other_psf, template_variance, template_mask, start, model, terms, backend)
        task = _Joint.of(own, other)
    elif any(value is not None for value in others.values()):
        raise ConfigError(f"fit: {', '.join(k for k, v in others.items() if v is not None)} without a template")
    parts = [task.measured(rows, forced, residuals) for rows in task.batches()]
    return task.table({name: np.concatenate([p[name] for p in parts]) for name in parts[0]})


def _plain(values: Any, name: str, unit: UnitBase | None = None) -> tuple[Array, UnitBase | None]:
    """The numbers of an array (in ``unit``, if that is given) and the unit they had; masked ones are NaN.

    Raises
    ------
    InputError
        Not numbers, logarithms, or another unit.
    """
    array, mask, own = taken_apart(values)
    check_flux(own, f"fit: {name}")
    if own is not None and unit is not None:
        try:
            array = array * own.to(unit)
        except UnitConversionError:
            raise InputError(f"fit: {name} is in {own}, which is no {unit}") from None
    if mask is not None:
        array = np.where(mask, np.nan, array)
    if array.dtype.kind not in "biuf":
        raise InputError(f"fit: {name} holds {array.dtype}; real numbers are needed")
    return array, own


def _shaped(array: Array, name: str, allowed: list[tuple[int, ...]]) -> Array:
    if array.shape not in allowed:
        words = " or ".join(str(s) for s in allowed)
        raise InputError(f"fit: {name} has shape {array.shape}; {words} is needed")
    return array


@dataclass(frozen=True)
class _Task:
    """All stamps and what goes with them, checked; planes of all stamps or of one that does for all."""

    stamps: Array
    psf: Array
    sigma: np.ndarray
    variance: Array | None
    mask: Array | None
    start: np.ndarray
    lobes: np.ndarray
    searched: bool
    model: str
    terms: int
    unit: UnitBase | None
    backend: Backend

    @classmethod
    def of(
        cls, stamps: Any, psf: Any, variance: Any, mask: Any, start: Any, model: str, terms: int, backend: Backend
    ) -> _Task:
        values, unit = _plain(stamps, "stamps")
        values = values[None] if values.ndim == 2 else values
        n, side = values.shape[0] if values.ndim == 3 else 0, values.shape[-1] if values.ndim else 0
        if values.ndim != 3 or values.shape[1] != side or not SIDES[0] <= side <= SIDES[1]:
            raise InputError(f"fit: stamps have shape {values.shape}; (n, k, k) with k from {SIDES[0]} to {SIDES[1]}")
        backend = backend_of(values) if backend_of(values).is_gpu else backend
        each = [(n, side, side), (side, side)]
        if variance is not None:
            variance, own = _plain(variance, "variance", None if unit is None else unit**2)
            if own is not None and unit is None:
                raise InputError(f"fit: variance is in {own}, but the stamps have no unit")
            variance = _shaped(variance, "variance", [*each, ()])
            if not variance.ndim and not 0 < float(variance) < np.inf:
                raise InputError(f"fit: variance is {float(variance):g}; a number above 0 is needed")
        if mask is not None:
            mask = _shaped(_plain(mask, "mask")[0], "mask", each) != 0
        if psf is None and model in ("gaussian_dipole", "cosmic_ray"):
            coefficients, sigma = backend.asarray(np.zeros((1, 1, 1))), np.full(1, np.nan)
        else:
            coefficients, sigma = _psf(psf, n, backend)
        at, lobes = _starts(start, n, side, model)
        return cls(
            values, coefficients, sigma, variance, mask, at, lobes, start is None, model, terms, unit, backend
        )  # fmt: skip

    @property
    def side(self) -> int:
        return int(self.stamps.shape[-1])

    def batches(self) -> list[slice]:
        return [slice(k, k + BATCH) for k in range(0, max(len(self.stamps), 1), BATCH)]

    def _part(self, plane: Any, rows: slice) -> Array:
        """Those rows of a plane of all stamps, or the one of all, as float64 where the work is done."""
        part = plane[rows] if np.ndim(plane) == 3 else plane
        return self.backend.asarray(part, np.float64)

    def widths(self, rows: slice) -> np.ndarray:
        """Sigma (n,) of the PSFs of one batch, px."""
        return np.broadcast_to(self.sigma[rows] if len(self.sigma) > 1 else self.sigma, len(self.start[rows]))

    def measured(self, rows: slice, forced: bool, residuals: bool) -> dict[str, np.ndarray]:
        """Columns of one batch, positions in the stamp."""
        if self.model == "best":
            parts = {name: replace(self, model=name).measured(rows, forced, residuals) for name in RIVALS}
            return best(parts, self.widths(rows))
        own, found, scaled = self.fitted(rows, forced)
        columns = found.columns(scaled, self.side // 2)
        if residuals:
            columns["residual"] = self.residual(own, found, scaled)
        return columns

    def fitted(self, rows: slice, forced: bool) -> tuple[Stamps, Found, Scaled]:
        """The stamps of one batch, their fits, and the scales of both."""
        xp = self.backend.xp
        data = self._part(self.stamps, rows)
        good = xp.isfinite(data)
        variance = None
        if self.variance is not None:
            variance = xp.broadcast_to(self._part(self.variance, rows), data.shape)
            good &= xp.isfinite(variance) & (variance > 0)
        if self.mask is not None:
            good &= self._part(self.mask, rows) == 0
        scaled = Scaled.of(data, variance, good, self.terms > 0)
        psf, middle = self.psf[rows] if len(self.psf) > 1 else self.psf, self.side // 2
        n = len(data)
        own = Stamps(
            data=scaled.data,
            weight=scaled.weight,
            psf=xp.ascontiguousarray(xp.broadcast_to(psf, (n, *psf.shape[1:]))),
            middle=np.full((n, 2), middle),
            start=self.start[rows] - middle,
            lobes=self.lobes[rows] - middle,
            terms=self.terms,
        )
        sigma = self.widths(rows)
        known = self.variance is not None
        if forced:
            found = _forced(own, self.model, known)
        elif self.model == "point":
            found = _point(own, known, self.searched)
        elif self.model == "gaussian_dipole":
            free = DIPOLE_FREE + 1 + own.terms
            lobes = _calibrated(positive_first(gaussian_dipoles(own, sigma)), free, known)
            found = Found(lobes, free, known, undetermined(lobes))
        elif self.model == "dipole":
            found = _dipole(own, sigma, known)
        else:
            found = _segment(on_host(own, np.arange(n)), sigma, known, self.model == "cosmic_ray")
        return own, found, scaled

    def residual(self, own: Stamps, found: Found, scaled: Scaled) -> np.ndarray:
        """Stamps less their models, (n, k, k), NaN where not used."""
        fit, n = found.fit, len(found.fit.chi2)
        if fit.is_trail:
            psf = None if self.model == "cosmic_ray" else own.psf
            trails = np.where(fit.usable[:, None], fit.parameters[:, :5], np.nan)
            left = subtract_trails(own.data, own.weight, psf, trails)
        elif fit.has_width:
            left = to_host(own.data) - gaussian_light(fit, own.data.shape[1])
        else:
            count = np.where(fit.usable, fit.lobes, 0)
            lobes = fit.parameters[fit.usable, : 3 * fit.lobes].reshape(-1, 3)
            left = subtract_lobes(own.data, own.weight, own.psf, np.concatenate([[0], np.cumsum(count)]), lobes)
        level, across, down = np.where(fit.usable, fit.background.T, np.nan).reshape(3, n, 1, 1)
        o = np.arange(self.side) - self.side // 2
        left = to_host(left).astype(float)[:, : self.side, : self.side] - (level + across * o + down * o[:, None])
        return np.where(to_host(scaled.good), left * scaled.scale[:, None, None], np.nan)

    def table(self, columns: dict[str, np.ndarray]) -> FitResult:
        out = FitResult()
        names = [*COLUMNS[self.model], *(BACKGROUND if self.terms == len(BACKGROUND) else BACKGROUND[:1])]
        wanted = [n for name in names for n in (name, f"{name}_err")] + list(COMMON[2:])
        if self.model == "best":
            wanted += ["best_model", "bic_difference", *(f"bic_{name}" for name in RIVALS)]
        for name in [*wanted, *(name for name in columns if name.startswith("residual"))]:
            of_flux = name.startswith(("flux_", "moment", "background", "residual")) or name == "flux"
            has_unit = self.unit is not None and of_flux
            out[name] = Quantity(columns[name], self.unit, copy=False) if has_unit else columns[name]
        if self.unit is not None and self.variance is None:
            out["chi2"] = Quantity(out["chi2"], self.unit**2, copy=False)
        out["flags"].info.description = "; ".join(f"bit {b} {n}: {m}" for n, (b, m) in FLAGS.items())
        return out


@dataclass(frozen=True)
class _Joint:
    """Dipoles of which the positive lobe is in the stamps of one task and the negative one in those of another."""

    science: _Task
    template: _Task

    @classmethod
    def of(cls, science: _Task, template: _Task) -> _Joint:
        """Point sources in both, each from its own lobe where the start tells them.

        Raises
        ------
        InputError
            The template has other stamps or another unit.
        """
        if template.stamps.shape != science.stamps.shape:
            raise InputError(f"fit: template has shape {template.stamps.shape}; {science.stamps.shape} is needed")
        if template.unit != science.unit:
            raise InputError(f"fit: template is in {template.unit}, but the stamps in {science.unit}")
        told = bool(len(science.lobes)) and bool(np.isfinite(science.lobes).all())
        starts = science.lobes.transpose(1, 0, 2) if told else (science.start, science.start)
        tasks = zip((science, template), starts, strict=True)
        return cls(*(replace(task, model="point", start=start) for task, start in tasks))

    def batches(self) -> list[slice]:
        return self.science.batches()

    def measured(self, rows: slice, forced: bool, residuals: bool) -> dict[str, np.ndarray]:
        """Columns of one batch, as of `_Task`."""
        tasks = (self.science, self.template)
        parts = [task.fitted(rows, forced) for task in tasks]
        plain = [in_units(found.fit, scaled.scale, scaled.level) for _, found, scaled in parts]
        both = lobes_of(*plain)
        free = sum(found.free for _, found, _ in parts)
        degenerate = np.zeros(len(both.chi2), bool) if forced else undetermined(both)
        scaled = parts[0][2]
        unscaled = replace(scaled, scale=np.ones_like(scaled.scale), level=np.zeros_like(scaled.level))
        columns = Found(both, free, True, degenerate).columns(unscaled, self.science.side // 2)
        if residuals:
            columns["residual"], columns["residual_template"] = (
                task.residual(*part) for task, part in zip(tasks, parts, strict=True)
            )
        return columns

    def table(self, columns: dict[str, np.ndarray]) -> FitResult:
        return replace(self.science, model="dipole").table(columns)


def _psf(psf: Any, n: int, backend: Backend) -> tuple[Array, np.ndarray]:
    """Spline coefficients (1 or n, p, p) where the work is done, and the sigma of each PSF, px."""
    if psf is None:
        raise ConfigError("fit: stamps need a psf, (p, p) or (n, p, p)")
    if hasattr(psf, "at"):
        raise ConfigError("fit: psf is a PSF of a whole image; psf.render(x, y) gives those of places in it")
    values, unit = _plain(psf, "psf")
    if unit not in (None, dimensionless_unscaled):
        raise InputError(f"fit: psf is in {unit}; a PSF has no unit: fluxes have that of the stamps")
    values = values[None] if values.ndim == 2 else values
    p = values.shape[-1] if values.ndim else 0
    if values.ndim != 3 or values.shape[1] != p or len(values) not in (1, n) or p % 2 == 0 or p < 3:
        raise InputError(f"fit: psf has shape {np.shape(psf)}; (p, p) or ({n}, p, p) with an odd p is needed")
    stamp = backend.asarray(values, np.float64)
    stamp = backend.xp.nan_to_num(stamp, nan=0.0, posinf=0.0, neginf=0.0)
    host = to_host(stamp)
    dark = np.flatnonzero(~(host.sum(axis=(1, 2)) > 0))
    if len(dark):
        what = (
            "no finite pixel" if not np.isfinite(to_host(values[dark[0]])).any() else f"the sum {host[dark[0]].sum():g}"
        )
        raise InputError(f"fit: psf {dark[0]} has {what}; a positive sum is needed")
    return spline_coefficients(stamp), fwhms(host) / 2.3548


def _starts(start: Any, n: int, side: int, model: str) -> tuple[np.ndarray, np.ndarray]:
    """Where the fits start, (n, 2), and lobes (n, 2, 2) that are NaN where unknown; 0-based in the stamp."""
    unknown = np.full((n, 2, 2), np.nan)
    if start is None:
        return np.full((n, 2), (side - 1) / 2), unknown
    at = np.asarray(_plain(start, "start")[0], float)
    shapes: list[tuple[int, ...]] = [(n, 2), (2,)]
    if model.endswith("dipole"):
        shapes += [(n, 2, 2), (2, 2)] if n != 2 else [(n, 2, 2)]
    _shaped(at, "start", shapes)
    if not np.isfinite(at).all():
        raise InputError(f"fit: start holds {int((~np.isfinite(at)).sum())} numbers that are not finite")
    if at.shape in ((n, 2, 2), (2, 2)) and at.shape != (n, 2):
        lobes = np.broadcast_to(at, (n, 2, 2)).copy()
        return lobes.mean(axis=1), lobes
    return np.broadcast_to(at, (n, 2)).copy(), unknown


def _dof(fit: LobeFit, free: int | np.ndarray) -> np.ndarray:
    return np.maximum(fit.pixels - free, 0)


def _calibrated(fit: LobeFit, free: int | np.ndarray, known: bool) -> LobeFit:
    """Covariance by what the model leaves, where no variance was given."""
    if known:
        return fit
    left = fit.chi2 / np.maximum(_dof(fit, free), 1)
    return replace(fit, covariance=fit.covariance * left[:, None, None])


def _point(own: Stamps, known: bool, searched: bool) -> Found:
    """Point sources; where the middle of the stamp holds none, the best place on a grid around it is tried."""
    row = np.arange(len(own.start))
    found = own.fit(own.start[:, None], row)
    free = PSF_FREE + own.terms
    expected = np.maximum(_dof(found, free), 1)
    doubted = found.status != Status.CONVERGED
    if known:
        doubted |= found.chi2 - expected > EXCESS * np.sqrt(2 * expected)
    else:
        doubted[:] = True
    again = np.flatnonzero(doubted & (found.status != Status.NO_DATA)) if searched else row[:0]
    if len(again):
        grid = np.array([(x, y) for y in SEARCH for x in SEARCH])
        places = own.start[again] + grid[:, None]
        tried = own.fit(places.reshape(-1, 1, 2), np.tile(again, len(grid)), limit=1)
        chi2 = np.where(np.isfinite(tried.chi2), tried.chi2, np.inf).reshape(len(grid), -1)
        place = places[chi2.argmin(axis=0), np.arange(len(again))]
        other = own.fit(place[:, None], again)
        both = joined(found.take(again), other)
        kept = both.take(best_of(both, len(again)))
        found = put(found, again, kept)
    return Found(_calibrated(found, free, known), free, known, np.zeros(len(row), bool))


def _dipole(own: Stamps, sigma: np.ndarray, known: bool) -> Found:
    """Dipoles, from starts along the moment and from the peaks of both signs."""
    row = np.arange(len(own.start))
    moment = own.fit(own.start[:, None], row, limit=1).moment[:, 1:3]
    found = fit_dipoles(own, row, np.nan_to_num(moment), sigma, known, lambda rows: peaks(own, sigma, rows))
    free = DIPOLE_FREE + own.terms
    found = _calibrated(positive_first(found), free, known)
    degenerate = undetermined(found)
    # where nothing scatters and no variance was given, there is no error of a moment either
    rows = np.flatnonzero(degenerate & (found.status != Status.NO_DATA) & (known | (found.chi2 != 0)))
    return Found(found, free, known, degenerate, _linear(own, found, sigma, rows, known) if len(rows) else None)


def _linear(own: Stamps, found: LobeFit, sigma: np.ndarray, rows: np.ndarray, known: bool) -> dict[str, np.ndarray]:
    """Moment and its errors of some rows, chi2 and background of their linear dipole; NaN in all others."""
    two, start = dipole_columns(found.take(rows)), own.start[rows]
    middle = np.stack([two["x"], two["y"]], 1)
    # lobes that ran away from each other leave nothing to begin with; those that ran into one show the place
    near = np.abs(middle - start).max(axis=1) < BOUND
    linear = linear_columns(own, rows, np.where(near[:, None], middle, start), sigma[rows])
    gain = linear["chi2"] - found.chi2[rows]
    if not known:
        pixels = found.pixels[rows] - own.terms
        left = linear["chi2"] / np.maximum(pixels - LINEAR_FREE, 1)
        linear |= {name: linear[name] * left for name in ("moment_xx", "moment_xy", "moment_yy")}
        linear |= {f"{name}_err": linear[f"{name}_err"] * np.sqrt(left) for name in BACKGROUND}
        gain = gain / (found.chi2[rows] / np.maximum(pixels - DIPOLE_FREE, 1))
    values = {name: v for name, v in linear.items() if name == "chi2" or name.startswith("background")}
    values |= {name: v for name, v in settled(two, linear, gain).items() if name.startswith("moment")}
    out = {name: np.full(len(own.start), np.nan) for name in values}
    for name, column in values.items():
        out[name][rows] = column
    return out


def _segment(own: Stamps, sigma: np.ndarray, known: bool, ray: bool) -> Found:
    """Trails, or light that no PSF has passed."""
    free: Any = TRAIL_FREE + own.terms
    if ray:
        fit, free = fit_rays(own, known)
    else:
        fit = fit_segments(own, sigma)
    degenerate = np.zeros(len(sigma), bool) if ray else no_longer(fit)
    return Found(_calibrated(fit, free, known), free, known, degenerate)


def _forced(own: Stamps, model: str, known: bool) -> Found:
    """Fluxes and background at the given places: linear, errors for held positions."""
    if model == "dipole" and not np.isfinite(own.lobes).all():
        raise ConfigError("fit: forced dipoles need the places of both lobes, start of shape (n, 2, 2)")
    found, free = forced_fit(own, own.start[:, None] if model == "point" else own.lobes)
    return Found(_calibrated(found, free, known), free, known, np.zeros(len(own.start), bool))
