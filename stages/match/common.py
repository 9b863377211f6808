# SPDX-License-Identifier: BSD-3-Clause
"""Which stamps show the same light in both images: a source that only one has seen tells nothing about the kernel."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.stages.match.stamps import Stamps
from skydelta.stages.robust import median

SEEN = 5.0
"""Signal-to-noise in the other image of a stamp that shows there."""

SIGNIFICANT = 5.0
"""Standard deviations by which the flux ratio of a stamp that has changed differs from the usual one."""

FACTOR = 2.0
"""And by more than this factor: what a flat field or a varying PSF does is the kernel's business."""

JUDGES = 3
"""Stamps that show in both images needed to tell which of them is not like the others."""


def shared_light(stamps: Stamps, light: Array, spread: float, fwhm: float) -> tuple[np.ndarray, np.ndarray]:
    """Compare the light in the middle of each stamp between the two images.

    A fit cannot tell: where stamps are few, a bright source that only one image has outweighs all others, and the
    kernel that makes it vanish has a chi2 of one.

    Fluxes f = sum g I / sum g^2 under a Gaussian g of the broad image's width, the sharp image smoothed to it.

    Parameters
    ----------
    stamps : Stamps
    light : float32 (n, m, m)
        `smoothed` with this spread.
    spread : float
        Gaussian matching width, px.
    fwhm : float
        Of a source in the broad image, px.

    Returns
    -------
    seen, like : bool (n,)
        Stamps with a source in the broad image too, and those whose flux ratio is not far from the usual one.
    """
    xp, m, sigma = backend_of(stamps.sharp).xp, stamps.broad.shape[1], fwhm / 2.3548
    o = np.arange(m) - m // 2
    plain = np.exp(-(o[:, None] ** 2 + o**2) / (2 * sigma**2))
    g, norm = backend_of(stamps.sharp).asarray(plain.astype(np.float32)), float((plain**2).sum())
    planes = (
        g * light,
        g * stamps.broad,
        g * g * stamps.sharp_variance,
        g * g * stamps.broad_variance,
    )
    sharp, broad, var_sharp, var_broad = to_host(xp.stack([p.sum(axis=(1, 2), dtype=np.float64) for p in planes]))
    # smoothing takes noise off: of a Gaussian seen through another one
    var_sharp *= sigma**2 / (sigma**2 + spread**2)
    sharp, broad, var_sharp, var_broad = sharp / norm, broad / norm, var_sharp / norm**2, var_broad / norm**2
    seen = broad > SEEN * np.sqrt(var_broad)
    if not seen.any():
        return seen, seen
    sharp = np.maximum(sharp, np.sqrt(var_sharp))
    ratio = broad / sharp
    several = seen.sum() >= JUDGES
    usual = float(median(ratio[seen]) if several else ratio[seen].min())
    off = np.abs(ratio - usual) > SIGNIFICANT * np.sqrt(var_broad + usual**2 * var_sharp) / sharp
    off &= (ratio < usual / FACTOR) | (several & (ratio > usual * FACTOR))
    return seen, ~off
