# SPDX-License-Identifier: BSD-3-Clause
"""The table of tiles that is sent to a device, against the same in NumPy and against where pixels really lie."""

import itertools

import numpy as np
import pytest
from support_tiles import damaged_rows, table

from skydelta.kernels.cpu import tile_table
from skydelta.kernels.cuda.decode import TILE
from skydelta.kernels.decode import RAW, RICE, SIZE


def expected(tiles, corner, shape):
    """Column by column; ``first`` and ``inside`` from the indices of the pixels in the window."""
    same = ("offset", "length", "blank", "scale", "zero", "dither", "has_blank")
    want = {name: getattr(tiles, name) for name in same}
    want["pixels"] = np.prod(tiles.extent, axis=1)
    raw = tiles.codec == RAW
    each = tiles.length // want["pixels"]
    sound = np.isin(each, (1, 2, 4, 8)) & (each * want["pixels"] == tiles.length)
    want["layout"], want["width"] = raw.astype(int), np.where(raw & sound, each, 0)
    want["fault"] = np.where(raw & ~sound, SIZE, 0)
    first, inside = [], []
    for origin, extent in zip(tiles.origin - np.array(corner), tiles.extent, strict=True):
        axes = [range(o, o + e) for o, e in zip(origin.tolist(), extent.tolist(), strict=True)]
        within = all(a.start >= 0 and a.stop <= n for a, n in zip(axes, shape, strict=True))
        places = [np.ravel_multi_index(i, shape) for i in itertools.product(*axes)] if within else []
        inside.append(within and places == list(range(places[0], places[0] + len(places))))
        first.append(places[0] if inside[-1] else 0)
    return {**want, "first": first, "inside": inside, "unpacked": 0, "unused": 0}


@pytest.mark.parametrize("tile", [(1, 23), (7, 23), (3, 4), (20, 1), (1, 1)])
@pytest.mark.parametrize("window", [((0, 0), (20, 23)), ((5, 2), (9, 14)), ((3, 0), (40, 23))])
def test_every_column(rng, tile, window):
    _, tiles, _ = table(rng, "int16", (20, 23), tile)
    made = np.full(len(tiles), 0xFF, np.uint8).repeat(TILE.itemsize).view(TILE)  # every byte is written
    order, inside = tile_table.fill(made, tiles, *window)
    want = expected(tiles, *window)
    for name in TILE.names:
        np.testing.assert_array_equal(made[name], np.broadcast_to(np.array(want[name]).T, made[name].T.shape).T, name)
    assert inside == all(want["inside"])
    rice = tiles.codec == RICE
    assert order.tolist() == [*np.flatnonzero(rice), *np.flatnonzero(~rice)]


def test_lengths_and_places_that_are_damage(rng):
    _, tiles, _ = damaged_rows(rng, 400, 30)
    made = np.empty(len(tiles), TILE)
    tile_table.fill(made, tiles, (0, 0), (400, 30))
    want = expected(tiles, (0, 0), (400, 30))
    for name in ("offset", "length", "width", "fault", "first", "inside"):
        np.testing.assert_array_equal(made[name], want[name], name)
