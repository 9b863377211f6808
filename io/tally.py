# SPDX-License-Identifier: BSD-3-Clause
"""The checksum of a part of a file, from the bytes that pass by when it is read: none is read twice for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from skydelta.io.storage import SPAN, Content
from skydelta.kernels.backend import Array
from skydelta.kernels.checksum import add_words, word_sum_later

PIECE = 1 << 20
"""Bytes that are read and summed together."""


class Tally:
    """A content that sums what is read of one range. Thread-safe.

    Parameters
    ----------
    content : Content
    begin, end : int
        First byte of the range, at the beginning of a word, and the first behind it.
    """

    def __init__(self, content: Content, begin: int, end: int) -> None:
        self.content, self._begin = content, begin
        self.size, self.span = content.size, content.span
        self._gaps = [(begin, end)] if end > begin else []
        self._sums: list[Callable[[], int]] = []
        self._lock = threading.Lock()

    def read(self, offset: int, size: int) -> bytes:
        data = self.content.read(offset, size)
        self.add(offset, np.frombuffer(data, np.uint8))
        return data

    def read_into(self, offset: int, out: np.ndarray) -> int:
        # in pieces that are still in the cache when they are summed; a server is asked for all at once
        step = PIECE if self.span <= SPAN else max(len(out), 1)
        for at in range(0, len(out), step):
            piece = out[at : at + step]
            got = self.content.read_into(offset + at, piece)
            self.add(offset + at, piece[:got])
            if got < len(piece):
                return at + got
        return len(out)

    def add(self, offset: int, data: Array) -> None:
        """Sum the bytes from ``offset``, uint8 (n,) on the host or a device; those that were summed before are not."""
        for a, b in self._claim(offset, offset + len(data)):
            later = word_sum_later(data[a - offset : b - offset], (a - self._begin) % 4)
            with self._lock:
                self._sums.append(later)

    def _claim(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The parts of a range that nobody has summed; they are the caller's now."""
        claimed, left = [], []
        with self._lock:
            for a, b in self._gaps:
                low, high = max(a, start), min(b, stop)
                if low >= high:
                    left.append((a, b))
                    continue
                claimed.append((low, high))
                left += [gap for gap in ((a, low), (high, b)) if gap[0] < gap[1]]
            self._gaps = left
        return claimed

    def total(self) -> int:
        """Ones-complement sum of the range; what has not been read is read now. Bytes behind the file's end are 0."""
        gaps = [(a, min(b, self.size)) for a, b in self._gaps]
        room = np.empty(max((min(b - a, PIECE) for a, b in gaps if b > a), default=0), np.uint8)
        for start, stop in gaps:
            at = start
            while at < stop and (got := self.read_into(at, room[: stop - at])):
                at += got
        return add_words(*(later() for later in self._sums))

    def close(self) -> None:
        self.content.close()
