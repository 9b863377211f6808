# SPDX-License-Identifier: BSD-3-Clause
"""The stage: what is combined, matched, scaled, kept and refused."""

import tracemalloc

import numba
import numpy as np
import pytest
import support_standin
from astropy import units as u
from astropy.io import fits
from scipy import ndimage
from support_align import plane
from support_stack import FWHM, SHAPE, grid_field, visit

import skydelta
from skydelta.errors import AlgorithmError, ConfigError, InputError
from skydelta.io.exposure import Exposure
from skydelta.io.planes import CORE_PLANES, MaskPlanes
from skydelta.kernels.backend import CPU, resolve
from skydelta.stages.align.grids import grid_of
from skydelta.stages.base import Context
from skydelta.stages.stack import Stack

SMALL = (90, 100)
PLAIN = {"scaling": "none", "background": "none"}


def stack(images, onto=None, **config):
    ctx = Context(CPU)
    return Stack(**config).run(ctx, images=images, onto=onto), ctx


def flat(rng, shift=(0, 0), level=100.0, sigma=3.0, shape=SMALL, **more):
    """Noise on the plane moved by whole pixels."""
    wcs = plane(shape)
    wcs.wcs.crpix = np.subtract(wcs.wcs.crpix, shift)
    image = rng.normal(level, sigma, shape).astype(np.float32)
    return Exposure(image, np.full(shape, sigma**2, np.float32), np.zeros(shape, np.int32), wcs=wcs, **more)


def shifted(rng, n=5):
    """Exposures of different depth on one lattice, and their planes (n, H, W) on the union."""
    shifts = [(0, 0), (12, -7), (-5, 9), (3, 3), (20, 15)][:n]
    images = [flat(rng, s, sigma=2.0 + k, id=f"v{k}.fits") for k, s in enumerate(shifts)]
    x0, y0 = np.min(shifts, axis=0)
    w, h = np.max(shifts, axis=0) - (x0, y0) + SMALL[::-1]
    values, variances = np.full((n, h, w), np.nan), np.full((n, h, w), np.nan)
    for k, ((x, y), e) in enumerate(zip(shifts, images, strict=True)):
        at = k, slice(y - y0, y - y0 + SMALL[0]), slice(x - x0, x - x0 + SMALL[1])
        values[at], variances[at] = e.image, e.variance
    return images, values, variances


@pytest.mark.parametrize("method", ["mean", "weighted", "median", "clipped"])
def test_whole_pixel_shifts_are_numpy_s(method, rng):
    images, values, variances = shifted(rng)
    out, ctx = stack(images, method=method, **PLAIN, **({"sigma": 50} if method == "clipped" else {}))
    there = np.isfinite(values)
    w = np.array([np.median(e.variance) for e in images])[:, None, None] ** -1 if method != "mean" else 1.0
    w = w * np.where(there, 1.0, 0.0)
    with np.errstate(invalid="ignore"):
        wanted = np.nansum(w * values, axis=0) / w.sum(axis=0)
        noise = np.nansum(w**2 * variances, axis=0) / w.sum(axis=0) ** 2
    if method == "median":
        with np.errstate(invalid="ignore"):
            wanted = np.ma.median(np.ma.array(values, mask=~there), axis=0).filled(np.nan)
    stacked = out["stacked"]
    np.testing.assert_allclose(stacked.image, wanted, rtol=1e-6)
    if method != "median":
        np.testing.assert_allclose(stacked.variance, noise, rtol=1e-6)
    np.testing.assert_array_equal(out["coverage"].image, there.sum(axis=0))
    assert ((stacked.mask & stacked.planes.bit("NO_DATA")) != 0).tolist() == (~there.any(axis=0)).tolist()
    assert set(out["table"]["resampling"]) == {"copy"}
    assert "no image was interpolated" in stacked.notes["noise"]
    assert ctx.metrics["images"] == 5
    x, y = stacked.wcs.all_world2pix(*images[1].wcs.all_pix2world(4.0, 5.0, 0), 0)
    assert stacked.image[round(float(y)), round(float(x))] == pytest.approx(wanted[round(float(y)), round(float(x))])


