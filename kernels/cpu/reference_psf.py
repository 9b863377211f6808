# SPDX-License-Identifier: BSD-3-Clause
"""Plain NumPy and SciPy references of the PSF kernels: all stars at once, whole stamps."""

from __future__ import annotations

import numpy as np
from scipy import fft
from scipy.ndimage import gaussian_filter

from skydelta.kernels.cutouts import cutouts
from skydelta.kernels.psf import (
    MARGIN,
    MODEL_ERROR,
    NO_WIDTH,
    OWN,
    PIXEL_CLIP,
    SCALE_BOUND,
    SHAPE_BOUND,
    SHAPE_ERROR,
    Row,
)

STAMP = (1, 2)
SIGMA_TO_FWHM = np.sqrt(8 * np.log(2))


def _radius(m: int) -> np.ndarray:
    """Distance (px) from the middle pixel: float64 (m, m)."""
    o = np.arange(m) - m // 2
    return np.hypot(o, o[:, None])


def _places(phi: np.ndarray, coefficients: np.ndarray, slope: float) -> np.ndarray:
    """ln a, e1, e2 and ln(beta - 1) at places: float64 (4, n), kept in bounds."""
    log_a, e1, e2 = coefficients @ phi.T
    middle = coefficients[0, 0]
    log_a = np.clip(log_a, middle - SCALE_BOUND, middle + SCALE_BOUND)
    e1, e2 = (np.clip(e, -SHAPE_BOUND, SHAPE_BOUND) for e in (e1, e2))
    return np.stack([log_a, e1, e2, np.full(len(phi), slope)])


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


