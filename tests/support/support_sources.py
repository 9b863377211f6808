# SPDX-License-Identifier: BSD-3-Clause
"""Gaussian sources on white noise of unit variance, with known places and fluxes."""

import numpy as np

from skydelta.io.exposure import Exposure
from skydelta.io.psf import PixelPsf

SIGMA = 1.6  # px


def gaussian(side, x, y, sigma=SIGMA):
    """Unit-sum Gaussian around (x, y) px from the middle of a stamp."""
    o = np.arange(side) - side // 2
    r2 = (o[None, :] - x) ** 2 + (o[:, None] - y) ** 2
    return np.exp(-r2 / (2 * sigma**2)) / (2 * np.pi * sigma**2)


def flux_of(snr, sigma=SIGMA):
    """Flux of a source with this S/N on unit noise."""
    return snr * np.sqrt(4 * np.pi) * sigma


def exposure(image, sigma=SIGMA, variance=1.0, **more):
    """An Exposure of float32 planes with the Gaussian PSF."""
    image = np.asarray(image, np.float32)
    psf = PixelPsf.constant(gaussian(31, 0, 0, sigma), image.shape)
    return Exposure(image, np.full_like(image, variance), psf=psf, **more)


def draw(image, x, y, flux, sigma=SIGMA, half=15):
    """Add sources in place."""
    for px, py, f in zip(np.atleast_1d(x), np.atleast_1d(y), np.atleast_1d(flux), strict=True):
        i, j = round(float(px)), round(float(py))
        y0, x0 = max(j - half, 0), max(i - half, 0)
        part = image[y0 : j + half + 1, x0 : i + half + 1]
        stamp = f * gaussian(2 * half + 1, px - i, py - j, sigma)
        oy, ox = y0 - (j - half), x0 - (i - half)
        part += stamp[oy : oy + part.shape[0], ox : ox + part.shape[1]]
    return image


def lattice(rng, shape, spacing=30):
    """x, y of sources a lattice step apart, jittered by 2 px."""
    gx, gy = np.meshgrid(np.arange(spacing, shape[1] - 20, spacing), np.arange(spacing, shape[0] - 20, spacing))
    return (gx.ravel() + rng.uniform(-2, 2, gx.size), gy.ravel() + rng.uniform(-2, 2, gx.size))


def nearest(table, x, y):
    """Row of the table nearest to each place, and its distance, px."""
    at = np.stack([table["x"].value, table["y"].value])
    distance = np.hypot(at[0][None] - np.asarray(x)[:, None], at[1][None] - np.asarray(y)[:, None])
    return distance.argmin(axis=1), distance.min(axis=1)


def fisher_error(at, flux):
    """Largest position error of the lobes, px, from the exact derivatives of the Gaussian model on unit noise."""
    o = np.arange(-12.0, 13.0)
    middle = np.rint(at.mean(axis=0))
    columns = [np.ones(o.size**2)]
    for (x, y), f in zip(at - middle, (flux[0], -flux[1]), strict=True):
        p = gaussian(25, x, y)
        dx, dy = (o[None, :] - x) / SIGMA**2, (o[:, None] - y) / SIGMA**2
        columns += [p.ravel(), (f * p * dx).ravel(), (f * p * dy).ravel()]
    a = np.array(columns)
    return np.sqrt(np.abs(np.diag(np.linalg.pinv(a @ a.T, rcond=1e-14, hermitian=True))))[[2, 3, 5, 6]].max()
