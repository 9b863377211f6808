# SPDX-License-Identifier: BSD-3-Clause
"""resample.cuh, overlap.cuh and maps.cuh on the host, under warnings and sanitizers, against the references.

The kernels around it run whole in ``tests/conformance/test_host_device.py``.
"""

from functools import partial

import numpy as np
import pytest
import support_host_cuda
from cases import check_cells as cells_case
from cases import resample as gather_case
from cases import resample_exact as exact_case
from cases import resample_prepare as prepare_case
from cases import tangent_points as points_case

from skydelta.kernels.cpu import reference_maps, reference_overlap, reference_resample
from skydelta.kernels.maps import CHECK, TANGENT
from skydelta.kernels.resample import ADAPTIVE, DEGREES, DRIZZLE, EXACT, METHODS, PREPARE, RESAMPLE, TAPS

GATHER = """
  using namespace resample;
  const int H = {H}, W = {W};
  const Map map{{nodes, cells, exact, {ny}, {nx}, {spacing}, 1.0 / {spacing}}};
  const auto all = [&](auto method, const Source& in) {{
    constexpr int METHOD = decltype(method)::value;
    for (int y = 0; y < H; ++y)
      for (int x = 0; x < W; ++x) {{
        const int i = y / map.spacing, j = x / map.spacing;
        double row[4][4];
        for (int k = 0; k < 4; ++k)
          for (int term = 0; term < 4; ++term) row[k][term] = collapse(map, i, j, y - i * map.spacing, k, term);
        const Position at = position(map, cells[i * map.nx + j], row, y, Column<4>(map, x));
        const Pixel out = gather<METHOD>(in, at);
        const int p = (METHOD * H + y) * W + x;
        image[p] = out.image;
        variance_out[p] = out.variance;
        mask[p] = out.mask;
        weight[p] = out.weight;
      }}
  }};
  {calls}
"""

CALL = """
  all(std::integral_constant<int, {method}>(), Source{{values{degree}, variance, work,
      (const unsigned*)touched{taps}, {h}, {w}, {grow}, {no_data}, {edge}, {interp}}});
"""

# One window a pixel and axis: what a thread block shares among its threads.
PREPARE_BODY = """
  using namespace resample;
  const Plane in{{image, variance, mask, {h}, {w}, {fill}, {bad}, {no_data}}};
  for (int y = 0; y < in.h; ++y)
    for (int x = 0; x < in.w; ++x) {{
      const int p = y * in.w + x;
      work[p] = in.classify(p);
      values0[p] = image[p];
      if (work[p] >= 0) continue;
      double total = 0.0, count = 0.0;
      for (int k = 0; k < 64; ++k) in.near(y, x, k, total, count);
      for (int d = FILL_RADIUS + 1; count == 0.0 && in.within(d); d *= 2)
        for (int k = 0; k < 64; ++k) in.far(y, x, k, d, total, count);
      values0[p] = count > 0.0 ? (float)(total / count) : 0.0f;
    }}
  const auto filter = [&](auto degree, float* out) {{
    constexpr int D = decltype(degree)::value, N = 2 * HALO<D> + 1;
    for (int y = 0; y < in.h; ++y)
      for (int x = 0; x < in.w; ++x) {{
        float column[N], line[N];
        for (int k = 0; k < N; ++k) {{
          for (int l = 0; l < N; ++l)
            line[l] = values0[mirror(y + k - HALO<D>, in.h) * in.w + mirror(x + l - HALO<D>, in.w)];
          filter_window<D>(line);
          column[k] = line[HALO<D>];
        }}
        filter_window<D>(column);
        out[y * in.w + x] = column[HALO<D>];
      }}
  }};
  filter(std::integral_constant<int, 3>(), values3);
  filter(std::integral_constant<int, 5>(), values5);
"""


