# SPDX-License-Identifier: BSD-3-Clause
"""Sources of any image: peak tree, photometry against sep, recall against truth, real images, the command."""

import numpy as np
import pytest
import support_standin
from astropy import units as u
from astropy.io import fits
from astropy.table import QTable, Table
from astropy.wcs import WCS
from click.testing import CliRunner
from scipy.ndimage import gaussian_filter, maximum_filter
from scipy.ndimage import label as connected
from scipy.spatial import cKDTree
from support_sources import SIGMA, draw, exposure, flux_of

import skydelta
from skydelta.errors import AlgorithmError, ConfigError, InputError
from skydelta.io.catalog import Catalog
from skydelta.io.exposure import Exposure
from skydelta.kernels.backend import CPU, resolve
from skydelta.kernels.cpu.reference_deblend import peaks_that_count
from skydelta.kernels.deblend import peak_tree
from skydelta.kernels.photometry import COUNTS, aperture_sums, kron_radii
from skydelta.pipeline.cli import cli
from skydelta.stages.base import Context
from skydelta.stages.measure import Measurer, isophotal
from skydelta.stages.sources import Sources

EIGHT = np.ones((3, 3), bool)


def crowd(rng, shape, density, low=5.0, high=200.0, signs=(1,)):
    """x, y, S/N of sources of random places and an image of them on unit noise."""
    n = round(density * shape[0] * shape[1])
    x, y = rng.uniform(0, shape[1] - 1, n), rng.uniform(0, shape[0] - 1, n)
    snr = np.exp(rng.uniform(np.log(low), np.log(high), n)) * rng.choice(signs, n)
    return x, y, snr, draw(rng.normal(0, 1, shape), x, y, flux_of(snr))


def places(catalog):
    return np.c_[catalog["x"].value, catalog["y"].value]


def matched(catalog, x, y):
    """Distance of the nearest row to each place, and the row."""
    return cKDTree(places(catalog)).query(np.c_[x, y])


# the peak tree


def test_the_tree_is_that_of_labels_at_every_level(rng):
    for _ in range(8):
        shape = tuple(rng.integers(16, 28, 2))
        light = gaussian_filter(rng.normal(0, 1, shape), 1.5) * 10 + rng.normal(0, 0.05, shape)
        inside, noise = light > rng.uniform(-1, 1), rng.uniform(0.1, 0.5, shape)
        label, n = connected(inside, EIGHT)
        significance = rng.uniform(0, 4)
        pixel = np.flatnonzero(inside)
        flat = (a.ravel()[pixel] for a in (light, noise))
        peak, segment = peak_tree(pixel, shape, label.ravel()[pixel], *flat, significance, 0.0)
        found = [divmod(int(p), shape[1]) for p in pixel[peak]]
        want = (peaks_that_count(light, label == k, noise, significance) for k in range(1, n + 1))
        assert found == sorted(p for peaks in want for p in peaks)
        for k in range(len(peak)):
            own = np.zeros(shape, bool)
            own.ravel()[pixel[segment == k]] = True
            assert own.ravel()[pixel[peak[k]]]
            assert connected(own, EIGHT)[1] == 1
            assert len(np.unique(label[own])) == 1


def test_contrast_is_to_the_object_that_is_touched():
    """A bump on a bright star goes; the same bump beside a faint one stays, in one footprint with the bright."""
    o = np.arange(40)
    line = 1e5 * np.exp(-((o - 8.0) ** 2) / 8) + 300 * np.exp(-((o - 28.0) ** 2) / 8) + 5 + 0.01 * (40 - o)
    line[17], line[33] = 400, 80
    noise, one = np.full(40, 1.0), np.ones(40, int)
    found = [list(peak_tree(o, (1, 40), one, line, noise, 3.0, contrast)[0]) for contrast in (0, 0.001, 0.2)]
    assert found == [[8, 17, 28, 33], [8, 28, 33], [8]]


def test_nothing_flat_and_enormous_footprints():
    none = np.zeros(0, int)
    peak, segment = peak_tree(none, (5, 5), none, none.astype(float), none.astype(float), 3, 0)
    assert len(peak) == len(segment) == 0
    pixel = np.arange(700 * 700)
    one = np.ones(pixel.size)
    peak, segment = peak_tree(pixel, (700, 700), one.astype(int), one, one, 0.0, 0.0)
    assert len(peak) == 1
    assert not segment.any()


# photometry against sep


