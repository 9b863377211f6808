# SPDX-License-Identifier: BSD-3-Clause
"""Maps of one grid of pixels onto another: through two tangent planes, and the check of a control grid.

A chain is target pixel - polynomials - homography - inverse of polynomials - source pixel, packed into one array by
`pack`. It knows no header: `skydelta.stages.align.tangent` makes it from two of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance, implementation, register

MOST_DEGREE = 9
"""Of a polynomial: the highest that SIP has (TPV has 7)."""

TERMS = (MOST_DEGREE + 1) * (MOST_DEGREE + 2) // 2

RADIAL = 4
"""Odd powers of the radius: 1, 3, 5, 7."""

END = 1 + 6 + 2 * RADIAL + 2 * TERMS
"""Numbers of one side in a chain: degree, affine, radial terms and coefficients of both polynomials."""

CHAIN = 2 * END + 9 + 6 + 6 + 1
"""Numbers of a chain: target, source, homography, start and end of the inverse, its unit."""

MOST_STEPS = 20
"""Of Newton's method."""

STILL = 1e-8
"""A step of Newton's method below this has arrived, source px: the next would be its square."""


@dataclass(frozen=True)
class Distortion:
    """u = L p + c of a pixel p, then F(u) = (sum a_ij u^i v^j, sum b_ij u^i v^j) and odd powers of the radius |u|.

    Attributes
    ----------
    affine : float64 (2, 3)
        L and c; p is (x, y), 0-based px.
    terms : float64 (2, n + 1, n + 1) or None
        [component, i, j], zero where i + j > n <= `MOST_DEGREE`; None: F(u) = u.
    radial : float64 (2, 4)
        Coefficients of |u|, |u|^3, |u|^5, |u|^7.
    """

    affine: np.ndarray
    terms: np.ndarray | None = None
    radial: np.ndarray = field(default_factory=lambda: np.zeros((2, RADIAL)))


class CheckedCells(NamedTuple):
    """What `check_cells` finds.

    Attributes
    ----------
    nodes : float64 (2, ny + 3, nx + 3)
    cells : int32 (ny, nx)
        `resample.CELL_INTERPOLATED`, `resample.CELL_OUTSIDE`, or 0 for one that is to be mapped exactly.
    rows : float64 (ny, 6)
        Of each row of cells. Interpolated ones: largest error (0 without any), smallest (inf) and largest (0) area of
        a target pixel in source pixels. Number of cells that are not outside and miss the goal. Number that is to be
        mapped exactly. All cells: largest difference of x or y to a shift by whole pixels (that of the first checked
        point), inf where there is no map.
    """

    nodes: Array
    cells: Array
    rows: Array


TANGENT = register(
    KernelSpec(
        name="tangent_points",
        twin="skydelta.kernels.cpu.maps:tangent_points",
        launch="skydelta.kernels.cuda.maps:tangent_points",
        reference="skydelta.kernels.cpu.reference_maps:tangent_points",
        entries=(CudaEntry("maps.cu", "tangent_points"),),
        halo="none",
        bytes_per_pixel=16.0,  # a point
        tolerance=Tolerance(1e-12, 1e-9, "positions of 10^4 px in double precision, sums in another order"),
    )
)

CHECK = register(
    KernelSpec(
        name="check_cells",
        twin="skydelta.kernels.cpu.maps:check_cells",
        launch="skydelta.kernels.cuda.maps:check_cells",
        reference="skydelta.kernels.cpu.reference_maps:check_cells",
        entries=(CudaEntry("maps.cu", "check_cells"),),
        halo="two nodes",
        bytes_per_pixel=84.0,  # a cell: four points read, a node and a number written
        tolerance=Tolerance(1e-10, 1e-10, "sums of 16 positions of 10^4 px in another order"),
    )
)


def pack(target: Distortion, homography: np.ndarray, source: Distortion) -> np.ndarray:
    """A chain: float64 (`CHAIN`,).

    Parameters
    ----------
    target : Distortion
    homography : float64 (3, 3)
        From F(u) of the target, as (u, v, 1), to that of the source; a point whose third component is not positive
        has no place there.
    source : Distortion
        Inverted by Newton's method, which gives up where F, against its linear part, turns an area over: on a fold.
    """
    inverse = np.linalg.inv(np.vstack([source.affine, [0.0, 0.0, 1.0]]))[:2]
    start, unit = np.eye(2, 3), np.linalg.svd(source.affine[:, :2], compute_uv=False)[1]
    if source.terms is not None:
        linear = np.linalg.inv(np.column_stack([source.terms[:, 1, 0], source.terms[:, 0, 1]]))
        start = np.column_stack([linear, -linear @ source.terms[:, 0, 0]])
    return np.concatenate([_end(target), _end(source), *(np.ravel(a) for a in (homography, start, inverse)), [unit]])


def _end(side: Distortion) -> np.ndarray:
    degree = 0 if side.terms is None else side.terms.shape[1] - 1
    if degree > MOST_DEGREE:
        raise ValueError(f"polynomials of degree {degree}; at most {MOST_DEGREE}")
    table = np.zeros((2, TERMS))
    if side.terms is not None:
        at = [(i, j) for j in range(degree + 1) for i in range(degree + 1 - j)]  # as they are summed
        table[:, : len(at)] = [[of[i, j] for i, j in at] for of in side.terms]
    return np.concatenate([[degree], side.affine.ravel(), side.radial.ravel(), table.ravel()])


def tangent_points(chain: Array, origin: Array, step: float, shape: tuple[int, int]) -> Array:
    """Source pixels of lattices of target pixels.

    Parameters
    ----------
    chain : float64 (`CHAIN`,)
        By `pack`, on the device that is to compute.
    origin : float64 (k, 2)
        x, y of the first point of each lattice, target px; there too.
    step : float
        Between points, px.
    shape : (int, int)
        Points of a lattice down and across.

    Returns
    -------
    float64 (2, k, *shape)
        x, y; NaN where the source has no place, or Newton's method finds none.
    """
    return implementation(TANGENT, backend_of(chain))(chain, origin, float(step), shape)


def check_cells(
    points: Array, spacing: int, source_shape: tuple[int, int], tolerance: float, goal: float, smooth: bool
) -> CheckedCells:
    """Judge the cells of a control grid by the exact map at their corners, edge middles and centres.

    Interpolation by cubic Lagrange polynomials is worst at the middles. The error of a cell is the largest on it and on
    the cells around it (one cell alone can pass by a change of sign), infinite where one of the points that it hangs on
    has no map. A cell is outside when the box around its points, grown by its own size, misses the source, or when
    there is no map at any point of it nor of its neighbours.

    Parameters
    ----------
    points : float64 (2, 2 ny + 5, 2 nx + 5)
        Exact source x, y at (spacing / 2) (i - 2), (spacing / 2) (j - 2): every second one is a node.
    spacing : int
        Side of a cell, target px.
    source_shape : (int, int)
        (H, W), px.
    tolerance, goal : float
        Largest error of a cell that is interpolated, and the one sought, px.
    smooth : bool
        Whether the map has derivatives; without, no cell is interpolated.

    Returns
    -------
    CheckedCells
    """
    return CheckedCells(
        *implementation(CHECK, backend_of(points))(
            points, int(spacing), source_shape, float(tolerance), float(goal), bool(smooth)
        )
    )