def test_gather(tmp_path, rng):
    case = gather_case.make(rng, (48, 90)) | {"flux": True}
    planes = gather_case.planes(rng, case["values"].shape)
    bits = case["bits"]
    options = {"fill": bits.fill, "bad": bits.bad, "no_data": bits.no_data}
    ready = {d: reference_resample.prepare(*planes, degree=d, **options) for d in set(DEGREES)}
    work = ready[0][1]
    arrays = {k: case[k] for k in ("nodes", "cells", "exact")} | {"variance": planes[1], "work": work}
    arrays |= {f"values{d}": values for d, (values, _) in ready.items()}
    for size in set(TAPS):
        padded = np.pad(work != 0, ((0, size), (0, size)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size))
        any_bit = windows.any(axis=(2, 3))[: work.shape[0], : work.shape[1]]
        words = np.pad(any_bit, ((0, 0), (0, -work.shape[1] % 32)))  # whole ones, the first pixel in the lowest bit
        arrays[f"touched{size}"] = np.packbits(words, axis=1, bitorder="little").view("<i4")
    (h, w), (height, width), (ny, nx) = work.shape, case["shape"], case["cells"].shape
    calls = "".join(
        CALL.format(method=m, degree=DEGREES[m], taps=TAPS[m], h=h, w=w, **bits._asdict()) for m in range(len(METHODS))
    )
    body = GATHER.format(H=height, W=width, ny=ny, nx=nx, spacing=case["exact"].shape[2], calls=calls)
    shape = (len(METHODS), height, width)
    outputs = dict.fromkeys(("image", "variance_out", "weight"), (np.float32, shape)) | {"mask": (np.int32, shape)}
    got = support_host_cuda.run(tmp_path, "resample.cuh", body, arrays, outputs)
    close = {"rtol": RESAMPLE.tolerance.relative, "atol": RESAMPLE.tolerance.absolute}
    for m, name in enumerate(METHODS):
        given = case | {"values": ready[DEGREES[m]][0], "work": work, "variance": planes[1], "method": m}
        image, variance, mask, weight = reference_resample.gather(**given)
        np.testing.assert_array_equal(got["mask"][m], mask, err_msg=name)
        np.testing.assert_allclose(got["image"][m], image, err_msg=name, **close)
        np.testing.assert_allclose(got["weight"][m], weight, err_msg=name, **close)
        np.testing.assert_allclose(got["variance_out"][m], variance, err_msg=name, **close)


@pytest.mark.parametrize("shape", [(30, 41), (1, 40)])
def test_prepare(tmp_path, rng, shape):
    case = prepare_case.make(rng, shape)
    body = PREPARE_BODY.format(h=shape[0], w=shape[1], **{k: case[k] for k in ("fill", "bad", "no_data")})
    arrays = {k: v for k, v in case.items() if isinstance(v, np.ndarray)}
    outputs = {f"values{d}": (np.float32, shape) for d in (0, 3, 5)} | {"work": (np.int32, shape)}
    got = support_host_cuda.run(tmp_path, "resample.cuh", body, arrays, outputs)
    close = {"rtol": PREPARE.tolerance.relative, "atol": PREPARE.tolerance.absolute}
    for degree in (0, 3, 5):
        values, work = reference_resample.prepare(**case | {"degree": degree})
        np.testing.assert_array_equal(got["work"], work)
        np.testing.assert_allclose(got[f"values{degree}"], values, **close)


OVERLAP = """
  using namespace overlap;
  const int H = {H}, W = {W};
  const Source in{{values, variance, work, nullptr, {h}, {w}, {grow}, {no_data}, {edge}, {interp}}};
  const resample::Map map{{nodes, cells, exact, {ny}, {nx}, {spacing}, 1.0 / {spacing}}};
  for (int y = 0; y < H; ++y)
    for (int x = 0; x < W; ++x) {{
      double xs[4], ys[4];
      float area = 0.0f;
      for (int k = 0; k < 4; ++k) {{
        const int cy = y + k / 2, cx = x + (k == 1 || k == 2);
        const int i = cy / map.spacing, j = cx / map.spacing, ty = cy - i * map.spacing;
        double row[4][2];
        for (int n = 0; n < 4; ++n)
          for (int term = 0; term < 2; ++term) row[n][term] = resample::collapse(map, i, j, ty, n, term);
        const auto at = resample::position<true>(map, cells[i * map.nx + j], row, cy, resample::Column<2>(map, cx));
        xs[k] = at.x + 0.5;
        ys[k] = at.y + 0.5;
        area = maximum(area, at.area);
      }}
      Edge own[4];
      const Edges edges{{own, 1}};
      Pixel out[3];
      for (int k = 0; k < 3; ++k) {{
        out[k] = k == 0   ? smoothed(in, xs, ys, SEAM * area, true)
                 : k == 1 ? gather<false>(in, xs, ys, edges, SEAM * area, true)
                          : gather<true>(in, xs, ys, edges, SEAM * area, true, 0.6);
        const int p = (k * H + y) * W + x;
        image[p] = out[k].image;
        variance_out[p] = out[k].variance;
        mask[p] = out[k].mask;
        weight[p] = out[k].weight;
      }}
    }}
"""


