# SPDX-License-Identifier: BSD-3-Clause
"""What is measured of sources beside the border and beside masked pixels, against sep, areas and analytic Gaussians."""

import numpy as np
import pytest
from scipy.ndimage import map_coordinates
from support_sources import SIGMA, draw, exposure

from skydelta.io.catalog import Catalog, bits
from skydelta.kernels.photometry import BEYOND, COUNTS, MASKED, NEIGHBOUR, aperture_sums, kron_radii
from skydelta.stages.measure import Measurer
from skydelta.stages.sources import Sources

TRUNCATED, APER_MASKED, APER_NEIGHBOUR = (bits(n) for n in ("TRUNCATED", "APER_MASKED", "APER_NEIGHBOUR"))
FLUX = 1e4


def stars(x, y, shape=(101, 120)):
    """Gaussians of `FLUX` without noise, each far from the next, on a variance of 1."""
    return exposure(draw(np.zeros(shape), x, y, np.full(len(x), FLUX)))


def has(flags, bit):
    return (np.asarray(flags) & bit) != 0


# apertures


@pytest.fixture
def cut(rng):
    """Places all about a small image, most of whose apertures its border cuts."""
    image = rng.normal(100, 10, (61, 73)).astype(np.float32)
    n = 200
    a = rng.uniform(0.4, 14, n)
    return image, rng.uniform(-0.4, 72.4, n), rng.uniform(-0.4, 60.4, n), a, a * rng.uniform(0.3, 1, n), rng.uniform(
        -np.pi / 2, np.pi / 2, n)  # fmt: skip


def test_beside_the_border_fluxes_and_flags_are_those_of_sep(cut, peer):
    sep = peer("sep")
    image, x, y, a, b, theta = cut
    e = exposure(image, variance=4.0)
    got = Measurer(e, e.good()).apertures(x, y, a, b, theta)
    flux, error, flag = sep.sum_ellipse(image, x, y, a, b, theta, 1.0, var=e.variance, subpix=0)
    np.testing.assert_allclose(got.flux, flux, rtol=1e-5)
    np.testing.assert_allclose(got.error, error, rtol=1e-5)
    trunc = (flag & sep.APER_TRUNC) != 0
    assert 50 < trunc.sum() < 150
    # sep flags only what is a whole pixel beyond
    assert has(got.flags, TRUNCATED)[trunc].all() and trunc[got.lost > 0.1].all()
    np.testing.assert_array_equal(has(got.flags, TRUNCATED), got.lost > 0)
    ones = np.ones_like(image)
    area = sep.sum_ellipse(ones, x, y, a, b, theta, 1.0, subpix=0)[0]
    np.testing.assert_allclose(got.lost, 1 - area / (np.pi * a * b), atol=1e-6)
    radius = 6.0
    circle = Measurer(e, e.good()).circles(x, y, radius)
    np.testing.assert_allclose(circle.flux, sep.sum_circle(image, x, y, radius, subpix=0)[0], rtol=1e-5)
    reach = np.minimum(np.minimum(x, 72 - x), np.minimum(y, 60 - y)) + 0.5
    np.testing.assert_array_equal(has(circle.flags, TRUNCATED), reach < radius)
    radii, seen = kron_radii(image[None].repeat(len(x), 0), np.ones((len(x), 61, 73), np.uint8), x, y, a, b, theta)
    theirs, flag = sep.kron_radius(image, x, y, a, b, theta, 6.0)
    np.testing.assert_allclose(radii, theirs, rtol=1e-5)
    assert (seen >> BEYOND & 1)[(flag & sep.APER_TRUNC) != 0].all() and not (seen >> BEYOND & 1).all()


def test_what_is_lost_is_none_or_all_to_the_bit(rng):
    """No area of pixels that all count is lost, wherever the centre is and whatever is masked just outside."""
    n = 400
    x, y, a = rng.uniform(15, 25, n), rng.uniform(15, 25, n), rng.uniform(0.2, 8, n)
    theta, b = rng.uniform(0, np.pi, n), a * rng.uniform(0.2, 1, n)
    o = np.arange(41.0)
    state = np.full((n, 41, 41), COUNTS, np.uint8)
    for k in range(n):
        c, s = np.cos(theta[k]), np.sin(theta[k])
        # pixels whose every point is outside
        dx, dy = o[None] - x[k], o[:, None] - y[k]
        u, v = (c * dx + s * dy) / a[k], (c * dy - s * dx) / b[k]
        state[k][np.hypot(u, v) > 1 + 0.7072 / b[k]] = MASKED
    flat = np.ones(state.shape, np.float32)
    *_, areas = aperture_sums(flat, flat, state, x, y, a, b, theta)
    assert (areas[[MASKED, NEIGHBOUR, BEYOND]] == 0).all()
    *_, areas = aperture_sums(flat, flat, np.full_like(state, MASKED), x, y, a, b, theta)
    assert (areas[COUNTS] == 0).all() and (areas[MASKED] > 0).all()
    # the nearest masked pixel shares an edge or a corner with the aperture, or just does not
    for gap, some in ((0.0, False), (1e-12, False), (-1e-6, True)):
        state = np.full((1, 41, 41), COUNTS, np.uint8)
        state[0, :, 25] = MASKED
        *_, areas = aperture_sums(flat[:1], flat[:1], state, np.array([24.5 - 4 - gap]), np.array([20.3]), 4.0)
        assert (areas[MASKED, 0] > 0) == some


