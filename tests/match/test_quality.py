# SPDX-License-Identifier: BSD-3-Clause
"""The quality figures react to what they stand for, and only to that."""

import numpy as np
import pytest
from astropy import units as u
from scipy.ndimage import map_coordinates
from support_pairs import context, pair, subtract

from skydelta.errors import MisalignedError
from skydelta.io.catalog import Catalog
from skydelta.stages.detect import _report_signs
from skydelta.stages.match.quality import _shifts

SETTINGS = {"seed": 81, "shape": (360, 360), "stars": 220, "low": 4000}


def figures(p, **match):
    ctx = context()
    subtract(p, ctx, **match)
    return ctx


def warped(p, size):
    """The science image with a registration error of so many px that waves too fast for a kernel of low order."""
    j, i = np.indices(p.science.shape).astype(float)
    dx = size * np.sqrt(2) * np.sin(2 * np.pi * i / 90) * np.cos(2 * np.pi * j / 75)
    image = map_coordinates(p.science.image.astype(float), [j, i + dx], order=5, mode="nearest")
    p.science = p.science.with_(image=image.astype(np.float32))
    return p


@pytest.fixture(scope="module")
def plain():
    return figures(pair(**SETTINGS), order=1)


def test_a_good_match_has_even_maps_and_no_shift(plain):
    m = plain.metrics
    assert len(m["chi2_map"]) == len(m["kernel_sum_map"]) == 9
    known = np.isfinite(m["chi2_map"])
    assert known.sum() >= 6
    np.testing.assert_allclose(np.array(m["chi2_map"])[known], 1, atol=0.25)
    np.testing.assert_allclose(np.array(m["kernel_sum_map"])[known], 0.8, rtol=0.02)
    assert m["residual_shift_px"] < 0.02
    assert m["residual_shift_chi2"] == pytest.approx(1, abs=0.6)
    assert not {"poor_match", "residual_shift", "misaligned"} & set(plain.flags)


def test_a_registration_error_that_no_kernel_follows_is_measured(plain):
    ctx = figures(warped(pair(**SETTINGS), 0.2), order=1)
    # half of the square of the wave's amplitude is along x, nothing along y
    assert ctx.metrics["residual_shift_px"] == pytest.approx(0.2 / 2, abs=0.04)
    assert ctx.metrics["residual_shift_chi2"] > 3 * plain.metrics["residual_shift_chi2"]
    assert "residual_shift" in ctx.flags


@pytest.mark.parametrize("moved", [0.0, 0.2])
def test_single_stars_are_no_registration_error(moved):
    """Transients on three of sixty stars pull these far; a shift of all stars is one."""
    rng, norm = np.random.default_rng(48), np.full((2, 60), 0.05**-2)
    shift = rng.normal(0, np.hypot(0.05, moved), (2, 60))
    shift[:, :3] = 2.0
    ctx = context()
    _shifts(ctx, -shift * norm, norm)
    assert ("residual_shift" in ctx.flags) == bool(moved)
    assert ctx.metrics["residual_shift_px"] == pytest.approx(moved, abs=0.03)


@pytest.mark.parametrize(("photometric", "least", "most"), [("varying", 0.08, 0.16), ("constant", 0.015, 0.08)])
def test_a_photometric_gradient_shows_in_the_map_of_kernel_sums(plain, photometric, least, most):
    """A kernel of constant sum hides most of a gradient of 20 % in its wings, but not all."""
    p = pair(**SETTINGS)
    gradient = (1 + 0.1 * (np.arange(360) / 180 - 1)).astype(np.float32)
    p.science = p.science.with_(image=p.science.image * gradient, variance=p.science.variance * gradient**2)
    ctx = figures(p, order=1, photometric=photometric)
    without, across = (np.nanmean(np.reshape(c.metrics["kernel_sum_map"], (3, 3)), axis=0) for c in (plain, ctx))
    assert abs(without[2] / without[0] - 1) < 0.01
    assert least < across[2] / across[0] - 1 < most


def test_a_patch_that_does_not_match_shows_in_the_map_of_chi2():
    p = pair(**SETTINGS)
    image = p.science.image.copy()
    corner = np.s_[240:, 240:]
    # noise of three times the stated one
    image[corner] += np.random.default_rng(82).normal(0, 1, image[corner].shape) * np.sqrt(
        8 * p.science.variance[corner]
    )
    p.science = p.science.with_(image=image)
    ctx = figures(p, order=1)
    chi2 = np.array(ctx.metrics["chi2_map"]).reshape(3, 3)
    assert chi2[2, 2] > 2 * np.nanmedian(chi2)
    assert "poor_match" in ctx.flags


@pytest.mark.parametrize("offset", [(2.0, 0.0), (0.0, -2.0)])
def test_a_wcs_error_of_two_pixels_is_named(offset):
    ctx = figures(pair(**{**SETTINGS, "offset": offset}), order=1)
    assert "misaligned" in ctx.flags
    assert isinstance(ctx.failures[0], MisalignedError)
    assert np.hypot(ctx.metrics["registration_dx_px"], ctx.metrics["registration_dy_px"]) == pytest.approx(2, abs=0.05)


def test_signs_of_candidates_are_counted():
    def signs(up, down, doubtful=0):
        flags = np.array([0] * up + [1] * down + [1 | 8] * doubtful, np.int32)
        ctx = context()
        _report_signs(ctx, Catalog.of({"x": np.zeros(len(flags)), "flags": flags}, {"x": u.pix}))
        return ctx

    few = signs(6, 2, 30)
    assert (few.metrics["candidates_positive"], few.metrics["candidates_negative"]) == (6, 2)
    assert few.metrics["asymmetry"] == pytest.approx(0.5)
    assert not few.flags
    assert "lopsided" in signs(50, 250).flags
    assert not signs(140, 120).flags
    assert np.isnan(signs(0, 0).metrics["asymmetry"])
