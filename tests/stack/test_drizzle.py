# SPDX-License-Identifier: BSD-3-Clause
"""Stacks of drizzled exposures: the drizzle package, holes, correlated noise, clipping, and the command."""

import click.testing
import numba
import numpy as np
import pytest
from astropy.io import fits
from support_align import plane
from support_stack import grid_field, visit

import skydelta
from skydelta.errors import ConfigError
from skydelta.io.exposure import Exposure
from skydelta.io.planes import MaskPlanes
from skydelta.kernels.backend import CPU
from skydelta.pipeline.cli import cli
from skydelta.stages.base import Context
from skydelta.stages.stack import Stack

SHAPE = (64, 70)
BAD, NO_DATA = (MaskPlanes().bit(n) for n in ("BAD", "NO_DATA"))
PLAIN = {"scaling": "none", "background": "none", "resampling": "drizzle"}
FINE = plane((90, 100), scale=0.5)
"""A grid of half the pixels' side that every exposure covers whole."""


def stack(images, onto=FINE, **config):
    ctx = Context(CPU)
    return Stack(**{**PLAIN, **config}).run(ctx, images=images, onto=onto), ctx


def exposures(rng, n=5, bad=0.03):
    """Noise of different depth on planes that are turned and moved by parts of a pixel, with bad pixels."""
    out = []
    for k in range(n):
        sigma = 1.0 + 0.5 * k
        mask = np.where(rng.random(SHAPE) < bad, BAD, 0).astype(np.int32)
        variance = (sigma**2 * rng.uniform(0.8, 1.2, SHAPE)).astype(np.float32)
        image = (rng.normal(20, 1, SHAPE) + np.where(mask, 1e6, 0)).astype(np.float32)
        wcs = plane(SHAPE, turn=rng.uniform(-3, 3), shift=rng.uniform(-2, 2, 2))
        out.append(Exposure(image, variance, mask, wcs=wcs, id=f"v{k}.fits"))
    return out


@pytest.mark.parametrize(("method", "pixfrac"), [("mean", 0.6), ("weighted", 0.6), ("clipped", 1.0), ("mean", 0.3)])
def test_against_the_drizzle_package(method, pixfrac, peer, rng, figure):
    """All drops of all exposures in one weighted mean; where no exposure has a drop there is nothing."""
    images = exposures(rng, 2 if pixfrac < 0.5 else 5)
    out, _ = stack(images, method=method, pixfrac=pixfrac, **({"sigma": 100} if method == "clipped" else {}))
    stacked = out["stacked"]
    theirs = peer("drizzle.resample").Drizzle(out_shape=stacked.shape, fillval=np.nan)
    y, x = np.indices(SHAPE, float)
    for e, weight in zip(images, out["table"]["weight"], strict=True):
        there = np.stack(FINE.all_world2pix(*e.wcs.all_pix2world(x, y, 0), 0), axis=-1)
        used = (weight * (e.mask == 0)).astype(np.float32)
        theirs.add_image(e.image, 1.0, there, data2=e.variance, weight_map=used, pixfrac=pixfrac)
    inside = np.s_[4:-4, 4:-4]
    seen = theirs.out_wht[inside] * 4
    name = f"drizzle of {len(images)}, {method}, pixfrac {pixfrac}:"
    weight = np.abs(out["weight"].image[inside] - seen).max() / seen.max()
    figure(f"{name} weight against the package", weight, 2e-6)
    good = seen > 1e-3 * seen.max()
    figure(f"{name} image", np.abs(stacked.image[inside] - theirs.out_img[inside])[good].max(), 1e-4)
    figure(f"{name} variance", np.abs(stacked.variance[inside] / theirs.out_img2[0][inside] - 1)[good].max(), 1e-4)
    empty = seen == 0
    assert (method == "mean" and pixfrac < 0.5) == (empty.mean() > 0.05)
    assert np.isnan(stacked.image[inside][empty]).all() and (stacked.mask[inside][empty] & NO_DATA).all()
    assert (out["coverage"].image[inside] > 0)[good].all() and not out["coverage"].image[inside][empty].any()


