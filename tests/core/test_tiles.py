# SPDX-License-Identifier: BSD-3-Clause
"""Tiles cover the image once, their halo is the image around them, and their inner slices find the core again."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from skydelta.kernels.core.tiles import LEAST, Blocks, Box, TileGrid

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
        rows, columns = blocks.members(block)
        seen[rows, columns] += 1
        ey, ex = blocks.edges(block)
        members = [(r, c) for r in range(grid.counts[0])[rows] for c in range(grid.counts[1])[columns]]
        assert [(cores[m].y0, cores[m].x0) for m in members] == [(y, x) for y in ey[:-1] for x in ex[:-1]]
        for core in (cores[m] for m in members):
            window = Box(core.y0 - pad, core.y0 - pad + size, core.x0 - pad, core.x0 - pad + size).clip(grid.shape)
            halo = block.halo
            assert halo.y0 <= window.y0 <= window.y1 <= halo.y1
            assert halo.x0 <= window.x0 <= window.x1 <= halo.x1
    assert (count == 1).all()
    assert (seen == 1).all()


def pieces(cover, tile):
    """What is left of a tile that is split as often as it can be."""
    parts = cover.split(tile)
    return [p for part in parts for p in pieces(cover, part)] if parts else [tile]


@settings(max_examples=25)
@given(height=st.integers(1, 200), width=st.integers(1, 200), size=st.integers(40, 200), halo=st.integers(0, 12))
def test_pieces_of_a_tile_are_the_tile(height, width, size, halo):
    grid = TileGrid((height, width), size, halo)
    image = np.arange(height * width).reshape(height, width)
    for tile in grid:
        count = np.zeros(image.shape, int)
        for piece in pieces(grid, tile):
            count[piece.core.slices] += 1
            assert max(piece.core.shape) < 2 * LEAST
            assert min(piece.core.shape) > 0
            assert (piece.row, piece.column) == (tile.row, tile.column)
            np.testing.assert_array_equal(image[piece.halo.slices][piece.inner], image[piece.core.slices])
            assert piece.halo == piece.core.grow(halo).clip(grid.shape)
        expected = np.zeros(image.shape, int)
        expected[tile.core.slices] = 1
        np.testing.assert_array_equal(count, expected)


@given(height=sides, width=sides, tile=st.integers(1, 40), counts=st.tuples(st.integers(1, 4), st.integers(1, 4)))
def test_pieces_of_a_block_are_its_tiles(height, width, tile, counts):
    grid = TileGrid((height, width), tile)
    blocks = Blocks(grid, counts, 3, tile + 6)
    alone = {(b.core, b.halo) for b in Blocks(grid, (1, 1), 3, tile + 6)}
    found = [(p.core, p.halo) for block in blocks for p in pieces(blocks, block)]
    assert len(found) == len(alone)
    assert set(found) == alone
