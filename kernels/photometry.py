# SPDX-License-Identifier: BSD-3-Clause
"""Apertures with exact overlap, and Kron radii, in stamps on the host."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu import photometry as twin

MASKED, COUNTS, NEIGHBOUR, BEYOND = twin.MASKED, twin.COUNTS, twin.NEIGHBOUR, twin.BEYOND
"""What a pixel of a stamp is: unusable, usable, of another source, beyond the image."""


def aperture_sums(
    data: np.ndarray,
    variance: np.ndarray,
    state: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    a: np.ndarray | float,
    b: np.ndarray | float | None = None,
    theta: np.ndarray | float = 0.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Light in circles or ellipses; a pixel counts by the exact area of it that is inside.

    In the place of a masked pixel, or one of a neighbour, stands what is opposite through the centre,
    linearly interpolated (as MASK_TYPE CORRECT of SExtractor, which takes the nearest pixel); where that is unusable
    too, nothing.
    Nothing stands for what is beyond the image.

    Parameters
    ----------
    data, variance : float32 (n, s, s)
    state : uint8 (n, s, s)
        `COUNTS`, `MASKED`, `NEIGHBOUR` or `BEYOND`; what is beyond the stamp is beyond the image.
    x, y : float64 (n,)
        Centres, 0-based in the stamp, px.
    a, b : float64 (n,) or one
        Semi-axes, px; a circle without ``b``.
    theta : float64 (n,) or one
        Of ``a``, from +x to +y, radians.

    Returns
    -------
    sums, variances : float64 (n,)
        What stands in for a pixel is counted as fully correlated with what it is taken from. NaN for an aperture
        without size or place.
    areas : float64 (4, n)
        By state, px^2; they add up to pi a b. Exactly 0 for a state that no pixel in the aperture has.
    """
    n = len(x)
    five = [np.broadcast_to(np.asarray(v, float), n).copy() for v in (x, y, a, a if b is None else b, theta)]
    planes = [np.ascontiguousarray(p, np.float32) for p in (data, variance)]
    out = twin.aperture_sums(planes[0], planes[1], np.ascontiguousarray(state, np.uint8), five)
    return out[0], out[1], out[2:]


def kron_radii(
    data: np.ndarray,
    state: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    theta: np.ndarray,
    reach: float = 6.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean elliptical radius of the light, sum r I / sum I over r <= ``reach`` (Kron 1980), in units of the ellipse.

    Parameters
    ----------
    data, state, x, y, a, b, theta
        As of `aperture_sums`; r is 1 on the ellipse. Pixels that do not count are left out.
    reach : float

    Returns
    -------
    radii : float64 (n,)
        NaN where the light is not positive.
    seen : uint8 (n,)
        Bit s is set where a pixel of state s lies within ``reach``.
    """
    five = [np.ascontiguousarray(np.broadcast_to(v, len(x)), np.float64) for v in (x, y, a, b, theta)]
    light, what = np.ascontiguousarray(data, np.float32), np.ascontiguousarray(state, np.uint8)
    return twin.kron_radii(light, what, five, float(reach))
