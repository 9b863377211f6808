# SPDX-License-Identifier: BSD-3-Clause
"""What is known of the correlation of the noise of two aligned exposures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LAG = 4
"""Largest lag, px."""

WHITE = 0.05
"""Largest correlation at any lag that still counts as white."""


@dataclass(frozen=True)
class PairNoise:
    """Covariances of the blank sky of two exposures, each over its own noise; nothing, where there is too little sky.

    Attributes
    ----------
    own_science, own_reference : float64 (2 LAG + 1, 2 LAG + 1) or None
        Covariance of each exposure at every lag.
    cross : float64 (2 LAG + 1, 2 LAG + 1) or None
        Of the two, even part.
    sigma_science, sigma_reference : float
        Typical noise of a pixel of the blank sky, image units.
    """

    own_science: np.ndarray | None = None
    own_reference: np.ndarray | None = None
    cross: np.ndarray | None = None
    sigma_science: float = float("nan")
    sigma_reference: float = float("nan")

    def correlations(self, flux_ratio: float) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Noise correlation rho(lag) of the science exposure and of the reference.

        Faint sources below the blanking threshold are correlated too, but they are the same in both exposures and their
        noise is not: the cross-covariance, scaled by the flux ratio, is their share and is taken off.

        Parameters
        ----------
        flux_ratio : float
            Flux of a source in the science exposure over that in the reference.

        Returns
        -------
        float64 (2 LAG + 1, 2 LAG + 1) with 1 in the middle for each, or None where the noise is white or unknown.
        """
        if self.own_science is None or self.own_reference is None or self.cross is None:
            return None, None
        gain = flux_ratio * self.sigma_reference / self.sigma_science
        return _judged(self.own_science - gain * self.cross), _judged(self.own_reference - self.cross / gain)


def _judged(covariance: np.ndarray) -> np.ndarray | None:
    """The correlation, or None when it is that of white noise."""
    if not covariance[LAG, LAG] > 0:
        return None
    rho = covariance / covariance[LAG, LAG]
    others = rho.copy()
    others[LAG, LAG] = 0
    return None if np.abs(others).max() < WHITE else rho
