# SPDX-License-Identifier: BSD-3-Clause
"""Work items: what goes through the workflow once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from astropy.table import Table

from skydelta.errors import ConfigError, InputError
from skydelta.io.fits.reader import split_extension

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*\Z")

_SUFFIXES = re.compile(r"(\.fits?|\.fz|\.gz|\.bz2|\.xz|\.Z)+\Z")


@dataclass(frozen=True)
class WorkItem:
    """One science/reference pair (or whatever the workflow's inputs are).

    Attributes
    ----------
    id : str
        Unique in the run, safe as the name of a folder.
    inputs : dict
        Name to path, absolute; ``FILE[EXT]`` allowed.
    settings : dict
        Settings of steps for this item alone, ``{"match.order": 3}``.
    """

    id: str
    inputs: Mapping[str, str]
    settings: Mapping[str, Any] = field(default_factory=dict)


def items_of(
    inputs: Mapping[str, str | list[str]], wanted: Mapping[str, str], id_: str | None = None
) -> tuple[WorkItem, ...]:
    """Items of a workflow's ``[inputs]``: one pair, lists of the same length, or the rows of a table.

    A single path beside lists belongs to every item. Columns of a table that no step reads are ignored.

    Parameters
    ----------
    wanted : mapping
        Names the steps read and who reads them (`skydelta.pipeline.graph.external`).
    id_ : str, optional
        Of the single item; else the stem of its first input.

    Raises
    ------
    ConfigError
        Inputs missing or too many, lists of different lengths, or a table together with single files.
    InputError
        A table that cannot be read or lacks columns; ids that are not unique or not safe as folder names.
    """
    if "table" in inputs and "table" not in wanted:
        table = inputs["table"]
        if len(inputs) > 1 or not isinstance(table, str):
            raise ConfigError("inputs: table is one file and excludes all others")
        if id_ is not None:
            raise ConfigError(f"id {id_!r}: the items of a table have their ids from its column id")
        return _unique(_rows(Path(table), wanted), table)
    for name, reader in wanted.items():
        if name not in inputs:
            raise ConfigError(f"inputs.{name}: missing; {reader} reads it")
    for name in inputs:
        if name not in wanted:
            raise ConfigError(f"inputs.{name}: no step reads it; they read {', '.join(wanted) or 'no files'}")
    lengths = {name: len(paths) for name, paths in inputs.items() if isinstance(paths, list)}
    if not lengths:
        single = {name: str(path) for name, path in inputs.items()}
        return (WorkItem(_safe(id_, "id") if id_ else _stem(single), single),)
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        raise ConfigError(f"inputs: lists of one length are needed, not {lengths}")
    if id_ is not None:
        raise ConfigError(f"id {id_!r}: the items of lists are named after their files")
    count = next(iter(lengths.values()))
    rows = [{n: p[i] if isinstance(p, list) else p for n, p in inputs.items()} for i in range(count)]
    named = next(iter(lengths))  # what a list gives differs between items
    return _unique((WorkItem(_stem({named: row[named]}), row) for row in rows), f"inputs.{named}")


def _stem(paths: Mapping[str, str]) -> str:
    """An id made of the name of the first file."""
    name = _SUFFIXES.sub("", Path(split_extension(next(iter(paths.values()), ""))[0]).name)
    return re.sub(r"[^A-Za-z0-9._+-]", "_", name).lstrip("._+-")[:200] or "item"


def _safe(name: str, where: str) -> str:
    if not _SAFE.match(name) or len(name) > 200:
        raise InputError(f"{where}: {name!r} cannot name a folder; letters, digits and . _ + - are allowed")
    return name


def _unique(items: Iterable[WorkItem], where: str) -> tuple[WorkItem, ...]:
    seen: dict[str, WorkItem] = {}
    for n, item in enumerate(items, 1):
        if item.id in seen:
            raise InputError(f"{where} row {n}: id {item.id!r} occurs twice")
        seen[item.id] = item
    return tuple(seen.values())


def _rows(path: Path, wanted: Mapping[str, str]) -> Iterable[WorkItem]:
    kind = {".ecsv": "ascii.ecsv", ".csv": "ascii.csv"}.get(path.suffix.lower())
    if kind is None:
        raise InputError(f"{path}: tables are .ecsv or .csv, not {path.suffix!r}")
    as_text = {"converters": {"*": str}} if kind == "ascii.csv" else {}  # an id 007 is no number
    try:
        table = Table.read(path, format=kind, **as_text)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except Exception as e:  # astropy's readers raise many kinds for a malformed table
        raise InputError(f"{path}: cannot be read as {kind.split('.')[1]}: {str(e).splitlines()[0]}") from None
    for column in ("id", *wanted):
        if column not in table.colnames:
            raise InputError(f"{path}: no column {column!r}; it has {', '.join(table.colnames)}")
    if not len(table):
        raise InputError(f"{path}: no rows")
    for n, row in enumerate(table, 1):
        empty = [c for c in ("id", *wanted) if row[c] is np.ma.masked or not str(row[c])]
        if empty:
            raise InputError(f"{path} row {n}: {empty[0]} is empty")
        paths = {c: str(path.absolute().parent / str(row[c])) for c in wanted}
        yield WorkItem(_safe(str(row["id"]), f"{path} row {n}: id"), paths)
