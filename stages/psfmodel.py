# SPDX-License-Identifier: BSD-3-Clause
"""PSF models from star stamps: pixels that are polynomials over the field, and elliptical Moffat profiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import fft
from scipy.ndimage import uniform_filter

from skydelta.io.field import Domain, count_terms, polynomial_exponents, polynomial_terms
from skydelta.io.psf import PixelPsf

MARGIN = 6
"""Pixels around a stamp that fade to zero, so that a shift in Fourier space does not ring."""

ROUNDS = 4
"""Times fluxes, clipping and model are improved in turn."""

MODEL_ERROR = 0.01
"""Of the PSF's peak: brighter stars than this much noise do not count for more."""

STAR_CLIP = 5.0
"""Stars whose chi2 exceeds the median by this many robust standard deviations leave."""

WIDTH_CLIP = 3.3
"""Stars whose width is off the model's by this many standard deviations leave."""

LEAST_SCATTER = 0.005
"""Of ln(FWHM) from star to star that no model follows."""

PIXEL_CLIP = 5.0
"""Single pixels that far off leave, in units of noise and a tenth of the model."""

DEGREE = 4
"""Of the smooth functions that a PSF departs from a Moffat profile by."""

SHAPE_ERROR = 0.03
"""How far a Moffat profile may be off a real one, relative: balances core and wings in its fit."""


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
        Per pixel, same circle.
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


def fit_pixels(samples: Samples, domain: Domain, order: int, fwhm: float, held_out: np.ndarray) -> PsfFit:
    """Fit every pixel of the normalised stars by a polynomial over the field.

    Fluxes are fitted against the model of the round before, stars weigh by their sky noise alone (weights that follow
    the noise of pixels would bias them), whole stars and single pixels are clipped, and beyond the radius where the
    pixels are noise the PSF is an elliptical Moffat profile.

    Parameters
    ----------
    samples : Samples
    domain : Domain
    order : int
        Total degree of the polynomial.
    fwhm : float
        px.
    held_out : bool (n,)
        Stars that are only compared.
    """
    n, m = len(samples), samples.values.shape[1]
    r = radius(m)
    core = r <= fwhm
    phi = polynomial_terms(*domain.uv(samples.x, samples.y), order).T
    # orthogonal over the stars, constant term first: the mean PSF and its variation are then independent
    to_orthogonal = np.linalg.inv(np.linalg.qr(phi / np.sqrt(n))[1])
    to_orthogonal *= np.sign(to_orthogonal[0, 0])
    phi = phi @ to_orthogonal
    flux, sky = samples.flux.copy(), np.zeros(n)
    weight = samples.usable.astype(float)
    used = ~held_out
    noise = np.sqrt(np.median(np.where(samples.usable, samples.variance, np.nan).reshape(n, -1), axis=1))
    noise = np.where(np.isfinite(noise), noise, np.sqrt(np.nanmedian(samples.variance.reshape(n, -1), axis=1)))
    coefficients = np.median((samples.values / flux[:, None, None])[used], axis=0)[None]
    chi2 = excess = peak = np.zeros(n)
    model = np.repeat(coefficients, n, axis=0)
    for step in range(ROUNDS + 1):
        if step:
            values = (samples.values - sky[:, None, None]) / flux[:, None, None]
            star = used / ((noise / flux) ** 2 + (MODEL_ERROR * model[:, core].max(axis=1)) ** 2)
            coefficients = _solve(values, weight * star[:, None, None], phi)
            covariance = np.linalg.inv((phi * star[:, None]).T @ phi)
            coefficients = smooth(coefficients, fwhm, np.sqrt(np.diag(covariance)))
            model = np.tensordot(phi, coefficients, axes=(1, 0))
        model = model / model.sum(axis=(1, 2), keepdims=True)
        flux, sky = _fit_fluxes(samples.values, weight, model)
        deviation = samples.values - sky[:, None, None] - flux[:, None, None] * model
        squared = deviation**2
        scaled = squared / (samples.variance + (0.1 * flux[:, None, None] * model) ** 2)
        weight = np.where(samples.usable & ((scaled < PIXEL_CLIP**2) | (r <= 0.5 * fwhm)), 1.0, 0.0)
        inside = samples.usable & core
        count = np.maximum(inside.sum(axis=(1, 2)), 1)
        peak = flux * model.max(axis=(1, 2))
        tolerated = samples.variance + (MODEL_ERROR * peak)[:, None, None] ** 2
        fault = np.where(inside, squared / tolerated, 0).sum(axis=(1, 2)) / count
        fine = (flux > 0) & (fault <= _usual(fault[used], 0.1))
        broader, error = _broadening(deviation, (samples.usable & (r <= 1.5 * fwhm)) / samples.variance, model, flux)
        fine &= _consistent(broader, error, phi, ~held_out & fine)
        enough = (~held_out & fine).sum() >= max(3 * phi.shape[1], (~held_out).sum() / 2)
        used = ~held_out & (fine if enough else flux > 0)
        chi2 = np.where(inside, squared / samples.variance, 0).sum(axis=(1, 2)) / count
        excess = np.where(inside, squared - samples.variance, 0).sum(axis=(1, 2)) / (count * peak**2)
    coefficients = np.tensordot(to_orthogonal, coefficients, axes=(1, 0))
    psf = PixelPsf(coefficients / coefficients[0].sum(), order, domain)
    return PsfFit(psf, used, excess, peak, chi2)


