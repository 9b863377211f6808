# SPDX-License-Identifier: BSD-3-Clause
"""CRC-32 of pieces of a buffer: what the trailer of a gzip member says of its bytes (RFC 1952, 8)."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance, implementation, register

CRC32 = register(
    KernelSpec(
        name="crc32",
        twin="skydelta.kernels.cpu.crc:crc32",
        launch="skydelta.kernels.cuda.crc:crc32",
        reference="skydelta.kernels.cpu.reference_crc:crc32",
        entries=(CudaEntry("crc.cu", "crc32"),),
        halo="the piece",
        bytes_per_pixel=1.0,
        tolerance=Tolerance(0.0, 0.0, "arithmetic of bits"),
    )
)

ALIGNMENT = 4
"""Offsets of pieces are multiples of it."""


def crc32(data: Array, offset: np.ndarray, length: np.ndarray) -> Array:
    """The CRC-32 of each piece.

    Parameters
    ----------
    data : uint8 (m,), C-contiguous
        Begins at a multiple of `ALIGNMENT`.
    offset, length : int64 (n,)
        On the host.

    Returns
    -------
    uint32 (n,)
        Where the data are.

    Raises
    ------
    ValueError
        A piece begins at no multiple of `ALIGNMENT` or lies outside: a mistake of the caller.
    """
    offset, length = np.ascontiguousarray(offset, np.int64), np.ascontiguousarray(length, np.int64)
    if len(offset) and (
        (offset % ALIGNMENT).any() or min(offset.min(), length.min()) < 0 or (offset + length).max() > data.size
    ):
        raise ValueError(f"crc32: pieces inside {data.size} bytes, at multiples of {ALIGNMENT}, are needed")
    return implementation(CRC32, backend_of(data))(data, offset, length)
