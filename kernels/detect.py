# SPDX-License-Identifier: BSD-3-Clause
"""Peaks and connected components of a signal-to-noise plane."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance, implementation, register

EXACT = Tolerance(0.0, 0.0, "integers, compared bit by bit")

PEAKS = register(
    KernelSpec(
        name="peak_flags",
        twin="skydelta.kernels.cpu.detect:peak_flags",
        launch="skydelta.kernels.cuda.detect:peak_flags",
        reference="skydelta.kernels.cpu.reference_detect:peak_flags",
        entries=(CudaEntry("detect.cu", "peak_flags"),),
        halo="1 px",
        bytes_per_pixel=5.0,
        tolerance=EXACT,
    )
)

LABELS = register(
    KernelSpec(
        name="components",
        twin="skydelta.kernels.cpu.detect:components",
        launch="skydelta.kernels.cuda.detect:components",
        reference="skydelta.kernels.cpu.reference_detect:components",
        entries=tuple(
            CudaEntry("detect.cu", n) for n in ("label_start", "label_merge", "label_flatten", "label_number")
        ),
        halo="the component",
        bytes_per_pixel=8.0,
        tolerance=EXACT,
    )
)


def peak_flags(image: Array, threshold: float) -> Array:
    """Local extrema of both signs beyond a threshold.

    A positive peak is above ``threshold``, above the four neighbours that come after it in raster order and not below
    the four that come before it, so that a plateau has one peak; negative peaks are those of -image. NaN is no peak
    and never hides one.

    Parameters
    ----------
    image : float32 (H, W)
    threshold : float
        Positive.

    Returns
    -------
    int8 (H, W)
        1 at positive peaks, -1 at negative ones, else 0.
    """
    return implementation(PEAKS, backend_of(image))(image, float(threshold))


def components(image: Array, threshold: float) -> tuple[Array, int]:
    """Connected pixels of one sign with |image| > threshold, 8-connected (union-find).

    Parameters
    ----------
    image : float32 (H, W)
        NaN belongs to no component.

    Returns
    -------
    labels : int32 (H, W)
        0 outside; components are numbered from 1 in raster order of their first pixel.
    count : int
    """
    return implementation(LABELS, backend_of(image))(image, float(threshold))


def extrema(image: Array, threshold: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Peaks of both signs beyond ``threshold`` in raster order: y, x (int64), signed value (float64), on the host."""
    index = backend_of(image).xp.flatnonzero(peak_flags(image, threshold))
    y, x = np.divmod(to_host(index), image.shape[1])
    return y, x, to_host(image.ravel()[index]).astype(np.float64)
