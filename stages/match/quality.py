# SPDX-License-Identifier: BSD-3-Clause
"""How good a kernel is over the field, by stamps that it was not fitted to."""

from __future__ import annotations

import numpy as np

from skydelta.io.matchkernel import MatchKernel
from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.stages.base import Context
from skydelta.stages.match.residuals import stamp_chi2
from skydelta.stages.match.stamps import Selection
from skydelta.stages.robust import median

GRID = 3
"""Cells of the maps along each axis."""

UNEVEN = 2.0
"""Median chi2 per pixel of a cell above which it is said."""

ENOUGH = 3
"""Stamps that a cell needs to be judged."""

NORMAL_SQUARE = 0.4549
"""Median of the square of a unit normal deviate."""

OUTLIER = 5.0
"""Standard deviations (of the stars, not of their errors) beyond which a shift is that of one star: a neighbour has
varied, or there is a transient. A misregistration moves all."""

MISREGISTERED = 4.0
"""Standard deviations by which the mean square shift of the stamps may exceed their errors before it is said."""


def field_quality(
    ctx: Context, kernel: MatchKernel, at: Selection, judges: np.ndarray, broad: Array, left: Array, weight: Array
) -> None:
    """Record maps of chi2 and flux scale and the shift that is left.

    With M the matched image, r what is left and w its inverse variance, the flux scale of a stamp is off by
    sum w M r / sum w M^2 of itself, and a shift d of the sources leaves r = -d M', the pattern of a dipole: d =
    -sum w M' r / sum w M'^2, with the error (sum w M'^2)^-1/2.

    Figures: ``chi2_map``, ``kernel_sum_map`` (`GRID` x `GRID` cells, lowest row first, NaN where empty),
    ``residual_shift_px`` (root mean square of an axis, noise taken off, single outliers too), ``residual_shift_chi2``
    (1 without shifts).

    Parameters
    ----------
    judges : bool (n,)
        Stamps that tell: those held out; where there are none, those of the fit.
    broad, left, weight : float32 (n, m, m)
        Stamps of the image that is matched, what `residuals` leaves of them, and its inverse variance.
    """
    rows = np.flatnonzero(judges)
    if not len(rows):
        return
    x, y = at.x[rows], at.y[rows]
    index = backend_of(weight).asarray(rows)
    broad, left, w = broad[index], left[index], weight[index]
    height, width = kernel.domain.shape
    cell = np.minimum(y * GRID // height, GRID - 1) * GRID + np.minimum(x * GRID // width, GRID - 1)
    chi2 = stamp_chi2(left, w)
    chi2_map = [float(median(chi2[cell == c])) if (cell == c).any() else float("nan") for c in range(GRID**2)]
    sums = _sums(broad - left, left, w)
    own = kernel.sums(x.astype(float), y.astype(float))
    ctx.metric("chi2_map", chi2_map)
    ctx.metric("kernel_sum_map", [_scale(own, sums[0], sums[1], cell == c) for c in range(GRID**2)])
    count = np.bincount(cell, minlength=GRID**2)
    worst = max((v for v, n in zip(chi2_map, count, strict=True) if n >= ENOUGH), default=float("nan"))
    ctx.metric("chi2_map_worst", worst)
    if worst > UNEVEN:
        ctx.flag("poor_match", f"in one ninth of the field held-out stamps have a chi2 of {worst:.2f} per pixel")
    _shifts(ctx, sums[2:4], sums[4:])


def _sums(model: Array, left: Array, w: Array) -> np.ndarray:
    """sum w M r, sum w M^2, and of both axes sum w M' r, then sum w M'^2: float64 (6, n) on the host."""
    xp = backend_of(model).xp
    inner = np.s_[:, 1:-1, 1:-1]
    slopes = [(model[:, 1:-1, 2:] - model[:, 1:-1, :-2]) / 2, (model[:, 2:, 1:-1] - model[:, :-2, 1:-1]) / 2]
    m, r, v = model[inner], left[inner], w[inner]
    products = [v * m * r, v * m * m, *(v * s * r for s in slopes), *(v * s * s for s in slopes)]
    return to_host(xp.stack(products).sum(axis=(2, 3), dtype=np.float64))


def _scale(own: np.ndarray, off: np.ndarray, norm: np.ndarray, here: np.ndarray) -> float:
    """Kernel sum that the stamps of a cell ask for."""
    if not norm[here].sum() > 0:
        return float("nan")
    return float(own[here].mean() * (1 + off[here].sum() / norm[here].sum()))


def _shifts(ctx: Context, slope: np.ndarray, norm: np.ndarray) -> None:
    """Of both axes (2, n): what is left of the registration."""
    known = (norm > 0).all(axis=0)
    if not known.any():
        return
    shift, error2 = -slope[:, known] / norm[:, known], 1 / norm[:, known]
    square = shift**2 / error2
    usual = max(float(median(square.ravel())) / NORMAL_SQUARE, 1.0)
    own = (square <= OUTLIER**2 * usual).all(axis=0)
    if not own.any():
        return
    shift, error2, square = shift[:, own], error2[:, own], square[:, own]
    # bright stars tell most, and none of them all
    weight = 1 / (error2 + median(error2.ravel()))
    rms = float(np.sqrt(max((weight * (shift**2 - error2)).sum() / weight.sum(), 0.0)))
    mean = float(square.mean())
    ctx.metric("residual_shift_px", rms)
    ctx.metric("residual_shift_chi2", mean)
    if mean > 1 + MISREGISTERED * np.sqrt(2 / square.size) and rms > 0.05:
        ctx.flag("residual_shift", f"stars that were not fitted are still shifted by {rms:.2f} px (rms of an axis)")