@pytest.fixture
def scene(rng):
    image = rng.normal(100, 10, (201, 201)).astype(np.float32)
    variance = rng.uniform(50, 150, image.shape).astype(np.float32)
    n = 150
    x, y, a = rng.uniform(60, 140, n), rng.uniform(60, 140, n), rng.uniform(0.3, 9, n)
    return image, variance, x, y, a, a * rng.uniform(0.2, 1, n), rng.uniform(-np.pi / 2, np.pi / 2, n)


def test_apertures_and_kron_radii_are_those_of_sep(scene, peer):
    sep = peer("sep")
    image, variance, x, y, a, b, theta = scene
    stack, spread = (np.broadcast_to(p, (len(x), *p.shape)) for p in (image, variance))
    use = np.ones(stack.shape, bool)
    sums, variances, areas = aperture_sums(stack, spread, use, x, y, a)
    theirs = sep.sum_circle(image, x, y, a, var=variance, subpix=0)
    np.testing.assert_allclose(sums, theirs[0], rtol=1e-9)
    np.testing.assert_allclose(np.sqrt(variances), theirs[1], rtol=1e-9)
    np.testing.assert_allclose(areas[COUNTS], np.pi * a**2, rtol=1e-9)
    sums, variances, areas = aperture_sums(stack, spread, use, x, y, a, b, theta)
    theirs = sep.sum_ellipse(image, x, y, a, b, theta, 1.0, var=variance, subpix=0)
    np.testing.assert_allclose(sums, theirs[0], rtol=1e-9)
    np.testing.assert_allclose(np.sqrt(variances), theirs[1], rtol=1e-9)
    np.testing.assert_allclose(areas[COUNTS], np.pi * a * b, rtol=1e-9)
    radii, _ = kron_radii(stack, use, x, y, a, b, theta)
    np.testing.assert_allclose(radii, sep.kron_radius(image, x, y, a, b, theta, 6.0)[0], rtol=1e-9)


def test_pixels_that_do_not_count():
    flat = Exposure(np.full((60, 60), 3.0, np.float32), np.ones((60, 60), np.float32))
    good = np.ones((60, 60), bool)
    good[20:31, 20:31] = False
    got = Measurer(flat, good).circles(np.array([25.0, 0.0, np.nan, -50.0, 45.0]), np.array([25.0, 40, 3, 3, 25]), 8.0)
    area = np.pi * 64
    left = np.array([area - 121, area / 2 + 8])  # a square that hides what is opposite too; a border
    np.testing.assert_allclose(got.flux[:2], 3 * left, rtol=1e-3)
    np.testing.assert_allclose(got.error[:2], np.sqrt(left), rtol=1e-3)
    np.testing.assert_allclose(got.lost[:2], 1 - left / area, atol=1e-3)
    assert np.isnan(got.flux[2:4]).all() and np.isnan(got.lost[2]) and got.lost[3] == 1 and got.lost[4] == 0


def test_moments_are_those_of_sep(rng, peer):
    sep = peer("sep")
    *_, image = crowd(rng, (300, 320), 4e-4, 20, 300)
    image = image.astype(np.float32)
    options = {"filter_kernel": None, "minarea": 1, "deblend_cont": 1.0, "clean": False, "segmentation_map": True}
    theirs, segments = sep.extract(image, 2.5, **options)
    pixel = np.flatnonzero(segments)
    y, x = np.divmod(pixel, 320)
    value = image.ravel()[pixel].astype(float)
    ours = isophotal(x, y, value, np.ones(len(pixel)), segments.ravel()[pixel] - 1, len(theirs))
    names = {"npix": "npix", "flux_iso": "flux", "peak": "peak", "x_iso": "x", "y_iso": "y", "a": "a", "b": "b"}
    for own, name in {**names, "x2": "x2", "y2": "y2"}.items():
        np.testing.assert_allclose(ours[own], theirs[name], rtol=1e-4, atol=1e-5, err_msg=name)
    long = ours["a"] > 1.02 * ours["b"]
    turn = (ours["theta"] - theirs["theta"] + np.pi / 2) % np.pi - np.pi / 2
    assert np.abs(turn[long]).max() < 1e-4
    assert long.sum() > 20


