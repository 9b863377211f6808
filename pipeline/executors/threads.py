# SPDX-License-Identifier: BSD-3-Clause
"""Threads of this process, one a GPU; on a CPU they share the cores."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from skydelta.pipeline.executors.base import Order, Receipt, Seat, Task, device_of, hub_of, share_of, workers_for
from skydelta.pipeline.items import WorkItem

PATIENCE = 20.0
"""Seconds that an interrupted run waits for its threads to reach the end of the step they are in."""

SWITCH = 5e-4
"""Seconds after which a thread that runs Python makes room for another, ten times fewer than Python's own. One that
drives a device gives way at each of a thousand launches and waits this long to come back: 4 threads did 2.55 pairs of
4096 px a second instead of 2.06 (NVIDIA H200)."""

_Inbox = queue.SimpleQueue[tuple[WorkItem, WorkItem | None] | None]


class Stopped(BaseException):
    """Ends an item between two steps; no step catches it."""


class Crew:
    """Threads that take items, and those that follow, each from a queue of its own.

    They put ``(receipt or exception, number of the thread)`` into another.

    They are daemons: a step that never ends cannot keep the process.
    """

    def __init__(self, task: Task, seats: Iterable[Seat]) -> None:
        self._task = task
        self._stop = threading.Event()
        self.results: queue.SimpleQueue[tuple[Receipt | BaseException, int]] = queue.SimpleQueue()
        seats = list(seats)
        self._items: list[_Inbox] = [queue.SimpleQueue() for _ in seats]
        self._threads = [
            threading.Thread(target=self._work, args=(n, seat), name=f"skydelta-{seat.name}", daemon=True)
            for n, seat in enumerate(seats)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, thread: int, item: WorkItem, following: WorkItem | None) -> None:
        self._items[thread].put((item, following))

    def end(self) -> None:
        """Let every thread stop at the end of its step, and wait for that, but not for ever."""
        self._stop.set()
        for inbox in self._items:
            inbox.put(None)
        for thread in self._threads:
            thread.join(PATIENCE / len(self._threads))

    def _tell(self, kind: str, item: str = "", step: str = "", **data: Any) -> None:
        if self._stop.is_set():
            raise Stopped
        hub_of(self._task).tell(kind, item, step, **data)

    def _work(self, number: int, seat: Seat) -> None:
        while (found := self._items[number].get()) is not None and not self._stop.is_set():
            item, following = found
            try:
                self.results.put((self._task(item, seat, self._tell, following), number))
            except Stopped:
                return
            except BaseException as e:  # also KeyboardInterrupt of a stage: the main thread raises it
                self.results.put((e, number))


class Threads:
    """Several items in flight in this process.

    Parameters
    ----------
    device : str
        ``cuda`` or ``auto``: all CUDA devices in turn; ``cuda:N``: that one.
    workers : int, optional
        Threads; else one a GPU, or one a core as far as memory goes.
    peak : int
        Bytes that one item needs.
    """

    def __init__(self, device: str, workers: int | None = None, peak: int = 0) -> None:
        self.size = workers_for(device, workers, peak)
        self.description = f"threads: {self.size}"
        share = share_of(self.size)
        self._seats = [Seat(device_of(device, i), share, f"thread {i}") for i in range(self.size)]

    def map(self, task: Task, items: Iterable[WorkItem]) -> Iterator[Receipt]:
        order = Order(items)
        patience = sys.getswitchinterval()
        sys.setswitchinterval(min(patience, SWITCH))
        crew = Crew(task, self._seats)
        try:
            first = {n: item for n in range(self.size) if (item := order.next(n)) is not None}
            for n, item in first.items():
                crew.put(n, item, order.following(n))
            at_work = len(first)
            while at_work:
                result, n = crew.results.get()
                at_work -= 1
                if isinstance(result, BaseException):
                    raise result
                following = order.next(n)
                if following is not None:
                    crew.put(n, following, order.following(n))
                    at_work += 1
                yield result
        finally:
            crew.end()
            sys.setswitchinterval(patience)

    def close(self) -> None:
        """The threads end with each map."""
