# SPDX-License-Identifier: BSD-3-Clause
"""The noise of sums over resampled pixels: Monte Carlo, closed forms, tiles, and the plane in files."""

import click.testing
import numpy as np
import pytest
from astropy.io import fits
from support_align import plane, tpv, with_sip

import skydelta
from skydelta.errors import InputError
from skydelta.io.correlation import NoiseCorrelation
from skydelta.io.exposure import Exposure
from skydelta.kernels.core.tiles import Box
from skydelta.kernels.resample import METHODS, MaskBits, resample
from skydelta.pipeline.cli import cli
from skydelta.stages.align.chain import SkyChain
from skydelta.stages.align.correlation import correlation
from skydelta.stages.align.mapping import control_grid
from skydelta.stages.stack.noise import joined, tile_means

SIDE = 256
BITS = MaskBits(0, 0, 1, 2, 4, 8)
MAPS = {"shift": (1.0, 0.0, (0.3, 0.4)), "turned": (1.0, 7.0, (0.0, 0.0)), "finer": (0.6, 3.0, (0.0, 0.0)),
        "coarser": (1.8, 12.0, (0.0, 0.0))}  # fmt: skip
WAYS = [*((m, 1.0) for m in METHODS), ("exact", 1.0), ("drizzle", 0.5), ("drizzle", 0.9), ("adaptive", 1.0)]


def source_side(scale):
    return int(1.25 * SIDE * scale) + 40


def affine(scale, degrees, shift):
    c, s = scale * np.cos(np.radians(degrees)), scale * np.sin(np.radians(degrees))
    middle, to = SIDE // 2, source_side(scale) // 2

    def evaluate(x, y):
        x, y = x - middle, y - middle
        return c * x - s * y + to + shift[0], s * x + c * y + to + shift[1]

    return evaluate


