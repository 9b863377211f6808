# SPDX-License-Identifier: BSD-3-Clause
"""Workers of a Dask cluster: one of our own, one that runs already, or that of a notebook's client."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import queue
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, TypeVar

from skydelta import __version__
from skydelta.errors import ConfigError, SkydeltaError, WorkerError
from skydelta.kernels.backend import cuda_device_count, resolve
from skydelta.pipeline.events import Event
from skydelta.pipeline.executors.base import (
    LIVES,
    Order,
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


FIRST = 120.0
"""Seconds that new workers have to say what they are: they import this package, perhaps from slow storage."""

T = TypeVar("T")


def _within(seconds: float, call: Callable[[], T]) -> T:
    """The result of a call that may never return: Dask waits without end for whoever is frozen.

    Raises
    ------
    TimeoutError
        There is none yet; the call is left to itself.
    """
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put((call(), None))
        except BaseException as e:
            answers.put((None, e))

    threading.Thread(target=ask, name="skydelta-dask-question", daemon=True).start()
    try:
        found, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return found  # type: ignore[return-value]


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
            self._asked: dict[str, float] = {}
            self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
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
        gpus = cuda_device_count()[0] if resolve(self._device).is_gpu else 0
        # dask-cuda refuses more workers than GPUs; plain ones take the GPUs in turn
        if count <= gpus and (cuda := _dask_cuda()) is not None:
            kind = cuda.LocalCUDACluster
        else:
            kind = self._distributed.LocalCluster
            options |= {"processes": True, "threads_per_worker": 1, "memory_limit": 0, "worker_dashboard_address": None}
        self._own = kind(n_workers=count, host="127.0.0.1", silence_logs=logging.CRITICAL, **options)
        return self._distributed.Client(self._own, timeout=30, set_as_default=False)

    def map(self, task: Task, items: Iterable[WorkItem]) -> Iterator[Receipt]:
        order = Order(items)
        flights: dict[Any, _Flight] = {}
        ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        tries: Counter[str] = Counter()
        self._deaths: Counter[str] = Counter()
        looked = alive = time.monotonic()
        try:
            while True:
                if not flights and not order:
                    return
                self._hand_out(task, order, flights, ready)
                with contextlib.suppress(queue.Empty):
                    future = ready.get(timeout=0.5)
                    flight = flights.pop(future, None)
                    receipt = None if flight is None else self._receipt(task, flight, future, tries, order)
                    future.release()
                    if receipt is not None:
                        alive = time.monotonic()
                        yield receipt
                now = time.monotonic()
                if now - looked > 0.5:
                    looked = now
                    self._places = self._look() if self._client.status == "running" else {}
                    alive = now if self._places or self._expected(now) else alive
                    if now - alive > PATIENCE:
                        raise WorkerError(self._gone())
                    for future in self._stranded(flights, now):
                        receipt = self._died(task, flights.pop(future), tries, order)
                        with contextlib.suppress(Exception):
                            _within(ANSWER, future.cancel)
                        if receipt is not None:
                            yield receipt
                if self._client.status in ("closed", "closing"):
                    raise WorkerError(self._gone())
        finally:
            with contextlib.suppress(Exception):
                _within(ANSWER, lambda: [future.cancel() for future in flights])

    def _hand_out(self, task: Task, order: Order, flights: dict[Any, _Flight], ready: queue.SimpleQueue[Any]) -> None:
        """Give items to workers that are free, and a second one where more than one for each is left.

        Each is for one worker alone: the scheduler would put several on the one that is left when another dies.
        """
        load = Counter(flight.address for flight in flights.values())
        while order and self._client.status == "running":
            second = order.more_than(len(self._places))
            free = [a for a in self._places if load[a] < (2 if second and self._threads[a] == 1 else 1)]
            if not free:
                return
            address = min(free, key=lambda a: load[a])
            item = order.next(address)
            if item is None:
                return
            load[address] += 1
            future = self._client.submit(
                _work,
                task,
                item,
                order.following(address),
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
        there = self._client.status == "running"
        what = "all workers are gone or frozen, or the scheduler is" if there else "the scheduler is gone"
        return f"dask: {what}; what is done stays done, and the same command does the rest"

    def _stranded(self, flights: dict[Any, _Flight], now: float) -> list[Any]:
        """Items of workers that have been gone for a while: a scheduler that is not ours may wait for them for ever."""
        out = []
        for future, flight in flights.items():
            if flight.address in self._places or not self._places:
                flight.missed = now
            elif now - flight.missed > ANSWER:
                out.append(future)
        return out

    def _receipt(self, task: Task, flight: _Flight, future: Any, tries: Counter[str], order: Order) -> Receipt | None:
        """What an item has come to; None when it is to be tried again."""
        found = self._fetched(future)
        if found is not None:
            receipt, events = found
            hub_of(task).replay(events)
            return receipt
        if future.status != "error":
            # The connection broke, or the worker died with the result: what it had done is found done on the disk.
            order.put_back(flight.item)
            return None
        error = future.exception()
        if not isinstance(error, self._distributed.scheduler.KilledWorker):
            raise error
        self._places = {address: place for address, place in self._places.items() if address != flight.address}
        return self._died(task, flight, tries, order)

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

    def _died(self, task: Task, flight: _Flight, tries: Counter[str], order: Order) -> Receipt | None:
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
        order.put_back(item)
        return None

    def _look(self, first: bool = False) -> dict[str, tuple[int, int]]:
        """The workers there are now, numbered on each machine."""
        try:
            if first and not self._own:
                with contextlib.suppress(TimeoutError):
                    self._client.wait_for_workers(1, timeout=PATIENCE)
            known = _within(FIRST if first else ANSWER, lambda: self._client.scheduler_info(n_workers=-1))["workers"]
            addresses = sorted(known)
            self._threads = {address: known[address]["nthreads"] for address in addresses}
            self._examine([a for a in addresses if a not in self._gpu_of_its_own], first)
        except TimeoutError as e:  # a scheduler that is frozen counts as gone after a while
            log.info("dask: the scheduler at %s: %s", self._client.scheduler.address, e)
            addresses = []
        except OSError as e:  # the scheduler went meanwhile: its status will say so
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
        """Ask new workers what they are, the first ones at once; of later ones the answers are used as they come."""

        def ask(asked: list[str]) -> dict[str, Any]:
            found: dict[str, Any] = self._client.run(_describe, self._device, workers=asked, on_error="return")
            return found

        if first and addresses:
            try:
                self._understand(_within(FIRST, lambda: ask(addresses)), first)
            except TimeoutError as e:
                raise WorkerError(f"dask: of the workers {', '.join(addresses)} one or more: {e}") from None
            return
        while not self._answers.empty():
            self._understand(self._answers.get(), first)
        now = time.monotonic()
        new = [a for a in addresses if a not in self._gpu_of_its_own and now - self._asked.get(a, -FIRST) >= FIRST]
        if new:
            self._asked |= dict.fromkeys(new, now)

            def answer() -> None:
                try:
                    self._answers.put(ask(new))
                except Exception as e:
                    self._answers.put(dict.fromkeys(new, e))

            threading.Thread(target=answer, name="skydelta-dask-question", daemon=True).start()

    def _expected(self, now: float) -> bool:
        """Whether there are new workers that may yet say what they are."""
        return any(a not in self._gpu_of_its_own and now - asked < FIRST for a, asked in self._asked.items())

    def _understand(self, found: dict[str, Any], first: bool) -> None:
        """What workers have said; one that did not answer is left out, but for the first."""
        visible = Counter(d["visible"] for d in found.values() if isinstance(d, dict))
        for address, d in found.items():
            if isinstance(d, SkydeltaError):
                raise type(d)(f"dask worker {address}: {d}")
            if not isinstance(d, dict) and not first:
                log.info("dask worker %s: %r", address, d)
                self._asked.pop(address, None)  # it is asked again
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
            _within(2 * ANSWER, lambda: self._client.close(timeout=5))
        if self._own is not None:
            with contextlib.suppress(Exception):
                _within(2 * ANSWER, lambda: self._own.close(timeout=10))


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


def _work(
    task: Task, item: WorkItem, following: WorkItem | None, asked: str, place: tuple[int, int]
) -> tuple[Receipt, list[Event]]:
    """On a worker: one item; ``place`` is its number on its machine and how many workers are there."""
    address = _distributed().get_worker().address
    index, count = place
    seat = Seat(device_of(asked, index), share_of(count), f"dask {address} on {platform.node()}")
    return work(task, item, seat, following)
