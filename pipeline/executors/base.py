# SPDX-License-Identifier: BSD-3-Clause
"""What an executor is: work items out, receipts back, never pixels."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from skydelta.kernels.backend import CPU, cuda_device_count, resolve
from skydelta.kernels.core.devices import DeviceSet
from skydelta.pipeline.events import Collector, Event, Hub, Tell
from skydelta.pipeline.items import WorkItem

Receipt = dict[str, Any]

LIVES = 2
"""Workers that one item may cost: that one is killed is no fault of the item, two are."""

WORK = ".work"
"""Folder in that of a run for what does not outlive it: attempts at items, signs of life of ranks."""


@dataclass(frozen=True)
class Seat:
    """Where a worker works.

    Attributes
    ----------
    device : str
        ``cpu``, ``cuda:N``, or what was asked for.
    threads : int or None
        Threads that each kernel may use; None: all.
    name : str
        As receipts say it.
    """

    device: str
    threads: int | None = None
    name: str = ""


class Task(Protocol):
    """What is done with every item; it can be pickled, and leaves its hub behind then.

    Attributes
    ----------
    root : Path
        Folder of the run, on storage that all workers share.
    hub : Hub or None
        Who is told what happens, where the run was started.
    """

    root: Path
    hub: Hub | None

    def __call__(self, item: WorkItem, seat: Seat, tell: Tell, following: WorkItem | None = None) -> Receipt:
        """The receipt; raises only to stop everything. ``following`` is likely to come next here, and is read ahead."""
        ...

    def lost(self, item: WorkItem, message: str) -> Receipt:
        """The receipt of an item that no worker lived to finish."""
        ...


class Executor(Protocol):
    """Spreads work items.

    Attributes
    ----------
    size : int
        Workers at the start.
    description : str
        One line for the record of the run.
    """

    size: int
    description: str

    def map(self, task: Task, items: Iterable[WorkItem]) -> Iterator[Receipt]:
        """Run every item, handed out one at a time; receipts in any order.

        Raises
        ------
        WorkerError
            There is nobody left to work.
        """
        ...

    def close(self) -> None:
        """End workers of one's own; those that are lent go on."""
        ...


class Order:
    """Items in the order they are handed out, none twice; what each worker will have next is known while it works.

    The next item of a worker is kept for it, so that it can be read ahead where it will be worked on. Where nothing
    else is left, another worker may have it: nobody waits for what nobody else would do.

    Parameters
    ----------
    items : iterable of WorkItem
        Drawn from as far as is needed.
    """

    def __init__(self, items: Iterable[WorkItem]) -> None:
        self._items = iter(items)
        self._drawn: deque[WorkItem] = deque()
        self._kept: dict[Hashable, WorkItem] = {}

    def more_than(self, count: int) -> bool:
        """Whether more items than these are left."""
        self._drawn.extend(islice(self._items, max(0, count + 1 - len(self._kept) - len(self._drawn))))
        return len(self._kept) + len(self._drawn) > count

    def __bool__(self) -> bool:
        return self.more_than(0)

    def next(self, worker: Hashable) -> WorkItem | None:
        """The next item for a worker; None when none is left."""
        item = self._kept.pop(worker, None) or self._draw()
        if item is None and self._kept:
            item = self._kept.pop(next(reversed(self._kept)))
        return item

    def following(self, worker: Hashable) -> WorkItem | None:
        """The item that a worker will have after the one it was given last, if there is one."""
        if worker not in self._kept and (item := self._draw()) is not None:
            self._kept[worker] = item
        return self._kept.get(worker)

    def put_back(self, item: WorkItem) -> None:
        """An item that has to be done again comes first."""
        self._drawn.appendleft(item)

    def _draw(self) -> WorkItem | None:
        return self._drawn.popleft() if self._drawn else next(self._items, None)


def work(task: Task, item: WorkItem, seat: Seat, following: WorkItem | None = None) -> tuple[Receipt, list[Event]]:
    """One item in another process: its receipt, and what happened."""
    collector = Collector()
    return task(item, seat, collector.tell, following), collector.events


def left_by(root: Path, item: WorkItem) -> int:
    """Attempts at an item that were killed in this run: each has left its folder."""
    folder = re.compile(re.escape(item.id) + r"\.[0-9a-f]{12}\Z")
    return sum(bool(folder.match(path.name)) for path in (root / WORK).glob("*"))


def hub_of(task: Task) -> Hub:
    """The hub of the process where the run was started."""
    return task.hub if task.hub is not None else Hub(())


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_of(workers: int) -> int:
    """Threads for each of the workers of one machine, so that together they use each core once."""
    return max(1, cores() // workers)


def device_of(asked: str, index: int) -> str:
    """The device of the worker with this index on its machine: CUDA devices in turn, unless one is asked for."""
    backend = resolve(asked)
    if not backend.is_gpu or ":" in asked:
        return backend.name
    return f"cuda:{index % cuda_device_count()[0]}"


def workers_for(asked: str, wanted: int | None, peak: int) -> int:
    """Workers of a machine: as wanted; else one a GPU, or one a core as far as memory goes.

    Parameters
    ----------
    peak : int
        Bytes that one item needs.
    """
    if wanted is not None:
        return wanted
    backend = resolve(asked)
    if backend.is_gpu:
        return 1 if ":" in asked else cuda_device_count()[0]
    return max(1, min(cores(), DeviceSet.of(CPU).memory_budget() // max(peak, 1)))
