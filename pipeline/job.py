# SPDX-License-Identifier: BSD-3-Clause
"""One item through all steps of a workflow, wherever a worker is: attempts, retries, the receipt."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from threadpoolctl import ThreadpoolController

from skydelta.errors import ConfigError, ExitCode, SkydeltaError
from skydelta.interrupt import leave_if_asked
from skydelta.kernels.backend import Backend, resolve
from skydelta.kernels.core.devices import active
from skydelta.kernels.core.multi import counted_splits
from skydelta.pipeline import readahead, receipts
from skydelta.pipeline.events import Hub, Tell
from skydelta.pipeline.executors.base import Receipt, Seat
from skydelta.pipeline.graph import Bound, bind, external
from skydelta.pipeline.groups import gathered
from skydelta.pipeline.items import WorkItem
from skydelta.pipeline.receipts import RunFolder
from skydelta.pipeline.workflow import Step, Workflow, build
from skydelta.stages.base import Context

log = logging.getLogger(__name__)

PAUSE = 0.2
"""Seconds before the second attempt at storage that failed; four times as long before each further one."""


@dataclass
class Job:
    """What a worker needs to take items through a workflow; it travels to other processes without pixels or stages.

    Attributes
    ----------
    data, base
        The tables of the workflow, and the folder its relative paths are relative to (`workflow.build`).
    described : dict
        What the steps are where the run was started; a worker with other stages refuses to work.
    root : Path
        Folder of the run, on storage that all workers share.
    asked : str
        The device that was asked for, as receipts say it.
    overwrite : bool
        Run items that are done again.
    hub : Hub or None
        Where the run was started, who is told; stays there.
    place : str
        Folder in that of the run that has one for each item.
    """

    data: Mapping[str, Any]
    base: Path
    described: Mapping[str, Any]
    root: Path
    asked: str
    overwrite: bool
    hub: Hub | None = field(default=None, compare=False)
    place: str = "items"

    def __post_init__(self) -> None:
        self._flows: dict[str, tuple[Workflow, tuple[Bound, ...]]] = {}

    @classmethod
    def of(cls, flow: Workflow, folder: RunFolder, overwrite: bool, hub: Hub) -> Job:
        root = folder.root.absolute()
        job = cls(flow.data, flow.folder, flow.described(), root, flow.run.device, overwrite, hub, place=folder.place)
        job._flows["{}"] = flow, _bound(flow)
        return job

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_flows": {}, "hub": None}

    def __call__(self, item: WorkItem, seat: Seat, tell: Tell, following: WorkItem | None = None) -> Receipt:
        """The receipt of one item: an earlier one that still holds, or a fresh one.

        Raises
        ------
        ConfigError
            The stages here are not those of the run.
        """
        flow, bound = self._flow(item)
        folder = RunFolder(self.root, self.place)
        ahead = readahead.HERE.bytes_of(f"{self.root}/{item.id}")
        who = _identity(flow, item)
        if following is not None:
            readahead.HERE.want(f"{self.root}/{following.id}", self._files(following))
        earlier = None if self.overwrite or not who else folder.done(item, who)
        if earlier is not None:
            tell("item_resumed", item.id)
            return earlier | {"resumed": True}
        tell("item_started", item.id)
        backend = replace(resolve(seat.device), asked=self.asked)
        attempts: list[dict[str, Any]] = []
        while True:
            receipt, again = self._attempt(flow, bound, item, who, seat, backend, attempts, tell, ahead)
            if again is None:
                break
            attempts.append({"device": backend.name, **receipt["error"]})
            tell("item_retried", item.id, message=receipt["error"]["message"])
            backend = again
        if receipt["status"] == "failed":
            tell("item_failed", item.id, message=receipt["error"]["message"], steps_done=len(receipt["steps"]))
        else:
            tell("item_done", item.id, seconds=receipt["seconds"])
        return receipt

    def lost(self, item: WorkItem, message: str) -> Receipt:
        """The receipt of an item whose workers died; written here, where the run was started."""
        flow, _ = self._flow(item)
        error = {"step": "", "message": message, "exit_code": int(ExitCode.SOME_FAILED), "numbers": {}}
        receipt = {
            "id": item.id,
            "status": "failed",
            "inputs": dict(item.inputs),
            "device": {"asked": self.asked, "used": ""},
            "seconds": 0.0,
            "steps": [],
            "error": error,
            "attempts": [],
            "identity": _identity(flow, item),
            "outputs": {},
        }
        folder = RunFolder(self.root, self.place)
        try:
            with folder.attempt(item) as work:
                receipts.write_json(work / "receipt.json", receipt)
                folder.publish(work, item)
        except (OSError, SkydeltaError) as e:
            receipt["unwritten"] = _reason(e)
        if self.hub is not None:
            self.hub.tell("item_failed", item.id, message=message, steps_done=0)
        return receipt

    def _files(self, item: WorkItem) -> list[Path]:
        """What an item reads, as far as that can be told: its settings may be wrong."""
        try:
            flow, _ = self._flow(item)
        except SkydeltaError:
            return []
        return [receipts.path_of(source) for source in receipts.files_of(flow, item).values()]

    def _flow(self, item: WorkItem) -> tuple[Workflow, tuple[Bound, ...]]:
        """The workflow with the settings of an item, and its steps tied together; built once a process."""
        key = repr(sorted(item.settings.items())) if item.settings else "{}"
        flows = _BUILT.setdefault(repr((self.data, self.base)), {}) if self.hub is None else self._flows
        if key not in flows:
            flow = build(self.data, self.base, "workflow")
            if receipts.plain(flow.described()) != receipts.plain(self.described):
                raise ConfigError("worker: its stages or their versions are not those of the run; install the same")
            flow = flow.with_settings(item.settings, f"item {item.id}")
            if len(flows) > 64:
                flows.clear()
            flows[key] = flow, _bound(flow)
        return flows[key]

    def _attempt(
        self,
        flow: Workflow,
        bound: tuple[Bound, ...],
        item: WorkItem,
        who: str,
        seat: Seat,
        backend: Backend,
        attempts: list[dict[str, Any]],
        tell: Tell,
        ahead: int,
    ) -> tuple[Receipt, Backend | None]:
        """The receipt of one attempt, and where to try again; without a further attempt it is published."""
        folder = RunFolder(self.root, self.place)
        receipt: Receipt = {"id": item.id, "inputs": dict(item.inputs), "seconds": 0.0, "steps": []}
        receipt |= {"device": {"asked": backend.asked, "used": backend.name}, "outputs": {}}
        try:
            with folder.attempt(item) as work:
                receipt, raised = run_item(bound, item, backend, work, tell, flow.folder, seat.threads)
                again = _again(flow, backend, raised, len(attempts))
                if again is not None:
                    return receipt, again
                receipt["attempts"] = attempts
                receipt["worker"] = seat.name
                receipt["read_ahead_bytes"] = ahead
                receipt["identity"] = who
                receipt["outputs"] = {p.name: receipts.digest(p) for p in sorted(work.iterdir()) if p.is_file()}
                receipt = receipts.plain(receipt)
                receipts.write_json(work / "receipt.json", receipt)
                folder.publish(work, item)
        except (OSError, SkydeltaError) as e:  # a full disk, a folder that is gone: no receipt can be left
            error = receipt.get("error") or {
                "step": "",
                "message": f"receipt: {_reason(e)}",
                "exit_code": int(ExitCode.SOME_FAILED),
                "numbers": {},
            }
            receipt |= {"status": "failed", "error": error, "attempts": attempts, "outputs": {}}
            receipt["unwritten"] = _reason(e)
        return receipts.plain(receipt), None


_BUILT: dict[str, dict[str, tuple[Workflow, tuple[Bound, ...]]]] = {}
"""Of a worker process: workflows that arrived, built once however often the job arrives with an item."""


def _bound(flow: Workflow) -> tuple[Bound, ...]:
    return bind(flow.steps, dict.fromkeys(external(flow.steps), str))


def _reason(e: Exception) -> str:
    return str(e) if isinstance(e, SkydeltaError) else f"{getattr(e, 'filename', '')}: {getattr(e, 'strerror', e)}"


def _identity(flow: Workflow, item: WorkItem) -> str:
    """The identity of an item; empty when its files cannot be read now: the step that reads them will say so."""
    for attempt in range(flow.run.retries + 1):
        try:
            return receipts.identity(flow, item)
        except OSError as e:
            log.info("%s: %s", item.id, e)
            if attempt < flow.run.retries:
                time.sleep(PAUSE * 4**attempt)
    return ""


def _again(flow: Workflow, backend: Backend, raised: Exception | None, before: int) -> Backend | None:
    """Where a failed attempt is worth another, after a pause where one helps; None for faults that do not pass."""
    if raised is None:
        return None
    if isinstance(raised, MemoryError) and backend.is_gpu and flow.run.out_of_memory == "cpu":
        backend.release()
        return Backend("cpu", asked=backend.asked)
    if receipts.passing(raised) and before < flow.run.retries:
        time.sleep(PAUSE * 4**before)
        return backend
    return None


def run_item(
    bound: tuple[Bound, ...],
    item: WorkItem,
    backend: Backend,
    out: Path,
    tell: Tell,
    base: Path | None = None,
    threads: int | None = None,
) -> tuple[Receipt, Exception | None]:
    """Take one item through all steps on one backend.

    Parameters
    ----------
    out : Path
        Folder that the steps write to.
    base : Path, optional
        What paths in the settings are relative to.
    threads : int, optional
        Threads that a kernel may use; workers side by side share the cores.

    Returns
    -------
    receipt : dict
        Whatever happened is in it.
    raised : Exception or None
        What ended the item.
    """
    values: dict[str, Any] = gathered(item.inputs)
    steps: list[dict[str, Any]] = []
    failures: list[tuple[Step, SkydeltaError]] = []
    error: dict[str, Any] | None = None
    raised: Exception | None = None
    begin = time.perf_counter()
    with active(backend), one_blas_thread():
        for b in bound:
            flags = {name: text for step in steps for name, text in step["flags"].items()}
            ctx = Context(backend, id=item.id, out=out, base=base, earlier=flags)
            tell("step_started", item.id, b.step.id)
            limit_threads(threads)
            wall, cpu = time.perf_counter(), time.process_time()
            try:
                with counted_splits() as splits:
                    result = b.step.stage.execute(ctx, {port: values[name] for port, name in b.inputs.items()})
                    backend.synchronize()
                if splits.count:  # no flag: flags are in headers, whose bytes depend on no device's memory
                    ctx.metric("tiles_split", splits.count)
            except Exception as e:
                leave_if_asked()  # an import that was interrupted says that it failed
                log.debug("step %s", b.step.id, exc_info=True)
                error, raised = _error(b.step, e), e.with_traceback(None)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            steps.append(
                {
                    "id": b.step.id,
                    "stage": b.step.stage.name,
                    "version": b.step.stage.version,
                    "config": b.step.stage.config.model_dump(mode="json"),
                    "seconds": round(wall, 4),
                    "cpu_seconds": round(cpu, 4),
                    "metrics": ctx.metrics,
                    "flags": ctx.flags,
                }
            )
            failures += [(b.step, f) for f in ctx.failures]
            if error is not None:
                break
            values |= {name: result[port] for port, name in b.outputs.items()}
            del result
            for name in b.frees:
                del values[name]
            tell("step_done", item.id, b.step.id, seconds=round(wall, 4), cpu_seconds=round(cpu, 4))
    if error is None and failures:
        error = _error(*failures[0])
    receipt = {
        "id": item.id,
        "status": "done" if error is None else "failed",
        "inputs": dict(item.inputs),
        "settings": dict(item.settings),
        "device": {"asked": backend.asked, "used": backend.name},
        "seconds": round(time.perf_counter() - begin, 4),
        "steps": steps,
        "error": error,
    }
    return receipt, raised


_blas_lock = threading.Lock()
_blas_limits: list[Any] = []
_blas_users = 0


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Small problems gain nothing from more. The limit is that of the process: the last of its items lifts it."""
    global _blas_users  # noqa: PLW0603
    with _blas_lock:
        blas = ThreadpoolController().select(user_api="blas")
        if any(library.num_threads != 1 for library in blas.lib_controllers):
            _take_control(blas)
            _blas_limits.append(blas.limit(limits=1))
        _blas_users += 1
    try:
        yield
    finally:
        with _blas_lock:
            _blas_users -= 1
            while not _blas_users and _blas_limits:
                _take_control(blas)
                _blas_limits.pop().restore_original_limits()
                _take_control(blas)


