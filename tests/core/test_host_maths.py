# SPDX-License-Identifier: BSD-3-Clause
"""The helpers of common.cuh on the host, and the harness itself: it must catch what it is there for."""

import numpy as np
import pytest
import support_host_cuda
from cases import cutouts, usable_pixels

from skydelta.kernels.cpu import reference_cutouts, reference_usable

VALUES = np.array([0.0, -0.0, 1.5, -3.25, np.nan, np.inf, -np.inf, 1e-45, 3e38], np.float32)


def test_helpers(tmp_path):
    body = """
    for (long long i = 0; i < n_v; ++i) {
      found[i] = is_finite(v[i]) && is_finite((double)v[i]);
      low[i] = minimum(v[i], 1.0f);
      high[i] = maximum(v[i], 1.0f);
      clamped[i] = clampi((int)i - 3, 0, 4);
      flag[i] = flagged((int)i, 6);
    }
    nan[0] = quiet_nan();
    """
    n = len(VALUES)
    got = support_host_cuda.run(
        tmp_path,
        "common.cuh",
        body,
        {"v": VALUES},
        {
            "found": (np.int32, n),
            "low": (np.float32, n),
            "high": (np.float32, n),
            "clamped": (np.int32, n),
            "flag": (np.int32, n),
            "nan": (np.float32, 1),
        },
    )
    np.testing.assert_array_equal(got["found"], np.isfinite(VALUES))
    known = ~np.isnan(VALUES)
    np.testing.assert_array_equal(got["low"][known], np.minimum(VALUES, 1)[known])
    np.testing.assert_array_equal(got["high"][known], np.maximum(VALUES, 1)[known])
    np.testing.assert_array_equal(got["clamped"], np.clip(np.arange(n) - 3, 0, 4))
    np.testing.assert_array_equal(got["flag"], (np.arange(n) & 6) != 0)
    assert np.isnan(got["nan"][0])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("out[0] = v[n_v];", "heap-buffer-overflow"),
        ("int big = 2147483647; big += (int)n_v; out[0] = (float)big;", "signed integer overflow"),
    ],
)
def test_sanitizers_stop_bad_code(tmp_path, body, message):
    with pytest.raises(AssertionError, match=message):
        support_host_cuda.run(tmp_path, "common.cuh", body, {"v": VALUES}, {"out": (np.float32, 1)})


def test_usable_pixels(tmp_path, rng):
    case = usable_pixels.make(rng, (64, 64))
    body = (
        f"for (long long i = 0; i < n_image; ++i) out[i] = usable(image[i], variance[i], mask[i], {case['invalid']});"
    )
    planes = {n: case[n] for n in ("image", "variance", "mask")}
    got = support_host_cuda.run(tmp_path, "usable.cuh", body, planes, {"out": (np.int32, (64, 64))})
    np.testing.assert_array_equal(got["out"] != 0, reference_usable.usable_pixels(**case))


def test_windows(tmp_path, rng):
    case = cutouts.make(rng, (37, 53))
    side = 2 * case["half"] + 1
    body = f"""
    for (int k = 0; k < 70; ++k)
      for (int i = 0; i < {side**2}; ++i)
        out[k * {side**2} + i] = window_pixel(plane, 37, 53, middle[k], middle[70 + k], {case["half"]}, i, -1);
    """
    inputs, outputs = {n: case[n] for n in ("plane", "middle")}, {"out": (np.int32, (70, side, side))}
    got = support_host_cuda.run(tmp_path, "cutouts.cuh", body, inputs, outputs)
    np.testing.assert_array_equal(got["out"], reference_cutouts.cutouts(**case))
