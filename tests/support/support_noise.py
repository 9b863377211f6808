# SPDX-License-Identifier: BSD-3-Clause
"""Gaussian random fields of a known correlation, and the peaks in them, made without the package."""

import numpy as np
from scipy import fft
from scipy.ndimage import gaussian_filter, label, maximum

LEVELS = (3.5, 4.0, 4.5, 5.0)
"""Signal-to-noise that peaks are counted above."""

COLOURS = {"white": None, "resampled": ((0.25, 0.25), (0.25, 0.25)), "smoothed": 1.0}
"""How noise is coloured: not, by bilinear interpolation half a pixel off, by a Gaussian of this sigma, px."""


class Fields:
    """Fields of unit variance: white noise through some filters, cut out of a periodic one, without its edges.

    Parameters
    ----------
    side : int
        Of the fields, px.
    colour : str
        Of `COLOURS`.
    stamps : arrays (k, k), optional
        Further filters that the noise goes through, with odd sides.
    """

    def __init__(self, side, colour, *stamps):
        self.side, n = side, fft.next_fast_len(side + 48, True)
        impulse, how = np.zeros((n, n)), COLOURS[colour]
        impulse[0, 0] = 1
        if isinstance(how, float):
            impulse = gaussian_filter(impulse, how, mode="wrap", truncate=8)
        elif how is not None:
            impulse[:2, :2] = how
        self.filter = fft.rfft2(impulse)
        for stamp in stamps:
            kernel, half = np.zeros((n, n)), len(stamp) // 2
            kernel[: len(stamp), : len(stamp)] = stamp
            self.filter *= fft.rfft2(np.roll(kernel, (-half, -half), (0, 1)))
        self.filter /= np.sqrt((fft.irfft2(self.filter, (n, n)) ** 2).sum())
        self.filter, self.shape = self.filter.astype(np.complex64), (n, n)

    def draw(self, rng):
        """float32 (side, side)."""
        spectrum = fft.rfft2(rng.standard_normal(self.shape, np.float32))
        return fft.irfft2(spectrum * self.filter, self.shape)[: self.side, : self.side]


def peaks(field):
    """Peaks above each of `LEVELS`, of both signs: the highest of every group of touching pixels above the lowest."""
    count = np.zeros(len(LEVELS), int)
    for sign in (1, -1):
        groups, n = label(sign * field > LEVELS[0], np.ones((3, 3)))
        at = np.flatnonzero(groups)
        highest = maximum(sign * field.ravel()[at], groups.ravel()[at], np.arange(1, n + 1))
        count += above(highest)
    return count


def above(snr):
    """How many are beyond each of `LEVELS`."""
    return np.array([(np.abs(snr) > level).sum() for level in LEVELS])