def test_windowed_centroids_are_those_of_sep(rng, peer):
    sep = peer("sep")
    x, y, _, image = crowd(rng, (400, 400), 1.5e-4, 50, 300)
    e = exposure(image)
    alone = cKDTree(np.c_[x, y]).query(np.c_[x, y], 2)[0][:, 1] > 25
    alone &= (np.minimum(x, y) > 15) & (np.maximum(x, y) < 384)
    x, y = x[alone], y[alone]
    got = Measurer(e, e.good()).windowed(x, y, 2.3548 * SIGMA, np.ones(len(x)))
    their_x, their_y, _ = sep.winpos(e.image, x, y, np.full(len(x), SIGMA), subpix=0)
    np.testing.assert_allclose(got["x_win"], their_x, atol=2e-3)
    np.testing.assert_allclose(got["y_win"], their_y, atol=2e-3)
    assert np.median(got["fwhm"]) == pytest.approx(2.3548 * SIGMA, rel=0.02)


# against truth


@pytest.fixture(scope="module")
def field():
    """A crowd of 3e-4 sources a pixel, as 5000 on 4096 x 4096, FWHM 3.77 px, its sky and noise unknown."""
    rng = np.random.default_rng(7)
    x, y, snr, image = crowd(rng, (2000, 2000), 3e-4)
    return x, y, snr, skydelta.detect((image * 10 + 1000).astype(np.float32), fwhm=2.3548 * SIGMA)


def test_recall_and_purity(field, figure):
    x, y, snr, catalog = field
    gap = cKDTree(np.c_[x, y]).query(np.c_[x, y], 2)[0][:, 1]
    near = matched(catalog, x, y)[0] < 2
    bright = snr > 7
    figure("sources: recall at S/N > 7, isolated by 15 px", near[bright & (gap > 15)].mean(), (0.998, 1))
    # at a FWHM of 3.5 px 0.992 over eight larger images; 1100 sources have a counting error of 0.003
    figure("sources: recall at S/N > 7, all", near[bright].mean(), (0.984, 1))
    real = cKDTree(np.c_[x, y]).query(places(catalog))[0] < 2
    figure("sources: purity", real.mean(), (0.997, 1))


def test_pulls_of_what_is_measured(field, figure):
    x, y, snr, catalog = field
    gap = cKDTree(np.c_[x, y]).query(np.c_[x, y], 2)[0][:, 1]
    distance, row = matched(catalog, x, y)
    use = (gap > 18) & (distance < 2) & (snr > 10) & (np.minimum(x, y) > 20) & (np.maximum(x, y) < 1979)
    own, flux = catalog[row[use]], 10 * flux_of(snr[use])
    assert use.sum() > 300
    for name in ("flux", "flux_kron", "flux_aper_3"):
        pull = (own[name].value - flux) / own[f"{name}_err"].value
        figure(f"sources, pull of {name}: robust std", 1.4826 * np.median(np.abs(pull)), (0.9, 1.15))
        figure(f"sources, {name} over the true one, median", np.median(own[name].value / flux), (0.99, 1.01))
    for name, want in (("x", x[use]), ("y", y[use])):
        pull = (own[name].value - want) / own[f"{name}_err"].value
        figure(f"sources, pull of {name}: robust std", 1.4826 * np.median(np.abs(pull)), (0.9, 1.15))
    assert (own["model"] == "psf").all()
    assert np.median(own["fwhm"].value) == pytest.approx(2.3548 * SIGMA, rel=0.05)
    assert abs(np.median(own["roundness"])) < 0.05
    assert np.median(own["sharpness"]) == pytest.approx(1, abs=0.1)


def test_what_is_known_of_the_run_is_in_the_meta(field):
    *_, catalog = field
    noted = catalog.meta["detect"]
    assert noted["sources"] == len(catalog)
    assert noted["sky_level"] == pytest.approx(1000, abs=1)
    assert noted["settings"]["threshold"] == 5.0
    assert catalog.colnames[:10] == ["id", "x", "y", "ra", "dec", "flux", "flux_err", "snr", "model", "flags"]
    np.testing.assert_array_equal(catalog["id"], np.arange(1, len(catalog) + 1))


def test_negative_image_gives_the_same_numbers(rng):
    *_, image = crowd(rng, (300, 300), 8e-4, signs=(-1, 1))
    there, back = (Sources(negative=True)(exposure(sign * image)) for sign in (1, -1))
    assert len(there) > 30
    np.testing.assert_array_equal(there.has("NEGATIVE"), ~back.has("NEGATIVE"))
    for name in ("x", "y", "a", "b", "kron_radius", "x_iso", "fwhm"):
        np.testing.assert_allclose(np.asarray(there[name]), np.asarray(back[name]), atol=1e-4, err_msg=name)
    for name in ("flux", "flux_kron", "flux_aper_1", "flux_iso", "peak", "snr"):
        np.testing.assert_allclose(np.asarray(there[name]), -np.asarray(back[name]), rtol=1e-4, atol=1e-2, err_msg=name)
    assert (Sources()(exposure(image))["snr"] > 0).all()


