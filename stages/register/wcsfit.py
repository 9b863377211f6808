# SPDX-License-Identifier: BSD-3-Clause
"""TAN and TAN-SIP world coordinate systems fitted to positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from astropy.wcs import WCS, Sip

from skydelta.errors import AlgorithmError

GOAL = 1e-3
"""Residual, px, at which the order of the distortion is high enough."""

WORST = 0.02
"""Largest residual that is accepted, px."""

HIGHEST = 7
"""Of the orders tried."""

OUTSIDE = 1e-3
"""Weight of positions that keep the polynomial from running away where there are no stars, against 1."""


@dataclass(frozen=True)
class FittedWcs:
    """A WCS, the order of its distortion (1: none), and its largest residuals forwards and backwards (AP, BP), px."""

    wcs: WCS
    order: int
    residual: float
    inverse_residual: float


def fit_wcs(at: np.ndarray, ra: np.ndarray, dec: np.ndarray, inside: np.ndarray, shape: tuple[int, int]) -> FittedWcs:
    """The TAN-SIP WCS (Shupe et al. 2005) of an image through positions of known sky.

    Linear least squares of the tangent-plane coordinates, CRPIX in the middle of the frame, CRVAL moved until the
    constant term vanishes; the lowest order whose residual inside is at most `GOAL`. Outside, the polynomial is held,
    with a small weight, to the linear continuation of what is inside.

    Parameters
    ----------
    at : float64 (2, n)
        0-based px, all over the frame.
    ra, dec : float64 (n,)
        ICRS, degrees; used where ``inside``.
    inside : bool (n,)
        Positions that count.
    shape : (int, int)

    Raises
    ------
    AlgorithmError
        No order follows the positions to `WORST` (``numbers``: residual_px).
    """
    middle = np.array([(shape[1] - 1) / 2, (shape[0] - 1) / 2])
    half = max(shape) / 2
    u, v = (at - middle[:, None]) / half
    start = int(np.argmin(np.where(inside, u * u + v * v, np.inf)))
    best: FittedWcs | None = None
    for order in range(1, HIGHEST + 1):
        exponents = [(i, n - i) for n in range(order + 1) for i in range(n, -1, -1)]
        terms = np.stack([u**i * v**j for i, j in exponents])
        if inside.sum() < terms.shape[0]:
            break
        crval = np.array([ra[start], dec[start]])
        for _ in range(4):
            plane = _tangent(crval, ra, dec, inside)
            weight = np.where(inside, 1.0, OUTSIDE if order > 1 else 0.0)
            if order > 1 and not inside.all():
                straight = np.linalg.lstsq(terms[:3, inside].T, plane[:, inside].T, rcond=None)[0]
                plane = np.where(inside, plane, (terms[:3].T @ straight).T)
            c = np.linalg.lstsq((terms * weight).T, (plane * weight).T, rcond=None)[0].T
            crval = np.array(_plane_wcs(crval).wcs_pix2world(c[0, 0], c[1, 0], 1), float)
        found = _assembled(c, exponents, order, crval, middle, half, shape)
        fitted = _checked(found, order, at, ra, dec, inside, shape)
        if best is None or fitted.residual < best.residual:
            best = fitted
        if best.residual <= GOAL:
            break
    if best is None or not best.residual <= WORST:
        off = np.inf if best is None else best.residual
        raise AlgorithmError(f"a TAN-SIP WCS misses the map by {off:.3g} px, {WORST:g} are allowed", residual_px=off)
    return best


def made_up_plane(shape: tuple[int, int]) -> WCS:
    """A tangent plane for an image of unknown sky: a pixel is one arcsecond, north is up, and WCSNAME says so."""
    w = _plane_wcs(np.array([180.0, 0.0]))
    w.wcs.crpix = (shape[1] + 1) / 2, (shape[0] + 1) / 2
    w.wcs.cd = np.diag([-1.0, 1.0]) / 3600
    w.wcs.name = "PIXEL PLANE"
    w.pixel_shape = shape[1], shape[0]
    w.wcs.set()
    return w


def catalogue_plane(ra: float, dec: float, scale: float) -> WCS:
    """A tangent plane around a position (degrees) with pixels of ``scale`` degrees, its origin there."""
    w = _plane_wcs(np.array([ra, dec]))
    w.wcs.crpix = 1, 1
    w.wcs.cd = np.diag([-scale, scale])
    w.wcs.set()
    return w


def _plane_wcs(crval: np.ndarray) -> WCS:
    """Pixels (1-based) that are tangent-plane coordinates in degrees."""
    w = WCS(naxis=2)
    w.wcs.ctype = "RA---TAN", "DEC--TAN"
    w.wcs.cunit = "deg", "deg"
    w.wcs.crval = crval
    w.wcs.crpix = 0, 0
    w.wcs.cd = np.eye(2)
    w.wcs.radesys = "ICRS"
    w.wcs.set()
    return w


def _tangent(crval: np.ndarray, ra: np.ndarray, dec: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Tangent-plane coordinates (2, n), degrees; 0 outside."""
    out = np.zeros((2, len(ra)))
    out[:, inside] = _plane_wcs(crval).wcs_world2pix(ra[inside], dec[inside], 1)
    return out


