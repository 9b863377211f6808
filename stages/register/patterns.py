# SPDX-License-Identifier: BSD-3-Clause
"""First guesses of how two star lists lie on each other: quads of neighbours, pairs, and a common shift."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
from scipy.ndimage import uniform_filter
from scipy.spatial import cKDTree

NEIGHBOURS = 6
"""A star makes quads with this many of its nearest neighbours."""

DEPTH = 1.5
"""Ratio of the numbers of stars of one depth to the next."""

SEEDS = 200
"""Stars of each depth whose quads are looked up."""

CODE = 0.04
"""Largest distance of the codes of two quads that may be the same."""

ALIKE = 4
"""Quads of the other list that are tried for each quad."""

FOUR = (1.5, 0.01)
"""Four stars lie on four others when the rms is below so many px, plus this share of their extent."""

MOST = 1000
"""Candidates that vote, those with the most similar codes."""

VOTE = (3.0, 0.03)
"""Two candidates agree when one puts the other within so many px plus this share of their distance."""

EXHAUSTIVE = 12
"""All pairs of so many stars are tried on each other where one list is short."""

SHORT = 40
"""A list of at most so many stars is short."""

SHIFTED = 500
"""Stars of each list that look for a common shift."""

SHIFT_BIN = 4.0
"""Side of the bins of differences, px."""

_THREE = np.array(list(itertools.combinations(range(NEIGHBOURS), 3)))
_PAIRS = np.array(list(itertools.combinations(range(4), 2)))


@dataclass(frozen=True)
class Candidates:
    """Similarities b = alpha a + beta (a conjugate where mirrored), most promising first; positions as complex numbers.

    Attributes
    ----------
    alpha, beta : complex (n,)
    mirrored : bool (n,)
    centre : complex (n,)
        Where in the first list the guess comes from.
    radius : float (n,)
        Extent of the stars it rests on, px.
    votes : int (n,)
    quad_a, quad_b : int (n, 4)
        Rows of the stars of a quad in both lists, one by one; (n, 0) where a guess does not come from quads.
    """

    alpha: np.ndarray
    beta: np.ndarray
    mirrored: np.ndarray
    centre: np.ndarray
    radius: np.ndarray
    votes: np.ndarray
    quad_a: np.ndarray
    quad_b: np.ndarray

    def __len__(self) -> int:
        return len(self.alpha)

    def take(self, index: np.ndarray) -> Candidates:
        return Candidates(*(getattr(self, n)[index] for n in self.__dataclass_fields__))

    def apply(self, k: int, z: np.ndarray) -> np.ndarray:
        """Positions of the other list of the k-th candidate."""
        return self.alpha[k] * (np.conj(z) if self.mirrored[k] else z) + self.beta[k]


def spread_order(x: np.ndarray, y: np.ndarray, flux: np.ndarray) -> np.ndarray:
    """Rows in an order whose every beginning is spread over the field, bright stars first.

    A star comes the earlier the farther the next brighter star is (adaptive non-maximal suppression, Brown, Szeliski &
    Winder 2005): which stars are chosen depends on their surroundings alone, not on where a frame or a cell ends, so
    that two images of one field choose the same ones.
    """
    n = len(x)
    if n < 2:
        return np.arange(n)
    rank = np.empty(n, int)
    rank[np.lexsort((y, x, -flux))] = np.arange(n)
    at = np.stack([x, y], axis=1)
    k = min(n, 33)
    distance, index = cKDTree(at).query(at, k=k)
    brighter = rank[index] < rank[:, None]
    first = brighter.argmax(axis=1)
    radius = np.where(brighter.any(axis=1), distance[np.arange(n), first], np.inf)
    for i in np.flatnonzero(np.isinf(radius)):
        others = at[rank < rank[i]]
        if len(others):
            radius[i] = np.sqrt(((others - at[i]) ** 2).sum(axis=1).min())
    return np.lexsort((rank, -radius))


def depths(n: int, least: int = 8) -> list[int]:
    """Numbers of stars at which quads are made, from all down."""
    out = [n]
    while out[-1] / DEPTH >= least:
        out.append(int(out[-1] / DEPTH))
    return out


def quads(z: np.ndarray, seeds: int | None = None) -> np.ndarray:
    """int (m, 4): quads of stars and their nearest neighbours at every depth, each once.

    Parameters
    ----------
    z : complex (n,)
        In `spread_order`; at most 32767.
    seeds : int, optional
        Stars of each depth that make quads; all if unset.
    """
    found = [np.empty((0, 4), int)]
    for n in depths(len(z)):
        if n <= NEIGHBOURS:
            if n >= 4:
                found.append(np.array(list(itertools.combinations(range(n), 4))))
            continue
        at = np.stack([z[:n].real, z[:n].imag], axis=1)
        own = np.arange(n if seeds is None else min(n, seeds))
        near = cKDTree(at).query(at[own], k=NEIGHBOURS + 1)[1][:, 1:]
        groups = near[:, _THREE].reshape(-1, 3)
        found.append(np.column_stack([np.repeat(own, len(_THREE)), groups]))
    every = np.sort(np.concatenate(found), axis=1)
    every = every[(every[:, :-1] != every[:, 1:]).all(axis=1)]
    # each quad as one number: four times fifteen bits
    keys = np.unique(every @ np.array([1 << 45, 1 << 30, 1 << 15, 1]))
    return np.stack([keys >> k & 0x7FFF for k in (45, 30, 15, 0)], axis=1)


def codes(z: np.ndarray, quad: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Four numbers that a turn, a shift and a scale leave as they are, and the stars in the order they refer to.

    The farthest two of the four stars are 0 and 1 of a complex plane, the others are where they are then, in the order
    that makes the real parts ascend and sum to at most 1 (after Lang et al. 2010). A mirror image conjugates them.
    """
    p = z[quad]
    length = np.abs(p[:, _PAIRS[:, 0]] - p[:, _PAIRS[:, 1]])
    far = _PAIRS[length.argmax(axis=1)]
    other = np.array([[k for k in range(4) if k not in pair] for pair in _PAIRS.tolist()])[length.argmax(axis=1)]
    row = np.arange(len(quad))[:, None]
    ends, rest = p[row, far], p[row, other]
    with np.errstate(all="ignore"):
        inner = (rest - ends[:, :1]) / (ends[:, 1:] - ends[:, :1])
    swap = inner.real.sum(axis=1) > 1
    inner[swap] = 1 - inner[swap]
    far = np.where(swap[:, None], far[:, ::-1], far)
    late = inner[:, 0].real > inner[:, 1].real
    inner = np.where(late[:, None], inner[:, ::-1], inner)
    other = np.where(late[:, None], other[:, ::-1], other)
    ordered = np.take_along_axis(quad, np.concatenate([far, other], axis=1), axis=1)
    code = np.stack([inner[:, 0].real, inner[:, 0].imag, inner[:, 1].real, inner[:, 1].imag], axis=1)
    good = np.isfinite(code).all(axis=1)
    return code[good], ordered[good]