def test_shapes_of_long_sources(rng):
    o = np.arange(-30, 31)
    angle = np.radians(35)
    along = o[None] * np.cos(angle) + o[:, None] * np.sin(angle)
    across = o[:, None] * np.cos(angle) - o[None] * np.sin(angle)
    image = rng.normal(0, 1, (61, 61)) + 200 * np.exp(-(along**2) / (2 * 6**2) - across**2 / (2 * 3**2))
    (row,) = Sources()(exposure(image))
    assert row["a"].value == pytest.approx(6, rel=0.1)
    assert row["b"].value == pytest.approx(3, rel=0.1)
    assert row["theta"].value == pytest.approx(35, abs=1)
    assert row["flux_kron"].value == pytest.approx(200 * 2 * np.pi * 18, rel=0.06)
    assert row["npix"] > 200


def test_pairs_in_one_footprint_are_two_sources(rng):
    image = draw(rng.normal(0, 1, (80, 100)), [30, 35.5, 70], [40, 42, 40], flux_of(np.array([150, 80, 60])))
    catalog = Sources()(exposure(image))
    distance, row = matched(catalog, [30, 35.5, 70], [40, 42, 40])
    assert len(catalog) == 3
    assert distance.max() < 0.2
    np.testing.assert_array_equal(catalog.has("BLENDED")[row], [True, True, False])
    np.testing.assert_allclose(catalog["flux"].value[row], flux_of(np.array([150, 80, 60])), rtol=0.05)
    assert len(Sources(contrast=1.0, threshold=5)(exposure(image))) == 2


def pairs(rng, n=26, spacing=40):
    """Pairs on a lattice: x, y (m, 2), an image of them without noise."""
    middle = np.stack(np.meshgrid(*2 * [spacing * (np.arange(n) + 0.5)]), -1).reshape(-1, 2)
    half, angle = 0.5 * rng.uniform(0.7, 2, len(middle)) * 2.3548 * SIGMA, rng.uniform(0, 2 * np.pi, len(middle))
    step = half[:, None] * np.c_[np.cos(angle), np.sin(angle)]
    at = np.stack([middle + step, middle - step], 1) + rng.uniform(-0.5, 0.5, (len(middle), 1, 2))
    snr = np.exp(rng.uniform(np.log(20), np.log(200), at.shape[:2]))
    light = draw(np.zeros(2 * [n * spacing]), *at.reshape(-1, 2).T, flux_of(snr.ravel()))
    return at[..., 0], at[..., 1], light


def test_pairs_that_a_noiseless_image_shows_are_split(rng, figure):
    """The oracle: both have their own maximum in the image before noise, matched-filtered or as it is."""
    x, y, light = pairs(rng)
    catalog = Sources()(exposure(light + rng.normal(0, 1, light.shape)))
    rows = cKDTree(places(catalog))

    def both(tree):
        distance, which = tree.query(np.stack([x, y], -1))
        return (distance < 2).all(axis=1) & (which[:, 0] != which[:, 1])

    found = both(rows)
    peaks = []
    for image in (gaussian_filter(light, SIGMA), light):
        top = (image == maximum_filter(image, 3)) & (image > 1e-3 * image.max())
        peaks.append(both(cKDTree(np.argwhere(top)[:, ::-1])))
    matched_, raw = peaks
    assert 150 < matched_.sum() < raw.sum() < 600
    figure("sources: pairs that the matched-filtered image shows", found[matched_].mean(), (0.995, 1))
    figure("sources: pairs that the image shows", found[raw].mean(), (0.92, 1))
    real = cKDTree(np.stack([x, y], -1).reshape(-1, 2)).query(places(catalog))[0] < 3
    figure("sources: of pairs, rows that are none of them", 1 - real.mean(), 0.002)


def test_smooth_sources_are_not_split(rng):
    """Exponential discs with photon noise: a source each, however large."""
    shape, at = (600, 600), np.arange(60, 590, 80)
    light, o = np.zeros(shape), np.arange(-35, 36)
    for y in at:
        for x in at:
            radius, flat, angle = rng.uniform(2, 6), rng.uniform(0.4, 1), rng.uniform(0, np.pi)
            u = o[None] * np.cos(angle) + o[:, None] * np.sin(angle)
            v = (o[:, None] * np.cos(angle) - o[None] * np.sin(angle)) / flat
            disc = np.exp(-1.678 * np.hypot(u, v) / radius)
            light[y - 35 : y + 36, x - 35 : x + 36] += 10 ** rng.uniform(3.5, 5.5) * disc / disc.sum()
    light = gaussian_filter(light, SIGMA)
    e = exposure(rng.poisson(light + 100) - 100.0).with_(variance=(light + 100).astype(np.float32))
    catalog = Sources(contrast=0.01)(e)
    assert len(at) ** 2 - 2 <= len(catalog) <= len(at) ** 2 + 1


