# SPDX-License-Identifier: BSD-3-Clause
"""Windows around positions: the one way stamps are cut, on whatever device the plane is."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, Backend, backend_of
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance, implementation, register

FAR = 1 << 30
"""Positions further from the frame than this, px, are moved to this: they see nothing of it either."""

CUTOUTS = register(
    KernelSpec(
        name="cutouts",
        twin="skydelta.kernels.cpu.cutouts:cutouts",
        launch="skydelta.kernels.cuda.cutouts:cutouts",
        reference="skydelta.kernels.cpu.reference_cutouts:cutouts",
        entries=(CudaEntry("cutouts.cu", "cutouts", (("unsigned char",), ("short",), ("int",), ("long long",))),),
        halo="the window",
        bytes_per_pixel=8.0,
        tolerance=Tolerance(0.0, 0.0, "copies"),
    )
)


class Windows:
    """Square windows around whole pixels, to be cut from planes of one shape.

    Parameters
    ----------
    shape : (int, int)
        Height and width of the planes.
    x, y : (n,)
        Whole pixels on the host; may lie outside the plane.
    half : int
        Half-size, px.
    backend : Backend
        Where the planes are.
    """

    def __init__(self, shape: tuple[int, int], x: np.ndarray, y: np.ndarray, half: int, backend: Backend) -> None:
        middle = np.clip(np.stack([np.asarray(a) for a in (y, x)]), -FAR, FAR).astype(np.int32)
        self._shape, self._half, self._middle = tuple(shape), int(half), backend.asarray(middle)

    def cut(self, plane: Array, outside: float = 0) -> Array:
        """The windows (n, 2 half + 1, 2 half + 1) of a plane, of its type; ``outside`` fills what lies beyond.

        Raises
        ------
        ValueError
            The plane has another shape.
        """
        if plane.shape != self._shape:
            raise ValueError(f"windows are of a plane of {self._shape}, not of {plane.shape}")
        backend = backend_of(plane)
        whole = backend.xp.ascontiguousarray(plane)
        return implementation(CUTOUTS, backend)(whole, self._middle, self._half, plane.dtype.type(outside))


def cutouts(plane: Array, x: np.ndarray, y: np.ndarray, half: int, outside: float = 0) -> Array:
    """`Windows` of one plane."""
    return Windows(plane.shape, x, y, half, backend_of(plane)).cut(plane, outside)
