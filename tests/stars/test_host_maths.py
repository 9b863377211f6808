# SPDX-License-Identifier: BSD-3-Clause
"""background.cuh and stars.cuh on the host, under the sanitizers."""

from importlib import import_module

import numpy as np
import pytest
import support_host_cuda
from cases import blank_sky, block_scores, light_peaks, neighbours, robust_levels, smooth_masked

from skydelta.kernels.background import CLIP, ROUNDS, SIGMA
from skydelta.kernels.core.tiles import TileGrid
from skydelta.kernels.cpu import reference_background, reference_stars
from skydelta.kernels.stars import STILL

HEADER = "background.cuh"


def wild(rng):
    """Values of very different sizes, equal ones among them."""
    parts = [rng.normal(0, 1, 200), rng.normal(3e4, 5, 50), rng.normal(-1e-30, 1e-31, 50), [0, 0, -0.0, 1e38, -3e38]]
    return rng.permutation(np.concatenate(parts)).astype(np.float32)


@pytest.mark.parametrize(("centre", "scale"), [(0, 3), (3e4, 12), (0, 0), (-2e38, 3e38), (1e-30, 1e-31)])
@pytest.mark.parametrize("buckets", [128, 4096])
def test_buckets_follow_the_order_of_the_values(tmp_path, rng, centre, scale, buckets):
    values = np.sort(
        np.concatenate([wild(rng), np.clip(centre + np.linspace(-2, 2, 300) * scale, -3e38, 3e38)])
    ).astype(np.float32)
    body = f"""
    const background::Buckets bucket((float){centre}, (float){scale}, {buckets});
    for (long long i = 0; i < n_values; ++i) of[i] = bucket.of(values[i]);
    """
    found = support_host_cuda.run(tmp_path, HEADER, body, {"values": values}, {"of": (np.int32, values.shape)})["of"]
    assert (np.diff(found) >= 0).all()
    assert found.min() >= 0 and found.max() < buckets
    if scale == 3:
        assert len(np.unique(found)) > min(buckets // 8, 300)


SORT = """
  struct Nothing { void operator()() const {} };
  using namespace background;
  std::vector<unsigned> keys(n_values);
  for (long long i = 0; i < n_values; ++i) keys[i] = key_of(values[i]);
  insertion_sort(keys.data(), (int)n_values);
  for (long long i = 0; i < n_values; ++i) one[i] = value_of(keys[i]);
  for (long long i = 0; i < n_values; ++i) keys[i] = key_of(values[i]);
  network_sort(keys.data(), (int)n_values, 0, 1, Nothing());
  for (long long i = 0; i < n_values; ++i) two[i] = value_of(keys[i]);
"""


@pytest.mark.parametrize("count", [1, 2, 3, 31, 64, 305])
def test_sorts(tmp_path, rng, count):
    values = wild(rng)[:count]
    outputs = {"one": (np.float32, count), "two": (np.float32, count)}
    made = support_host_cuda.run(tmp_path, HEADER, SORT, {"values": values}, outputs)
    np.testing.assert_array_equal(made["one"], np.sort(values))
    np.testing.assert_array_equal(made["two"], np.sort(values))


CLIPPED = """
  std::vector<unsigned> keys(n_values);
  for (long long r = 0, at = 0; r < n_sizes; at += sizes[r++]) {
    for (int i = 0; i < sizes[r]; ++i) keys[i] = background::key_of(values[at + i]);
    const background::Statistics s = background::clipped(keys.data(), sizes[r], ROUNDS, CLIPf);
    median[r] = s.median;
    deviation[r] = s.deviation;
    count[r] = s.count;
  }
"""


def test_clipping(tmp_path, rng):
    cells = [rng.normal(100, 3, n) for n in (1, 2, 3, 8, 501, 502, 1000)]
    cells += [np.round(rng.normal(0, 2, 300)), np.full(16, 7.5), rng.exponential(5, 400), np.r_[np.zeros(9), 1:9]]
    cells += [np.r_[rng.normal(0, 1, 300), rng.uniform(0, 1e4, 200)], [-3e38, 0, 1, 3e38]]
    cells = [np.sort(np.asarray(c)).astype(np.float32) for c in cells]
    sizes = np.array([len(c) for c in cells], np.int32)
    body = CLIPPED.replace("ROUNDS", str(ROUNDS)).replace("CLIPf", f"{float(CLIP)!r}f")
    outputs = {
        "median": (np.float32, len(cells)),
        "deviation": (np.float32, len(cells)),
        "count": (np.int32, len(cells)),
    }
    made = support_host_cuda.run(tmp_path, HEADER, body, {"values": np.concatenate(cells), "sizes": sizes}, outputs)
    for i, cell in enumerate(cells):
        size = max(16, len(cell))  # of a cell of one row
        with np.errstate(over="ignore"):
            want = reference_background.cell_statistics(cell[None], np.ones((1, len(cell)), bool), size)
        got = made["median"][i], SIGMA * made["deviation"][i], made["count"][i]
        assert got == tuple(a[0, 0] for a in want)


@pytest.mark.parametrize(("length", "size"), [(2048, 128), (511, 51), (1023, 100), (7, 16), (65000, 128)])
def test_cells_are_those_of_the_tile_grid(tmp_path, length, size):
    grid = TileGrid((length, 1), size)
    count = grid.counts[0]
    body = f"for (int i = 0; i <= {count}; ++i) edges[i] = background::edge(i, {length}, {count});"
    made = support_host_cuda.run(tmp_path, HEADER, body, {}, {"edges": ("int32", (count + 1,))})
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


@pytest.mark.parametrize("shape", [(64, 0), (101, 7), (1, 3), (2, 0), (0, 5), (3, 1), (997, 1)])
def test_levels_of_sorted_numbers(tmp_path, rng, shape):
    case = robust_levels.make(rng, shape)
    body = f"stars::robust_levels(ascending, n_ascending, {case['times']}f, {case['least']}f, out);"
    inputs = {"ascending": case["ascending"]}
    got = support_host_cuda.run(tmp_path, "stars.cuh", body, inputs, {"out": (np.float32, 3)})
    np.testing.assert_allclose(got["out"], reference_stars.robust_levels(**case), rtol=2e-7)


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


@pytest.mark.parametrize("shape", [(37, 53), (5, 40)])
def test_blocks(tmp_path, rng, shape):
    case, other = block_scores.make(rng, shape), blank_sky.make(rng, shape)
    (h, w), (ny, nx) = (n // 4 for n in shape), case["sigma"].shape
    body = f"""
    for (int y = 0; y < {h}; ++y)
      for (int x = 0; x < {w}; ++x) {{
        out[y * {w} + x] = background::block_score(image, good, {shape[1]}, y, x, {h}, {w}, sigma, {ny}, {nx});
        found[y * {w} + x] = background::stands_out(score, {h}, {w}, y, x, {other["limit"]}f);
      }}
    """
    inputs = {**case, "good": case["good"].astype(np.uint8), "score": other["score"]}
    outputs = {"out": (np.float32, (h, w)), "found": (np.int32, (h, w))}
    made = support_host_cuda.run(tmp_path, HEADER, body, inputs, outputs)
    np.testing.assert_allclose(made["out"], reference_background.block_scores(**case), rtol=1e-5, atol=1e-5)
    every = np.ones(shape, bool)
    blank = reference_background.blank_sky(every, other["score"], other["limit"])
    np.testing.assert_array_equal(made["found"] == 0, blank[: 4 * h : 4, : 4 * w : 4])
