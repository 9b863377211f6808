# SPDX-License-Identifier: BSD-3-Clause
"""Resampling: image, variance, mask and footprint of a source grid on a target grid, in one gather.

Two kernels. ``resample_prepare`` fills unusable pixels (so that none of them reaches further than its weight) and
turns the image into B-spline coefficients where the method asks for it; ``resample`` evaluates the map and gathers
all planes. Neither knows what a WCS is: the map is nodes of a control grid and a list of exactly mapped cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance, implementation, register

Method = Literal[
    "nearest", "bilinear", "bspline3", "lanczos3", "bspline5", "lanczos4", "lanczos5", "exact", "drizzle", "adaptive"
]

METHODS: tuple[Method, ...] = ("nearest", "bilinear", "bspline3", "lanczos3", "bspline5", "lanczos4", "lanczos5")
"""Those that interpolate, by the number that the kernels know them by; the others go by the corners of pixels."""

DEGREES = (0, 0, 3, 0, 5, 0, 0)
"""Degree of the spline of each method, 0 for those without a prefilter."""

TAPS = (1, 2, 6, 6, 8, 8, 10)
"""Side of the footprint of each method, px. The B-splines have 4 and 6 taps on their coefficients, but 6 and 8 on
pixels: beyond them the cardinal splines (Unser 1999) have less than 2e-4 and 5e-4 of the squared weight."""

CELL_INTERPOLATED = -1
"""Map cell that is interpolated from the nodes; numbers from 0 on are blocks of ``PixelMap.exact``."""

CELL_OUTSIDE = -2
"""Map cell without a pixel of the source."""


_FLUX = "false", "true"  # as CUDA kernels are made for


@dataclass(frozen=True)
class PixelMap:
    """Where each target pixel lies in the source, as arrays.

    The target is covered by square cells of ``spacing`` px from pixel (0, 0). Cell (i, j) spans the nodes
    (i + 1, j + 1) to (i + 2, j + 2): one ring of nodes lies around the cells, so that the 4 x 4 nodes around every
    cell exist.

    Attributes
    ----------
    shape, source_shape : (int, int)
        (H, W) of the target and of the source, px.
    spacing : int
        Side of a cell, target px.
    nodes : float64 (2, ny + 3, nx + 3)
        Source x and y (0-based px) at the nodes; interpolated by cubic Lagrange polynomials along both axes.
    cells : int32 (ny, nx)
        `CELL_INTERPOLATED`, `CELL_OUTSIDE`, or the block of ``exact`` that holds the cell pixel by pixel.
    exact : float64 (n, 3, spacing, spacing)
        Source x, y and the area of a target pixel in source pixels; NaN where there is no map.
    error : float
        Largest difference to the exact map found between the nodes of interpolated cells, source px.
    exact_fraction : float
        Part of the target pixels that was mapped exactly.
    area : (float, float)
        Smallest and largest area of a target pixel in source pixels.
    shift : (int, int) or None
        (sy, sx) when the map is target pixel + shift to within the tolerance everywhere.
    way : str
        How it was made, in words.
    """

    shape: tuple[int, int]
    source_shape: tuple[int, int]
    spacing: int
    nodes: Array
    cells: Array
    exact: Array
    error: float = 0.0
    exact_fraction: float = 0.0
    area: tuple[float, float] = (1.0, 1.0)
    shift: tuple[int, int] | None = None
    way: str = "given"


class MaskBits(NamedTuple):
    """int32 values of the planes that resampling reads and sets.

    Attributes
    ----------
    fill
        Pixels whose value is not to be used: replaced before interpolation.
    grow
        Passed on from the whole footprint of the kernel; all others from its inner 2 x 2 pixels.
    bad, no_data, edge, interp
        Set where: the variance is not a positive number; the image is not finite, the target is outside the source
        or more than half of the weight is lost; the kernel is cut by the border; filled pixels took part.
    """

    fill: int
    grow: int
    bad: int
    no_data: int
    edge: int
    interp: int


class Resampled(NamedTuple):
    """Planes on the target grid.

    Attributes
    ----------
    image : float32 (H, W)
        NaN without data.
    variance : float32 (H, W) or None
        Sum of w^2 v with the weights that source pixels really have (for bspline3 the prefilter included).
    mask : int32 (H, W)
    weight : float32 (H, W)
        Footprint: the part of the kernel's absolute weight that lies on usable source pixels, 0 to 1. Of ``drizzle``:
        the area of the drops over that of full cover, 1 on average; 0 where there is none.
    """

    image: Array
    variance: Array | None
    mask: Array
    weight: Array


PREPARE = register(
    KernelSpec(
        name="resample_prepare",
        twin="skydelta.kernels.cpu.resample:prepare",
        launch="skydelta.kernels.cuda.resample:prepare",
        reference="skydelta.kernels.cpu.reference_resample:prepare",
        entries=(
            CudaEntry("resample.cu", "resample_prepare"),
            CudaEntry("resample.cu", "resample_filter", (("3",), ("5",))),
        ),
        halo="12 px for degree 3, 20 px for degree 5 (|pole|^halo = 1e-7), and 3 px of filling",
        bytes_per_pixel=20.0,
        tolerance=Tolerance(2e-6, 1e-5, "float32 recursions of quintic coefficients, up to 50 times the values"),
    )
)

RESAMPLE = register(
    KernelSpec(
        name="resample",
        twin="skydelta.kernels.cpu.resample:gather",
        launch="skydelta.kernels.cuda.resample:gather",
        reference="skydelta.kernels.cpu.reference_resample:gather",
        entries=(
            CudaEntry("resample.cu", "resample_touched", tuple((str(n),) for n in sorted(set(TAPS)))),
            CudaEntry("resample.cu", "resample_gather", tuple((str(m), f) for m in range(len(METHODS)) for f in _FLUX)),
        ),
        halo="5 px around the mapped position",
        bytes_per_pixel=28.0,
        tolerance=Tolerance(5e-6, 5e-6, "float32 weights and sums of up to 100 taps"),
    )
)

CORNER_METHODS: tuple[Method, ...] = ("exact", "adaptive", "drizzle")
"""Those that go by the corners of pixels, by the number that the kernels know them by."""


def _by_corners(kind: int, function: str, halo: str, tolerance: Tolerance) -> KernelSpec:
    return register(
        KernelSpec(
            name=f"resample_{CORNER_METHODS[kind]}",
            twin=f"skydelta.kernels.cpu.overlap:{function}",
            launch=f"skydelta.kernels.cuda.resample:{function}",
            reference=f"skydelta.kernels.cpu.reference_overlap:{function}",
            entries=(CudaEntry("resample.cu", "resample_by_corners", tuple((str(kind), f) for f in _FLUX)),),
            halo=halo,
            bytes_per_pixel=28.0,
            tolerance=tolerance,
        )
    )


_AREAS = "the source pixels under a target pixel", Tolerance(1e-6, 1e-6, "areas from edges or from clipped polygons")
EXACT = _by_corners(0, "overlap", *_AREAS)
ADAPTIVE = _by_corners(
    1,
    "adaptive",
    "2 px of the larger of both pixels around the mapped position",
    Tolerance(5e-6, 5e-6, "float32 weights"),
)
DRIZZLE = _by_corners(2, "drizzle", *_AREAS)


def resample(
    image: Array,
    variance: Array | None,
    mask: Array | None,
    pixel_map: PixelMap,
    *,
    method: Method = "bspline3",
    pixfrac: float = 1.0,
    flux: bool = False,
    bits: MaskBits,
) -> Resampled:
    """Bring a source onto the pixels of a target grid.

    Parameters
    ----------
    image : float32 (h, w)
        Host or device; the result lives in the same place.
    variance : float32 (h, w) or None
    mask : int32 (h, w) or None
        Bits 0 to 30.
    pixel_map : PixelMap
        For methods not in `METHODS` that of pixel corners: one row and one column more than the target, corner
        (y, x) is the lower left one of pixel (y, x).
    method : {"nearest", "bilinear", "bspline3", "bspline5", "lanczos3", "lanczos4", "lanczos5", "exact", "drizzle",
              "adaptive"}
        bspline3 and bspline5 are the interpolating B-splines of degree 3 and 5 (Unser 1999); Lanczos kernels are
        normalised along each axis; exact weights source pixels by the area that they share with the target pixel,
        bounded by straight lines between its corners; drizzle does the same with source pixels shrunk about their
        centres, of which bad ones do not take part (Fruchter & Hook 2002); adaptive takes means under a Gaussian that
        is as large as the larger of both pixels (DeForest 2004).
    pixfrac : float
        Of drizzle: side of a drop over that of its pixel, above 0 and up to 1.
    flux : bool
        Multiply by the area of a target pixel in source pixels (images of flux per pixel); otherwise values are kept
        (surface brightness).
    bits : MaskBits

    Returns
    -------
    Resampled
    """
    backend = backend_of(image)
    image = backend.asarray(image, np.float32)
    variance = None if variance is None else backend.asarray(variance, np.float32)
    mask = None if mask is None else backend.asarray(mask, np.int32)
    number = METHODS.index(method) if method in METHODS else 0
    values, work = implementation(PREPARE, backend)(
        image, variance, mask, degree=DEGREES[number], fill=bits.fill, bad=bits.bad, no_data=bits.no_data
    )
    more: dict[str, object] = {"shape": pixel_map.shape, "method": number}
    spec = RESAMPLE
    if method not in METHODS:
        height, width = pixel_map.shape
        more = {"shape": (height - 1, width - 1)} | ({"pixfrac": pixfrac} if method == "drizzle" else {})
        spec = {"exact": EXACT, "drizzle": DRIZZLE, "adaptive": ADAPTIVE}[method]
    tables = (backend.asarray(table) for table in (pixel_map.nodes, pixel_map.cells, pixel_map.exact))
    return Resampled(*implementation(spec, backend)(values, variance, work, *tables, flux=flux, bits=bits, **more))
