# SPDX-License-Identifier: BSD-3-Clause
"""resample.cuh on the host, under the sanitizers, against the reference of the same kernels."""

import numpy as np
import pytest
import support_host_cuda
from cases import resample as gather_case
from cases import resample_prepare as prepare_case

from skydelta.kernels.cpu import reference_resample
from skydelta.kernels.resample import PREPARE, RESAMPLE

GATHER = """
  using namespace resample;
  const int h = {h}, w = {w}, H = {H}, W = {W};
  const Source in{{values, {variance}, work, h, w, {grow}, {no_data}, {edge}, {interp}}};
  const Map map{{nodes, cells, exact, {ny}, {nx}, {spacing}, 1.0 / {spacing}, {flux}}};
  for (int y = 0; y < H; ++y)
    for (int x = 0; x < W; ++x) {{
      const int i = y / map.spacing, j = x / map.spacing, ty = y - i * map.spacing, tx = x - j * map.spacing;
      const int cell = cells[i * map.nx + j];
      Position at{{0.0, 0.0, quiet_nan()}};
      if (cell == CELL_INTERPOLATED) {{
        double row[4][4];
        for (int k = 0; k < 4; ++k)
          for (int term = 0; term < (map.flux ? 4 : 2); ++term) row[k][term] = collapse(map, i, j, ty, k, term);
        at = interpolate(map, row, tx);
      }} else if (cell >= 0) {{
        at = exact_position(map, cell, ty, tx);
      }}
      const Pixel out = gather<{method}>(in, at);
      const int p = y * W + x;
      image[p] = out.image;
      variance_out[p] = out.variance;
      mask[p] = out.mask;
      weight[p] = out.weight;
    }}
"""

# One window of 25 samples a pixel and axis: what a thread block shares among its threads.
PREPARE_BODY = """
  using namespace resample;
  const Plane in{{image, variance, mask, {h}, {w}, {fill}, {bad}, {no_data}}};
  for (int y = 0; y < in.h; ++y)
    for (int x = 0; x < in.w; ++x) {{
      const int p = y * in.w + x;
      work[p] = in.classify(y, x);
      if (!{spline}) {{
        values[p] = in.value(y, x);
        continue;
      }}
      float column[2 * HALO + 1], line[2 * HALO + 1];
      for (int k = 0; k < 2 * HALO + 1; ++k) {{
        for (int l = 0; l < 2 * HALO + 1; ++l)
          line[l] = in.value(mirror(y + k - HALO, in.h), mirror(x + l - HALO, in.w));
        filter_window(line);
        column[k] = line[HALO];
      }}
      filter_window(column);
      values[p] = column[HALO];
    }}
"""


@pytest.mark.parametrize("shape", [(41, 53), (1, 40), (5, 9), (2, 2)])
@pytest.mark.parametrize("method", range(4))
def test_gather(tmp_path, rng, shape, method):
    case = {**gather_case.make(rng, shape), "method": method}
    bits, flux = case["bits"], case["flux"]
    h, w = case["values"].shape
    height, width = case["shape"]
    ny, nx = case["cells"].shape
    body = GATHER.format(
        h=h, w=w, H=height, W=width, ny=ny, nx=nx, spacing=case["exact"].shape[2], method=method,
        flux=str(flux).lower(), variance="nullptr" if case["variance"] is None else "variance",
        grow=bits.grow, no_data=bits.no_data, edge=bits.edge, interp=bits.interp,
    )  # fmt: skip
    arrays = {k: v for k, v in case.items() if isinstance(v, np.ndarray)}
    outputs = {
        "image": (np.float32, case["shape"]), "variance_out": (np.float32, case["shape"]),
        "mask": (np.int32, case["shape"]), "weight": (np.float32, case["shape"]),
    }  # fmt: skip
    got = support_host_cuda.run(tmp_path, "resample.cuh", body, arrays, outputs)
    image, variance, mask, weight = reference_resample.gather(**case)
    close = {"rtol": RESAMPLE.tolerance.relative, "atol": RESAMPLE.tolerance.absolute}
    np.testing.assert_array_equal(got["mask"], mask)
    np.testing.assert_allclose(got["image"], image, **close)
    np.testing.assert_allclose(got["weight"], weight, **close)
    if variance is not None:
        np.testing.assert_allclose(got["variance_out"], variance, **close)


@pytest.mark.parametrize("spline", [True, False])
@pytest.mark.parametrize("shape", [(40, 51), (1, 40), (2, 2)])
def test_prepare(tmp_path, rng, shape, spline):
    case = {**prepare_case.make(rng, shape), "spline": spline}
    h, w = shape
    body = PREPARE_BODY.format(
        h=h, w=w, fill=case["fill"], bad=case["bad"], no_data=case["no_data"], spline=str(spline).lower()
    )
    arrays = {k: v for k, v in case.items() if isinstance(v, np.ndarray)}
    outputs = {"values": (np.float32, shape), "work": (np.int32, shape)}
    got = support_host_cuda.run(tmp_path, "resample.cuh", body, arrays, outputs)
    values, work = reference_resample.prepare(**case)
    np.testing.assert_array_equal(got["work"], work)
    np.testing.assert_allclose(got["values"], values, rtol=PREPARE.tolerance.relative, atol=PREPARE.tolerance.absolute)