def _assembled(c, exponents, order, crval, middle, half, shape) -> WCS:
    w = _plane_wcs(crval)
    w.wcs.crpix = middle + 1
    cd = np.stack([c[:, 1], c[:, 2]], axis=1) / half
    w.wcs.cd = cd
    w.pixel_shape = shape[1], shape[0]
    if order > 1:
        bent = np.linalg.solve(cd, c)
        a, b = np.zeros((2, order + 1, order + 1))
        for k, (i, j) in enumerate(exponents):
            if i + j >= 2:
                a[i, j], b[i, j] = bent[:, k] / half ** (i + j)
        w.wcs.ctype = "RA---TAN-SIP", "DEC--TAN-SIP"
        w.sip = Sip(a, b, *_inverse(a, b, order, middle, shape), w.wcs.crpix)
    w.wcs.set()
    return w


def _inverse(a: np.ndarray, b: np.ndarray, order: int, middle: np.ndarray, shape: tuple[int, int]):
    """AP and BP: what leads back from distorted pixels, one order higher, over the frame."""
    x, y = np.meshgrid(np.linspace(0, shape[1] - 1, 41), np.linspace(0, shape[0] - 1, 41))
    u, v = (x - middle[0]).ravel(), (y - middle[1]).ravel()
    du, dv = (sum(m[i, j] * u**i * v**j for i, j in zip(*np.nonzero(m), strict=True)) for m in (a, b))
    big_u, big_v = u + du, v + dv
    high = order + 1
    half = max(shape) / 2
    exponents = [(i, n - i) for n in range(high + 1) for i in range(n, -1, -1)]
    terms = np.stack([(big_u / half) ** i * (big_v / half) ** j for i, j in exponents], axis=1)
    c = np.linalg.lstsq(terms, -np.stack([np.broadcast_to(du, u.shape), np.broadcast_to(dv, u.shape)], 1), rcond=None)[
        0
    ]
    out = np.zeros((2, high + 1, high + 1))
    for k, (i, j) in enumerate(exponents):
        out[:, i, j] = c[k] / half ** (i + j)
    return out


def _checked(w: WCS, order: int, at, ra, dec, inside, shape) -> FittedWcs:
    """With the largest distances, in px, between the positions and what the WCS makes of them."""
    x, y = at[:, inside]
    cd = w.wcs.cd
    wanted = np.linalg.solve(cd, _tangent(w.wcs.crval, ra, dec, inside)[:, inside])
    got = np.linalg.solve(cd, np.array(_plane_wcs(w.wcs.crval).wcs_world2pix(*w.all_pix2world(x, y, 0), 1)))
    backwards = 0.0
    if w.sip is not None:
        there = np.array(w.sip_foc2pix(*got, 1)) - 1
        backwards = float(np.hypot(*(there - at[:, inside])).max())
    return FittedWcs(w, order, float(np.hypot(*(got - wanted)).max()), backwards)