# positions


def wcs():
    out = WCS(naxis=2)
    out.wcs.ctype, out.wcs.crval, out.wcs.crpix = ["RA---TAN", "DEC--TAN"], [359.999, 60.0], [100.0, 120.0]
    out.wcs.cdelt, out.wcs.cunit = [-2e-4, 1e-4], ["deg", "deg"]
    return out


def test_forced_photometry(rng, figure):
    x, y, snr, image = crowd(rng, (600, 600), 4e-4, 5, 100)
    gap = cKDTree(np.c_[x, y]).query(np.c_[x, y], 2)[0][:, 1]
    use = (gap > 25) & (np.minimum(x, y) > 15) & (np.maximum(x, y) < 584)
    e = exposure(image, unit=u.nJy, wcs=wcs())
    table = QTable({"x": x[use] * u.pix, "y": y[use] * u.pix, "id": np.arange(use.sum()) + 100})
    got = skydelta.detect(e, positions=table, background="none")
    pull = (got["flux"].value - flux_of(snr[use])) / got["flux_err"].value
    figure("forced photometry, pull of flux: std", pull.std(), (0.85, 1.15))
    figure("forced photometry, pull of flux: |mean|", abs(pull.mean()), 0.3)
    np.testing.assert_array_equal(got["id"], table["id"])
    np.testing.assert_array_equal(got["x"].value, x[use])
    assert set(got["model"]) == {"forced"}
    assert got["flux_aper_2"].unit == u.nJy
    sky = wcs().pixel_to_world(x[use], y[use])
    again = skydelta.detect(e, positions=Table({"ra": sky.ra.deg, "dec": sky.dec.deg}), background="none")
    np.testing.assert_allclose(again["flux"].value, got["flux"].value, rtol=1e-6)
    np.testing.assert_allclose(again["ra"].value, sky.ra.deg, atol=1e-8)
    named = Table({"ra": [sky.ra.deg[0], 10.0, sky.ra.deg[0] - 180], "dec": [sky.dec.deg[0], -5.0, -sky.dec.deg[0]]})
    named["object"] = ["here", "far", "opposite"]
    only = skydelta.detect(e, positions=named, background="none", only_inside=True)
    assert list(only["id"]) == ["here"] and only["flux"][0] == again["flux"][0]
    assert len(skydelta.detect(e, positions=named[1:], background="none", only_inside=True)) == 0
    every = skydelta.detect(e, positions=named, background="none")
    np.testing.assert_array_equal(np.isfinite(every["flux"].value), [True, False, False])


@pytest.mark.parametrize("axis", [0, 1])
def test_forced_fluxes_do_not_jump_where_the_nearest_pixel_changes(rng, axis):
    at = np.stack(np.meshgrid(*2 * [20 + 40.0 * np.arange(8)]), -1).reshape(-1, 2)
    at[:, axis] += 0.5
    e = exposure(draw(rng.normal(0, 1, (340, 340)), *at.T, flux_of(np.full(len(at), 20.0))))
    step = np.eye(2)[axis] * 1e-7
    below, above = (Sources()(e, Catalog({"x": x, "y": y})) for x, y in ((at - step).T, (at + step).T))
    for name, error in (
        ("flux", 2e-5),
        ("flux_err", 1e-6),
        ("background", 1e-6),
        ("chi2", 1e-3),
        ("flux_aper_2", 2e-5),
    ):
        one, two = (np.asarray(getattr(c[name], "value", c[name])) for c in (below, above))
        scale = np.asarray(below[f"{name}_err"].value) if f"{name}_err" in below.colnames else 1.0
        assert (np.abs(two - one) / scale).max() < error, name
    assert np.mean(below["chi2"] / below["dof"]) == pytest.approx(1, abs=0.03)
    pull = (below["flux"].value - flux_of(20.0)) / below["flux_err"].value
    assert 0.75 < pull.std() < 1.25


