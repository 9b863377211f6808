# SPDX-License-Identifier: BSD-3-Clause
"""What is measured of sources in an image: shapes, windows, apertures, Kron fluxes, and how much of them is masked.

Planes stay where they are: windows around the sources come to the host, where their tables are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from skydelta.io.catalog import bits
from skydelta.io.exposure import Exposure
from skydelta.kernels.backend import Array, to_host
from skydelta.kernels.cutouts import Windows
from skydelta.kernels.photometry import BEYOND, COUNTS, MASKED, NEIGHBOUR, aperture_sums, kron_radii
from skydelta.kernels.stars import star_shapes

HALVES = (12, 24, 48, 96, 160)
"""Half-sizes of windows, px; each source takes the smallest that holds it, and what is beyond the largest is cut."""

PIXELS = 4_000_000
"""Of a stack of windows at most: bounds the memory; no result depends on it."""

KRON = (6.0, 2.5, 3.5)
"""Extent of the Kron radius in semi-axes, Kron radii of its aperture, least extent of that (SExtractor's)."""

LEAST_WINDOW = 2.4
"""Least FWHM of the Gaussian window, px: under a narrower one sampling pulls the centroids."""

WINDOW = 4.0
"""Radius out to which that window is looked through, standard deviations."""

THIN = 1 / 12
"""Variance of a pixel, px^2: added to the moments of sources thinner than that."""


REPORTED = ((BEYOND, bits("TRUNCATED")), (MASKED, bits("APER_MASKED")), (NEIGHBOUR, bits("APER_NEIGHBOUR")))
"""States of pixels, and the flag of a measurement in whose aperture they are."""


class Sums(NamedTuple):
    """Of apertures (n,): flux and its error; share of the area without pixels of the source's own that count; flags."""

    flux: np.ndarray
    error: np.ndarray
    lost: np.ndarray
    flags: np.ndarray


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
        """Rows, and the pixels, variances and states of pixels around them (n, s, s), by the half-size they need."""
        known = np.isfinite(x + y + reach)
        need = np.where(known, np.ceil(np.where(known, reach, 0)) + 1, 0)
        kind = np.minimum(np.searchsorted(HALVES, need), len(HALVES) - 1)
        backend = self.image.backend
        for k, half in enumerate(HALVES):
            rows = np.flatnonzero(known & (kind == k))
            step = max(PIXELS // (2 * half + 1) ** 2, 1)
            for part in np.split(rows, range(step, len(rows), step)) if len(rows) else []:
                windows = Windows(self.image.shape, np.rint(x[part]), np.rint(y[part]), half, backend)
                # False is MASKED, True COUNTS
                state = to_host(windows.cut(self.good.view(np.uint8), BEYOND))
                if self.segments is not None:
                    segment = to_host(windows.cut(self.segments))
                    other = (segment != 0) & (segment != part[:, None, None] + 1)
                    state = np.where(other & (state == COUNTS), np.uint8(NEIGHBOUR), state)
                data, variance = (to_host(windows.cut(p)) for p in (self.image.image, self.image.variance))
                use = state == COUNTS
                # what does not count may be NaN
                yield part, np.where(use, data, 0), np.where(use, variance, 0), state, half

    def apertures(self, x: np.ndarray, y: np.ndarray, a: np.ndarray, b: np.ndarray, theta: np.ndarray) -> Sums:
        """Light in ellipses, as `aperture_sums` takes it; NaN where no pixel counts."""
        flux, error, lost = np.full((3, len(x)), np.nan)
        flags = np.zeros(len(x), np.int32)
        for rows, data, variance, state, half in self._stacks(x, y, a):
            at = (x[rows] - np.rint(x[rows]) + half, y[rows] - np.rint(y[rows]) + half)
            total, spread, areas = aperture_sums(data, variance, state, *at, a[rows], b[rows], theta[rows])
            missing = areas[MASKED] + areas[NEIGHBOUR] + areas[BEYOND]
            some = areas[COUNTS] > 0
            flux[rows], error[rows] = np.where(some, total, np.nan), np.where(some, np.sqrt(spread), np.nan)
            lost[rows] = missing / (areas[COUNTS] + missing)
            for kind, bit in REPORTED:
                flags[rows] |= np.where(areas[kind] > 0, bit, 0)
        return Sums(flux, error, lost, flags)

    def circles(self, x: np.ndarray, y: np.ndarray, radius: float) -> Sums:
        """`apertures` of one radius, px."""
        size = np.full(len(x), float(radius))
        return self.apertures(x, y, size, size, np.zeros(len(x)))

    def krons(
        self, x: np.ndarray, y: np.ndarray, a: np.ndarray, b: np.ndarray, theta: np.ndarray, sign: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Kron radius, in semi-axes, and the flux in the ellipse it gives, with the flags of both."""
        radius, flags = np.full(len(x), np.nan), np.zeros(len(x), np.int32)
        for rows, data, _, state, half in self._stacks(x, y, KRON[0] * a):
            at = (x[rows] - np.rint(x[rows]) + half, y[rows] - np.rint(y[rows]) + half)
            light = data * sign[rows, None, None].astype(np.float32)
            radius[rows], seen = kron_radii(light, state, *at, a[rows], b[rows], theta[rows], KRON[0])
            for kind, bit in REPORTED:
                flags[rows] |= np.where(seen >> kind & 1, bit, 0)
        factor = np.maximum(KRON[1] * np.nan_to_num(radius), KRON[2])
        sums = self.apertures(x, y, factor * a, factor * b, theta)
        return {
            "kron_radius": radius,
            "flux_kron": sums.flux,
            "flux_kron_err": sums.error,
            "lost_kron": sums.lost,
            "flags_kron": flags | sums.flags,
        }

    def windowed(self, x: np.ndarray, y: np.ndarray, fwhm: float, sign: np.ndarray) -> dict[str, np.ndarray]:
        """Centroids under a Gaussian window of the PSF's width, and FWHM and ellipticity of the light under it.

        Pixels that do not count are taken as dark; ``lost_win`` and ``flags_win`` are of the circle of `WINDOW`
        standard deviations in which the window is not nothing.
        """
        (h, w) = self.image.shape
        sigma = max(fwhm, LEAST_WINDOW) / 2.3548
        known = np.isfinite(x + y)
        i, j = (np.clip(np.rint(np.where(known, a, 0)), 0, n - 1).astype(np.int32) for a, n in ((x, w), (y, h)))
        backend, out = self.image.backend, np.full((4, len(x)), np.nan)
        for side in (1, -1):
            rows = np.flatnonzero(known & ((sign < 0) == (side < 0)))
            if not len(rows):
                continue
            pixels = backend.asarray(j[rows] * np.int32(w) + i[rows])
            light = self.image.image if side > 0 else -self.image.image
            dx, dy, size, ellipticity, _ = to_host(
                star_shapes(light, self.good, pixels, int(np.ceil(WINDOW * sigma)), 1, sigma)
            )
            # a centroid that left the source is that of another
            stays = np.hypot(dx, dy) < max(1.5, 0.6 * fwhm)
            real = stays & np.isfinite(size)
            found = ((stays, i[rows] + dx), (stays, j[rows] + dy), (real, 2.3548 * size), (real, ellipticity))
            out[:, rows] = [np.where(some, values, np.nan) for some, values in found]
        _, _, lost, flags = Measurer(self.image, self.good).circles(x, y, WINDOW * sigma)
        names = ("x_win", "y_win", "fwhm", "ellipticity")
        return {**dict(zip(names, out, strict=True)), "lost_win": lost, "flags_win": flags}

    def footprint_flags(self, pixel: np.ndarray, segment: np.ndarray, count: int) -> np.ndarray:
        """Flags of sources whose pixels touch the border or unusable pixels, int32 (count,).

        Parameters
        ----------
        pixel : int (n,)
            y W + x of every pixel of a source.
        segment : int (n,)
            Its source, from 0.
        count : int
        """
        (h, w), backend = self.image.shape, self.image.backend
        y, x = np.divmod(pixel, w)
        flags = np.zeros(count, np.int32)
        np.bitwise_or.at(flags, segment[(x == 0) | (y == 0) | (x == w - 1) | (y == h - 1)], bits("TRUNCATED"))
        flat = self.good.ravel()
        for dy, dx in ((0, 1), (0, -1), (1, 0), (-1, 0)):
            beside = np.clip(y + dy, 0, h - 1) * w + np.clip(x + dx, 0, w - 1)
            masked = ~to_host(flat[backend.asarray(beside)])
            np.bitwise_or.at(flags, segment[masked], bits("APER_MASKED"))
        return flags


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
