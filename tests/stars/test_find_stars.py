# SPDX-License-Identifier: BSD-3-Clause
"""Stars against analytic fields: centres, widths, selection, scale, sign, threads; real crowded and spiky frames."""

import numba
import numpy as np
import pytest
from astropy.io import fits
from scipy.ndimage import median_filter
from support_stars import draw, nearest, observe, spread_positions

from skydelta.io.exposure import Exposure
from skydelta.stages.stars import find_stars

SHAPE = (511, 512)


def field(rng, fwhm=3.5, number=150, flux=(3e3, 2e5), beta=3.5, sky=400.0):
    """Well separated stars of log-uniform flux: exposure and true x, y, flux."""
    x, y = spread_positions(rng, SHAPE, number, margin=max(12, 3 * fwhm))
    flux = np.exp(rng.uniform(*np.log(flux), number))
    model = np.zeros(SHAPE)
    draw(model, x, y, flux, fwhm, beta=beta)
    return observe(rng, model, sky), x, y, flux


def columns(stars):
    return np.column_stack([stars.x, stars.y, stars.flux, stars.snr, stars.fwhm, stars.isolated, stars.saturated])


def test_all_isolated_stars_are_found_and_nothing_else(rng):
    exposure, x, y, _ = field(rng)
    stars = find_stars(exposure)
    distance, _ = nearest(stars, x, y)
    assert (distance < 0.5).mean() > 0.97
    assert len(stars) <= len(x)
    assert (stars.isolated & ~stars.saturated).mean() > 0.97
    assert (np.diff(stars.snr) <= 0).all()


def test_centres_are_unbiased_and_noise_limited(rng, figure):
    exposure, x, y, flux = field(rng, flux=(1e4, 2e5))
    stars = find_stars(exposure)
    _, k = nearest(stars, x, y)
    dx, dy = stars.x[k] - x, stars.y[k] - y
    # Cramer-Rao bound of a Gaussian star on this sky: sigma_x = 2 sqrt(pi) s^2 ... = s / (S/N) / sqrt(2) x 2
    s = 3.5 / 2.355
    noise = np.sqrt((flux + 4 * np.pi * s**2 * (400 + 36 / 1.5**2)) / 1.5) / flux
    bound = s * np.sqrt(2) * noise
    figure("stars: centre error over a Gaussian bound", np.std(np.r_[dx, dy] / np.r_[bound, bound]), (0.5, 1.5))
    figure("stars: mean shift of centres, px", np.abs([dx.mean(), dy.mean()]).max(), 0.01)
    bright = flux > 1e5
    figure("stars: centre rms of bright stars, px", np.hypot(dx, dy)[bright].std(), 0.02)


@pytest.mark.parametrize("fwhm", [1.5, 2.5, 4.0, 8.0, 15.0])
def test_widths_of_gaussian_stars(rng, figure, fwhm):
    number = 60 if fwhm < 10 else 25
    exposure, x, y, _ = field(rng, fwhm, number, flux=(2e4 * fwhm, 5e4 * fwhm), beta=None)
    stars = find_stars(exposure)
    distance, k = nearest(stars, x, y)
    assert (distance < 0.3 * fwhm).mean() > 0.9
    figure(f"stars: FWHM {fwhm} px, relative error", np.median(stars.fwhm[k]) / fwhm - 1, (-0.02, 0.02))
    assert np.median(stars.ellipticity[k]) < 0.05


@pytest.mark.parametrize("number", [0, 1, 2, 5])
def test_few_stars(rng, number):
    exposure, x, y, _ = field(rng, number=max(number, 1), flux=(5e4, 1e5))
    if not number:
        exposure = observe(rng, np.zeros(SHAPE))
    stars = find_stars(exposure)
    assert len(stars) == number
    if number:
        assert nearest(stars, x, y)[0].max() < 0.1


def test_stars_that_are_all_alike_on_a_line():
    """Equal S/N, one row: neither a brighter half nor a slope across the row."""
    image = np.zeros((101, 1024))
    x = np.arange(20, 1010, 25)
    draw(image, x, 50, 1e5, 3.5)
    stars = find_stars(Exposure(image.astype(np.float32), np.full(image.shape, 400, np.float32)))
    assert len(stars) == len(x)
    assert stars.isolated.all() and not stars.saturated.any()
    np.testing.assert_allclose(np.sort(stars.x), x, atol=1e-6)