def test_positions_where_nothing_can_be_measured(rng):
    e = exposure(rng.normal(0, 1, (60, 70)))
    table = Catalog({"x": [-50.0, 30.0, -7e5, 69.3, 1e12], "y": [10.0, 30, 5, 30, 1e12]})
    got = Sources()(e, table)
    np.testing.assert_array_equal(np.isfinite(got["flux"].value), [False, True, False, True, False])
    np.testing.assert_array_equal(got.has("NO_FIT"), [True, False, True, False, True])
    np.testing.assert_array_equal(got.has("EDGE"), [True, False, True, True, True])
    assert np.isnan(got["flux_aper_1"].value[0])
    for name in ("x_err", "y_err", "flux_err", "snr", "flux_aper_1_err"):
        np.testing.assert_array_equal(np.isfinite(np.asarray(got[name])), np.isfinite(got["flux"].value), err_msg=name)
    ctx = Context(CPU, id="one")
    Sources().execute(ctx, {"image": e, "positions": table})
    assert ctx.flags == {"positions_outside": "3 of 5 positions lie outside the image of 70 x 60 px: not measured"}
    with pytest.raises(InputError, match=r"all 2 lie outside the image of 70 x 60 px: .*x -50 to 90, y 30 to 30"):
        Sources()(e, Catalog({"x": [-50.0, 90.0], "y": [30.0, 30.0]}))
    assert len(Sources()(e, Catalog({"x": np.zeros(0), "y": np.zeros(0)}))) == 0
    with pytest.raises(InputError, match="columns a; x and y or ra and dec"):
        Sources()(e, Catalog({"a": [1]}))
    with pytest.raises(InputError, match="no WCS"):
        Sources()(e, Catalog({"ra": [1.0], "dec": [2.0]}))
    with pytest.raises(InputError, match="column x holds no pix"):
        Sources()(e, Catalog({"x": [1.0] * u.m, "y": [2.0]}))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"x": [1, np.nan, 3], "y": [1, 2, 3]}, "row 2, column x: nan is no finite number"),
        ({"x": [1, 2, 3], "y": [1, -np.inf, np.inf]}, "row 2, column y: -inf is no finite number .1 more row like it."),
        ({"ra": [1, 2, 3], "dec": [95, 0, 91]}, "row 1, column dec: 95 is outside -90 to 90 .1 more row"),
        ({"ra": [1, 2, 3], "dec": [0, 0, -90.01]}, "row 3, column dec: -90.01 is outside -90 to 90$"),
        ({"ra": [0, 720, 3], "dec": [95, 0, 0]}, "row 2, column ra: 720 is outside -180 to 360$"),
        ({"ra": [-181, 720, 3], "dec": [0, 0, 0]}, "row 1, column ra: -181 is outside -180 to 360 .1 more row"),
        ({"ra": [5400, 1, 1] * u.arcsec, "dec": [0, 0, 100] * u.deg}, "row 3, column dec: 100 is outside -90 to 90"),
    ],
)
def test_positions_that_are_none(rng, columns, said):
    e = exposure(rng.normal(0, 1, (60, 70)), wcs=wcs())
    with pytest.raises(InputError, match=f"^positions: {said}"):
        Sources()(e, Catalog(columns))


def test_right_ascensions_wrap(rng):
    e = exposure(rng.normal(0, 1, (240, 200)), wcs=wcs())
    ra, dec = wcs().pixel_to_world_values(110.0, 110.0)
    got = Sources()(e, Catalog({"ra": [ra, ra - 360], "dec": [dec, dec]}))
    np.testing.assert_allclose(got["x"].value, 110, atol=1e-6)


def test_sky_positions_have_errors(rng):
    *_, image = crowd(rng, (200, 200), 8e-4, 20, 100)
    got = Sources()(exposure(image, wcs=wcs()))
    np.testing.assert_allclose(got["ra_err"].value, 2e-4 * got["x_err"].value, rtol=1e-3)
    np.testing.assert_allclose(got["dec_err"].value, 1e-4 * got["y_err"].value, rtol=1e-3)
    assert got["ra_err"].unit == u.deg


# both uses of the name, devices, hostile input


def test_a_difference_is_still_the_stage(rng):
    *_, image = crowd(rng, (200, 200), 5e-4, 10, 100, (-1, 1))
    e = exposure(image)
    got = skydelta.detect(e, threshold=6)
    assert set(got["model"]) == {"peak"}
    assert "x_pos" in got.colnames
    assert "flux_kron" in skydelta.detect(e, background="none", negative=True).colnames
    with pytest.raises(ConfigError, match="background belong to an image"):
        skydelta.detect(e, e, background="mesh")
    with pytest.raises(ConfigError, match=r"fwhm is 0\.1 px"):
        skydelta.detect(image, fwhm=0.1)
    with pytest.raises(ConfigError, match="unknown key"):
        skydelta.detect(image, dipole_ratio=0.1)
    with pytest.raises(InputError, match="no PSF"):
        Sources()(Exposure(image, image**2 + 1))


