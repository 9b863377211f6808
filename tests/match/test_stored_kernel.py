# SPDX-License-Identifier: BSD-3-Clause
"""A kernel on its own: applied to an exposure, saved and reloaded, used instead of a fit, refused on another grid."""

from dataclasses import replace

import numpy as np
import pytest
from astropy.io import fits
from astropy.wcs import WCS
from scipy.signal import fftconvolve
from support_pairs import context, gaussian, pair, subtract

from skydelta.errors import ConfigError, InputError
from skydelta.io.field import Domain
from skydelta.io.matchkernel import MatchKernel
from skydelta.stages.difference import Difference
from skydelta.stages.match import Match
from skydelta.stages.match.residuals import residuals, stamp_chi2
from skydelta.stages.match.stamps import Selection, Stamps


def sky(shape, ra=150.0, flip=1, scale=1e-4):
    w = WCS(naxis=2)
    w.wcs.ctype, w.wcs.crval = ["RA---TAN", "DEC--TAN"], [ra, 2.0]
    w.wcs.crpix, w.wcs.cd = [shape[1] / 2, shape[0] / 2], [[-flip * scale, 0], [0, scale]]
    w.array_shape = shape
    return w


def located(p, **cards):
    wcs = sky(p.science.shape, **cards)
    p.science, p.reference = p.science.with_(wcs=wcs), p.reference.with_(wcs=wcs)
    return p


def varying(rng, shape=(200, 240), half=6):
    """Kernels of order 2 whose images are no product of anything."""
    images = rng.normal(0, 0.01, (6, 2 * half + 1, 2 * half + 1))
    images[0] += 0.8 * gaussian(1.5, half)
    numbers = np.array([1.1e-5, -3.3e4, 1 / 3, -7e-9, 2.0, np.pi]) * (1 + rng.random(6))
    return MatchKernel("reference", images, np.eye(6), 2, numbers, 2, Domain.of(shape))


def test_what_is_saved_comes_back_to_the_last_bit(rng, tmp_path):
    kernel = replace(varying(rng), corners=rng.uniform(-80, 300, (4, 2)))
    kernel.save(tmp_path / "k.fits")
    back = MatchKernel.load(tmp_path / "k.fits")
    for name in ("images", "background"):
        assert getattr(back, name).tobytes() == getattr(kernel, name).tobytes(), name
    for name in ("direction", "order", "background_order", "domain"):
        assert getattr(back, name) == getattr(kernel, name), name
    np.testing.assert_allclose(back.corners, kernel.corners, rtol=1e-13)
    assert not back.fitted
    assert kernel.at(3.0, 150.0).tobytes() == back.at(3.0, 150.0).tobytes()
    back.save(tmp_path / "again.fits")
    again = MatchKernel.load(tmp_path / "again.fits")
    assert again.background.tobytes() == kernel.background.tobytes()


