# SPDX-License-Identifier: BSD-3-Clause
"""Workers of a Dask cluster: one of our own, one that runs already, or that of a notebook's client."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import queue
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from skydelta import __version__
from skydelta.errors import ConfigError, SkydeltaError, WorkerError
from skydelta.kernels.backend import resolve
from skydelta.pipeline.events import Event
from skydelta.pipeline.executors.base import (
    LIVES,
    Receipt,
    Seat,
    Task,
    device_of,
    hub_of,
    left_by,
    share_of,
    work,
    workers_for,
)
from skydelta.pipeline.items import WorkItem

log = logging.getLogger(__name__)

PATIENCE = 30.0
"""Seconds without a scheduler or without any worker after which a run gives up."""

ANSWER = 10.0
"""Seconds that a scheduler has to answer, or to be found again."""


@dataclass
class _Flight:
    """An item and the worker that has it; ``missed`` is when that was last seen."""

    item: WorkItem
    address: str
    missed: float = field(default_factory=time.monotonic)


class Dask:
    """Hands items to the workers of a cluster, whoever started it; what a worker that dies has is done by another.

    Parameters
    ----------
    device : str
        What was asked for; CUDA devices of a machine go to its workers in turn.
    workers : int, optional
        Of a cluster of one's own; else one a GPU, or one a core as far as memory goes.
    address : str, optional
        Scheduler of a cluster that runs already. Without it the client that is current in this process is used, and
        without one a cluster on this machine, of spawned processes, that ends with the run.
    peak : int
        Bytes that one item needs.

    Raises
    ------
    ConfigError
        Dask is missing, or ``workers`` together with a cluster that is not ours.
    WorkerError
        No scheduler answers there, or it has no workers.
    DeviceError
        The device is missing on a worker.
    """

    def __init__(self, device: str, workers: int | None = None, address: str | None = None, peak: int = 0) -> None:
        self._distributed = _distributed()
        self._device = device
        self._own: Any = None
        self._lent = False
        current = None if address else self._current()
        if workers is not None and (address or current):
            raise ConfigError("run.workers: the workers are those of the Dask cluster that runs already")
        if current is None and logging.getLogger().level > logging.INFO:
            _quiet()
        if current is not None:
            self._client, self._lent = current, True
        elif address:
            self._client = self._connect(address)
        else:
            self._client = self._start(workers_for(device, workers, peak))
        try:
            self._gpu_of_its_own: dict[str, bool] = {}
            self._threads: dict[str, int] = {}
            self._places = self._look(first=True)
        except BaseException:
            self.close()
            raise
        self.size = len(self._places)
        self.description = (
            f"dask: {self.size} workers at {'this machine' if self._own else self._client.scheduler.address}"
        )

    def _current(self) -> Any:
        with contextlib.suppress(ValueError):
            return self._distributed.Client.current()
        return None

    def _connect(self, address: str) -> Any:
        try:
            return self._distributed.Client(address, timeout=ANSWER, set_as_default=False)
        except (OSError, ValueError) as e:
            raise WorkerError(f"dask: no scheduler answers at {address}: {e}") from None

    def _start(self, count: int) -> Any:
        """A cluster on this machine. Its workers may use all memory: items are as large as they are."""
        # the scheduler shall not try again by itself: whoever dies twice with an item is counted here
        scheduler = {"allowed_failures": 0, "dashboard": False}
        options: dict[str, Any] = {"scheduler_kwargs": scheduler, "dashboard_address": "127.0.0.1:0"}
        # a terminal's Ctrl-C is for this process, which then ends its workers
        options["preload"] = ["import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)"]
        if resolve(self._device).is_gpu and (cuda := _dask_cuda()) is not None:
            kind = cuda.LocalCUDACluster
        else:
            kind = self._distributed.LocalCluster
            options |= {"processes": True, "threads_per_worker": 1, "memory_limit": 0, "worker_dashboard_address": None}
        self._own = kind(n_workers=count, host="127.0.0.1", silence_logs=logging.CRITICAL, **options)
        return self._distributed.Client(self._own, timeout=30, set_as_default=False)

    def map(self, task: Task, items: Iterable[WorkItem]) -> Iterator[Receipt]:
        waiting, stock = iter(items), deque[WorkItem]()
        flights: dict[Any, _Flight] = {}
        ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        tries: Counter[str] = Counter()
        self._deaths: Counter[str] = Counter()
        looked = alive = time.monotonic()
        try:
            while True:
                stock.extend(islice(waiting, max(0, 2 * len(self._places) + 1 - len(stock))))
                if not flights and not stock:
                    return
                self._hand_out(task, stock, flights, ready)
                with contextlib.suppress(queue.Empty):
                    future = ready.get(timeout=0.5)
                    flight = flights.pop(future, None)
                    receipt = None if flight is None else self._receipt(task, flight, future, tries, stock)
                    future.release()
                    if receipt is not None:
                        alive = time.monotonic()
                        yield receipt
                now = time.monotonic()
                if now - looked > 0.5:
                    looked = now
                    self._places = self._look() if self._client.status == "running" else {}
                    alive = now if self._places else alive
                    if now - alive > PATIENCE:
                        raise WorkerError(self._gone())
                    for future in self._stranded(flights, now):
                        receipt = self._died(task, flights.pop(future), tries, stock)
                        future.cancel()
                        if receipt is not None:
                            yield receipt
                if self._client.status in ("closed", "closing"):
                    raise WorkerError(self._gone())
        finally:
            for future in flights:
                with contextlib.suppress(Exception):
                    future.cancel()

    def _hand_out(
        self, task: Task, stock: deque[WorkItem], flights: dict[Any, _Flight], ready: queue.SimpleQueue[Any]
    ) -> None:
        """Give items to workers that are free, and a second one where more than one for each is left.

        Each is for one worker alone: the scheduler would put several on the one that is left when another dies.
        """
        load = Counter(flight.address for flight in flights.values())
        while stock and self._client.status == "running":
            second = len(stock) > len(self._places)
            free = [a for a in self._places if load[a] < (2 if second and self._threads[a] == 1 else 1)]
            if not free:
                return
            address = min(free, key=lambda a: load[a])
            item = stock.popleft()
            load[address] += 1
            future = self._client.submit(
                _work,
                task,
                item,
                self._device,
                self._places[address],
                key=f"skydelta-{item.id}-{uuid.uuid4().hex[:12]}",
                pure=False,
                workers=[address],
                allow_other_workers=False,
            )
            flights[future] = _Flight(item, address)
            future.add_done_callback(ready.put)

    def _gone(self) -> str:
        what = "all workers are" if self._client.status == "running" else "the scheduler is"
        return f"dask: {what} gone; what is done stays done, and the same command does the rest"

    def _stranded(self, flights: dict[Any, _Flight], now: float) -> list[Any]:
        """Items of workers that have been gone for a while: a scheduler that is not ours may wait for them for ever."""
        out = []
        for future, flight in flights.items():
            if flight.address in self._places or not self._places:
                flight.missed = now
            elif now - flight.missed > ANSWER:
                out.append(future)
        return out

    def _receipt(
        self, task: Task, flight: _Flight, future: Any, tries: Counter[str], stock: deque[WorkItem]
    ) -> Receipt | None:
        """What an item has come to; None when it is to be tried again."""
        found = self._fetched(future)
        if found is not None:
            receipt, events = found
            hub_of(task).replay(events)
            return receipt
        if future.status != "error":
            # The connection broke, or the worker died with the result: what it had done is found done on the disk.
            stock.appendleft(flight.item)
            return None
        error = future.exception()
        if not isinstance(error, self._distributed.scheduler.KilledWorker):
            raise error
        self._places = {address: place for address, place in self._places.items() if address != flight.address}
        return self._died(task, flight, tries, stock)

    def _fetched(self, future: Any) -> tuple[Receipt, list[Event]] | None:
        """The result of a future; None when there is none, or when it is lost on the way.

        Asked for without end, Dask would wait for the worker that is gone to do it again.
        """
        end = time.monotonic() + ANSWER
        while future.status == "finished" and time.monotonic() < end:
            with contextlib.suppress(OSError, CancelledError):  # too late, or the connection broke half-way
                return future.result(timeout=0.5)
            time.sleep(0.05)
        return None

    def _died(self, task: Task, flight: _Flight, tries: Counter[str], stock: deque[WorkItem]) -> Receipt | None:
        """A worker died with an item; None when another worker is to try it.

        Only an attempt that had begun is held against the item: it has left its folder.
        """
        item = flight.item
        tries[item.id] += 1
        before, deaths = self._deaths[item.id], left_by(task.root, item)
        self._deaths[item.id] = deaths
        if deaths >= LIVES or tries[item.id] >= 3 * LIVES:
            count = deaths if deaths >= LIVES else tries[item.id]
            return task.lost(item, f"{count} workers died at this item, the last was {flight.address}")
        if deaths > before:
            hub_of(task).tell("item_retried", item.id, message=f"worker {flight.address} died")
        stock.appendleft(item)
        return None

    def _look(self, first: bool = False) -> dict[str, tuple[int, int]]:
        """The workers there are now, numbered on each machine."""
        try:
            if first and not self._own:
                with contextlib.suppress(TimeoutError):
                    self._client.wait_for_workers(1, timeout=PATIENCE)
            known = self._client.scheduler_info(n_workers=-1)["workers"]
            addresses = sorted(known)
            self._threads = {address: known[address]["nthreads"] for address in addresses}
            self._examine([a for a in addresses if a not in self._gpu_of_its_own], first)
        except (OSError, TimeoutError) as e:  # the scheduler went meanwhile: its status will say so
            log.info("dask: %s", e)
            return dict(self._places) if not first else {}
        addresses = [a for a in addresses if a in self._gpu_of_its_own]
        if first and not addresses:
            raise WorkerError(f"dask: the scheduler at {self._client.scheduler.address} has no workers")
        hosts: dict[str, list[str]] = {}
        for address in addresses:
            hosts.setdefault(address.rpartition(":")[0], []).append(address)
        return {
            address: (0 if self._gpu_of_its_own[address] else index, len(there))
            for there in hosts.values()
            for index, address in enumerate(there)
        }

    def _examine(self, addresses: list[str], first: bool) -> None:
        """Ask new workers what they are; one that does not answer is left out and asked again, but for the first."""
        if not addresses:
            return
        found = self._client.run(_describe, self._device, workers=addresses, on_error="return")
        visible = Counter(d["visible"] for d in found.values() if isinstance(d, dict))
        for address, d in found.items():
            if isinstance(d, SkydeltaError):
                raise type(d)(f"dask worker {address}: {d}")
            if not isinstance(d, dict) and not first:
                log.info("dask worker %s: %r", address, d)
                continue
            if not isinstance(d, dict):
                raise WorkerError(f"dask worker {address}: {d!r}; skydelta {__version__} must be installed there")
            if d["version"] != __version__:
                raise ConfigError(f"dask worker {address}: has skydelta {d['version']}, the run {__version__}")
            # dask-cuda gives each worker another order of the devices, its own first
            self._gpu_of_its_own[address] = d["visible"] is not None and visible[d["visible"]] < len(found)
        kinds = {d["device"].partition(":")[0] for d in found.values() if isinstance(d, dict)}
        if len(kinds) > 1:
            raise ConfigError("run.device: auto means cpu on some Dask workers and cuda on others; say which")

    def close(self) -> None:
        if self._lent:
            return
        with contextlib.suppress(Exception):
            self._client.close(timeout=5)
        if self._own is not None:
            with contextlib.suppress(Exception):
                self._own.close(timeout=10)


def _distributed() -> Any:
    try:
        import distributed
        import distributed.scheduler
    except ImportError as e:
        raise ConfigError(f"run.executor: dask cannot be imported ({e}); install dask[distributed]") from None
    return distributed


def _quiet() -> None:
    """The run itself says what becomes of workers and scheduler; Dask's own lines would say it again, at length."""
    for name in logging.root.manager.loggerDict:
        if name.partition(".")[0] in ("distributed", "bokeh", "tornado"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _dask_cuda() -> Any:
    """The package that binds workers to GPUs, where it is installed."""
    try:
        import dask_cuda
    except ImportError:
        return None
    return dask_cuda


def _describe(device: str) -> dict[str, Any]:
    """On a worker: what it is."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {"version": __version__, "device": resolve(device).name, "visible": visible}


def _work(task: Task, item: WorkItem, asked: str, place: tuple[int, int]) -> tuple[Receipt, list[Event]]:
    """On a worker: one item; ``place`` is its number on its machine and how many workers are there."""
    address = _distributed().get_worker().address
    index, count = place
    seat = Seat(device_of(asked, index), share_of(count), f"dask {address} on {platform.node()}")
    return work(task, item, seat)