@pytest.mark.parametrize("kind", ["noise", "constant", "NaN half", "bright blob", "tiny", "whole numbers"])
def test_no_image_is_an_exception(rng, kind):
    image = rng.normal(0, 1, (120, 130))
    if kind == "constant":
        image = np.full((120, 130), 5.0)
        image[60, 60] = 6.0
    elif kind == "NaN half":
        image[:, :60] = np.nan
    elif kind == "bright blob":
        image[30:90, 30:90] += 6e4
    elif kind == "tiny":
        image = image[:24, :20]
    elif kind == "whole numbers":
        image = rng.poisson(100, (120, 130))
    variance = np.ones(image.shape) if kind == "constant" else None
    catalog = skydelta.detect(image, variance=variance)
    assert np.isfinite(places(catalog)).all()
    assert "psf_assumed" in catalog.meta["detect"]["flags"] or len(catalog)


@pytest.mark.parametrize(
    ("value", "why"), [(5.0, "none has a variance; give a variance, or a gain"), (np.nan, "all are masked")]
)
def test_an_image_of_nothing_says_why(value, why):
    with pytest.raises(AlgorithmError, match=f"^background: no usable pixel: {why}$"):
        skydelta.detect(np.full((100, 100), value))


def test_threads_and_devices_change_nothing(monkeypatch, rng):
    x, y, _, image = crowd(rng, (200, 210), 1e-3, 10, 100)
    mask = (rng.random(image.shape) < 0.01).astype(np.int32)
    e = exposure(image, mask=mask, wcs=wcs())
    positions = Catalog({"x": x, "y": y})
    want, forced = Sources()(e), Sources()(e, positions)
    assert len(want) > 20
    copies = support_standin.install(monkeypatch)
    there = e.to(resolve("cuda"))
    copies.clear()
    got, held = Sources()(there), Sources()(there, positions)
    for one, two in ((got, want), (held, forced)):
        assert len(one) == len(two)
        for name in two.colnames:
            a, b = (np.asarray(t[name]) for t in (one, two))
            if a.dtype.kind == "f":
                np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3, err_msg=name)


# real images


@pytest.mark.parametrize(
    ("name", "threshold"),
    [
        # a scanned plate: sep takes its noise, which is correlated from pixel to pixel, for white
        ("astropy__m13.fits", 3.0),
        ("afw__ticketdm26260.fits", 5.0),
        ("legacypipe__c4d_170316_062107_ooi_z_ls9.N2.fits", 5.0),
    ],
)
def test_isolated_sources_of_real_images_are_those_of_sep(shared_data, peer, figure, name, threshold):
    sep = peer("sep")
    e = skydelta.read(shared_data / "fits" / "real" / name)
    sky = skydelta.background(e, model="mesh", cell=None)
    catalog = skydelta.detect(sky, background="none", threshold=threshold)
    assert ("correlated_noise" in catalog.meta["detect"]["flags"]) == (threshold < 5)
    image, bad = np.ascontiguousarray(np.where(e.good(), sky.image, 0), np.float32), ~e.good()
    error = np.sqrt(np.where(bad, 1, e.variance)).astype(np.float32)
    found = sep.extract(image, 5.0, err=error, mask=bad, minarea=5)
    gap = cKDTree(np.c_[found["x"], found["y"]]).query(np.c_[found["x"], found["y"]], 2)[0][:, 1]
    radius = catalog.meta["apertures_px"][0]
    own = matched(catalog, found["x"], found["y"])
    crowd_ = cKDTree(places(catalog)).query(np.c_[found["x"], found["y"]], 2)[0][:, 1]
    use = (found["flag"] == 0) & (gap > 4 * radius) & (crowd_ > 2.5 * radius) & (found["a"] < 2 * radius)
    assert use.sum() >= 3
    figure(f"sources of {name}: share of sep's isolated ones found", (own[0][use] < 1.5).mean(), (0.9, 1))
    use &= own[0] < 1.5
    rows = catalog[own[1][use]]
    theirs = sep.sum_circle(image, rows["x"].value, rows["y"].value, radius, err=error, mask=bad, subpix=0)[0]
    np.testing.assert_allclose(rows["flux_aper_1"].value, theirs, rtol=1e-4, atol=1e-3 * np.abs(theirs).max())
    x, y, _ = sep.winpos(image, found["x"], found["y"], np.full(len(found), radius / 2.3548), mask=bad)
    figure(f"sources of {name}: windowed place less sep's, px, median",
           np.median(np.hypot(rows["x_win"].value - x[use], rows["y_win"].value - y[use])), 0.03)  # fmt: skip


