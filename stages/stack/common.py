# SPDX-License-Identifier: BSD-3-Clause
"""One model of many overlapping series: a value common to all members of a place, and an offset of each series.

Background matching (places are blocks of the sky, series are images) and photometric scaling (places are stars, values
are logarithms of flux) are the same least squares. Eliminating the common values leaves the sum over all pairwise
differences in the overlaps, weighted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ROUNDS = 8
"""Of reweighting."""

HUBER = 2.0
"""Robust standard deviations up to which a value has its full weight."""

RANK = 1e-10
"""Relative size of an eigenvalue below which a combination of offsets is not determined: all moved alike, say."""


@dataclass(frozen=True)
class Series:
    """Values of one series.

    Attributes
    ----------
    place : int64 (n,)
        Number of the place of each value; none twice.
    value, weight : float64 (n,)
        Inverse variances.
    terms : float64 (k, n)
        What the offset is made of at each place.
    """

    place: np.ndarray
    value: np.ndarray
    weight: np.ndarray
    terms: np.ndarray


@dataclass(frozen=True)
class Common:
    """A solution of value = common(place) + offset . terms(place).

    Attributes
    ----------
    offsets : float64 (series, k)
        Of least norm: where only differences are determined, their sum over connected series is 0.
    errors : float64 (series, k)
        Standard errors, of what is determined.
    common, weight : float64 (places,)
        NaN and 0 where there is no value.
    group : int64 (series,)
        Series that no chain of overlaps connects have different numbers.
    links : int64 (series,)
        Places that a series shares with others.
    scatter : float
        Robust standard deviation of the residuals in units of their own; about 1.
    """

    offsets: np.ndarray
    errors: np.ndarray
    common: np.ndarray
    weight: np.ndarray
    group: np.ndarray
    links: np.ndarray
    scatter: float


def solve(series: list[Series], places: int) -> Common:
    """Robust least squares: Huber weights, a few rounds."""
    count = np.zeros(places, np.int64)
    for s in series:
        count[s.place] += 1
    links = np.array([(count[s.place] > 1).sum() for s in series])
    factors = [np.ones_like(s.value) for s in series]
    scatter = 1.0
    for _ in range(ROUNDS):
        offsets, inverse, common, weight = _once(series, factors, places)
        left = [
            np.sqrt(s.weight) * (s.value - common[s.place] - o @ s.terms) for s, o in zip(series, offsets, strict=True)
        ]
        shared = np.concatenate([r[count[s.place] > 1] for r, s in zip(left, series, strict=True)])
        if not shared.size:
            break
        scatter = 1.4826 * float(np.median(np.abs(shared)))
        limit = HUBER * max(scatter, 1e-12)
        factors = [np.minimum(1.0, limit / np.maximum(np.abs(r), limit)) for r in left]
    spread = max(scatter, 1.0)
    errors = spread * np.sqrt(np.maximum(np.diagonal(inverse), 0)).reshape(offsets.shape)
    return Common(offsets, errors, common, weight, _groups(series, places), links, scatter)


def _once(
    series: list[Series], factors: list[np.ndarray], places: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Offsets (n, k), inverse of their normal matrix, common values and their weights."""
    k, n = len(series[0].terms), len(series)
    weights = [s.weight * f for s, f in zip(series, factors, strict=True)]
    total, sum_w = np.zeros(places), np.zeros(places)
    for s, w in zip(series, weights, strict=True):
        total[s.place] += w * s.value
        sum_w[s.place] += w
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total / sum_w
    normal, right = np.zeros((n, k, n, k)), np.zeros((n, k))
    row = np.full(places, -1)
    for i, (s, w) in enumerate(zip(series, weights, strict=True)):
        right[i] = s.terms @ (w * (s.value - mean[s.place]))
        normal[i, :, i] += (s.terms * w) @ s.terms.T
        row[s.place] = np.arange(len(s.place))
        for j in range(i + 1):
            other = series[j]
            here = row[other.place]
            both = here >= 0
            if both.any():
                mine = here[both]
                share = w[mine] * weights[j][both] / sum_w[other.place[both]]
                part = (s.terms[:, mine] * share) @ other.terms[:, both].T
                normal[i, :, j] -= part
                if j != i:
                    normal[j, :, i] -= part.T
        row[s.place] = -1
    values, vectors = np.linalg.eigh(normal.reshape(n * k, n * k))
    known = values > RANK * max(float(values.max(initial=0.0)), 1e-300)
    inverse = (vectors[:, known] / values[known]) @ vectors[:, known].T
    offsets = (inverse @ right.ravel()).reshape(n, k)
    total[:] = 0
    for s, w, o in zip(series, weights, offsets, strict=True):
        total[s.place] += w * (s.value - o @ s.terms)
    with np.errstate(invalid="ignore", divide="ignore"):
        return offsets, inverse, total / sum_w, sum_w


def _groups(series: list[Series], places: int) -> np.ndarray:
    """Numbers of connected series, in the order of their first members."""
    parent = list(range(len(series)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    owner = np.full(places, -1)
    for i, s in enumerate(series):
        for j in np.unique(owner[s.place]):
            if j >= 0 and root(i) != root(int(j)):
                parent[max(root(i), root(int(j)))] = min(root(i), root(int(j)))
        owner[s.place] = i
    roots = [root(i) for i in range(len(series))]
    return np.searchsorted(np.unique(roots), roots)
