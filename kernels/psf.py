# SPDX-License-Identifier: BSD-3-Clause
"""The work on star stamps that a PSF measurement repeats: Moffat profiles, their fit, pixels beside them, comparison.

Stamps stay where they are; what comes back for the host to decide on are a few numbers for each star or each pixel of
one stamp.

The profile is an elliptical Moffat function (1 + r^2 / a^2)^-beta with
r^2 = ((1 - e1) dx^2 - 2 e2 dx dy + (1 + e1) dy^2) / sqrt(1 - e1^2 - e2^2), px. ln a, e1 and e2 are polynomials over the
field, ``coefficients`` (3, n_p) times the spatial terms ``phi`` (n, n_p) of each star, kept within `SCALE_BOUND` of the
mean and within `SHAPE_BOUND`; ``slope`` is ln(beta - 1).
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance, implementation, register

SCALE_BOUND = 0.7
"""ln a of a star stays this near the mean over the field."""

SHAPE_BOUND = 0.6
"""Of e1 and e2."""

SHAPE_ERROR = 0.03
"""How far a Moffat profile may be off a real one, relative: balances core and wings in its fit."""

MODEL_ERROR = 0.01
"""Of the model: brighter stars than this much noise at the peak do not count for more."""

PIXEL_CLIP = 5.0
"""Single pixels that far off leave, in units of noise and a tenth of the model."""

OWN = 4
"""Parameters of each star: flux, sky level and centre."""

MARGIN = 6
"""Pixels around a stamp that fade to zero, so that a shift in Fourier space does not ring."""

NO_WIDTH = 1e6
"""Error of d ln(FWHM) where the pixels do not tell it."""

TERMS = ("1", "3", "6")
"""Spatial terms that kernels are made for: total degree 0, 1 and 2."""


class Row(IntEnum):
    """Rows of what `compare_stars` finds."""

    FLUX = 0
    SKY = 1
    RESIDUAL = 2
    BROADER = 3
    ERROR = 4
    CHI2 = 5
    EXCESS = 6
    PEAK = 7


def _spec(name: str, templates: tuple[tuple[str, ...], ...], traffic: float, tolerance: Tolerance) -> KernelSpec:
    # a few bytes are saved around the calls that divide double precision numbers
    return register(
        KernelSpec(
            name=name,
            twin=f"skydelta.kernels.cpu.psf:{name}",
            launch=f"skydelta.kernels.cuda.psf:{name}",
            reference=f"skydelta.kernels.cpu.reference_psf:{name}",
            entries=(CudaEntry("psf.cu", name, templates, max_spill=24),),
            halo="the stamp",
            bytes_per_pixel=traffic,
            tolerance=tolerance,
        )
    )


_EACH = tuple((t,) for t in TERMS)
_SUMS = Tolerance(1e-9, 1e-9, "float64 sums in different order")
STAR_STAMPS = _spec("star_stamps", ((),), 29.0, _SUMS)
PROFILE_SUMS = _spec("profile_sums", ((),), 9.0, Tolerance(1e-9, 1e-7, "float64 sums whose largest terms cancel"))
PROFILE_STAMPS = _spec("profile_stamps", ((),), 8.0, _SUMS)
PIXEL_DEPARTURE = _spec("pixel_departure", _EACH, 17.0, _SUMS)
COMPARE_STARS = _spec("compare_stars", ((),), 35.0, _SUMS)


def star_stamps(
    image: Array,
    variance: Array | None,
    mask: Array | None,
    invalid: int,
    x: np.ndarray,
    y: np.ndarray,
    half: int,
) -> tuple[Array, Array, Array, Array]:
    """Stamps of stars shifted so that their centres come to the middle pixel, with variance and usable pixels.

    The shift is one in Fourier space of a stamp that is `MARGIN` px larger all around, where it fades to zero (sin^2).
    Averaged over stars at random fractions of a pixel this is unbiased even where the PSF is undersampled, because
    aliases change sign. Unusable pixels take the value of the opposite pixel, or zero. As the side w of the larger
    stamp is odd, the shift is a sum over the pixels of a line, then of a column, with the weights
    sin(pi t) / (w sin(pi t / w)) at the distance t (trigonometric interpolation).

    Parameters
    ----------
    image, variance : float32 (H, W)
    mask : int32 (H, W) or None
    invalid : int
        Bits of the mask that make a pixel unusable; so do values that are not finite and a variance that is not
        positive, and what is beyond the frame.
    x, y : float64 (n,), on the host
        Centres, 0-based px.
    half : int
        Half-size of the stamps, px.

    Returns
    -------
    values : float64 (n, m, m)
    variance : float64 (n, m, m)
        Not shifted; the typical one at unusable pixels. Zeros without a variance plane.
    usable : bool (n, m, m)
        Not shifted.
    typical : float64 (n,)
        Lower median of the variance of the usable pixels; 0 without any.
    """
    run = implementation(STAR_STAMPS, backend_of(image))
    return run(image, variance, mask, invalid, x, y, half)


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
    """What a Gauss-Newton step of the profile needs from each star, its amplitude eliminated.

    With the columns c = d(amplitude * profile) / d(ln a, e1, e2, ln(beta - 1)), freed of their part along the profile,
    and the weight 1 / (noise^2 + (`SHAPE_ERROR` * amplitude * profile)^2): sum w c c^T and sum w c (value - model).

    Parameters
    ----------
    values : float64 (n, m, m)
        Star stamps, centred.
    kept : bool (n, m, m)
        Pixels that take part.
    flux, sky, noise : float64 (n,)
        Of each star: flux, sky level and standard deviation of a pixel.
    used : bool (n,)
        Other stars give zeros.
    phi : float64 (n, n_p)
    coefficients : float64 (3, n_p), on the host
    slope : float
    reach : float
        Pixels within this distance of the middle take part, px.

    Returns
    -------
    float64 (n, 20)
        The 4 x 4 matrix row by row, then the right-hand side.
    """
    run = implementation(PROFILE_SUMS, backend_of(values))
    return run(values, kept, flux, sky, noise, used, phi, coefficients, slope, reach)


def profile_stamps(phi: Array, coefficients: np.ndarray, slope: float, side: int) -> Array:
    """Profiles of unit sum at places with spatial terms phi (n, n_p): float64 (n, side, side), odd side."""
    return implementation(PROFILE_STAMPS, backend_of(phi))(phi, coefficients, slope, side)


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
    """How normalised stars depart from their profiles, each pixel a polynomial over the field by least squares.

    A star weighs 1 / ((noise / flux)^2 + (`MODEL_ERROR` * peak of the profile)^2), the same in all its pixels. A
    millionth of the matrix of all stars keeps pixels that too few of them see.

    Parameters
    ----------
    values, kept, flux, sky, noise, used, phi
        As in `profile_sums`.
    profiles : float64 (n, m, m)

    Returns
    -------
    float64 (n_p, m m + n_p)
        The image of each spatial term, row by row, then its row of the sum over the stars of weight phi phi^T, whose
        inverse is the covariance of a pixel: one array, so that both come to the host at once.
    """
    run = implementation(PIXEL_DEPARTURE, backend_of(values))
    return run(values, kept, profiles, flux, sky, noise, used, phi)


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
    """Fit flux and sky level of each star to its model, and say how the star differs from it.

    The model is profile + sum_p phi_p departure_p, of unit sum. What stands out of a residual is found with a Gaussian
    filter of the stars' width, out to 3 sigma, zero beyond the stamp, unusable pixels zero.

    Parameters
    ----------
    values, variance : float64 (n, m, m)
    usable : bool (n, m, m)
    kept : bool (n, m, m)
        Usable pixels that determine flux and sky level.
    profiles : float64 (n, m, m)
    phi : float64 (n, n_p)
    departure : float64 (n_p, m, m)
    blurred : float64 (n, m, m)
        Variance of a pixel of the filtered residual.
    fwhm : float
        px.

    Returns
    -------
    rows : float64 (8, n)
        `Row`: flux; sky level; largest signal-to-noise in the residual within 2 FWHM, `MODEL_ERROR` of the filtered
        star counted as noise; d ln(FWHM) from the pixels within 1.5 FWHM, flux and width fitted; its error; chi2 per
        degree of freedom within one FWHM; there the mean square of star minus model less the expected variance, over
        the peak's square; peak of the model times flux.
    kept : bool (n, m, m)
        Usable pixels less than `PIXEL_CLIP` off in units of noise and a tenth of the model, or within half a FWHM.
    """
    run = implementation(COMPARE_STARS, backend_of(values))
    return run(values, variance, usable, kept, profiles, phi, departure, blurred, fwhm)
