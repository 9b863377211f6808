# SPDX-License-Identifier: BSD-3-Clause
"""background.cuh and stars.cuh on the host, under the sanitizers."""

from importlib import import_module

import numpy as np
import pytest
import support_host_cuda
from cases import light_peaks, neighbours, smooth_masked

from skydelta.kernels.core.tiles import TileGrid
from skydelta.kernels.cpu import reference_stars
from skydelta.kernels.stars import STILL

SELECT = """
  using namespace background;
  for (long long k = 0; k < n_ranks; ++k) {
    unsigned prefix = 0;
    int rank = ranks[k];
    for (int pass = 0; pass < DIGITS; ++pass) {
      int bins[BINS] = {};
      for (long long i = 0; i < n_values; ++i)
        if (agrees(key_of(values[i]), prefix, pass)) ++bins[digit(key_of(values[i]), pass)];
      int b = 0;
      while (rank >= bins[b]) rank -= bins[b++];
      prefix = prefix << 8 | (unsigned)b;
    }
    found[k] = value_of(prefix);
  }
"""


def test_radix_selection_gives_order_statistics(rng, tmp_path):
    values = np.concatenate(
        [rng.normal(0, 1, 200), rng.normal(3e4, 5, 50), rng.normal(-1e-30, 1e-31, 50), [0, 0, 1e38]]
    )
    values = rng.permutation(values).astype(np.float32)
    ranks = np.arange(len(values), dtype=np.int32)
    inputs = {"values": values, "ranks": ranks}
    made = support_host_cuda.run(tmp_path, "background.cuh", SELECT, inputs, {"found": ("float32", ranks.shape)})
    np.testing.assert_array_equal(made["found"], np.sort(values))


@pytest.mark.parametrize(("length", "size"), [(2048, 128), (511, 51), (1023, 100), (7, 16), (65000, 128)])
def test_cells_are_those_of_the_tile_grid(tmp_path, length, size):
    grid = TileGrid((length, 1), size)
    count = grid.counts[0]
    body = f"for (int i = 0; i <= {count}; ++i) edges[i] = background::edge(i, {length}, {count});"
    made = support_host_cuda.run(tmp_path, "background.cuh", body, {}, {"edges": ("int32", (count + 1,))})
    assert made["edges"].tolist() == grid.edges(0)


def windows(name, rng, shape):
    """Inputs of a kernel that looks at windows as the host program takes them."""
    case = import_module(f"cases.{name}").make(rng, shape)
    return case, {k: case[k] for k in ("image", "pixel")} | {"good": case["good"].astype(np.uint8)}


@pytest.mark.parametrize("shape", [(37, 53), (5, 9)])
def test_symmetric_filter(tmp_path, rng, shape):
    case = smooth_masked.make(rng, shape)
    (h, w), r = shape, len(case["taps"]) - 1
    body = f"""
    const stars::Plane plane = {{image, good, {h}, {w}}};
    for (int y = -{r}; y < {h} + {r}; ++y)
      for (int x = -{r}; x < {w} + {r}; ++x) halo[(y + {r}) * {w + 2 * r} + x + {r}] = plane.at(y, x);
    for (int i = 0; i < {h} * {w + 2 * r}; ++i)
      middle[i] = stars::filtered(halo + {r} * {w + 2 * r} + i, {w + 2 * r}, taps, {r});
    for (int y = 0; y < {h}; ++y)
      for (int x = 0; x < {w}; ++x)
        if (plane.usable(y, x)) out[y * {w} + x] = stars::filtered(middle + y * {w + 2 * r} + x + {r}, 1, taps, {r});
    """
    inputs = {"image": case["image"], "good": case["good"].astype(np.uint8), "taps": case["taps"]}
    sizes = {"halo": (h + 2 * r, w + 2 * r), "middle": (h, w + 2 * r), "out": shape}
    outputs = {name: (np.float32, size) for name, size in sizes.items()}
    got = support_host_cuda.run(tmp_path, "stars.cuh", body, inputs, outputs)
    np.testing.assert_array_equal(got["out"], reference_stars.smooth_masked(**case))