def star_stamps(
    image: np.ndarray,
    variance: np.ndarray | None,
    mask: np.ndarray | None,
    invalid: int,
    x: np.ndarray,
    y: np.ndarray,
    half: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    i, j, wide = np.rint(x).astype(int), np.rint(y).astype(int), half + MARGIN
    good = np.isfinite(image)
    if mask is not None:
        good &= (mask & invalid) == 0
    if variance is not None:
        good &= np.isfinite(variance) & (variance > 0)
    usable = cutouts(good, i, j, wide)
    stamps = np.where(usable, cutouts(image, i, j, wide), 0).astype(float)
    filled = np.where(usable, stamps, stamps[:, ::-1, ::-1])
    m = 2 * wide + 1
    fade = np.sin(np.pi / 2 * (np.arange(MARGIN) + 0.5) / MARGIN) ** 2
    window = np.concatenate([fade, np.ones(m - 2 * MARGIN), fade[::-1]])
    f = fft.rfft2(filled * window * window[:, None])
    ky, kx = fft.fftfreq(m), fft.rfftfreq(m)
    f *= np.exp(2j * np.pi * kx * (x - i)[:, None])[:, None, :] * np.exp(2j * np.pi * ky * (y - j)[:, None])[:, :, None]
    inner = np.s_[:, MARGIN:-MARGIN, MARGIN:-MARGIN]
    usable, typical = usable[inner], np.zeros(len(x))
    own = np.zeros(usable.shape) if variance is None else cutouts(variance, i, j, half).astype(float)
    for s, (v, u) in enumerate(zip(own, usable, strict=True)):
        if u.any() and variance is not None:
            typical[s] = np.sort(v[u])[(u.sum() - 1) // 2]
    return fft.irfft2(f, (m, m))[inner], np.where(usable, own, typical[:, None, None]), usable, typical


def profile_sums(
    values: np.ndarray,
    kept: np.ndarray,
    flux: np.ndarray,
    sky: np.ndarray,
    noise: np.ndarray,
    used: np.ndarray,
    phi: np.ndarray,
    coefficients: np.ndarray,
    slope: float,
    reach: float,
) -> np.ndarray:
    half = values.shape[1] // 2
    y, x = np.nonzero(_radius(values.shape[1]) <= reach)
    parameters = _places(phi[used], coefficients, slope)
    value, derivatives = _moffat(parameters, x - half, y - half)
    # a Moffat profile of peak 1 has the flux pi a^2 / (beta - 1)
    amplitude = (flux[used] * np.exp(parameters[3] - 2 * parameters[0]) / np.pi)[:, None]
    w = kept[:, y, x][used] / (noise[used][:, None] ** 2 + (SHAPE_ERROR * amplitude * value) ** 2)
    columns = np.concatenate([value[:, None], amplitude[:, :, None] * derivatives], axis=1)
    weighted = columns * w[:, None]
    rest = (values[:, y, x] - sky[:, None])[used] - amplitude * value
    a = np.matmul(weighted, columns.transpose(0, 2, 1))
    b = np.matmul(weighted, rest[:, :, None])[:, :, 0]
    with np.errstate(invalid="ignore"):
        a, b = (
            a[:, 1:, 1:] - a[:, 1:, :1] * a[:, :1, 1:] / a[:, :1, :1],
            b[:, 1:] - a[:, 1:, 0] * b[:, :1] / a[:, 0, :1],
        )
    out = np.zeros((len(values), 20))
    out[used] = np.nan_to_num(np.concatenate([a.reshape(-1, 16), b], axis=1))
    return out


def profile_stamps(phi: np.ndarray, coefficients: np.ndarray, slope: float, side: int) -> np.ndarray:
    o = np.arange(side) - side // 2
    dx, dy = (a.ravel() for a in np.meshgrid(o, o))
    value, _ = _moffat(_places(phi, coefficients, slope), dx, dy)
    return (value / value.sum(axis=1, keepdims=True)).reshape(-1, side, side)


def pixel_departure(
    values: np.ndarray,
    kept: np.ndarray,
    profiles: np.ndarray,
    flux: np.ndarray,
    sky: np.ndarray,
    noise: np.ndarray,
    used: np.ndarray,
    phi: np.ndarray,
) -> np.ndarray:
    n = len(values)
    star = used / ((noise / flux) ** 2 + (MODEL_ERROR * profiles.max(axis=STAMP)) ** 2)
    departing = (values - sky[:, None, None]) / flux[:, None, None] - profiles
    w = (kept * star[:, None, None]).reshape(n, -1)
    information = (phi * star[:, None]).T @ phi
    a = np.einsum("sx,sp,sq->xpq", w, phi, phi, optimize=True) + 1e-6 * information
    b = np.einsum("sx,sx,sp->xp", w, departing.reshape(n, -1), phi, optimize=True)
    return np.hstack([np.linalg.solve(a, b[:, :, None])[:, :, 0].T, information])


def compare_stars(
    values: np.ndarray,
    variance: np.ndarray,
    usable: np.ndarray,
    kept: np.ndarray,
    profiles: np.ndarray,
    phi: np.ndarray,
    departure: np.ndarray,
    blurred: np.ndarray,
    fwhm: float,
) -> tuple[np.ndarray, np.ndarray]:
    r = _radius(values.shape[1])
    model = profiles + np.tensordot(phi, departure, axes=(1, 0))
    model /= model.sum(axis=STAMP, keepdims=True)
    flux, sky = _fluxes(values, kept.astype(float), model)
    signal = flux[:, None, None] * model
    deviation = values - sky[:, None, None] - signal
    clipped = deviation**2 >= PIXEL_CLIP**2 * (variance + (0.1 * signal) ** 2)

    def smooth(planes: np.ndarray) -> np.ndarray:
        sigma = fwhm / SIGMA_TO_FWHM
        return gaussian_filter(planes, (0, sigma, sigma), mode="constant", truncate=3.0)

    snr = np.abs(smooth(np.where(usable, deviation, 0))) / np.sqrt(blurred + (MODEL_ERROR * smooth(signal)) ** 2)
    broader, error = _broadening(deviation, (usable & (r <= 1.5 * fwhm)) / variance, model, flux)
    inside = usable & (r <= fwhm)
    count = np.maximum(inside.sum(axis=STAMP), 1)
    free = np.maximum(count - OWN, 1)
    chi2, square, expected = (
        np.where(inside, a, 0).sum(axis=STAMP) for a in (deviation**2 / variance, deviation**2, variance)
    )
    rows = np.empty((len(Row), len(values)))
    rows[Row.FLUX], rows[Row.SKY] = flux, sky
    rows[Row.RESIDUAL] = np.where(r <= 2 * fwhm, snr, 0).max(axis=STAMP)
    rows[Row.BROADER], rows[Row.ERROR] = broader, error
    rows[Row.CHI2] = chi2 / free
    rows[Row.PEAK] = flux * model.max(axis=STAMP)
    with np.errstate(divide="ignore", invalid="ignore"):
        rows[Row.EXCESS] = (square / free - expected / count) / rows[Row.PEAK] ** 2
    return rows, usable & (~clipped | (r <= 0.5 * fwhm))


def _fluxes(values: np.ndarray, weight: np.ndarray, model: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Flux and sky level of each star against its model, by linear least squares."""
    s1, sp, spp = weight.sum(axis=STAMP), (weight * model).sum(axis=STAMP), (weight * model**2).sum(axis=STAMP)
    sv, spv = (weight * values).sum(axis=STAMP), (weight * model * values).sum(axis=STAMP)
    determinant = np.maximum(s1 * spp - sp * sp, 1e-30)
    return (s1 * spv - sp * sv) / determinant, (spp * sv - sp * spv) / determinant


def _broadening(
    deviation: np.ndarray, weight: np.ndarray, model: np.ndarray, flux: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """How much wider each star is than its model, d ln(FWHM), and its error."""
    tiny = np.finfo(float).tiny
    o = np.arange(model.shape[1]) - model.shape[1] // 2
    mode = -(2 * model + o * np.gradient(model, axis=2) + o[:, None] * np.gradient(model, axis=1))
    power = np.maximum((weight * model**2).sum(axis=STAMP), tiny)
    mode -= model * ((weight * mode * model).sum(axis=STAMP) / power)[:, None, None]
    information = np.maximum((weight * mode**2).sum(axis=STAMP), tiny)
    safe = np.where(flux == 0, 1, flux)
    broader = np.where(flux == 0, 0, (weight * deviation * mode).sum(axis=STAMP) / (information * safe))
    error = np.where(flux == 0, NO_WIDTH, np.minimum(1 / (np.sqrt(information) * np.abs(safe)), NO_WIDTH))
    return broader, error
