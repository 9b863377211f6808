# SPDX-License-Identifier: BSD-3-Clause
"""PSF models from star stamps: an elliptical Moffat profile that varies over the field, and pixels for the rest."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cache

import numpy as np

from skydelta.errors import AlgorithmError
from skydelta.io.field import Domain, count_terms, polynomial_terms
from skydelta.io.psf import PixelPsf
from skydelta.kernels.backend import Array, Backend, backend_of, to_host
from skydelta.kernels.psf import Row, compare_stars, pixel_departure, profile_sums
from skydelta.stages.psfpixels import significant
from skydelta.stages.psfprofile import ProfileField, Terms
from skydelta.stages.psfwidths import consistent_widths
from skydelta.stages.robust import median
from skydelta.stages.stars import SIGMA_TO_FWHM

ROUNDS = 4
"""Times fluxes, clipping and model are improved in turn."""

FIRST_STEPS = 6
"""Steps of the profile before anything is clipped, at most; one a round after that."""

SMALL_STEP = 1e-3
"""Largest change of a coefficient by the last of them: the next one would change a twentieth of it or less, far below
what clipping changes then."""

STEPS_WITHOUT = 2
"""Steps of the profile from a solution with all stars to the one without some."""

STAR_CLIP = 5.0
"""Stars leave whose residual holds a source of this signal-to-noise, and one that stands out so among all stars."""

REACH = 2.5
"""Pixels within this many times the scale a of the first guess determine the profile: 2.5 FWHM."""


@dataclass(frozen=True)
class Samples:
    """Star stamps centred on their middle pixel, float64 in image units, where the image is.

    Attributes
    ----------
    values, variance : (n, m, m)
    usable : bool (n, m, m)
    noise : (n,)
        Standard deviation of a sky pixel.
    flux, x, y : (n,), on the host
        First flux, and positions in the field, px.
    """

    values: Array
    variance: Array
    usable: Array
    noise: Array
    flux: np.ndarray
    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.x)

    @property
    def side(self) -> int:
        return int(self.values.shape[1])

    @property
    def backend(self) -> Backend:
        return backend_of(self.values)


@dataclass(frozen=True)
class Agreement:
    """How every star agrees with a model.

    Attributes
    ----------
    used : bool (n,)
        Stars that the model is fitted to.
    excess : float64 (n,)
        Mean square of star minus model within one FWHM less the expected variance, over the peak's square.
    peak : float64 (n,)
        Of the model of each star, image units.
    chi2 : float64 (n,)
        Per degree of freedom, same circle.
    """

    used: np.ndarray
    excess: np.ndarray
    peak: np.ndarray
    chi2: np.ndarray

    def residual(self, stars: np.ndarray) -> float:
        """rms departure of stars from the model over its peak, beyond the noise; bright stars count most."""
        weight = self.peak[stars] ** 2
        return float(np.sqrt(max((weight * self.excess[stars]).sum() / weight.sum(), 0.0)))


def supported_order(order: int, polynomial: np.ndarray) -> int:
    """The largest total degree up to ``order`` that stars determine all over the field.

    It takes three stars for each term, and an error at a 3 x 3 grid over the field not above that of one star: stars
    in one corner do not tell the slope over the whole image.

    Parameters
    ----------
    order : int
    polynomial : float64 (n, n_p)
        `polynomial_terms` of at least this order at the stars.
    """
    while order:
        phi = polynomial[:, : count_terms(order)]
        if len(phi) >= 3 * count_terms(order):
            values, axes = np.linalg.eigh(phi.T @ phi)
            # the condition of the terms is below 1e6
            if values[0] > 1e-12 * values[-1] and ((_grid(order) @ axes) ** 2 @ (1 / values)).max() <= 1:
                break
        order -= 1
    return order


@cache
def _grid(order: int) -> np.ndarray:
    """Terms (9, n_p) at a 3 x 3 grid over the field."""
    u, v = (a.ravel() for a in np.meshgrid(*[np.array([-2 / 3, 0, 2 / 3])] * 2))
    return polynomial_terms(u, v, order).T


class PsfFit:
    """Stars fitted by a Moffat profile whose size and shape are polynomials over the field, and the rest by pixels.

    Fluxes are fitted against the model of the round before, stars weigh by their sky noise alone (weights that follow
    the noise of pixels would bias them), whole stars and single pixels are clipped, and where pixels are noise the PSF
    is the profile.

    Parameters
    ----------
    samples : Samples
    domain : Domain
    polynomial : float64 (n, n_p)
        `polynomial_terms` at the stars, of this order or a higher one.
    order : int
        Total degree of the polynomials; the result has twice this degree, which it takes for pixels to follow them.
    fwhm : float
        First guess, px.
    pixels : bool
        Whether pixels may depart from the profile.

    Raises
    ------
    AlgorithmError
        No star is left: of none is the fitted flux positive.
    """

    def __init__(
        self,
        samples: Samples,
        domain: Domain,
        polynomial: np.ndarray,
        order: int,
        fwhm: float,
        pixels: bool = True,
    ) -> None:
        backend, n = samples.backend, len(samples)
        self._samples, self._domain, self._fwhm, self._departing = samples, domain, fwhm, pixels
        self._terms = Terms.of(order, polynomial, backend)
        self._field = ProfileField.start(fwhm, self._terms.count)
        self._pixels = np.zeros((self._terms.count, samples.side, samples.side))
        self._departure = backend.xp.zeros(self._pixels.shape)
        self._blurred = _blurred(samples.variance, fwhm)
        # fluxes and sky levels lead the rows that stars are compared in
        self._rows = backend.asarray(np.stack([samples.flux, np.zeros(n)]))
        self._kept = samples.usable
        self.used = np.ones(n, bool)
        self._used = backend.asarray(self.used)
        for step in range(ROUNDS):
            self._improve(1 if step else FIRST_STEPS)
            self._select(self._agreeing())
            if not self.used.any():
                raise AlgorithmError(
                    f"psf: none of the {n} stars fits a profile with a flux above 0; give a PSF with the image", stars=n
                )
        self.agreement = self._agreement()

    def without(self, stars: np.ndarray, order: int) -> Agreement:
        """How the stars agree with a model that these ones (bool (n,)) take no part in.

        It starts from the solution with them and takes `STEPS_WITHOUT` steps. A Gauss-Newton step squares the distance
        to the solution, which is of the order of the errors of the parameters, so that after two of them nothing is
        left of the start beside rounding; the pixels are a linear fit; and a common error of the fluxes goes away when
        the model is brought to unit sum. Which of the other stars and which of their pixels are clipped is kept.
        """
        trial = copy(self)
        if order < self._terms.order:
            trial._terms = self._terms.lowered(order)
            trial._field = self._field.lowered(trial._terms.count)
        trial._select(self.used & ~stars)
        trial._improve(STEPS_WITHOUT)
        return trial._agreement()

    def psf(self) -> PixelPsf:
        """The model at nodes over the field, as pixels that are polynomials of twice its degree."""
        order, side = self._terms.order, self._samples.side
        backend = self._samples.backend
        terms, project = _nodes(order)
        phi = terms @ self._terms.to_orthogonal
        departure = self._pixels.reshape(len(self._pixels), -1)
        # profiles have unit sum, so that of the model is known before it is made
        project = project / (1 + phi @ departure.sum(axis=1))
        packed = backend.asarray(np.concatenate([phi.ravel(), project.ravel()]))
        profiles = self._field.stamps(packed[: phi.size].reshape(phi.shape), side).reshape(len(phi), -1)
        coefficients = to_host(packed[phi.size :].reshape(project.shape) @ profiles) + (project @ phi) @ departure
        return PixelPsf(coefficients.reshape(-1, side, side), 2 * order, self._domain)

    def _select(self, used: np.ndarray) -> None:
        """Take these stars from now on."""
        if not np.array_equal(used, self.used):
            self._used = self._samples.backend.asarray(used)
        self.used = used

    def _improve(self, steps: int) -> None:
        """Steps of the profile, the pixels, then fluxes, sky levels and clipped pixels."""
        s, terms = self._samples, self._terms
        stars = (self._rows[Row.FLUX], self._rows[Row.SKY], s.noise, self._used, terms.device)
        reach = REACH * np.exp(self._field.first)
        for _ in range(steps):
            sums = profile_sums(s.values, self._kept, *stars, self._field.coefficients, self._field.slope, reach)
            self._field, change = self._field.improved(to_host(sums), terms)
            if change < SMALL_STEP:
                break
        profiles = self._field.stamps(terms.device, s.side)
        if self._departing:
            self._depart(to_host(pixel_departure(s.values, self._kept, profiles, *stars)))
        self._rows, self._kept = compare_stars(
            s.values,
            s.variance,
            s.usable,
            self._kept,
            profiles,
            terms.device,
            self._departure,
            self._blurred,
            self._fwhm,
        )
        self._found = to_host(self._rows)

    def _depart(self, solution: np.ndarray) -> None:
        """Take what is signal in the solution (n_p, m m + n_p) of `pixel_departure`."""
        n_p, side = self._terms.count, self._samples.side
        departure, information = solution[:, : side * side], solution[:, side * side :]
        noise = np.sqrt(np.diag(np.linalg.inv(information)))
        self._pixels = significant(departure.reshape(n_p, side, side), *self._field.mean(side), noise, self._fwhm)
        self._departure = self._samples.backend.asarray(self._pixels)

    def _agreeing(self) -> np.ndarray:
        """Stars that hold no other source and are as wide as all others; those with a flux, when too few are left."""
        positive = self._found[Row.FLUX] > 0
        residual = self._found[Row.RESIDUAL]
        fine = positive & (residual <= max(STAR_CLIP, _usual(residual[self.used])))
        fine &= consistent_widths(self._found[Row.BROADER], self._found[Row.ERROR], self._terms.phi, fine)
        return fine if fine.sum() >= max(3 * self._terms.count, len(fine) / 2) else positive

    def _agreement(self) -> Agreement:
        return Agreement(self.used, self._found[Row.EXCESS], self._found[Row.PEAK], self._found[Row.CHI2])


@cache
def _nodes(order: int) -> tuple[np.ndarray, np.ndarray]:
    """`polynomial_terms` (k, n_p) at Chebyshev nodes over the field, and the least squares of values there on
    polynomials of twice the order: float64 (n_q, k)."""
    count = 4 * order + 1
    node = np.cos(np.pi * (np.arange(count) + 0.5) / count)
    u, v = (a.ravel() for a in np.meshgrid(node, node))
    return polynomial_terms(u, v, order).T, np.linalg.pinv(polynomial_terms(u, v, 2 * order).T)


def _blurred(variance: Array, fwhm: float) -> Array:
    """Variance (n, m, m) of stamps filtered by a Gaussian of the stars' width."""
    sigma, m = fwhm / SIGMA_TO_FWHM, variance.shape[1]
    # the squared filter is a Gaussian too, sqrt(2) narrower
    o, narrow = np.arange(m), sigma / np.sqrt(2)
    reach = int(3 * narrow + 0.5)
    taps = np.exp(-0.5 * (np.arange(-reach, reach + 1) / narrow) ** 2)
    apart = o - o[:, None]
    taps = np.where(np.abs(apart) <= reach, np.exp(-0.5 * (apart / narrow) ** 2) / taps.sum(), 0)
    taps = backend_of(variance).asarray(taps / (2 * np.sqrt(np.pi) * sigma))
    return taps @ variance @ taps


def _usual(values: np.ndarray) -> float:
    """Median plus `STAR_CLIP` robust standard deviations."""
    middle = median(values)
    return middle + STAR_CLIP * 1.4826 * median(np.abs(values - middle))


@cache
def radius(m: int) -> np.ndarray:
    """Distance (px) from the middle pixel: float64 (m, m)."""
    o = np.arange(m) - m // 2
    return np.hypot(o, o[:, None])
