# SPDX-License-Identifier: BSD-3-Clause
"""Batched fits of point sources and dipoles with a known PSF: the whole optimisation of a stamp in one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance, implementation, register

FIT = register(
    KernelSpec(
        name="fit_lobes",
        twin="skydelta.kernels.cpu.fit:fit_lobes",
        launch="skydelta.kernels.cuda.fit:fit_lobes",
        reference="skydelta.kernels.cpu.reference_fit:fit_lobes",
        entries=(CudaEntry("fit.cu", "fit_lobes", tuple((k, b) for k in "12" for b in "013")),),
        halo="the stamp",
        bytes_per_pixel=8.0,
        tolerance=Tolerance(1e-4, 1e-4, "two optimisers stop within 1e-5 px of the same minimum"),
    )
)

LINEAR = register(
    KernelSpec(
        name="linear_dipole",
        twin="skydelta.kernels.cpu.moment:linear_dipole",
        launch="skydelta.kernels.cuda.fit:linear_dipole",
        reference="skydelta.kernels.cpu.reference_fit:linear_dipole",
        entries=(CudaEntry("fit.cu", "linear_dipole", (("0",), ("1",), ("3",))),),
        halo="the stamp",
        bytes_per_pixel=8.0,
        tolerance=Tolerance(2e-3, 2e-3, "slopes by differences, and a centre within a hundredth of its error"),
    )
)

SUBTRACT = register(
    KernelSpec(
        name="subtract_lobes",
        twin="skydelta.kernels.cpu.fit:subtract_lobes",
        launch="skydelta.kernels.cuda.fit:subtract_lobes",
        reference="skydelta.kernels.cpu.reference_fit:subtract_lobes",
        entries=(CudaEntry("fit.cu", "subtract_lobes"),),
        halo="the stamp",
        bytes_per_pixel=12.0,
        tolerance=Tolerance(1e-6, 1e-4, "float32 pixels of which several lobes are taken away one by one"),
    )
)

SPLINE = register(
    KernelSpec(
        name="spline_coefficients",
        twin="skydelta.kernels.cpu.fit:spline_coefficients",
        launch="skydelta.kernels.cuda.fit:spline_coefficients",
        reference="skydelta.kernels.cpu.reference_fit:spline_coefficients",
        entries=(CudaEntry("fit.cu", "spline_coefficients"),),
        halo="the stamp",
        bytes_per_pixel=32.0,
        tolerance=Tolerance(1e-12, 1e-13, "float64, a recursion against elimination"),
    )
)

BOUND = 5.0
"""Fitted positions stay this near their start, px an axis."""

LEAST_WIDTH = 0.5
"""Smallest width of fitted Gaussians, px; the largest is a third of the stamp."""

SPOT = 0.25
"""Sigma, px, of the light of a cosmic ray in the detector; a hot pixel holds 91 % of such a spot in its middle."""

MAX_EVALUATIONS = 60

TURNS, SETTLED = 20, 0.005
"""Most of Newton's steps to the centre of a linear dipole, and how long the last is at most, in its errors."""

BACKGROUNDS = {"none": 0, "constant": 1, "plane": 3}
"""Terms of each: the first of 1, x, y (px from the middle of the stamp)."""


class Status(IntEnum):
    """How a fit ended."""

    CONVERGED = 0
    AT_BOUND = 1
    SINGULAR = 2
    MAX_EVALUATIONS = 3
    NO_DATA = 4


def of_background(values: np.ndarray, terms: int) -> np.ndarray:
    """The last ``terms`` columns (n, 3), 0 where there are fewer."""
    out = np.zeros((len(values), 3))
    out[:, :terms] = values[:, values.shape[1] - terms :]
    return out


