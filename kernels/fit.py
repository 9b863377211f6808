# SPDX-License-Identifier: BSD-3-Clause
"""Batched fits of point sources and dipoles with a known PSF: the whole optimisation of a stamp in one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from scipy.ndimage import spline_filter1d

from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance, implementation, register

FIT = register(
    KernelSpec(
        name="fit_lobes",
        twin="skydelta.kernels.cpu.fit:fit_lobes",
        launch="skydelta.kernels.cuda.fit:fit_lobes",
        reference="skydelta.kernels.cpu.reference_fit:fit_lobes",
        # one lobe on sm_100: 22 B kept in local memory buy a third block on every multiprocessor
        entries=(CudaEntry("fit.cu", "fit_lobes", (("1",), ("2",)), max_spill=24),),
        halo="the stamp",
        bytes_per_pixel=8.0,
        tolerance=Tolerance(1e-4, 1e-4, "two optimisers stop within 1e-5 px of the same minimum"),
    )
)

BOUND = 5.0
"""Fitted positions stay this near their start, px an axis."""

MAX_EVALUATIONS = 60


class Status(IntEnum):
    """How a fit ended."""

    CONVERGED = 0
    AT_BOUND = 1
    SINGULAR = 2
    MAX_EVALUATIONS = 3
    NO_DATA = 4


@dataclass(frozen=True)
class LobeFit:
    """Result of `fit_lobes`, on the host.

    Attributes
    ----------
    parameters : float64 (n, 3 k + 1)
        flux, x, y of each lobe, then the background; x and y from the middle of the stamp, px.
    covariance : float64 (n, 3 k + 1, 3 k + 1)
        (J^T W J)^-1; NaN where singular.
    chi2 : float64 (n,)
    evaluations, status : int32 (n,)
        `Status`.
    moment : float64 (n, 4), moment_covariance : float64 (n, 4, 4), moment_chi2 : float64 (n,)
        The linear dipole at the first start position: flux, moment_x, moment_y, background of
        m = F P - M . grad P + b. Only with one lobe; NaN with two.
    """

    parameters: np.ndarray
    covariance: np.ndarray
    chi2: np.ndarray
    evaluations: np.ndarray
    status: np.ndarray
    moment: np.ndarray
    moment_covariance: np.ndarray
    moment_chi2: np.ndarray


def spline_coefficients(psf: np.ndarray) -> np.ndarray:
    """Cubic B-spline coefficients of PSF stamps (n, ph, pw), mirrored at the border."""
    out = np.asarray(psf, np.float64)
    for axis in (1, 2):
        out = spline_filter1d(out, 3, axis, mode="mirror")
    return np.ascontiguousarray(out)


def lobe_stamps(coefficients: np.ndarray, x: np.ndarray, y: np.ndarray, side: int) -> np.ndarray:
    """PSFs (n, p, p), given by `spline_coefficients`, drawn at (x, y) px from the middle of stamps (n, side, side)."""
    n, p = coefficients.shape[:2]
    pixels = np.arange(side) - side // 2 + p // 2
    (j, wy), (i, wx) = _taps(pixels - np.asarray(y)[:, None], p), _taps(pixels - np.asarray(x)[:, None], p)
    lines = np.einsum("nskp,nsk->nsp", coefficients[np.arange(n)[:, None, None], j], wy)
    taken = np.take_along_axis(lines, i.reshape(n, 1, 4 * side), axis=2).reshape(n, side, side, 4)
    return np.einsum("nstk,ntk->nst", taken, wx)


def _taps(at: np.ndarray, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices and weights (..., 4) of the B-spline coefficients for positions on 0..p - 1, mirrored; outside is 0."""
    first = np.clip(np.floor(at), 0, p - 2).astype(int)
    t = at - first
    s = 1 - t
    weights = np.stack([s**3, 4 - 6 * t**2 + 3 * t**3, 4 - 6 * s**2 + 3 * s**3, t**3], -1) / 6
    weights *= ((at >= 0) & (at <= p - 1))[..., None]
    index = np.abs(first[..., None] + np.arange(-1, 3))
    return np.minimum(index, 2 * (p - 1) - index), weights


def fit_lobes(data: Array, weight: Array, psf: np.ndarray, start: np.ndarray) -> LobeFit:
    """Fit m(x) = sum_k F_k P(x - x_k) + b to every stamp.

    Positions by Levenberg-Marquardt, fluxes and background solved exactly at every position (variable projection,
    Golub & Pereyra 1973; Kaufman 1975): one pass over the pixels sums the Gram matrix of value and gradient columns,
    which gives chi2, gradient and curvature at once. P is a cubic B-spline through the PSF stamp, its derivatives are
    exact. Each stamp is on its own: results do not depend on the batch.

    Parameters
    ----------
    data, weight : float32 (n, s, s)
        Odd s; weight is inverse variance, 0 for bad pixels (whose data must be finite).
    psf : float64 (n, p, p)
        `spline_coefficients` of the PSF of each stamp; p odd.
    start : float64 (n, k, 2)
        x, y of each lobe from the middle of the stamp, px; k is 1 or 2.
    """
    raw = implementation(FIT, backend_of(data))(data, weight, psf, start)
    return LobeFit(*(to_host(a) for a in raw))
