# SPDX-License-Identifier: BSD-3-Clause
"""PSF models from star stamps: an elliptical Moffat profile that varies over the field, and pixels for the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import fft
from scipy.ndimage import gaussian_filter, uniform_filter

from skydelta.io.field import Domain, count_terms, polynomial_exponents, polynomial_terms
from skydelta.io.psf import PixelPsf
from skydelta.stages.stars import SIGMA_TO_FWHM

MARGIN = 6
"""Pixels around a stamp that fade to zero, so that a shift in Fourier space does not ring."""

ROUNDS = 4
"""Times fluxes, clipping and model are improved in turn."""

FIRST_STEPS = 6
"""Steps of the profile before anything is clipped; one a round after that."""

MODEL_ERROR = 0.01
"""Of the model: brighter stars than this much noise at the peak do not count for more."""

SHAPE_ERROR = 0.03
"""How far a Moffat profile may be off a real one, relative: balances core and wings in its fit."""

OWN = 4
"""Parameters of each star: flux, sky level and centre."""

STAR_CLIP = 5.0
"""Stars leave whose residual holds a source of this signal-to-noise, and one that stands out so among all stars."""

WIDTH_CLIP = 3.3
"""Stars whose width is off the model's by this many standard deviations leave."""

LEAST_SCATTER = 0.005
"""Of ln(FWHM) from star to star that no model follows."""

PIXEL_CLIP = 5.0
"""Single pixels that far off leave, in units of noise and a tenth of the model."""

REACH = 2.5
"""Pixels within this many times the scale a of the first guess determine the profile: 2.5 FWHM."""

DEGREE = 4
"""Of the smooth functions that a PSF departs from a Moffat profile by."""

PRIOR = (0.7, 0.3, 0.3, 0.7)
"""Standard deviation of ln a, e1, e2 and ln(beta - 1) around a round profile with beta 3; matters for faint stars."""

PRIOR_VARIATION = 0.2
"""The same for the terms of ln a, e1, e2 that vary over the field."""


@dataclass(frozen=True)
class Samples:
    """Star stamps centred on their middle pixel, float64 in image units.

    Attributes
    ----------
    values, variance : (n, m, m)
    usable : bool (n, m, m)
    flux, x, y : (n,)
        First flux, and positions in the field, px.
    """

    values: np.ndarray
    variance: np.ndarray
    usable: np.ndarray
    flux: np.ndarray
    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class PsfFit:
    """A fitted PSF and how every star agrees with it.

    Attributes
    ----------
    psf : PixelPsf
    used : bool (n,)
        Stars in the fit; neither held out nor clipped.
    excess : float64 (n,)
        Mean square of star minus model within one FWHM less the expected variance, over the peak's square.
    peak : float64 (n,)
        Of the model of each star, image units.
    chi2 : float64 (n,)
        Per degree of freedom, same circle.
    """

    psf: PixelPsf
    used: np.ndarray
    excess: np.ndarray
    peak: np.ndarray
    chi2: np.ndarray

    def residual(self, stars: np.ndarray) -> float:
        """rms departure of stars from the model over its peak, beyond the noise; bright stars count most."""
        weight = self.peak[stars] ** 2
        return float(np.sqrt(max((weight * self.excess[stars]).sum() / weight.sum(), 0.0)))


