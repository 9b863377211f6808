# SPDX-License-Identifier: BSD-3-Clause
"""The chain of two FITS headers as polynomials and a homography, where that is all that it is.

TAN, TAN-SIP and TPV (Calabretta & Greisen 2002; Shupe et al. 2005; the TPV convention) are polynomials between pixels
and a tangent plane. Two tangent planes, and a turn of the sky between them, are one homography. Evaluated by
`skydelta.kernels.maps` where the pixels are; believed after a comparison with astropy.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from astropy.coordinates import SkyCoord

from skydelta.kernels.cpu.maps import inverse_gap, tangent_points
from skydelta.kernels.maps import MOST_DEGREE, RADIAL, Distortion, pack
from skydelta.stages.align.chain import TABLES, SkyChain, _End, _Fits

POINTS = 25
"""Places that are compared with astropy for every map."""

AGREEMENT = 1e-6
"""Largest difference to astropy, source px; 10^4 px outside the image twice that, and so on."""

INVERTED = 1e-7
"""Newton's method is trusted when it comes back to all points of a lattice over the image to within this, px."""

SIDE = 33
"""Of that lattice, points."""

_DEGREE = np.degrees(1.0)
_CARD = re.compile(r"PV([12])_(\d+) *= *([^ /]+)")
_OTHER = re.compile(r"(C[PQD]DIS|D[PQ])[12] *=")


class UnfitError(Exception):
    """A header, or a pair of them, that is more than polynomials and a homography; the reason in words."""


class _Plane(NamedTuple):
    """A header: pixels to F(u) by ``distortion``, (u, v, 1) to a direction on its sky, of any length, by ``sky``."""

    distortion: Distortion
    sky: np.ndarray


def tangent_chain(chain: SkyChain, source_shape: tuple[int, int]) -> np.ndarray:
    """The numbers for `skydelta.kernels.maps.tangent_points`.

    Parameters
    ----------
    chain : SkyChain
    source_shape : (int, int)
        (H, W), px: all of the source must be where its distortion can be inverted.

    Raises
    ------
    UnfitError
        The chain cannot be written so.
    """
    source, target = _plane(chain.source), _plane(chain.target)
    turn = _rotation(chain) if chain.turned else np.eye(3)
    numbers = pack(target.distortion, np.linalg.solve(source.sky, turn @ target.sky), source.distortion)
    if not inverse_gap(numbers, SIDE, *map(float, source_shape)) <= INVERTED:
        raise UnfitError("distortion of image cannot be inverted on all of it")
    return numbers


def places(numbers: np.ndarray, shape: tuple[int, int], source_shape: tuple[int, int]) -> np.ndarray:
    """Target pixels spread over the overlap, (`POINTS`, 2) of x, y; all over the target where none is in sight."""
    low, high = np.zeros(2), np.array(shape[::-1]) - 1.0
    n = np.array(source_shape[::-1])[:, None]
    for _ in range(3):  # a small overlap is looked at more closely
        at = np.stack(np.meshgrid(*np.linspace(low, high, 17).T), -1).reshape(-1, 2)
        q = tangent_points(numbers, at, 0.0, (1, 1))[:, :, 0, 0]
        inside = ((q >= -0.5) & (q <= n - 0.5)).all(axis=0)
        if inside.sum() >= POINTS or not inside.any():
            break
        step, last = (high - low) / 16, np.array(shape[::-1]) - 1.0
        low, high = np.maximum(at[inside].min(axis=0) - step, 0), np.minimum(at[inside].max(axis=0) + step, last)
    found = at[inside] if inside.any() else at
    return found[np.rint(np.linspace(0, len(found) - 1, POINTS)).astype(int)]


def compare(chain: SkyChain, at: np.ndarray, q: np.ndarray) -> float:
    """Largest difference (px) of source positions q (2, n) to those of the exact chain, for target pixels at (n, 2).

    Raises
    ------
    UnfitError
        It is too large, or one has a place where the other has none.
    """
    exact = np.stack(chain(*at.T))
    known = np.isfinite(exact).all(axis=0)
    lost = known != np.isfinite(q).all(axis=0)
    if lost.any():
        raise UnfitError(f"{lost.sum()} of {len(at)} points have no place by one of polynomials and astropy")
    gap = np.sqrt(((q - exact)[:, known] ** 2).sum(axis=0))
    far = np.abs(exact[:, known]).max(axis=0, initial=0.0) / 1e4
    if (gap > AGREEMENT * (1 + far)).any():
        raise UnfitError(f"polynomials differ from astropy by {gap.max():.2g} px")
    return float(gap.max(initial=0.0))


