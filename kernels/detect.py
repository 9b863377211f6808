# SPDX-License-Identifier: BSD-3-Clause
"""Peaks and connected components of a signal-to-noise plane."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance, implementation, register

EXACT = Tolerance(0.0, 0.0, "integers and copied values, compared bit by bit")

PEAKS = register(
    KernelSpec(
        name="extrema",
        twin="skydelta.kernels.cpu.detect:extrema",
        launch="skydelta.kernels.cuda.detect:extrema",
        reference="skydelta.kernels.cpu.reference_detect:extrema",
        entries=(CudaEntry("detect.cu", "find_peaks"),),
        halo="1 px",
        bytes_per_pixel=4.0,
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
            CudaEntry("detect.cu", n)
            for n in ("label_start", "label_merge", "label_roots", "label_number", "label_spread")
        ),
        halo="the component",
        bytes_per_pixel=8.0,
        tolerance=EXACT,
    )
)


def extrema(image: Array, threshold: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Local extrema of both signs beyond a threshold, in raster order, on the host.

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
    y, x : int64 (n,)
    value : float64 (n,)
        Of the image, with its sign.
    """
    index, value = implementation(PEAKS, backend_of(image))(image, float(threshold))
    y, x = np.divmod(index, image.shape[1])
    return y, x, value.astype(np.float64)


def components(image: Array, threshold: float) -> tuple[Array, Array]:
    """Connected pixels of one sign with |image| > threshold, 8-connected (union-find).

    Parameters
    ----------
    image : float32 (H, W)
        NaN belongs to no component.
    threshold : float
        Positive.

    Returns
    -------
    labels : int32 (H, W)
        0 outside; components are numbered from 1 in raster order of their first pixel.
    area : int32 (n,)
        Pixels of each component.
    """
    return implementation(LABELS, backend_of(image))(image, float(threshold))