@dataclass(frozen=True)
class LobeFit:
    """Result of `fit_lobes`, on the host.

    Attributes
    ----------
    parameters : float64 (n, 3 k + b)
        flux, x, y of each lobe, the width of Gaussians or x, y from one end of a trail to the other, then the b terms
        of the background; x and y of lobes from the middle of the stamp, px.
    covariance : float64 (n, 3 k + b, 3 k + b)
        (J^T W J)^-1; NaN where singular.
    chi2 : float64 (n,)
    evaluations, status, pixels : int32 (n,)
        `Status`; pixels are those with weight.
    moment : float64 (n, 3 + b), moment_covariance : float64 (n, 3 + b, 3 + b), moment_chi2 : float64 (n,)
        The linear dipole at the first start position: flux, moment_x, moment_y, terms of the background of
        m = F P - M . grad P + b. Only with one lobe; NaN with two.
    sharpness : float64 (n,)
        Highest usable of the middle 3 x 3 pixels above the background, over the fitted PSF there. Only with one lobe.
    """

    parameters: np.ndarray
    covariance: np.ndarray
    chi2: np.ndarray
    evaluations: np.ndarray
    status: np.ndarray
    pixels: np.ndarray
    moment: np.ndarray
    moment_covariance: np.ndarray
    moment_chi2: np.ndarray
    sharpness: np.ndarray

    @property
    def usable(self) -> np.ndarray:
        """bool (n,): the parameters mean something."""
        return (self.status != Status.NO_DATA) & (self.status != Status.SINGULAR)

    @property
    def errors(self) -> np.ndarray:
        """float64 (n, 3 k + b): of the parameters."""
        return np.sqrt(np.diagonal(self.covariance, axis1=1, axis2=2))

    @property
    def lobes(self) -> int:
        """k."""
        return (self.parameters.shape[1] - self.terms) // 3

    @property
    def has_width(self) -> bool:
        """The width of the lobes is a parameter."""
        return (self.parameters.shape[1] - self.terms) % 3 == 1

    @property
    def is_trail(self) -> bool:
        """The light lies along a segment."""
        return (self.parameters.shape[1] - self.terms) % 3 == 2

    @property
    def terms(self) -> int:
        """b, of the background."""
        return self.moment.shape[1] - 3

    @property
    def background(self) -> np.ndarray:
        """float64 (n, 3): its level in the middle of the stamp and slopes per px; 0 where it has none."""
        return of_background(self.parameters, self.terms)

    @property
    def background_errors(self) -> np.ndarray:
        """float64 (n, 3): of these."""
        return of_background(self.errors, self.terms)

    def take(self, rows: np.ndarray | slice) -> LobeFit:
        """Some of the fits; those of a slice share its arrays."""
        return LobeFit(*(values[rows] for values in vars(self).values()))


@dataclass(frozen=True)
class LinearDipole:
    """Result of `linear_dipole`, on the host, float64.

    Attributes
    ----------
    chi2 : (n,)
        NaN where there are too few pixels.
    place, error : (n, 2)
        x, y of the centre from the middle of the stamp, px, and their standard deviations.
    moment : (n, 3 + b)
        Flux, moment_x, moment_y, terms of the background.
    covariance : (n, 3 + b, 3 + b)
        Of these, with what the centre's error adds.
    """

    chi2: np.ndarray
    place: np.ndarray
    error: np.ndarray
    moment: np.ndarray
    covariance: np.ndarray


def spline_coefficients(psf: Array) -> Array:
    """Cubic B-spline coefficients, float64, of PSF stamps (n, ph, pw), mirrored at the border."""
    return implementation(SPLINE, backend_of(psf))(psf)


def subtract_lobes(data: Array, weight: Array, psf: Array, first: np.ndarray, lobes: np.ndarray) -> Array:
    """Stamps less the light of known sources.

    Parameters
    ----------
    data, weight : float32 (n, s, s)
        Pixels without weight are left as they are.
    psf : float64 (n, p, p)
        `spline_coefficients` of the PSF of each stamp; p odd.
    first : int (n + 1,)
        The lobes of stamp k are those from ``first[k]`` up to ``first[k + 1]``.
    lobes : float64 (m, 3)
        flux, and x, y from the middle of the stamp, px.

    Returns
    -------
    float32 (n, s, s), where ``data`` is
    """
    return implementation(SUBTRACT, backend_of(data))(data, weight, psf, first, lobes)


def fit_lobes(
    data: Array,
    weight: Array,
    psf: Array,
    start: np.ndarray,
    stamp: np.ndarray | None = None,
    limit: int = MAX_EVALUATIONS,
    terms: int = 1,
) -> LobeFit:
    """Fit m(x) = sum_k F_k P(x - x_k) + b to stamps; b is nothing, a constant or a plane.

    Positions by Levenberg-Marquardt, fluxes and background solved exactly at every position (variable projection,
    Golub & Pereyra 1973; Kaufman 1975): one pass over the pixels sums the Gram matrix of value and gradient columns,
    which gives chi2, gradient and curvature at once. P is a cubic B-spline through the PSF stamp, its derivatives are
    exact. Each fit is on its own: results do not depend on the batch.

    Parameters
    ----------
    data, weight : float32 (m, s, s)
        Odd s of at least 3; weight is inverse variance, 0 for bad pixels (whose data must be finite).
    psf : float64 (m, p, p)
        `spline_coefficients` of the PSF of each stamp; p odd.
    start : float64 (n, k, 2)
        x, y of each lobe from the middle of the stamp, px; k is 1 or 2.
    stamp : int (n,), optional
        Which stamp each fit is about; fit i is about stamp i if not given.
    limit : int
        Most evaluations of a fit. With 1 the positions stay at the start: all that is found is linear.
    terms : int
        Of the background: one of the values of `BACKGROUNDS`.
    """
    return LobeFit(*implementation(FIT, backend_of(data))(data, weight, psf, start, stamp, limit, terms))


