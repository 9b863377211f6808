# SPDX-License-Identifier: BSD-3-Clause
"""The judgement of planes in one pass against what NumPy says of them."""

import numpy as np
import pytest

from skydelta.kernels import judge

ODD = [np.nan, np.inf, -np.inf, 0.0, -0.0, -2.0, 1e-42, 3e38, 1e-30, 1e25]


@pytest.mark.parametrize("kind", ["variance", "sigma", "weight"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_stated_variance(rng, kind, dtype):
    raw = rng.lognormal(0, 3, (37, 23)).astype(dtype)
    raw.flat[: len(ODD)] = ODD
    with np.errstate(all="ignore"):
        want = {"variance": raw, "sigma": raw**2, "weight": 1 / raw}[kind].astype(np.float32)
    good = np.isfinite(raw) & (raw > 0) & np.isfinite(want) & (want > 0)
    want[~good] = np.nan
    before = raw.tobytes()
    values, counts = judge.stated_variance(raw, kind)
    assert raw.tobytes() == before
    np.testing.assert_array_equal(values, want)
    assert counts.pop("out_of_range") == (~good).sum() - 6
    assert counts == {"not_finite": 3, "negative": 1, "zero": 2}
    again, _ = judge.stated_variance(raw, kind, overwrite=True)
    assert np.shares_memory(again, raw) == (dtype is np.float32)
    np.testing.assert_array_equal(again, want)


@pytest.mark.parametrize("size", [1, 2, 3, 1000, 1001])
def test_median(rng, size):
    for values in (rng.normal(0, 1, size), rng.integers(-2, 3, size), rng.lognormal(0, 30, size)):
        plane = np.full((size + 3, 1), np.nan, np.float32)
        plane[rng.permutation(size + 3)[:size], 0] = np.clip(values, -1e38, 1e38)
        assert judge.median(plane) == float(np.nanmedian(plane))
    assert np.isnan(judge.median(np.full((2, 2), np.nan, np.float32)))


def test_unknown_pixels_are_marked(rng):
    variance = np.where(rng.random((31, 17)) < 0.1, np.nan, 1).astype(np.float32)
    mask = rng.integers(0, 8, variance.shape, np.int32)
    want = mask | np.where(np.isnan(variance), 16, 0).astype(np.int32)
    good, count = judge.mark_unknown(variance, mask, 16, 16 | 2)
    np.testing.assert_array_equal(mask, want)
    np.testing.assert_array_equal(good, want & 18 == 0)
    assert count == good.sum()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.uint64])
def test_bits(rng, dtype):
    width = 8 * np.dtype(dtype).itemsize
    stored = rng.integers(0, np.iinfo(dtype).max, (40, 30), dtype, endpoint=True)
    assert judge.used_bits(stored & dtype(0b101)) == 0b101
    values = np.zeros(width, np.int32)
    values[[0, 3, width - 1]] = 4, 4, 1 << 30
    want = [4 * ((int(v) & 9) != 0) | (int(v) >> width - 1) << 30 for v in stored.flat]
    np.testing.assert_array_equal(judge.translate_bits(stored, values).ravel(), want)


@pytest.mark.parametrize("values", [[3, -7, 3, 0], [1 << 40, 5, -(1 << 40)], [200]])
def test_distinct(values):
    assert judge.distinct(np.array(values)[:, None]) == sorted(set(values))
