# SPDX-License-Identifier: BSD-3-Clause
"""Visits of one field of Gaussian stars: turned, moved, of any seeing, transparency and sky."""

from dataclasses import dataclass

import numpy as np
from support_align import plane

from skydelta.io.exposure import Exposure

SHAPE = (300, 320)
GAIN = 2.0
FWHM = 3.5
BOX = np.arange(-13, 14)


@dataclass(frozen=True)
class Field:
    """Stars at ICRS positions (2, n) with total fluxes."""

    sky: np.ndarray
    flux: np.ndarray

    def draw(self, wcs, shape=SHAPE, fwhm=FWHM):
        """float64 image of Gaussian stars at the pixel centres."""
        image, sigma = np.zeros(shape), fwhm / 2.3548
        x, y = wcs.all_world2pix(*self.sky, 0)
        r = int(5 * sigma) + 2
        for px, py, f in zip(x, y, self.flux, strict=True):
            x0, x1 = max(int(px) - r, 0), min(int(px) + r + 1, shape[1])
            y0, y1 = max(int(py) - r, 0), min(int(py) + r + 1, shape[0])
            if x0 < x1 and y0 < y1:
                gx, gy = np.arange(x0, x1) - px, np.arange(y0, y1) - py
                spot = np.exp(-0.5 * (gx[None, :] ** 2 + gy[:, None] ** 2) / sigma**2)
                image[y0:y1, x0:x1] += f / (2 * np.pi * sigma**2) * spot
        return image

    def boxes(self, image, wcs):
        """Sums around the stars, NaN where a box leaves the image."""
        x, y = (np.rint(a).astype(int) for a in wcs.all_world2pix(*self.sky, 0))
        half = len(BOX) // 2
        ok = (x >= half) & (x < image.shape[1] - half) & (y >= half) & (y < image.shape[0] - half)
        out = np.full(len(x), np.nan)
        rows, columns = y[ok][:, None, None] + BOX[:, None], x[ok][:, None, None] + BOX
        out[ok] = image[rows, columns].sum(axis=(1, 2), dtype=float)
        return out


def grid_field(rng, shape=SHAPE, spacing=34, fluxes=(4.0, 5.7)):
    """A star in every cell of a grid, each alone in its box; fluxes between powers of ten."""
    gx, gy = np.meshgrid(np.arange(20.0, shape[1] - 15, spacing), np.arange(20.0, shape[0] - 15, spacing))
    at = np.stack([gx.ravel(), gy.ravel()]) + rng.uniform(-2, 2, (2, gx.size))
    return Field(np.stack(plane(shape).all_pix2world(*at, 0)), 10 ** rng.uniform(*fluxes, gx.size))


def visit(field, rng, k=0, *, shape=SHAPE, scale=1.0, sky=100.0, slope=(0.0, 0.0), fwhm=FWHM, noise=True, moved=True):
    """Visit k; the first is on the plane of the field, the others turned up to 2 degrees and moved up to 8 px."""
    turn, shift = (rng.uniform(-2, 2), rng.uniform(-8, 8, 2)) if moved and k else (0.0, (0.0, 0.0))
    wcs = plane(shape, turn=turn, shift=shift)
    y, x = np.indices(shape)
    image = scale * field.draw(wcs, shape, fwhm) + sky + slope[0] * x + slope[1] * y
    variance = 25 + np.maximum(image, 0) / GAIN
    if noise:
        image = image + rng.normal(size=shape) * np.sqrt(variance)
    mask = np.zeros(shape, np.int32)
    return Exposure(image.astype(np.float32), variance.astype(np.float32), mask, wcs=wcs, id=f"v{k}.fits")