def test_overlap(tmp_path, rng):
    case = exact_case.make(rng, (26, 41)) | {"flux": True}
    (h, w), (height, width), (ny, nx) = case["values"].shape, case["shape"], case["cells"].shape
    bits = {k: v for k, v in case["bits"]._asdict().items() if k in ("grow", "no_data", "edge", "interp")}
    body = OVERLAP.format(H=height, W=width, h=h, w=w, ny=ny, nx=nx, spacing=case["exact"].shape[2], **bits)
    arrays = {k: v for k, v in case.items() if isinstance(v, np.ndarray)}
    shape = (3, height, width)
    outputs = dict.fromkeys(("image", "variance_out", "weight"), (np.float32, shape)) | {"mask": (np.int32, shape)}
    got = support_host_cuda.run(tmp_path, "overlap.cuh", body, arrays, outputs)
    of_drops = partial(reference_overlap.drizzle, pixfrac=0.6)
    pairs = (ADAPTIVE, reference_overlap.adaptive), (EXACT, reference_overlap.overlap), (DRIZZLE, of_drops)
    for k, (spec, reference) in enumerate(pairs):
        image, variance, mask, weight = reference(**case)
        close = {"rtol": spec.tolerance.relative, "atol": spec.tolerance.absolute, "err_msg": spec.name}
        np.testing.assert_array_equal(got["mask"][k], mask, err_msg=spec.name)
        np.testing.assert_allclose(got["image"][k], image, **close)
        np.testing.assert_allclose(got["weight"][k], weight, **close)
        np.testing.assert_allclose(got["variance_out"][k], variance, **close)


@pytest.mark.parametrize("shape", points_case.SHAPES)
def test_points(tmp_path, rng, shape):
    case = points_case.make(rng, shape)
    h, w = shape
    body = f"""
      for (int n = 0; n < n_origin / 2; ++n)
        for (int i = 0; i < {h * w}; ++i) {{
          const double x = origin[2 * n] + {case["step"]!r} * (i % {w});
          const double y = origin[2 * n + 1] + {case["step"]!r} * (i / {w});
          const maps::Point q = maps::position(chain, {{x, y}});
          out[n * {h * w} + i] = q.x;
          out[n_out / 2 + n * {h * w} + i] = q.y;
        }}
    """
    inputs = {name: case[name] for name in ("chain", "origin")}
    want = reference_maps.tangent_points(**case)
    got = support_host_cuda.run(tmp_path, "maps.cuh", body, inputs, {"out": (np.float64, want.shape)})["out"]
    np.testing.assert_allclose(got, want, rtol=TANGENT.tolerance.relative, atol=TANGENT.tolerance.absolute)


@pytest.mark.parametrize("shape", [(33, 47), (7, 5), (1, 1)])
def test_cells(tmp_path, rng, shape):
    """Rows of cells, each judged by itself and its neighbours."""
    case = cells_case.make(rng, shape)
    (ny, nx), spacing, (h, w) = shape, case["spacing"], case["source_shape"]
    smooth = str(case["smooth"]).lower()
    body = f"""
      const int ny = {ny}, nx = {nx};
      const maps::Fine fine{{points, ny, nx}};
      const maps::Point shift{{rint(fine.at(0, 2, 2)), rint(fine.at(1, 2, 2))}};
      std::vector<maps::Cell> all;
      for (int i = 0; i < ny * nx; ++i)
        all.push_back(maps::measured(fine, i / nx, i % nx, {h}, {w}, {spacing} * 0.5, shift));
      for (int i = 0; i < ny; ++i) {{
        maps::Found found = maps::nothing();
        for (int j = 0; j < nx; ++j) {{
          double error = 0.0;
          bool lost = true;
          for (int k = 0; k < 9; ++k) {{
            const int y = i + k / 3 - 1, x = j + k % 3 - 1;
            if (y < 0 || x < 0 || y >= ny || x >= nx) continue;
            error = maximum(error, all[y * nx + x].error);
            lost = lost && all[y * nx + x].lost;
          }}
          const maps::Cell& cell = all[i * nx + j];
          cells[i * nx + j] = maps::judged(cell, error, lost || cell.misses, {spacing**2}, {case["tolerance"]},
                                           {case["goal"]}, {smooth}, found);
        }}
        found = maps::merged(found, maps::nothing());
        for (int k = 0; k < maps::FOUND; ++k) rows[i * maps::FOUND + k] = found.v[k];
      }}
    """
    outputs = {"cells": (np.int32, shape), "rows": (np.float64, (ny, 6))}
    got = support_host_cuda.run(tmp_path, "maps.cuh", body, {"points": case["points"]}, outputs)
    _, cells, rows = reference_maps.check_cells(**case)
    np.testing.assert_array_equal(got["cells"], cells)
    np.testing.assert_allclose(got["rows"], rows, rtol=CHECK.tolerance.relative, atol=CHECK.tolerance.absolute)