def test_offsets_are_recovered(rng, figure):
    field = grid_field(rng)
    skies = rng.uniform(50, 150, 5)
    images = [visit(field, rng, k, sky=s) for k, s in enumerate(skies)]
    out, _ = stack(images, scaling="none")
    off = (out["table"]["level"] - out["table"]["level"].mean()) - (skies - skies.mean())
    figure("offset error, sky sigma", np.abs(off).max() / np.median(out["table"]["sky_noise"]), 0.1)
    figure("formal error of a level, sky sigma", max(out["table"]["level_error"]) / 8, 0.05)


def test_planes_are_recovered(rng, figure):
    field = grid_field(rng)
    slopes = rng.uniform(-0.1, 0.1, (5, 2))
    images = [visit(field, rng, k, slope=s, moved=False) for k, s in enumerate(slopes)]
    out, ctx = stack(images, scaling="none", background="plane", aligned=True)
    table = out["table"]
    found = np.stack([table["slope_x"], table["slope_y"]], axis=1)
    across = np.abs((found - found.mean(axis=0)) - (slopes - slopes.mean(axis=0))).max() * SHAPE[1]
    figure("slope error over the image, sky sigma", across / np.median(table["sky_noise"]), 0.1)
    assert 0.5 < ctx.metrics["background_scatter"] < 2


def test_a_chain_of_overlaps_is_matched_and_what_hangs_free_is_said(rng):
    chain = [flat(rng, (60 * k, 0), level=100.0 + 7 * k, id=f"c{k}") for k in range(4)]
    out, ctx = stack(chain, scaling="none", method="mean")
    assert np.ptp(out["table"]["level"] - 7 * np.arange(4)) < 0.5
    assert np.nanstd(out["stacked"].image) < 3.5 and "not_connected" not in ctx.flags
    _, ctx = stack([*chain, flat(rng, (600, 0), id="far")], scaling="none", method="mean")
    assert "far" in ctx.flags["not_connected"]


def test_scales_are_recovered_from_stars(rng, figure):
    field = grid_field(rng, spacing=30, fluxes=(4.7, 5.7))
    scales = np.array([1.0, 0.7, 1.3, 0.95, 1.1])
    seeing = FWHM * np.array([1, 1.2, 0.9, 1.1, 0.8])
    images = [visit(field, rng, k, scale=scales[k], fwhm=seeing[k]) for k in range(5)]
    out, _ = stack(images, method="mean")
    table = out["table"]
    figure("largest error of a fitted scale", np.abs(table["scale"] * scales - 1).max(), 2e-3)
    assert set(table["scale_from"]) == {"stars"} and table["scale"][0] == 1 and min(table["stars"]) >= 30


def test_scales_come_from_zero_points_or_as_given(rng):
    points = [27.5, 27.0, 28.25]
    images = [flat(rng, level=100.0 * 10 ** (0.4 * (p - 27.5)), id=str(p)) for p in points]
    with_cards = [e.with_(header=fits.Header({"MAGZERO": p})) for e, p in zip(images, points, strict=True)]
    out, _ = stack(with_cards, method="mean", background="none")
    np.testing.assert_allclose(out["table"]["scale"], 10 ** (-0.4 * (np.array(points) - 27.5)))
    assert set(out["table"]["scale_from"]) == {"MAGZERO"}
    assert np.mean(out["stacked"].image) == pytest.approx(100, abs=0.1)
    assert out["stacked"].header.get("MAGZERO") == 27.5
    np.testing.assert_allclose(out["stacked"].variance, (9 * out["table"]["scale"] ** 2).sum() / 9, rtol=1e-5)
    given, _ = stack(images, method="mean", background="none", scales=list(out["table"]["scale"]))
    np.testing.assert_allclose(given["stacked"].image, out["stacked"].image, rtol=1e-6)


@pytest.mark.parametrize("n", [2, 9])
def test_depth_grows_as_the_root(n, rng, figure):
    field = grid_field(rng, fluxes=(-3, -2))
    out, _ = stack([visit(field, rng, k) for k in range(n)], onto=plane(SHAPE), method="mean", scaling="none")
    stacked = out["stacked"]
    inner = np.s_[20:-20, 20:-20]
    pull = (stacked.image[inner] - np.median(stacked.image[inner])) / np.sqrt(stacked.variance[inner])
    figure(f"noise of a stack of {n} over its variance plane", pull.std(), (0.97, 1.03))
    first = float(np.sqrt(np.median(visit(field, rng, 0).variance)))
    assert np.median(np.sqrt(stacked.variance[inner])) < 1.02 * first / np.sqrt(n)


