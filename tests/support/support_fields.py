# SPDX-License-Identifier: BSD-3-Clause
"""Fields of Gaussian point sources of known signal-to-noise in white noise."""

import numpy as np
from scipy.spatial import cKDTree

from skydelta.io.exposure import Exposure
from skydelta.io.psf import PixelPsf

FWHM = 2 * np.sqrt(2 * np.log(2))


def gaussian(half, sigma, x=0.0, y=0.0):
    """Gaussian sampled at pixel centres, unit sum in the plane, (x, y) px from the middle."""
    o = np.arange(-half, half + 1.0)
    return np.exp(-((o[None, :] - x) ** 2 + (o[:, None] - y) ** 2) / (2 * sigma**2)) / (2 * np.pi * sigma**2)


def add(plane, x, y, flux, sigma):
    """Add point sources to a plane; parts beyond its edge are cut off."""
    half = int(7 * sigma) + 2
    padded = np.pad(plane, half)
    for a, b, f in zip(x, y, flux, strict=True):
        i, j = round(a), round(b)
        padded[j : j + 2 * half + 1, i : i + 2 * half + 1] += f * gaussian(half, sigma, a - i, b - j)
    plane[:] = padded[half:-half, half:-half]


def flux_of(snr, sigma, variance=1.0):
    """Flux of a source of this optimal signal-to-noise in white noise."""
    return snr * np.sqrt(4 * np.pi * variance) * sigma


def exposure(rng, model, sigma, variance=1.0, mask=None):
    """Model plus noise of this variance (scalar or plane), with its true PSF."""
    plane = np.broadcast_to(np.asarray(variance, float), model.shape)
    image = model + rng.normal(0, 1, model.shape) * np.sqrt(plane)
    psf = PixelPsf.constant(gaussian(int(6 * sigma) + 1, sigma), model.shape)
    return Exposure(image.astype(np.float32), plane.astype(np.float32), mask, psf=psf)


def on_grid(rng, shape, step, jitter=0.5):
    """Positions on a grid of this step, each moved by up to ``jitter`` px: x, y."""
    y, x = np.mgrid[step // 2 : shape[0] - step // 2 + 1 : step, step // 2 : shape[1] - step // 2 + 1 : step]
    return (a.ravel() + rng.uniform(-jitter, jitter, a.size) for a in (x, y))


def positions(catalog, lobes=False):
    """Positions (n, 2) of a catalogue, px; with the lobes of dipoles too."""
    names = [("x", "y"), *([("x_pos", "y_pos"), ("x_neg", "y_neg")] if lobes else [])]
    at = np.concatenate([np.c_[catalog[a].value, catalog[b].value] for a, b in names])
    return at[np.isfinite(at).all(axis=1)]


def distances(at, x, y):
    """Distance of the nearest of ``at`` to each (x, y), px, and its index."""
    return cKDTree(at).query(np.c_[x, y])