@pytest.mark.parametrize("shape", [(37, 53), (1, 40)])
def test_peaks_of_light(tmp_path, rng, shape):
    case = light_peaks.make(rng, shape)
    body = f"""
    for (int y = 0; y < {shape[0]}; ++y)
      for (int x = 0; x < {shape[1]}; ++x) {{
        const int p = y * {shape[1]} + x;
        const float s = stars::light_snr(light[p], good[p], variance[p] * {case["gain"]}f);
        if (s > limit[0] && stars::is_peak(light, {shape[0]}, {shape[1]}, y, x, {case["radius"]})) snr[p] = s;
      }}
    """
    inputs = {k: case[k] for k in ("light", "variance", "limit")} | {"good": case["good"].astype(np.uint8)}
    got = support_host_cuda.run(tmp_path, "stars.cuh", body, inputs, {"snr": (np.float32, shape)})
    pixel, snr, _ = reference_stars.light_peaks(**case)
    np.testing.assert_array_equal(np.flatnonzero(got["snr"]), pixel)
    np.testing.assert_array_equal(got["snr"].ravel()[pixel], snr)


def test_ranks_in_a_ring(tmp_path, rng):
    values = rng.integers(0, 9, 60).astype(np.float32)
    body = "for (int k = 0; k < n_values; ++k) rank[k] = stars::rank_of(values, n_values, k);"
    got = support_host_cuda.run(tmp_path, "stars.cuh", body, {"values": values}, {"rank": (np.int32, 60)})
    np.testing.assert_array_equal(got["rank"], np.argsort(np.argsort(values, kind="stable")))


@pytest.mark.parametrize("shape", [(64, 64), (7, 5)])
def test_shapes_of_stars(tmp_path, rng, shape):
    case, inputs = windows("star_shapes", rng, shape)
    n, half = len(case["pixel"]), case["half"]
    body = f"""
    const stars::Plane plane = {{image, good, {shape[0]}, {shape[1]}}};
    const int side = {2 * half + 1};
    const double variance = {case["sigma"]} * {case["sigma"]};
    for (int k = 0; k < {n}; ++k) {{
      const int y = pixel[k] / {shape[1]}, x = pixel[k] % {shape[1]};
      stars::Moments m;
      double cx = 0, cy = 0;
      bool arrived = false;
      for (int step = 0;; ++step) {{
        m.clear();
        for (int i = 0; i < side * side; ++i) {{
          const double dx = i % side - {half} - cx, dy = i / side - {half} - cy;
          m.add(plane.at(y + i / side - {half}, x + i % side - {half}), stars::window_weight(dx, variance), dx,
                stars::window_weight(dy, variance), dy);
        }}
        if (arrived || step == 10) break;
        arrived = stars::move_centre(m, {half}, {STILL}, &cx, &cy);
      }}
      measures[k] = cx;
      measures[{n} + k] = cy;
      stars::freed_shape(m, variance, HUGE_VAL, &measures[2 * {n} + k], &measures[3 * {n} + k]);
      clean[k] = stars::clean(plane, y, x, {case["core"]});
    }}
    """
    outputs = {"measures": (np.float64, (4, n)), "clean": (np.uint8, n)}
    got = support_host_cuda.run(tmp_path, "stars.cuh", body, inputs, outputs)
    want = reference_stars.star_shapes(**case)
    np.testing.assert_allclose(got["measures"], want[:4], rtol=1e-7, atol=1e-7)
    np.testing.assert_array_equal(got["clean"], want[4])


def test_soft_edge_of_an_aperture(tmp_path):
    r = np.linspace(0, 9, 91)
    body = "for (int i = 0; i < n_r; ++i) share[i] = stars::soft_edge(4.3, r[i]);"
    got = support_host_cuda.run(tmp_path, "stars.cuh", body, {"r": r}, {"share": (np.float64, r.shape)})
    np.testing.assert_allclose(got["share"], np.clip(4.8 - r, 0, 1), atol=1e-15)


@pytest.mark.parametrize("shape", [(37, 53), (90, 1)])
def test_neighbours_of_peaks(tmp_path, rng, shape):
    case = neighbours.make(rng, shape)
    body = f"""
    for (int k = 0; k < n_star; ++k)
      counts[k] = stars::count_neighbours(pixel, height, n_pixel, star[k], {shape[1]}, {case["radius"]}, 0.05);
    """
    inputs = {k: case[k] for k in ("pixel", "height", "star")}
    got = support_host_cuda.run(tmp_path, "stars.cuh", body, inputs, {"counts": (np.int32, case["star"].shape)})
    np.testing.assert_array_equal(got["counts"], reference_stars.neighbours(**case))
