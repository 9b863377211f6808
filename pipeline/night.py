# SPDX-License-Identifier: BSD-3-Clause
"""All items of a run as one: the combined catalogue, and the objects that were detected again and again."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from astropy import units as u
from astropy.table import TableMergeError, vstack
from astropy.units import UnitConversionError

from skydelta.io.catalog import Catalog
from skydelta.pipeline.association import associate, objects

log = logging.getLogger(__name__)

RADIUS = 1.0
"""Radius of association, arcsec, where the seeing is not known."""

SEEING_SHARE = 0.5
"""Radius of association by default, in the median seeing (FWHM): four to five times the error of a position at the
threshold, FWHM / (2.35 S/N) on each axis."""


@dataclass
class Part:
    """The catalogue of one item and what its receipt says of time and seeing (NaN where it does not)."""

    id: str
    catalog: Catalog
    mjd: float
    seeing: float

    @classmethod
    def of(cls, receipt: Mapping[str, Any], catalog: Catalog) -> Part:
        known: dict[str, Any] = {}
        for step in receipt["steps"]:
            known |= step["metrics"]
        width, scale = known.get("fwhm_science_px"), known.get("pixel_scale_arcsec")
        seeing = width * scale if width and scale else np.nan
        mjd = known.get("mjd")
        return cls(receipt["id"], catalog, np.nan if mjd is None else float(mjd), float(seeing))


def combine(parts: Iterable[Part], root: Path, radius: float | None) -> None:
    """Write the catalogues of all items as one, and the objects; none of both when their units do not go together.

    ``catalog.parquet``: column ``item`` in front; at the end ``object``, the name of the object a row belongs to, empty
    where it has no position, and ``mjd``. ``objects.ecsv``: one row for each object. The order of the items is that of
    their times; those without follow, by id.

    Parameters
    ----------
    parts : iterable of Part
    root : Path
        Folder of the run.
    radius : float or None
        Arcseconds; none: half the median seeing, or 1 arcsecond where that is not known.

    Raises
    ------
    InputError
        A file cannot be written.
    """
    parts = sorted(parts, key=lambda p: p.id)
    for name in ("catalog.parquet", "objects.ecsv"):
        (root / name).unlink(missing_ok=True)
    filled = [p for p in parts if len(p.catalog)] or parts[:1]
    if not filled:
        return
    for part in filled:
        part.catalog.add_column([part.id] * len(part.catalog), name="item", index=0)
    try:
        combined = Catalog(vstack([p.catalog for p in filled], metadata_conflicts="silent"))
    except (TableMergeError, UnitConversionError) as e:
        log.warning("%s: not written, the catalogues of the items cannot be one table: %s", root / "catalog.parquet", e)
        return
    if not {"ra", "dec", "flux", "flux_err", "snr"} <= set(combined.colnames):
        combined.save(root / "catalog.parquet")
        return
    counts = [len(p.catalog) for p in filled]
    mjd = np.array([p.mjd for p in filled])
    in_time = sorted(range(len(filled)), key=lambda k: (np.isnan(mjd[k]), mjd[k] if mjd[k] == mjd[k] else 0.0, k))
    place = np.empty(len(filled), np.int64)
    place[in_time] = np.arange(len(filled))
    item, when = np.repeat(place, counts), np.repeat(mjd, counts)
    ra, dec = (np.asarray(combined[c].value, float) for c in ("ra", "dec"))
    used = radius or default_radius(p.seeing for p in parts)
    labels = associate(ra, dec, item, used)
    table, names = objects(combined, labels, item, when, [filled[k].id for k in in_time])
    table.meta["association_radius_arcsec"] = used
    combined["object"] = names
    combined["mjd"] = when * u.day
    combined.save(root / "catalog.parquet")
    table.save(root / "objects.ecsv")


def default_radius(seeing: Iterable[float]) -> float:
    """Radius of association, arcsec, from the seeing of the items (FWHM, arcsec; NaN where it is not known)."""
    known = np.array([s for s in seeing if np.isfinite(s) and s > 0])
    return float(np.round(SEEING_SHARE * np.median(known), 3)) if known.size else RADIUS
