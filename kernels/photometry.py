# SPDX-License-Identifier: BSD-3-Clause
"""Apertures with exact overlap, and Kron radii, in stamps on the host."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu import photometry as twin


def aperture_sums(
    data: np.ndarray,
    variance: np.ndarray,
    use: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    a: np.ndarray | float,
    b: np.ndarray | float | None = None,
    theta: np.ndarray | float = 0.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Light in circles or ellipses; a pixel counts by the exact area of it that is inside.

    Parameters
    ----------
    data, variance : float32 (n, s, s)
    use : bool (n, s, s)
        Pixels that count.
    x, y : float64 (n,)
        Centres, 0-based in the stamp, px.
    a, b : float64 (n,) or one
        Semi-axes, px; a circle without ``b``.
    theta : float64 (n,) or one
        Of ``a``, from +x to +y, radians.

    Returns
    -------
    sums, variances, areas : float64 (n,)
        Over the pixels that count; an aperture's whole area is pi a b. NaN for an aperture without size or place.
    """
    n = len(x)
    five = [np.broadcast_to(np.asarray(v, float), n).copy() for v in (x, y, a, a if b is None else b, theta)]
    planes = [np.ascontiguousarray(p, np.float32) for p in (data, variance)]
    sums, variances, areas = twin.aperture_sums(planes[0], planes[1], np.ascontiguousarray(use, bool), five)
    return sums, variances, areas


def kron_radii(
    data: np.ndarray,
    use: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    theta: np.ndarray,
    reach: float = 6.0,
) -> np.ndarray:
    """Mean elliptical radius of the light, sum r I / sum I over r <= ``reach`` (Kron 1980), in units of the ellipse.

    Parameters
    ----------
    data, use, x, y, a, b, theta
        As of `aperture_sums`; r is 1 on the ellipse.
    reach : float

    Returns
    -------
    float64 (n,), NaN where the light is not positive.
    """
    five = [np.ascontiguousarray(np.broadcast_to(v, len(x)), np.float64) for v in (x, y, a, b, theta)]
    return twin.kron_radii(np.ascontiguousarray(data, np.float32), np.ascontiguousarray(use, bool), five, float(reach))
