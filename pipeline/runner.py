# SPDX-License-Identifier: BSD-3-Clause
"""Run a workflow: items through steps, receipts, summary, report."""

from __future__ import annotations

import io
import logging
import platform
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from astropy.table import Table, TableMergeError, vstack
from astropy.units import UnitConversionError
from threadpoolctl import threadpool_limits

from skydelta import __version__
from skydelta.errors import ExitCode, SkydeltaError
from skydelta.io.catalog import Catalog
from skydelta.io.storage import write_bytes
from skydelta.kernels.backend import Backend, resolve
from skydelta.kernels.core.devices import active
from skydelta.pipeline import receipts
from skydelta.pipeline.events import Hub, JsonLines, Listener, ProgressBar
from skydelta.pipeline.executors.base import Executor
from skydelta.pipeline.executors.serial import Serial
from skydelta.pipeline.graph import Bound, bind, external
from skydelta.pipeline.items import WorkItem, items_of
from skydelta.pipeline.receipts import RunFolder
from skydelta.pipeline.report import write_report
from skydelta.pipeline.workflow import Step, Workflow, load
from skydelta.stages.base import Context

log = logging.getLogger(__name__)

EXECUTORS: dict[str, Callable[[], Executor]] = {"serial": Serial}

SUMMARY = (
    "candidates",
    "noise_ratio",
    "snr_std",
    "chi2_held_out",
    "kernel_sum",
    "fwhm_science_px",
    "fwhm_reference_px",
    "registration_dx_px",
    "registration_dy_px",
    "usable_fraction",
)
"""Metrics that become columns of ``summary.ecsv``."""


@dataclass(frozen=True)
class RunResult:
    """What a run left behind.

    Attributes
    ----------
    out : Path
    receipts : tuple of dict
        One for each item of this run, in the order of the items; with ``resumed`` when it was done before.
    exit_code : ExitCode
    """

    out: Path
    receipts: tuple[dict[str, Any], ...]
    exit_code: ExitCode

    @property
    def report(self) -> Path:
        return self.out / "report.html"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{r['id']}</td><td>{r['status']}</td></tr>" for r in self.receipts)
        return f"<table><caption>Run in {self.out}</caption>{rows}</table>"


def run(
    workflow: str | Path | Workflow,
    *,
    inputs: Mapping[str, str | Path | list[str]] | None = None,
    out: str | Path,
    device: str | None = None,
    set_: Iterable[str] = (),
    overwrite: bool = False,
    id_: str | None = None,
    progress: bool = False,
    limit: int | None = None,
) -> RunResult:
    """Run a workflow over its items.

    Items that are done already (same configuration, same input bytes, outputs intact) are not run again.

    Parameters
    ----------
    workflow : str, Path or Workflow
        A TOML file or the name of a shipped workflow (``difference``).
    inputs : mapping, optional
        ``{"science": path, "reference": path}``, lists of paths, or ``{"table": path}``; replaces the file's.
    out : str or Path
        Folder of the run.
    device : str, optional
        ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; replaces the file's.
    set_ : iterable of str
        Overrides such as ``steps.match.order=3``.
    overwrite : bool
        Run every item again, whatever the folder holds.
    id_ : str, optional
        Name of a single item.
    progress : bool
        Show a progress bar on the terminal.
    limit : int, optional
        Only the first so many items.

    Raises
    ------
    ConfigError, InputError, DeviceError
        Before anything runs. Failures of items are in their receipts and in ``exit_code``.
    """
    flow = workflow if isinstance(workflow, Workflow) else load(workflow, set_=set_, inputs=inputs, device=device)
    wanted = external(flow.steps)
    bound = bind(flow.steps, dict.fromkeys(wanted, str))
    items = items_of(flow.inputs, wanted, id_)[:limit]
    backend = resolve(flow.run.device)
    folder = RunFolder(Path(out))
    with folder.locked():
        folder.open(flow, overwrite)
        receipts.write_json(folder.root / "run.json", _provenance(flow, backend, items))
        listeners: list[Listener] = [JsonLines(folder.root / "events.jsonl")]
        if progress:
            listeners.append(ProgressBar(len(items), len(bound)))
        hub = Hub(listeners)
        hub.tell("run_started", items=len(items), device=backend.name)
        done: list[dict[str, Any]] = []
        try:
            one = partial(_run_or_resume, flow, bound, backend, folder, hub, overwrite)
            for receipt in EXECUTORS[flow.run.executor]().map(one, items):
                done.append(receipt)
                if receipt["status"] == "failed" and flow.run.on_error == "stop":
                    break
        finally:
            hub.tell("run_done", items=len(done))
            hub.close()
            finish(folder)
    return RunResult(folder.root, tuple(done), exit_code(done, len(items)))


def exit_code(done: list[dict[str, Any]], asked: int) -> ExitCode:
    """The run's exit status: of a single item that of its error, else by how many failed."""
    failed = [r for r in done if r["status"] == "failed"]
    if not failed and len(done) == asked:
        return ExitCode.OK
    if asked == 1 and failed:
        return ExitCode(failed[0]["error"]["exit_code"])
    return ExitCode.NOTHING_USABLE if len(failed) == asked else ExitCode.SOME_FAILED


