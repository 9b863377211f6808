# SPDX-License-Identifier: BSD-3-Clause
"""What is known of the blank sky of two aligned exposures: the correlation of its noise, and its level."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LAG = 4
"""Largest lag, px."""

WHITE = 0.05
"""Largest correlation at any lag that still counts as white."""

SURE = 5.0
"""Least correlation in units of its own error, of the largest of 80 lags."""


@dataclass(frozen=True)
class BlankSky:
    """Means of two aligned exposures over the same blank pixels of blocks of their sky.

    Attributes
    ----------
    x, y : float64 (n,)
        Middles of the blocks, px.
    science, reference : float64 (n,)
        Means, image units.
    count : int (n,)
        Blank pixels, at least one.
    """

    x: np.ndarray
    y: np.ndarray
    science: np.ndarray
    reference: np.ndarray
    count: np.ndarray


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
    pairs : float
        Least number of pairs of pixels that a covariance rests on.
    sky : BlankSky or None
        The blocks that they come from.
    """

    own_science: np.ndarray | None = None
    own_reference: np.ndarray | None = None
    cross: np.ndarray | None = None
    sigma_science: float = float("nan")
    sigma_reference: float = float("nan")
    pairs: float = float("inf")
    sky: BlankSky | None = None

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
        science, reference = self._measured(flux_ratio)
        return science[0] if science[1] else None, reference[0] if reference[1] else None

    @property
    def shared(self) -> float:
        """Largest correlation, at any lag, of the noise of one exposure with that of the other; 0 where it is not
        beyond chance, NaN where it is not known.

        Whatever the variance planes say: they cancel. Sources too faint to be blanked are in it.
        """
        if self.own_science is None or self.own_reference is None or self.cross is None:
            return float("nan")
        both = self.own_science[LAG, LAG] * self.own_reference[LAG, LAG]
        if not both > 0:
            return float("nan")
        largest = float(self.cross.max() / np.sqrt(both))
        return largest if largest > SURE / np.sqrt(self.pairs) else 0.0

    @property
    def levels(self) -> tuple[float, float]:
        """Noise of blank sky over that of the variance plane, science and reference; NaN where it is not known."""
        both = (self.own_science, self.own_reference)
        science, reference = (float("nan") if own is None else float(np.sqrt(max(own[LAG, LAG], 0.0))) for own in both)
        return science, reference

    def undecided(self, flux_ratio: float) -> tuple[bool, bool]:
        """Does either noise look correlated, with too few blank pixels to tell? It then counts as white."""
        science, reference = self._measured(flux_ratio)
        return science[0] is not None and not science[1], reference[0] is not None and not reference[1]

    def _measured(self, flux_ratio: float) -> tuple[tuple[np.ndarray | None, bool], tuple[np.ndarray | None, bool]]:
        """Of each exposure: the correlation where it is not that of white noise, and whether it is beyond chance."""
        if self.own_science is None or self.own_reference is None or self.cross is None:
            return (None, False), (None, False)
        gain = flux_ratio * self.sigma_reference / self.sigma_science
        return self._judged(self.own_science, gain), self._judged(self.own_reference, 1 / gain)

    def _judged(self, own: np.ndarray, gain: float) -> tuple[np.ndarray | None, bool]:
        assert self.cross is not None
        covariance = own - gain * self.cross
        if not covariance[LAG, LAG] > 0:
            return None, False
        rho = covariance / covariance[LAG, LAG]
        others = np.abs(rho)
        others[LAG, LAG] = 0
        # errors of white noise: of its own covariance, and of the cross-covariance with its factor; even parts
        error = np.sqrt((1 + gain**2 / 2) / self.pairs) / covariance[LAG, LAG]
        largest = others.max()
        return (None, False) if largest < WHITE else (rho, bool(largest > SURE * error))