def test_apply_is_the_direct_sum_at_every_position(rng):
    kernel, p = varying(rng), pair(seed=61, shape=(200, 240), stars=40)
    given = p.reference
    made = kernel.apply(given)
    half = kernel.shape[0] // 2
    for x, y in rng.integers(half, [240 - half, 200 - half], (60, 2)):
        k = kernel.at(x, y)[::-1, ::-1]
        box = np.s_[y - half : y + half + 1, x - half : x + half + 1]
        value = (k * given.image[box].astype(float)).sum() + kernel.background_at(np.array(x), np.array(y))
        sigma = np.sqrt((k**2 * given.variance[box]).sum())
        assert made.image[y, x] == pytest.approx(value, abs=1e-3 * sigma, rel=3e-7)
        middle = kernel.at(*(n // 32 * 32 + 15.5 for n in (x, y)))[::-1, ::-1]
        assert made.variance[y, x] == pytest.approx((middle**2 * given.variance[box]).sum(), rel=1e-4)
    assert kernel.apply(given.with_(psf=None)).psf is None
    want = fftconvolve(gaussian(1.25), kernel.at(120, 100), "same")
    np.testing.assert_allclose(made.psf.at(120, 100), want / want.sum(), atol=2e-4)


def test_apply_masks_what_the_kernel_reaches_with_weight():
    p = pair(seed=62, shape=(200, 200))
    kernel = MatchKernel("reference", 0.8 * gaussian(1.2, 9)[None], np.eye(1), 0, np.zeros(1), 0, Domain.of((200, 200)))
    p.reference.mask[80, 90] = p.reference.planes.bit("CR")
    p.reference.mask[120, 40] = 1 << 30  # without a name: not invalid
    made = kernel.apply(p.reference)
    j, i = np.nonzero(~np.isfinite(made.image[15:-15, 15:-15]))
    reach = np.hypot(j + 15 - 80, i + 15 - 90)
    weight = 0.8 * gaussian(1.2, 9)
    inside = weight[9, 9:] / weight.sum() > 0.005
    assert reach.max() == pytest.approx(np.flatnonzero(inside).max(), abs=1)
    assert ((made.mask[80, 88:93] & made.planes.bit("CR")) != 0).all()
    assert np.isfinite(made.image[120, 40])
    assert np.isnan(made.image[0]).all()
    assert ((made.mask[0] & made.planes.bit("EDGE")) != 0).all()
    with pytest.raises(InputError, match=r"shape \(100, 200\); the kernel is for \(200, 200\)"):
        kernel.apply(pair(seed=62, shape=(100, 200)).reference)
    with pytest.raises(InputError, match="no variance"):
        kernel.apply(p.reference.with_(variance=None))


@pytest.mark.parametrize("widths", [(1.7, 1.25), (1.25, 1.7)])
def test_a_stored_kernel_gives_the_same_bytes(tmp_path, widths):
    p = located(pair(seed=63, widths=widths, correlate=0.7, sky=(60.0, 300.0), low=8000))
    kernel, first = subtract(p)
    kernel.save(tmp_path / "k.fits")
    ctx, inputs = context(), {"science": p.science, "reference": p.reference}
    stored = MatchKernel.load(tmp_path / "k.fits")
    again = Match().execute(ctx, {**inputs, "stored": stored})["kernel"]
    assert ctx.metrics["kernel_fitted"] is False
    assert ctx.metrics["kernel_grid_offset_px"] < 1e-6
    assert set(again.stamps["role"]) == {"held-out"}
    # the same stamps, which were fitted the first time
    assert again.quality["chi2_held_out"] == pytest.approx(kernel.quality["chi2_fit"], abs=0.05)
    made = Difference().execute(context(), {**inputs, "kernel": again})
    for name in ("difference", "whitened"):
        assert made[name].image.tobytes() == first[name].image.tobytes()
        assert made[name].variance.tobytes() == first[name].variance.tobytes()
    assert made["score"].image.tobytes() == first["score"].image.tobytes()
    assert made["difference"].mask.tobytes() == first["difference"].mask.tobytes()


def test_chi2_of_stamps_is_that_of_the_pixels(rng):
    p, kernel = pair(seed=64, shape=(200, 240)), varying(rng)
    at = Selection(np.array([60, 150]), np.array([100, 90]), np.ones(2, bool), {})
    stamps = Stamps.cut(p.reference, p.science, at, 9, 8)
    weight = rng.uniform(0, 1e-3, stamps.broad.shape).astype(np.float32)
    weight[rng.random(weight.shape) < 0.2] = 0
    got = stamp_chi2(residuals(kernel, stamps, at), weight)
    for k in range(2):
        x, y = at.x[k], at.y[k]
        j, i = np.mgrid[y - 9 : y + 10, x - 9 : x + 10]
        model = fftconvolve(p.reference.image.astype(float), kernel.at(x, y), "same")[j, i]
        left = p.science.image[j, i] - model - kernel.background_at(i, j)
        assert got[k] == pytest.approx((weight[k] * left**2).sum() / (weight[k] > 0).sum(), rel=1e-5)


@pytest.mark.parametrize(
    ("shape", "cards", "message"),
    [
        ((240, 256), {}, r"for images of \(256, 256\), science is \(240, 256\)"),
        ((256, 256), {"flip": -1}, "up to 256.0 px from"),
        ((256, 256), {"ra": 150.0003}, "up to 3.0 px from"),
        ((256, 256), {"ra": 330.0}, "px is allowed"),
    ],
)
def test_a_kernel_of_another_grid_is_refused(shape, cards, message):
    kernel, _ = subtract(located(pair(seed=65)))
    p = located(pair(seed=65, shape=shape), **cards)
    with pytest.raises(InputError, match=message):
        Match().execute(context(), {"science": p.science, "reference": p.reference, "stored": kernel})


def test_settings_of_a_fit_are_refused_with_a_stored_kernel():
    p = pair(seed=66)
    kernel, _ = subtract(p)
    inputs = {"science": p.science, "reference": p.reference, "stored": kernel}
    for name, value in (("basis", "delta"), ("order", 1), ("clip", 3.0)):
        with pytest.raises(
            ConfigError, match=rf"^match\.{name}: {value!r} has no effect where a stored kernel is used"
        ):
            Match(**{name: value}).execute(context(), inputs)


def test_without_sky_positions_that_is_said_and_the_direction_is_kept():
    p = pair(seed=66)
    kernel, _ = subtract(p)
    inputs = {"science": p.science, "reference": p.reference, "stored": kernel}
    ctx = context()
    Match().execute(ctx, inputs)
    assert "kernel_grid_unchecked" in ctx.flags
    with pytest.raises(InputError, match="convolves the reference image, convolve = 'science'"):
        Match(convolve="science").execute(context(), inputs)


def test_a_file_without_a_kernel_is_named(rng, tmp_path):
    fits.HDUList([fits.PrimaryHDU(), fits.ImageHDU(np.ones((3, 5, 5)), name="KERNEL")]).writeto(tmp_path / "bare.fits")
    with pytest.raises(InputError, match=r"bare.fits: .*KERNEL.*KORDER"):
        MatchKernel.load(tmp_path / "bare.fits")
    fits.PrimaryHDU(np.ones((4, 4))).writeto(tmp_path / "image.fits")
    with pytest.raises(InputError, match="no HDU 'KERNEL'; it has"):
        MatchKernel.load(tmp_path / "image.fits")
    varying(rng).save(tmp_path / "k.fits")
    with fits.open(tmp_path / "k.fits", mode="update") as hdus:
        hdus["KERNEL"].data[0, 3, 3] = np.nan
    with pytest.raises(InputError, match="not finite"):
        MatchKernel.load(tmp_path / "k.fits")
