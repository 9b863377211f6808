# SPDX-License-Identifier: BSD-3-Clause
"""Bytes of a file in device memory: by KvikIO where it serves the file, else through page-locked host memory."""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from skydelta.io.routes import REQUESTS, Counted
from skydelta.io.storage import SPAN, Content
from skydelta.kernels.backend import Array, Backend, cupy
from skydelta.kernels.core.devices import active, pinned

PIECE = 4 << 20
"""Bytes that a thread reads and sends at a time."""

THREADS = 16
"""Readers at most: one alone copies from the page cache at a tenth of the rate of the bus."""


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

    def work() -> None:
        # two places: one is filled while the other is sent
        places = [pinned(min(step, size)) for _ in range(2)]
        sent: list[Any] = [None, None]
        with active(backend, stream):
            try:
                for k in itertools.count():
                    if (i := next(turn)) >= len(starts):
                        break
                    start, place = starts[i], places[k % 2]
                    _wait(sent[k % 2])
                    wanted = min(step, size - start)
                    got[i] = content.read_into(offset + start, place[:wanted])
                    if got[i]:
                        out[start : start + int(got[i])].set(place[: got[i]], stream)
                        sent[k % 2] = stream.record()
            finally:
                for event in sent:  # before the places go back to their pool
                    _wait(event)

    workers = min(THREADS if content.span <= SPAN else REQUESTS, os.cpu_count() or 1, len(starts))
    if workers <= 1:
        work()
    else:
        with ThreadPoolExecutor(workers, "skydelta-stage") as pool:
            for done in [pool.submit(work) for _ in range(workers)]:
                done.result()
    return out[: _contiguous(got, step, size)]


def _wait(event: Any) -> None:
    if event is not None:
        event.synchronize()


def _contiguous(got: np.ndarray, step: int, size: int) -> int:
    """Bytes up to the first that is missing."""
    whole = np.minimum(step, size - step * np.arange(len(got)))
    short = np.flatnonzero(got < whole)
    return int(step * short[0] + got[short[0]]) if len(short) else size