@pytest.mark.parametrize("method", ["mean", "weighted", "median", "clipped"])
def test_flux_of_stars_is_kept(method, rng, figure):
    field = grid_field(rng)
    images = [visit(field, rng, k, noise=False, sky=0.0) for k in range(5)]
    out, _ = stack(images, onto=images[0], method=method, **PLAIN)
    ratio = field.boxes(out["stacked"].image, images[0].wcs) / field.flux - 1
    assert np.isfinite(ratio).sum() > 40
    figure(f"flux of stars, {method}", np.nanmax(np.abs(ratio)), 1e-3)


def cosmic_rays(rng, image, count=25):
    """Tracks of 2 to 12 px away from stars; where they are."""
    hit = np.zeros(image.shape, bool)
    free = image < 130
    for _ in range(count):
        x0, y0, turn = *rng.uniform(12, np.array(image.shape[::-1]) - 12), rng.uniform(0, np.pi)
        t = np.arange(rng.integers(2, 12))
        track = np.rint(y0 + t * np.sin(turn)).astype(int), np.rint(x0 + t * np.cos(turn)).astype(int)
        if free[track].all():
            image[track] += 10 ** rng.uniform(2.5, 4)
            hit[track] = True
    return hit


def test_cosmic_rays_go_and_stars_stay_where_seeing_differs(rng, figure):
    field = grid_field(rng)
    seeing = FWHM * np.linspace(0.8, 1.2, 7)
    clean = [visit(field, rng, k, fwhm=f) for k, f in enumerate(seeing)]
    hit = [e.with_(image=e.image.copy()) for e in clean]
    tracks = [cosmic_rays(rng, e.image) for e in hit]
    hit[3].image[np.arange(SHAPE[0]), np.arange(SHAPE[0])] += 2000.0  # a satellite
    mean, clipped, alone = (
        stack(i, onto=plane(SHAPE), method=m, **PLAIN)[0]
        for i, m in ((clean, "weighted"), (hit, "clipped"), (clean, "clipped"))
    )
    inner = np.s_[15:-15, 15:-15]
    dark = ndimage.maximum_filter(field.draw(plane(SHAPE), fwhm=seeing[-1]), 5)[inner] < 20
    pull = ((clipped["stacked"].image - mean["stacked"].image) / np.sqrt(mean["stacked"].variance))[inner]
    assert dark.mean() > 0.6
    figure("largest trace of cosmic rays and a satellite, sigma of the stack", np.abs(pull[dark]).max(), 4.0)
    table = clipped["table"]
    assert (table["clipped"] >= [t.sum() for t in tracks]).all() and table["clipped"][3] > 2 * SHAPE[0]
    stacked = clipped["stacked"]
    assert 0.9 < table["clipped"].sum() / ((stacked.mask & stacked.planes.bit("CLIPPED")) != 0).sum() < 1.6
    sums = [field.boxes(o["stacked"].image - 100, clean[0].wcs) for o in (alone, mean)]
    bright = (field.flux > 1e5) & np.isfinite(sums[0])
    assert bright.sum() > 15
    figure("flux of bright stars, clipped over weighted mean", np.abs(sums[0] / sums[1] - 1)[bright].max(), 1e-3)


