# SPDX-License-Identifier: BSD-3-Clause
"""Work items: what goes through the workflow once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from astropy.table import Table

from skydelta.errors import ConfigError, InputError
from skydelta.io.fits.reader import split_extension

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*\Z")


@dataclass(frozen=True)
class WorkItem:
    """One science/reference pair (or whatever the workflow's inputs are).

    Attributes
    ----------
    id : str
        Unique in the run, safe as the name of a folder.
    inputs : dict
        Name to path, absolute; ``FILE[EXT]`` allowed.
    """

    id: str
    inputs: Mapping[str, str]

    def files(self) -> dict[str, Path]:
        """Name to the file itself, without an HDU."""
        return {name: Path(split_extension(path)[0]) for name, path in self.inputs.items()}


def items_of(inputs: Mapping[str, Path], id_: str | None = None) -> tuple[WorkItem, ...]:
    """Items of a workflow's ``[inputs]``: one pair, or the rows of a table.

    Parameters
    ----------
    id_ : str, optional
        Of the single item; else the stem of its first input.

    Raises
    ------
    ConfigError
        No inputs, or a table together with single files.
    InputError
        A table that cannot be read, lacks columns, or whose ids are not unique or not safe as folder names.
    """
    if not inputs:
        raise ConfigError("inputs: none given; set science and reference, or table")
    if "table" in inputs:
        if len(inputs) > 1:
            raise ConfigError(f"inputs: table excludes {', '.join(n for n in inputs if n != 'table')}")
        return _from_table(inputs["table"])
    name = id_ or re.sub(
        r"(\.fits?|\.fz|\.gz|\.bz2|\.xz|\.Z)+\Z", "", split_extension(Path(next(iter(inputs.values()))).name)[0]
    )
    return (
        WorkItem(
            _checked(name if id_ else re.sub(r"[^A-Za-z0-9._+-]", "_", name).lstrip("._+-") or "item", "id"),
            {k: str(v) for k, v in inputs.items()},
        ),
    )


def _checked(name: str, where: str) -> str:
    if not _SAFE.match(name) or len(name) > 200:
        raise InputError(f"{where}: {name!r} cannot name a folder; letters, digits and . _ + - are allowed")
    return name


def _from_table(path: Path) -> tuple[WorkItem, ...]:
    kind = {".ecsv": "ascii.ecsv", ".csv": "ascii.csv"}.get(path.suffix.lower())
    if kind is None:
        raise InputError(f"{path}: tables are .ecsv or .csv, not {path.suffix!r}")
    try:
        table = Table.read(path, format=kind)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except Exception as e:  # astropy's readers raise many kinds for a malformed table
        raise InputError(f"{path}: cannot be read as {kind.split('.')[1]}: {str(e).splitlines()[0]}") from None
    columns = [c for c in table.colnames if c != "id"]
    if "id" not in table.colnames or not columns:
        raise InputError(f"{path}: columns are {', '.join(table.colnames)}; id and at least one input are needed")
    items, seen = [], set()
    for n, row in enumerate(table, 1):
        item = _checked(str(row["id"]), f"{path} row {n}: id")
        if item in seen:
            raise InputError(f"{path} row {n}: id {item!r} occurs twice")
        seen.add(item)
        items.append(WorkItem(item, {c: str(path.absolute().parent / str(row[c])) for c in columns}))
    if not items:
        raise InputError(f"{path}: no rows")
    return tuple(items)
