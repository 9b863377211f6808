# SPDX-License-Identifier: BSD-3-Clause
"""The second pass: every item once more, when the objects of all are known; and the light curves that come of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from astropy import units as u
from astropy.table import vstack

from skydelta.errors import ConfigError, InputError
from skydelta.io.catalog import OF_ITEM, Catalog
from skydelta.pipeline.graph import Bound, bind, external
from skydelta.pipeline.items import WorkItem
from skydelta.pipeline.receipts import RunFolder
from skydelta.pipeline.workflow import SECOND_PASS, Workflow

OBJECTS = "objects"
"""What the steps call the table of all objects."""

TABLE = "objects.ecsv"

LIGHT_CURVES = "lightcurves.parquet"
"""Beside the items: what the second pass has measured of every object in every item."""

LIMIT = 5.0
"""The column ``flux_limit`` in errors of the flux."""

COLUMNS = (
    "object", "item", "mjd", "flux", "flux_err", "flux_err_kernel", "snr", "flux_limit", "detected", "flags", "ra",
    "dec", "x", "y", "background", "chi2", "dof", "masked_fraction", "mag", "mag_err",
)  # fmt: skip
"""Of the light curves, those that the second pass gives."""


def checked(flow: Workflow, first: Iterable[Bound]) -> tuple[Bound, ...]:
    """The steps of the second pass tied together; empty where a workflow has none.

    Parameters
    ----------
    first : iterable of Bound
        The steps before.

    Raises
    ------
    ConfigError
        Steps that do not go together, or that read what the items do not leave.
    """
    if flow.second is None:
        return ()
    files = _files(first)
    if "catalog" not in files:
        raise ConfigError(f"{SECOND_PASS}: no step leaves a catalogue, so there are no objects")
    wanted = external(flow.second.steps)
    for name in wanted:
        if name != OBJECTS and name not in files:
            known = ", ".join([OBJECTS, *files])
            raise ConfigError(f"{SECOND_PASS}: {name!r} is nothing that the items leave; known: {known}")
    try:
        return bind(flow.second.steps, dict.fromkeys(wanted, str))
    except ConfigError as e:
        raise ConfigError(f"{SECOND_PASS}: {e}") from None


def _files(bound: Iterable[Bound]) -> dict[str, str]:
    """What items leave, by name without suffix; the first of several."""
    files: dict[str, str] = {}
    for b in bound:
        for name in b.step.stage.products():
            files.setdefault(Path(name).stem, name)
    return files


def again(flow: Workflow, first: Iterable[Bound], folder: RunFolder) -> tuple[WorkItem, ...]:
    """Every item in the folder that is done, with what the second pass reads of it.

    Raises
    ------
    InputError
        There is no table of objects.
    """
    assert flow.second is not None
    root = folder.root.absolute()
    if not (root / TABLE).is_file():
        raise InputError(
            f"{root / TABLE}: missing, so there is no {SECOND_PASS}; catalogues with ra and dec are needed"
        )
    files = _files(first)
    wanted = external(flow.second.steps)
    items = []
    for receipt in folder.all():
        if receipt["status"] == "done":
            here = root / folder.place / receipt["id"]
            paths = {n: str(root / TABLE if n == OBJECTS else here / files[n]) for n in wanted}
            items.append(WorkItem(receipt["id"], paths))
    return tuple(items)


def write_light_curves(folder: RunFolder, done: Iterable[str], times: Mapping[str, float]) -> None:
    """Bring together what the second pass has measured: ``lightcurves.parquet``, object by object, in order of time.

    Columns are `COLUMNS`: ``flux_limit`` is five times the error of the flux, ``detected`` whether the object is in the
    catalogue of the item.

    Parameters
    ----------
    folder : RunFolder
        Of the first pass.
    done : iterable of str
        Items whose second pass is done.
    times : mapping of str to float
        MJD of the items; NaN where it is not known.

    Raises
    ------
    InputError
        A file cannot be read or written.
    """
    order = {str(name): k for k, name in enumerate(Catalog.load(folder.root / TABLE)["object"])}
    seen = _detections(folder.root / "catalog.parquet")
    parts = []
    for name in sorted(done):
        path = folder.second().root / folder.second().place / name / OF_ITEM
        part = Catalog.load(path)
        if not {"id", "flux", "flux_err"} <= set(part.colnames):
            raise InputError(f"{path}: columns {', '.join(part.colnames)}; id, flux and flux_err are needed")
        part["object"] = np.asarray(part["id"]).astype(str)
        part["item"] = np.full(len(part), name)
        part["mjd"] = np.full(len(part), times[name]) * u.day
        part["flux_limit"] = LIMIT * part["flux_err"]
        part["detected"] = np.array([(o, name) in seen for o in part["object"]], bool)
        part.meta.clear()
        parts.append(part[[c for c in COLUMNS if c in part.colnames]])
    if not parts:
        return
    curves = Catalog(vstack([p for p in parts if len(p)] or parts[:1], metadata_conflicts="silent"))
    place = np.array([order[o] for o in curves["object"]], int)
    mjd = np.asarray(curves["mjd"].value)
    item = np.asarray(curves["item"]).astype(str)
    rows = np.lexsort((item, np.nan_to_num(mjd), np.isnan(mjd), place)) if len(curves) else slice(0)
    curves[rows].save(folder.root / LIGHT_CURVES)


def _detections(path: Path) -> set[tuple[str, str]]:
    """Objects and the items that they were detected in."""
    catalog = Catalog.load(path)
    return set(zip(*(np.asarray(catalog[c]).astype(str).tolist() for c in ("object", "item")), strict=True))
