# SPDX-License-Identifier: BSD-3-Clause
"""Items with several files of one name: rows of a table that have the same id, or a whole list.

The inputs of such an item are ``images[0]``, ``images[1]`` ..., so that digests, sizes and receipts see every file; a
step that reads ``images`` gets the list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from skydelta.errors import InputError

_NUMBERED = re.compile(r"(.+)\[(\d+)\]\Z")


def numbered(name: str, paths: Iterable[str]) -> dict[str, str]:
    """The inputs of an item for a list of files."""
    return {f"{name}[{k}]": path for k, path in enumerate(paths)}


def gathered(inputs: Mapping[str, str]) -> dict[str, Any]:
    """Inputs by name as steps take them: a path, or the list of those that were numbered, in order."""
    out: dict[str, Any] = {}
    for name, path in inputs.items():
        found = _NUMBERED.match(name)
        if found is None:
            out[name] = path
        else:
            out.setdefault(found[1], []).append(path)
    return out


def grouped(
    rows: Iterable[tuple[str, Mapping[str, str], Mapping[str, Any]]], many: Iterable[str], where: str
) -> dict[str, tuple[dict[str, str], Mapping[str, Any]]]:
    """Rows with one id as one item each: id to inputs and settings.

    Parameters
    ----------
    rows : iterable of (id, paths by name, settings)
    many : iterable of str
        Names that become lists.
    where : str
        The table, for messages.

    Raises
    ------
    InputError
        Rows of one id that differ in a file or setting there can be only one of.
    """
    lists: dict[str, dict[str, list[str]]] = {}
    rest: dict[str, tuple[dict[str, str], Mapping[str, Any]]] = {}
    for name, paths, settings in rows:
        single = {n: p for n, p in paths.items() if n not in many}
        if rest.setdefault(name, (single, settings)) != (single, settings):
            raise InputError(f"{where}: rows with id {name!r} differ in more than {', '.join(sorted(many))}")
        files = lists.setdefault(name, {n: [] for n in paths if n in many})
        for n, collected in files.items():
            collected.append(paths[n])
    out = {}
    for name, files in lists.items():
        inputs = dict(rest[name][0])
        for n, collected in files.items():
            inputs |= numbered(n, collected)
        out[name] = inputs, rest[name][1]
    return out
