# SPDX-License-Identifier: BSD-3-Clause
"""Deflate streams (RFC 1951), many at once, each judged as strictly as zlib judges it."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance, implementation, register

INFLATE = register(
    KernelSpec(
        name="inflate",
        twin="skydelta.kernels.cpu.inflate:inflate",
        launch="skydelta.kernels.cuda.inflate:inflate",
        reference="skydelta.kernels.cpu.reference_inflate:inflate",
        entries=(CudaEntry("inflate.cu", "inflate_streams", max_spill=16),),
        halo="the stream",
        bytes_per_pixel=1.0,
        tolerance=Tolerance(0.0, 0.0, "arithmetic of bits"),
    )
)

LARGEST = 1 << 30
"""Bytes that a stream may give."""


def inflate(
    data: Array, offset: np.ndarray, length: np.ndarray, place: np.ndarray, size: np.ndarray, total: int
) -> tuple[Array, Array]:
    """The bytes of each stream.

    Parameters
    ----------
    data : uint8 (m,), C-contiguous
    offset, length : int64 (n,)
        Of the streams; on the host.
    place, size : int64 (n,)
        Where the bytes of each go, and how many it must give.
    total : int
        Bytes of the result.

    Returns
    -------
    out : uint8 (total,)
        Where the data are; zeros where no stream goes, and for each that is not sound.
    status : int32 (n,)
        0, or 1 where the stream is damaged, shorter or longer than said, or gives more or less.

    Raises
    ------
    ValueError
        A stream or its place lies outside: a mistake of the caller.
    """
    offset, length, place, size = (np.ascontiguousarray(a, np.int64) for a in (offset, length, place, size))
    if len(offset) and (
        min(a.min() for a in (offset, length, place, size)) < 0
        or (offset + length).max() > data.size
        or (place + size).max() > total
        or size.max() > LARGEST
    ):
        raise ValueError(f"inflate: streams inside {data.size} bytes, places inside {total}, are needed")
    return implementation(INFLATE, backend_of(data))(data, offset, length, place, size, total)