def test_bad_pixels_are_bad_only_where_no_image_is_good(rng):
    images = [flat(rng, id=str(k)) for k in range(3)]
    p = images[0].planes
    for k, e in enumerate(images):
        e.mask[10, 10] = p.bit("SAT")
        e.mask[20, 20] = p.bit("BAD")
        e.mask[30, 30] = p.bit("SAT") if k else 0
        e.mask[40, 40] = 0 if k else p.bit("CR")
        e.mask[50, 50] = p.bit("INTERP") if k == 2 else 0
        e.mask[60, 60] = p.bit("BAD") if k == 2 else p.bit("SAT")
    for method in ("mean", "weighted", "median", "clipped"):
        out, _ = stack(images, method=method, aligned=True, **PLAIN)
        s, n = out["stacked"], out["coverage"].image
        b = s.planes.bit
        assert s.mask[10, 10] == b("SAT") and n[10, 10] == 3 and np.isfinite(s.image[10, 10])
        assert s.mask[20, 20] == b("BAD", "NO_DATA") and n[20, 20] == 0 and np.isnan(s.image[20, 20])
        assert np.isnan(s.variance[20, 20])
        assert s.mask[30, 30] == b("INEXACT_PSF") and s.image[30, 30] == images[0].image[30, 30]
        assert s.mask[40, 40] == b("INEXACT_PSF") and n[40, 40] == 2
        assert s.mask[50, 50] == b("INTERP") and n[50, 50] == 3
        assert s.mask[60, 60] == b("SAT", "INEXACT_PSF") and n[60, 60] == 2
        assert s.mask[0, 0] == 0
        assert s.good().sum() == s.image.size - 3


def test_planes_are_merged_by_name_and_too_many_are_said(rng):
    ours = MaskPlanes.of({**{n: i + 3 for i, n in enumerate(CORE_PLANES)}, "GHOST": 0})
    many = MaskPlanes().union([f"P{i}" for i in range(22)])
    images = [flat(rng, id="a"), flat(rng, id="b", planes=ours), flat(rng, id="c", planes=many)]
    images[1].mask[5, 5], images[1].mask[6, 6] = ours.bit("GHOST"), ours.bit("BAD")
    images[2].mask[7, 7] = many.bit("P0", "P21")
    out, ctx = stack(images, method="mean", aligned=True, **PLAIN)
    s = out["stacked"]
    assert s.mask[5, 5] == s.planes.bit("GHOST") and s.mask[6, 6] == s.planes.bit("INEXACT_PSF")
    assert s.mask[7, 7] == s.planes.bit("P0") and "P21" in ctx.flags["planes_dropped"]


def test_header_says_what_the_whole_is(rng):
    cards = {"FILTER": "r", "EXPTIME": 30.0, "GAIN": 2.0, "OBSERVER": "x", "SATURATE": 6e4, "AIRMASS": 1.1}
    images = [flat(rng, id=str(k), header=fits.Header(cards), unit=u.adu) for k in range(4)]
    images[2].header["AIRMASS"] = 1.5
    out, _ = stack(images, method="mean", aligned=True, **PLAIN)
    h = out["stacked"].header
    assert (h["FILTER"], h["EXPTIME"], h["TOTEXP"], h["GAIN"], h["NCOMBINE"]) == ("r", 30.0, 120.0, 8.0, 4)
    assert "AIRMASS" not in h and "SATURATE" not in h and out["stacked"].unit == u.adu
    assert out["stacked"].psf is None and "measure" in out["stacked"].notes["psf"]


def test_memory_does_not_grow_with_the_number_of_files(rng, tmp_path, figure):
    shape = (256, 256)
    field = grid_field(rng, shape)
    paths = []
    for k in range(24):
        paths.append(tmp_path / f"v{k}.fits")
        skydelta.write(visit(field, rng, k, shape=shape), paths[-1])
    for method in ("clipped", "mean"):
        peaks = []
        for n in (3, 4, 24):  # the first run loads and compiles
            tracemalloc.start()
            stack(paths[:n], onto=plane(shape), method=method, scaling="none", budget=1 << 20)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        figure(f"memory of 20 more files over the budget, {method}", (peaks[2] - peaks[1]) / (1 << 20), 1.0)


def test_same_bytes_whatever_budget_and_threads(rng):
    field = grid_field(rng, (160, 170), fluxes=(3, 5))
    images = [visit(field, rng, k, shape=(160, 170)) for k in range(6)]
    most = numba.get_num_threads()
    for method in ("clipped", "weighted", "median"):
        found = []
        for budget, threads in ((1 << 20, 1), (1 << 30, most), (2 << 20, most)):
            numba.set_num_threads(threads)
            out, _ = stack(images, method=method, budget=budget)
            s = out["stacked"]
            found.append(b"".join(p.tobytes() for p in (s.image, s.variance, s.mask, out["weight"].image)))
        numba.set_num_threads(most)
        assert found[0] == found[1] == found[2]