def test_pixels_opposite_stand_in_for_masked_ones(rng):
    """The oracle fills the image first, by scipy's linear interpolation at the mirrored places, and sums all of it."""
    image = rng.normal(100, 10, (41, 41)).astype(np.float32)
    x, y, radius = np.array([20.3]), np.array([19.6]), 7.0
    state = np.full((1, 41, 41), COUNTS, np.uint8)
    bad = [(19, 24), (15, 19), (22, 16), (19, 17)]
    for j, i in bad:
        state[0, j, i] = MASKED
    state[0, 12:16, 22:] = NEIGHBOUR
    filled = image.astype(float)
    j, i = np.nonzero(state[0] != COUNTS)
    filled[j, i] = map_coordinates(image.astype(float), [2 * y[0] - j, 2 * x[0] - i], order=1)
    sums, _, areas = aperture_sums(image[None], image[None], state, x, y, radius)
    whole = np.full_like(state, COUNTS)
    want = aperture_sums(filled[None].astype(np.float32), image[None], whole, x, y, radius)[0]
    np.testing.assert_allclose(sums, want, rtol=1e-6)
    assert areas[:, 0].sum() == pytest.approx(np.pi * 49, rel=1e-12)
    assert areas[MASKED, 0] == pytest.approx(4, abs=1e-9)
    # where those opposite are masked too nothing stands in
    middle = np.array([20.0])
    dark, black = whole.copy(), whole.copy()
    dark[0, 18:23, 18:23], black[0, 18:23, 18:23] = MASKED, BEYOND
    less, without = (aperture_sums(image[None], image[None], s, middle, middle, radius)[0] for s in (dark, black))
    np.testing.assert_array_equal(less, without)


@pytest.mark.parametrize("side", ["half", "speckled"])
def test_errors_of_apertures_with_masked_pixels(rng, side):
    """Monte Carlo: a pixel that counts twice has twice its noise, not the root of it."""
    n = 3000
    state = np.full((41, 41), COUNTS, np.uint8)
    if side == "half":
        state[:, :20] = MASKED
    else:
        state[rng.random(state.shape) < 0.05] = MASKED
    data = rng.normal(0, 1, (n, 41, 41)).astype(np.float32)
    at, states = np.full(n, 20.2), np.broadcast_to(state, data.shape)
    sums, variances, _ = aperture_sums(data, np.ones_like(data), states, at, at, 6.0)
    # interpolation between four pixels is quieter than one of them
    assert 0.93 < sums.std() / np.sqrt(variances[0]) < 1.04


def test_masked_pixels_of_a_star_cost_no_flux():
    """A column across a star, a pixel on its flank, its middle: within 1 % where the pixels opposite are there."""
    at = np.full(9, 30.0)
    x, y = np.linspace(20, 21, 9), at + np.linspace(-0.5, 0.5, 9)
    for masked, most in (((30, 23), 0.004), ((slice(None), 23), 0.01), ((30, 26), 3e-4)):
        for k in range(9):
            e = stars(x[k : k + 1], y[k : k + 1])
            mask = np.zeros(e.shape, np.int32)
            mask[masked] = 1
            e = e.with_(mask=mask)
            got = Measurer(e, e.good()).circles(x[k : k + 1], y[k : k + 1], 8.0)
            want = FLUX * (1 - np.exp(-0.5 * (8 / SIGMA) ** 2))
            assert got.flux[0] == pytest.approx(want, rel=most)
            assert got.flags[0] == APER_MASKED and 0 < got.lost[0] < 0.09


# rows of the catalogue


@pytest.fixture(scope="module")
def ladder():
    """Stars 0 to 13.5 px from the left border, and what is measured of them, found and at their places."""
    x, y = np.arange(0, 14, 0.5), 20 + 40.0 * np.arange(28)
    e = exposure(draw(np.zeros((1120, 80)), x, y, np.full(28, FLUX)))
    sources = Sources(apertures=(3, 8))
    return x, y, e, sources(e, Catalog({"x": x, "y": y})), sources(e)


def light_within(x, radius):
    """Of a Gaussian of `FLUX`, in a circle around it, right of x = -0.5: by a fine sum."""
    o = (np.arange(600) + 0.5) / 600 * 2 * radius - radius
    u, v = np.meshgrid(o, o)
    inside = (u * u + v * v < radius**2) & (u > -0.5 - x)
    step = (2 * radius / 600) ** 2
    return FLUX * step * np.exp(-(u * u + v * v)[inside] / (2 * SIGMA**2)).sum() / (2 * np.pi * SIGMA**2)


