# SPDX-License-Identifier: BSD-3-Clause
"""Do the two images line up? Offsets between their star lists."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

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
    i, j = np.nonzero((s[:, None, 0] - r[:, 0]) ** 2 + (s[:, None, 1] - r[:, 1]) ** 2 <= SEARCH**2)
    if not len(i):
        return not_judged
    offsets = s[i] - r[j]
    votes = cKDTree(offsets).query_ball_point(offsets, 1.0, return_length=True)
    # equal votes: the smallest offset, so that two lists of chance pairs are called aligned, not shifted
    best = np.lexsort((np.hypot(*offsets.T), -votes))[0]
    centre = np.median(offsets[np.hypot(*(offsets - offsets[best]).T) < 1.0], axis=0)
    take = np.hypot(*(offsets - centre).T) < max(tolerance, 1.5)
    off, at = offsets[take], s[i][take]
    dx, dy = np.median(off, axis=0)
    rms = float(1.4826 * np.median(np.abs(off - (dx, dy))))
    cell = (at[:, 1] * 3 // shape[0]).astype(int) * 3 + (at[:, 0] * 3 // shape[1]).astype(int)
    medians = [np.hypot(*np.median(off[cell == c], axis=0)) for c in range(9) if (cell == c).sum() >= ENOUGH]
    ratio = float(np.median(fs[i][take] / fr[j][take]))
    return Registration(
        float(dx), float(dy), float(max(medians, default=np.hypot(dx, dy))), rms, int(take.sum()), ratio, expected
    )