def test_a_device_aligns_and_the_host_combines(rng, monkeypatch):
    """On arrays that stand for a device's and refuse to mix with the host's."""
    field = grid_field(rng, (160, 170))
    images = [visit(field, rng, k, shape=(160, 170)) for k in range(3)]
    for method in ("clipped", "mean"):
        want, _ = stack(images, method=method)
        with monkeypatch.context() as patch:
            support_standin.install(patch)
            ctx = Context(resolve("cuda"))
            made = Stack(method=method).run(ctx, images=images)
        for name in ("image", "variance", "mask"):
            a, b = (getattr(o["stacked"], name) for o in (made, want))
            assert type(a) is np.ndarray
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_grids(rng):
    field = grid_field(rng)
    images = [visit(field, rng, k) for k in range(3)]
    for onto, scale in ((None, None), ("north-up", None), ("north-up", 0.6), ("mosaic", 0.5)):
        out, _ = stack(images, onto=onto, method="mean", scaling="none", pixel_scale=scale)
        matrix = out["stacked"].wcs.pixel_scale_matrix * 3600
        assert np.sqrt(abs(np.linalg.det(matrix))) == pytest.approx(scale or 0.3, rel=1e-3)
        assert onto != "north-up" or abs(matrix[0, 1]) < 1e-9
        assert out["coverage"].image.max() == 3
    out, _ = stack(images, onto=images[2], method="mean", scaling="none")
    assert out["stacked"].shape == SHAPE and grid_of(out["stacked"]).wcs is images[2].wcs


def test_one_image_is_itself(rng):
    image = flat(rng, id="only")
    image.mask[3, 3] = image.planes.bit("SAT")
    for method in ("mean", "weighted", "median", "clipped"):
        out, ctx = stack([image], method=method)
        s = out["stacked"]
        np.testing.assert_allclose(s.image, image.image, rtol=1e-6)
        np.testing.assert_allclose(s.variance, image.variance, rtol=1e-6)
        assert s.mask[3, 3] == s.planes.bit("SAT") and "single_image" in ctx.flags


def test_units_and_filters(rng):
    jy = flat(rng, id="jy", unit=u.Jy)
    mjy = flat(rng, id="mjy", unit=u.mJy, level=1e5, sigma=3e3)
    out, _ = stack([jy, mjy], method="mean", aligned=True, **PLAIN)
    assert out["table"]["scale"].tolist() == [1, 1e-3] and out["stacked"].unit == u.Jy
    assert np.mean(out["stacked"].image) == pytest.approx(100, rel=1e-3)
    adu = flat(rng, id="adu.fits", unit=u.adu)
    with pytest.raises(InputError, match=r"adu\.fits has unit adu, jy Jy; .* or scales are needed"):
        stack([jy, adu], aligned=True, **PLAIN)
    stack([jy, adu], aligned=True, method="mean", background="none", scales=[1, 2])
    _, ctx = stack([jy, flat(rng, id="none")], aligned=True, method="mean", **PLAIN)
    assert "taken as the same" in ctx.flags["units"]
    red, blue = (flat(rng, id=f, header=fits.Header({"FILTER": f})) for f in "rg")
    _, ctx = stack([red, blue], method="mean", aligned=True, **PLAIN)
    assert "different filters" in ctx.flags["filters"] and "g g" in ctx.flags["filters"]


