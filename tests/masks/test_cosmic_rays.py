# SPDX-License-Identifier: BSD-3-Clause
"""Cosmic rays are found on simulated exposures, and stars are not taken for them."""

import sys

import numpy as np
import pytest
from scipy.ndimage import binary_dilation
from support_masks import NOISE, exposed, hits, marked, stars

from skydelta.errors import ConfigError, InputError
from skydelta.kernels.backend import CPU
from skydelta.stages.base import Context
from skydelta.stages.cosmicrays import CosmicRays

SHAPE = (420, 440)


def run(exposure, **settings):
    ctx = Context(CPU)
    return CosmicRays(**settings).execute(ctx, {"image": exposure})["image"], ctx


@pytest.mark.parametrize(("fwhm", "beta"), [(2.0, None), (2.0, 3.0), (3.0, None), (5.0, 3.0)])
def test_hits_are_found_and_stars_stay(fwhm, beta, peer, figure):
    peer("astroscrappy")
    rng = np.random.default_rng(4)
    light, x, y = stars(rng, SHAPE, fwhm, 150, beta=beta)
    charge = hits(rng, SHAPE, 90)
    exposure = exposed(rng, light, charge)
    out, ctx = run(exposure)
    found, true = marked(out, "CR"), charge > 5 * np.sqrt(exposure.variance - charge)
    near = binary_dilation(charge > 0, iterations=2)
    cores = [
        np.s_[j - 1 : j + 2, i - 1 : i + 2] for i, j in zip(np.rint(x).astype(int), np.rint(y).astype(int), strict=True)
    ]
    alone = [core for core in cores if not near[core].any()]
    assert len(alone) > 120
    label = f"cosmic rays, FWHM {fwhm:g} px, {'Gaussian' if beta is None else 'Moffat'}"
    figure(f"{label}: pixels above 5 sigma that are missed", 1 - (found & true).sum() / true.sum(), 0.1)
    figure(f"{label}: share of stars eaten", sum(found[core].any() for core in alone) / len(alone), 0.01)
    figure(f"{label}: false pixels away from hits, share of the image", (found & ~near).sum() / found.size, 2e-4)
    assert ctx.metrics["cosmic_ray_fraction"] == found.mean()
    np.testing.assert_array_equal(out.image, exposure.image)


def test_no_hits_no_mask_and_bad_pixels_are_no_hits(peer):
    peer("astroscrappy")
    rng = np.random.default_rng(5)
    exposure = exposed(rng, stars(rng, SHAPE, 2.5, 150)[0])
    exposure.image[100:110, 200] = np.nan
    exposure.image[50, 60] += 4000
    exposure.mask[50, 60] = exposure.planes.bit("BAD")
    out, ctx = run(exposure)
    assert marked(out, "CR").sum() <= 3 and ctx.metrics["cosmic_rays"] <= 2
    assert not marked(out, "CR")[50, 60] and marked(out, "BAD")[50, 60]
    exposure.image[300, 300] += 40 * NOISE
    assert marked(run(exposure)[0], "CR")[300, 300]


def test_an_image_without_stars_or_without_sky(peer):
    peer("astroscrappy")
    rng = np.random.default_rng(6)
    charge = hits(rng, (128, 128), 15, (3000, 20000))
    out, _ = run(exposed(rng, np.zeros((128, 128)), charge))
    assert marked(out, "CR")[charge > 10 * NOISE].mean() > 0.9
    out, ctx = run(exposed(rng, np.zeros((128, 128))))
    assert "no_stars" in ctx.flags and not marked(out, "CR").any()
    empty = exposed(rng, np.zeros((64, 64)))
    out, _ = run(empty.with_(image=np.full((64, 64), np.nan, np.float32)))
    assert not marked(out, "CR").any()


def test_what_is_missing_is_said(monkeypatch):
    rng = np.random.default_rng(7)
    exposure = exposed(rng, np.zeros((64, 64)))
    with pytest.raises(InputError, match="cosmic_rays: the image has no variance"):
        run(exposure.with_(variance=None))
    monkeypatch.setitem(sys.modules, "astroscrappy", None)
    with pytest.raises(ConfigError, match=r"install skydelta\[cosmics\]"):
        run(exposure)