def finish(folder: RunFolder) -> None:
    """Write what covers all items in the folder: summary, combined catalogue, report."""
    found = folder.all()
    if not found:
        return
    summary = io.StringIO()
    Table(rows=[_summary_row(r) for r in found]).write(summary, format="ascii.ecsv")
    write_bytes(folder.root / "summary.ecsv", summary.getvalue().encode())
    parts = []
    for r in found:
        path = folder.root / "items" / r["id"] / "catalog.ecsv"
        if r["status"] == "done" and path.is_file():
            part = Catalog.load(path)
            part.add_column([r["id"]] * len(part), name="item", index=0)
            parts.append(part)
    _combine(parts, folder.root / "catalog.parquet")
    write_report(folder.root)


def _combine(parts: list[Catalog], path: Path) -> None:
    """Write the catalogues of all items as one; there is none when their units do not go together."""
    path.unlink(missing_ok=True)
    filled = [p for p in parts if len(p)] or parts[:1]
    if not filled:
        return
    try:
        combined = vstack(filled, metadata_conflicts="silent")
    except (TableMergeError, UnitConversionError) as e:
        log.warning("%s: not written, the catalogues of the items cannot be one table: %s", path, e)
        return
    Catalog(combined).save(path)


def _summary_row(receipt: dict[str, Any]) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    for step in receipt["steps"]:
        metrics |= step["metrics"]
    flags = sorted({f for step in receipt["steps"] for f in step["flags"]})
    row = {"id": receipt["id"], "status": receipt["status"], "seconds": receipt["seconds"]}
    row |= {name: float("nan") if metrics.get(name) is None else float(metrics[name]) for name in SUMMARY}
    return row | {"flags": " ".join(flags), "error": (receipt.get("error") or {}).get("message", "")}


def _provenance(flow: Workflow, backend: Backend, items: tuple[WorkItem, ...]) -> dict[str, Any]:
    packages = ("numpy", "scipy", "astropy", "numba", "cupy-cuda13x")
    versions: dict[str, str | None] = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "name": flow.name,
        "version": __version__,
        "workflow": flow.described(),
        "files": {s.id: files for s in flow.steps if (files := s.files(flow.folder))},
        "device": {"asked": backend.asked, "used": backend.name},
        "executor": flow.run.executor,
        "items": [i.id for i in items],
        "argv": sys.argv,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "host": platform.node(),
        "versions": versions,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _run_or_resume(
    flow: Workflow,
    bound: tuple[Bound, ...],
    backend: Backend,
    folder: RunFolder,
    hub: Hub,
    overwrite: bool,
    item: WorkItem,
) -> dict[str, Any]:
    """The receipt of one item: an earlier one that still holds, or a fresh one."""
    who = receipts.identity(flow, item)
    earlier = None if overwrite else folder.done(item, who)
    if earlier is not None:
        hub.tell("item_resumed", item.id)
        return earlier | {"resumed": True}
    target = folder.item(item)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True, exist_ok=True)
    hub.tell("item_started", item.id)
    receipt = run_item(bound, item, backend, target, hub, flow.folder)
    receipt["identity"] = who
    receipt["outputs"] = {p.name: receipts.digest(p) for p in sorted(target.iterdir()) if p.is_file()}
    receipts.write_json(folder.receipt(item), receipt)
    if receipt["status"] == "failed":
        hub.tell("item_failed", item.id, message=receipt["error"]["message"], steps_done=len(receipt["steps"]))
    else:
        hub.tell("item_done", item.id, seconds=receipt["seconds"])
    return receipts.read_json(folder.receipt(item)) or receipt


def run_item(
    bound: tuple[Bound, ...], item: WorkItem, backend: Backend, out: Path, hub: Hub, base: Path | None = None
) -> dict[str, Any]:
    """Take one item through all steps on one backend; whatever happens is in the receipt it returns."""
    values: dict[str, Any] = dict(item.inputs)
    steps: list[dict[str, Any]] = []
    failures: list[tuple[Step, SkydeltaError]] = []
    error: dict[str, Any] | None = None
    begin = time.perf_counter()
    with active(backend), threadpool_limits(limits=1, user_api="blas"):
        for b in bound:
            raised = {name: text for step in steps for name, text in step["flags"].items()}
            ctx = Context(backend, id=item.id, out=out, base=base, earlier=raised)
            hub.tell("step_started", item.id, b.step.id)
            wall, cpu = time.perf_counter(), time.process_time()
            try:
                result = b.step.stage.execute(ctx, {port: values[name] for port, name in b.inputs.items()})
                backend.synchronize()
            except Exception as e:
                log.debug("step %s", b.step.id, exc_info=True)
                error = _error(b.step, e)
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
            hub.tell("step_done", item.id, b.step.id, seconds=round(wall, 4), cpu_seconds=round(cpu, 4))
    if error is None and failures:
        error = _error(*failures[0])
    return {
        "id": item.id,
        "status": "done" if error is None else "failed",
        "inputs": dict(item.inputs),
        "device": {"asked": backend.asked, "used": backend.name},
        "seconds": round(time.perf_counter() - begin, 4),
        "steps": steps,
        "error": error,
    }


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
