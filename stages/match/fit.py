# SPDX-License-Identifier: BSD-3-Clause
"""The kernel fit: solve, judge every stamp, clip, repeat - on per-stamp sums, without touching pixels again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import chdtri

from skydelta.io.field import count_terms
from skydelta.kernels.backend import to_host
from skydelta.kernels.normal_equations import Layout, Solution, System
from skydelta.stages.robust import median

QUIET = 0.5
"""Chi2 per pixel below which the noise is not what the variance says, or not independent (one image is part of the
other): the correction for noise in the convolved image would then be wrong."""

PASSES = 6
"""Most clipping passes."""

CHANCE = 1e-4
"""Chance of a fall in chi2, were the flux ratio one number, below which it is taken to vary over the field."""

JUDGES = 10
"""Stamps needed for each spatial term to tell a varying flux ratio from a change on one of the stars."""

FLOOR = 0.05
"""Smallest scatter of the per-stamp chi2 used for clipping: stamps within a few per cent are never outliers."""

STAMPS_PER_TERM = 3
"""Stamps needed for each spatial term; with fewer the order is lowered."""


PLAIN_ORDER, FINE_ORDER = 2, 3
"""Spatial order of a kernel that is not told its own, and the one it rises to with `MANY` stamps for each term."""

MANY = 20


@dataclass(frozen=True)
class Fit:
    """Solution and the judgement of every stamp.

    Attributes
    ----------
    table : float64 (t, n_p)
        Coefficients of local terms by spatial terms.
    chi2 : float64 (n,)
        Of each stamp, per pixel.
    plain : float64 (n,)
        The same without the correction for noise in the convolved image: the least that the free parameters reach.
    used : bool (n,)
        Stamps that took part in the last solve.
    quiet : bool
        The stamps agree far better than their variance allows: chi2 is not corrected for the noise.
    """

    solution: Solution
    system: System
    table: np.ndarray
    chi2: np.ndarray
    plain: np.ndarray
    used: np.ndarray
    quiet: bool


def supported_order(asked: int, stamps: int) -> int:
    """The highest spatial order up to ``asked`` that this many stamps support; 0 with any stamp at all."""
    return max((p for p in range(asked + 1) if STAMPS_PER_TERM * count_terms(p) <= stamps), default=0)


def chosen_order(stamps: int) -> int:
    """Spatial order when none is asked for."""
    fine = stamps >= MANY * count_terms(FINE_ORDER)
    return FINE_ORDER if fine else supported_order(PLAIN_ORDER, stamps)


def layout(n_basis: int, n_background: int, order: int, varying_scale: bool) -> Layout:
    """Free parameters: term 0 (the photometric scale) varies only when asked, background terms never."""
    free = np.zeros((n_basis + n_background, count_terms(order)), bool)
    free[:, 0] = True
    free[1:n_basis] = True
    free[0] |= varying_scale
    return Layout(free)


@dataclass(frozen=True)
class Trial:
    """A system solved with some of the stamps (bool (n,)), and the chi2 per pixel that every stamp then has."""

    system: System
    used: np.ndarray
    solution: Solution
    chi2: np.ndarray

    @classmethod
    def of(cls, system: System, used: np.ndarray) -> Trial:
        solution = system.solve(used)
        return cls(system, used, solution, to_host(system.chi2(solution.parameters)))


def clipped(trial: Trial, candidates: np.ndarray, clip: float) -> Trial:
    """Solve and clip until the stamps in use are those that are no outliers.

    Parameters
    ----------
    trial : Trial
        The first one: of the candidates, or of those that a fit before this one has left.
    candidates : bool (n,)
        Stamps that may take part (not held out).
    clip : float
        Robust standard deviations of the per-stamp chi2 above its median beyond which a stamp is dropped.
    """
    for _ in range(PASSES):
        left = candidates & (trial.chi2 <= _limit(trial.chi2[trial.used], clip))
        if np.array_equal(left, trial.used) or left.sum() < max(2, candidates.sum() // 2):
            break
        trial = Trial.of(trial.system, left)
    return trial


def fit(trial: Trial) -> Fit:
    """What follows from the last of the trials."""
    system, used, plain = trial.system, trial.used, trial.chi2
    quiet = bool(median(plain[used]) < QUIET)
    best, chi2 = trial.solution.parameters, plain
    if not quiet:
        best = system.undiluted(trial.solution, used)
        chi2 = to_host(system.chi2(best))
    return Fit(trial.solution, system, system.layout.table(to_host(best)), chi2, plain, used, quiet)


def _limit(chi2: np.ndarray, clip: float) -> float:
    """Largest chi2 of a stamp that is no outlier."""
    centre = median(chi2)
    return float(centre + clip * max(1.4826 * median(np.abs(chi2 - centre)), FLOOR * centre))


def scale_varies(plain: Trial, trial: Trial) -> bool:
    """Whether the stamps ask for a photometric scale that varies: the likelihood ratio of two nested fits.

    Its fall in chi2, in units of the noise left, would follow a chi2 distribution with a degree of freedom for each
    parameter more (Wilks 1938).

    Parameters
    ----------
    plain : Trial
        With one flux ratio for the field.
    trial : Trial
        With a ratio that varies, of the same stamps.
    """
    pixels = to_host(trial.system.sums.pixels)
    fall = float(((plain.chi2 - trial.chi2) * pixels)[plain.used].sum())
    noise = max(1.0, float(median(trial.chi2[plain.used])))
    return fall > noise * float(chdtri(trial.system.layout.size - plain.system.layout.size, CHANCE))