def _usual(values: np.ndarray, least: float) -> float:
    """Median plus `STAR_CLIP` robust standard deviations, these at least a share of the median."""
    middle = float(np.median(values))
    return middle + STAR_CLIP * max(1.4826 * float(np.median(np.abs(values - middle))), least * middle)


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


def smooth(coefficients: np.ndarray, fwhm: float, noise: np.ndarray) -> np.ndarray:
    """Take the noise out of the wings of the mean PSF and out of its variation.

    The mean PSF becomes its Moffat profile M where its pixels are noise. The variation is first what size and shape
    of a Moffat profile of unit sum do, which ties the wings to the core; then M X^i Y^j, i + j <= `DEGREE`, with
    (X, Y) = (dx, dy) / sqrt(a^2 + r^2). What such functions leave is kept as far as it exceeds the noise.

    Parameters
    ----------
    coefficients : float64 (n_p, m, m)
        Image of each spatial term, the constant one first.
    fwhm : float
        px.
    noise : float64 (n_p,)
        Standard deviation of their pixels.
    """
    profile = fit_moffat(coefficients[:1], float(noise[0]), fwhm)
    m = coefficients.shape[1]
    wings, beta = profile.render(m)[0], profile.beta[0]
    r, o = radius(m), np.arange(m) - m // 2
    # where single pixels carry less than 4 times their noise, the profile knows better
    start = float(np.clip(r[wings > 4 * noise[0]].max(initial=0.0), fwhm, 4.0 * fwhm))
    t = np.clip((r - 0.8 * start) / (0.5 * start), 0, 1)
    t = t * t * (3 - 2 * t)
    bound = np.sqrt(profile.scale[0] ** 2 + r * r)
    x, y = o / bound, o[:, None] / bound
    core = wings * (1 - x * x - y * y)
    shape = _projector([wings * (beta * (x * x + y * y) - 1), wings * (x * x - y * y), wings * x * y])
    local = _projector([core * x**i * y**j for i, j in polynomial_exponents(DEGREE)])
    out = np.empty_like(coefficients)
    mean = (1 - t) * (coefficients[0] - profile.pedestal[0]) + t * wings
    near = wings + local(mean - wings)
    rest = mean - near
    kept = 1 - noise[0] ** 2 / np.maximum(uniform_filter(rest**2, 5), noise[0] ** 2)  # James & Stein (1961)
    out[0] = near + kept * rest
    for p in range(1, len(coefficients)):
        out[p] = shape(coefficients[p])
        rest = local(coefficients[p] - out[p])
        out[p] += rest * max(0.0, 1 - count_terms(DEGREE) * noise[p] ** 2 / (rest**2).sum())
    return out