def test_holes_of_one_are_filled_by_others(rng):
    """Drops of half a pixel, each on a pixel of a half: an exposure fills a quarter, four moved by a half fill all."""
    images = []
    for k, shift in enumerate([(0, 0), (0.5, 0), (0, 0.5), (0.5, 0.5)]):
        wcs = plane(SHAPE)
        wcs.wcs.crpix = np.add(wcs.wcs.crpix, shift)
        images.append(Exposure(np.full(SHAPE, float(k), np.float32), np.ones(SHAPE, np.float32), wcs=wcs, id=str(k)))
    target = plane((90, 100), scale=0.5)
    target.wcs.crpix = np.add(target.wcs.crpix, 0.5)  # pixels lie on the drops
    one, _ = stack(images[:1], onto=target, method="mean", pixfrac=0.5)
    full = np.isfinite(one["stacked"].image)
    assert full.mean() == pytest.approx(0.25, abs=1e-3)
    np.testing.assert_allclose(one["weight"].image[full], 4.0, rtol=1e-5)
    for method in ("mean", "clipped", "median"):
        out, _ = stack(images, onto=target, method=method, pixfrac=0.5)
        s = out["stacked"]
        assert np.isfinite(s.image).all() and (out["coverage"].image == 1).all() and (s.mask == 0).all()
        np.testing.assert_allclose(s.variance, 1.0, rtol=1e-5)
        assert sorted(np.unique(s.image[:2, :2])) == [0, 1, 2, 3]
        np.testing.assert_array_equal(s.image[2:, 2:], s.image[:-2, :-2])