def similarities(
    a: np.ndarray, b: np.ndarray, mirrored: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Least squares through groups of k pairs (m, k): alpha, beta, rms, centre in a, and extent in b."""
    a_ = np.where(mirrored[:, None], np.conj(a), a)
    ma, mb = a_.mean(axis=1), b.mean(axis=1)
    da, db = a_ - ma[:, None], b - mb[:, None]
    size = np.maximum((np.abs(da) ** 2).sum(axis=1), 1e-12)
    alpha = (np.conj(da) * db).sum(axis=1) / size
    rms = np.sqrt((np.abs(db - alpha[:, None] * da) ** 2).mean(axis=1))
    return alpha, mb - alpha * ma, rms, a.mean(axis=1), np.abs(db).max(axis=1)


def by_quads(za: np.ndarray, zb: np.ndarray, scales: tuple[float, float]) -> Candidates:
    """Candidates from quads with alike codes, of both parities, by the votes that they give each other."""
    if min(len(za), len(zb)) < 4:
        return _none()
    code_a, quad_a = codes(za, quads(za, SEEDS))
    code_b, quad_b = codes(zb, quads(zb))
    if not len(quad_a) or not len(quad_b):
        return _none()
    tree = cKDTree(code_b)
    parts = []
    for flip in (False, True):
        wanted = code_a * np.array([1, -1, 1, -1]) if flip else code_a
        gap, index = tree.query(wanted, k=min(ALIKE, len(quad_b)), distance_upper_bound=CODE)
        gap, index = gap.reshape(len(wanted), -1), index.reshape(len(wanted), -1)
        row, column = np.nonzero(np.isfinite(gap))
        parts.append((gap[row, column], row, index[row, column], np.full(len(row), flip)))
    gap, i, j, mirrored = (np.concatenate(p) for p in zip(*parts, strict=True))
    best = np.argsort(gap, kind="stable")[: 10 * MOST]
    i, j, mirrored = i[best], j[best], mirrored[best]
    alpha, beta, rms, centre, extent = similarities(za[quad_a[i]], zb[quad_b[j]], mirrored)
    keep = (rms < FOUR[0] + FOUR[1] * extent) & (rms < 0.1 * extent) & _within(alpha, scales)
    keep = np.flatnonzero(keep)[:MOST]
    radius = 2 * extent / np.abs(alpha)
    every = Candidates(alpha, beta, mirrored, centre, radius, np.zeros(len(alpha), int), quad_a[i], quad_b[j])
    return _voted(every.take(keep))


def by_pairs(za: np.ndarray, zb: np.ndarray, scales: tuple[float, float]) -> Candidates:
    """Candidates from all pairs of few stars on all pairs of others; the votes are stars that fall on stars."""
    za, zb = za[:EXHAUSTIVE], zb[:EXHAUSTIVE]
    if min(len(za), len(zb)) < 3:
        return _none()
    ia, ja = np.triu_indices(len(za), 1)
    ib, jb = np.nonzero(~np.eye(len(zb), dtype=bool))
    a, b = np.stack([za[ia], za[ja]], axis=1), np.stack([zb[ib], zb[jb]], axis=1)
    pa, pb = (q.ravel() for q in np.meshgrid(np.arange(len(a)), np.arange(len(b)), indexing="ij"))
    parts = []
    for flip in (False, True):
        mirrored = np.full(len(pa), flip)
        alpha, beta, _, centre, extent = similarities(a[pa], b[pb], mirrored)
        ok = _within(alpha, scales) & (extent > 5)
        alpha, beta, centre, extent = alpha[ok], beta[ok], centre[ok], extent[ok]
        moved = alpha[:, None] * (np.conj(za) if flip else za) + beta[:, None]
        votes = np.zeros(len(alpha), int)
        for other in zb:
            votes += (np.abs(moved - other) < VOTE[0]).any(axis=1)
        good = votes >= 3
        parts.append((alpha[good], beta[good], mirrored[ok][good], centre[good], extent[good], votes[good]))
    alpha, beta, mirrored, centre, extent, votes = (np.concatenate(p) for p in zip(*parts, strict=True))
    order = np.argsort(-votes, kind="stable")[:MOST]
    radius = 4 * extent / np.abs(alpha)
    none = np.empty((len(alpha), 0), int)
    return Candidates(alpha, beta, mirrored, centre, radius, votes, none, none).take(order)


def by_shift(za: np.ndarray, zb: np.ndarray, peaks: int = 4) -> Candidates:
    """Candidates from differences of positions that occur often: the same orientation and scale, moved."""
    za, zb = za[:SHIFTED], zb[:SHIFTED]
    if min(len(za), len(zb)) < 3:
        return _none()
    d = (zb[None, :] - za[:, None]).ravel()
    low = d.real.min() + 1j * d.imag.min()
    ix, iy = ((np.array([d.real - low.real, d.imag - low.imag])) / SHIFT_BIN).astype(int)
    nx, ny = ix.max() + 1, iy.max() + 1
    if nx * ny > 4_000_000:
        return _none()
    count = np.bincount(iy * nx + ix, minlength=nx * ny).reshape(ny, nx).astype(float)
    smooth = uniform_filter(count, 3, mode="constant") * 9
    found = []
    for _ in range(peaks):
        y, x = np.unravel_index(int(smooth.argmax()), smooth.shape)
        if smooth[y, x] < 2.5:
            break
        near = (np.abs(ix - x) <= 1) & (np.abs(iy - y) <= 1)
        rows = np.flatnonzero(near) // len(zb)
        shift = complex(np.median(d[near].real), np.median(d[near].imag))
        middle = complex(np.median(za[rows].real), np.median(za[rows].imag))
        found.append((shift, middle, float(np.abs(za[rows] - middle).max()), int(smooth[y, x])))
        smooth[max(0, y - 2) : y + 3, max(0, x - 2) : x + 3] = 0
    if not found:
        return _none()
    beta, centre, radius, votes = (np.array(c) for c in zip(*found, strict=True))
    one, straight, none = np.ones(len(beta), complex), np.zeros(len(beta), bool), np.empty((len(beta), 0), int)
    return Candidates(one, beta, straight, centre, radius / 3, votes, none, none)


def distinct(found: Candidates, most: int) -> list[tuple[Candidates, np.ndarray]]:
    """The most promising candidates that do not say the same as one before them, and the pairs each rests on.

    Returns
    -------
    list of (Candidates, int (2, m))
        Each alone, and the rows of the stars in both lists that the quads agreeing with it pair.
    """
    left = np.arange(len(found))
    chosen: list[tuple[Candidates, np.ndarray]] = []
    while left.size and len(chosen) < most:
        same = _agree(found, left[0], left)
        chosen.append((found.take(left[:1]), _common_pairs(found, left[same])))
        left = left[~same]
    return chosen


def _common_pairs(found: Candidates, rows: np.ndarray) -> np.ndarray:
    """The pairs of stars that most of these quads name, each star once: int (2, m)."""
    if not found.quad_a.shape[1]:
        return np.empty((2, 0), int)
    keys, count = np.unique(found.quad_a[rows].ravel() << 32 | found.quad_b[rows].ravel(), return_counts=True)
    keys = keys[np.argsort(-count, kind="stable")]
    a, b = keys >> 32, keys & 0xFFFFFFFF
    keep = np.intersect1d(np.unique(a, return_index=True)[1], np.unique(b, return_index=True)[1])
    return np.stack([a[keep], b[keep]])


def _voted(found: Candidates) -> Candidates:
    """With the number of others that each agrees with, most votes first."""
    z = found.centre
    theirs = found.alpha * np.where(found.mirrored, np.conj(z), z) + found.beta
    votes = np.zeros(len(found), int)
    for flip in (False, True):
        rows = np.flatnonzero(found.mirrored == flip)
        seen = np.conj(z[rows]) if flip else z[rows]
        gap = np.abs(found.alpha[rows, None] * seen + found.beta[rows, None] - theirs[rows])
        away = np.abs(z[rows, None] - z[rows]) * np.abs(found.alpha[rows, None])
        votes[rows] = (gap < VOTE[0] + VOTE[1] * away).sum(axis=1)
    order = np.argsort(-votes, kind="stable")
    return replace(found, votes=votes).take(order)


def _agree(found: Candidates, k: int, others: np.ndarray) -> np.ndarray:
    """Whether the k-th candidate puts the stars of others where they do."""
    z = found.centre[others]
    theirs = found.alpha[others] * np.where(found.mirrored[others], np.conj(z), z) + found.beta[others]
    gap = np.abs(found.apply(k, z) - theirs)
    allowed = VOTE[0] + VOTE[1] * np.abs(z - found.centre[k]) * abs(found.alpha[k])
    return (found.mirrored[others] == found.mirrored[k]) & (gap < allowed)


def _within(alpha: np.ndarray, scales: tuple[float, float]) -> np.ndarray:
    return (np.abs(alpha) >= scales[0]) & (np.abs(alpha) <= scales[1])


def _none() -> Candidates:
    z, no = np.zeros(0, complex), np.zeros(0)
    four = np.empty((0, 4), int)
    return Candidates(z, z, np.zeros(0, bool), z, no, no.astype(int), four, four)