def _plane(end: _End) -> _Plane:
    if not isinstance(end, _Fits):
        raise UnfitError(f"{end.name} has no FITS cards")
    w, sip = end.wcs.wcs, end.wcs.sip
    w.set()
    if any(getattr(end.wcs, t) is not None for t in TABLES):
        raise UnfitError(f"lookup tables of {end.name}")
    kinds = {t[5:8] for t in w.ctype}
    if kinds != {"TAN"}:
        raise UnfitError(f"projection {'/'.join(sorted(kinds))} of {end.name}")
    if any(value for *_, value in w.get_pv()) or (w.phi0, w.theta0) != (0.0, 90.0):
        raise UnfitError(f"PV cards of {end.name}")
    crpix, linear = w.crpix, end.wcs.pixel_scale_matrix
    cards = w.to_header(relax=True)  # the only place where wcslib shows its polynomials
    if _OTHER.search(cards):
        raise UnfitError(f"distortion of {end.name} other than SIP and TPV")
    pv = [(int(axis), int(m), float(value)) for axis, m, value in _CARD.findall(cards)] if "-TPV'" in cards else []
    onto_plane = np.eye(3)  # from F(u) to degrees along both axes, and 1
    if sip is None:
        distortion = Distortion(np.column_stack([linear, linear @ (1 - crpix)]), *_tpv(pv))
    elif pv or sip.a is None or sip.b is None:
        raise UnfitError(f"SIP of {end.name} without A and B, or with PV")
    else:
        distortion = Distortion(np.column_stack([np.eye(2), 1 - sip.crpix]), _sip(sip.a, sip.b, end.name))
        onto_plane[:2] = np.column_stack([linear, linear @ (sip.crpix - crpix)])
    onto_plane[:2] = onto_plane[end.order]
    onto_plane[2] *= _DEGREE
    return _Plane(distortion, _directions(w.crval[end.order], w.lonpole) @ onto_plane)


def _directions(tangent: np.ndarray, lonpole: float) -> np.ndarray:
    """From (xi, eta, 180 / pi) of a tangent plane (degrees) to the sky: a rotation (3, 3).

    Native directions are (-eta, xi, 180 / pi); the native pole is the tangent point (Calabretta & Greisen 2002, eq. 2).
    """
    (ca, cd, cp), (sa, sd, sp) = (f(np.radians([*tangent, lonpole])) for f in (np.cos, np.sin))
    native = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    about_pole = np.array([[cp, sp, 0.0], [-sp, cp, 0.0], [0.0, 0.0, 1.0]])
    tilt = np.array([[-sd, 0.0, cd], [0.0, -1.0, 0.0], [cd, 0.0, sd]])
    return np.array([[ca, -sa, 0.0], [sa, ca, 0.0], [0.0, 0.0, 1.0]]) @ tilt @ about_pole @ native


def _sip(a: np.ndarray, b: np.ndarray, name: str) -> np.ndarray:
    """(2, n + 1, n + 1): u + A(u, v) and v + B(u, v)."""
    degree = max(len(a), len(b), 2) - 1
    if degree > MOST_DEGREE:
        raise UnfitError(f"SIP of {name} is of order {degree}")
    terms = np.zeros((2, degree + 1, degree + 1))
    for k, of in enumerate((a, b)):
        i, j = np.indices(of.shape)
        terms[k, : len(of), : len(of)] = np.where(i + j < len(of), of, 0.0)
    terms[0, 1, 0] += 1
    terms[1, 0, 1] += 1
    return terms


def _tpv(pv: list[tuple[int, int, float]]) -> tuple[np.ndarray | None, np.ndarray]:
    """Terms (2, n + 1, n + 1) and odd powers of the radius (2, 4) of cards (axis, m, value)."""
    radial = np.zeros((2, RADIAL))
    if not pv:
        return None, radial
    terms = np.zeros((2, 8, 8))
    for axis in {1, 2} - {axis for axis, *_ in pv}:
        terms[axis - 1, 2 - axis, axis - 1] = 1.0  # an axis without cards is not distorted
    for axis, m, value in pv:
        degree, other = _TPV[m]
        if other is None:
            radial[axis - 1, degree // 2] = value
        else:  # powers of the axis' own coordinate and of the other one
            powers = (degree - other, other)
            terms[axis - 1][powers if axis == 1 else powers[::-1]] = value
    n = max(int(np.add(*np.nonzero(t)).max(initial=1)) for t in terms)
    return terms[:, : n + 1, : n + 1], radial


_TPV = [
    entry
    for degree in range(8)
    for entry in [*((degree, other) for other in range(degree + 1)), *([(degree, None)] if degree % 2 else [])]
]
"""Degree and power of the other coordinate of each PV number; (degree, None) for a power of the radius."""


def _rotation(chain: SkyChain) -> np.ndarray:
    """From directions in the target's frame to those in the source's."""
    axes = SkyCoord([0.0, 90.0, 0.0], [0.0, 0.0, 90.0], unit="deg", frame=chain.target.frame)
    there = axes.transform_to(chain.source.frame).spherical
    lon, lat = there.lon.rad, there.lat.rad
    turn = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)])
    if np.abs(turn.T @ turn - np.eye(3)).max() > 1e-13:
        raise UnfitError(f"{chain.target.types} to {chain.source.types} is more than a rotation")  # terms of aberration
    return turn
