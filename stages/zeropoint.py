# SPDX-License-Identifier: BSD-3-Clause
"""Stage ``zero_point``: magnitudes from fluxes, by a zero point that is given or fitted to a catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from astropy import units as u
from astropy.table import Table
from pydantic import Field

from skydelta.errors import AlgorithmError, ConfigError, InputError
from skydelta.io.catalog import Catalog, column_of
from skydelta.io.exposure import Exposure
from skydelta.stages.base import Context, Port, Stage, StageConfig
from skydelta.stages.register.sources import epoch_of, read_catalog, sky_stars
from skydelta.stages.sources import Sources

FLOOR = 0.01
"""Error that any star has beside its noise, mag: colours, flat field, PSF."""

CLIP = 3.0
"""Standard deviations beyond which a star does not count."""

FEWEST = 3

UNFIT = ("EDGE", "MASKED", "SATURATED", "NOT_CONVERGED", "NO_FIT")


class ZeroPointConfig(StageConfig):
    """Where the zero point comes from."""

    only_where: ClassVar = {"magnitude": {"value": (None,)}, "snr": {"value": (None,)}}

    value: float | None = Field(
        None, allow_inf_nan=False, description="Magnitude of a flux of one unit of the image; excludes catalog."
    )
    catalog: str | None = Field(
        None, description="Catalogue (.ecsv, .parquet, .vot) with ra, dec and magnitudes of stars: fitted to them."
    )
    magnitude: str = Field("mag", min_length=1, description="Column of the catalogue with the magnitudes.")
    snr: float = Field(20.0, ge=5, description="Least signal-to-noise of a star that takes part in the fit.")


class ZeroPoint(Stage[ZeroPointConfig]):
    """Add columns ``mag`` and ``mag_err``: zero point - 2.5 log10 flux, NaN where the flux is not above 0.

    To fit it, the stars of the catalogue, moved to the epoch of the image where it has proper motions, are measured at
    their positions with the PSF; the zero point is the mean of m + 2.5 log10 flux, weighted, without those 3 standard
    deviations off. One number for the image: no colour term, no variation over the field. ``mag_err`` is that of the
    flux alone; the error of the zero point, common to all rows, is in the receipt and in the catalogue's metadata.

    Raises
    ------
    ConfigError
        Neither or both of ``value`` and ``catalog``.
    InputError
        A catalogue without such columns; an image without WCS, variance or PSF.
    AlgorithmError
        Fewer than 3 stars can be used; the numbers are in the message.
    """

    name = "zero_point"
    version = 1
    inputs = {
        "image": Port(Exposure, "sky-subtracted image that the fluxes belong to, with variance and PSF"),
        "catalog": Port(Catalog, "table with flux and flux_err in units of the image"),
    }
    outputs = {"catalog": Port(Catalog, "the same with mag and mag_err", replaces="catalog")}
    files = ("catalog",)

    def __init__(self, config: ZeroPointConfig | None = None, **parameters: Any) -> None:
        super().__init__(config, **parameters)
        if (self.config.value is None) == (self.config.catalog is None):
            raise ConfigError("zero_point: one of value and catalog is needed, not " +
                              ("neither" if self.config.value is None else "both"))  # fmt: skip

    def memory(self, shape: tuple[int, int], kind: str) -> int:
        return Sources().memory(shape, kind)

    def run(self, ctx: Context, *, image: Exposure, catalog: Catalog) -> dict[str, Any]:  # type: ignore[override]
        if self.config.value is not None:
            point, error = self.config.value, 0.0
        else:
            point, error = self._fitted(ctx, image)
        ctx.metric("zero_point", point)
        ctx.metric("zero_point_err", error)
        flux, flux_err = (np.asarray(getattr(catalog[c], "value", catalog[c]), float) for c in ("flux", "flux_err"))
        with np.errstate(invalid="ignore", divide="ignore"):
            mag = np.where(flux > 0, point - 2.5 * np.log10(flux), np.nan)
            mag_err = np.where(flux > 0, 2.5 / np.log(10) * flux_err / flux, np.nan)
        out = Catalog(catalog.copy())
        out["mag"], out["mag_err"] = mag * u.mag, mag_err * u.mag
        out.meta["zero_point"] = {"value": float(point), "error": float(error)}
        return {"catalog": out}

    def check_files(self, base: Path | None = None) -> None:
        if self.config.catalog is not None:
            self._catalog(self.config.catalog, base)

    def _catalog(self, name: str, base: Path | None) -> tuple[Path, Table]:
        """The catalogue and its path; it has the columns that are needed."""
        path = Path(name)
        path = path if base is None or path.is_absolute() else base / path
        table = read_catalog(path)
        for column in ("ra", "dec", self.config.magnitude):
            if column_of(table, column) is None:
                raise InputError(f"{path}: no column {column!r}; it has {', '.join(table.colnames[:12])}")
        return path, table

    def _fitted(self, ctx: Context, image: Exposure) -> tuple[float, float]:
        assert self.config.catalog is not None
        path, table = self._catalog(self.config.catalog, ctx.base)
        column = self.config.magnitude
        ra, dec, mag = (_numbers(table[column_of(table, n)]) for n in ("ra", "dec", column))
        known = np.isfinite(ra + dec + mag) & (np.abs(dec) <= 90)
        stars, warning = sky_stars(table[known], epoch_of(image.header))
        if warning:
            ctx.flag("proper_motion", warning)
        sky = Catalog.of({"ra": stars.ra % 360, "dec": stars.dec}, {"ra": u.deg, "dec": u.deg})
        found = Sources().run(Context(ctx.backend), image=image, positions=sky)["catalog"]
        flux, error = (np.asarray(found[c].value, float) for c in ("flux", "flux_err"))
        with np.errstate(invalid="ignore", divide="ignore"):
            use = (flux > self.config.snr * error) & (error > 0)
        for flag in UNFIT:
            use &= ~found.has(flag)
        if use.sum() < FEWEST:
            raise AlgorithmError(
                f"zero_point: {int(use.sum())} of {len(flux)} stars of {path} are above S/N {self.config.snr:g}, in it "
                f"and unspoilt; {FEWEST} are needed",
                stars=len(flux), usable=int(use.sum()),
            )  # fmt: skip
        each = mag[known][use] + 2.5 * np.log10(flux[use])
        weight = 1 / (FLOOR**2 + (1.0857 * error[use] / flux[use]) ** 2)
        keep = np.ones(len(each), bool)
        for _ in range(10):
            middle = float(np.median(each[keep]))
            spread = max(1.4826 * float(np.median(np.abs(each[keep] - middle))), FLOOR)
            new = np.abs(each - middle) < CLIP * np.maximum(spread, 1 / np.sqrt(weight))
            if (new == keep).all():
                break
            keep = new
        point = float(np.sum(weight[keep] * each[keep]) / np.sum(weight[keep]))
        chi2 = float(np.sum(weight[keep] * (each[keep] - point) ** 2) / max(keep.sum() - 1, 1))
        ctx.metric("zero_point_stars", int(keep.sum()))
        ctx.metric("zero_point_scatter", float(np.std(each[keep], ddof=1)))
        return point, float(np.sqrt(max(chi2, 1.0) / np.sum(weight[keep])))


def _numbers(column: Any) -> np.ndarray:
    """float64, NaN where masked."""
    return np.asarray(np.ma.filled(np.ma.asarray(getattr(column, "value", column), float), np.nan))
