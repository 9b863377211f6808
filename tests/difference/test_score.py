# SPDX-License-Identifier: BSD-3-Clause
"""The score of a difference: direct sums where they are known, and the same bytes however the tiles are shared."""

import numpy as np
import pytest
from scipy.signal import fftconvolve
from support_pairs import gaussian

from skydelta.kernels import significance
from skydelta.kernels.backend import CPU
from skydelta.kernels.core.devices import DeviceSet
from skydelta.kernels.core.multi import counted_splits
from skydelta.kernels.core.tiles import TileGrid
from skydelta.kernels.significance import Kernels, Planes, score_image

SHAPE = (301, 517)


def inputs(rng, level_moved):
    good = rng.random(SHAPE) > 0.01
    variance = np.full(SHAPE, 4, np.float32)
    moved = np.full(SHAPE, level_moved, np.float32)
    image = rng.normal(0, 2, SHAPE).astype(np.float32)
    planes = Planes(np.where(good, image, np.float32(np.nan)), variance, moved, good, good, good, 1.0)
    grid = TileGrid(SHAPE, 64)
    n = len(grid)
    match, psf = (np.repeat(gaussian(s, h)[None], n, axis=0) for s, h in ((1.0, 7), (1.5, 9)))
    levels = np.full(n, 4.0), np.full(n, float(level_moved))
    return planes, Kernels(match, psf, *levels, None, None, 9), grid


def test_white_noise_needs_no_whitening_and_gives_the_matched_filter(rng):
    planes, kernels, grid = inputs(rng, 0)
    (whitened, variance, snr), own, _ = score_image(planes, kernels, grid)
    psf, good, data = kernels.psf[0], planes.usable, np.where(planes.usable, planes.difference, 0)
    assert np.isnan(snr[~good]).all()
    np.testing.assert_allclose(own, np.broadcast_to(psf, own.shape), atol=1e-12)
    np.testing.assert_allclose(whitened[good], data[good], atol=1e-4)
    np.testing.assert_allclose(variance[good], 4, rtol=1e-4)
    top, norm = (fftconvolve(a.astype(float), b, "same") for a, b in ((data, psf), (good, psf**2)))
    # what a masked pixel takes from the sum, it takes from the variance of the sum
    want = top / np.sqrt(4 * norm)
    inner = np.s_[20:-20, 20:-20]
    np.testing.assert_allclose(snr[inner][good[inner]], want[inner][good[inner]], atol=5e-3, rtol=5e-3)


@pytest.mark.parametrize("count", [2, 3])
def test_the_same_bytes_with_any_number_of_devices(rng, count):
    arguments = inputs(rng, 3)
    one, *_ = score_image(*arguments)
    many, *_ = score_image(*arguments, DeviceSet.of(CPU, count))
    assert one.tobytes() == many.tobytes()
    assert np.isnan(one[:, ~arguments[0].usable]).all()
    assert np.isfinite(one[:, arguments[0].usable]).all()


def test_the_same_bytes_without_memory_for_more_than_one_tile_at_a_time(rng, monkeypatch):
    arguments = inputs(rng, 3)
    one, *_ = score_image(*arguments)
    whole = significance._score_stack
    tiles = []

    def little(stack, *rest):
        tiles.append(len(stack[0]) if isinstance(stack, tuple) else stack.shape[-3])
        if tiles[-1] > 1:
            raise MemoryError("12 GiB")
        return whole(stack, *rest)

    monkeypatch.setattr(significance, "_score_stack", little)
    monkeypatch.setitem(significance.TOGETHER, "cpu", (3, 3))
    with counted_splits() as splits:
        split, *_ = score_image(*arguments)
    assert splits.count == sum(n > 1 for n in tiles) > 0
    assert split.tobytes() == one.tobytes()


@pytest.mark.parametrize("together", [(1, 1), (3, 4), (9, 9)])
def test_the_same_bytes_whatever_is_transformed_together(rng, monkeypatch, together):
    arguments = inputs(rng, 3)
    one, own, white = score_image(*arguments)
    monkeypatch.setitem(significance.TOGETHER, "cpu", together)
    monkeypatch.setitem(significance.PREPARED, "cpu", 5)
    many, same, alike = score_image(*arguments)
    assert one.tobytes() == many.tobytes()
    assert own.tobytes() == same.tobytes()
    assert white.tobytes() == alike.tobytes()
