# SPDX-License-Identifier: BSD-3-Clause
"""Combination of many images of one grid: running sums of one image after another, and bands of all of them.

On the host: the images of a stack wait on disk or in the host's memory, not on a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from skydelta.kernels.cpu import combine as twins

Weights = Literal["equal", "exposure", "pixel"]

MEDIAN_NOISE = (
    1.0, 1.0, 1.346013, 1.192798, 1.434168, 1.288456, 1.473128, 1.345447, 1.494912, 1.383264, 1.508787, 1.410194,
    1.518387, 1.43035, 1.52542, 1.446003, 1.530792, 1.458513, 1.535029, 1.468741, 1.538455, 1.477258, 1.541283,
    1.484463, 1.543656, 1.490635, 1.545677, 1.495984, 1.547418, 1.500663, 1.548933, 1.50479, 1.550264, 1.508459,
    1.551442, 1.511741, 1.552492, 1.514694, 1.553435, 1.517366,
)  # fmt: skip
"""n times the variance of the median of n unit normal deviates, n from 1: integrals of the order statistics."""


def median_noise(n: int) -> float:
    """n var(median of n unit normals); beyond the table pi/2 with the first terms in 1/n, good to 1e-4."""
    if n <= len(MEDIAN_NOISE):
        return MEDIAN_NOISE[n - 1]
    first, second = (-0.4292, -0.07) if n % 2 else (-1.4292, 2.75)
    return np.pi / 2 * (1 + first / n + second / n**2)


class Bits(NamedTuple):
    """int32 values of the planes that a combination reads and sets.

    Attributes
    ----------
    invalid
        A pixel with any of them is bad.
    soft
        Bad pixels that still have a value: with these bits alone they count where no image has a good one.
    no_data, inexact, clipped
        Set where no image has a value; where some of the images that cover a pixel were not used; where some were
        clipped.
    """

    invalid: int
    soft: int
    no_data: int
    inexact: int
    clipped: int


class Terms(NamedTuple):
    """What is done to the pixels of one image: scale * value - (level + x (X - x0) + y (Y - y0)).

    Attributes
    ----------
    scale : float
    level, x, y : float
        Value of a plane at (x0, y0), and its slopes, in the scaled unit and target px.
    x0, y0 : float
    weight : float
        Of the image; with ``pixel`` weights its product with the scaled variance's inverse.
    noise : float
        Variance of a sky pixel in the scaled unit; the yardstick of clipping. NaN without.
    """

    scale: float = 1.0
    level: float = 0.0
    x: float = 0.0
    y: float = 0.0
    x0: float = 0.0
    y0: float = 0.0
    weight: float = 1.0
    noise: float = np.nan

    def vector(self) -> np.ndarray:
        """float64 (8,) for the kernels."""
        return np.array(self, np.float64)


@dataclass(frozen=True)
class Combined:
    """A combination, (H, W) each.

    Attributes
    ----------
    image : float32
        NaN without data.
    variance : float32 or None
    mask : int32
    count : int32
        Images that a pixel is made of.
    weight : float32
        Sum of their weights.
    """

    image: np.ndarray
    variance: np.ndarray | None
    mask: np.ndarray
    count: np.ndarray
    weight: np.ndarray


class Sums:
    """Running sums of a mean: memory for one grid, however many images are added.

    Parameters
    ----------
    shape : (int, int)
    bits : Bits
    pixel_weights : bool
        Weights are ``Terms.weight`` over the scaled variance of each pixel.
    """

    def __init__(self, shape: tuple[int, int], bits: Bits, pixel_weights: bool = False) -> None:
        self.bits, self.pixel_weights, self.variances = bits, pixel_weights, True
        self.totals = np.zeros((3, *shape))  # w x, w, w^2 v
        self.states = np.zeros((4, *shape), np.int32)  # used and covering images, bits of the used and of the others

    def add(
        self,
        image: np.ndarray,
        variance: np.ndarray | None,
        mask: np.ndarray,
        at: tuple[int, int],
        terms: Terms,
        share: np.ndarray | None = None,
    ) -> None:
        """Add an image (float32, with float32 variance and int32 mask) whose pixel (0, 0) is pixel ``at`` (y, x).

        ``share`` (float32) multiplies the weight of each pixel: that of the drops it is made of.
        """
        self.variances &= variance is not None
        twins.add(
            image, twins.present(variance), mask, twins.present(share), *at, terms.vector(), self.pixel_weights,
            np.array(self.bits, np.int32), self.totals, self.states,
        )  # fmt: skip

    def finish(self) -> Combined:
        """The mean of what was added: sum w x / sum w, with variance sum w^2 v / (sum w)^2."""
        shape = self.totals.shape[1:]
        image, noise, weight = (np.empty(shape, np.float32) for _ in range(3))
        mask = np.empty(shape, np.int32)
        twins.finish(self.totals, self.states, np.array(self.bits, np.int32), image, noise, mask, weight)
        count = np.where(self.states[0] > 0, self.states[0] & twins.COUNT, 0).astype(np.int32)
        return Combined(image, noise if self.variances else None, mask, count, weight)


HALO = 2
"""Rows that clipping looks at above and below: one for the signal around a pixel, one for neighbours of outliers."""


class Band:
    """The same rows of many images, for combinations that need all values of a pixel at once.

    Parameters
    ----------
    n : int
        Images.
    y0, y1 : int
        Rows of the target that are wanted; the band holds `HALO` more on both sides.
    width : int
    bits : Bits
    drops : bool
        Pixels have shares.
    """

    def __init__(self, n: int, y0: int, y1: int, width: int, bits: Bits, drops: bool = False) -> None:
        self.y0, self.y1, self.bits = y0, y1, bits
        shape = (n, y1 - y0 + 2 * HALO, width)
        self.values, self.variances = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
        self.masks = np.full(shape, bits.no_data, np.int32)
        self.shares = np.zeros(shape if drops else (n, 0, 0), np.float32)
        self.terms = np.stack([Terms().vector()] * n)
        self.has_variance = True

    @staticmethod
    def bytes_per_pixel(drops: bool = False) -> int:
        """Of one image in a band."""
        return 17 if drops else 13

    def put(
        self,
        k: int,
        image: np.ndarray,
        variance: np.ndarray | None,
        mask: np.ndarray,
        at: tuple[int, int],
        terms: Terms,
        share: np.ndarray | None = None,
    ) -> None:
        """The rows of image k whose pixel (0, 0) is pixel ``at`` (y, x) of the target; other rows are left aside.

        ``share`` (float32) multiplies the weight of each pixel in `clipped`.
        """
        self.has_variance &= variance is not None
        self.terms[k] = terms.vector()
        twins.place(
            image, twins.present(variance), mask, twins.present(share), *at, self.y0 - HALO, self.terms[k],
            self.values[k], self.variances[k], self.masks[k], self.shares[k],
        )  # fmt: skip

    def median(self) -> Combined:
        """The median of good values.

        Variance: c_n n / (sum 1 / sigma_i)^2 with c_n / n the variance of the median of n unit normal deviates: exact
        for equal sigma and for two images; else the small-n factor times the limit for many images, in which the
        density of the median is the mean of the densities of the values (David & Nagaraja 2003, 2.5 and 10.3).
        """
        out = self._empty()
        factors = np.array([0.0, *(median_noise(n) for n in range(1, len(self.values) + 1))])
        twins.median(self.values, self.variances, self.masks, np.array(self.bits, np.int32), HALO, factors, *out)
        return self._combined(out)

    def clipped(
        self, sky: np.ndarray, sigma: float, core: float, weights: Weights = "exposure"
    ) -> tuple[Combined, np.ndarray]:
        """The weighted mean of good values that lie near their median (as Gruen, Seitz & Bernstein 2014).

        A value is clipped when it is more than sigma sigma_i + core S away from the median (of two: from the lower),
        where sigma_i is the noise of image i scaled by the median excess of all images over their sky noise, and S is
        the largest signal of the median within one pixel: where seeing differs, stars differ by a part of their
        light. Around a clipped pixel half as much is enough. Where nothing would be left nothing is clipped.

        Parameters
        ----------
        sky : float32 (rows + 2 HALO, W)
            Level of the sky in the rows of the band.
        sigma, core : float
        weights : {"equal", "exposure", "pixel"}

        Returns
        -------
        Combined
        count : int64 (n,)
            Values clipped of each image in the rows wanted.
        """
        out = self._empty()
        rows, width = self.values.shape[1:]
        centre, excess, error = (np.empty((rows, width), np.float32) for _ in range(3))
        bits = np.array(self.bits, np.int32)
        planes = self.values, self.variances, self.masks
        twins.centre(*planes, bits, self.terms, centre, excess, error)
        judged = np.zeros(self.values.shape, np.uint8)
        twins.judge(self.values, self.masks, bits, self.terms, centre, excess, error, sky, sigma, core, judged)
        lost = np.zeros((rows - 2 * HALO, len(self.values)), np.int64)
        kind = ("equal", "exposure", "pixel").index(weights)
        twins.keep(*planes, self.shares, judged, bits, self.terms, kind, HALO, lost, *out)
        return self._combined(out), lost.sum(axis=0)

    def _empty(self) -> tuple[np.ndarray, ...]:
        shape = (self.y1 - self.y0, self.values.shape[2])
        kinds = (np.float32, np.float32, np.int32, np.int32, np.float32)
        return tuple(np.empty(shape, kind) for kind in kinds)

    def _combined(self, out: tuple[np.ndarray, ...]) -> Combined:
        image, variance, mask, count, weight = out
        return Combined(image, variance if self.has_variance else None, mask, count, weight)