def linear_dipole(
    data: Array, weight: Array, psf: Array, start: np.ndarray, width: np.ndarray, stamp: np.ndarray, terms: int = 1
) -> LinearDipole:
    """Fit m(x) = F P(x - c) - M . grad P(x - c) + b to stamps, c free: what two lobes are that are nearly one.

    Everything but c is linear and solved at each place; c by Newton's steps, with slopes and curvatures of chi2 from
    places beside it. No centre is further than `BOUND` from its start, along either axis.

    Parameters
    ----------
    data, weight, psf
        As in `fit_lobes`.
    start : float64 (n, 2)
        x, y of the centre from the middle of the stamp, px.
    width : float64 (n,)
        Sigma of the PSF, px: no step is longer.
    stamp : int (n,)
        Which stamp each fit is about.
    terms : int
        Of the background: one of the values of `BACKGROUNDS`.
    """
    rows = implementation(LINEAR, backend_of(data))(data, weight, psf, start, width, stamp, terms)
    n = 3 + terms
    return LinearDipole(rows[:, 0], rows[:, 1:3], rows[:, 3:5], rows[:, 5 : 5 + n], rows[:, 5 + n :].reshape(-1, n, n))


def fit_gaussians(
    data: Array,
    weight: Array,
    start: np.ndarray,
    stamp: np.ndarray | None = None,
    limit: int = MAX_EVALUATIONS,
    terms: int = 1,
) -> LobeFit:
    """Fit m = F1 G(x - x1; s) + F2 G(x - x2; s) + b to stamps, G the unit Gaussian of free width s, at pixel centres.

    As `fit_lobes`, with the width as one more parameter of the Levenberg-Marquardt fit. Parameters are flux, x, y of
    both lobes, the width (sigma, px), then the background. It runs on the CPU, whose copy is made of pixels that are on
    a device.

    Parameters
    ----------
    data, weight, stamp, limit, terms
        As those of `fit_lobes`.
    start : float64 (n, 5)
        x, y, x, y of the lobes from the middle of the stamp, and the width, px.
    """
    from skydelta.kernels.cpu.fit import fit_gaussians as twin

    return LobeFit(*twin(to_host(data), to_host(weight), start, stamp, limit, terms))


def fit_trails(
    data: Array,
    weight: Array,
    psf: Array | None,
    start: np.ndarray,
    stamp: np.ndarray | None = None,
    limit: int = MAX_EVALUATIONS,
    terms: int = 1,
) -> LobeFit:
    """Fit m = F integral of P(x - c - s t) over s from -1/2 to 1/2, and b: a source that moved by t, steadily.

    The model of Veres et al. (2012) for any PSF, by Gauss-Legendre nodes along the segment (Gaussians to 1e-5), with
    the exact derivatives of that sum; the optimisation is that of `fit_lobes`. c stays within `BOUND` of its start, t
    within the stamp's side, along either axis. It runs on the CPU, whose copy is made of pixels that are on a device.

    Parameters
    ----------
    data, weight, stamp, limit, terms
        As those of `fit_lobes`.
    psf : float64 (m, p, p) or (1, p, p), or None
        As that of `fit_lobes`. None is light that no PSF has passed: a round Gaussian of `SPOT` px summed over pixels.
    start : float64 (n, 4) or (n, 2)
        x, y of the middle from that of the stamp, px, and t; without t the light did not move.
    """
    from skydelta.kernels.cpu.fit import fit_trails as twin

    response = np.ones((1, 1, 1)) if psf is None else to_host(psf)
    return LobeFit(*twin(to_host(data), to_host(weight), response, start, stamp, limit, terms))


def subtract_trails(data: Array, weight: Array, psf: Array | None, trails: np.ndarray) -> np.ndarray:
    """Stamps less one trail each, float32 (n, s, s) on the host.

    Parameters
    ----------
    data, weight, psf
        As those of `fit_trails`.
    trails : float64 (n, 5)
        Flux, x, y, and t; NaN for none.
    """
    from skydelta.kernels.cpu.fit import subtract_lobes as twin
    from skydelta.kernels.cpu.shifted import NODES, SHARES

    sources, count = [np.zeros((0, 3))], []
    for flux, x, y, across, down in trails.tolist():
        # a piece for every pixel is enough for any PSF
        pieces = int(np.hypot(across, down)) + 1 if np.isfinite(flux + across + down) else 0
        at = ((np.arange(pieces)[:, None] + 0.5 + NODES) / max(pieces, 1) - 0.5).ravel()
        count.append(len(at))
        sources.append(np.stack([flux * np.tile(SHARES, pieces) / max(pieces, 1), x + at * across, y + at * down], 1))
    response = np.ones((1, 1, 1)) if psf is None else to_host(psf)
    first = np.concatenate([[0], np.cumsum(count)])
    return twin(to_host(data), to_host(weight), response, first, np.concatenate(sources))