def test_no_flux_beside_the_border_is_more_than_is_there(ladder):
    x, _, _, forced, found = ladder
    assert len(found) == len(x)
    for catalog in (forced, found):
        for k, radius in ((1, 3.0), (2, 8.0)):
            flux, lost = catalog[f"flux_aper_{k}"].value, np.asarray(catalog[f"lost_aper_{k}"])
            gap = (x + 0.5) / radius
            inside = np.where(gap < 1, gap, 0)
            missing = np.where(gap < 1, (np.arccos(inside) - inside * np.sqrt(1 - inside**2)) / np.pi, 0)
            np.testing.assert_allclose(lost, missing, atol=0.02 if catalog is found else 1e-6)
            want = np.array([light_within(at, radius) for at in x[::4]])
            # pixels are sampled at their middles
            np.testing.assert_allclose(flux[::4], want, rtol=0.02)
            cut_ = has(catalog[f"flags_aper_{k}"], TRUNCATED)
            np.testing.assert_array_equal(cut_, lost > 0)
            if catalog is forced:
                np.testing.assert_array_equal(cut_, x + 0.5 < radius)
        assert not catalog.has("TRUNCATED")[x > (8 if catalog is forced else 12)].any()
        assert catalog.has("TRUNCATED")[x < 7].all()
        assert (np.asarray(catalog["masked_fraction"])[x > 4] == 0).all()


def test_kron_window_and_footprint_beside_the_border(ladder):
    x, _, _, forced, found = ladder
    whole = found["flux_kron"].value[-1]
    assert whole == pytest.approx(FLUX, rel=0.02)
    kept, truncated = found["flux_kron"].value / whole, has(found["flags_kron"], TRUNCATED)
    # what is more than 1 % off is said to be
    assert truncated[np.abs(kept - 1) > 0.01].all() and (kept < 1.01).all()
    assert not truncated[-1] and truncated[:12].all() and "lost_kron" in found.colnames
    for catalog in (forced, found):
        off = np.hypot(catalog["x_win"].value - x, catalog["fwhm"].value / catalog["fwhm"].value[-1] - 1)
        said = has(catalog["flags_win"], TRUNCATED)
        assert said[off > 2e-3].all() and (off > 2e-3).any() and not said[-4:].any()
        assert (np.asarray(catalog["lost_win"]) > 0).tolist() == said.tolist()
    off = np.hypot(found["x_iso"].value - x, found["a"].value / found["a"].value[-1] - 1)
    said = has(found["flags_iso"], TRUNCATED)
    assert said[off > 2e-3].all() and (off > 2e-3).any() and not said[-4:].any()


def test_masked_pixels_are_flagged_where_they_count():
    """A masked pixel 0, 2, 4, 7, 9 px from a star: in the window, the apertures, the footprint, or in none."""
    gap = np.array([0, 2, 4, 7, 9, 11])
    x, y = np.full(6, 25.0), 25 + 40.0 * np.arange(6)
    e = exposure(draw(np.zeros((250, 51)), x, y, np.full(6, FLUX)))
    mask = np.zeros(e.shape, np.int32)
    mask[y.astype(int), 25 + gap] = 1
    e = e.with_(mask=mask)
    catalog = Sources(apertures=(3, 8))(e, Catalog({"x": x, "y": y}))
    for name, radius in (("aper_1", 3), ("aper_2", 8), ("win", 4 * SIGMA)):
        flags = np.asarray(catalog[f"flags_{name}"])
        np.testing.assert_array_equal(has(flags, APER_MASKED), gap - 0.5 < radius, err_msg=name)
        assert not has(flags, TRUNCATED).any()
    np.testing.assert_array_equal(catalog.has("APER_MASKED"), gap < 9)
    lost = np.asarray(catalog["lost_aper_1"])
    np.testing.assert_allclose(lost[:2], 1 / (np.pi * 9), rtol=1e-9)
    assert (lost[2:] == 0).all()
    found = Sources(apertures=(3, 8))(e)
    near = np.abs(found["y"].value[:, None] - y).argmin(axis=1)
    touched = has(found["flags_iso"], APER_MASKED)
    assert set(near[touched]) == {0, 1, 2} or set(near[touched]) == {0, 1, 2, 3}


def test_pixels_of_neighbours_are_flagged():
    e = exposure(draw(np.zeros((60, 120)), [30, 39, 90], [30, 30, 30], [FLUX, FLUX, FLUX]))
    catalog = Sources(apertures=(3, 8))(e)
    assert len(catalog) == 3
    order = np.argsort(catalog["x"].value)
    np.testing.assert_array_equal(has(catalog["flags_aper_2"], APER_NEIGHBOUR)[order], [True, True, False])
    assert not has(catalog["flags_aper_1"], APER_NEIGHBOUR).any()
    flux = catalog["flux_aper_2"].value[order]
    np.testing.assert_allclose(flux[:2], flux[2], rtol=0.02)
    assert not catalog.has("APER_MASKED").any() and not catalog.has("TRUNCATED").any()