def _take_control(blas: ThreadpoolController) -> None:
    """threadpoolctl 3.8 lets one thread of a process limit OpenBLAS and ignores all others; here a lock rules."""
    for library in blas.lib_controllers:
        release = getattr(library, "clear_controlling_thread", None)
        if release is not None:
            release(force=True)


def limit_threads(threads: int | None) -> None:
    """Let kernels called from this thread use so many threads; those of Numba are not even imported for it."""
    numba = sys.modules.get("numba")
    if threads is not None and numba is not None:
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))


def _error(step: Step, e: Exception) -> dict[str, Any]:
    """An error as the receipt has it: the step, one line, the exit code of a run of one item, the numbers behind it."""
    if isinstance(e, SkydeltaError):
        message = str(e).removeprefix(f"{step.stage.name}: ")
        return {
            "step": step.id,
            "message": f"{step.id}: {message}",
            "exit_code": int(e.exit_code),
            "numbers": e.numbers,
        }
    last = traceback.extract_tb(e.__traceback__)[-1]
    where = f"{Path(last.filename).name}:{last.lineno}"
    what = "out of memory" if isinstance(e, MemoryError) else f"unexpected {type(e).__name__}"
    return {
        "step": step.id,
        "message": f"{step.id}: {what}: {' '.join(str(e).split())} ({where})",
        "exit_code": int(ExitCode.DEVICE if isinstance(e, MemoryError) else ExitCode.SOME_FAILED),
        "numbers": {},
        "traceback": traceback.format_exc(),
    }