# the command


@pytest.fixture
def file(rng, tmp_path):
    x, y, snr, image = crowd(rng, (400, 400), 4e-4, 20, 300)
    path = tmp_path / "image.fits"
    fits.writeto(path, (image + 50).astype(np.float32), wcs().to_header())
    return path, x, y, snr


def run(*arguments, code=0):
    result = CliRunner().invoke(cli, ["detect", *map(str, arguments), "--device", "cpu"])
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize(("radius", "said"), [("nan", "finite"), ("-3", "-3.0 is not above 0"), ("inf", "finite")])
def test_apertures_that_are_none(file, tmp_path, radius, said):
    output = run(file[0], "-o", tmp_path / "out", f"--aperture={radius}", code=2)
    assert "sources.apertures" in output and said in output
    assert not (tmp_path / "out").exists()


def test_command(file, tmp_path):
    path, x, y, snr = file
    out = tmp_path / "out"
    assert "sources on cpu" in run(path, "-o", out)
    one = Catalog.load(out / "catalog.ecsv")
    two = Catalog.load(out / "catalog.parquet")
    assert len(one) == len(two)
    assert (matched(one, x[snr > 40], y[snr > 40])[0] < 2).mean() > 0.9
    before = (out / "catalog.ecsv").read_bytes()
    assert "--overwrite" in run(path, "-o", out, code=2)
    run(path, "-o", out, "--overwrite")
    assert (out / "catalog.ecsv").read_bytes() == before
    csv = tmp_path / "places.csv"
    Table({"ra": one["ra"].value, "dec": one["dec"].value}).write(csv)
    run(path, "-o", tmp_path / "forced.ecsv", "--positions", csv, "--aperture", "3", "--aperture", "5")
    forced = Catalog.load(tmp_path / "forced.ecsv")
    assert "flux_aper_2" in forced.colnames and "flux_aper_3" not in forced.colnames
    np.testing.assert_allclose(forced["x"].value, one["x"].value, atol=1e-4)


def test_command_says_what_is_wrong(file, tmp_path):
    path, *_ = file
    assert "catalogues are written as" in run(path, "-o", tmp_path / "a.txt", code=2)
    assert "missing.fits" in run(tmp_path / "missing.fits", "-o", tmp_path / "o", code=3)
    assert "places.csv" in run(path, "-o", tmp_path / "o", "--positions", tmp_path / "places.csv", code=3)
    assert "threshold" in run(path, "-o", tmp_path / "o", "--threshold", "-1", code=2)
    Table({"x": [10.0, 5000.0], "y": [20.0, 20.0]}).write(tmp_path / "some.csv")
    said = run(path, "-o", tmp_path / "some.ecsv", "--positions", tmp_path / "some.csv")
    assert said.count("1 of 2 positions lie outside the image") == 1
    assert "1 positions measured (1 more outside the image) on cpu" in said
    for options, said in (
        (["--positions", tmp_path / "some.csv", "--threshold", 4], "threshold has no effect where positions are given"),
        (["--positions", tmp_path / "some.csv", "--negative"], "negative has no effect where positions are given"),
        (["--psf", path, "--fwhm", 3], "fwhm has no effect where psf is given"),
    ):
        assert run(path, "-o", tmp_path / "none.ecsv", *options, code=2) == f"skydelta: detect: {said}\n"
    (tmp_path / "bad.csv").write_text("ra,dec\n10,20\n10,\n10,95\n")
    said = run(path, "-o", tmp_path / "bad.ecsv", "--positions", tmp_path / "bad.csv", code=3)
    assert said == f"skydelta: {tmp_path / 'bad.csv'}: row 2, column dec: nan is no finite number\n"
    Table({"x": [4000.0, 5000.0], "y": [20.0, 20.0]}).write(tmp_path / "far.csv")
    said = run(path, "-o", tmp_path / "far.ecsv", "--positions", tmp_path / "far.csv", code=3)
    assert len(said.strip().splitlines()) == 1 and "all 2 lie outside the image of 400 x 400 px" in said
    assert not (tmp_path / "far.ecsv").exists()
