# SPDX-License-Identifier: BSD-3-Clause
"""Star lists of images, raw ones too, and of reference catalogues."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from astropy import units as u
from astropy.io import fits
from astropy.table import MaskedColumn, QTable, Table
from astropy.time import Time

from skydelta.errors import AlgorithmError, InputError
from skydelta.io.catalog import Catalog, column_of
from skydelta.io.exposure import Exposure
from skydelta.kernels.backend import Backend
from skydelta.stages.background import Background
from skydelta.stages.base import Context
from skydelta.stages.register.lists import StarList
from skydelta.stages.register.patterns import spread_order
from skydelta.stages.stars import SIGMA_TO_FWHM, find_stars

MOST = 4000
"""Stars of an image that take part, spread over the field."""

FLOOR = 0.005
"""Least error of a centroid, px: undersampling and the shape of pixels."""

CROWDED = 0.02
"""Further error of a star that is not alone, in units of its FWHM."""

BRIGHTNESS = ("phot_g_mean_mag", "mag", "magnitude", "gmag", "rmag", "Vmag", "flux", "phot_g_mean_flux")
"""Columns that may tell how bright a star of a catalogue is, in order of preference."""

MILLIARCSECOND = 1 / 3.6e6  # degrees


def image_stars(exposure: Exposure, backend: Backend) -> StarList:
    """Stars of an exposure whose sky may still be there; saturated ones and those at its edges are left out.

    The error of a coordinate is that of a Gaussian star, FWHM / (2.355 S/N) (King 1983), more where others are near.

    Returns
    -------
    StarList
        Possibly empty; at most `MOST`, spread over the field, bright stars first.
    """
    try:
        flat = Background(model="mesh").run(Context(backend), image=exposure)["image"]
    except AlgorithmError:
        return empty_list(exposure.shape)  # no usable pixel
    stars = find_stars(flat)
    stars = stars.take(~stars.saturated & np.isfinite(stars.fwhm) & (stars.snr > 0))
    stars = stars.take(spread_order(stars.x, stars.y, stars.flux)[:MOST])
    alone = np.where(stars.isolated, 0.0, CROWDED * stars.fwhm)
    error = np.sqrt((stars.fwhm / SIGMA_TO_FWHM / stars.snr) ** 2 + FLOOR**2 + alone**2)
    return StarList(stars.x, stars.y, stars.flux, error, frame_box(exposure.shape))


def empty_list(shape: tuple[int, int]) -> StarList:
    none = np.zeros(0)
    return StarList(none, none, none, none, frame_box(shape))


def frame_box(shape: tuple[int, int]) -> np.ndarray:
    """Lowest and highest x, y of the pixel area of an image: float64 (2, 2)."""
    return np.array([[-0.5, shape[1] - 0.5], [-0.5, shape[0] - 0.5]])


@dataclass(frozen=True)
class SkyStars:
    """Stars of a catalogue at one epoch.

    Attributes
    ----------
    ra, dec : float64 (n,)
        ICRS, degrees.
    flux : float64 (n,)
        Only their order counts.
    notes : dict
        Which column tells the brightness, and the epochs.
    """

    ra: np.ndarray
    dec: np.ndarray
    flux: np.ndarray
    notes: dict[str, Any]

    def __len__(self) -> int:
        return len(self.ra)


def read_catalog(path: str | Path) -> QTable | Table:
    """A reference catalogue: ECSV, Parquet or VOTable by its suffix.

    Raises
    ------
    InputError
        The file is missing, of another kind or cannot be read.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if path.suffix in (".xml", ".votable"):
        try:
            return Table.read(path, format="votable")
        except Exception as e:
            raise InputError(f"{path}: cannot be read as a VOTable ({str(e).splitlines()[0]})") from None
    return Catalog.load(path)


