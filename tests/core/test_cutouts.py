# SPDX-License-Identifier: BSD-3-Clause
"""Windows around positions, held against padding and slicing."""

import numpy as np
import pytest

from skydelta.kernels.backend import CPU
from skydelta.kernels.cutouts import Windows, cutouts


@pytest.mark.parametrize(("dtype", "outside"), [(np.float32, np.nan), (np.int32, -1), (bool, False), (np.float32, 0)])
def test_windows_equal_slices_of_the_padded_plane(rng, dtype, outside):
    plane = (rng.normal(0, 5, (23, 31))).astype(dtype)
    x, y = rng.integers(-9, 40, 60), rng.integers(-9, 32, 60)
    half, pad = 4, 20
    padded = np.pad(plane, pad, constant_values=outside)
    got = cutouts(plane, x, y, half, outside)
    assert got.dtype == plane.dtype
    for window, i, j in zip(got, x + pad, y + pad, strict=True):
        np.testing.assert_array_equal(window, padded[j - half : j + half + 1, i - half : i + half + 1])


def test_no_position_gives_no_window():
    assert cutouts(np.zeros((5, 6), np.float32), np.zeros(0), np.zeros(0), 2).shape == (0, 5, 5)


def test_windows_of_another_shape_are_refused():
    windows = Windows((5, 6), np.array([2]), np.array([2]), 1, CPU)
    with pytest.raises(ValueError, match="of a plane of"):
        windows.cut(np.zeros((6, 5), np.float32))
