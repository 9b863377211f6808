# SPDX-License-Identifier: BSD-3-Clause
"""Medians and spreads against NumPy's and SciPy's."""

import numpy as np
import pytest
from scipy.stats import median_abs_deviation

from skydelta.io.field import Domain
from skydelta.kernels.backend import CPU
from skydelta.kernels.polynomial import chebyshev_table, polynomial_plane, polynomial_terms
from skydelta.stages.robust import levels, median


@pytest.mark.parametrize("shape", [(1,), (2,), (7,), (100,), (1, 2), (9, 2), (10, 3)])
def test_median_is_that_of_numpy(rng, shape):
    values = rng.normal(size=shape)
    np.testing.assert_array_equal(median(values), np.median(values, axis=0))


@pytest.mark.parametrize("missing", [0, 1, 37])
def test_levels_leave_missing_numbers_out_and_their_input_alone(rng, missing):
    plane = rng.normal(3, 2, (41, 30)).astype(np.float32)
    plane.ravel()[rng.permutation(plane.size)[:missing]] = np.nan
    before = plane.copy()
    middle, spread, limit = levels(plane, 4.0, 1.0)
    known = plane[np.isfinite(plane)].astype(float)
    assert middle == pytest.approx(np.median(known), rel=1e-6)
    assert spread == pytest.approx(1.4826 * median_abs_deviation(known), rel=1e-6)
    assert limit == pytest.approx(middle + 4 * spread, rel=1e-6)
    np.testing.assert_array_equal(plane, before)


def test_without_a_number_there_are_no_levels():
    assert np.isnan(levels(np.full((3, 4), np.nan, np.float32))).all()


@pytest.mark.parametrize("order", [0, 1, 2, 4])
def test_a_polynomial_plane_is_the_sum_of_its_terms(rng, order):
    u, v = np.linspace(-1, 1, 23), np.linspace(-1, 1, 17)
    terms = polynomial_terms(*np.meshgrid(u, v), order)
    coefficients = rng.normal(size=len(terms))
    made = polynomial_plane(coefficients, order, chebyshev_table(u, order), chebyshev_table(v, order))
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, np.tensordot(coefficients, terms, axes=1), atol=2e-6)


def test_a_plane_over_the_pixels_is_the_polynomial_at_them(rng):
    """Of a part of an image too, against numpy's own Chebyshev series."""
    domain, coefficients = Domain((40, 60), (5.0, 7.0)), rng.normal(size=6)
    made = domain.plane(CPU, (31, 41), coefficients, 2)
    u, v = (2 * (np.arange(41) + 7) + 1) / 60 - 1, (2 * (np.arange(31) + 5) + 1) / 40 - 1
    table = np.zeros((3, 3))
    table[[0, 1, 0, 2, 1, 0], [0, 0, 1, 0, 1, 2]] = coefficients
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, np.polynomial.chebyshev.chebgrid2d(u, v, table).T, atol=2e-6)
