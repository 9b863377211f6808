# SPDX-License-Identifier: BSD-3-Clause
"""Work items: what goes through the workflow once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from astropy.table import Table

from skydelta.errors import ConfigError, InputError
from skydelta.io.fits.reader import split_extension, split_section
from skydelta.pipeline import pairing
from skydelta.pipeline.graph import listed
from skydelta.pipeline.groups import grouped, numbered
from skydelta.pipeline.workflow import PAIR_BY, Step, value_of

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
        Name to path, absolute; ``FILE[EXT]`` and ``FILE[EXT][x1:x2,y1:y2]`` allowed.
    settings : dict
        Settings of steps for this item alone, ``{"match.order": 3}``.
    """

    id: str
    inputs: Mapping[str, str]
    settings: Mapping[str, Any] = field(default_factory=dict)


def items_of(
    inputs: Mapping[str, str | list[str]],
    wanted: Mapping[str, str],
    id_: str | None = None,
    steps: Sequence[Step] = (),
) -> tuple[WorkItem, ...]:
    """Items of a workflow's ``[inputs]``: one pair, lists of the same length, files that pair, or the rows of a table.

    A single path beside lists belongs to every item. Patterns stand for the files that they match; where more than one
    input has several files, `PAIR_BY` says which belong together: one item for each detector of the first input's
    files. A column ``step.setting`` of a table sets that of a step for the item alone, where the row is not empty;
    other columns that no step reads are ignored. Where a step takes all files of a name (`stack`), a list is one item,
    and so are the rows of a table with one id.

    Parameters
    ----------
    wanted : mapping
        Names the steps read and who reads them (`skydelta.pipeline.graph.external`).
    id_ : str, optional
        Of the single item; else the stem of its first input.
    steps : sequence of Step
        Of the workflow: what columns may set.

    Raises
    ------
    ConfigError
        Inputs missing or too many, lists of different lengths, a table together with single files, or ``id_`` is not
        safe as the name of a folder.
    InputError
        A table that cannot be read or lacks columns; ids that are not unique or not safe as folder names.
    """
    many = listed(steps)
    if "table" in inputs and "table" not in wanted:
        table = inputs["table"]
        if len(inputs) > 1 or not isinstance(table, str):
            raise ConfigError("inputs: table is one file and excludes all others")
        if id_ is not None:
            raise ConfigError(f"id {id_!r}: the items of a table have their ids from its column id")
        found = _rows(Path(table), wanted, steps)
        if many:
            groups = grouped(((r.id, r.inputs, r.settings) for r in found), many, table)
            return tuple(WorkItem(name, *parts) for name, parts in groups.items())
        return _unique(found, table)
    for name, reader in wanted.items():
        if name not in inputs:
            raise ConfigError(f"inputs.{name}: missing; {reader} reads it")
    for name in inputs:
        if name not in wanted and name != PAIR_BY:
            raise ConfigError(f"inputs.{name}: no step reads it; they read {', '.join(wanted) or 'no files'}")
    if many:
        return (_of_lists(inputs, many, id_),)
    if PAIR_BY in inputs:
        return _paired(inputs, wanted, id_)
    inputs, patterns = _expanded(inputs)
    if len(patterns) > 1:
        raise ConfigError(f"inputs.{PAIR_BY}: missing; {' and '.join(patterns)} are patterns: what do partners share?")
    lengths = {name: len(paths) for name, paths in inputs.items() if isinstance(paths, list)}
    if not lengths:
        single = {name: str(path) for name, path in inputs.items()}
        return (WorkItem(_stem(single) if id_ is None else _own(id_), single),)
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        raise ConfigError(f"inputs: lists of one length are needed, not {lengths}")
    if id_ is not None:
        raise ConfigError(f"id {id_!r}: the items of lists are named after their files")
    count = next(iter(lengths.values()))
    rows = [{n: p[i] if isinstance(p, list) else p for n, p in inputs.items()} for i in range(count)]
    named = next(iter(lengths))  # what a list gives differs between items
    return _unique((WorkItem(_stem({named: row[named]}), row) for row in rows), f"inputs.{named}")


def _of_lists(inputs: Mapping[str, str | list[str]], many: Iterable[str], id_: str | None) -> WorkItem:
    """The one item of an input that takes all its files."""
    if PAIR_BY in inputs:
        raise ConfigError(
            f"inputs.{PAIR_BY}: {', '.join(sorted(many))} takes all files of its name: there are no pairs"
        )
    expanded, _ = _expanded(inputs)
    out: dict[str, str] = {}
    for name, files in expanded.items():
        paths = [files] if isinstance(files, str) else files
        if not paths or (name not in many and len(paths) > 1):
            raise ConfigError(f"inputs.{name}: {len(paths)} files; {'at least ' if name in many else ''}one is needed")
        out |= numbered(name, paths) if name in many else {name: paths[0]}
    return WorkItem(_stem(out) if id_ is None else _own(id_), out)


def _expanded(inputs: Mapping[str, str | list[str]]) -> tuple[dict[str, str | list[str]], list[str]]:
    """Inputs with lists of files in the place of patterns, and the names of those that had one."""
    out: dict[str, str | list[str]] = {}
    patterns = []
    for name, given in inputs.items():
        found = [pairing.expand(p) for p in ([given] if isinstance(given, str) else given)]
        files = [f for matched in found for f in matched]
        is_pattern = files != ([given] if isinstance(given, str) else given)
        out[name] = files if is_pattern else given
        patterns += [f"inputs.{name}"] if is_pattern else []
    return out, patterns


