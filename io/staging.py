# SPDX-License-Identifier: BSD-3-Clause
"""Bytes of a file in device memory: by KvikIO where it serves the file, else through page-locked host memory."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np

from skydelta.io.routes import REQUESTS, Counted
from skydelta.io.storage import SPAN, Content
from skydelta.io.tally import Tally
from skydelta.kernels.backend import Array, Backend, cupy
from skydelta.kernels.core.devices import active, pinned

PIECE, SHARE = 8 << 20, 8 << 20
"""Bytes that a thread reads and sends at a time, and for which one more thread is worth its call."""

THREADS = 16
"""Readers of all transfers together, at most one for each core: one alone copies from the page cache at a tenth of the
rate of the bus."""

PLACES = 2
"""Pieces of page-locked memory that a thread fills before it waits for all to be sent."""

_lock, _under_way = threading.Lock(), [0]


class Transfer:
    """Bytes of a file on their way to a device: what does not need them can be done meanwhile.

    Used as a context, it waits at the end for what is still being written into its memory.

    Parameters
    ----------
    content : Content
        A `Tally` sums the bytes where they arrive.
    offset, size : int
        Not negative.
    backend : Backend
        A device.

    Attributes
    ----------
    array : uint8 (n,), C-contiguous
        As many as asked for, fewer only at the end of the file; there after `wait`, for what is launched next on the
        current stream. It may begin in the middle of a larger array, at a multiple of 64 bytes for the data of an HDU.
    """

    def __init__(self, content: Content, offset: int, size: int, backend: Backend) -> None:
        self._tally = content if isinstance(content, Tally) else None
        content = content.content if isinstance(content, Tally) else content
        self._content, self._offset, self._backend = content, offset, backend
        self._reading = content.start(offset, size, backend) if isinstance(content, Counted) else None
        self._staging: _Staging | None = None
        self._got: int | None = None
        if self._reading is not None:
            self.array = self._reading.array
        else:
            with active(backend):
                self.array = cupy().empty(size, np.uint8)
            self._staging = _Staging(content, offset, self.array, backend)

    def wait(self) -> int:
        """How many bytes of the array are there.

        Raises
        ------
        InputError
            The file cannot be read.
        """
        if self._got is None:
            self._got = self._direct()
        if self._got is None:
            staging, self._staging = self._staging, None
            staging = staging or _Staging(self._content, self._offset, self.array, self._backend)
            self._got = staging.finish()
        tally, self._tally = self._tally, None
        if tally is not None:
            with active(self._backend):
                tally.add(self._offset, self.array[: self._got])
        return self._got

    def _direct(self) -> int | None:
        """What KvikIO has brought, if it was asked."""
        reading, self._reading = self._reading, None
        got = None if reading is None else reading.finish()
        if got is not None and isinstance(self._content, Counted):
            self._content.arrived(got)
        return got

    def __enter__(self) -> Transfer:
        return self

    def __exit__(self, *_: object) -> None:
        self._direct()
        staging, self._staging = self._staging, None
        if staging is not None:
            staging.stop()


def to_device(content: Content, offset: int, size: int, backend: Backend) -> Array:
    """Bytes of a file on a device: a `Transfer` that has ended.

    Returns
    -------
    uint8 (size,), C-contiguous
        Fewer only at the end of the file.
    """
    transfer = Transfer(content, offset, size, backend)
    return transfer.array[: transfer.wait()]


class _Staging:
    """Pieces of a file through page-locked memory into an array: helpers begin at once, the caller joins them.

    Parameters
    ----------
    content : Content
    offset : int
    out : uint8 (n,)
        On a device.
    backend : Backend
    """

    def __init__(self, content: Content, offset: int, out: Array, backend: Backend) -> None:
        self._content, self._offset, self._out, self._backend = content, offset, out, backend
        with active(backend):
            self._stream = cupy().cuda.get_current_stream()
        self._step = max(PIECE, content.span)
        self._starts = range(0, len(out), self._step)
        self._got = np.zeros(len(self._starts), np.int64)
        self._turn = itertools.count()
        self._kept: list[list[np.ndarray]] = []
        self._open = contextlib.ExitStack()
        threads = self._open.enter_context(_share(content, len(out)))
        self._asked = [_helpers().submit(self._work) for _ in range(min(threads, len(self._starts)) - 1)]

    def _work(self) -> None:
        places: list[np.ndarray] = []
        self._kept.append(places)  # until what is sent from them has arrived
        with active(self._backend, self._stream):
            for k in itertools.count():
                if (i := next(self._turn)) >= len(self._starts):
                    break
                start, size = self._starts[i], min(self._step, len(self._out) - self._starts[i])
                if k < PLACES:
                    places.append(pinned(min(self._step, len(self._out))))
                elif k % PLACES == 0:
                    self._stream.synchronize()
                place = places[k % PLACES]
                got = self._got[i] = self._content.read_into(self._offset + start, place[:size])
                if got:
                    self._out[start : start + int(got)].set(place[:got], self._stream)

    def finish(self) -> int:
        """How many bytes are there; the first error of a reader is raised."""
        try:
            self._work()
        finally:
            begun = self._end()
        for helper in begun:
            helper.result()
        return _contiguous(self._got, self._step, len(self._out))

    def stop(self) -> None:
        """Begin no more pieces, and wait for those that are under way."""
        self._turn = itertools.count(len(self._starts))
        self._end()

    def _end(self) -> list[Future[None]]:
        """Wait for all that have begun."""
        with self._open:
            begun = [helper for helper in self._asked if not helper.cancel()]
            wait(begun)
            self._stream.synchronize()
        return begun


@contextlib.contextmanager
def _share(content: Content, size: int) -> Iterator[int]:
    """Threads that a transfer may have: the cores are shared evenly among all that are under way."""
    with _lock:
        _under_way[0] += 1
        cores = max(min(os.cpu_count() or 1, THREADS) // _under_way[0], 1)
    try:
        yield REQUESTS if content.span > SPAN else min(cores, -(-size // SHARE))
    finally:
        with _lock:
            _under_way[0] -= 1


@functools.cache
def _helpers() -> ThreadPoolExecutor:
    """Threads that help readers; kept, because to start one takes as long as to read a piece."""
    return ThreadPoolExecutor(THREADS, "skydelta-stage")


def _contiguous(got: np.ndarray, step: int, size: int) -> int:
    """Bytes up to the first that is missing."""
    whole = np.minimum(step, size - step * np.arange(len(got)))
    short = np.flatnonzero(got < whole)
    return int(step * short[0] + got[short[0]]) if len(short) else size
