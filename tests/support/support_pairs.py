# SPDX-License-Identifier: BSD-3-Clause
"""Small analytic pairs: Gaussian stars of known widths, white noise, and their exposures."""

from dataclasses import dataclass

import numpy as np
from scipy.ndimage import gaussian_filter

from skydelta.io.exposure import Exposure
from skydelta.io.psf import PixelPsf
from skydelta.kernels.backend import CPU
from skydelta.stages.background import Background
from skydelta.stages.base import Context
from skydelta.stages.difference import Difference
from skydelta.stages.match import Match
from skydelta.stages.psf import MeasurePsf


def gaussian(width, half=20):
    g = np.arange(-half, half + 1.0)
    p = np.exp(-(g[:, None] ** 2 + g[None, :] ** 2) / (2 * width**2))
    return p / p.sum()


def stars_image(shape, x, y, flux, width):
    """Gaussian stars of total `flux` sampled at pixel centres: float64."""
    out = np.zeros(shape)
    r = int(6 * width) + 2
    for a, b, f in zip(x, y, flux, strict=True):
        y0, y1, x0, x1 = int(b) - r, int(b) + r + 1, int(a) - r, int(a) + r + 1
        if y1 <= 0 or x1 <= 0 or y0 >= shape[0] or x0 >= shape[1]:
            continue
        j, i = np.mgrid[max(y0, 0) : min(y1, shape[0]), max(x0, 0) : min(x1, shape[1])]
        out[j, i] += f / (2 * np.pi * width**2) * np.exp(-((i - a) ** 2 + (j - b) ** 2) / (2 * width**2))
    return out


@dataclass
class Pair:
    """Two exposures without sky, with true PSFs, and what is in them."""

    science: Exposure
    reference: Exposure
    x: np.ndarray
    y: np.ndarray
    flux: np.ndarray


def pair(
    seed=1, shape=(256, 256), stars=60, widths=(1.7, 1.25), ratio=0.8, sky=(400.0, 100.0), low=800.0, high=5e4,
    transients=(), offset=(0.0, 0.0), scale=1.0, correlate=0.0, psf=True,
    margin=8,
):  # fmt: skip
    """A pair; noise is Gaussian of variance sky + light (gain 1); `correlate` smooths the reference's noise, px."""
    rng = np.random.default_rng(seed)
    x, y = (rng.uniform(margin, n - 1 - margin, stars) for n in shape[::-1])
    flux = low * (high / low) ** rng.uniform(0, 1, stars)
    light = [
        stars_image(shape, x, y, flux * ratio, widths[0]),
        stars_image(shape, x + offset[0], y + offset[1], flux, widths[1]),
    ]
    for a, b, f in transients:
        light[0] += stars_image(shape, [a], [b], [f], widths[0])
    out = []
    for k, (image, level, width) in enumerate(zip(light, sky, widths, strict=True)):
        variance = level + image
        noise = rng.normal(0, 1, shape)
        if correlate and k == 1:
            noise = gaussian_filter(noise, correlate, mode="wrap")
            noise /= noise.std()
        data = (image + noise * np.sqrt(variance)) * scale
        out.append(
            Exposure(
                data.astype(np.float32),
                (variance * scale**2).astype(np.float32),
                np.zeros(shape, np.int32),
                psf=PixelPsf.constant(gaussian(width), shape) if psf else None,
            )
        )
    return Pair(*out, x, y, flux)


def context():
    return Context(CPU, id="test")


def subtract(p, ctx=None, **match):
    """Match and subtract a pair: kernel and the outputs of `difference`."""
    ctx = ctx or context()
    kernel = Match(**match).execute(ctx, {"science": p.science, "reference": p.reference})["kernel"]
    made = Difference().execute(ctx, {"science": p.science, "reference": p.reference, "kernel": kernel})
    return kernel, made


def scene_exposures(scene):
    """The two exposures of a simulated scene as `load` would give them."""
    out = []
    for frame in (scene.science, scene.reference):
        mask = np.where(np.asarray(frame.mask) != 0, 1, 0).astype(np.int32)
        out.append(Exposure(frame.image.astype(np.float32), frame.variance.astype(np.float32), mask))
    return out


def whole_chain(science, reference, ctx=None):
    """Background, PSF, match and difference of two exposures on one grid."""
    ctx = ctx or context()
    prepared = []
    for exposure in (science, reference):
        flat = Background().execute(ctx, {"image": exposure})["image"]
        prepared.append(MeasurePsf().execute(ctx, {"image": flat})["image"])
    kernel = Match().execute(ctx, {"science": prepared[0], "reference": prepared[1]})["kernel"]
    return kernel, Difference().execute(ctx, {"science": prepared[0], "reference": prepared[1], "kernel": kernel})