def _paired(inputs: Mapping[str, str | list[str]], wanted: Mapping[str, str], id_: str | None) -> tuple[WorkItem, ...]:
    if id_ is not None:
        raise ConfigError(f"id {id_!r}: items that are paired are named after their files")
    given = inputs[PAIR_BY]
    keys = [k.strip() for k in (given.split(",") if isinstance(given, str) else given)]
    if not all(keys):
        raise ConfigError(f"inputs.{PAIR_BY}: {given!r}; header keys are needed, or {pairing.SKY!r}, or both")
    expanded, _ = _expanded({name: inputs[name] for name in wanted})
    files = {name: [f] if isinstance(f, str) else f for name, f in expanded.items()}
    leading = next(iter(wanted))
    items = (WorkItem(_named(name), paths) for name, paths in pairing.paired(files, leading, keys))
    return _unique(items, f"inputs.{leading}")


def _named(name: str) -> str:
    """An id from ``FILE`` or ``FILE[EXT]``: the detector behind the name of the file."""
    file, extension = re.fullmatch(r"(.*?)(?:\[([^\[\]]*)\])?", name, re.DOTALL).groups()  # type: ignore[union-attr]
    return _stem({"": file}) + ("" if extension is None else "_" + re.sub(r"[^A-Za-z0-9._+-]", "_", extension))


def _stem(paths: Mapping[str, str]) -> str:
    """An id made of the name of the first file."""
    file = split_extension(split_section(next(iter(paths.values()), ""))[0])[0]
    name = _SUFFIXES.sub("", Path(file).name)
    return re.sub(r"[^A-Za-z0-9._+-]", "_", name).lstrip("._+-")[:200] or "item"


def _own(id_: str) -> str:
    """A name that was given for the single item: of an option, not of an input."""
    try:
        return _safe(id_, "id")
    except InputError as e:
        raise ConfigError(str(e)) from None


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


READERS = {".ecsv": "ascii.ecsv", ".csv": "ascii.csv", ".parquet": "parquet", ".parq": "parquet"}
"""Suffixes of tables and astropy's names of their formats."""


def _rows(path: Path, wanted: Mapping[str, str], steps: Sequence[Step]) -> Iterable[WorkItem]:
    kind = READERS.get(path.suffix.lower())
    if kind is None:
        raise InputError(f"{path}: tables are .ecsv, .csv or .parquet, not {path.suffix!r}")
    if not path.exists():
        raise InputError(f"{path}: no such file")
    try:
        table = _read(path, kind)
    except Exception as e:  # astropy's readers raise many kinds for a malformed table
        why = (str(e).splitlines() or [repr(e)])[0]
        raise InputError(f"{path}: cannot be read as {kind.removeprefix('ascii.')}: {why}") from None
    for column in ("id", *wanted):
        if column not in table.colnames:
            raise InputError(f"{path}: no column {column!r}; it has {', '.join(table.colnames)}")
    if not len(table):
        raise InputError(f"{path}: no rows")
    folder = path.absolute().parent
    names_file = {c: _names_file(c, steps, f"{path}: column {c!r}") for c in table.colnames if "." in c}
    for n, row in enumerate(table, 1):
        empty = [c for c in ("id", *wanted) if _empty(row[c])]
        if empty:
            raise InputError(f"{path} row {n}: {empty[0]} is empty")
        paths = {c: str(folder / str(row[c])) for c in wanted}
        settings = {}
        for column, is_file in names_file.items():
            if not _empty(row[column]):
                value = value_of(row[column]) if kind == "ascii.csv" else _plain(row[column])
                settings[column] = str(folder / str(value)) if is_file else value
        yield WorkItem(_safe(str(row["id"]), f"{path} row {n}: id"), paths, settings)


def _read(path: Path, kind: str) -> Table:
    if kind == "parquet":  # astropy would need pandas for it
        import pyarrow.parquet as pq

        columns = pq.read_table(path).to_pydict()
        return Table({name: np.array(cells, dtype=object) for name, cells in columns.items()})
    as_text = {"converters": {"*": str}} if kind == "ascii.csv" else {}  # an id 007 is no number
    return Table.read(path, format=kind, **as_text)


def _plain(value: Any) -> Any:
    """A cell as Python has it; a list of numbers stays one."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _empty(value: Any) -> bool:
    return value is None or value is np.ma.masked or not str(value)


def _names_file(column: str, steps: Sequence[Step], where: str) -> bool:
    """Whether a column ``step.setting`` names files; they are relative to the table.

    Raises
    ------
    InputError
        The workflow has no such step, or its stage no such setting.
    """
    name, _, key = column.partition(".")
    hit = [s for s in steps if s.id == name] or [s for s in steps if s.stage.name == name]
    if not hit:
        raise InputError(f"{where}: no step {name!r}; the steps are {', '.join(s.id for s in steps)}")
    known = type(hit[0].stage.config).model_fields
    if key not in known:
        raise InputError(f"{where}: {hit[0].stage.name} has no setting {key!r}; it has {', '.join(known)}")
    return key in hit[0].stage.files
