# SPDX-License-Identifier: BSD-3-Clause
"""Which basis suits the pair: told by the stamps that neither kernel was fitted to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from skydelta.kernels.backend import Array
from skydelta.stages.match.problem import Solved
from skydelta.stages.match.residuals import stamp_chi2

ENOUGH = 10
"""Stamps needed to tell; the smallest chance that so few can show is 1e-3."""

CHANCE = 1e-3
"""Chance, were both kernels equally good, below which the free pixels are taken."""


@dataclass(frozen=True)
class Choice:
    """The basis, and why.

    Attributes
    ----------
    basis : {"gaussian", "delta"}
    why : str
    figures : dict of str to float
        ``chi2_gaussian``, ``chi2_delta``: means per pixel of the stamps that tell; ``stamps_judging``, their number;
        ``delta_chance``, the chance that as much in favour of the delta basis comes from equally good kernels.
    """

    basis: str
    why: str
    figures: dict[str, float]


def choose(asked: str, gaussian: Solved, delta: Solved, weight: Array, held_out: np.ndarray) -> Choice:
    """Compare two kernels of the same stamps by chi2 of the held-out ones.

    A stamp with a change in it tells nothing and is left out, when both kernels show it.

    Parameters
    ----------
    asked : {"delta", "auto"}
    weight : float32 (n, m, m)
        Inverse variance of the stamps.
    held_out : bool (n,)
    """
    judges = held_out & ~(gaussian.varied & delta.varied)
    chi2 = [stamp_chi2(s.left, weight)[judges] for s in (gaussian, delta)]
    count, (one, two) = int(judges.sum()), (float(c.mean()) if len(c) else float("nan") for c in chi2)
    chance = signed_rank_chance(chi2[0] - chi2[1])
    figures = {"chi2_gaussian": one, "chi2_delta": two, "stamps_judging": count, "delta_chance": chance}
    if asked == "delta":
        return Choice("delta", "asked for", figures)
    if count < ENOUGH:
        return Choice("gaussian", f"{count} held-out stamps cannot tell, {ENOUGH} are needed", figures)
    told = f"chi2 of {count} held-out stamps {one:.4f} with gaussian, {two:.4f} with delta; by chance {chance:.1g}"
    return Choice("delta" if chance < CHANCE and two < one else "gaussian", told, figures)


def signed_rank_chance(gain: np.ndarray) -> float:
    """Chance of so high a sum of ranks of the positive ones of float64 (n,), were both signs as likely for each.

    Normal approximation of the signed-rank test (Wilcoxon 1945): the size of each counts by its rank alone, so that
    no single bright star decides.
    """
    n = len(gain)
    if not n:
        return float("nan")
    rank = np.empty(n)
    rank[np.argsort(np.abs(gain), kind="stable")] = np.arange(1, n + 1)
    excess = float(rank[gain > 0].sum() - n * (n + 1) / 4)
    return float(ndtr(-excess / np.sqrt(n * (n + 1) * (2 * n + 1) / 24)))