def centre_stamps(stamps: np.ndarray, usable: np.ndarray, dx: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """Stamps shifted in Fourier space so that (dx, dy) comes to the middle pixel, `MARGIN` px cut off each side.

    Averaged over stars at random fractions of a pixel this is unbiased even where the PSF is undersampled, because
    aliases change sign. Unusable pixels take the value of the opposite pixel.
    """
    m = stamps.shape[1]
    filled = np.where(usable, stamps, np.where(usable[:, ::-1, ::-1], stamps[:, ::-1, ::-1], 0.0))
    fade = np.sin(np.pi / 2 * (np.arange(MARGIN) + 0.5) / MARGIN) ** 2
    window = np.concatenate([fade, np.ones(m - 2 * MARGIN), fade[::-1]])
    f = fft.rfft2(filled * window * window[:, None])
    ky, kx = fft.fftfreq(m), fft.rfftfreq(m)
    f *= np.exp(2j * np.pi * kx * dx[:, None])[:, None, :] * np.exp(2j * np.pi * ky * dy[:, None])[:, :, None]
    return fft.irfft2(f, (m, m))[:, MARGIN:-MARGIN, MARGIN:-MARGIN]


def supported_order(order: int, domain: Domain, x: np.ndarray, y: np.ndarray) -> int:
    """The largest total degree up to ``order`` that the stars at x, y (px) determine all over the field.

    It takes three stars for each term, and an error at a 3 x 3 grid over the field not above that of one star: stars
    in one corner do not tell the slope over the whole image.
    """
    u, v = (a.ravel() for a in np.meshgrid(*[np.array([-2 / 3, 0, 2 / 3])] * 2))
    while order:
        phi = polynomial_terms(*domain.uv(x, y), order).T
        if len(phi) >= 3 * count_terms(order) and np.linalg.cond(phi) < 1e6:
            at = polynomial_terms(u, v, order).T
            if (at @ np.linalg.inv(phi.T @ phi) * at).sum(axis=1).max() <= 1:
                break
        order -= 1
    return order


def fit_psf(
    samples: Samples,
    domain: Domain,
    order: int,
    fwhm: float,
    held_out: np.ndarray,
    pixels: bool = True,
    rounds: int = ROUNDS,
) -> PsfFit:
    """Fit stars by a Moffat profile whose size and shape are polynomials over the field, and the rest pixel by pixel.

    Fluxes are fitted against the model of the round before, stars weigh by their sky noise alone (weights that follow
    the noise of pixels would bias them), whole stars and single pixels are clipped, and where pixels are noise the PSF
    is the profile.

    Parameters
    ----------
    samples : Samples
    domain : Domain
    order : int
        Total degree of the polynomials; the result has twice this degree, which it takes for pixels to follow them.
    fwhm : float
        First guess, px.
    held_out : bool (n,)
        Stars that are only compared.
    pixels : bool
        Whether pixels may depart from the profile.
    rounds : int
    """
    n, m = len(samples), samples.values.shape[1]
    axes, r = (1, 2), radius(m)
    # orthogonal over the stars, constant term first: the mean PSF and its variation are then independent
    phi = polynomial_terms(*domain.uv(samples.x, samples.y), order).T
    to_orthogonal = np.linalg.inv(np.linalg.qr(phi / np.sqrt(n))[1])
    to_orthogonal *= np.sign(to_orthogonal[0, 0])
    phi = phi @ to_orthogonal
    noise = np.sqrt(np.median(samples.variance.reshape(n, -1), axis=1))
    field = ProfileField.start(fwhm, phi.shape[1])
    departure = np.zeros((phi.shape[1], m, m))
    flux, sky, used = samples.flux, np.zeros(n), ~held_out
    weight, inside = samples.usable.astype(float), samples.usable & (r <= fwhm)
    for step in range(rounds):
        for _ in range(1 if step else FIRST_STEPS):
            field = field.improved(samples.values - sky[:, None, None], flux, weight, noise, phi, used)
        profiles = field.render(phi, m)
        if pixels:
            peak = profiles.max(axis=axes)
            star = used / ((noise / flux) ** 2 + (MODEL_ERROR * peak) ** 2)
            values = (samples.values - sky[:, None, None]) / flux[:, None, None] - profiles
            departure = _solve(values, weight * star[:, None, None], phi)
            covariance = np.linalg.inv((phi * star[:, None]).T @ phi)
            departure = _significant(departure, field, np.sqrt(np.diag(covariance)), fwhm)
        model = profiles + np.tensordot(phi, departure, axes=(1, 0))
        model /= model.sum(axis=axes, keepdims=True)
        flux, sky = _fit_fluxes(samples.values, weight, model)
        signal = flux[:, None, None] * model
        deviation = samples.values - sky[:, None, None] - signal
        near = (samples.usable & (r <= 1.5 * fwhm)) / samples.variance
        scaled = deviation**2 / (samples.variance + (0.1 * signal) ** 2)
        weight = np.where(samples.usable & ((scaled < PIXEL_CLIP**2) | (r <= 0.5 * fwhm)), 1.0, 0.0)
        residual = _strongest_residual(np.where(samples.usable, deviation, 0), samples.variance, signal, fwhm)
        fine = (flux > 0) & (residual <= max(STAR_CLIP, _usual(residual[used])))
        fine &= _consistent(*_broadening(deviation, near, model, flux), phi, ~held_out & fine)
        enough = (~held_out & fine).sum() >= max(3 * phi.shape[1], (~held_out).sum() / 2)
        used = ~held_out & (fine if enough else flux > 0)
    count = np.maximum(inside.sum(axis=axes), 1)
    free = np.maximum(count - OWN, 1)
    chi2 = np.where(inside, deviation**2 / samples.variance, 0).sum(axis=axes) / free
    peak = signal.max(axis=axes)
    square, expected = (np.where(inside, a, 0).sum(axis=axes) for a in (deviation**2, samples.variance))
    excess = (square / free - expected / count) / peak**2
    return PsfFit(_as_pixels(field, departure, to_orthogonal, order, domain), used, excess, peak, chi2)


def _as_pixels(
    field: ProfileField, departure: np.ndarray, to_orthogonal: np.ndarray, order: int, domain: Domain
) -> PixelPsf:
    """The model at nodes over the field, as pixels that are polynomials of twice its degree."""
    count = 4 * order + 1
    node = np.cos(np.pi * (np.arange(count) + 0.5) / count)
    u, v = (a.ravel() for a in np.meshgrid(node, node))
    phi = polynomial_terms(u, v, order).T @ to_orthogonal
    stamps = field.render(phi, departure.shape[1]) + np.tensordot(phi, departure, axes=(1, 0))
    stamps /= stamps.sum(axis=(1, 2), keepdims=True)
    terms = polynomial_terms(u, v, 2 * order).T
    coefficients = np.linalg.lstsq(terms, stamps.reshape(len(u), -1), rcond=None)[0]
    return PixelPsf(coefficients.reshape(-1, *departure.shape[1:]), 2 * order, domain)


def _usual(values: np.ndarray) -> float:
    """Median plus `STAR_CLIP` robust standard deviations."""
    middle = np.median(values)
    return float(middle + STAR_CLIP * 1.4826 * np.median(np.abs(values - middle)))


def _strongest_residual(deviation: np.ndarray, variance: np.ndarray, signal: np.ndarray, fwhm: float) -> np.ndarray:
    """Largest signal-to-noise (n,) of another source in the residual of a star, within 2 FWHM: blends, defects.

    The filter is a Gaussian of the stars' width; `MODEL_ERROR` of the star counts as noise.
    """
    sigma = fwhm / SIGMA_TO_FWHM
    middle = deviation.shape[1] // 2
    reach = min(int(np.ceil(2 * fwhm + 3 * sigma)), middle)
    near = np.s_[:, middle - reach : middle + reach + 1, middle - reach : middle + reach + 1]

    def smooth(planes: np.ndarray, width: float) -> np.ndarray:
        return gaussian_filter(planes[near], (0, width, width), mode="constant", truncate=3.0)

    # the squared filter is a Gaussian too, sqrt(2) narrower
    noise = smooth(variance, sigma / np.sqrt(2)) / (4 * np.pi * sigma**2) + (MODEL_ERROR * smooth(signal, sigma)) ** 2
    snr = np.abs(smooth(deviation, sigma)) / np.sqrt(noise)
    return np.where(radius(2 * reach + 1) <= 2 * fwhm, snr, 0).max(axis=(1, 2))


def _broadening(
    deviation: np.ndarray, weight: np.ndarray, model: np.ndarray, flux: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """How much wider each star is than its model, d ln(FWHM), and its error: galaxies and blends show here first."""
    axes = (1, 2)
    o = np.arange(model.shape[1]) - model.shape[1] // 2
    mode = -(2 * model + o * np.gradient(model, axis=2) + o[:, None] * np.gradient(model, axis=1))
    power = np.maximum((weight * model**2).sum(axis=axes), np.finfo(float).tiny)
    mode -= model * ((weight * mode * model).sum(axis=axes) / power)[:, None, None]
    information = np.maximum((weight * mode**2).sum(axis=axes), np.finfo(float).tiny)
    with np.errstate(divide="ignore", invalid="ignore"):
        broader = (weight * deviation * mode).sum(axis=axes) / (information * flux)
        return np.nan_to_num(broader), np.nan_to_num(1 / (np.sqrt(information) * np.abs(flux)), posinf=1e6)


def _consistent(broader: np.ndarray, error: np.ndarray, phi: np.ndarray, use: np.ndarray) -> np.ndarray:
    """Stars whose width agrees with a polynomial through all others: the worst one leaves until all do.

    Each is compared with the fit without it (residual / (1 - leverage)), so that a star far from others cannot hide.
    """
    fine = np.ones(len(broader), bool)
    index = np.flatnonzero(use)
    while len(index) > max(phi.shape[1] + 2, use.sum() / 2):
        a, b = phi[index], broader[index]
        scatter2 = LEAST_SCATTER**2
        for _ in range(3):
            w = 1 / np.sqrt(error[index] ** 2 + scatter2)
            q, _ = np.linalg.qr(a * w[:, None])
            residual = b * w - q @ (q.T @ (b * w))
            spread = 1.4826 * np.median(np.abs(residual)) * np.sqrt(len(index) / (len(index) - phi.shape[1]))
            precise = w >= np.median(w)
            excess = np.median(residual[precise] ** 2 / w[precise] ** 2) / 0.4549 - np.median(
                error[index][precise] ** 2
            )
            scatter2 = max(excess, LEAST_SCATTER**2)
        z = np.abs(residual) / np.sqrt(np.maximum(1 - (q**2).sum(axis=1), 1e-3)) / max(spread, 1.0)
        worst = int(np.argmax(z))
        if z[worst] <= WIDTH_CLIP:
            break
        fine[index[worst]] = False
        index = np.delete(index, worst)
    return fine


def radius(m: int) -> np.ndarray:
    """Distance (px) from the middle pixel: float64 (m, m)."""
    o = np.arange(m) - m // 2
    return np.hypot(o, o[:, None])


def _solve(values: np.ndarray, weight: np.ndarray, phi: np.ndarray) -> np.ndarray:
    """Weighted least squares for each pixel: float64 (n_p, m, m)."""
    n, m = values.shape[:2]
    w = weight.reshape(n, -1)
    pairs = np.einsum("sp,sq->pqs", phi, phi).reshape(-1, n)
    n_p = phi.shape[1]
    a = (pairs @ w).reshape(n_p, n_p, -1).transpose(2, 0, 1)
    b = (phi.T @ (w * values.reshape(n, -1))).T
    # a touch of the mean normal matrix keeps pixels that too few stars see
    a = a + 1e-6 * a.mean(axis=0)
    return np.linalg.solve(a, b[:, :, None])[:, :, 0].T.reshape(n_p, m, m)


def _fit_fluxes(values: np.ndarray, weight: np.ndarray, model: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Flux and sky level of each star against its model, by linear least squares."""
    axes = (1, 2)
    s1, sp, spp = weight.sum(axis=axes), (weight * model).sum(axis=axes), (weight * model**2).sum(axis=axes)
    sv, spv = (weight * values).sum(axis=axes), (weight * model * values).sum(axis=axes)
    determinant = np.maximum(s1 * spp - sp * sp, 1e-30)
    return (s1 * spv - sp * sv) / determinant, (spp * sv - sp * spv) / determinant


def _significant(departure: np.ndarray, field: ProfileField, noise: np.ndarray, fwhm: float) -> np.ndarray:
    """The departure from the profile M, freed of noise.

    It is projected on M X^i Y^j (1 - X^2 - Y^2), i + j <= `DEGREE`, (X, Y) = (dx, dy) / sqrt(a^2 + r^2), and kept as
    far as it exceeds the noise (James & Stein 1961), at the mean also pixel by pixel; nothing is kept in the wings,
    where single pixels carry less than 4 times their noise.

    Parameters
    ----------
    departure : float64 (n_p, m, m)
        Image of each spatial term, the mean first.
    field : ProfileField
    noise : float64 (n_p,)
        Standard deviation of their pixels.
    fwhm : float
        px.
    """
    m = departure.shape[1]
    mean = np.eye(1, len(departure))
    profile, scale = field.render(mean, m)[0], np.exp(field.coefficients[0, 0])
    r, o = radius(m), np.arange(m) - m // 2
    bound = np.sqrt(scale**2 + r * r)
    x, y = o / bound, o[:, None] / bound
    project = _projector([profile * (1 - x * x - y * y) * x**i * y**j for i, j in polynomial_exponents(DEGREE)])
    clear = float(np.clip(r[profile > 4 * noise[0]].max(initial=0.0), fwhm, 4.0 * fwhm))
    t = np.clip((r - 0.8 * clear) / (0.5 * clear), 0, 1)
    fade = 1 - t * t * (3 - 2 * t)
    out = np.empty_like(departure)
    for p, image in enumerate(departure):
        near = project(image)
        out[p] = near * max(0.0, 1 - count_terms(DEGREE) * noise[p] ** 2 / max((near**2).sum(), noise[p] ** 2))
        if p == 0:
            rest = image - near
            out[p] += rest * (1 - noise[p] ** 2 / np.maximum(uniform_filter(rest**2, 5), noise[p] ** 2))
    return out * fade


def _projector(functions: list[np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """Least squares of an image (m, m) on these functions."""
    q = np.linalg.qr(np.stack([f.ravel() for f in functions], axis=1))[0]
    return lambda image: (q @ (q.T @ image.ravel())).reshape(image.shape)


@dataclass(frozen=True)
class ProfileField:
    """Elliptical Moffat profile (1 + r^2 / a^2)^-beta of unit sum whose parameters vary over the field.

    r^2 = ((1 - e1) dx^2 - 2 e2 dx dy + (1 + e1) dy^2) / sqrt(1 - e1^2 - e2^2), px.

    Attributes
    ----------
    coefficients : float64 (3, n_p)
        Polynomials of ln a, e1 and e2.
    slope : float
        ln(beta - 1).
    first : float
        ln a of the first guess.
    """

    coefficients: np.ndarray
    slope: float
    first: float

    @classmethod
    def start(cls, fwhm: float, terms: int) -> ProfileField:
        """Round, with beta 3."""
        log_a = float(np.log(fwhm / (2 * np.sqrt(2 ** (1 / 3) - 1))))
        coefficients = np.zeros((3, terms))
        coefficients[0, 0] = log_a
        return cls(coefficients, float(np.log(2.0)), log_a)

    def render(self, phi: np.ndarray, m: int) -> np.ndarray:
        """Profiles at places with spatial terms phi (n, n_p): float64 (n, m, m)."""
        o = np.arange(m) - m // 2
        dx, dy = (a.ravel() for a in np.meshgrid(o, o))
        value, _ = _moffat(self._parameters(phi), dx, dy)
        return (value / value.sum(axis=1, keepdims=True)).reshape(-1, m, m)

    def _parameters(self, phi: np.ndarray) -> np.ndarray:
        """ln a, e1, e2 and ln(beta - 1) at places: float64 (4, n), kept in bounds."""
        log_a, e1, e2 = self.coefficients @ phi.T
        middle = self.coefficients[0, 0]
        log_a = np.clip(log_a, middle - 0.7, middle + 0.7)
        return np.stack([log_a, np.clip(e1, -0.6, 0.6), np.clip(e2, -0.6, 0.6), np.full(len(phi), self.slope)])

    def improved(
        self,
        values: np.ndarray,
        flux: np.ndarray,
        weight: np.ndarray,
        noise: np.ndarray,
        phi: np.ndarray,
        used: np.ndarray,
    ) -> ProfileField:
        """One Gauss-Newton step on the stars in use, their fluxes free.

        Parameters
        ----------
        values, weight : float64 (n, m, m)
            Stars, and 0 for pixels that do not take part.
        flux, noise : float64 (n,)
            First flux and standard deviation of a pixel.
        phi : float64 (n, n_p)
        used : bool (n,)
        """
        half, r = values.shape[1] // 2, radius(values.shape[1])
        y, x = np.nonzero(r <= REACH * np.exp(self.first))
        phi = phi[used]
        parameters = self._parameters(phi)
        value, derivatives = _moffat(parameters, x - half, y - half)
        # a Moffat profile of peak 1 has the flux pi a^2 / (beta - 1)
        amplitude = (flux[used] * np.exp(parameters[3] - 2 * parameters[0]) / np.pi)[:, None]
        w = weight[:, y, x][used] / (noise[used][:, None] ** 2 + (SHAPE_ERROR * amplitude * value) ** 2)
        columns = np.concatenate([value[:, None], amplitude[:, :, None] * derivatives], axis=1)
        weighted = columns * w[:, None]
        a = np.matmul(weighted, columns.transpose(0, 2, 1))
        b = np.matmul(weighted, (values[:, y, x][used] - amplitude * value)[:, :, None])[:, :, 0]
        # the amplitude of each star is eliminated
        a, b = (
            a[:, 1:, 1:] - a[:, 1:, :1] * a[:, :1, 1:] / a[:, :1, :1],
            b[:, 1:] - a[:, 1:, 0] * b[:, :1] / a[:, 0, :1],
        )
        n_p = phi.shape[1]
        # beta is one number: of its terms only the constant one stays
        free = np.r_[np.ones(3 * n_p, bool), True, np.zeros(n_p - 1, bool)]
        one = np.eye(1, n_p)[0]
        spatial = np.stack([phi, phi, phi, np.broadcast_to(one, phi.shape)], axis=1)
        normal = np.einsum("sij,sip,sjq->ipjq", a, spatial, spatial, optimize=True).reshape(4 * n_p, 4 * n_p)
        right = np.einsum("si,sip->ip", b, spatial).ravel()
        spread = np.full((4, n_p), PRIOR_VARIATION)
        spread[:, 0] = PRIOR
        guess = np.zeros((4, n_p))
        guess[0, 0], guess[3, 0] = self.first, np.log(2.0)
        now = np.concatenate([self.coefficients, self.slope * one[None]])
        prior = 1 / spread.ravel() ** 2
        normal[np.diag_indices(4 * n_p)] += prior
        right = right + prior * (guess - now).ravel()
        step = np.zeros(4 * n_p)
        step[free] = np.linalg.solve(normal[np.ix_(free, free)], right[free])
        step = np.clip(step, -0.4, 0.4).reshape(4, n_p)
        slope = float(np.clip(self.slope + step[3, 0], np.log(0.2), np.log(30.0)))
        return replace(self, coefficients=self.coefficients + step[:3], slope=slope)


def _moffat(parameters: np.ndarray, dx: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(1 + r^2 / a^2)^-beta at k offsets (n, k) and its derivatives (n, 4, k) for ln a, e1, e2, ln(beta - 1)."""
    log_a, e1, e2, slope = parameters[:, :, None]
    beta, rest = 1 + np.exp(slope), 1 - e1**2 - e2**2
    shear, scale = 1 / np.sqrt(rest), np.exp(-2 * log_a)
    r2 = shear * ((1 - e1) * dx * dx - 2 * e2 * dx * dy + (1 + e1) * dy * dy)
    u = r2 * scale
    log_u = np.log1p(u)
    value = np.exp(-beta * log_u)
    by_r2 = -beta * scale * value / (1 + u)
    derivatives = [
        -2 * r2 * by_r2,
        by_r2 * (shear * (dy * dy - dx * dx) + r2 * e1 / rest),
        by_r2 * (-2 * shear * dx * dy + r2 * e2 / rest),
        -value * log_u * (beta - 1),
    ]
    return value, np.stack(derivatives, axis=1)