def test_galaxies_and_cosmic_rays_are_left_out(rng):
    exposure, x, y, _ = field(rng)
    model = np.zeros(SHAPE)
    gx, gy = spread_positions(rng, SHAPE, 40, 20)
    far = np.hypot(gx[:, None] - x, gy[:, None] - y).min(axis=1) > 15
    gx, gy = gx[far], gy[far]
    draw(model, gx, gy, 5e4, 7.0, beta=2.5, e1=rng.uniform(-0.4, 0.4, far.sum()))
    image = exposure.image + model.astype(np.float32)
    cx, cy = (rng.integers(20, 490, 30) for _ in range(2))
    image[cy, cx] += 5e3
    stars = find_stars(exposure.with_(image=image))
    good = stars.take(~stars.saturated)
    assert (nearest(good, gx, gy)[0] < 3).sum() <= 1
    clear = np.hypot(cx[:, None] - x, cy[:, None] - y).min(axis=1) > 10
    assert (nearest(good, cx[clear], cy[clear])[0] < 1.5).sum() == 0
    assert stars.rejected["too sharp"] >= clear.sum() // 2
    assert stars.rejected["too broad"] + stars.rejected["elongated"] >= far.sum() // 2


@pytest.mark.parametrize("stars_number", [1, 12])
def test_few_stars_among_galaxies_of_a_common_width(rng, stars_number):
    """Most peaks are alike, and none of these is a star: a point is as narrow as nothing else."""
    x, y = spread_positions(rng, SHAPE, 72, 20)
    galaxy = np.arange(72) >= stars_number
    # a scatter of 8 % in width, as galaxies of one redshift may have after seeing; the PSF varies by 5 %
    fwhm = np.where(galaxy, 4.7 * np.exp(rng.normal(0, 0.08, 72)), 3.4 * (1 + 0.05 * (x / 256 - 1)))
    flux = np.where(galaxy, rng.uniform(2e4, 1e5, 72), 4e4)
    flux[0] = 2e5
    model = np.zeros(SHAPE)
    draw(model, x, y, flux, np.where(galaxy, np.maximum(fwhm, 4.3), fwhm))
    stars = find_stars(observe(rng, model))
    distance, k = nearest(stars, x, y)
    assert distance.max() < 0.5  # all of them stay in the list, the brightest star too
    assert stars.compact[k][~galaxy].all()
    assert not stars.compact[k][galaxy].any()


def test_a_varying_psf_is_not_taken_for_galaxies(rng):
    x, y = spread_positions(rng, SHAPE, 80, 20)
    model = np.zeros(SHAPE)
    flux = np.exp(rng.uniform(*np.log((2e4, 2e5)), 80))
    draw(model, x, y, flux, 3.5 * (1 + 0.15 * (x / 256 - 1) + 0.1 * (y / 256 - 1) ** 2))
    stars = find_stars(observe(rng, model))
    assert nearest(stars, x, y)[0].max() < 0.5
    assert stars.compact.all()


def test_neighbours_are_flagged_by_their_share(rng):
    x, y = spread_positions(rng, SHAPE, 60, 30)
    model = np.zeros(SHAPE)
    draw(model, x, y, 1e5, 3.5)
    share = np.where(np.arange(60) % 3 == 0, 0.3, 0.005)
    pair = np.arange(60) % 3 != 2
    draw(model, (x + 9)[pair], y[pair], 1e5 * share[pair], 3.5)
    stars = find_stars(observe(rng, model))
    distance, k = nearest(stars, x, y)
    assert distance.max() < 0.5
    assert not stars.isolated[k][np.arange(60) % 3 == 0].any()
    assert stars.isolated[k][np.arange(60) % 3 != 0].all()


def test_saturated_masked_and_cut_stars_are_flagged(rng):
    exposure, x, y, _ = field(rng, number=60, flux=(5e4, 2e5))
    mask = exposure.mask.copy()
    for k in range(10):
        mask[round(y[k]), round(x[k])] = exposure.planes.bit("SAT")
    stars = find_stars(exposure.with_(mask=mask))
    distance, k = nearest(stars, x, y)
    found = distance < 1.5
    assert stars.saturated[k][:10][found[:10]].all()
    assert not stars.saturated[k][10:].any()
    cut = find_stars(exposure.with_(image=exposure.image[:, round(x[12]) :], variance=None, mask=None))
    edge = cut.take(cut.x < 1.5)
    assert edge.saturated.all()


