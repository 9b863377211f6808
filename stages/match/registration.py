# SPDX-License-Identifier: BSD-3-Clause
"""Do the two images line up? Offsets between their star lists."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skydelta.kernels.cpu.jit import serial
from skydelta.stages.robust import median
from skydelta.stages.stars import Stars

SEARCH = 25.0
"""Largest offset looked for, px."""

BRIGHTEST = 400
"""Stars of each list that take part."""

ENOUGH = 4
"""Pairs below which the offset is not judged."""

CHANCE = 0.1
"""Share of the stars that may agree on an offset by chance."""

CROWD = 10
"""Stars without such pairs from which the images show different skies."""


@dataclass(frozen=True)
class Registration:
    """Offset of the science stars against the reference stars.

    Attributes
    ----------
    dx, dy : float
        Median offset (science - reference), px; NaN when not judged.
    worst : float
        Largest median offset in the cells of a 3 x 3 grid (rotation, scale), px.
    rms : float
        Robust scatter of one axis, px.
    pairs : int
    flux_ratio : float
        Median science / reference flux of the pairs; NaN when there are none.
    expected : int
        Stars that should have a partner: of the shorter list, less those that may be saturated in the other image.
    """

    dx: float
    dy: float
    worst: float
    rms: float
    pairs: int
    flux_ratio: float
    expected: int

    @property
    def judged(self) -> bool:
        return self.pairs >= ENOUGH

    @property
    def foreign(self) -> bool:
        """Are there many stars, and next to no pairs? Long lists make a few pairs by chance."""
        return self.expected >= CROWD and self.pairs < max(ENOUGH, CHANCE * min(self.expected, BRIGHTEST))


def register_check(science: Stars, reference: Stars, shape: tuple[int, int], tolerance: float) -> Registration:
    """Offset between star lists of images that should share a grid.

    The offset most pairs agree on within 1 px wins; stars are then paired around it.
    """
    s, r = (np.column_stack([t.x, t.y])[~t.saturated] for t in (science, reference))
    fs, fr = (t.flux[~t.saturated] for t in (science, reference))
    expected = min(len(s) - int(reference.saturated.sum()), len(r) - int(science.saturated.sum()))
    not_judged = Registration(np.nan, np.nan, np.nan, np.nan, 0, np.nan, expected)
    if not len(s) or not len(r):
        return not_judged
    bright_s, bright_r = (np.argsort(-f, kind="stable")[:BRIGHTEST] for f in (fs, fr))
    s, fs, r, fr = s[bright_s], fs[bright_s], r[bright_r], fr[bright_r]
    i, j = near_pairs(s, r)
    if not len(i):
        return not_judged
    offsets = s[i] - r[j]
    votes, order = np.empty(len(offsets), np.int64), np.argsort(offsets[:, 0], kind="stable")
    votes[order] = _votes(offsets[order])
    # equal votes: the smallest offset, so that two lists of chance pairs are called aligned, not shifted
    most = np.flatnonzero(votes == votes.max())
    best = offsets[most[np.argmin((offsets[most] ** 2).sum(axis=1))]]
    centre = median(offsets[((offsets - best) ** 2).sum(axis=1) < 1.0])
    take = ((offsets - centre) ** 2).sum(axis=1) < max(tolerance, 1.5) ** 2
    off, at = offsets[take], s[i][take]
    dx, dy = median(off)
    rms = float(1.4826 * np.median(np.abs(off - (dx, dy))))
    cell = (at[:, 1] * 3 // shape[0]).astype(int) * 3 + (at[:, 0] * 3 // shape[1]).astype(int)
    cells = [off[cell == c] for c in np.flatnonzero(np.bincount(cell, minlength=9) >= ENOUGH)]
    medians = [float(np.hypot(*median(c))) for c in cells]
    ratio = float(np.median(fs[i][take] / fr[j][take]))
    return Registration(
        float(dx), float(dy), float(max(medians, default=np.hypot(dx, dy))), rms, int(take.sum()), ratio, expected
    )


@serial
def _votes(offsets):
    """How many of these offsets (n, 2), ascending along x, are within 1 px of each."""
    count, first = np.zeros(len(offsets), np.int64), 0
    for i in range(len(offsets)):
        while offsets[i, 0] - offsets[first, 0] > 1:
            first += 1
        for j in range(first, i):
            if (offsets[i, 0] - offsets[j, 0]) ** 2 + (offsets[i, 1] - offsets[j, 1]) ** 2 <= 1:
                count[i] += 1
                count[j] += 1
        count[i] += 1
    return count


def near_pairs(s: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of all pairs of positions (n, 2), (m, 2) at most `SEARCH` apart, the first ascending.

    The second list is searched along y only, then the distances of what is left are looked at.
    """
    order = np.argsort(r[:, 1], kind="stable")
    along = r[order, 1]
    first = np.searchsorted(along, s[:, 1] - SEARCH, side="left")
    count = np.searchsorted(along, s[:, 1] + SEARCH, side="right") - first
    i = np.repeat(np.arange(len(s)), count)
    j = order[np.arange(len(i)) + np.repeat(first - np.cumsum(count) + count, count)]
    near = ((s[i] - r[j]) ** 2).sum(axis=1) <= SEARCH**2
    return i[near], j[near]