@pytest.mark.parametrize(("pixfrac", "scale"), [(1.0, 0.5), (0.6, 0.5), (0.5, 0.8)])
def test_noise_of_many_dithers_is_that_of_fruchter_and_hook(pixfrac, scale, rng, figure):
    """Of large boxes, over what the variance plane says: R(pixfrac / scale), their equations 9 and 10."""
    r = pixfrac / scale
    wanted = r / (1 - 1 / (3 * r)) if r >= 1 else 1 / (1 - r / 3)
    shape, side = (150, 150), 30
    target = plane((int(130 / scale), int(130 / scale)), scale=scale)
    sums, planes, factors = [], [], []
    for _ in range(8):
        images = []
        for k in range(16):
            wcs = plane(shape)
            wcs.wcs.crpix = np.add(wcs.wcs.crpix, (np.array([k % 4, k // 4]) + rng.random(2)) / 4)
            noise = rng.normal(size=shape).astype(np.float32)
            images.append(Exposure(noise, np.ones(shape, np.float32), wcs=wcs, id=str(k)))
        out, _ = stack(images, onto=target, method="mean", pixfrac=pixfrac)
        factors.append(out["correlation"].factor.mean())
        n = [m // side * side for m in out["stacked"].shape]
        for where, plane_ in ((sums, out["stacked"].image), (planes, out["stacked"].variance)):
            where.append(plane_[: n[0], : n[1]].reshape(n[0] // side, side, n[1] // side, side).sum(axis=(1, 3)))
    factor = np.mean(factors)
    figure(
        f"noise factor of a stack, pixfrac {pixfrac}, scale {scale}: over theory - 1", abs(factor / wanted - 1), 0.03
    )
    found = np.sqrt(np.mean(np.square(sums)) / np.mean(planes))
    error = 1 / np.sqrt(2 * np.size(sums))
    figure(
        f"noise of boxes, pixfrac {pixfrac}, scale {scale}: R / theory - 1", abs(found / wanted - 1), 0.03 + 3 * error
    )


@pytest.mark.parametrize("method", ["clipped", "weighted", "median"])
def test_same_bytes_whatever_budget_and_threads(method, rng):
    images = exposures(rng, 6)
    most, found = numba.get_num_threads(), []
    for budget, threads in ((1 << 20, 1), (1 << 30, most)):
        numba.set_num_threads(threads)
        weights = {} if method == "median" else {"weights": "pixel"}
        out, _ = stack(images, method=method, pixfrac=0.7, budget=budget, **weights)
        s = out["stacked"]
        found.append(b"".join(p.tobytes() for p in (s.image, s.variance, s.mask, out["weight"].image)))
    numba.set_num_threads(most)
    assert found[0] == found[1]


@pytest.mark.parametrize("weights", ["exposure", "pixel", "equal"])
def test_without_outliers_clipping_is_the_weighted_mean(weights, rng):
    images = exposures(rng)
    ways = {"method": "clipped", "sigma": 100}, {"method": "weighted"}
    a, b = (stack(images, pixfrac=0.7, weights=weights, **way)[0] for way in ways)
    for name in ("image", "variance"):
        np.testing.assert_allclose(*(getattr(o["stacked"], name) for o in (a, b)), rtol=2e-6)
    np.testing.assert_allclose(a["weight"].image, b["weight"].image, rtol=1e-6)
    np.testing.assert_array_equal(a["stacked"].mask, b["stacked"].mask)


def test_cosmic_rays_go(rng, figure):
    images = exposures(rng, 6, bad=0.0)
    clean, _ = stack(images, pixfrac=0.8)
    hit = [e.with_(image=e.image.copy()) for e in images]
    for e in hit[:2]:
        e.image[rng.integers(10, 50, 8), rng.integers(10, 50, 8)] += 500
    out, _ = stack(hit, pixfrac=0.8)
    assert out["table"]["clipped"][:2].min() > 20
    left = (out["stacked"].image - clean["stacked"].image) / np.sqrt(clean["stacked"].variance)
    figure("drizzle, clipped: largest trace of cosmic rays, sigma", np.nanmax(np.abs(left)), 4)


def test_stars_keep_their_flux_without_variances(rng, figure):
    field = grid_field(rng, (150, 160), fluxes=(4, 5))
    images = [visit(field, rng, k, shape=(150, 160), sky=0.0, noise=False).with_(variance=None) for k in range(6)]
    target = plane((280, 300), scale=0.5)
    out, _ = stack(images, onto=target, method="mean", pixfrac=0.6, conserve="flux")
    assert out["stacked"].variance is None
    x, y = (np.rint(a).astype(int) for a in target.all_world2pix(*field.sky, 0))
    inside = (x > 26) & (x < 274) & (y > 26) & (y < 254)
    box = np.arange(-26, 27)
    got = out["stacked"].image[y[inside][:, None, None] + box[:, None], x[inside][:, None, None] + box].sum((1, 2))
    figure("drizzle of 6, pixfrac 0.6: flux of stars, error", np.abs(got / field.flux[inside] - 1).max(), 5e-3)


def test_command(rng, tmp_path):
    def run(*words):
        return click.testing.CliRunner().invoke(cli, ["stack", *map(str, words)])

    field = grid_field(rng, (100, 110))
    paths = [tmp_path / f"v{k}.fits" for k in range(3)]
    for k, path in enumerate(paths):
        skydelta.write(visit(field, rng, k, shape=(100, 110)), path)
    out = tmp_path / "deep.fits"
    words = (*paths, "-o", out, "--scaling", "none", "--pixel-scale", "0.2", "--pixfrac", "0.7")
    result = run(*words, "--resampling", "drizzle")
    assert result.exit_code == 0, result.output
    with fits.open(out) as hdus:
        assert hdus["SCI"].shape[0] > 145 and hdus["NEXP"].data.max() == 3
        assert set(hdus["INPUTS"].data["resampling"]) == {"drizzle"}
    refused = run(*words, "--overwrite")
    assert refused.exit_code == 2
    assert "stack.pixfrac: 0.7 has no effect where resampling is bspline3, only where it is drizzle" in refused.output
    with pytest.raises(ConfigError, match=r"stack\.pixfrac: 2\.0 is above 1"):
        Stack(resampling="drizzle", pixfrac=2.0)