def sky_stars(table: Table, epoch: float | None) -> tuple[SkyStars, str]:
    """Stars of a catalogue at the epoch of an image.

    Columns ra and dec (degrees unless they have a unit); with pmra (times cos dec) and pmdec (mas/yr unless they have a
    unit) and ref_epoch (Julian year; a column, or an entry of the table's meta), stars are moved along the great circle
    to ``epoch``. Stars without a finite proper motion stay.

    Parameters
    ----------
    table : astropy.table.Table
    epoch : float or None
        Julian year.

    Returns
    -------
    SkyStars
    str
        A warning where proper motions could not be applied, else empty.

    Raises
    ------
    InputError
        No ra or dec, or proper motions without their epoch.
    """
    named = {n: column_of(table, n) for n in ("ra", "dec", "pmra", "pmdec")}
    for wanted in ("ra", "dec"):
        if named[wanted] is None:
            raise InputError(f"catalogue: no column {wanted}; it has {', '.join(table.colnames[:12])}")
    ra, dec = (_values(table[named[n]], u.deg) for n in ("ra", "dec"))
    keep = np.isfinite(ra) & np.isfinite(dec) & (np.abs(dec) <= 90)
    notes: dict[str, Any] = {}
    warning = ""
    if named["pmra"] and named["pmdec"]:
        if epoch is None:
            warning = "the image has no date (MJD-OBS, DATE-OBS): proper motions are not applied"
        else:
            start = _reference_epoch(table)
            years = epoch - start
            motion = [np.nan_to_num(_values(table[named[n]], u.mas / u.yr)) for n in ("pmra", "pmdec")]
            ra, dec = moved(ra, dec, *(m * MILLIARCSECOND * years for m in motion))
            notes |= {"epoch": epoch, "years_of_motion": float(np.median(years))}
    column = next(filter(None, (column_of(table, n) for n in BRIGHTNESS)), None)
    if column is None:
        flux = np.random.default_rng(1).permutation(len(ra)).astype(float)  # any order will do, if always the same
    else:
        flux = _values(table[column], None)
        flux = flux if "flux" in column.lower() else -flux
        flux = np.where(np.isfinite(flux), flux, -np.inf)
        notes["brightness"] = column
    return SkyStars(ra[keep], dec[keep], flux[keep], notes), warning


def moved(ra: np.ndarray, dec: np.ndarray, east: np.ndarray, north: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions (degrees) after a motion of so many degrees east and north along great circles."""
    a, d = np.radians(ra), np.radians(dec)
    p = np.array([np.cos(d) * np.cos(a), np.cos(d) * np.sin(a), np.sin(d)])
    e = np.array([-np.sin(a), np.cos(a), np.zeros_like(a)])
    n = np.array([-np.sin(d) * np.cos(a), -np.sin(d) * np.sin(a), np.cos(d)])
    angle = np.radians(np.hypot(east, north))
    direction = (np.radians(east) * e + np.radians(north) * n) / np.maximum(angle, 1e-300)
    q = np.cos(angle) * p + np.sin(angle) * direction
    return np.degrees(np.arctan2(q[1], q[0])) % 360, np.degrees(np.arctan2(q[2], np.hypot(q[0], q[1])))


def _values(column: Any, unit: u.UnitBase | None) -> np.ndarray:
    """float64 numbers of a column, in a unit where it has one; masked ones are NaN."""
    values: Any = column
    if isinstance(column, MaskedColumn):
        values = np.ma.filled(np.ma.asarray(column, float), np.nan)
    own = getattr(column, "unit", None)
    if hasattr(values, "unmasked"):
        values = np.where(values.mask, np.nan, values.unmasked)
    plain = np.asarray(getattr(values, "value", values), float)
    if unit is None or own is None or own == "":
        return plain
    try:
        return plain * u.Unit(own).to(unit)
    except u.UnitConversionError:
        raise InputError(f"catalogue: a column in {own}; {unit} is needed") from None


def _reference_epoch(table: Table) -> np.ndarray | float:
    for name in ("ref_epoch", "epoch"):
        if (column := column_of(table, name)) is not None:
            return _values(table[column], u.yr)
    meta = {str(k).lower(): v for k, v in table.meta.items()}
    for name in ("ref_epoch", "epoch"):
        try:
            return float(meta[name])
        except (KeyError, TypeError, ValueError):
            continue
    raise InputError("catalogue: pmra and pmdec are there, but no ref_epoch (a column, or an entry of meta)")


def epoch_of(header: fits.Header) -> float | None:
    """When an image was taken, as a Julian year; None where its header does not say."""
    for card in ("MJD-OBS", "MJD-AVG", "MJD-BEG", "MJD"):
        value = header.get(card)
        if isinstance(value, int | float) and value > 0:
            return float(Time(value, format="mjd").jyear)
    for card in ("DATE-OBS", "DATE-AVG", "DATE-BEG"):
        value = header.get(card)
        if isinstance(value, str):
            try:
                return float(Time(value, format="fits").jyear)
            except ValueError:
                continue
    return None
