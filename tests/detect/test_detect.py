# SPDX-License-Identifier: BSD-3-Clause
"""Detection against analytic fields: recall, false peaks, scale of the S/N map, neighbours, flags, hostile input."""

import re
import subprocess
import sys
import time
import tracemalloc

import numba
import numpy as np
import pytest
from astropy import units as u
from astropy.io import fits
from astropy.table import Table
from astropy.wcs import WCS
from scipy.ndimage import binary_dilation, gaussian_filter
from scipy.spatial import cKDTree
from support_sources import SIGMA, draw, flux_of, gaussian
from support_sources import exposure as noiseless

from skydelta.errors import InputError
from skydelta.io.exposure import Exposure
from skydelta.io.psf import PixelPsf
from skydelta.kernels.backend import CPU
from skydelta.kernels.detect import components, extrema
from skydelta.kernels.significance import matched_filter
from skydelta.stages.base import Context
from skydelta.stages.detect import WINDOW, Detect, Footprints, _touching

SHAPE = (512, 500)


def detect(image, score=None, **config):
    return Detect(**config)(image, score, device="cpu")


def empty(shape=SHAPE):
    return np.zeros(shape)


def exposure(rng, model, sigma=SIGMA, variance=1.0, mask=None):
    """Model plus noise of this variance (scalar or plane)."""
    noise = rng.normal(0, 1, model.shape) * np.sqrt(variance)
    return noiseless(model + noise, sigma, variance, mask=mask)


