# SPDX-License-Identifier: BSD-3-Clause
"""Stage ``cosmic_rays``: pixels that a particle hit, named in the mask."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field
from scipy.ndimage import label

from skydelta.errors import AlgorithmError, ConfigError, InputError
from skydelta.io.exposure import Exposure
from skydelta.io.psf import fwhm as width_of
from skydelta.kernels.backend import to_host
from skydelta.stages.background import Background
from skydelta.stages.base import Context, Port, Stage, StageConfig
from skydelta.stages.robust import median
from skydelta.stages.stars import find_stars

SHARPEST = 1.5
"""FWHM, px, taken for the point sources of an image that shows none: whatever is less sharp is left alone."""

ALLOWANCE = 0.8
"""Light opposite neighbours must have, in that of the PSF: profiles differ, and pixels are not points."""

SURE = 2.5
"""Standard deviations by which they must fall short of it."""

PAIRS = ((0, 1), (1, 0), (1, 1), (1, -1))
"""Steps (y, x) to opposite neighbours."""

MANY = 0.02
"""Share of the pixels that particles hit in a long exposure at most; more is said."""


class CosmicRaysConfig(StageConfig):
    """What counts as a hit."""

    threshold: float = Field(
        5.0, gt=0, le=100, description="Signal-to-noise of the Laplacian from which on a pixel is a hit."
    )
    neighbours: float = Field(
        0.3, gt=0, le=1, description="Part of the threshold that is enough for a pixel next to a hit."
    )
    contrast: float = Field(
        5.0, gt=0, le=100, description="Least ratio of the Laplacian to the fine structure of the image."
    )
    fwhm: float | None = Field(
        None, ge=1, le=30, description="Of point sources, px; none: of the image's PSF, else measured on its stars."
    )
    iterations: int = Field(4, ge=1, le=10, description="Rounds at most, each with the hits of the last one taken out.")


class CosmicRays(Stage[CosmicRaysConfig]):
    """Set the mask bit CR where cosmic rays hit; no pixel value changes.

    L.A.Cosmic (van Dokkum 2001, PASP 113, 1420) by astroscrappy, with the variance plane as the noise. What it finds
    stays only if a pixel of it is sharper than a point source can be: for some pair of opposite neighbours, their mean
    is below that of the PSF at its centre, for which no sub-pixel position of a star is lower. So stars stay, however
    bright and narrow they are. Computed on the host.

    Raises
    ------
    ConfigError
        astroscrappy is not installed.
    InputError
        The image has no variance.
    """

    name = "cosmic_rays"
    version = 1
    inputs = {"image": Port(Exposure, "one exposure, not resampled, with its variance")}
    outputs = {"image": Port(Exposure, "the same with mask bit CR", replaces="image")}

    def halo(self) -> int:
        return 5 * self.config.iterations

    def memory(self, shape: tuple[int, int], kind: str) -> int:
        return shape[0] * shape[1] * 16

    def run(self, ctx: Context, *, image: Exposure) -> dict[str, Any]:  # type: ignore[override]
        if image.variance is None:
            raise InputError("cosmic_rays: the image has no variance")
        good, variance = to_host(image.good()), to_host(image.variance)
        light = np.where(good, to_host(self._without_sky(ctx, image).image), np.float32(0))
        width = self.config.fwhm or self._width(ctx, image)
        typical = np.float32(median(variance[good])) if good.any() else np.float32(1)
        hits = self._candidates(light, np.where(good, variance, typical), ~good)
        hits, stars = _sharp(light, variance, good, hits, width)
        planes = image.planes.union(["CR"])
        mask = image.backend.asarray(np.where(hits, np.int32(planes.bit("CR")), np.int32(0)))
        mask = mask if image.mask is None else image.mask | mask
        share = float(hits.mean())
        ctx.metric("cosmic_rays", int(label(hits, np.ones((3, 3)))[1]))
        ctx.metric("cosmic_ray_fraction", share)
        ctx.metric("cosmic_ray_fwhm_px", float(width))
        ctx.metric("cosmic_rays_left_as_stars", stars)
        if share > MANY:
            ctx.flag("many_cosmic_rays", f"{share:.1%} of the pixels count as hit by cosmic rays; look at the mask")
        return {"image": image.with_(mask=mask, planes=planes)}

    def _without_sky(self, ctx: Context, image: Exposure) -> Exposure:
        try:
            return Background(model="mesh").execute(Context(ctx.backend), {"image": image})["image"]
        except AlgorithmError:  # too little is usable: what is there is taken as it is
            return image

    def _width(self, ctx: Context, image: Exposure) -> float:
        """FWHM of point sources, px."""
        if image.psf is not None:
            return width_of(to_host(image.psf.at((image.shape[1] - 1) / 2, (image.shape[0] - 1) / 2)))
        stars = find_stars(self._without_sky(ctx, image))
        use = stars.isolated & stars.compact & ~stars.saturated
        if use.sum() >= 3:
            return float(median(stars.fwhm[use]))
        ctx.flag("no_stars", f"no stars to measure their width from: FWHM {SHARPEST:g} px is taken")
        return SHARPEST

    def _candidates(self, light: np.ndarray, variance: np.ndarray, bad: np.ndarray) -> np.ndarray:
        """Pixels that L.A.Cosmic finds: bool (H, W)."""
        try:
            from astroscrappy import detect_cosmics
        except ImportError:
            raise ConfigError("cosmic_rays: the package astroscrappy is missing; install skydelta[cosmics]") from None
        settings = self.config
        found, _ = detect_cosmics(
            np.ascontiguousarray(light, np.float32),
            inmask=bad,
            inbkg=np.zeros_like(light, np.float32),
            invar=np.ascontiguousarray(variance, np.float32),
            sigclip=settings.threshold,
            sigfrac=settings.neighbours,
            objlim=settings.contrast,
            gain=1.0,
            satlevel=np.inf,
            niter=settings.iterations,
        )
        return np.asarray(found, bool) & ~bad


def _sharp(
    light: np.ndarray, variance: np.ndarray, good: np.ndarray, hits: np.ndarray, width: float
) -> tuple[np.ndarray, int]:
    """The groups of hits with a pixel sharper than a point source of that FWHM, and the number of the others.

    Parameters
    ----------
    light, variance : float32 (H, W)
    good, hits : bool (H, W)
    width : float
        px.
    """
    groups, count = label(hits, np.ones((3, 3)))
    y, x = np.nonzero(hits)
    group = groups[y, x]
    sharp = np.zeros(len(y), bool)
    h, w = light.shape
    for dy, dx in PAIRS:
        inside = (y >= abs(dy)) & (y < h - abs(dy)) & (x >= abs(dx)) & (x < w - abs(dx))
        r, c = y[inside], x[inside]
        a, b = (r + dy, c + dx), (r - dy, c - dx)
        fall = ALLOWANCE * float(np.exp(-4 * np.log(2) * (dy**2 + dx**2) / width**2))
        lack = fall * light[r, c] - (light[a] + light[b]) / 2
        noise = fall**2 * variance[r, c] + (variance[a] + variance[b]) / 4
        with np.errstate(invalid="ignore"):
            sharp[inside] |= good[a] & good[b] & (lack > SURE * np.sqrt(noise))
    kept = np.zeros(count + 1, bool)
    kept[group[sharp]] = True
    return kept[groups], int(count - kept[1:].sum())
