# SPDX-License-Identifier: BSD-3-Clause
"""All bytes of an HDU looked at: its checksums, and every tile decoded."""

from __future__ import annotations

import math

import numpy as np

from skydelta.errors import InputError
from skydelta.io.fits import tiled
from skydelta.io.fits.checksum import compared, recorded, tally_of, verdict
from skydelta.io.fits.layout import Hdu
from skydelta.io.fits.pixels import scaling
from skydelta.io.storage import Content
from skydelta.kernels.decode import decode

LIMIT = 1 << 24
"""Pixels that are decoded at a time."""

SHOWN = 3
"""Faults of tiles that are told, of as many tiles as there are."""

MANY = 64
"""Undecodable tiles after which those beside one that holds no data are no longer looked for."""

_Part = tuple[tuple[int, int], ...]


def verify(hdu: Hdu, content: Content) -> tuple[str, list[str]]:
    """Read an HDU whole, sum it and decode its tiles, in bounded memory.

    Returns
    -------
    sums : {"", "right", "wrong"}
        What its checksums say; empty when it has none, or where the file ends before it does.
    problems : list of str
        What is wrong with it, each in a line without file and HDU.
    """
    if hdu.fault:
        return "", [hdu.fault]
    tally = tally_of(hdu, content)
    problems = []
    if hdu.kind == "compressed image" and hdu.shape and 0 not in hdu.shape:
        problems += _tiles(hdu, tally)
    try:
        if not recorded(hdu):
            tally.total()
            return "", problems
        said, numbers = verdict(hdu, tally)
    except InputError as e:
        return "", [*problems, str(e)]
    if said:
        return "wrong", [*problems, said]
    return ("right" if compared(hdu, numbers) else ""), problems


def _tiles(hdu: Hdu, content: Content) -> list[str]:
    """One line that counts the tiles that cannot be decoded, or says why none can."""
    try:
        found = undecodable(hdu, content)
    except InputError as e:
        return [str(e)]
    except MemoryError:
        return [f"a tile of shape {hdu.shape} does not fit in memory"]
    if not found:
        return []
    why = list(dict.fromkeys(found[tile] for tile in sorted(found)))
    more = "; ..." if len(why) > SHOWN else ""
    total = len(tiled.grid_of(hdu))
    return [f"{len(found)} of {total} tiles cannot be decoded ({hdu.compression}): {'; '.join(why[:SHOWN])}{more}"]


def undecodable(hdu: Hdu, content: Content) -> dict[int, str]:
    """Tiles of a compressed image that cannot be decoded, and why.

    Raises
    ------
    InputError
        Cards or the structure of the table: no tile can be decoded.
    """
    form, _ = scaling(hdu)
    grid = tiled.grid_of(hdu)
    found: dict[int, str] = {}
    todo: list[_Part] = [tuple((0, n) for n in grid.counts)]
    while todo:
        part = todo.pop()
        box = tuple(slice(a * t, min(b * t, n)) for (a, b), t, n in zip(part, grid.tile, grid.shape, strict=True))
        single = all(b - a == 1 for a, b in part)
        if math.prod(s.stop - s.start for s in box) > LIMIT and not single:
            todo += _halves(part)
            continue
        try:
            found |= _faults(hdu, content, form.stored, box)
        except InputError as e:
            bad = e.numbers.get("tiles")
            if not isinstance(bad, list):
                raise
            here = set(grid.touched(box).tolist())
            if not single and set(bad) < here and len(found) < MANY:
                todo += _halves(part)  # the other tiles may be damaged too
                continue
            found |= dict.fromkeys(bad, str(e))
            if not set(bad) <= here:
                break  # descriptors: every part would say the same
    return found


def _halves(part: _Part) -> list[_Part]:
    """Tiles in two parts, along the axis that has most of them."""
    axis = int(np.argmax([b - a for a, b in part]))
    a, b = part[axis]
    middle = (a + b) // 2
    return [(*part[:axis], half, *part[axis + 1 :]) for half in ((a, middle), (middle, b))]


def _faults(hdu: Hdu, content: Content, stored: str, box: tuple[slice, ...]) -> dict[int, str]:
    """Of the tiles that a box touches."""
    plan = tiled.plan(hdu, content, stored, box)
    out = np.empty(tuple(s.stop - s.start for s in box), np.float32)
    with plan.heap:
        done = decode(
            out, plan.heap.bytes, plan.tiles, plan.form, corner=tuple(s.start for s in box), ready=plan.heap.wait
        )
    bad = np.flatnonzero(done.status)
    return {int(plan.rows[i]): tiled.why(plan, int(i), int(done.status[i])) for i in bad}
