# SPDX-License-Identifier: BSD-3-Clause
"""Launchers of the PSF kernels; arguments and results as the twins of ``kernels/cpu/psf.py``."""

from __future__ import annotations

from typing import Any

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.module import kernel
from skydelta.kernels.psf import MARGIN, TERMS, Row

THREADS = 256
"""Of a block, as in ``psf.cu``."""

SHARED = 44 * 1024
"""Bytes of shared memory that every device gives a block beside what its sums take; larger stamps work in global
memory."""

FIELD = np.dtype((np.void, 8 * (3 * int(TERMS[-1]) + 1)))
"""``Field`` of ``psf.cuh``, which goes to a kernel by value: no copy to the device for 19 numbers."""


def _field(coefficients: np.ndarray, slope: float) -> np.ndarray:
    packed = np.zeros(FIELD.itemsize // 8)
    packed[: coefficients.size] = coefficients.ravel()
    packed[-1] = slope
    return packed.view(FIELD)


def _scratch(xp: Any, stars: int, doubles: int, more: int = 0) -> tuple[Array | None, int]:
    """Global work space for all stars, or None and the bytes of shared memory for one: ``doubles`` move, ``more`` stay
    in shared memory."""
    if 8 * (doubles + more) <= SHARED:
        return None, 8 * (doubles + more)
    return xp.empty((stars, doubles)), 8 * more


def star_stamps(
    image: Array,
    variance: Array | None,
    mask: Array | None,
    invalid: int,
    x: np.ndarray,
    y: np.ndarray,
    half: int,
) -> tuple[Array, Array, Array, Array]:
    backend = backend_of(image)
    xp, n, m = backend.xp, len(x), 2 * half + 1
    out = xp.empty((n, m, m)), xp.empty((n, m, m)), xp.empty((n, m, m), bool), xp.empty(n)
    w = m + 2 * MARGIN
    scratch, shared = _scratch(xp, n, w * w + w * m + 2 * w - 1)
    centres = backend.asarray(np.stack([x, y]), np.float64)
    planes = [None if p is None else xp.ascontiguousarray(p) for p in (image, variance, mask)]
    scalars = [np.int32(v) for v in (*image.shape, invalid)]
    arguments = (*planes, *scalars, centres[0], centres[1], np.int32(half), scratch, *out)
    kernel("psf.cu", "star_stamps")((n,), (THREADS,), arguments, shared_mem=shared)
    return out


def profile_sums(
    values: Array,
    kept: Array,
    flux: Array,
    sky: Array,
    noise: Array,
    used: Array,
    phi: Array,
    coefficients: np.ndarray,
    slope: float,
    reach: float,
) -> Array:
    n, m = values.shape[:2]
    out = backend_of(values).xp.empty((n, 20))
    scalars = (_field(coefficients, slope), np.int32(phi.shape[1]), np.int32(m), np.float64(reach))
    kernel("psf.cu", "profile_sums")((n,), (THREADS // 2,), (values, kept, flux, sky, noise, used, phi, *scalars, out))
    return out


def profile_stamps(phi: Array, coefficients: np.ndarray, slope: float, side: int) -> Array:
    n, terms = phi.shape
    out = backend_of(phi).xp.empty((n, side, side))
    scalars = (_field(coefficients, slope), np.int32(terms), np.int32(side))
    kernel("psf.cu", "profile_stamps")((n,), (THREADS,), (phi, *scalars, out))
    return out


def pixel_departure(
    values: Array,
    kept: Array,
    profiles: Array,
    flux: Array,
    sky: Array,
    noise: Array,
    used: Array,
    phi: Array,
) -> Array:
    (n, m), terms = values.shape[:2], phi.shape[1]
    out = backend_of(values).xp.empty((terms, m * m + terms))
    arrays = (values, kept, profiles, flux, sky, noise, used, phi)
    function = kernel("psf.cu", "pixel_departure", (str(terms),))
    function((-(-m * m // 32),), (THREADS,), (*arrays, np.int32(n), np.int32(m), out))
    return out


def compare_stars(
    values: Array,
    variance: Array,
    usable: Array,
    kept: Array,
    profiles: Array,
    phi: Array,
    departure: Array,
    blurred: Array,
    fwhm: float,
) -> tuple[Array, Array]:
    xp = backend_of(values).xp
    n, m = values.shape[:2]
    rows, after = xp.empty((len(Row), n)), xp.empty(values.shape, bool)
    sigma = fwhm / np.sqrt(8 * np.log(2))
    width = int(3 * sigma + 0.5)
    scratch, shared = _scratch(xp, n, 4 * m * m, 2 * width + 1)
    arrays = (values, variance, usable, kept, profiles, phi, departure, blurred)
    scalars = (np.float64(fwhm), np.float64(sigma), *(np.int32(v) for v in (width, phi.shape[1], m)))
    kernel("psf.cu", "compare_stars")((n,), (THREADS,), (*arrays, *scalars, scratch, rows, after), shared_mem=shared)
    return rows, after
