# SPDX-License-Identifier: BSD-3-Clause
"""Whether a stack keeps the flux of stars: a median or clipping, which are not linear, need not."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from skydelta.stages.stack.scaling import Measured, fit

LOSS = 0.003
"""Difference in flux from which on it is said, if it is also `SURE` standard errors."""

SURE = 2.0


class Kept(NamedTuple):
    """Flux of stars in a stack over that in its exposures, its standard error, and the stars; NaN if too few."""

    ratio: float
    error: float
    stars: int

    def complaint(self, method: str, copied: bool) -> str:
        """What to say of a stack by this method, if anything; ``copied``: no image was interpolated."""
        why = "which need not be where seeing or the place of pixels in stars differ"
        advice = "mean and weighted keep it" + (", clipped where seeing differs by 20 %" if method == "median" else "")
        if not self.stars:
            unknown = method == "median" and not copied
            return f"too few stars tell whether the {method} keeps their flux, {why}; {advice}" if unknown else ""
        if abs(self.ratio - 1) <= max(LOSS, SURE * self.error):
            return ""
        return (
            f"stars have {self.ratio:.4f} +- {self.error:.4f} of their flux in the images ({self.stars} stars): method "
            f"= {method!r} does not keep it where seeing or the place of pixels in stars differ; {advice}"
        )


def flux_kept(stack: Measured, exposures: list[Measured], scales: np.ndarray) -> Kept:
    """Compare stars of a stack with the same stars of its exposures.

    Parameters
    ----------
    stack : Measured
    exposures : list of Measured
        Unscaled.
    scales : float64 (n,)
        What each was multiplied by.
    """
    scaled = [replace(m, flux=m.flux * s, variance=m.variance * s**2) for m, s in zip(exposures, scales, strict=True)]
    found = fit([stack, *scaled])
    known = np.isfinite(found.scale[1:]) & (found.error[1:] > 0)
    if not known.any():
        return Kept(np.nan, np.nan, 0)
    logs, errors = np.log(found.scale[1:][known]), found.error[1:][known]
    # all errors hold that of the stack itself, which no number of exposures makes smaller
    return Kept(float(np.exp(np.average(logs, weights=errors**-2))), float(errors.min()), int(found.stars[0]))
