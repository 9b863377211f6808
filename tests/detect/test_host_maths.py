# SPDX-License-Identifier: BSD-3-Clause
"""Components against scipy's labels, and detect.cuh on the host under the sanitizers."""

import numpy as np
import pytest
import support_host_cuda
from scipy import ndimage

from skydelta.kernels.cpu import reference_detect
from skydelta.kernels.detect import components


@pytest.mark.parametrize("threshold", [0.2, 0.8, 2.0])
def test_components_are_those_of_scipy(rng, threshold):
    image = rng.normal(0, 1, (120, 90)).astype(np.float32)
    image[rng.random(image.shape) < 0.02] = np.nan
    labels, area = components(image, threshold)
    expected = 0
    for sign in (1, -1):
        want, n = ndimage.label(np.nan_to_num(sign * image) > np.float32(threshold), np.ones((3, 3)))
        expected += n
        own = np.where(np.nan_to_num(sign * image) > 0, labels, 0)
        pairs = np.unique(np.stack([want.ravel(), own.ravel()], 1), axis=0)
        assert len(pairs) == n + 1  # one label of ours for each of scipy's, background to background
    assert len(area) == expected == labels.max()
    np.testing.assert_array_equal(area, np.bincount(labels.ravel())[1:])
    _, first = np.unique(labels[labels > 0], return_index=True)
    assert (np.diff(first) > 0).all()  # numbered in raster order


PEAKS = """
  for (int y = 0; y < {h}; ++y)
    for (int x = 0; x < {w}; ++x) {{
      const int p = y * {w} + x;
      flags[p] = peak_sign(image, {h}, {w}, y, x, {t}f);
      parent[p] = p + 1;
    }}
  for (int y = 0; y < {h}; ++y)
    for (int x = 0; x < {w}; ++x)
      for (int k = 0; k < 4; ++k) {{
        const int j = k == 0 ? y : y - 1, i = k == 0 ? x - 1 : x + k - 2, p = y * {w} + x;
        if (j < 0 || i < 0 || i >= {w} || !joined(image[p], image[j * {w} + i], {t}f)) continue;
        const int a = find_root(parent, p), b = find_root(parent, j * {w} + i);
        parent[maximum(a, b)] = minimum(a, b) + 1;
      }}
  for (int p = 0; p < n_image; ++p) root[p] = find_root(parent, p);
"""


@pytest.mark.parametrize("shape", [(37, 53), (1, 40), (5, 1)])
def test_cuda_maths_on_the_host(tmp_path, rng, shape):
    image = rng.normal(0, 1, shape).astype(np.float32)
    image[rng.random(shape) < 0.05] = np.nan
    body = PEAKS.format(h=shape[0], w=shape[1], t=0.5)
    outputs = {"flags": (np.int32, shape), "parent": (np.int32, shape), "root": (np.int32, shape)}
    got = support_host_cuda.run(tmp_path, "detect.cuh", body, {"image": image}, outputs)
    index, value = reference_detect.extrema(image, 0.5)
    np.testing.assert_array_equal(np.flatnonzero(got["flags"]), index)
    np.testing.assert_array_equal(got["flags"].ravel()[index], np.sign(value))
    labels, _ = reference_detect.components(image, 0.5)
    inside = labels > 0
    roots, number = np.unique(got["root"][inside], return_inverse=True)
    np.testing.assert_array_equal(number + 1, labels[inside])
    assert len(roots) == labels.max()


def test_packed_peaks(tmp_path, rng):
    image = rng.normal(0, 9, 70).astype(np.float32)
    body = "for (long long i = 0; i < n_image; ++i) both[i] = (long long)packed((int)i, image[i]);"
    got = support_host_cuda.run(tmp_path, "detect.cuh", body, {"image": image}, {"both": (np.int64, image.shape)})
    np.testing.assert_array_equal(got["both"] >> 32, np.arange(len(image)))
    np.testing.assert_array_equal(got["both"].astype(np.uint32).view(np.float32), image)
