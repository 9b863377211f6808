# SPDX-License-Identifier: BSD-3-Clause
"""The matching kernel's part of the errors of fluxes in a difference: one way for all stages that report such."""

from __future__ import annotations

import numpy as np

from skydelta.io.exposure import Exposure
from skydelta.kernels.backend import backend_of
from skydelta.kernels.fit import subtract_lobes
from skydelta.stages.lobes import Stamps


def kernel_flux_errors(image: Exposure, stamps: Stamps, at: np.ndarray, flux: np.ndarray) -> np.ndarray:
    """What the error of the kernel adds to that of the flux of each stamp's point source: float64 (n,).

    Parameters
    ----------
    image : Exposure
        That the stamps are cut from.
    stamps : Stamps
    at : float64 (n, 2)
        x, y of the sources from the middle of the stamps, px.
    flux : float64 (n,)
        Of each.

    Returns
    -------
    float64 (n,); NaN where that of the kernel is not known, or no flux.
    """
    if image.kernel_error is None or not len(flux):
        return np.full(len(flux), np.nan)
    xp, known = backend_of(stamps.data).xp, np.isfinite(at).all(axis=1) & np.isfinite(flux)
    place = np.where(known[:, None], at, 0)
    lobes = np.concatenate([np.full((len(flux), 1), -1.0), place], axis=1)
    every = np.arange(len(flux) + 1)
    psf = subtract_lobes(xp.zeros_like(stamps.data), xp.ones_like(stamps.weight), stamps.psf, every, lobes)
    x, y = (place + stamps.middle).T
    made = image.kernel_error.flux_errors(x, y, stamps.middle, psf, stamps.weight, flux, stamps.terms)
    return np.where(known, made, np.nan)


def with_kernel(error: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Errors of fluxes with the kernel's part, in quadrature, where that is known."""
    return np.hypot(error, np.nan_to_num(kernel))
