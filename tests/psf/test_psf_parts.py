# SPDX-License-Identifier: BSD-3-Clause
"""Parts of the PSF measurement: the fit without some stars, widths that agree, areas on the finer grid."""

import numpy as np
import pytest
from scipy.ndimage import zoom
from support_stars import draw, observe, profile, spread_positions

from skydelta.io.field import Domain, polynomial_terms
from skydelta.io.psf import fwhm
from skydelta.kernels.psf import star_stamps
from skydelta.stages.psfmodel import PsfFit, Samples
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