def test_what_cannot_be_used_is_named_and_skipped_only_when_asked(rng, tmp_path):
    good = [flat(rng, id="a.fits"), flat(rng, (3, 2), id="b.fits")]
    broken = tmp_path / "broken.fits"
    skydelta.write(good[0], broken)
    broken.write_bytes(broken.read_bytes()[:20000])
    far = flat(rng, id="far.fits").with_(wcs=plane(SMALL, sky=(217.0, 11.0)))
    blank = flat(rng, id="blank.fits")
    blank.image[:] = np.nan
    bare = flat(rng, id="bare.fits").with_(wcs=None)
    cases = (
        (str(broken), "broken.fits"),
        (str(tmp_path / "gone.fits"), "gone.fits"),
        (far, r"far\.fits does not overlap the target: it lies at|far.fits"),
        (blank, "blank.fits has no usable pixel"),
        (bare, r"bare\.fits has no celestial WCS; register it first"),
        (flat(rng, id="thin.fits").with_(variance=None), r"thin\.fits has no variance"),
    )
    for bad, words in cases:
        with pytest.raises(InputError, match=words):
            stack([good[0], bad, good[1]], onto=good[0], **PLAIN)
        out, ctx = stack([good[0], bad, good[1]], onto=good[0], on_error="skip", **PLAIN)
        assert out["table"]["id"].tolist() == ["a.fits", "b.fits"]
        assert len(ctx.metrics["skipped"]) == 1 and "skipped_1" in ctx.flags
    with pytest.raises(InputError, match="no image is left of 1"):
        stack([bare], on_error="skip")


@pytest.mark.parametrize(
    ("images", "config", "error", "words"),
    [
        ([], {}, InputError, "no images"),
        ("a.fits", {}, InputError, "a list of images"),
        (2, {"scales": [1]}, ConfigError, "1 scales for 2 images"),
        (2, {"scales": [1, -1]}, ConfigError, "positive numbers"),
        (2, {"scaling": "header"}, InputError, "v0.fits has no zero point"),
        (2, {"scaling": "stars"}, AlgorithmError, "v1.fits: 0 stars in common"),
        (2, {"scratch": "/nowhere", "budget": 1 << 20, "shape": (300, 400)}, InputError, "/nowhere/scratch: "),
    ],
)
def test_wrong_use_is_one_line(images, config, error, words, rng):
    shape = config.pop("shape", SMALL)
    if isinstance(images, int):
        images = [flat(rng, shape=shape, id=f"v{k}.fits") for k in range(images)]
    with pytest.raises(error, match=words):
        stack(images, **config)


def test_too_few_stars_are_said(rng):
    _, ctx = stack([flat(rng, id="a"), flat(rng, id="b")], method="mean")
    assert "0 stars in common" in ctx.flags["not_scaled_2"]


def test_public_function_takes_arguments_of_any_kind(rng):
    images = [flat(rng, id=str(k)) for k in range(2)]
    out = skydelta.stack((e for e in images), onto="north-up", method="mean", device="cpu", **PLAIN)
    assert set(out) == {"stacked", "coverage", "weight", "correlation", "table"}
    ccd = [e.to_ccddata() for e in images]
    again = skydelta.stack(ccd, onto="north-up", method="mean", device="cpu", **PLAIN)
    np.testing.assert_allclose(again["stacked"].image, out["stacked"].image, rtol=1e-6)


@pytest.mark.parametrize("resampling", ["bspline3", "bilinear"])
def test_noise_of_boxes_is_the_factor_times_the_variance_plane(resampling, rng, figure):
    """Exposures of different depth, some of them copied: sums over 16 x 16 px of blank sky."""
    field = grid_field(rng, fluxes=(-3, -2))
    power, plain, found = [], [], []
    for _ in range(12):
        images = []
        for k in range(4):
            e = visit(field, rng, k, sky=0.0)
            depth = np.float32(1 + 0.4 * k)
            images.append(e.with_(image=e.image * depth, variance=e.variance * depth**2))
        out, _ = stack(images, onto=plane(SHAPE), method="weighted", resampling=resampling, **PLAIN)
        assert set(out["table"]["resampling"]) == {"copy", resampling}
        inside = np.s_[38:262, 40:280]
        image, variance = out["stacked"].image[inside], out["stacked"].variance[inside]
        boxes = image.reshape(14, 16, 15, 16).sum(axis=(1, 3), dtype=float)
        power.append((boxes**2).sum())
        plain.append(variance.sum(dtype=float))
        found.append(np.nanmean(out["correlation"].of_box(16, 16) ** 2))
    ratio = np.sqrt(np.sum(power) / np.sum(plain) / np.mean(found))
    figure(f"noise of 16 x 16 px of a stack of 4, {resampling}: over factor - 1", abs(ratio - 1), 0.05)
