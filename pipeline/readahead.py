# SPDX-License-Identifier: BSD-3-Clause
"""The next item's files are read while the current one computes.

What is done ahead is the digest of their bytes, which the identity of an item needs anyway (`receipts.known_digest`):
the bytes are in the page cache then, and the digest is at hand. Pixels stay on the disk; nothing is kept in this
process but digests. A hint that comes to nothing (another worker takes the item) costs a read of its files.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Iterable
from pathlib import Path

from skydelta.kernels.backend import CPU
from skydelta.kernels.core.devices import DeviceSet
from skydelta.pipeline import receipts

log = logging.getLogger(__name__)

SHARE = 0.25
"""Part of the memory that is available now which files read ahead may fill."""

THREADS = 4
"""Readers of a process: workers of several GPUs each have a next item."""


KEPT = 256
"""Hints that are remembered."""


class ReadAhead:
    """Threads that read files which are wanted soon. They are daemons: storage that hangs keeps no process."""

    def __init__(self) -> None:
        self._wanted: queue.SimpleQueue[Path] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._one = threading.Lock()
        self._read: dict[str, int] = {}

    def want(self, name: str, files: Iterable[Path]) -> None:
        """Read the files of an item, unless they are more than fits beside what computes now."""
        new = [path for path in dict.fromkeys(files) if not receipts.knows(path)]
        sizes = {}
        for path in new:
            with contextlib.suppress(OSError):  # the item itself will say what is wrong with it
                sizes[path] = path.stat().st_size
        total = sum(sizes.values())
        if not total or total > SHARE * available():
            log.debug("%s: %d bytes are not read ahead", name, total)
            return
        with self._one:
            self._read[name] = total
            while len(self._read) > KEPT:  # of items that another process has had
                self._read.pop(next(iter(self._read)))
            for path in sizes:
                self._wanted.put(path)
            if len(self._threads) < THREADS and (not self._threads or self._wanted.qsize() > len(sizes)):
                number = len(self._threads)
                thread = threading.Thread(target=self._work, name=f"skydelta-ahead-{number}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def bytes_of(self, name: str) -> int:
        """Bytes that were wanted ahead of an item which begins now; asked once."""
        with self._one:
            return self._read.pop(name, 0)

    def _work(self) -> None:
        while True:
            path = self._wanted.get()
            try:
                receipts.known_digest(path)
            except Exception as e:  # whatever it is, the item that reads the file will meet it too
                log.debug("%s: not read ahead: %s", path, e)


def available() -> int:
    """Bytes of memory that can be had without swapping."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    with contextlib.suppress(OSError, ValueError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return DeviceSet.of(CPU).memory_budget()


HERE = ReadAhead()
"""Of this process."""
