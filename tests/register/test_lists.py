# SPDX-License-Identifier: BSD-3-Clause
"""Star lists with known truth: found, or refused with numbers, never wrong."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from skydelta.errors import AlgorithmError
from skydelta.stages.register.lists import StarList, register_lists
from skydelta.stages.register.patterns import spread_order
from skydelta.stages.register.planemap import best_order, fit_map

SIDE = 1000.0
SHIFT = np.array([[7.3], [-12.8]])


def stars(at, flux=None, noise=0.05, side=SIDE, seed=1):
    """A list in random order, with noise."""
    rng = np.random.default_rng(seed)
    at = at + rng.normal(0, noise, at.shape)
    k = rng.permutation(at.shape[1])
    flux = np.ones(at.shape[1]) if flux is None else flux
    box = np.array([[0.0, side], [0.0, side]])
    return StarList(at[0][k], at[1][k], flux[k], np.full(at.shape[1], noise), box)


def lattice(step=60.0):
    return np.stack([g.ravel() for g in np.meshgrid(np.arange(50, SIDE, step), np.arange(50, SIDE, step))])


def turned(at, degrees=40.0):
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return np.array([[c, -s], [s, c]]) @ (at - SIDE / 2) + SIDE / 2


def simulator():
    """The pairs of the benchmark, of which the suite runs a share."""
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "register.py"
    spec = importlib.util.spec_from_file_location("benchmark_register", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_random_pairs_are_solved_or_refused_but_never_wrong(figure):
    module = simulator()
    results = [module.outcome(10_000 + k, most=80) for k in range(100)]
    found = module.summary(results)
    assert found["unrelated"]["pairs"] == 10
    figure("wrong transforms of 100 random pairs", found["wrong"] + found["unrelated"]["solved"], 0)
    enough = [r for r in results if r["common"] >= module.SOLVABLE and not r["bend"]]
    figure("solved of those with enough stars, no distortion", np.mean([r["success"] for r in enough]), (0.85, 1))
    figure("median error, px", found["error_px"]["median"], 0.1)
    for r in results:
        if not r["success"]:
            assert r["said"]


@pytest.mark.parametrize("number", [0, 1, 2, 3, 5])
def test_too_few_stars_are_refused_with_numbers(rng, number):
    at = rng.uniform(0, SIDE, (2, number))
    with pytest.raises(AlgorithmError, match=f"too few stars: {number} in the image") as e:
        register_lists(stars(at), stars(at + SHIFT))
    assert e.value.numbers == {"stars_image": number, "stars_onto": number, "matched": 0}


@pytest.mark.parametrize("number", [6, 8, 10])
def test_few_stars_are_right_or_refused(number):
    for seed in range(8):
        rng = np.random.default_rng(seed)
        at = rng.uniform(0, SIDE, (2, number))
        try:
            found = register_lists(stars(at), stars(at + SHIFT, seed=2))
        except AlgorithmError as e:
            assert e.numbers["stars_image"] == number
        else:
            assert np.abs(found.map(at) - at - SHIFT).max() < 0.5


def test_an_image_on_itself_is_the_identity(rng):
    at, flux = rng.uniform(0, SIDE, (2, 300)), rng.pareto(1.5, 300)
    found = register_lists(stars(at, flux, noise=0.0), stars(at, flux, noise=0.0, seed=5))
    assert found.pairs == 300
    assert np.abs(found.map(at) - at).max() < 1e-9


@pytest.mark.parametrize(
    "pair",
    {
        "lattice": lambda: (lattice(), lattice()),
        "lattice, shifted": lambda: (lattice(), lattice() + SHIFT),
        "lattice, turned": lambda: (lattice(), turned(lattice())),
        "part of a lattice": lambda: (lattice()[:, lattice()[0] < 600], lattice()),
        "lattice among some stars": lambda: tuple(
            np.concatenate([lattice(), np.random.default_rng(3).uniform(0, SIDE, (2, 20))], axis=1) + s for s in (0, 9)
        ),
        "row": lambda: (np.stack([np.arange(20) * 50.0, np.full(20, 500.0)]),) * 2,
        "ring": lambda: (500 + 300 * np.stack([f(np.arange(12) * np.pi / 6) for f in (np.cos, np.sin)]),) * 2,
    }.items(),
    ids=lambda p: p[0],
)
def test_patterns_that_repeat_are_refused(pair):
    a, b = pair[1]()
    with pytest.raises(AlgorithmError) as e:
        register_lists(stars(a), stars(b, seed=2))
    assert e.value.numbers["matched"] >= 10


@pytest.mark.parametrize("number", [8, 30, 200, 1000])
def test_unrelated_fields_are_refused(rng, number):
    fields = [stars(rng.uniform(0, SIDE, (2, number)), rng.pareto(1.5, number)) for _ in range(2)]
    with pytest.raises(AlgorithmError) as e:
        register_lists(*fields)
    assert {"stars_image", "stars_onto", "matched"} <= set(e.value.numbers)


def test_hot_pixels_that_two_fields_share_are_no_match(rng):
    hot = rng.uniform(0, SIDE, (2, 15))
    fields = [stars(np.concatenate([hot, rng.uniform(0, SIDE, (2, 100))], axis=1), noise=0.0) for _ in range(2)]
    with pytest.raises(AlgorithmError):
        register_lists(*fields)


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_field_sixteen_times_larger(rng, mirrored, figure):
    at, flux = rng.uniform(0, 4 * SIDE, (2, 3000)), rng.pareto(1.5, 3000) + 1
    moved = turned(at - 1.5 * SIDE, 130.0)
    moved = moved[::-1] if mirrored else moved
    inside = ((moved > 0) & (moved < SIDE)).all(axis=0)
    small, large = stars(moved[:, inside], flux[inside]), stars(at, flux, side=4 * SIDE, seed=2)
    for a, b, p, q in ((small, large, moved, at), (large, small, at, moved)):
        found = register_lists(a, b)
        figure("error in a field 16 times larger, px", np.abs(found.map(p) - q)[:, inside].max(), 0.1)
        assert found.numbers()["mirrored"] == mirrored


def test_flat_luminosities_and_distortion(rng, figure):
    """7056 stars of alike brightness, cubic distortion of 10 px, no WCS: the case on which the peers fail."""
    side = 4096.0
    at = rng.uniform(0, side, (2, 7056))
    u, v = 2 * at / side - 1
    bent = np.stack([10 * u * u - 4 * u * v + 3 * v * v + 5 * u**3, 5 * u * v - 8 * v * v + 2 * u * u + 5 * v**3])
    truth = turned(at, 1.0) + bent + SHIFT
    a, b = (stars(p, rng.uniform(1, 1.2, 7056), 0.02, side, k) for k, p in ((1, at), (2, truth)))
    found = register_lists(a, b)
    inside = ((truth > 0) & (truth < side)).all(axis=0)
    error = np.hypot(*(found.map(at) - truth))[inside]
    figure("flat luminosities, SIP: median error, px", np.median(error), 0.01)
    figure("flat luminosities, SIP: largest error, px", error.max(), 0.05)
    assert found.map.order == 3


def test_the_same_lists_give_the_same_map_in_any_order(rng):
    at, flux = rng.uniform(0, SIDE, (2, 150)), rng.pareto(1.5, 150) + 1
    moved = turned(at) * 1.3 + rng.normal(0, 0.1, at.shape)
    box = np.array([[-500, 2000], [-500, 2000]])
    found = []
    for seed in (1, 1, 2):
        k = np.random.default_rng(seed).permutation(150)
        a = StarList(at[0][k], at[1][k], flux[k], np.full(150, 0.1), box)
        b = StarList(moved[0], moved[1], flux, np.full(150, 0.1), box)
        found.append(register_lists(a, b).map.coefficients)
    assert np.array_equal(found[0], found[1])
    np.testing.assert_allclose(found[0], found[2], rtol=0, atol=1e-9)


def test_the_order_of_stars_is_spread_and_bright_first(rng):
    n = 4000
    x, y, flux = *rng.uniform(0, SIDE, (2, n)), rng.pareto(1.5, n) + 1
    x[:2000] = 200 + 0.2 * x[:2000]  # half of them in a crowd
    order = spread_order(x, y, flux)
    assert sorted(order) == list(range(n))
    assert order[0] == flux.argmax()
    first = order[:200]
    counts = np.histogram2d(x[first], y[first], bins=5, range=[[0, SIDE], [0, SIDE]])[0]
    assert counts.min() >= 1
    assert counts.max() <= 5 * 200 / 25
    assert np.median(flux[first]) > 2 * np.median(flux)


def test_a_polynomial_is_the_one_of_numpy(rng):
    a = rng.uniform(0, SIDE, (2, 200))
    b = turned(a) + 1e-5 * a**2 + rng.normal(0, 0.1, a.shape)
    fit = fit_map(a, b, 2, iterations=1)
    x, y = a / SIDE
    terms = np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=1)
    want = (terms @ np.linalg.lstsq(terms, b.T, rcond=None)[0]).T
    np.testing.assert_allclose(fit.map(a), want, atol=1e-8)
    # residuals of pairs predicted without themselves, one by one
    alone = []
    for k in range(20):
        rest = np.arange(200) != k
        alone.append(np.hypot(*(fit_map(a[:, rest], b[:, rest], 2, iterations=1).map(a[:, [k]]) - b[:, [k]])[:, 0]))
    hat = terms @ np.linalg.solve(terms.T @ terms, terms.T)
    np.testing.assert_allclose(alone, (np.hypot(*fit.residual) / (1 - np.diag(hat)))[:20], rtol=1e-6)


@pytest.mark.parametrize("order", [0, 1, 3])
def test_held_out_stars_choose_the_order(rng, order):
    a = rng.uniform(0, SIDE, (2, 300))
    u, v = 2 * a / SIDE - 1
    extra = {0: 0, 1: np.stack([0.5 * u, 0 * v]), 3: np.stack([u**3, u * v * v])}[order]
    b = turned(a) + extra + rng.normal(0, 0.05, a.shape)
    b[:, :15] += rng.uniform(-3, 3, (2, 15))  # wrong pairs
    fit, held_out = best_order(a, b, a, 5)
    assert fit.map.order == order
    assert set(held_out) == {0, 1, 2, 3, 4, 5}
    predicted = fit.map.error(a)
    assert 0.3 < np.sqrt(((fit.map(a) - turned(a) - extra) ** 2).mean()) / np.sqrt((predicted**2).mean()) < 2.0
