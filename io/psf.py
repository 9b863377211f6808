# SPDX-License-Identifier: BSD-3-Clause
"""Point-spread functions that vary over the field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol, runtime_checkable

import numpy as np

from skydelta.errors import InputError
from skydelta.io.field import Domain, count_terms, polynomial_terms
from skydelta.kernels.backend import Array, Backend, backend_of


@runtime_checkable
class Psf(Protocol):
    """What every PSF offers; positions are 0-based pixels of the exposure's own array."""

    @property
    def shape(self) -> tuple[int, int]:
        """Odd (height, width) of the stamps, px."""
        ...

    def at(self, x: float, y: float) -> np.ndarray:
        """The PSF at (x, y): float64 (height, width), unit sum, centred on the middle pixel."""
        ...

    def render(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """`at` for many positions: float64 (n, height, width)."""
        ...

    def moved(self, y0: float, x0: float) -> Psf:
        """The same PSF for an array whose pixel (0, 0) is pixel (y0, x0) of this one's."""
        ...


@dataclass(frozen=True)
class PixelPsf:
    """PSF pixels that are polynomials of position (pixel basis; PSFEx's form, Bertin 2011).

    Attributes
    ----------
    coefficients : float64 (n_p, height, width)
        Image of each spatial term, order as `polynomial_terms`. On any device, where `render` then works.
    order : int
        Total degree of the spatial polynomial; 0 is a constant PSF.
    domain : Domain
        Maps pixel positions to [-1, 1].
    """

    coefficients: Array
    order: int
    domain: Domain

    @classmethod
    def constant(cls, stamp: np.ndarray, shape: tuple[int, int]) -> PixelPsf:
        """One stamp (odd sides) for the whole field of an image of this shape."""
        stamp = np.asarray(stamp, float)
        return cls((stamp / stamp.sum())[None], 0, Domain.of(shape))

    @property
    def shape(self) -> tuple[int, int]:
        return self.coefficients.shape[1], self.coefficients.shape[2]

    def at(self, x: float, y: float) -> np.ndarray:
        return self.render(np.atleast_1d(float(x)), np.atleast_1d(float(y)))[0]

    def moved(self, y0: float, x0: float) -> PixelPsf:
        """The same PSF for an array whose pixel (0, 0) is pixel (y0, x0) of this one's."""
        y, x = self.domain.origin
        return replace(self, domain=replace(self.domain, origin=(y + y0, x + x0)))

    def render(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        phi = polynomial_terms(*self.domain.uv(x, y), self.order)
        stamps = backend_of(self.coefficients).asarray(phi).T @ self.coefficients.reshape(len(phi), -1)
        stamps /= stamps.sum(axis=1)[:, None]
        return stamps.reshape(-1, *self.shape)


@dataclass(frozen=True)
class GridPsf:
    """Stamps on a regular grid of positions, bilinear in between (whitened PSFs, one a tile).

    Attributes
    ----------
    stamps : float64 (ny, nx, height, width)
        Sum kept as given; `at` does not renormalise. On any device, where `render` then works.
    x, y : float64 (nx,), (ny,)
        Ascending grid positions, px.
    """

    stamps: Array
    x: np.ndarray
    y: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return self.stamps.shape[2], self.stamps.shape[3]

    def at(self, x: float, y: float) -> np.ndarray:
        return self.render(np.atleast_1d(float(x)), np.atleast_1d(float(y)))[0]

    def moved(self, y0: float, x0: float) -> GridPsf:
        """The same PSF for an array whose pixel (0, 0) is pixel (y0, x0) of this one's."""
        return replace(self, x=self.x - x0, y=self.y - y0)

    def render(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """`at` for many positions, on the device of the stamps."""
        backend = backend_of(self.stamps)
        nodes = self.stamps.reshape(-1, *self.shape)
        j, fx = _cell(self.x, x)
        i, fy = _cell(self.y, y)
        j1, i1 = np.minimum(j + 1, len(self.x) - 1), np.minimum(i + 1, len(self.y) - 1)
        corners = backend.asarray(np.stack([i, i, i1, i1]) * len(self.x) + np.stack([j, j1, j, j1]))
        across, down = backend.asarray(np.stack([fx, fy])[:, :, None, None])
        a, b, c, d = (nodes.take(k, axis=0) for k in corners)
        return _mixed(_mixed(a, b, across), _mixed(c, d, across), down)


def on_device(psf: Psf, backend: Backend) -> Psf:
    """The same PSF where the stamps of many positions are wanted; one that is not made of pixels stays as it is."""
    if isinstance(psf, PixelPsf):
        return replace(psf, coefficients=backend.asarray(psf.coefficients))
    return replace(psf, stamps=backend.asarray(psf.stamps)) if isinstance(psf, GridPsf) else psf


def _mixed(a: Array, b: Array, share: Array) -> Array:
    """a (1 - share) + b share, in place of a; spoils b."""
    a *= 1 - share
    b *= share
    a += b
    return a


def _cell(nodes: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the node below and the fraction towards the next; clamped to the grid."""
    at = np.clip(np.asarray(at, float), nodes[0], nodes[-1])
    k = np.clip(np.searchsorted(nodes, at, side="right") - 1, 0, max(len(nodes) - 2, 0))
    step = nodes[np.minimum(k + 1, len(nodes) - 1)] - nodes[k]
    return k, np.where(step > 0, (at - nodes[k]) / np.where(step > 0, step, 1), 0.0)


FINER = 4
"""Times finer than the pixels that areas are counted on."""


def fwhm(stamp: np.ndarray) -> float:
    """Full width at half maximum (px) of a centred stamp: the diameter of the circle whose area is that of the
    pixels above half the peak, counted on a 4 x finer cubic grid."""
    return float(fwhms(np.asarray(stamp, float)[None])[0])


def fwhms(stamps: np.ndarray) -> np.ndarray:
    """`fwhm` of stamps (n, height, width): float64 (n,)."""
    above = stamps > stamps.max(axis=(1, 2))[:, None, None] / 2
    boxes = [_around(above.any(axis=axis)) for axis in (2, 1)]
    area = np.empty(len(stamps))
    # stamps whose cores have the same sides go together
    groups: dict[tuple[int, int], list[int]] = {}
    for k, sides in enumerate(zip(*((end - start).tolist() for start, end in boxes), strict=True)):
        groups.setdefault(sides, []).append(k)
    (j, below), (i, right) = (tuple(a.tolist() for a in box) for box in boxes)
    for (height, width), group in groups.items():
        cores = np.stack([stamps[k, j[k] : below[k], i[k] : right[k]] for k in group])
        fine = _finer(height) @ cores @ _finer(width).T
        area[group] = (fine > fine.max(axis=(1, 2))[:, None, None] / 2).sum(axis=(1, 2))
    return 2 * np.sqrt(area / np.pi) / FINER


def _around(marked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """From 5 px before the first marked pixel of each line (n, m) to 5 px past the last, inside it: (start, end)."""
    m = marked.shape[1]
    return np.maximum(marked.argmax(axis=1) - 5, 0), np.minimum(m - marked[:, ::-1].argmax(axis=1) + 5, m)


@cache
def _finer(n: int) -> np.ndarray:
    """Cubic interpolation of n pixels of a line, nothing beyond them, on the finer grid: float64 (4 n, n).

    Interpolating is linear and goes along each axis in turn, so that a matrix does it once its columns are known.
    """
    from scipy.ndimage import zoom

    return zoom(np.eye(n), (FINER, 1), order=3, grid_mode=True, mode="grid-constant")


OFF_CENTRE = 0.3
"""Largest distance of a stamp's light from a pixel centre, px; farther out it sits between pixels."""


def psf_from_stamp(stamp: np.ndarray, shape: tuple[int, int]) -> tuple[PixelPsf, dict[str, Any]]:
    """One stamp for the whole field of an image: unit sum, odd sides, centred on its light.

    Parameters
    ----------
    stamp : (h, w)
        NaN counts as 0.
    shape : (int, int)
        Of the image.

    Returns
    -------
    psf : PixelPsf
    note : dict
        What was done: sum before, rows and columns cut off to centre it.

    Raises
    ------
    InputError
        No positive sum, or the light is centred between pixels (an even stamp), which no cut can mend.
    """
    stamp = np.asarray(stamp, float)
    if stamp.ndim != 2 or min(stamp.shape) < 3:
        raise InputError(f"a stamp of shape {stamp.shape}; two dimensions of at least 3 are needed")
    filled = np.nan_to_num(stamp, nan=0.0, posinf=0.0, neginf=0.0)
    total = float(filled.sum())
    if not total > 0 or not filled.max() > 0:
        raise InputError(f"sum of the stamp is {total:g}; a positive one is needed")
    j, i = np.unravel_index(int(np.argmax(filled)), filled.shape)
    y, x = _light_centre(filled, int(j), int(i))
    cy, cx = round(y), round(x)
    if max(abs(y - cy), abs(x - cx)) > OFF_CENTRE:
        raise InputError(f"light is centred at ({x:.2f}, {y:.2f}) of a {filled.shape} stamp, between pixels")
    half_y, half_x = min(cy, filled.shape[0] - 1 - cy), min(cx, filled.shape[1] - 1 - cx)
    if half_y < 1 or half_x < 1:
        raise InputError(f"light is centred at ({x:.2f}, {y:.2f}), at the edge of a {filled.shape} stamp")
    cut = filled[cy - half_y : cy + half_y + 1, cx - half_x : cx + half_x + 1]
    note: dict[str, Any] = {"sum": total, "shape": list(cut.shape)}
    if cut.shape != filled.shape:
        note["recentred_from"] = list(filled.shape)
        note["light_cut_off"] = float(1 - cut.sum() / total)
    return PixelPsf.constant(cut, shape), note


def _light_centre(stamp: np.ndarray, j: int, i: int) -> tuple[float, float]:
    """(y, x) centroid of the light above half the peak, around the peak."""
    y0, x0 = max(j - 5, 0), max(i - 5, 0)
    box = stamp[y0 : j + 6, x0 : i + 6]
    core = np.where(box > 0.5 * stamp[j, i], box, 0.0)
    y, x = np.indices(box.shape)
    return float(y0 + (y * core).sum() / core.sum()), float(x0 + (x * core).sum() / core.sum())


def psf_from_hdu(
    pixels: np.ndarray, header: Mapping[str, Any], shape: tuple[int, int]
) -> tuple[PixelPsf | GridPsf, dict[str, Any]]:
    """A PSF as `skydelta.write` stores it (``PSFKIND`` polynomial or grid), or a plain stamp.

    Raises
    ------
    InputError
        Cards are missing or do not fit the array.
    """
    kind = header.get("PSFKIND")
    if kind is None:
        return psf_from_stamp(pixels, shape)
    pixels = np.asarray(pixels, float)
    try:
        if kind == "polynomial":
            domain = Domain((header["DOMNY"], header["DOMNX"]), (header["DOMY0"], header["DOMX0"]))
            order = header["PSFORDER"]
            psf: PixelPsf | GridPsf = PixelPsf(pixels, order, domain)
            fits_cards = pixels.ndim == 3 and len(pixels) == count_terms(order)
        elif kind == "grid":
            nodes = {a: np.array([header[f"GRID{a}{k}"] for k in range(pixels.shape[n])]) for n, a in enumerate("YX")}
            psf = GridPsf(pixels, nodes["X"], nodes["Y"])
            fits_cards = pixels.ndim == 4
        else:
            raise InputError(f"PSFKIND = {kind!r}; allowed: polynomial, grid")
    except (KeyError, IndexError) as e:
        raise InputError(f"PSFKIND = {kind!r}, but {e.args[0]}") from None
    if not fits_cards:
        raise InputError(f"PSFKIND = {kind!r} with an array of shape {pixels.shape}")
    return psf, {"kind": kind}
