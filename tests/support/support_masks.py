# SPDX-License-Identifier: BSD-3-Clause
"""Exposures with known stars, hits of particles and trails."""

import numpy as np
from scipy.special import ndtr

from skydelta.io.exposure import Exposure

SKY, READ_NOISE = 200.0, 5.0
NOISE = float(np.sqrt(SKY + READ_NOISE**2))
"""Of a pixel of the sky."""


def stars(rng, shape, fwhm, count, fluxes=(2.5, 5.8), beta=None):
    """Gaussian stars integrated over pixels, or sub-sampled Moffat ones; fluxes between powers of ten: image, x, y."""
    image, reach, s = np.zeros(shape), int(6 * fwhm) + 4, fwhm / 2.3548
    x, y = (rng.uniform(20, n - 20, count) for n in shape[::-1])
    for px, py, flux in zip(x, y, 10 ** rng.uniform(*fluxes, count), strict=True):
        gx = np.arange(max(int(px) - reach, 0), min(int(px) + reach + 1, shape[1]))
        gy = np.arange(max(int(py) - reach, 0), min(int(py) + reach + 1, shape[0]))
        if beta is None:
            across, up = (ndtr((g + 0.5 - p) / s) - ndtr((g - 0.5 - p) / s) for g, p in ((gx, px), (gy, py)))
            spot = up[:, None] * across
        else:
            a, spot = fwhm / 2 / np.sqrt(2 ** (1 / beta) - 1), 0.0
            for d in (np.stack(np.meshgrid((-0.33, 0, 0.33), (-0.33, 0, 0.33))).reshape(2, -1)).T:
                spot = spot + (1 + ((gx + d[0] - px) ** 2 + (gy[:, None] + d[1] - py) ** 2) / a**2) ** -beta / 9
            spot = spot * (beta - 1) / np.pi / a**2
        image[gy[0] : gy[-1] + 1, gx[0] : gx[-1] + 1] += flux * spot
    return image, x, y


def hits(rng, shape, count, charge=(200.0, 20000.0)):
    """Tracks of particles of random length and direction, one pixel wide."""
    out = np.zeros(shape)
    for _ in range(count):
        x, y, length, angle = rng.uniform(5, shape[1] - 5), rng.uniform(5, shape[0] - 5), rng.exponential(6), 0.0
        angle, total = rng.uniform(0, 2 * np.pi), 10 ** rng.uniform(*np.log10(charge))
        at = np.linspace(0, length, max(int(5 * length), 1))
        px, py = np.rint(x + np.cos(angle) * at).astype(int), np.rint(y + np.sin(angle) * at).astype(int)
        ok = (px >= 0) & (px < shape[1]) & (py >= 0) & (py < shape[0])
        np.add.at(out, (py[ok], px[ok]), total / len(at))
    return out


def trail(shape, start, end, peak, fwhm):
    """A Gaussian trail between two points (x, y) that may lie outside."""
    y, x = np.indices(shape)
    length = np.hypot(end[0] - start[0], end[1] - start[1])
    tx, ty = (end[0] - start[0]) / length, (end[1] - start[1]) / length
    u, v, s = (x - start[0]) * tx + (y - start[1]) * ty, (y - start[1]) * tx - (x - start[0]) * ty, fwhm / 2.3548
    return peak * np.exp(-0.5 * (v / s) ** 2) * ndtr(u / s) * ndtr((length - u) / s)


def exposed(rng, light, charge=0.0, saturation=np.inf):
    """An exposure of light, with noise and sky, and of charge that no shutter keeps out."""
    variance = light + SKY + READ_NOISE**2
    image = light + SKY + rng.normal(size=light.shape) * np.sqrt(variance) + charge
    empty = Exposure(np.zeros((1, 1)))
    mask = np.where(image > saturation, empty.planes.bit("SAT"), 0).astype(np.int32)
    image = np.minimum(image, saturation).astype(np.float32)
    return Exposure(image, (variance + charge).astype(np.float32), mask)


def marked(exposure, name):
    return (exposure.mask & exposure.planes.bit(name)) != 0
