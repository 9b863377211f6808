# SPDX-License-Identifier: BSD-3-Clause
"""MPI ranks: rank 0 hands out items one at a time and works too; the others serve it until it says stop.

Every rank runs the same command. Rank 0 alone reads the workflow, writes the run's files and talks on the terminal.
Messages are small: items out, receipts and events back. Ranks poll: to wait inside MPI would burn a core.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import platform
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from skydelta.errors import ConfigError, ExitCode, SkydeltaError, WorkerError
from skydelta.interrupt import terminable
from skydelta.pipeline.events import Collector, Event, JsonLines
from skydelta.pipeline.executors.base import (
    LIVES,
    WORK,
    Order,
    Receipt,
    Seat,
    Task,
    device_of,
    hub_of,
    share_of,
)
from skydelta.pipeline.executors.threads import Crew
from skydelta.pipeline.items import WorkItem

log = logging.getLogger(__name__)

LOCAL_RANK = "SKYDELTA_LOCAL_RANK"
"""Replaces the number of a rank on its machine, for launchers that place ranks in a way MPI cannot see."""

PATIENCE = 20.0
"""Seconds that a rank which was told to stop by a signal waits for rank 0 to end the job in good order."""

LOOK = 2.0
"""Seconds between two looks at whether the other ranks live."""

TO_RANK, TO_ROOT = 11, 12

T = TypeVar("T")


class Ranks:
    """The ranks of this job; made on each of them."""

    def __init__(self) -> None:
        self.mpi = _mpi()
        self.comm = self.mpi.COMM_WORLD.Dup()
        self.rank, self.size = self.comm.rank, self.comm.size
        local = self.comm.Split_type(self.mpi.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = _local_rank(local.rank), local.size
        local.Free()
        self.dead: set[int] = set()
        self.leading = False
        self.life = contextlib.ExitStack()
        self._sent: list[tuple[Any, int]] = []

    def seat(self, asked: str) -> Seat:
        name = f"rank {self.rank} on {platform.node()}, local {self.local_rank}"
        return Seat(device_of(asked, self.local_rank), share_of(self.local_size), name)

    def send(self, message: tuple[Any, ...], rank: int) -> None:
        """Send, and wait for nobody: a long message is taken when the other looks for it, a dead one never does."""
        self._sent = [(request, to) for request, to in self._sent if not request.test()[0]]
        request = self.comm.isend(message, dest=rank, tag=TO_RANK if self.rank == 0 else TO_ROOT)
        self._sent.append((request, rank))

    def delivered(self) -> None:
        """Wait until all messages have been taken; whoever has not taken his after a while counts as dead."""
        end, pause = time.monotonic() + PATIENCE, _Pause()
        while self._sent and time.monotonic() < end:
            self._sent = [(request, to) for request, to in self._sent if not request.test()[0]]
            pause()
        self.dead |= {to for _, to in self._sent}
        self._sent.clear()

    def receive(self) -> tuple[int, tuple[Any, ...]] | None:
        """A message and whose it is, if there is one."""
        status = self.mpi.Status()
        tag = TO_ROOT if self.rank == 0 else TO_RANK
        message = self.comm.improbe(tag=tag, status=status)
        return None if message is None else (status.Get_source(), message.recv())

    def tell_all(self, message: tuple[Any, ...]) -> None:
        """To every other rank that lives."""
        for rank in range(1, self.size):
            if rank not in self.dead:
                self.send(message, rank)
        self.delivered()

    def abort(self, code: int) -> None:
        """End all ranks at once."""
        self.comm.Abort(code)


_ranks: Ranks | None = None


def ranks() -> Ranks:
    """The ranks of this job, entered once a process.

    An exception that nobody catches ends the whole job: left alone, MPI would wait for this rank for ever.

    Raises
    ------
    ConfigError
        mpi4py or the MPI library is missing.
    """
    global _ranks  # noqa: PLW0603
    if _ranks is None:
        _ranks = found = Ranks()
        if found.size > 1:
            before = sys.excepthook

            def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
                before(kind, error, trace)
                sys.stderr.flush()
                found.abort(int(ExitCode.SOME_FAILED))

            sys.excepthook = hook
    return _ranks


class Mpi:
    """Rank 0's side.

    Parameters
    ----------
    device : str
        What was asked for; CUDA devices of a machine go to its ranks in turn.

    Raises
    ------
    ConfigError
        mpi4py or the MPI library is missing.
    """

    def __init__(self, device: str) -> None:
        self._ranks = ranks()
        self.size = self._ranks.size
        self.description = f"mpi: {self.size} ranks"
        self._seat = self._ranks.seat(device)
        self._device = device

    def map(self, task: Task, items: Iterable[WorkItem]) -> Iterator[Receipt]:
        order = Order(items)
        if self.size > 1:
            self._ranks.life.enter_context(_sign_of_life(task.root, 0))
        for rank in range(1, self.size):
            if rank not in self._ranks.dead:
                self._ranks.send(("job", task, self._device), rank)
        ready: set[int] = set()
        at_work: dict[int, WorkItem] = {}
        deaths: Counter[str] = Counter()
        crew = Crew(task, [self._seat])
        watch = _Watch(task.root)
        pause = _Pause()
        try:
            while True:
                if not at_work and not order:
                    return
                for rank in (*sorted(ready), 0):
                    if rank not in at_work and (item := order.next(rank)) is not None:
                        at_work[rank] = item
                        if rank:
                            self._ranks.send(("item", item, order.following(rank)), rank)
                            ready.discard(rank)
                        else:
                            crew.put(0, item, order.following(0))
                receipt = self._local(crew, at_work) or self._remote(task, at_work, ready, watch)
                if receipt is not None:
                    pause.reset()
                    yield receipt
                    continue
                for rank in watch.dead():
                    self._ranks.dead.add(rank)
                    ready.discard(rank)
                    if rank not in at_work:
                        continue
                    item = at_work.pop(rank)
                    deaths[item.id] += 1
                    if deaths[item.id] < LIVES:
                        hub_of(task).tell("item_retried", item.id, message=f"rank {rank} died")
                        order.put_back(item)
                    else:
                        yield task.lost(item, f"{LIVES} ranks died at this item, the last was rank {rank}")
                pause()
        finally:
            crew.end()

    def _local(self, crew: Crew, at_work: dict[int, WorkItem]) -> Receipt | None:
        if crew.results.empty():
            return None
        result, _ = crew.results.get()
        del at_work[0]
        if isinstance(result, BaseException):
            raise result
        return result

    def _remote(self, task: Task, at_work: dict[int, WorkItem], ready: set[int], watch: _Watch) -> Receipt | None:
        """The next receipt of another rank, if one has come."""
        while (found := self._ranks.receive()) is not None:
            rank, (kind, *content) = found
            if kind == "done":
                receipt, events = content
                hub_of(task).replay(events)
                at_work.pop(rank, None)
                ready.add(rank)
                return receipt
            if kind == "ready":
                ready.add(rank)
                watch.add(rank)
            elif kind == "interrupted":
                raise KeyboardInterrupt
            else:
                (error,) = content
                raise error
        return None

    def close(self) -> None:
        """The other ranks go on serving until the run is over: `together`."""


def together(lead: Callable[[], T]) -> T:
    """Call ``lead`` on rank 0 while the other ranks serve it; each rank gets its result, or its error.

    Inside another call of this function it is a plain call.
    """
    here = ranks()
    if here.leading or here.size == 1:
        return lead()
    if here.rank:
        return _follow(here)
    here.leading = True
    try:
        result = lead()
    except (Exception, SystemExit) as e:
        here.tell_all(("raise", e))
        raise
    else:
        here.tell_all(("return", result))
        return result
    finally:
        here.leading = False
        here.life.close()


def follower() -> bool:
    """Whether this process serves another rank and has nothing to say."""
    return _ranks is not None and _ranks.rank > 0


def leave(code: int) -> None:
    """Before rank 0 ends: where a rank has died or does not know of an interruption, end all; MPI would wait for it."""
    if _ranks is not None and _ranks.size > 1 and not _ranks.rank and (_ranks.dead or code == ExitCode.INTERRUPTED):
        sys.stdout.flush()
        sys.stderr.flush()
        _ranks.abort(code)


def _follow(here: Ranks) -> Any:
    """What every rank but 0 does: serve items until rank 0 is done; what it got, returned or raised.

    It says nothing on the terminal: what happens here is in ``logs/rank-NNNN.jsonl`` of the folder of the run.
    """
    logging.getLogger().handlers.clear()
    logging.captureWarnings(True)
    pause = _Pause()
    lines: JsonLines | None = None
    root = _Watch(None)
    try:
        with terminable(), contextlib.ExitStack() as stack:
            while True:
                found = here.receive()
                if found is None:
                    if root.dead():
                        log.error("rank 0 has died: nobody is left to serve")
                        here.abort(int(ExitCode.SOME_FAILED))
                    pause()
                    continue
                pause.reset()
                kind, *content = found[1]
                if kind == "return":
                    return content[0]
                if kind == "raise":
                    raise content[0]
                try:
                    if kind == "job":
                        task, asked = content
                        seat = here.seat(asked)
                        root = _Watch(task.root)
                        root.add(0)
                        if lines is None:
                            lines = stack.enter_context(_log_of(here.rank, task.root, seat))
                            stack.enter_context(_sign_of_life(task.root, here.rank))
                        here.send(("ready",), 0)
                    else:
                        done = _Recorded(lines)
                        receipt = task(content[0], seat, done.tell, content[1])
                        here.send(("done", receipt, done.events), 0)
                except Exception as e:  # what is wrong here is wrong with the run: rank 0 ends it
                    log.error("%s", traceback.format_exc())
                    said = e if isinstance(e, SkydeltaError) else WorkerError(f"rank {here.rank}: {e!r}")
                    here.send(("error", said), 0)
    except KeyboardInterrupt:
        here.send(("interrupted",), 0)
        time.sleep(PATIENCE)  # rank 0 ends the job meanwhile
        here.abort(int(ExitCode.INTERRUPTED))
        raise


class _Recorded(Collector):
    """Keeps events for rank 0 and writes them into the log of this rank."""

    def __init__(self, lines: JsonLines | None) -> None:
        super().__init__()
        self._lines = lines

    def tell(self, kind: str, item: str = "", step: str = "", **data: Any) -> None:
        super().tell(kind, item, step, **data)
        if self._lines is not None:
            self._lines.tell(self.events[-1])


class _ToLines(logging.Handler):
    """What is logged, as lines of the same file."""

    def __init__(self, lines: JsonLines) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        said = {"level": record.levelname, "logger": record.name, "message": record.getMessage()}
        self._lines.tell(Event("log", data=said))


@contextlib.contextmanager
def _log_of(rank: int, root: Path, seat: Seat) -> Iterator[JsonLines]:
    lines = JsonLines(root / "logs" / f"rank-{rank:04d}.jsonl")
    handler = _ToLines(lines)
    logging.getLogger().addHandler(handler)
    where = {"host": platform.node(), "pid": os.getpid(), "temporary": tempfile.gettempdir()}
    lines.tell(Event("rank_started", data={"seat": seat.name, "device": seat.device, "threads": seat.threads, **where}))
    try:
        yield lines
    finally:
        logging.getLogger().removeHandler(handler)
        lines.close()


def _life_of(root: Path, rank: int) -> Path:
    return root / WORK / f"rank-{rank:04d}.lock"


@contextlib.contextmanager
def _sign_of_life(root: Path, rank: int) -> Iterator[None]:
    """A lock that this process holds as long as it lives."""
    path = _life_of(root, rank)
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as lock:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


class _Watch:
    """Finds ranks, also rank 0, that have died where the launcher leaves the others alive."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._watched: set[int] = set()
        self._next = time.monotonic() + LOOK

    def add(self, rank: int) -> None:
        """A rank lives. Where its lock cannot be seen from here (a file system without them), it is not watched."""
        if not self._free(rank):
            self._watched.add(rank)

    def dead(self) -> set[int]:
        """Ranks that have died since the last look."""
        if time.monotonic() < self._next:
            return set()
        self._next = time.monotonic() + LOOK
        gone = {rank for rank in self._watched if self._free(rank)}
        self._watched -= gone
        return gone

    def _free(self, rank: int) -> bool:
        if self._root is None:
            return True
        try:
            with _life_of(self._root, rank).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return True
        except OSError:
            return False


class _Pause:
    """Sleeps a little between two looks, longer when nothing has come for long."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def reset(self) -> None:
        self._seconds = 0.0

    def __call__(self) -> None:
        self._seconds = min(self._seconds + 0.0001, 0.005)
        time.sleep(self._seconds)


def _local_rank(found: int) -> int:
    text = os.environ.get(LOCAL_RANK)
    if text is None:
        return found
    if not text.isdigit():
        raise ConfigError(f"{LOCAL_RANK}={text!r}: a number from 0 is needed")
    return int(text)


def _mpi() -> Any:
    """The MPI module; mpi4py without an MPI library raises RuntimeError."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as e:
        why = str(e).splitlines()[0]
        raise ConfigError(f"run.executor: mpi cannot be used ({why}); install skydelta[mpi]") from None
    return MPI