@pytest.mark.parametrize(("method", "pixfrac"), WAYS)
@pytest.mark.parametrize("name", MAPS)
def test_noise_of_boxes_is_that_of_a_monte_carlo(name, method, pixfrac, rng, figure):
    """rms of sums of 8 x 8 and 16 x 16 px over the root of the sum of the variance plane."""
    evaluate, corners = affine(*MAPS[name]), method not in METHODS
    shape = (source_side(MAPS[name][0]),) * 2
    found = correlation(evaluate, (SIDE, SIDE), shape, method, pixfrac)
    assert found.factor.shape == (2, 2) and found.side == 128
    points = (lambda x, y: evaluate(x - 0.5, y - 0.5)) if corners else evaluate
    grid = control_grid(points, (SIDE + corners, SIDE + corners), shape, 1e-4)
    options = {"method": method, "pixfrac": pixfrac, "bits": BITS}
    ones = np.ones(shape, np.float32)
    variance = np.nansum(resample(0 * ones, ones, None, grid, **options).variance, dtype=float)
    power = {8: [], 16: []}
    for _ in range(30):
        noise = rng.standard_normal(shape, np.float32)
        image = np.nan_to_num(resample(noise, None, None, grid, **options).image)
        for n, kept in power.items():
            kept.append((image.reshape(SIDE // n, n, -1, n).sum(axis=(1, 3), dtype=float) ** 2).sum())
    for n, kept in power.items():
        wanted = np.sqrt(np.mean(found.of_box(n, n) ** 2))
        ratio = np.sqrt(np.mean(kept) / variance) / wanted
        figure(f"noise of {n} x {n} px, {method} {pixfrac:g}, {name}: Monte Carlo / factor - 1", abs(ratio - 1), 0.03)


@pytest.mark.parametrize("f", [0.0, 0.2, 0.5])
def test_a_shift_of_bilinear_pixels_is_a_closed_form(f):
    found = correlation(lambda x, y: (x + f + 5, y + f + 5), (100, 120), (140, 140), "bilinear")
    rho = f * (1 - f) / (f**2 + (1 - f) ** 2)
    wanted = np.array([(1 + 2 * rho) ** 2, 2 * rho * (1 + 2 * rho), 2 * rho * (1 + 2 * rho), 4 * rho**2])
    np.testing.assert_allclose(found.moments[:, 0, 0], wanted, atol=2e-6)
    # all pairs of a box of 3 x 5 px
    a, b = (1 + 2 * rho * (1 - 1 / n) for n in (3, 5))
    np.testing.assert_allclose(found.of_box(3, 5), np.sqrt(a * b), rtol=1e-6)


@pytest.mark.parametrize(("method", "wanted"), [("nearest", 2.0), ("exact", 2.0), ("drizzle", 2.0)])
def test_pixels_cut_in_four_count_once(method, wanted):
    """Target pixels of half the side on the lattice of the source: four copies of one value."""
    found = correlation(lambda x, y: (x / 2 + 9.75, y / 2 + 9.75), (128, 128), (90, 90), method)
    np.testing.assert_allclose(found.factor, wanted, rtol=1e-6)


def test_tiles_follow_the_map(figure):
    """Pixels ever narrower along x: S = 1 / (a sum w^2), with the mean of exact overlap over phases."""
    found = correlation(lambda x, y: (20.3 + x - 0.0007 * x**2, 20 + y), (256, 512), (600, 600), "exact")
    for j in range(4):
        # of narrow pixels of side a on a row of source pixels, the part 1 - a lies in one, the part a in two (w, 1 - w)
        side = 1 - 0.0014 * (128 * j + np.arange(128.0))
        power = np.where(side < 1, 1 - side + side * 2 / 3, 1.0)
        wanted = np.sqrt(1 / np.mean(side * power))
        figure(f"noise factor of exact, tile {j} of a stretched map: error", abs(found.factor[0, j] / wanted - 1), 0.03)


@pytest.mark.parametrize("case", ["sip", "tpv"])
def test_distorted_images(case, figure):
    """A turned plane of 1 deg and a distortion of px change the mean over all phases little: per axis 2/3, bilinear."""
    shape = (400, 420)
    source = with_sip(plane(shape)) if case == "sip" else tpv(shape)
    target = plane((380, 390), turn=3.0)
    found = skydelta.noise_correlation(source, target, method="bilinear")
    assert found.factor.shape == (3, 4)
    figure(f"noise factor of bilinear, {case}: against 3/2", abs(np.nanmean(found.factor) - 1.5), 0.03)


def test_arguments_and_copies(tmp_path):
    shape = (140, 150)
    source = plane(shape)
    moved = plane(shape, shift=(20, 3))
    found = skydelta.noise_correlation((source, shape), moved)
    assert found.factor.shape == (2, 2) and (found.factor == 1).all() and not found.moments[1:].any()
    image = Exposure(np.zeros(shape, np.float32), wcs=source)
    turned = plane(shape, turn=2.0)
    a = skydelta.noise_correlation(image, turned, method="lanczos3")
    b = skydelta.noise_correlation((source, shape), (turned, shape), method="lanczos3")
    np.testing.assert_array_equal(a.moments, b.moments)
    bare = Exposure(np.zeros(shape, np.float32))
    assert (skydelta.noise_correlation(bare, bare, aligned=True).factor == 1).all()
    with pytest.raises(InputError, match="no celestial WCS"):
        skydelta.noise_correlation(bare, turned)


def test_where_there_is_no_image_there_is_no_factor():
    found = correlation(lambda x, y: (x + 0.3 - 200, y + 0.3), (128, 512), (200, 150), "bspline3")
    assert np.isnan(found.factor[0, [0, 3]]).all() and np.isfinite(found.factor[0, 1:3]).all()
    nowhere = correlation(lambda x, y: (np.nan * x, np.nan * y), (128, 512), (200, 150), "bspline3")
    assert np.isnan(nowhere.moments).all()


def test_same_bytes_and_the_hdu_holds_all():
    chain = SkyChain(plane((300, 300)), plane((300, 300), turn=1.0))
    a, b = (correlation(chain, (300, 300), (300, 300), "bspline3") for _ in range(2))
    assert a.moments.tobytes() == b.moments.tobytes()
    hdu = a.hdu()
    assert hdu.name == "NOISECOR" and hdu.data.shape == (4, 3, 3) and hdu.header["TILESIDE"] == 128
    np.testing.assert_allclose(hdu.data[0], a.factor, rtol=1e-6)
    np.testing.assert_allclose(NoiseCorrelation.of_hdu(hdu).of_box(8, 8), a.of_box(8, 8), rtol=1e-6)
    with pytest.raises(InputError, match=r"SCI: shape \(3, 3\)"):
        NoiseCorrelation.of_hdu(fits.ImageHDU(np.zeros((3, 3)), name="SCI"))


def test_large_images_have_larger_tiles():
    shape = (5000, 300)
    found = correlation(lambda x, y: (x + 0.5, y + 0.5), shape, shape, "nearest")
    assert found.side == 384 and found.factor.shape == (14, 1)


def test_joined_is_the_mean_by_variance():
    one, two = (NoiseCorrelation(np.full((4, 1, 2), v), 128) for v in (1.0, 2.0))
    one.moments[:, 0, 1] = np.nan
    out = joined([one, two], [np.full((1, 2), 3.0), np.full((1, 2), 1.0)])
    np.testing.assert_allclose(out.moments[:, 0], [[1.25, 2.0]] * 4)
    good = np.ones((100, 140), bool)
    good[:, 0] = False
    np.testing.assert_allclose(
        tile_means(good, Box(20, 120, 60, 200), (150, 200)), [[100 * 67 / 128**2, 100 * 72 / (128 * 72)], [0, 0]]
    )


@pytest.mark.parametrize("compress", [(), ("--compress", "RICE_1")])
def test_command_writes_it(compress, rng, tmp_path):
    shape = (150, 160)
    skydelta.write(Exposure(rng.normal(size=shape).astype(np.float32), wcs=plane(shape)), tmp_path / "a.fits")
    skydelta.write(Exposure(np.zeros(shape, np.float32), wcs=plane(shape, turn=2.0)), tmp_path / "b.fits")
    words = [tmp_path / "a.fits", "--onto", tmp_path / "b.fits", "-o", tmp_path / "c.fits", "--method", "bilinear"]
    done = click.testing.CliRunner().invoke(cli, ["align", *map(str, words), *compress, "--device", "cpu"])
    assert done.exit_code == 0, done.output
    with fits.open(tmp_path / "c.fits", checksum=True) as hdus:
        found = NoiseCorrelation.of_hdu(hdus["NOISECOR"])
    wanted = skydelta.noise_correlation(plane(shape), plane(shape, turn=2.0), method="bilinear")
    np.testing.assert_allclose(found.factor, wanted.factor, rtol=1e-6)


@pytest.mark.parametrize("sides", [(0, 1), (-3, 1), (4, 0.5), (np.nan, 2)])
def test_boxes_below_a_pixel_are_refused(sides):
    with pytest.raises(InputError, match="sides of 1 px and more"):
        NoiseCorrelation(np.ones((4, 1, 1)), 128).of_box(*sides)
