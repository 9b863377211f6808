# SPDX-License-Identifier: BSD-3-Clause
"""Scratch arrays reused between launches, so that a loop over images or terms allocates once.

FFT plans need no such care: cupy and scipy each keep theirs by shape and type.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from skydelta.kernels.backend import Array, Backend
from skydelta.kernels.core.devices import active


class Workspace(threading.local):
    """Scratch arrays by (device, name, shape, type); every thread has its own."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, str, tuple[int, ...], np.dtype], Array] = {}

    def array(self, backend: Backend, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
        """An array with unspecified contents, the same one for the same key until `clear`.

        Never return it to a caller: the next request of that name overwrites it.
        """
        key = (backend.name, name, shape, np.dtype(dtype))
        if key not in self._arrays:
            with active(backend):
                self._arrays[key] = backend.xp.empty(shape, dtype)
        return self._arrays[key]

    @property
    def nbytes(self) -> int:
        """Bytes held by this thread."""
        return sum(array.nbytes for array in self._arrays.values())

    def clear(self) -> None:
        """Give the memory of this thread back."""
        self._arrays.clear()


workspace = Workspace()
