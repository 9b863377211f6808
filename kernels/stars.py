# SPDX-License-Identifier: BSD-3-Clause
"""Peaks of smoothed light, and what is measured in a window around each of them."""

from __future__ import annotations

import functools

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance, implementation, register

LARGEST_RADIUS = 24
"""Of the smoothing filter, px: the halo of a block fits the shared memory that every device has."""

USUAL_RADIUS = 4
"""Of that filter for most images, px: the compiler unrolls it."""

STILL = 1e-10
"""Centroids that move less than this in an iteration have arrived, px."""

SMOOTH = register(
    KernelSpec(
        name="smooth_masked",
        twin="skydelta.kernels.cpu.stars:smooth_masked",
        launch="skydelta.kernels.cuda.stars:smooth_masked",
        reference="skydelta.kernels.cpu.reference_stars:smooth_masked",
        entries=(CudaEntry("stars.cu", "smooth_masked", (("0",), (str(USUAL_RADIUS),))),),
        halo="the filter's radius",
        bytes_per_pixel=9.0,
        tolerance=Tolerance(2e-7, 1e-30, "double sums in the same order, each direction rounded once to single"),
    )
)

PEAKS = register(
    KernelSpec(
        name="light_peaks",
        twin="skydelta.kernels.cpu.stars:light_peaks",
        launch="skydelta.kernels.cuda.stars:light_peaks",
        reference="skydelta.kernels.cpu.reference_stars:light_peaks",
        entries=(CudaEntry("stars.cu", "light_peaks"),),
        halo="the circle's radius",
        bytes_per_pixel=9.0,
        tolerance=Tolerance(0.0, 0.0, "comparisons, one root and one division in single precision"),
    )
)

SAMPLE = register(
    KernelSpec(
        name="sample_snr",
        twin="skydelta.kernels.cpu.stars:sample_snr",
        launch="skydelta.kernels.cuda.stars:sample_snr",
        reference="skydelta.kernels.cpu.reference_stars:sample_snr",
        entries=(CudaEntry("stars.cu", "sample_snr"),),
        halo="none",
        bytes_per_pixel=13.0,
        tolerance=Tolerance(0.0, 0.0, "one root and one division in single precision"),
    )
)

LEVELS = register(
    KernelSpec(
        name="robust_levels",
        twin="skydelta.kernels.cpu.stars:robust_levels",
        launch="skydelta.kernels.cuda.stars:robust_levels",
        reference="skydelta.kernels.cpu.reference_stars:robust_levels",
        entries=(CudaEntry("stars.cu", "robust_levels"),),
        halo="none",
        bytes_per_pixel=0.002,  # some hundred of 2 10^5 numbers are looked at
        tolerance=Tolerance(2e-7, 0.0, "order statistics; a multiplication and an addition may be fused"),
    )
)

RINGS = register(
    KernelSpec(
        name="ring_medians",
        twin="skydelta.kernels.cpu.stars:ring_medians",
        launch="skydelta.kernels.cuda.stars:ring_medians",
        reference="skydelta.kernels.cpu.reference_stars:ring_medians",
        entries=(CudaEntry("stars.cu", "ring_medians"),),
        halo="the window",
        bytes_per_pixel=5.0,
        tolerance=Tolerance(0.0, 0.0, "order statistics: the same bits everywhere"),
    )
)

SHAPES = register(
    KernelSpec(
        name="star_shapes",
        twin="skydelta.kernels.cpu.stars:star_shapes",
        launch="skydelta.kernels.cuda.stars:star_shapes",
        reference="skydelta.kernels.cpu.reference_stars:star_shapes",
        entries=(CudaEntry("stars.cu", "star_shapes"),),
        halo="the window",
        bytes_per_pixel=5.0,
        tolerance=Tolerance(1e-7, 1e-7, "centroids that have arrived stop; the reference goes on"),
    )
)

