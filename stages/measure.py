# SPDX-License-Identifier: BSD-3-Clause
"""What is measured of sources in an image: shapes, windows, apertures, Kron fluxes, and how much of them is masked.

Planes stay where they are: windows around the sources come to the host, where their tables are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from skydelta.io.exposure import Exposure
from skydelta.kernels.backend import Array, to_host
from skydelta.kernels.cutouts import Windows
from skydelta.kernels.photometry import aperture_sums, kron_radii
from skydelta.kernels.stars import star_shapes

HALVES = (12, 24, 48, 96, 160)
"""Half-sizes of windows, px; each source takes the smallest that holds it, and what is beyond the largest is cut."""

PIXELS = 4_000_000
"""Of a stack of windows at most: bounds the memory; no result depends on it."""

KRON = (6.0, 2.5, 3.5)
"""Extent of the Kron radius in semi-axes, Kron radii of its aperture, least extent of that (SExtractor's)."""

LEAST_WINDOW = 2.4
"""Least FWHM of the Gaussian window, px: under a narrower one sampling pulls the centroids."""

THIN = 1 / 12
"""Variance of a pixel, px^2: added to the moments of sources thinner than that."""


@dataclass(frozen=True)
class Measurer:
    """The planes of an image, as seen by sources.

    Attributes
    ----------
    image : Exposure
        With variance.
    good : bool (H, W)
    segments : int32 (H, W) or None
        Number of the source, from 1, whose pixel it is; 0 of none. Pixels of others do not count.
    """

    image: Exposure
    good: Array
    segments: Array | None = None

    def _stacks(
        self, x: np.ndarray, y: np.ndarray, reach: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]]:
        """Rows, and the pixels, variances and usable pixels around them (n, s, s), by the half-size they need."""
        known = np.isfinite(x + y + reach)
        need = np.where(known, np.ceil(np.where(known, reach, 0)) + 1, 0)
        kind = np.minimum(np.searchsorted(HALVES, need), len(HALVES) - 1)
        backend = self.image.backend
        for k, half in enumerate(HALVES):
            rows = np.flatnonzero(known & (kind == k))
            step = max(PIXELS // (2 * half + 1) ** 2, 1)
            for part in np.split(rows, range(step, len(rows), step)) if len(rows) else []:
                windows = Windows(self.image.shape, np.rint(x[part]), np.rint(y[part]), half, backend)
                use = to_host(windows.cut(self.good.view(np.uint8))) > 0
                if self.segments is not None:
                    segment = to_host(windows.cut(self.segments))
                    use &= (segment == 0) | (segment == part[:, None, None] + 1)
                data, variance = (to_host(windows.cut(p)) for p in (self.image.image, self.image.variance))
                # what does not count may be NaN
                yield part, np.where(use, data, 0), np.where(use, variance, 0), use, half

    def apertures(
        self, x: np.ndarray, y: np.ndarray, a: np.ndarray, b: np.ndarray, theta: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Flux and its error in ellipses, and the share of their area that did not count.

        The missing area is given the mean light of the rest.
        """
        flux, error, missing = np.full((3, len(x)), np.nan)
        for rows, data, variance, use, half in self._stacks(x, y, a):
            at = (x[rows] - np.rint(x[rows]) + half, y[rows] - np.rint(y[rows]) + half)
            total, spread, area = aperture_sums(data, variance, use, *at, a[rows], b[rows], theta[rows])
            whole = np.pi * a[rows] * b[rows]
            some = area > 1e-6 * whole
            more = np.where(some, whole / np.where(some, area, 1), np.nan)
            flux[rows], error[rows], missing[rows] = total * more, np.sqrt(spread) * more, 1 - area / whole
        return flux, error, np.clip(missing, 0, 1)

    def circles(self, x: np.ndarray, y: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`apertures` of one radius, px."""
        size = np.full(len(x), float(radius))
        return self.apertures(x, y, size, size, np.zeros(len(x)))

    def krons(
        self, x: np.ndarray, y: np.ndarray, a: np.ndarray, b: np.ndarray, theta: np.ndarray, sign: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Kron radius, in semi-axes, and the flux in the ellipse it gives."""
        radius = np.full(len(x), np.nan)
        for rows, data, _, use, half in self._stacks(x, y, KRON[0] * a):
            at = (x[rows] - np.rint(x[rows]) + half, y[rows] - np.rint(y[rows]) + half)
            light = data * sign[rows, None, None].astype(np.float32)
            radius[rows] = kron_radii(light, use, *at, a[rows], b[rows], theta[rows], KRON[0])
        factor = np.maximum(KRON[1] * np.nan_to_num(radius), KRON[2])
        flux, error, _ = self.apertures(x, y, factor * a, factor * b, theta)
        return {"kron_radius": radius, "flux_kron": flux, "flux_kron_err": error}

    def windowed(self, x: np.ndarray, y: np.ndarray, fwhm: float, sign: np.ndarray) -> dict[str, np.ndarray]:
        """Centroids under a Gaussian window of the PSF's width, and FWHM and ellipticity of the light under it."""
        n, (h, w) = len(x), self.image.shape
        sigma = max(fwhm, LEAST_WINDOW) / 2.3548
        i, j = np.clip(np.rint(x), 0, w - 1).astype(np.int32), np.clip(np.rint(y), 0, h - 1).astype(np.int32)
        backend, out = self.image.backend, np.full((4, n), np.nan)
        for side in (1, -1):
            rows = np.flatnonzero((sign < 0) == (side < 0))
            if not len(rows):
                continue
            pixels = backend.asarray(j[rows] * np.int32(w) + i[rows])
            light = self.image.image if side > 0 else -self.image.image
            dx, dy, size, ellipticity, _ = to_host(
                star_shapes(light, self.good, pixels, int(np.ceil(4 * sigma)), 1, sigma)
            )
            # a centroid that left the source is that of another
            stays = np.hypot(dx, dy) < max(1.5, 0.6 * fwhm)
            real = stays & np.isfinite(size)
            found = ((stays, i[rows] + dx), (stays, j[rows] + dy), (real, 2.3548 * size), (real, ellipticity))
            out[:, rows] = [np.where(known, values, np.nan) for known, values in found]
        return dict(zip(("x_win", "y_win", "fwhm", "ellipticity"), out, strict=True))


def isophotal(
    x: np.ndarray, y: np.ndarray, value: np.ndarray, variance: np.ndarray, segment: np.ndarray, count: int
) -> dict[str, np.ndarray]:
    """Sums over the pixels of sources.

    Parameters
    ----------
    x, y, value, variance : (n,)
        Of every pixel; ``value`` with the sign that makes sources positive.
    segment : int (n,)
        Its source, from 0.
    count : int
        Number of sources.

    Returns
    -------
    dict of (count,)
        ``npix``, ``flux_iso`` and its error, ``peak``, barycentre ``x_iso y_iso``, central second moments ``x2 y2 xy``
        (px^2), and the ellipse that has them: semi-axes ``a >= b`` (standard deviations, px) and ``theta``, radians
        from +x to +y. Negative pixels count for the flux and for nothing else.
    """

    def total(of: np.ndarray) -> np.ndarray:
        return np.bincount(segment, of, count)

    light = np.maximum(value, 0.0)
    whole = total(light)
    npix = np.bincount(segment, minlength=count)
    # a source without positive light has the shape of its pixels
    light = np.where(whole[segment] > 0, light, 1.0)
    whole = np.where(whole > 0, whole, np.maximum(npix, 1))
    # moments about a pixel of the source lose no digits
    origin = np.zeros((2, count))
    origin[:, segment] = x, y
    dx, dy = x - origin[0][segment], y - origin[1][segment]
    mx, my = total(light * dx) / whole, total(light * dy) / whole
    x2 = total(light * dx * dx) / whole - mx * mx
    y2 = total(light * dy * dy) / whole - my * my
    xy = total(light * dx * dy) / whole - mx * my
    thin = x2 * y2 - xy * xy < THIN**2
    x2, y2 = np.where(thin, x2 + THIN, x2), np.where(thin, y2 + THIN, y2)
    mean, half = (x2 + y2) / 2, np.hypot((x2 - y2) / 2, xy)
    peak = np.full(count, -np.inf)
    np.maximum.at(peak, segment, value)
    return {
        "npix": npix,
        "flux_iso": total(value),
        "flux_iso_err": np.sqrt(total(variance)),
        "peak": peak,
        "x_iso": origin[0] + mx,
        "y_iso": origin[1] + my,
        "x2": x2,
        "y2": y2,
        "xy": xy,
        "a": np.sqrt(mean + half),
        "b": np.sqrt(np.maximum(mean - half, 0)),
        "theta": 0.5 * np.arctan2(2 * xy, x2 - y2),
    }
