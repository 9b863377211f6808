# SPDX-License-Identifier: BSD-3-Clause
"""An image as a stack of overlapping tiles, the steps between their Fourier transforms, and the image from them."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.fused import FusedKernel, Step
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance, implementation, register
from skydelta.kernels.cpu import stacks as twins

_FILE = "stacks.cuh"

CUT = register(
    KernelSpec(
        name="cut_tiles",
        twin="skydelta.kernels.cpu.stacks:cut_tiles",
        launch="skydelta.kernels.cuda.stacks:cut_tiles",
        reference="skydelta.kernels.cpu.reference_stacks:cut_tiles",
        entries=(CudaEntry("stacks.cu", "cut_tiles"),),
        halo="the windows",
        bytes_per_pixel=28.0,
        tolerance=Tolerance(1e-7, 0.0, "copies, and one product"),
    )
)

JOIN = register(
    KernelSpec(
        name="join_tiles",
        twin="skydelta.kernels.cpu.stacks:join_tiles",
        launch="skydelta.kernels.cuda.stacks:join_tiles",
        reference="skydelta.kernels.cpu.reference_stacks:join_tiles",
        entries=(CudaEntry("stacks.cu", "join_tiles"),),
        halo="none",
        bytes_per_pixel=37.0,
        tolerance=Tolerance(1e-6, 1e-6, "float32 products, one square root"),
    )
)


def cut_tiles(
    difference: Array,
    fixed: Array,
    moved: Array,
    usable: Array,
    good_fixed: Array,
    good_moved: Array,
    rows: np.ndarray,
    columns: np.ndarray,
    size: int,
    scale: float,
) -> tuple[Array, Array]:
    """Square windows of a difference and of the variances it is made of, zero where there is nothing to use.

    Parameters
    ----------
    difference : float32 (H, W)
        Taken where ``usable``, bool (H, W).
    fixed, moved : float32 (H, W)
        Variances, taken times ``scale`` where ``good_fixed`` and ``good_moved``, bool (H, W).
    rows, columns : int (ny,), (nx,)
        First row of each row of windows, first column of each column of them; may lie outside.
    size : int
        Side of the windows, px.
    scale : float

    Returns
    -------
    values : float32 (3, ny nx, size, size)
        Difference, fixed and moved variance; zero outside.
    usable : bool (ny nx, size, size)
    """
    return implementation(CUT, backend_of(difference))(
        difference, fixed, moved, usable, good_fixed, good_moved, rows, columns, size, scale
    )


def join_tiles(
    whitened: Array,
    variance: Array,
    exact: Array,
    weight: Array,
    plain: Array,
    signal: Array,
    usable: Array,
    rows: np.ndarray,
    columns: np.ndarray,
    pad: int,
) -> Array:
    """The whitened image, its variance and the S/N from a stack of tiles.

    S/N = signal / sqrt(weight exact / plain), see `score_image`; NaN where not usable, or a factor is not positive.

    Parameters
    ----------
    whitened, variance, exact, weight, plain, signal : float32 (ny nx, size, size)
    usable : bool (ny nx, size, size)
    rows, columns : int (ny + 1,), (nx + 1,)
        Boundaries of the tiles' cores; the first is the first of the result.
    pad : int
        Pixels of a tile before its core.

    Returns
    -------
    float32 (3, h, w)
        Whitened image, variance, S/N; the whole of the cores.
    """
    return implementation(JOIN, backend_of(whitened))(
        whitened, variance, exact, weight, plain, signal, usable, rows, columns, pad
    )


_DATA = ("data", "fixed", "moved")
_FILTERS = ("white2", "moved2", "exact_fixed", "exact_moved")

FILTER = FusedKernel(
    "filter_tiles",
    (
        Step("whiten", ("data", "white"), ("whitened",), twins.scaled, "scaled", _FILE),
        Step("add", ("white2", "fixed", "moved2", "moved"), ("variance",), twins.sum_of_two, "sum_of_two", _FILE),
        Step(
            "exact",
            ("exact_fixed", "fixed", "exact_moved", "moved"),
            ("exact",),
            twins.sum_of_two,
            "sum_of_two",
            _FILE,
        ),
    ),
    types={**dict.fromkeys((*_DATA, *_FILTERS, "whitened", "variance", "exact"), "complex64"), "white": "float32"},
    outputs=("whitened", "variance", "exact"),
)
"""Spectra of the whitened tiles, of their variance and of the variance of the filter output.

Planes: spectra of the tiles (data, fixed, moved) and of the filters (white2 ...), complex64; white, float32.
"""

WEIGH = FusedKernel(
    "weigh_tiles",
    (
        Step(
            "weigh",
            ("whitened", "raw", "floor", "usable"),
            ("inverse", "variance", "signal"),
            twins.weigh,
            "weigh",
            _FILE,
        ),
    ),
    types={
        **dict.fromkeys(("whitened", "raw", "floor", "inverse", "variance", "signal"), "float32"),
        "usable": "bool",
    },
    outputs=("inverse", "variance", "signal"),
    per_tile=("floor",),
)
"""Variance of at least ``floor``, its inverse where usable, and the whitened pixels times that."""

CORRELATE = FusedKernel(
    "correlate_tiles",
    (
        Step("weight", ("inverse", "own2"), ("weight",), twins.correlated, "correlated", _FILE),
        Step("plain", ("variance", "own2"), ("plain",), twins.correlated, "correlated", _FILE),
        Step("signal", ("signal", "own"), ("signal",), twins.correlated, "correlated", _FILE),
    ),
    types=dict.fromkeys(("inverse", "variance", "signal", "own", "own2", "weight", "plain"), "complex64"),
    outputs=("weight", "plain", "signal"),
)
"""Spectra of the correlation of weights, variances and weighted pixels with the PSF (own) and its square (own2)."""
