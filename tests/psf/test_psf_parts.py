# SPDX-License-Identifier: BSD-3-Clause
"""Parts of the PSF measurement: the fit without some stars, widths that agree, areas on the finer grid."""

import numpy as np
import pytest
from scipy.ndimage import uniform_filter, zoom
from support_stars import draw, observe, profile, spread_positions

from skydelta.io.field import Domain, polynomial_terms
from skydelta.io.psf import fwhm, fwhms
from skydelta.kernels.psf import star_stamps
from skydelta.stages.psfmodel import PsfFit, Samples
from skydelta.stages.psfpixels import significant
from skydelta.stages.psfwidths import consistent_widths

SHAPE = (400, 480)
WIDTH = 3.6


@pytest.fixture(scope="module")
def samples():
    rng = np.random.default_rng(5)
    x, y = spread_positions(rng, SHAPE, 70, 20)
    flux = np.exp(rng.uniform(*np.log((1e4, 1e5)), 70))
    model = np.zeros(SHAPE)
    draw(model, x, y, flux, WIDTH, e1=0.04 * x / SHAPE[1])
    e = observe(rng, model)
    stamps = star_stamps(e.image, e.variance, e.mask, e.planes.invalid, x, y, 14)
    return Samples(*stamps[:3], np.sqrt(stamps[3]), flux, x, y)


def take(samples, stars):
    s = samples
    planes = (a[stars] for a in (s.values, s.variance, s.usable, s.noise))
    return Samples(*planes, s.flux[stars], s.x[stars], s.y[stars])


def fit(samples, order):
    domain = Domain.of(SHAPE)
    return PsfFit(samples, domain, polynomial_terms(*domain.uv(samples.x, samples.y), 2).T, order, WIDTH)


@pytest.mark.parametrize("order, lower", [(1, 1), (2, 1)])
def test_stars_left_out_have_no_part_in_the_model(samples, figure, order, lower):
    """What `without` says of them is what a fit that never saw them gives, and worse than what their own fit gives."""
    whole = fit(samples, order)
    out = whole.used & (np.arange(len(samples)) % 3 == 1)
    chi2 = whole.without(out, lower).chi2[out]
    psf = fit(take(samples, whole.used & ~out), lower).psf()
    left = take(samples, out)
    models = psf.render(left.x, left.y)
    o = np.arange(samples.side) - samples.side // 2
    inside = np.hypot(o, o[:, None]) <= WIDTH
    expected = []
    for value, variance, kept, model in zip(left.values, left.variance, left.usable, models, strict=True):
        columns = np.stack([model[kept], np.ones(kept.sum())], 1)
        flux, sky = np.linalg.lstsq(columns, value[kept], rcond=None)[0]
        rest = value - flux * model - sky
        near = inside & kept
        expected.append((rest[near] ** 2 / variance[near]).sum() / (near.sum() - 4))
    figure("psf: held-out chi2 over that of a fit without them", np.median(chi2 / expected), (0.97, 1.03))
    assert np.mean(chi2) > np.mean(whole.agreement.chi2[out])


def test_a_star_that_is_wider_leaves(rng):
    n = 80
    u, v = rng.uniform(-1, 1, (2, n))
    phi = polynomial_terms(u, v, 2).T
    error = rng.uniform(0.003, 0.02, n)
    broader = phi @ rng.normal(0, 0.05, 6) + error * rng.normal(0, 1, n)
    broader[[7, 30, 55]] += [0.2, -0.15, 0.3]
    use = np.ones(n, bool)
    use[60:] = False
    broader[70] += 1.0
    fine = consistent_widths(broader, error, phi, use)
    assert not fine[[7, 30, 55]].any()
    assert (~fine).sum() <= 5
    assert fine[60:].all()


def test_few_stars_all_stay(rng):
    phi = polynomial_terms(*rng.uniform(-1, 1, (2, 8)), 2).T
    assert consistent_widths(rng.normal(0, 1, 8), np.full(8, 0.01), phi, np.ones(8, bool)).all()


def test_a_lone_star_cannot_hide_behind_its_leverage(rng):
    """The slope over the field rests on one star far from the others; being wide, it would make its own fit."""
    u = np.append(rng.uniform(-1, -0.8, 40), 1.0)
    phi = polynomial_terms(u, rng.uniform(-1, 1, 41), 1).T
    broader = np.append(rng.normal(0, 0.003, 40), 0.4)
    assert not consistent_widths(broader, np.full(41, 0.003), phi, np.ones(41, bool))[40]


@pytest.mark.parametrize("half, width", [(3, 1.3), (9, 2.7), (12, 4.1), (30, 15.0)])
def test_fwhm_counts_on_the_grid_of_scipy(half, width):
    stamp = profile(half, width, 0.2, -0.1, e1=0.1)
    j, i = np.nonzero(stamp > stamp.max() / 2)
    core = stamp[max(j.min() - 5, 0) : j.max() + 6, max(i.min() - 5, 0) : i.max() + 6]
    fine = zoom(core, 4, order=3, grid_mode=True, mode="grid-constant")
    assert fwhm(stamp) == 2 * np.sqrt((fine > fine.max() / 2).sum() / np.pi) / 4


def test_widths_of_a_batch_are_those_of_its_stamps():
    widths = [1.3, 4.1, 1.4, 2.7, 4.0]
    stamps = np.stack([profile(12, w, 0.2, -0.1, e1=0.1) for w in widths])
    stamps[3] = np.roll(stamps[3], (-10, 9), (0, 1))  # cut by two edges
    assert fwhms(stamps).tolist() == [fwhm(stamp) for stamp in stamps]


@pytest.mark.parametrize("half, terms, level", [(9, 1, 1e-4), (14, 3, 3e-5), (18, 6, 1e-6)])
def test_pixels_are_kept_as_far_as_they_are_signal(rng, half, terms, level):
    m, scale, width = 2 * half + 1, 2.4, 3.3
    model = profile(half, width)
    o = np.arange(m) - half
    r = np.hypot(o, o[:, None])
    noise = level * rng.uniform(0.8, 1.2, terms)
    departure = rng.normal(0, noise[:, None, None], (terms, m, m)) + 0.02 * model * np.sin(o / 2 + o[:, None] / 3)
    bound = np.sqrt(scale**2 + r * r)
    x, y = o / bound, o[:, None] / bound
    powers = [(i, j) for i in range(5) for j in range(5 - i)]
    basis = np.stack([(model * x**i * y**j * (1 - x * x - y * y)).ravel() for i, j in powers], axis=1)
    basis /= np.linalg.norm(basis, axis=0)
    images = departure.reshape(terms, -1).T
    near = (basis @ np.linalg.lstsq(basis, images, rcond=None)[0]).T
    share = 1 - len(powers) * noise**2 / np.maximum((near**2).sum(axis=1), noise**2)
    want = (np.maximum(share, 0)[:, None] * near).reshape(departure.shape)
    rest = departure[0] - near[0].reshape(m, m)
    want[0] += rest * (1 - noise[0] ** 2 / np.maximum(uniform_filter(rest**2, 5), noise[0] ** 2))
    clear = np.clip(r[model > 4 * noise[0]].max(), width, 4 * width)
    t = np.clip((r - 0.8 * clear) / (0.5 * clear), 0, 1)
    got = significant(departure, model, scale, noise, width)
    np.testing.assert_allclose(got, want * (1 - t * t * (3 - 2 * t)), rtol=0, atol=1e-9 * np.abs(want).max())
