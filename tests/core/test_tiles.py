# SPDX-License-Identifier: BSD-3-Clause
"""Tiles cover the image once, their halo is the image around them, and their inner slices find the core again."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from skydelta.kernels.core.tiles import Box, TileGrid

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