APERTURES = register(
    KernelSpec(
        name="star_apertures",
        twin="skydelta.kernels.cpu.stars:star_apertures",
        launch="skydelta.kernels.cuda.stars:star_apertures",
        reference="skydelta.kernels.cpu.reference_stars:star_apertures",
        entries=(CudaEntry("stars.cu", "star_apertures"),),
        halo="the window",
        bytes_per_pixel=5.0,
        tolerance=Tolerance(1e-11, 1e-9, "double sums in another order"),
    )
)

NEIGHBOURS = register(
    KernelSpec(
        name="neighbours",
        twin="skydelta.kernels.cpu.stars:neighbours",
        launch="skydelta.kernels.cuda.stars:neighbours",
        reference="skydelta.kernels.cpu.reference_stars:neighbours",
        entries=(CudaEntry("stars.cu", "neighbours"),),
        halo="none",
        bytes_per_pixel=8.0,
        tolerance=Tolerance(0.0, 0.0, "counts, compared bit by bit"),
    )
)


@functools.cache
def rings(half: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels whose distance rounds to 0, 1, ..., ``half`` px, ring by ring.

    Returns
    -------
    member : int32 (m, 3)
        dy, dx and ring.
    start : int32 (half + 2,)
        Where each ring begins, and m.
    """
    o = np.arange(-half, half + 1)
    ring = np.rint(np.hypot(o, o[:, None])).astype(int)
    y, x = np.nonzero(ring <= half)
    order = np.argsort(ring[y, x], kind="stable")
    member = np.stack([o[y], o[x], ring[y, x]], axis=1)[order].astype(np.int32)
    return member, np.searchsorted(member[:, 2], np.arange(half + 2)).astype(np.int32)


def smooth_masked(image: Array, good: Array, taps: np.ndarray) -> Array:
    """An image, zero where unusable and outside, filtered along both axes; zero at unusable pixels.

    Parameters
    ----------
    image : float32 (H, W)
        Finite where good.
    good : bool (H, W)
    taps : float64 (r + 1,)
        Middle and right half of a symmetric filter (`convolve.gaussian_taps`), r <= `LARGEST_RADIUS`; on the host.

    Returns
    -------
    float32 (H, W)
    """
    if len(taps) - 1 > LARGEST_RADIUS:
        raise ValueError(f"a filter of radius {len(taps) - 1} px; at most {LARGEST_RADIUS}")
    return implementation(SMOOTH, backend_of(image))(image, good, taps)


def light_peaks(
    light: Array, good: Array, variance: Array | None, gain: float, limit: Array, radius: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Local maxima of light whose signal-to-noise is above a limit.

    A peak is above all pixels at most sqrt(radius^2 + 1) px away that come after it in raster order and not below
    those that come before it: a plateau has one peak. Maxima are of the light, not of its S/N: the variance of a
    narrow star is as peaked as the star.

    Parameters
    ----------
    light : float32 (H, W)
    good : bool (H, W)
        The S/N of other pixels is 0.
    variance : float32 (H, W) or None
        Of a pixel before smoothing.
    gain : float
        Factor from ``variance`` to that of the light; without ``variance`` the variance of the light itself.
    limit : float32 (1,)
        On the image's device; NaN for no peaks.
    radius : int
        At least 1, px.

    Returns
    -------
    pixel : int32 (n,)
        y W + x in raster order.
    snr, height : float32 (n,)
        All on the host.
    """
    return implementation(PEAKS, backend_of(light))(light, good, variance, float(gain), limit, radius)


def sample_snr(light: Array, good: Array, variance: Array | None, gain: float, every: int) -> Array:
    """Signal-to-noise of every n-th pixel of every n-th row, as `light_peaks` takes it; NaN where not good.

    Parameters
    ----------
    light, good, variance, gain
        As in `light_peaks`.
    every : int
        n.

    Returns
    -------
    float32 (ceil(H / n), ceil(W / n))
    """
    return implementation(SAMPLE, backend_of(light))(light, good, variance, float(gain), every)


def robust_levels(ascending: Array, times: float, least: float) -> Array:
    """Median, spread, and a limit above them, of sorted numbers.

    The spread is 1.4826 times the median of the absolute deviations from the median. Left and right of the median these
    are sorted already, so that a few comparisons find their middle ones.

    Parameters
    ----------
    ascending : float32 (n,)
        Sorted; NaN, which do not count, last. At least one.
    times, least : float

    Returns
    -------
    float32 (3,)
        Median, spread, median + times * max(least, spread); all NaN without a number.
    """
    return implementation(LEVELS, backend_of(ascending))(ascending, float(times), float(least))


def ring_medians(image: Array, good: Array, pixel: Array, half: int, core: int) -> Array:
    """Median light on rings around pixels; unusable pixels and those outside count as zero.

    Ring r holds the pixels whose distance rounds to r.

    Parameters
    ----------
    image : float32 (H, W)
    good : bool (H, W)
    pixel : int32 (n,)
        y W + x, inside the image.
    half : int
        Radius of the last ring, px.
    core : int
        Half-size of the square that is looked at for unusable pixels, px; at most ``half``.

    Returns
    -------
    float64 (n, half + 2)
        The medians from the inside out, then 1 where all pixels of the core are usable, else 0.
    """
    return implementation(RINGS, backend_of(image))(image, good, pixel, half, core)


def star_shapes(
    image: Array, good: Array, pixel: Array, half: int, core: int, sigma: float, iterations: int = 10
) -> Array:
    """Windowed centroids, and the moments of the light under a Gaussian window around them.

    The centroid takes twice the offset of the weighted mean at each step (Bertin, SExtractor's XWIN_IMAGE). The window
    is removed from the moments as if the star were Gaussian: C^-1 = M^-1 - W^-1 (Kaiser, Squires & Broadhurst 1995
    weigh alike). Unusable pixels and those outside count as zero.

    Parameters
    ----------
    image : float32 (H, W)
    good : bool (H, W)
    pixel : int32 (n,)
        y W + x, inside the image: middles of the windows.
    half : int
        Half-size of the windows, px.
    core : int
        Half-size of the square that ``clean`` looks at, px; at most ``half``.
    sigma : float
        Of the Gaussian, px.
    iterations : int

    Returns
    -------
    float64 (5, n)
        Centre x, y relative to the middle pixel (px), (det C)^(1/4) (px; inf where the light is too wide or not
        positive, 0 where it is a point), ellipticity 1 - b / a, and ``clean``: 1 where all pixels of the core are
        usable, else 0.
    """
    return implementation(SHAPES, backend_of(image))(image, good, pixel, half, core, float(sigma), iterations)


def star_apertures(
    image: Array, good: Array, pixel: Array, centre: Array, half: int, aperture: float, core: float
) -> Array:
    """Light inside a circle with a soft edge, brightest pixel, and unusable pixels near the centre.

    Parameters
    ----------
    image : float32 (H, W)
    good : bool (H, W)
    pixel : int32 (n,)
        Middles of the windows, as in `star_shapes`.
    centre : float64 (2, n)
        x, y from there, at most ``half`` px.
    half : int
    aperture : float
        Radius of the circle; a pixel counts by aperture + 0.5 - r, between 0 and 1.
    core : float
        Radius within which pixels are judged, px; at least 1.

    Returns
    -------
    float64 (3, n)
        Flux, brightest pixel within ``core``, and 1 where a pixel of the window within ``core`` is unusable or outside
        the image, else 0.
    """
    return implementation(APERTURES, backend_of(image))(image, good, pixel, centre, half, float(aperture), float(core))


def neighbours(pixel: Array, height: Array, star: Array, width: int, radius: float, share: float) -> Array:
    """Number of peaks within ``radius`` of a star and above ``share`` of its height, itself among them.

    Parameters
    ----------
    pixel : int32 (m,)
        y W + x of all peaks, ascending.
    height : float32 (m,)
    star : int32 (n,)
        Which of them are asked for.
    width : int
        W.
    radius : float
        Inclusive, px.
    share : float

    Returns
    -------
    int32 (n,)
    """
    return implementation(NEIGHBOURS, backend_of(pixel))(pixel, height, star, width, float(radius), float(share))
