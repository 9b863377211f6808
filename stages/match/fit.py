# SPDX-License-Identifier: BSD-3-Clause
"""The kernel fit: solve, judge every stamp, clip, repeat - on per-stamp sums, without touching pixels again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2 as chi2_distribution

from skydelta.io.field import count_terms
from skydelta.kernels.backend import backend_of, to_host
from skydelta.kernels.normal_equations import Layout, Solution, StampSums, System, solve, solve_quickly

SHARED = 0.5
"""Chi2 per pixel below which the noise of the two images is not independent (one is part of the other): the correction
for noise in the convolved image would then be wrong."""

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
    shared : bool
        The stamps agree far better than their noise allows: it is the same noise in both images.
    """

    solution: Solution
    layout: Layout
    table: np.ndarray
    chi2: np.ndarray
    plain: np.ndarray
    used: np.ndarray
    shared: bool


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


def fit(sums: StampSums, phi: np.ndarray, free: Layout, candidates: np.ndarray, clip: float) -> Fit:
    """Fit and clip until no stamp is an outlier.

    Parameters
    ----------
    phi : float64 (n, n_p)
        Spatial terms at the stamps.
    candidates : bool (n,)
        Stamps that may take part (not held out).
    clip : float
        Robust standard deviations of the per-stamp chi2 above its median beyond which a stamp is dropped.
    """
    system = System(sums, phi, free)
    used = candidates
    for _ in range(PASSES):
        a, b = system.assemble(used)
        chi2 = to_host(system.chi2(solve_quickly(a, b)))
        centre = np.median(chi2[used])
        scatter = max(1.4826 * np.median(np.abs(chi2[used] - centre)), FLOOR * centre)
        outlier = used & (chi2 > centre + clip * scatter)
        left = used & ~outlier
        if not outlier.any() or left.sum() < max(2, candidates.sum() // 2):
            break
        used = left
    else:
        a, b = system.assemble(used)
    solution = solve(a, b)
    best = (solution.parameters, system.undiluted(solution, used))
    # with and without the correction for noise in one way to the host; the chi2 tell which of them holds
    made = to_host(backend_of(a).xp.concatenate([*map(system.chi2, best), *best]))
    chi2, parameters = made[: 2 * len(phi)].reshape(2, -1), made[2 * len(phi) :].reshape(2, -1)
    shared = bool(np.median(chi2[0][used]) < SHARED)
    which = 0 if shared else 1
    return Fit(solution, free, free.table(parameters[which]), chi2[which], chi2[0], used, shared)


def scale_varies(result: Fit, sums: StampSums, phi: np.ndarray, free: Layout) -> bool:
    """Whether the stamps ask for a photometric scale that varies: the likelihood ratio of two nested fits.

    Its fall in chi2, in units of the noise left, would follow a chi2 distribution with a degree of freedom for each
    parameter more (Wilks 1938). Both fits are those of the same stamps.

    Parameters
    ----------
    result : Fit
        With one flux ratio for the field.
    free : Layout
        With a ratio that varies.
    """
    more = free.size - result.layout.size
    if not more or result.used.sum() < JUDGES * phi.shape[1]:
        return False
    system = System(sums, phi, free)
    varied = to_host(system.chi2(solve_quickly(*system.assemble(result.used))))
    pixels = to_host(sums.pixels)
    fall = float(((result.plain - varied) * pixels)[result.used].sum())
    noise = max(1.0, float(np.median(varied[result.used])))
    return fall > noise * float(chi2_distribution.isf(CHANCE, more))