def _projector(functions: list[np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """Least squares of an image (m, m) on these functions."""
    q = np.linalg.qr(np.stack([f.ravel() for f in functions], axis=1))[0]
    return lambda image: (q @ (q.T @ image.ravel())).reshape(image.shape)


@dataclass(frozen=True)
class Moffat:
    """Elliptical Moffat profiles A (1 + r^2 / a^2)^-beta + pedestal of n stamps, all parameters (n,).

    r^2 = ((1 - e1) dx^2 - 2 e2 dx dy + (1 + e1) dy^2) / sqrt(1 - e1^2 - e2^2), px.
    """

    amplitude: np.ndarray
    scale: np.ndarray
    e1: np.ndarray
    e2: np.ndarray
    beta: np.ndarray
    pedestal: np.ndarray

    def render(self, m: int) -> np.ndarray:
        """Without the pedestal: float64 (n, m, m)."""
        parameters = np.stack([np.log(self.amplitude), np.log(self.scale), self.e1, self.e2, np.log(self.beta - 1)])
        return _moffat(parameters, m)[0].reshape(-1, m, m)

    @property
    def fwhm(self) -> np.ndarray:
        return 2 * self.scale * np.sqrt(2 ** (1 / self.beta) - 1)


def _moffat(p: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Profiles (n, m^2) and derivatives (n, 5, m^2) for log A, log a, e1, e2, log(beta - 1)."""
    o = np.arange(m) - m // 2
    dx, dy = (a.ravel().astype(float) for a in np.meshgrid(o, o))
    log_a, log_s, e1, e2, q = p[:, :, None]
    beta = 1 + np.exp(q)
    rest = 1 - e1**2 - e2**2
    shear = 1 / np.sqrt(rest)
    r2 = shear * ((1 - e1) * dx * dx - 2 * e2 * dx * dy + (1 + e1) * dy * dy)
    u = r2 * np.exp(-2 * log_s)
    log1 = np.log1p(u)
    value = np.exp(log_a - beta * log1)
    by_u = -beta * value / (1 + u) * np.exp(-2 * log_s)
    derivatives = [
        value,
        -2 * r2 * by_u,
        by_u * (shear * (dy * dy - dx * dx) + r2 * e1 / rest),
        by_u * (-2 * shear * dx * dy + r2 * e2 / rest),
        -value * log1 * (beta - 1),
    ]
    return value, np.stack(derivatives, axis=1)


def fit_moffat(stamps: np.ndarray, noise: float, fwhm: float, iterations: int = 25) -> Moffat:
    """Levenberg-Marquardt fit of a Moffat profile and a pedestal to each centred stamp.

    Parameters
    ----------
    stamps : float64 (n, m, m)
    noise : float
        Standard deviation of a pixel; `SHAPE_ERROR` of the profile is added.
    fwhm : float
        First guess, px.
    """
    n, m = stamps.shape[:2]
    data = stamps.reshape(n, -1)
    peak = np.maximum(data.max(axis=1), np.finfo(float).tiny)
    start = fwhm / (2 * np.sqrt(2 ** (1 / 3.0) - 1))
    p = np.stack([np.log(peak), np.full(n, np.log(start)), *np.zeros((2, n)), np.full(n, np.log(2.0))])
    near = data[:, radius(m).ravel() <= max(1.5, 0.5 * fwhm)]
    expected = _moffat(p, m)[0]
    limit = (SHAPE_ERROR * expected) ** 2 + noise**2 + (1e-5 * np.abs(near).max(axis=1)[:, None]) ** 2
    weight = 1 / limit
    pedestal = np.zeros(n)
    damping = np.full(n, 1e-2)

    def cost(p: np.ndarray, pedestal: np.ndarray) -> np.ndarray:
        return (weight * (data - _moffat(p, m)[0] - pedestal[:, None]) ** 2).sum(axis=1)

    best = cost(p, pedestal)
    for _ in range(iterations):
        value, d = _moffat(p, m)
        d = np.concatenate([d, np.ones((n, 1, m * m))], axis=1)
        wd = d * weight[:, None, :]
        a = np.matmul(wd, d.transpose(0, 2, 1))
        b = np.matmul(wd, (data - value - pedestal[:, None])[:, :, None])[:, :, 0]
        diagonal = np.einsum("nii->ni", a)
        a = a + np.eye(6) * (damping[:, None] * diagonal + 1e-12 * diagonal.max(axis=1, keepdims=True))[:, :, None]
        scale = 1 / np.sqrt(np.einsum("nii->ni", a))
        step = scale * np.linalg.solve(a * scale[:, :, None] * scale[:, None, :], (scale * b)[:, :, None])[:, :, 0]
        trial = p + np.clip(step[:, :5].T, -0.5, 0.5)
        trial[1] = np.clip(trial[1], np.log(0.3), np.log(8 * m))
        trial[2:4] = np.clip(trial[2:4], -0.6, 0.6)
        trial[4] = np.clip(trial[4], np.log(0.2), np.log(30.0))
        trial_pedestal = pedestal + step[:, 5]
        new = cost(trial, trial_pedestal)
        better = new <= best
        done = better & (best - new <= 1e-7 * best)
        p, pedestal = np.where(better, trial, p), np.where(better, trial_pedestal, pedestal)
        best = np.where(better, new, best)
        damping = np.clip(np.where(better, damping / 5, damping * 8), 1e-9, 1e6)
        if (done | (damping >= 1e6)).all():
            break
    return Moffat(np.exp(p[0]), np.exp(p[1]), p[2], p[3], 1 + np.exp(p[4]), pedestal)
