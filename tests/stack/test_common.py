# SPDX-License-Identifier: BSD-3-Clause
"""The joint least squares against a dense one, with every common value as an unknown of its own."""

import numpy as np
import pytest

from skydelta.stages.stack.common import Series, solve


def problem(rng, n=5, places=60, k=3, noise=0.1):
    u = rng.uniform(-1, 1, (2, places))
    common = rng.normal(100, 10, places)
    offsets = rng.normal(0, 3, (n, k))
    series = []
    for o in offsets:
        here = np.sort(rng.choice(places, 40, replace=False))
        terms = np.stack([np.ones(40), *u[:, here]])[:k]
        weight = rng.uniform(0.5, 2, 40) / noise**2
        value = common[here] + o @ terms + rng.normal(size=40) / np.sqrt(weight)
        series.append(Series(here, value, weight, terms))
    return series, offsets, common


@pytest.mark.parametrize("k", [1, 3])
def test_differences_are_those_of_dense_least_squares(k, rng, monkeypatch):
    monkeypatch.setattr("skydelta.stages.stack.common.HUBER", 1e9)
    series, _, common = problem(rng, k=k)
    n, places = len(series), len(common)
    rows, right = [], []
    for i, s in enumerate(series):
        for j, place in enumerate(s.place):
            row = np.zeros(n * k + places)
            row[i * k : (i + 1) * k], row[n * k + place] = s.terms[:, j], 1
            rows.append(row * np.sqrt(s.weight[j]))
            right.append(s.value[j] * np.sqrt(s.weight[j]))
    wanted = np.linalg.lstsq(np.array(rows), np.array(right), rcond=None)[0][: n * k].reshape(n, k)
    found = solve(series, places)
    np.testing.assert_allclose(found.offsets - found.offsets[0], wanted - wanted[0], atol=1e-9)
    np.testing.assert_allclose(found.offsets.sum(axis=0), 0, atol=1e-9)
    assert (found.group == 0).all()


def test_errors_are_those_of_monte_carlo(rng, figure):
    pulls = []
    for _ in range(60):
        series, offsets, common = problem(rng, k=1)
        found = solve(series, len(common))
        pulls.append((found.offsets - (offsets - offsets.mean())) / found.errors)
    figure("scatter of offsets over their errors", np.std(pulls), (0.85, 1.25))


def test_outliers_do_not_move_it(rng):
    series, offsets, common = problem(rng, k=1)
    for s in series:
        s.value[::9] += 50
    found = solve(series, len(common))
    assert np.abs(found.offsets - (offsets - offsets.mean())).max() < 0.15


def test_series_apart_are_groups_of_their_own():
    def one(places, value):
        place = np.array(places)
        return Series(place, np.full(len(place), value), np.ones(len(place)), np.ones((1, len(place))))

    found = solve(
        [one([0, 1], 3.0), one([2, 3], 7.0), one([1, 2], 5.0), one([8, 9], 1.0), one([9], 2.0), one([5], 4.0)], 10
    )
    assert found.group.tolist() == [0, 0, 0, 1, 1, 2]
    np.testing.assert_allclose(found.offsets[:, 0], [-2, 2, 0, -0.5, 0.5, 0], atol=1e-9)
    assert found.links.tolist() == [1, 1, 2, 1, 1, 0]
