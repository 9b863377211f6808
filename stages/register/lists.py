# SPDX-License-Identifier: BSD-3-Clause
"""Two star lists: the map from one to the other, or numbers that say why there is none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.spatial import cKDTree
from scipy.stats import binom

from skydelta.errors import AlgorithmError
from skydelta.kernels.polynomial import count_terms
from skydelta.stages.register.patterns import (
    SHORT,
    Candidates,
    by_pairs,
    by_quads,
    by_shift,
    distinct,
    spread_order,
)
from skydelta.stages.register.planemap import Fit, PlaneMap, best_order, fit_map, frame_grid, similarity

SCALES = (0.4, 2.5)
"""Pixel scales of the two images relative to each other that are believed."""

FEWEST = 6
"""Pairs that a solution needs at least."""

CHANCE = -10.0
"""log10 of the expected number of solutions as good as this among unrelated stars, at most."""

SHARE = (0.3, 0.04)
"""Share of the stars in the overlap that have a partner: at least, in one image and in the other."""

FEW_SHARE = 0.75
"""The first of these where there are fewer than `FEW` pairs."""

FEW = 10

WORST_ERROR = 0.5
"""Largest predicted error of the map anywhere in the overlap, px of the second image."""

UNFITTED = 3.0
"""Distortion that the map leaves is this many times larger somewhere in the overlap than its standard deviation."""

BESIDE = 15.0
"""Stars without a partner are looked at for others so near, px."""

LEFT_BESIDE = (3.0, 0.1)
"""So many of them, and this share of the pairs, are allowed."""

MANY = 30
"""Pairs from which neighbours tell what the map leaves."""

FEW_UNFITTED = 0.67
"""Factor of the held-out residual of fewer pairs."""

SPARSE = 60
"""Pairs below which a further order, which they do not ask for, must not change the map much."""

SPARE = 3
"""Pairs more than terms that such an order needs to be looked at."""

RIVAL = 0.5
"""Another solution with this share of the pairs makes the field ambiguous."""

LATTICE = 250
"""Neighbouring pairs that are looked at for a pattern that repeats."""

ROUNDS = (300, 1200, 30_000)
"""Stars of each list that take part in the search, round by round."""

TRIED = 8
"""Candidates of each kind that are followed up in a round."""

SETTLED = 8
"""Pairs named by quads from which a candidate is fitted all over the frame at once."""

FIRST_TOLERANCE = 3.0
"""Distance of stars that may be the same while a candidate grows, px of the second image, at most."""

LAST_TOLERANCE = 4.0
"""Of pairs in the end: robust standard deviations of a coordinate; at least `LEAST_TOLERANCE` px."""

LEAST_TOLERANCE = 0.1

HOPELESS = 0.1
"""Share of the stars around a candidate without so many of which it is given up."""

GROWTH = 1.6
"""Factor by which the region around a candidate grows from step to step."""


COMPLETE = 0.6
"""Share of the stars with a partner above which a candidate need not grow in another way."""


@dataclass(frozen=True)
class _Steps:
    """How a region grows: pairs from which orders 1, 2 and 3 are fitted, and the tolerance (px of the second image)
    at first and at least."""

    pairs: tuple[int, int, int]
    tolerance: float
    least: float


STEPS = (_Steps((8, 24, 80), FIRST_TOLERANCE, 1.5), _Steps((6, 10, 30), 4 * FIRST_TOLERANCE, 4 * FIRST_TOLERANCE))
"""First with care; then, where few stars show much distortion, boldly. The verdict is the same."""


@dataclass(frozen=True)
class StarList:
    """Positions of stars in a frame.

    Attributes
    ----------
    x, y : float64 (n,)
        0-based px (or any plane in units of about a pixel).
    flux : float64 (n,)
        Only their order counts.
    error : float64 (n,)
        Standard deviation of a coordinate, px.
    box : float64 (2, 2)
        Lowest and highest x, y of the frame.
    """

    x: np.ndarray
    y: np.ndarray
    flux: np.ndarray
    error: np.ndarray
    box: np.ndarray

    def __len__(self) -> int:
        return len(self.x)

    @property
    def at(self) -> np.ndarray:
        """float64 (2, n)."""
        return np.stack([self.x, self.y])

    def spread(self) -> StarList:
        """The same stars in `spread_order`."""
        k = spread_order(self.x, self.y, self.flux)
        return StarList(self.x[k], self.y[k], self.flux[k], self.error[k], self.box)


@dataclass(frozen=True)
class Solution:
    """A map from one list to another and what speaks for it.

    Attributes
    ----------
    map : PlaneMap
    a, b : int (m,)
        Rows of the pairs in the lists as they were given.
    rms : float
        Of a coordinate of the pairs, px of the second list.
    share : (float, float)
        Of the stars in the overlap, those with a partner: first list, second list.
    overlap : float
        Part of the second frame that the first covers.
    chance : float
        log10 of the expected number of such solutions among unrelated stars.
    worst_error : float
        Largest predicted error of the map in the overlap, px.
    held_out : dict
        Residual of pairs predicted without themselves, px, of each order tried.
    """

    map: PlaneMap
    a: np.ndarray
    b: np.ndarray
    rms: float
    share: tuple[float, float]
    overlap: float
    chance: float
    worst_error: float
    held_out: dict[int, float] = field(default_factory=dict)

    @property
    def pairs(self) -> int:
        return len(self.a)

    def numbers(self) -> dict[str, Any]:
        """What a receipt keeps."""
        m = self.map.matrix(self.map.middle[:, None])[:, :, 0]
        determinant = float(np.linalg.det(m))
        return {
            "matched": self.pairs,
            "rms_px": self.rms,
            "order": self.map.order,
            "scale": float(np.sqrt(abs(determinant))),
            "turn_deg": float(np.degrees(np.arctan2(m[1, 0], m[0, 0]))),
            "mirrored": determinant < 0,
            "overlap_fraction": self.overlap,
            "matched_share": list(self.share),
            "worst_error_px": self.worst_error,
            "log10_chance": self.chance,
        }


def register_lists(
    a: StarList,
    b: StarList,
    highest_order: int = 5,
    scales: tuple[float, float] = SCALES,
    worst_rms: float = 1.0,
) -> Solution:
    """The map from the stars of ``a`` to those of ``b``.

    Similarities suggested by quads of neighbours, by pairs where a list is short and by a common shift grow outwards
    from where they were found, through an affine map to a polynomial; the best one must then stand against chance, in
    both directions, and have no rival. The same lists give the same result; nothing is drawn at random.

    Parameters
    ----------
    a, b : StarList
    highest_order : int
        Of the polynomial, 1 to 5.
    scales : (float, float)
        Px of ``b`` per px of ``a``, at least and at most.
    worst_rms : float
        Largest rms of a coordinate that is believed, px of ``b``.

    Raises
    ------
    AlgorithmError
        No trustworthy map: too few stars, none found, or more than one. ``numbers``: stars, matched, rms and what was
        asked of them.
    """
    numbers: dict[str, Any] = {"stars_image": len(a), "stars_onto": len(b), "matched": 0}
    if min(len(a), len(b)) < FEWEST:
        raise AlgorithmError(
            f"too few stars: {len(a)} in the image and {len(b)} in what it goes onto; {FEWEST} pairs are needed",
            **numbers,
        )
    search = _Search(a, b, highest_order, worst_rms)
    best, reason = search.best(scales)
    if best is None:
        raise AlgorithmError(f"no match: {reason}", **{**numbers, **search.numbers()})
    rival = search.rival(best)
    if rival:
        raise AlgorithmError(
            f"ambiguous: {best.pairs} pairs for one position and {rival} for another",
            **{**numbers, **best.numbers(), "rival": rival},
        )
    return best


class _Search:
    """Candidates grown and judged, the good ones kept."""

    def __init__(self, a: StarList, b: StarList, highest_order: int, worst_rms: float) -> None:
        self.order_a, self.order_b = (spread_order(s.x, s.y, s.flux) for s in (a, b))
        self.a, self.b = a.spread(), b.spread()
        self.at_a, self.at_b = self.a.at, self.b.at
        self.tree = cKDTree(self.at_b.T)
        self.spacing = float(np.median(self.tree.query(self.at_b.T, k=2)[0][:, 1]))
        self.highest_order, self.worst_rms = highest_order, worst_rms
        self.grid = frame_grid(self.a.box, 33)
        self.hypotheses = float(np.log10(2.0) + 2 * np.log10(len(a)) + 2 * np.log10(len(b)))
        self.good: list[Solution] = []
        self.closest: tuple[Solution, str] | None = None

    def numbers(self) -> dict[str, Any]:
        return self.closest[0].numbers() if self.closest else {}

    def best(self, scales: tuple[float, float]) -> tuple[Solution | None, str]:
        """The best solution of the first round that has one; else None and why."""
        for most in ROUNDS:
            for found, pairs in self._candidates(most, scales):
                self._follow(found, pairs)
            if self.good:
                return max(self.good, key=lambda s: (s.pairs, -s.chance)), ""
            if most >= max(len(self.a), len(self.b)):
                break
        return None, self.closest[1] if self.closest else "no pattern of stars is common to both"

    def _candidates(self, most: int, scales: tuple[float, float]) -> Iterator[tuple[Candidates, np.ndarray]]:
        """First guesses one by one, each with the pairs of stars that it rests on."""
        za, zb = (s.x[:most] + 1j * s.y[:most] for s in (self.a, self.b))
        if scales[0] <= 1 <= scales[1]:
            yield from distinct(by_shift(za, zb), TRIED)
        yield from distinct(by_quads(za, zb, scales), TRIED)
        if min(len(za), len(zb)) <= SHORT:
            yield from distinct(by_pairs(za, zb, scales), TRIED)

    def _follow(self, found: Candidates, pairs: np.ndarray) -> None:
        """Let a candidate grow, in one way after the other until it is complete, and judge it."""
        centre, radius = found.centre[0], float(found.radius[0])
        start = similarity(complex(found.alpha[0]), complex(found.beta[0]), bool(found.mirrored[0]))
        z = np.array([[centre.real], [centre.imag]])
        if any(np.hypot(*(s.map(z) - start(z))[:, 0]) < FIRST_TOLERANCE for s in self.good):
            return
        best: tuple[Solution, str] | None = None
        for steps in STEPS if pairs.shape[1] < SETTLED else (None, *STEPS):
            grown = self._settle(pairs) if steps is None else self._grow(start, z, radius, steps)
            judged = None if grown is None else self._judge(grown)
            if judged is not None and (best is None or (not judged[1], judged[0].pairs) > (not best[1], best[0].pairs)):
                best = judged
            if best is None or best[0].pairs < FEWEST or (not best[1] and max(best[0].share) > COMPLETE):
                break
        if best is None:
            return
        solution, fault = best
        if fault:
            if self.closest is None or solution.chance < self.closest[0].chance:
                self.closest = solution, fault
        elif not any(self._same(solution, s) for s in self.good):
            self.good.append(solution)

    def _pair(self, moved: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
        """Columns of ``moved`` (2, n) and rows of the second list that are each other's nearest."""
        gap, j = self.tree.query(moved.T, distance_upper_bound=tolerance)
        i = np.flatnonzero(np.isfinite(gap))
        i = i[np.argsort(gap[i], kind="stable")]
        first = np.unique(j[i], return_index=True)[1]
        i = np.sort(i[first])
        return i, j[i]

    def _grow(self, model: PlaneMap, centre: np.ndarray, reach: float, steps: _Steps) -> PlaneMap | None:
        """The map, from a region around a candidate out to the whole frame."""
        away = np.hypot(*(self.at_a - centre))
        whole = float(away.max())
        widest = self._widest(steps.tolerance)
        tolerance, before = widest, None
        for _ in range(60):
            inside = np.flatnonzero(away <= reach)
            i, j = self._pair(model(self.at_a[:, inside]), tolerance)
            if len(i) < 3:
                return None
            i = inside[i]
            # a region that grows must not be led astray by terms that few stars determine
            order = int(np.searchsorted(steps.pairs, len(i), side="right"))
            fit = fit_map(self.at_a[:, i], self.at_b[:, j], min(order, self.highest_order), iterations=3)
            model = fit.map
            if not np.isfinite(model.coefficients).all():
                return None
            pairs = i.tobytes() + j.tobytes()
            if reach >= whole and pairs == before:
                break
            if len(inside) >= 15 and len(i) < HOPELESS * self._within(model, inside):
                return None
            before = pairs
            tolerance = float(np.clip(6 * fit.sigma, min(steps.least, widest), widest))
            reach = min(whole, reach * GROWTH)
        return model

    def _settle(self, pairs: np.ndarray) -> PlaneMap | None:
        """The map through the pairs that many quads agree on, then through all stars that it brings together."""
        i, j = pairs
        before = b""
        for _ in range(10):
            a, b = self.at_a[:, i], self.at_b[:, j]
            fit = best_order(a, b, a, min(3, self.highest_order))[0]
            i, j = self._pair(fit.map(self.at_a), float(np.clip(6 * fit.sigma, 1.0, self._widest(4 * FIRST_TOLERANCE))))
            now = i.tobytes() + j.tobytes()
            if len(i) < FEWEST:
                return None
            if now == before:
                break
            before = now
        return fit.map

    def _widest(self, tolerance: float) -> float:
        """A tolerance, less in a crowd."""
        return min(tolerance, max(0.35 * self.spacing, 0.5))

    def _within(self, model: PlaneMap, rows: np.ndarray) -> int:
        """How many of these stars of the first list fall into the second frame."""
        return int(_inside(model(self.at_a[:, rows]), self.b.box).sum())

    def _judge(self, model: PlaneMap) -> tuple[Solution, str]:
        """The final fit of a grown map, and what is wrong with it (empty if nothing)."""
        tolerance = self._widest(FIRST_TOLERANCE)
        fit: Fit | None = None
        held_out: dict[int, float] = {}
        i = j = np.zeros(0, int)
        for step in range(5):
            new_i, new_j = self._pair(model(self.at_a), tolerance)
            if fit is not None and np.array_equal(new_i, i) and np.array_equal(new_j, j):
                break
            i, j = new_i, new_j
            if len(i) < 3:
                fit = None
                break
            variance = self.a.error[i] ** 2 * _scale2(model) + self.b.error[j] ** 2
            a, b, weight = self.at_a[:, i], self.at_b[:, j], 1 / np.maximum(variance, 1e-8)
            if step in (0, 2):
                common = self.grid[:, _inside(model(self.grid), self.b.box)]
                fit, held_out = best_order(a, b, common, self.highest_order, weight)
            else:
                fit = fit_map(a, b, model.order, weight)
            model = fit.map
            tolerance = min(tolerance, max(LAST_TOLERANCE * fit.sigma, LEAST_TOLERANCE))
        return self._verdict(model, i, j, fit, tolerance, held_out)

    def _verdict(
        self,
        model: PlaneMap,
        i: np.ndarray,
        j: np.ndarray,
        fit: Fit | None,
        tolerance: float,
        held_out: dict[int, float],
    ) -> tuple[Solution, str]:
        rms = np.inf if fit is None else float(np.sqrt((fit.residual**2).mean()))
        moved = model(self.at_a)
        n_a = int(_inside(moved, self.b.box, tolerance).sum())
        landed = model(self.grid)
        common = _inside(landed, self.b.box)
        cells, n_b = self._covered(landed)
        area = max(cells, 1e-9) * float(np.prod(np.ptp(self.b.box, axis=1)))
        worst = np.inf
        if fit is not None and common.any():
            worst = float(model.error(self.grid[:, common]).max()) + UNFITTED * self._unfitted(fit, i, j)
            worst = max(worst, self._doubt(fit, i, j, self.grid[:, common]))
        share = len(i) / max(n_a, 1), len(j) / max(n_b, 1)
        p = min(1.0, n_b / area * np.pi * tolerance**2)
        beside = self._beside(moved, i, j)
        # the pairs that the terms of the map absorb say nothing
        absorbed = 2 if model.order == 0 else model.coefficients.shape[1]
        free, of = len(i) - absorbed, max(n_a - absorbed, len(i) - absorbed)
        chance = 0.0 if free <= 0 else float(binom.logsf(free - 1, of, p)) / np.log(10)
        chance = max(chance, -1000.0) + self.hypotheses
        solution = Solution(model, self.order_a[i], self.order_b[j], rms, share, cells, chance, worst, held_out)
        least = FEW_SHARE if len(i) < FEW else SHARE[0]
        faults = (
            (len(i) < FEWEST, f"{len(i)} pairs are found, {FEWEST} are needed"),
            (chance > CHANCE, f"{len(i)} pairs of {n_a} and {n_b} stars in the overlap may be chance"),
            (
                max(share) < least or min(share) < SHARE[1],
                f"only {len(i)} pairs of {n_a} and {n_b} stars in the overlap",
            ),
            (not rms <= self.worst_rms, f"{len(i)} pairs scatter by {rms:.2f} px, {self.worst_rms:g} are allowed"),
            (
                model.order > 0 and len(i) < count_terms(2) + SPARE,
                f"{len(i)} pairs ask for more than a similarity, and are too few to tell a distortion",
            ),
            (
                beside > LEFT_BESIDE[0] + LEFT_BESIDE[1] * len(i),
                f"{len(i)} pairs fit, but {beside:.0f} stars more than by chance lie beside others without being pairs",
            ),
            (
                not worst <= WORST_ERROR,
                f"{len(i)} pairs leave the map uncertain by {worst:.2f} px in the overlap, {WORST_ERROR:g} are allowed",
            ),
        )
        return solution, next((words for wrong, words in faults if wrong), "")

    def _unfitted(self, fit: Fit, i: np.ndarray, j: np.ndarray) -> float:
        """Standard deviation of what neighbouring pairs have in common although the map does not have it, px.

        Distortion that the terms cannot follow: neither more than the pairs scatter beyond the errors of their
        centroids, nor more than their residuals agree with those of their nearest neighbours (and may do so by chance).
        Of few pairs it is what they miss when predicted without themselves, beyond what such errors make of it.
        """
        expected = self.a.error[i] ** 2 * _scale2(fit.map) + self.b.error[j] ** 2
        excess = fit.sigma**2 - float(np.median(expected))
        length = np.maximum(np.hypot(*fit.residual), 1e-12)
        clipped = fit.residual * np.minimum(1, 3 * max(fit.sigma, 1e-12) / length)
        near = cKDTree(self.at_a[:, i].T).query(self.at_a[:, i].T, k=2)[1][:, 1]
        if len(i) < MANY:
            absorbed = 2 if fit.map.order == 0 else fit.map.coefficients.shape[1]
            alone = 2 * float(np.median(expected)) / max(1 - absorbed / len(i), 0.1) ** 2
            return FEW_UNFITTED * float(np.sqrt(max(0.0, fit.held_out - alone)))
        alike = (clipped * clipped[:, near]).sum() / max((clipped**2).sum(), 1e-24)
        return float(np.sqrt(max(0.0, min(excess, fit.sigma**2 * (alike + 1 / np.sqrt(len(i)))))))

    def _doubt(self, fit: Fit, i: np.ndarray, j: np.ndarray, grid: np.ndarray) -> float:
        """How far few pairs leave the next two orders free to depart from the map, root mean square over the overlap.

        A distortion that they do not show may still be there between and beyond them.
        """
        most, here = 0.0, fit.map(grid)
        for order in range(fit.map.order + 1, min(fit.map.order + 2, self.highest_order) + 1):
            if len(i) >= SPARSE or len(i) < count_terms(order) + SPARE:
                break
            other = fit_map(self.at_a[:, i], self.at_b[:, j], order).map(grid)
            most = max(most, float(np.sqrt(((other - here) ** 2).sum(axis=0).mean())))
        return most

    def _beside(self, moved: np.ndarray, i: np.ndarray, j: np.ndarray) -> float:
        """Stars of both lists without a partner that lie near each other, less those that do so by chance.

        Many of them are one star twice, where the map does not follow a distortion.
        """
        left = np.setdiff1d(np.flatnonzero(_inside(moved, self.b.box)), i)
        other = np.setdiff1d(np.arange(self.at_b.shape[1]), j)
        if not left.size or not other.size:
            return 0.0
        tree = cKDTree(self.at_b[:, other].T)
        radius = min(BESIDE, 0.5 * self.spacing)
        # the ring around it tells how many there are by chance, whatever the density does
        near, wide = (np.asarray(tree.query_ball_point(moved[:, left].T, r, return_length=True)) for r in
                      (radius, 3 * radius))  # fmt: skip
        expected = -np.expm1(-(wide - near) / 8)
        return float((near > 0).sum() - expected.sum() - 2 * np.sqrt(expected.sum()))

    def _covered(self, landed: np.ndarray) -> tuple[float, int]:
        """Part of the second frame that the first one's grid covers, and how many stars of the second lie there."""
        low, high = self.b.box[:, :1], self.b.box[:, 1:]
        side = np.sqrt(landed.shape[1])
        edge = np.ptp(landed, axis=1) / (side - 1)
        tree = cKDTree(landed.T)
        reach = float(max(edge.max(), 1e-9))
        x, y = np.meshgrid(np.linspace(0, 1, 41), np.linspace(0, 1, 41))
        probe = low + np.stack([x.ravel(), y.ravel()]) * (high - low)
        part = float((tree.query(probe.T)[0] <= reach).mean())
        return part, int((tree.query(self.at_b.T)[0] <= reach).sum())

    def _same(self, one: Solution, other: Solution) -> bool:
        """Whether two solutions put the stars of the overlap at the same places."""
        at = np.concatenate([self.a.at[:, :0], self._given(one), self._given(other)], axis=1)
        return bool(np.median(np.hypot(*(one.map(at) - other.map(at)))) < FIRST_TOLERANCE)

    def _given(self, s: Solution) -> np.ndarray:
        """Positions of the paired stars of the first list."""
        inverse = np.argsort(self.order_a)
        return self.at_a[:, inverse[s.a]]

    def rival(self, best: Solution) -> int:
        """Pairs of the best other position that the stars allow; 0 where there is no rival."""
        others = [s.pairs for s in self.good if s is not best]
        if others and max(others) >= RIVAL * best.pairs:
            return max(others)
        return self._shifted_rival(best)

    def _shifted_rival(self, best: Solution) -> int:
        """Pairs that another shift of the registered stars makes, as a lattice has them; 0 where they are few."""
        inverse = np.argsort(self.order_b)
        b = self.at_b[:, inverse[best.b]]
        away = np.hypot(*(b - np.median(b, axis=1)[:, None]))
        b = b[:, np.argsort(away, kind="stable")[:LATTICE]]
        tolerance = max(LAST_TOLERANCE * best.rms, 0.5)
        d = (b[:, None, :] - b[:, :, None]).reshape(2, -1)
        # a lattice repeats at its own spacing: near differences are enough, and for few stars all are looked at
        reach = 12 * np.sqrt(np.prod(np.ptp(b, axis=1) + 1) / b.shape[1])
        near = (np.abs(d).max(axis=0) <= reach) & (np.hypot(*d) > 3 * tolerance)
        d = d[:, near]
        if not d.size:
            return 0
        side = 2 * tolerance
        size = int(2 * reach / side) + 3
        most = 0
        for offset in (0.0, 0.5):
            ix, iy = ((d + reach) / side + offset).astype(int)
            most = max(most, int(np.bincount(iy * size + ix).max()))
        expected = len(d[0]) * (side / (2 * reach)) ** 2
        limit = max(RIVAL * b.shape[1], expected + 6 * np.sqrt(expected) + 3)
        return most if most >= limit else 0


def _inside(at: np.ndarray, box: np.ndarray, margin: float = 0.0) -> np.ndarray:
    within = (at >= box[:, :1] - margin) & (at <= box[:, 1:] + margin)
    return within[0] & within[1]


def _scale2(model: PlaneMap) -> float:
    """Square of the pixel scale of a map."""
    m = model.matrix(model.middle[:, None])[:, :, 0]
    return float(abs(np.linalg.det(m)))
