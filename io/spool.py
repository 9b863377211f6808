# SPDX-License-Identifier: BSD-3-Clause
"""Planes of many images that wait for their turn: in memory up to a budget, then in one temporary file."""

from __future__ import annotations

import os
import tempfile
from typing import IO

import numpy as np

from skydelta.errors import InputError


class Spool:
    """Tuples of planes, put in one by one and taken out whole or by rows.

    The file has no name in its folder, so nothing is left behind however the process ends.

    Parameters
    ----------
    budget : int
        Bytes kept in memory.
    folder : str, optional
        Of the file; the system's folder for temporary files when left out.
    """

    def __init__(self, budget: int, folder: str | None = None) -> None:
        self._left, self._folder = budget, folder
        self._kept: list[tuple[np.ndarray, ...] | None] = []
        self._places: list[list[tuple[int, np.dtype, tuple[int, ...]]]] = []
        self._file: IO[bytes] | None = None
        self.written = 0

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *exception: object) -> None:
        self._kept.clear()
        if self._file is not None:
            self._file.close()

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, *planes: np.ndarray) -> None:
        """Keep planes of one shape (H, W); they must not be changed afterwards.

        Raises
        ------
        InputError
            The file cannot be written.
        """
        size = sum(p.nbytes for p in planes)
        if size <= self._left:
            self._left -= size
            self._kept.append(planes)
            self._places.append([])
            return
        places = []
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            for plane in planes:
                places.append((self.written, plane.dtype, plane.shape))
                left = np.ascontiguousarray(plane).data.cast("B")
                while len(left):
                    done = os.pwrite(self._file.fileno(), left[: 1 << 30], self.written)
                    self.written += done
                    left = left[done:]
        except OSError as e:
            raise InputError(
                f"scratch file in {self._folder or tempfile.gettempdir()}: cannot be written: {e.strerror or e}; "
                f"{self.written} bytes are in it (name another folder, or a larger memory budget)"
            ) from None
        self._kept.append(None)
        self._places.append(places)

    def take(self, k: int, rows: slice = slice(None)) -> tuple[np.ndarray, ...]:
        """The planes of the k-th tuple, or these rows of them.

        Raises
        ------
        InputError
            The file cannot be read.
        """
        kept = self._kept[k]
        if kept is not None:
            return tuple(p[rows] for p in kept)
        return tuple(self._read(*place, rows) for place in self._places[k])

    def _read(self, offset: int, dtype: np.dtype, shape: tuple[int, ...], rows: slice) -> np.ndarray:
        assert self._file is not None
        start, stop, _ = rows.indices(shape[0])
        out = np.empty((max(stop - start, 0), *shape[1:]), dtype)
        left = out.data.cast("B") if out.size else memoryview(b"")
        offset += start * dtype.itemsize * int(np.prod(shape[1:]))
        try:
            while len(left):
                done = os.preadv(self._file.fileno(), [left[: 1 << 30]], offset)
                if not done:
                    raise OSError("the file ends early")
                offset, left = offset + done, left[done:]
        except OSError as e:
            raise InputError(f"scratch file: cannot be read: {e.strerror or e}") from None
        return out