def on_grid(rng, shape, step, jitter=0.5):
    """Positions on a grid of this step, each moved by up to ``jitter`` px: x, y."""
    y, x = np.mgrid[step // 2 : shape[0] - step // 2 + 1 : step, step // 2 : shape[1] - step // 2 + 1 : step]
    return (a.ravel() + rng.uniform(-jitter, jitter, a.size) for a in (x, y))


def positions(catalog, lobes=False):
    """Positions (n, 2) of a catalogue, px; with the lobes of dipoles too."""
    names = [("x", "y"), *([("x_pos", "y_pos"), ("x_neg", "y_neg")] if lobes else [])]
    at = np.concatenate([np.c_[catalog[a].value, catalog[b].value] for a, b in names])
    return at[np.isfinite(at).all(axis=1)]


@pytest.mark.parametrize("factor", [10.0, 1.0, 0.1])
@pytest.mark.parametrize("scored", [False, True])
def test_what_a_wrong_variance_does_to_the_candidates(rng, factor, scored):
    """The variance is ``factor`` times too small; the oracle counts rows by the scatter that this must have."""
    model = draw(empty(), *on_grid(rng, SHAPE, 60), flux_of(np.full(64, 60.0)))
    image = exposure(rng, model)
    image = image.with_(variance=image.variance / np.float32(factor))
    score = None
    if scored:
        plane = matched_filter(image.image, image.variance, image.good(), image.psf.render)
        score = Exposure(plane, notes={"snr_std": factor**0.5})
    ctx = Context(CPU)
    catalog = Detect().execute(ctx, {"image": image, "score": score})["catalog"]
    if factor == 1:
        assert "noise_scale" not in ctx.flags
        return
    said, weak = ctx.flags["noise_scale"], int((np.abs(catalog["snr"]) < 5 * factor**0.5).sum())
    scatter, words, sigma = re.search(
        r"scatters by (\S+), .* variance (\S+ times too \w+).* of 5 is (\S+) sigma", said
    ).groups()
    assert float(scatter) == pytest.approx(factor**0.5, rel=0.05)
    assert float(sigma) == pytest.approx(5 / factor**0.5, rel=0.06)
    assert words.endswith("times too small" if factor > 1 else "times too large")
    assert float(words.split()[0]) == pytest.approx(10, rel=0.1)
    if factor > 1:
        assert len(catalog) > 300
        assert ctx.metrics["candidates_below_noise"] == pytest.approx(weak, rel=0.02)
        assert f"{ctx.metrics['candidates_below_noise']} of {len(catalog)} candidates do not reach 5 sigma" in said
    else:
        assert "what is fainter is not found" in said and "candidates_below_noise" not in ctx.metrics


def distances(at, x, y):
    """Distance of the nearest of ``at`` to each (x, y), px, and its index."""
    return cKDTree(at).query(np.c_[x, y])


def mirrored(image):
    return Exposure(-image.image, image.variance, image.mask, psf=image.psf)


# kernels


def test_a_plateau_has_one_peak():
    image = np.zeros((9, 12), np.float32)
    image[2:5, 3:7] = 4
    image[6:8, 9:11] = -7
    y, x, value = extrema(image, 1.0)
    assert list(zip(y, x, value, strict=True)) == [(4, 6, 4.0), (7, 10, -7.0)]


def test_peaks_at_borders_and_beside_nan():
    image = np.full((6, 7), np.nan, np.float32)
    image[0, 0], image[5, 6], image[2, 3], image[2, 4] = 3, 5, 8, 6
    y, x, _ = extrema(image, 2.0)
    assert list(zip(y, x, strict=True)) == [(0, 0), (2, 3), (5, 6)]


def test_components_of_opposite_sign_stay_apart():
    image = np.zeros((5, 8), np.float32)
    image[2, 1:4], image[2, 4:7], image[0, 0] = 9, -9, 9
    labels, area = components(image, 5.0)
    assert list(area) == [1, 3, 3]
    assert list(labels[2]) == [0, 2, 2, 2, 3, 3, 3, 0]
    assert labels[0, 0] == 1


def test_threads_change_nothing(rng):
    image = rng.normal(0, 3, SHAPE).astype(np.float32)
    before = numba.get_num_threads()
    try:
        results = []
        for count in (1, 2):
            numba.set_num_threads(count)
            results.append([a.tobytes() for a in (*extrema(image, 4.0), components(image, 4.0)[0])])
    finally:
        numba.set_num_threads(before)
    assert results[0] == results[1]


# the map


def tenfold(shape):
    """Variance that varies tenfold over the field, smoothly one way and from row to row the other."""
    y, x = np.mgrid[: shape[0], : shape[1]]
    return 10 ** (x / shape[1]) * np.where(y % 40 < 20, 1.0, 3.0)


@pytest.mark.parametrize("kind", ["scalar", "map", "masked"])
def test_noise_has_unit_signal_to_noise(rng, figure, kind):
    shape = (1024, 1024)
    variance = 7.0 if kind == "scalar" else tenfold(shape)
    mask = (rng.random(shape) < 0.1).astype(np.int32) if kind == "masked" else None
    image = exposure(rng, empty(shape), SIGMA, variance, mask)
    score = matched_filter(image.image, image.variance, image.good(), image.psf.render)
    figure(f"detect: std of the S/N map of noise, {kind}", score[np.isfinite(score)].std(), (0.99, 1.01))
    figure(f"detect: mean of the S/N map of noise, {kind}", np.nanmean(score), (-0.03, 0.03))


def test_masked_pixels_drop_out_of_both_sums():
    shape = (64, 70)
    model = empty(shape)
    draw(model, [30.0], [31.0], [500.0])
    variance = tenfold(shape).astype(np.float32)
    good = np.ones(shape, bool)
    good[:, 31:33] = False
    psf = PixelPsf.constant(gaussian(21, 0, 0), shape)
    score = matched_filter(model.astype(np.float32), variance, good, psf.render)
    at = (slice(21, 42), slice(20, 41))
    information = (good[at] * psf.at(0, 0) ** 2 / variance[at]).sum()
    assert score[31, 30] == pytest.approx(500 * np.sqrt(information), rel=1e-4)
    assert np.isnan(score[:, 31:33]).all()


# what is found


def crowd(rng, shape=(768, 768), step=24, low=5.0):
    x, y = on_grid(rng, shape, step, jitter=3)
    snr = np.exp(rng.uniform(np.log(low), np.log(200), len(x)))
    model = empty(shape)
    draw(model, x, y, flux_of(snr))
    return exposure(rng, model), x, y, snr


def test_recall_and_purity_against_truth_and_sep(rng, figure, peer):
    image, x, y, snr = crowd(rng)
    catalog = detect(image)
    own = distances(positions(catalog), x, y)[0] < 1.5
    false = distances(np.c_[x, y], *positions(catalog).T)[0] > 2.5
    figure("detect: recall at S/N > 8", own[snr > 8].mean(), (0.99, 1))
    figure("detect: recall at S/N 6 to 8", own[(snr > 6) & (snr <= 8)].mean(), (0.88, 1))
    figure("detect: false objects", false.sum(), 1)
    sep = peer("sep")
    found = sep.extract(
        image.image, 5.0, err=np.sqrt(image.variance), minarea=1, filter_kernel=gaussian(15, 0, 0), clean=False,
        deblend_cont=1.0,
    )  # fmt: skip
    theirs = distances(np.c_[found["x"], found["y"]], x, y)[0] < 1.5
    figure("detect: recall minus that of sep's matched filter", own.mean() - theirs.mean(), (-0.01, 1))


def test_positions_reach_the_noise_limit(rng, figure):
    image, x, y, snr = crowd(rng, low=20)
    at = positions(detect(image))
    distance, k = distances(at, x, y)
    assert (distance < 1).all()
    pull = (at[k] - np.c_[x, y]) * snr[:, None] / (np.sqrt(2) * SIGMA)  # Cramer-Rao bound of a Gaussian
    figure("detect: position error over the bound", pull.std(), 1.15)
    figure("detect: mean position error, px", np.abs((at[k] - np.c_[x, y]).mean(axis=0)).max(), 0.01)


@pytest.mark.parametrize("fwhm", [1.0, 1.5])
def test_undersampled_sources_are_found(rng, fwhm):
    sigma, shape = fwhm / 2.3548, (256, 256)
    x, y = on_grid(rng, shape, 16)
    # light is collected by pixels: a PSF narrower than one has its shape from where in the pixel it falls
    model = empty(shape)
    draw(model, x, y, np.full(len(x), 60.0), sigma)
    image = exposure(rng, model, sigma)
    at = positions(detect(image))
    assert (distances(at, x, y)[0] < 1).mean() > 0.98
    assert (distances(np.c_[x, y], *at.T)[0] < 1.5).all()


def test_the_negative_image_gives_the_same_numbers(rng):
    x, y = on_grid(rng, SHAPE, 16, jitter=6)
    model = empty()
    draw(model, x, y, flux_of(rng.uniform(6, 60, len(x)) * rng.choice([-1, 1], len(x))))
    image = exposure(rng, model)
    one, two = detect(image), detect(mirrored(image))
    assert len(one) > 500
    assert one.has("DIPOLE").any()
    for name in ("id", "x", "y"):
        np.testing.assert_array_equal(one[name], two[name])
    np.testing.assert_array_equal(one["snr"], -two["snr"])
    np.testing.assert_array_equal(one["x_pos"], two["x_neg"])
    np.testing.assert_array_equal(one["y_neg"], two["y_pos"])
    negative = one.has("NEGATIVE")
    np.testing.assert_array_equal(negative, ~two.has("NEGATIVE"))
    np.testing.assert_array_equal(np.asarray(one["flags"]) - negative, np.asarray(two["flags"]) - two.has("NEGATIVE"))
    assert (np.sign(one["snr"]) == np.where(negative, -1, 1)).all()


def test_ids_follow_the_raster(rng):
    catalog = detect(crowd(rng)[0])
    np.testing.assert_array_equal(catalog["id"], np.arange(1, len(catalog) + 1))
    assert (np.diff(catalog["y"].value) >= 0).all()
    assert np.abs(np.asarray(catalog["snr"])).min() > 5


def test_perfect_differences_of_simulated_pairs(tmp_path, shared_tools, figure):
    command = [
        sys.executable,
        str(shared_tools / "make_pair.py"),
        str(tmp_path),
        "--n",
        "768",
        "--stars",
        "1100",
        "--transients",
        "30",
        "--seed",
        "4",
        "--oracle",
    ]
    subprocess.run(command, check=True, capture_output=True)
    with fits.open(tmp_path / "oracle.fits") as f:
        difference, score = (Exposure(f[name].data.astype(np.float32)) for name in ("SCI", "SNR"))
    catalog = detect(difference, score)
    truth = Table.read(tmp_path / "transients.csv")
    usable = np.isfinite(score.image[np.rint(truth["y"]).astype(int), np.rint(truth["x"]).astype(int)])
    bright = usable & (np.abs(truth["snr"]) > 6)
    assert bright.sum() > 15
    assert (distances(positions(catalog), truth["x"][bright], truth["y"][bright])[0] < 2).all()
    far = distances(np.c_[truth["x"], truth["y"]], *positions(catalog).T)[0] > 3
    figure("detect: false objects on a perfect difference", far.sum(), 1)


# neighbours


def test_two_peaks_of_one_footprint_are_two_objects(rng):
    model = empty()
    x, y = np.array([100.0, 107.0, 300.3]), np.array([200.2, 201.0, 90.0])
    draw(model, x, y, flux_of(np.array([60.0, 40.0, 50.0])))
    catalog = detect(exposure(rng, model))
    assert len(catalog) == 3
    distance, k = distances(positions(catalog), x, y)
    assert distance.max() < 0.5
    np.testing.assert_array_equal(catalog.has("BLENDED")[k], [True, True, False])


def test_bumps_of_noise_on_a_bright_source_are_no_objects(rng):
    model = empty()
    draw(model, [150.0, 350.0], [250.0, 260.0], flux_of(np.array([3000.0, -3000.0]), 6.0), 6.0, half=50)
    catalog = detect(exposure(rng, model, 6.0), threshold=6)
    assert len(catalog) == 2
    np.testing.assert_array_equal(catalog.has("NEGATIVE"), [False, True])


def pairs(rng, separation, weaker=1.0, step=40, shape=SHAPE, snr=60.0):
    """Opposite pairs on a grid: exposure, and x, y of both lobes (k, 2)."""
    x, y = on_grid(rng, shape, step)
    angle = rng.uniform(0, 2 * np.pi, len(x))
    half = separation / 2 * np.c_[np.cos(angle), np.sin(angle)]
    lobes = [np.c_[x, y] + half, np.c_[x, y] - half]
    model = empty(shape)
    for at, sign in zip(lobes, (1, -weaker), strict=True):
        draw(model, *at.T, np.full(len(x), flux_of(sign * snr)))
    return exposure(rng, model), lobes


@pytest.mark.parametrize("separation", [1.0, 1.5, 2.0, 3.0])
def test_close_opposite_lobes_are_one_dipole(rng, separation):
    image, (positive, negative) = pairs(rng, separation * SIGMA)
    catalog = detect(image)
    assert len(catalog) == len(positive)
    assert catalog.has("DIPOLE").all()
    middle = (positive + negative) / 2
    distance, k = distances(positions(catalog), *middle.T)
    assert distance.max() < 0.7
    # the filter pushes the peaks of close lobes apart, along their axis
    axis = np.c_[catalog["x_pos"] - catalog["x_neg"], catalog["y_pos"] - catalog["y_neg"]].value[k]
    cosine = (axis * (positive - negative)).sum(1) / np.hypot(*axis.T) / np.hypot(*(positive - negative).T)
    assert np.median(cosine) > 0.98
    assert (cosine > 0.8).all()


@pytest.mark.parametrize(
    ("separation", "weaker"), [(10.0, 1.0), (5.0, 0.07), (7.0, 0.7)], ids=["far", "weak neighbour", "touching, far"]
)
def test_unrelated_opposite_neighbours_stay_two(rng, separation, weaker):
    image, (positive, negative) = pairs(rng, separation * SIGMA, weaker, snr=150.0)
    catalog = detect(image, threshold=6)
    assert len(catalog) == 2 * len(positive)
    assert not catalog.has("DIPOLE").any()
    for at in (positive, negative):
        assert distances(positions(catalog), *at.T)[0].max() < 1


def test_no_source_is_lost_to_a_neighbour_of_the_other_sign(rng, figure):
    x, y = (rng.uniform(20, 480, 400) for _ in "xy")
    snr = np.exp(rng.uniform(np.log(10), np.log(200), 400)) * rng.choice([-1, 1], 400)
    model = empty()
    draw(model, x, y, flux_of(snr))
    at = positions(detect(exposure(rng, model)), lobes=True)
    gap = np.sort(np.hypot(x[:, None] - x, y[:, None] - y), axis=1)[:, 1]
    distance = distances(at, x, y)[0]
    clear = gap > 3 * SIGMA
    figure("detect: recall in a crowd of both signs", (distance < 2)[clear].mean(), (0.97, 1))


@pytest.mark.parametrize(
    ("shape", "threshold", "smooth"),
    [((60, 80), 1.7, 1.2), ((110, 130), 0.5, 4.0)],
    ids=["small", "beyond the windows"],
)
def test_footprints_touch_where_their_dilations_overlap(rng, shape, threshold, smooth):
    field = gaussian_filter(rng.normal(size=shape), smooth)
    snr = (field / field.std()).astype(np.float32)
    labels, area = components(snr, threshold)
    label = np.arange(1, len(area) + 1)
    y, x = (np.array(a) for a in zip(*(np.argwhere(labels == k)[0] for k in label), strict=True))
    footprints = Footprints(labels, np.r_[0, area], label, y, x)
    one, other = (a.ravel() for a in np.indices((len(label), len(label))))
    one, other = one[one != other], other[one != other]
    box = np.ones((3, 3), bool)
    grown = np.array([binary_dilation(labels == k, box) for k in label]).reshape(len(label), -1).astype(np.float32)
    truth = (grown @ grown.T > 0)[one, other]
    reach = [np.ptp(np.argwhere(labels == k), axis=0).max() for k in label]
    assert truth.any() and not truth.all() and (max(reach) > WINDOW) == (smooth > 2)
    assert np.array_equal(_touching(footprints, one, other), truth)


# flags


def test_flags_name_what_is_near(rng):
    spots = {
        "SATURATED": (100.0, 100.0),
        "SATURATED_TEMPLATE": (200.0, 100.0),
        "MASKED": (300.0, 100.0),
        "EDGE": (400.0, 100.0),
        "border": (1.0, 300.0),
        "far": (250.0, 400.0),
        "clean": (100.0, 400.0),
    }
    x, y = np.array(list(spots.values())).T
    model = empty()
    draw(model, x, y, np.full(len(x), flux_of(50)))
    image = exposure(rng, model, mask=np.zeros(SHAPE, np.int32))
    planes = image.planes.union(["SAT_TEMPLATE"])
    for plane, column in (("SAT", 101), ("SAT_TEMPLATE", 201), ("CR", 301), ("NO_DATA", 402), ("SAT", 256)):
        row = 400 if column == 256 else 101
        image.mask[row, column] = planes.bit(plane)
    catalog = detect(image.with_(planes=planes))
    distance, k = distances(positions(catalog), x, y)
    assert len(catalog) == len(spots)
    assert distance.max() < 0.7
    got = {
        name: {f for f in ("SATURATED", "SATURATED_TEMPLATE", "MASKED", "EDGE") if catalog.has(f)[row]}
        for name, row in zip(spots, k, strict=True)
    }
    assert got == {
        "SATURATED": {"SATURATED", "MASKED"},
        "SATURATED_TEMPLATE": {"SATURATED_TEMPLATE", "MASKED"},
        "MASKED": {"MASKED"},
        "EDGE": {"EDGE"},
        "border": {"EDGE"},
        "far": set(),
        "clean": set(),
    }


def test_sky_positions_are_those_of_the_wcs(rng):
    wcs = WCS(naxis=2)
    wcs.wcs.ctype, wcs.wcs.crval, wcs.wcs.crpix = ["RA---TAN", "DEC--TAN"], [150.0, 2.0], [200.0, 250.0]
    wcs.wcs.cdelt = [-5e-5, 5e-5]
    image = crowd(rng)[0].with_(wcs=wcs, unit=u.adu)
    catalog = detect(image)
    sky = wcs.pixel_to_world(catalog["x"].value, catalog["y"].value)
    np.testing.assert_allclose(catalog["ra"].value, sky.ra.deg, atol=1e-9)
    np.testing.assert_allclose(catalog["dec"].value, sky.dec.deg, atol=1e-9)
    assert catalog["flux"].unit == u.adu
    assert np.isnan(detect(image.with_(wcs=None))["ra"].value).all()


# hostile input


@pytest.mark.parametrize("kind", ["zero", "all NaN", "all masked"])
def test_nothing_to_find_gives_an_empty_table_with_every_column(rng, kind):
    image = exposure(rng, empty((64, 70)), mask=np.full((64, 70), int(kind == "all masked"), np.int32))
    pixels = {"zero": 0 * image.image, "all NaN": np.nan * image.image, "all masked": image.image}[kind]
    catalog = detect(image.with_(image=pixels))
    assert len(catalog) == 0
    full = detect(crowd(rng)[0])
    assert catalog.colnames == full.colnames
    assert catalog.colnames[:10] == ["id", "x", "y", "ra", "dec", "flux", "flux_err", "snr", "model", "flags"]
    assert [catalog[n].dtype for n in catalog.colnames] == [full[n].dtype for n in full.colnames]


def test_what_is_missing_is_named(rng):
    image = exposure(rng, empty((64, 64)))
    with pytest.raises(InputError, match="no variance"):
        detect(image.with_(variance=None))
    with pytest.raises(InputError, match="no PSF"):
        detect(image.with_(psf=None))
    with pytest.raises(InputError, match=r"score is \(60, 64\)"):
        detect(image, Exposure(np.zeros((60, 64), np.float32)))


def sources_beside(rng, extra, spare):
    """Faint sources on a field with something enormous in it, kept away from where ``spare`` is true."""
    x, y = on_grid(rng, SHAPE, 25, jitter=4)
    keep = ~spare[np.rint(y).astype(int), np.rint(x).astype(int)]
    x, y = x[keep], y[keep]
    model = empty()
    draw(model, x, y, np.full(len(x), flux_of(25)))
    return exposure(rng, model + extra), x, y


def test_an_enormous_blob_hides_nobody(rng):
    yy, xx = np.mgrid[: SHAPE[0], : SHAPE[1]]
    radius = np.hypot(yy - 260, xx - 240)
    image, x, y = sources_beside(rng, np.where(radius < 100, 6e4, 0), radius < 120)
    catalog = detect(image)
    own = distances(positions(catalog), x, y)[0] < 1
    assert own.all()
    inside = np.hypot(catalog["x"].value - 240, catalog["y"].value - 260) < 110
    assert inside.any()
    assert catalog.has("LARGE")[inside].all()
    assert not catalog.has("LARGE")[~inside].any()


def test_a_sky_that_was_not_subtracted(rng):
    image, x, y = sources_beside(rng, np.full(SHAPE, 1e5), np.zeros(SHAPE, bool))
    started = time.process_time()
    catalog = detect(image)
    assert time.process_time() - started < 20
    # float32 pixels on 1e5 carry noise of their own, of about 0.005
    assert (distances(positions(catalog), x, y)[0] < 1.5).mean() > 0.9
    assert catalog.has("LARGE").all()


def test_a_component_of_500_by_500_px_is_cheap(rng):
    score = rng.normal(0, 1, (700, 700)).astype(np.float32)
    psf = PixelPsf.constant(gaussian(19, 0, 0), score.shape)
    seconds = []
    for level in (0.0, 5e3):
        score[100:600, 100:600] += np.float32(level)
        plane = Exposure(score, psf=psf)
        detect(plane, plane)
        started = time.process_time()
        catalog = detect(plane, plane)
        seconds.append(time.process_time() - started)
    assert catalog.has("LARGE").any()
    assert seconds[1] - seconds[0] < 2


def test_thousands_of_components_need_little_memory(rng):
    shape = (1024, 1024)
    x, y = on_grid(rng, shape, 18, jitter=2)
    model = empty(shape)
    draw(model, x, y, flux_of(rng.uniform(10, 60, len(x)) * rng.choice([-1, 1], len(x))))
    image = exposure(rng, model)
    score = Exposure(matched_filter(image.image, image.variance, image.good(), image.psf.render))
    detect(image, score)
    tracemalloc.start()
    try:
        catalog = detect(image, score)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(catalog) > 3000
    assert peak < 6 * image.image.nbytes


@pytest.mark.parametrize("plane", ["SAT", "SAT_TEMPLATE"])
def test_saturated_pixels_are_looked_for_beyond_the_core(rng, plane):
    """What is left of the wings of a star that bright passes for sources: 5 px at a FWHM of 3.8 px are near."""
    x, y = np.array([100.0, 200.0, 300.0, 400.0]), np.full(4, 100.0)
    model = empty()
    draw(model, x, y, np.full(4, flux_of(50)))
    image = exposure(rng, model, mask=np.zeros(SHAPE, np.int32))
    planes = image.planes.union(["SAT_TEMPLATE"])
    for column, row in ((105, 100), (200, 95), (308, 100), (403, 104)):
        image.mask[row, column] = planes.bit(plane)
    catalog = detect(image.with_(planes=planes))
    _, k = distances(positions(catalog), x, y)
    name = {"SAT": "SATURATED", "SAT_TEMPLATE": "SATURATED_TEMPLATE"}[plane]
    assert list(catalog.has(name)[k]) == [True, True, False, True]
    assert not catalog.has("MASKED")[k].any()
