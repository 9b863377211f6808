# SPDX-License-Identifier: BSD-3-Clause
"""Launchers of the detection kernels; arguments and results as the twins of ``kernels/cpu/detect.py``."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.kernels.core.module import kernel

THREADS = 256
SPAN = 16 * THREADS
"""Pixels of a block in the pass over the plane, as in ``detect.cu``."""

BLOCKS = 1024
"""Blocks that share a list whose length only the device knows."""

USUAL = 4096
"""Peaks that come to the host with their number; more take a second transfer."""


def extrema(image: Array, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    xp = backend_of(image).xp
    image = _aligned(image)
    h, w = image.shape
    # 2 x 2 pixels touch each other: one peak of each sign among them, at most
    found = xp.empty(1 + 2 * (-(-h // 2) * -(-w // 2)), np.uint64)
    found[:1].fill(0)
    scalars = (np.int32(h), np.int32(w), np.float32(threshold))
    kernel("detect.cu", "find_peaks")((-(-image.size // SPAN),), (THREADS,), (image, *scalars, found, found[1:]))
    first = to_host(found[: 1 + USUAL])
    n = int(first[0])
    peaks = np.sort(first[1 : n + 1]) if n < len(first) else to_host(xp.sort(found[1 : n + 1]))
    value = (peaks & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.float32)
    return (peaks >> np.uint64(32)).astype(np.int64), value


def components(image: Array, threshold: float) -> tuple[Array, Array]:
    xp = backend_of(image).xp
    image = _aligned(image)
    size, w, t = image.size, np.int32(image.shape[1]), np.float32(threshold)
    labels = xp.empty(image.shape, np.int32)
    listed, root, roots = (xp.empty(size, np.int32) for _ in range(3))
    lengths = xp.zeros(2, np.int32)
    shared = ((min(BLOCKS, -(-size // THREADS)),), (THREADS,))
    kernel("detect.cu", "label_start")(
        (-(-size // SPAN),), (THREADS,), (image, np.int32(size), t, labels, lengths, listed)
    )
    kernel("detect.cu", "label_merge")(*shared, (image, w, t, listed, lengths, labels))
    kernel("detect.cu", "label_roots")(*shared, (labels, listed, lengths, root, lengths[1:], roots))
    n, count = (int(i) for i in to_host(lengths))
    area = xp.zeros(count, np.int32)
    if n:
        roots = xp.sort(roots[:count])
        kernel("detect.cu", "label_number")((-(-count // THREADS),), (THREADS,), (roots, np.int32(count), labels))
        kernel("detect.cu", "label_spread")((-(-n // THREADS),), (THREADS,), (listed, root, np.int32(n), labels, area))
    return labels, area


def _aligned(image: Array) -> Array:
    """The plane in one piece that begins at a multiple of 16 bytes, as the kernels read 4 pixels at once."""
    image = backend_of(image).xp.ascontiguousarray(image)
    return image if image.data.ptr % 16 == 0 else image.copy()
