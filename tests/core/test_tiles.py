# SPDX-License-Identifier: BSD-3-Clause
"""Tiles cover the image once, their halo is the image around them, and their inner slices find the core again."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from skydelta.kernels.core.tiles import Blocks, Box, TileGrid

sides = st.integers(1, 90)


@given(height=sides, width=sides, size=st.integers(1, 40), halo=st.integers(0, 12))
def test_tiles_cover_once_and_halos_match(height, width, size, halo):
    grid = TileGrid((height, width), size, halo)
    image = np.arange(height * width).reshape(height, width)
    count = np.zeros(image.shape, int)
    tiles = list(grid)
    assert len(tiles) == len(grid)
    for tile in tiles:
        count[tile.core.slices] += 1
        assert max(tile.core.shape) <= size
        cut = image[tile.halo.slices]
        assert cut.shape == tile.halo.shape
        np.testing.assert_array_equal(cut[tile.inner], image[tile.core.slices])
        assert tile.core.y0 - tile.halo.y0 == min(tile.core.y0, halo)
        assert tile.halo.x1 - tile.core.x1 == min(width - tile.core.x1, halo)
    assert (count == 1).all()
    np.testing.assert_array_equal(np.transpose(grid.centres()), [tile.core.centre for tile in tiles])


def test_box_centre_is_in_pixel_centres():
    assert Box(0, 1, 0, 1).centre == (0.0, 0.0)
    assert Box(10, 20, 4, 6).centre == (4.5, 14.5)


@given(
    height=sides, width=sides, tile=st.integers(1, 40), counts=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    pad=st.integers(0, 12), beyond=st.integers(0, 9),
)  # fmt: skip
def test_blocks_cover_once_and_hold_the_windows_of_their_tiles(height, width, tile, counts, pad, beyond):
    grid = TileGrid((height, width), tile)
    size = tile + 2 * pad + beyond
    blocks = Blocks(grid, counts, pad, size)
    count, seen = np.zeros(grid.shape, int), np.zeros(grid.counts, int)
    cores = {(t.row, t.column): t.core for t in grid}
    for block in blocks:
        count[block.core.slices] += 1
        rows, columns = blocks.members(block.row, block.column)
        seen[rows, columns] += 1
        ey, ex = blocks.edges(block.row, block.column)
        members = [(r, c) for r in range(grid.counts[0])[rows] for c in range(grid.counts[1])[columns]]
        assert [(cores[m].y0, cores[m].x0) for m in members] == [(y, x) for y in ey[:-1] for x in ex[:-1]]
        for core in (cores[m] for m in members):
            window = Box(core.y0 - pad, core.y0 - pad + size, core.x0 - pad, core.x0 - pad + size).clip(grid.shape)
            halo = block.halo
            assert halo.y0 <= window.y0 <= window.y1 <= halo.y1
            assert halo.x0 <= window.x0 <= window.x1 <= halo.x1
    assert (count == 1).all()
    assert (seen == 1).all()
