# SPDX-License-Identifier: BSD-3-Clause
"""Bytes of a file in device memory: by KvikIO where it serves the file, else through page-locked host memory."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np

from skydelta.io.routes import REQUESTS, Counted
from skydelta.io.storage import SPAN, Content
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


def to_device(content: Content, offset: int, size: int, backend: Backend) -> Array:
    """Bytes of a file on a device, ready for what is launched next on the current stream.

    Parameters
    ----------
    content : Content
    offset, size : int
        Not negative.
    backend : Backend
        A device.

    Returns
    -------
    uint8 (size,), C-contiguous
        Fewer only at the end of the file. It may begin in the middle of a larger array, at a multiple of 64 bytes for
        the data of an HDU.
    """
    if isinstance(content, Counted) and (found := content.to_device(offset, size, backend)) is not None:
        return found
    with active(backend):
        stream = cupy().cuda.get_current_stream()
        out = cupy().empty(size, np.uint8)
    step = max(PIECE, content.span)
    starts = range(0, size, step)
    got = np.zeros(len(starts), np.int64)
    turn = itertools.count()
    kept: list[list[np.ndarray]] = []

    def work() -> None:
        places: list[np.ndarray] = []
        kept.append(places)  # until what is sent from them has arrived
        with active(backend, stream):
            for k in itertools.count():
                if (i := next(turn)) >= len(starts):
                    break
                if k < PLACES:
                    places.append(pinned(min(step, size)))
                elif k % PLACES == 0:
                    stream.synchronize()
                start, place = starts[i], places[k % PLACES]
                got[i] = content.read_into(offset + start, place[: min(step, size - start)])
                if got[i]:
                    out[start : start + int(got[i])].set(place[: got[i]], stream)

    with _share(content, size) as threads:
        try:
            _together(work, min(threads, len(starts)))
        finally:
            stream.synchronize()
    return out[: _contiguous(got, step, size)]


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


def _together(work: Callable[[], None], threads: int) -> None:
    """Call ``work`` here and in helpers, until all that have begun return; the first error of one is raised."""
    asked = [_helpers().submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        begun = [helper for helper in asked if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()


def _contiguous(got: np.ndarray, step: int, size: int) -> int:
    """Bytes up to the first that is missing."""
    whole = np.minimum(step, size - step * np.arange(len(got)))
    short = np.flatnonzero(got < whole)
    return int(step * short[0] + got[short[0]]) if len(short) else size
