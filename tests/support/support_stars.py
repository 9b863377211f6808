# SPDX-License-Identifier: BSD-3-Clause
"""Small star fields with known truth: analytic profiles drawn one by one, photon and read noise."""

from __future__ import annotations

import numpy as np

from skydelta.io.exposure import Exposure
from skydelta.io.planes import MaskPlanes

GAIN, READ_NOISE = 1.5, 6.0


def profile(half, fwhm, dx=0.0, dy=0.0, beta=3.5, e1=0.0, e2=0.0):
    """Profile of unit flux, centre at (dx, dy) from the middle of a stamp of 2 half + 1 px.

    Elliptical Moffat, 3 x 3 points a pixel; ``beta`` None is a circular Gaussian sampled at pixel centres.
    """
    o = np.arange(-half, half + 1.0)
    if beta is None:
        s2 = (fwhm / np.sqrt(8 * np.log(2))) ** 2
        return np.exp(-((o - dx) ** 2 + (o[:, None] - dy) ** 2) / (2 * s2)) / (2 * np.pi * s2)
    a2 = (fwhm / 2) ** 2 / (2 ** (1 / beta) - 1)
    shear = 1 / np.sqrt(1 - e1 * e1 - e2 * e2)
    out = np.zeros((len(o), len(o)))
    for sy in (-1 / 3, 0, 1 / 3):
        for sx in (-1 / 3, 0, 1 / 3):
            x, y = o + sx - dx, o[:, None] + sy - dy
            r2 = shear * ((1 - e1) * x * x - 2 * e2 * x * y + (1 + e1) * y * y)
            out += (1 + r2 / a2) ** -beta
    return out * (beta - 1) / (np.pi * a2) / 9


def draw(image, x, y, flux, fwhm, **shape):
    """Add stars to ``image`` in place; parameters are numbers or one value a star."""
    x, y, flux, fwhm = np.broadcast_arrays(*(np.asarray(a, float) for a in (x, y, flux, fwhm)))
    shape = {k: np.broadcast_to(v, x.shape) if v is not None else [None] * x.size for k, v in shape.items()}
    h, w = image.shape
    for k in range(x.size):
        ix, iy = round(float(x[k])), round(float(y[k]))
        half = int(np.ceil(6 * fwhm[k]))
        stamp = flux[k] * profile(half, fwhm[k], x[k] - ix, y[k] - iy, **{n: v[k] for n, v in shape.items()})
        y0, y1, x0, x1 = max(iy - half, 0), min(iy + half + 1, h), max(ix - half, 0), min(ix + half + 1, w)
        image[y0:y1, x0:x1] += stamp[y0 - iy + half : y1 - iy + half, x0 - ix + half : x1 - ix + half]


def spread_positions(rng, shape, number, margin):
    """Positions at random fractions of a pixel, one in each cell of a regular grid, none near another."""
    columns = int(np.ceil(np.sqrt(number * shape[1] / shape[0])))
    rows = -(-number // columns)
    step_y, step_x = (shape[0] - 2 * margin) / rows, (shape[1] - 2 * margin) / columns
    j, i = np.divmod(rng.permutation(rows * columns)[:number], columns)
    jitter = rng.uniform(0.3, 0.7, (2, number))
    return margin + (i + jitter[0]) * step_x, margin + (j + jitter[1]) * step_y


def observe(rng, model, sky=400.0):
    """A sky-subtracted exposure of a noise-free model (ADU) on a sky, with its variance and an empty mask."""
    electrons = np.clip(model + sky, 0, None) * GAIN
    counts = rng.poisson(electrons) + rng.normal(0, READ_NOISE, model.shape)
    return Exposure(
        (counts / GAIN - sky).astype(np.float32),
        ((electrons + READ_NOISE**2) / GAIN**2).astype(np.float32),
        np.zeros(model.shape, np.int32),
        MaskPlanes(),
    )


def nearest(stars, x, y):
    """Distance (px) and index of the star found nearest to each true position."""
    if not len(stars):
        return np.full(len(x), np.inf), np.zeros(len(x), int)
    d = np.hypot(stars.x - np.asarray(x)[:, None], stars.y - np.asarray(y)[:, None])
    return d.min(axis=1), d.argmin(axis=1)