def test_power_of_two_units_change_no_position(rng):
    exposure, *_ = field(rng, number=60)
    stars = find_stars(exposure)
    for scale in (2.0**-20, 2.0**20):
        other = find_stars(
            exposure.with_(image=exposure.image * np.float32(scale), variance=exposure.variance * np.float32(scale**2))
        )
        np.testing.assert_array_equal(other.x, stars.x)
        np.testing.assert_array_equal(other.fwhm, stars.fwhm)
        np.testing.assert_allclose(other.flux, stars.flux * scale, rtol=1e-12)


def test_images_scaled_to_one_without_variance(rng):
    exposure, x, y, flux = field(rng, number=60, flux=(1e4, 2e5))
    stars = find_stars(Exposure((exposure.image / 65535).astype(np.float32)))
    distance, k = nearest(stars, x, y)
    assert distance.max() < 0.3
    ratio = stars.flux[k] * 65535 / flux
    assert np.std(ratio) / np.mean(ratio) < 0.05


def test_negative_image_has_no_stars(rng):
    exposure, *_ = field(rng)
    assert len(find_stars(exposure.with_(image=-exposure.image))) == 0


def test_everything_masked_gives_no_star(rng):
    exposure, *_ = field(rng, number=5)
    assert len(find_stars(exposure.with_(mask=exposure.mask | exposure.planes.bit("BAD")))) == 0


def test_nan_and_bad_variance_do_not_spread(rng):
    exposure, x, y, _ = field(rng, number=60, flux=(2e4, 2e5))
    image, variance = exposure.image.copy(), exposure.variance.copy()
    far = np.hypot(*(np.indices(SHAPE)[:, :, :, None] - np.array([y, x])[:, None, None, :])).min(axis=2) > 12
    hit = far & (rng.random(SHAPE) < 0.05)
    image[hit] = rng.choice([np.nan, np.inf, -np.inf, 1e9], hit.sum())
    variance[hit & ~(image < 1e8)] = 1
    variance[hit & (image == 1e9)] = rng.choice([0, -1, np.nan], (hit & (image == 1e9)).sum())
    stars = find_stars(exposure.with_(image=image, variance=variance))
    distance, k = nearest(stars, x, y)
    assert distance.max() < 0.3
    assert stars.isolated[k].all()
    assert len(stars) == len(x)


def test_same_bytes_with_one_and_two_threads(rng):
    exposure, *_ = field(rng)
    results = []
    before = numba.get_num_threads()
    try:
        for threads in (1, 2):
            numba.set_num_threads(threads)
            results.append(columns(find_stars(exposure)).tobytes())
    finally:
        numba.set_num_threads(before)
    assert results[0] == results[1]


def test_crowded_bulge_frame(shared_data, figure):
    image = fits.getdata(shared_data / "pairs/saao_bulge/AKB13475I0007.fits").astype(np.float32)
    sky = median_filter(image[::8, ::8], 9)
    flat = image - np.float32(np.percentile(sky, 25))
    stars = find_stars(Exposure(flat, mask=np.where(image > 60000, 2, 0).astype(np.int32)))
    usable = stars.isolated & ~stars.saturated
    assert usable.sum() >= 10
    figure("stars: FWHM in the bulge frame, px", np.median(stars.fwhm[usable]), (4.2, 6.2))  # card: 5.15


def test_jwst_point_sources_among_galaxies(shared_data, figure):
    folder = shared_data / "pairs/jwst_nircam_f200w"
    epochs = []
    for name in ("jw01324001001-01324-o001_t001", "jw02561001002-02561-o001_t003"):
        base = folder / f"{name}_nircam_clear-f200w_i2d_stamp"
        image, sigma = (fits.getdata(f"{base}{end}").astype(np.float32) for end in (".fits", ".noise.fits"))
        stars = find_stars(Exposure(image - np.float32(np.nanmedian(image)), sigma**2))
        points = stars.take(stars.compact & stars.isolated & ~stars.saturated)
        assert len(stars) > 100  # galaxies stay in the list
        figure(f"stars: JWST {name[:11]}, FWHM of points, px", np.median(points.fwhm), (2.3, 2.8))
        epochs.append(points)
    distance, _ = nearest(epochs[0], epochs[1].x, epochs[1].y)
    assert (distance < 1.0).sum() >= 8
