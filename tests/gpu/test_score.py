# SPDX-License-Identifier: BSD-3-Clause
"""The score of a difference on a device agrees with the CPU, in one block of tiles and in several, white and not."""

import numpy as np
import pytest
from support_pairs import gaussian

from skydelta.kernels import significance
from skydelta.kernels.backend import resolve, to_host
from skydelta.kernels.core.tiles import TileGrid
from skydelta.kernels.significance import Kernels, Planes, score_image

pytestmark = pytest.mark.gpu

SHAPE = (301, 517)


@pytest.mark.parametrize("together", [(8, 8), (2, 3)])
@pytest.mark.parametrize("correlated", [False, True])
def test_cuda_agrees_with_the_cpu(monkeypatch, together, correlated):
    rng = np.random.default_rng(12)
    good = [rng.random(SHAPE) > 0.01 for _ in range(2)]
    usable = good[0] & good[1]
    image = np.where(usable, rng.normal(0, 3, SHAPE), np.nan).astype(np.float32)
    variances = [np.where(g, rng.uniform(3, 5, SHAPE), np.nan).astype(np.float32) for g in good]
    grid = TileGrid(SHAPE, 64)
    n = len(grid)
    stamps = [np.repeat(gaussian(s, h)[None], n, axis=0) for s, h in ((1.0, 7), (1.5, 9))]
    lag = np.arange(-2, 3)
    rho = np.exp(-(lag[:, None] ** 2 + lag[None, :] ** 2) / 2.0) if correlated else None

    def scored(backend):
        arrays = [backend.asarray(a) for a in (image, *variances, usable, *good)]
        levels = backend.asarray(np.linspace(3, 5, n)), backend.asarray(np.full(n, 4.0))
        return score_image(Planes(*arrays, 0.8), Kernels(*stamps, *levels, None, rho, 9), grid)

    want, own, white = scored(resolve("cpu"))
    monkeypatch.setitem(significance.TOGETHER, "cuda", together)
    got, psf, filters = scored(resolve("cuda"))
    np.testing.assert_allclose(psf, own, atol=1e-10)
    np.testing.assert_allclose(to_host(filters), white, atol=1e-10)
    np.testing.assert_allclose(to_host(got), want, rtol=2e-4, atol=2e-4)
    again, *_ = scored(resolve("cuda"))
    assert to_host(again).tobytes() == to_host(got).tobytes()
