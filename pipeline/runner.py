# SPDX-License-Identifier: BSD-3-Clause
"""Run a workflow: items through steps, receipts, summary, report."""

from __future__ import annotations

import contextlib
import io
import logging
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from astropy.table import Table

from skydelta import __version__
from skydelta.errors import ConfigError, ExitCode, SkydeltaError
from skydelta.interrupt import terminable
from skydelta.io.catalog import OF_ITEM, Catalog
from skydelta.io.storage import check_writable, write_bytes
from skydelta.kernels.backend import Backend, resolve
from skydelta.pipeline import receipts, secondpass
from skydelta.pipeline.events import Hub, JsonLines, Listener, ProgressBar
from skydelta.pipeline.executors.base import Executor
from skydelta.pipeline.executors.serial import Serial
from skydelta.pipeline.graph import Bound, bind, external
from skydelta.pipeline.items import WorkItem, items_of
from skydelta.pipeline.job import Job
from skydelta.pipeline.night import Part, combine
from skydelta.pipeline.plan import check_settings, peak_of
from skydelta.pipeline.prometheus import TextFile
from skydelta.pipeline.receipts import RunFolder
from skydelta.pipeline.report import write_report
from skydelta.pipeline.workflow import SECOND_PASS, Workflow, load

log = logging.getLogger(__name__)

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
class Outcome:
    """What has become of one item.

    Attributes
    ----------
    id, status : str
    exit_code : int
        Of a failed item, that of its error; else 0.
    resumed : bool
        Done before this run.
    unwritten : dict or None
        The receipt, when it could not be written.
    place : str
        Folder of the run where it is.
    """

    id: str
    status: str
    exit_code: int
    resumed: bool
    unwritten: dict[str, Any] | None = None
    place: str = "items"

    @classmethod
    def of(cls, receipt: dict[str, Any], place: str = "items") -> Outcome:
        code = (receipt.get("error") or {}).get("exit_code", 0)
        kept = receipt if receipt.get("unwritten") else None
        return cls(receipt["id"], receipt["status"], code, bool(receipt.get("resumed")), kept, place)

    def receipt(self, out: Path) -> dict[str, Any]:
        found = self.unwritten or receipts.read_json(out / self.place / self.id / "receipt.json")
        found = found or {"id": self.id, "status": "missing", "seconds": 0.0, "steps": [], "error": None}
        return found | {"resumed": True} if self.resumed else found


@dataclass(frozen=True)
class RunResult:
    """What a run left behind.

    Attributes
    ----------
    out : Path
    outcomes : tuple of Outcome
        One for each item of this run that came to an end, in the order of the items.
    exit_code : ExitCode
    second : tuple of Outcome
        Of the second pass, which all items in the folder go through.
    """

    out: Path
    outcomes: tuple[Outcome, ...]
    exit_code: ExitCode
    second: tuple[Outcome, ...] = ()

    @property
    def receipts(self) -> tuple[dict[str, Any], ...]:
        """The receipts as they are in the folder, in the order of the items; with ``resumed`` when done before."""
        return tuple(o.receipt(self.out) for o in self.outcomes)

    @property
    def report(self) -> Path:
        return self.out / "report.html"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{o.id}</td><td>{o.status}</td></tr>" for o in self.outcomes)
        return f"<table><caption>Run in {self.out}</caption>{rows}</table>"


def run(
    workflow: str | Path | Workflow,
    inputs: Mapping[str, str | Path | list[str]] | None = None,
    *,
    out: str | Path,
    device: str | None = None,
    executor: str | None = None,
    workers: int | None = None,
    dask_address: str | None = None,
    set_: Iterable[str] = (),
    overwrite: bool = False,
    id_: str | None = None,
    progress: bool | str = False,
    prometheus: str | Path | None = None,
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
    executor : {"serial", "threads", "dask", "mpi"}, optional
        How items are spread; replaces the file's. ``dask`` uses the client that is current in this process, if there is
        one. Under ``mpi`` every rank calls this function, and each gets the result.
    workers : int, optional
        Threads, or workers of a Dask cluster of one's own.
    dask_address : str, optional
        Scheduler of a Dask cluster that runs already.
    set_ : iterable of str
        Overrides such as ``steps.match.order=3``.
    overwrite : bool
        Run every item again, whatever the folder holds.
    id_ : str, optional
        Name of a single item.
    progress : bool or "json"
        Show a progress bar on the terminal; ``"json"``: write every event to standard error, one JSON object a line.
    prometheus : str or Path, optional
        Text file with the state of the run, rewritten every few seconds.
    limit : int, optional
        Only the first so many items.

    Raises
    ------
    ConfigError, InputError, DeviceError
        Before anything runs. Failures of items are in their receipts and in ``exit_code``.
    WorkerError
        There is nobody left to work; what is done stays done.
    """
    options: dict[str, Any] = {"executor": executor, "workers": workers, "dask_address": dask_address}
    options["prometheus"] = None if prometheus is None else str(Path(prometheus).absolute())
    if isinstance(workflow, Workflow):
        set_run = {k: v for k, v in {"device": device, **options}.items() if v is not None}
        flow = replace(workflow, run=workflow.run.model_copy(update=set_run))
    else:
        flow = load(workflow, set_=set_, inputs=inputs, device=device, options=options)
    if flow.run.executor == "mpi":
        from skydelta.pipeline.executors.mpi import together

        return together(lambda: _run(flow, Path(out), overwrite, id_, progress, limit))
    return _run(flow, Path(out), overwrite, id_, progress, limit)


def _run(
    flow: Workflow, out: Path, overwrite: bool, id_: str | None, progress: bool | str, limit: int | None
) -> RunResult:
    wanted = external(flow.steps)
    bound = bind(flow.steps, dict.fromkeys(wanted, str))
    items = items_of(flow.inputs, wanted, id_, flow.steps)[:limit]
    check_settings(flow, items)
    later = secondpass.checked(flow, bound)
    for step in flow.steps:
        step.stage.check_files(flow.folder)
    backend = resolve(flow.run.device)
    folder = RunFolder(out)
    check_outputs(flow, folder, overwrite)
    done: list[Outcome] = []
    second: list[Outcome] = []
    healthy = whole = True
    combined = False
    with folder.locked(), terminable():
        folder.open(flow, overwrite)
        with contextlib.ExitStack() as lent:
            spread = executor_of(flow, bound, items)
            lent.callback(spread.close)
            record = _provenance(flow, backend, spread.description, items)
            receipts.write_json(folder.root / "run.json", record)
            (folder.root / secondpass.LIGHT_CURVES).unlink(missing_ok=True)  # no longer those of the objects
            hub = Hub(_listeners(flow, folder, progress, len(items), len(bound)))
            try:
                with lent.pop_all():  # nobody is at work any more when the run ends
                    hub.tell("run_started", items=len(items), device=backend.name, executor=spread.description)
                    found = spread.map(Job.of(flow, folder, overwrite, hub), items)
                    stopped = _collect(found, done, flow)
                    if later and not stopped and (parts := _gathered(folder)[1]):
                        times = {part.id: part.mjd for part in parts}
                        combined = _written(lambda: combine(parts, folder.root, flow.run.association_radius))
                        del parts
                        whole = combined and _second_pass(flow, bound, folder, times, overwrite, hub, spread, second)
            finally:
                hub.tell("run_done", items=len(done))
                hub.close()
                healthy = finish(folder, flow.run.association_radius, combined)
                folder.sweep()
    place = {item.id: n for n, item in enumerate(items)}
    done.sort(key=lambda o: place[o.id])
    code = exit_code(done, len(items))
    return RunResult(
        folder.root, tuple(done), code if (healthy and whole) or code else ExitCode.SOME_FAILED, tuple(second)
    )


def check_outputs(flow: Workflow, folder: RunFolder, overwrite: bool) -> None:
    """Refuse what a run is to write, before anything is made there.

    Raises
    ------
    ConfigError
        The folder holds something else.
    InputError
        The folder, or the text file for Prometheus, cannot be written.
    """
    folder.check(flow, overwrite)
    if flow.run.prometheus:
        check_writable(flow.folder / flow.run.prometheus)


def _listeners(flow: Workflow, folder: RunFolder, progress: bool | str, items: int, steps: int) -> list[Listener]:
    """Who is told what happens."""
    listeners: list[Listener] = [JsonLines(folder.root / "events.jsonl")]
    if progress == "json":
        listeners.append(JsonLines(sys.stderr))
    elif progress:
        listeners.append(ProgressBar(items, steps))
    if flow.run.prometheus:
        listeners.append(TextFile(flow.folder / flow.run.prometheus, flow.name))
    return listeners


def _collect(found: Iterator[dict[str, Any]], into: list[Outcome], flow: Workflow, place: str = "items") -> bool:
    """Take receipts as they come; True where a failed item has ended it before its time."""
    with contextlib.closing(found):  # type: ignore[type-var]
        for receipt in found:
            into.append(Outcome.of(receipt, place))
            if receipt["status"] == "failed" and flow.run.on_error == "stop":
                return True
    return False


def _second_pass(
    flow: Workflow,
    bound: tuple[Bound, ...],
    folder: RunFolder,
    times: Mapping[str, float],
    overwrite: bool,
    hub: Hub,
    spread: Executor,
    into: list[Outcome],
) -> bool:
    """Take every item in the folder through the second steps, and write the light curves; False when one failed."""
    assert flow.second is not None
    try:
        items = secondpass.again(flow, bound, folder)
    except SkydeltaError as e:
        log.error("%s", e)
        return False
    hub.tell("second_pass_started", items=len(items), steps=len(flow.second.steps))
    there = folder.second()
    job = Job.of(replace(flow.second, run=flow.run), there, overwrite, hub)
    _collect(spread.map(job, items), into, flow, there.place)
    made = [o.id for o in into if o.status == "done"]
    return _written(lambda: secondpass.write_light_curves(folder, made, times)) and len(made) == len(items)


def executor_of(flow: Workflow, bound: tuple[Bound, ...], items: tuple[WorkItem, ...]) -> Executor:
    """The executor that a workflow asks for.

    Raises
    ------
    ConfigError
        It cannot be had here, or an option belongs to another one.
    WorkerError
        No scheduler answers.
    """
    asked = flow.run
    if asked.dask_address is not None and asked.executor != "dask":
        raise ConfigError(f"run.dask_address: {asked.executor} has no scheduler; only dask has")
    if asked.workers is not None and asked.executor not in ("threads", "dask"):
        raise ConfigError(f"run.workers: {asked.executor} has no such option; threads and dask have")
    if asked.executor == "serial":
        return Serial(asked.device)
    if asked.executor == "mpi":
        from skydelta.pipeline.executors.mpi import Mpi

        return Mpi(asked.device)
    peak = 0 if asked.workers else peak_of(bound, items[:1], asked.device)
    if asked.executor == "threads":
        from skydelta.pipeline.executors.threads import Threads

        return Threads(asked.device, asked.workers, peak)
    from skydelta.pipeline.executors.dask import Dask

    return Dask(asked.device, asked.workers, asked.dask_address, peak)


def exit_code(done: Sequence[Outcome], asked: int) -> ExitCode:
    """The run's exit status: of a single item that of its error, else by how many failed."""
    failed = [o for o in done if o.status == "failed"]
    if not failed and len(done) == asked:
        return ExitCode.OK
    if asked == 1 and failed:
        return ExitCode(failed[0].exit_code)
    return ExitCode.NOTHING_USABLE if len(failed) == asked else ExitCode.SOME_FAILED


def finish(folder: RunFolder, radius: float | None = None, combined: bool = False) -> bool:
    """Write what covers all items in the folder: summary, combined catalogue, report; False when one cannot be.

    Parameters
    ----------
    radius : float, optional
        Of association, arcsec (`night.combine`).
    combined : bool
        The combined catalogue is there already.
    """
    rows, parts = _gathered(folder, catalogs=not combined)
    if not rows:
        return True
    writes: list[Callable[[], object]] = [lambda: _summarise(rows, folder.root / "summary.ecsv")]
    if not combined:
        writes.append(lambda: combine(parts, folder.root, radius))
    writes.append(lambda: write_report(folder.root))
    whole = [_written(write) for write in writes]
    return all(whole)


def _written(write: Callable[[], object]) -> bool:
    """Whether something that covers all items could be written: what the items have left is worth more."""
    try:
        write()
    except (OSError, SkydeltaError) as e:
        log.error("%s", e)
        return False
    except Exception as e:
        log.debug("what covers the run", exc_info=True)
        log.error("unexpected %s: %s", type(e).__name__, " ".join(str(e).split()))
        return False
    return True


def _gathered(folder: RunFolder, catalogs: bool = True) -> tuple[list[dict[str, Any]], list[Part]]:
    """Rows of the summary, and the catalogues, of all items in the folder."""
    parts: list[Part] = []
    rows = []
    for r in folder.all():
        rows.append(_summary_row(r))
        path = folder.root / "items" / r["id"] / OF_ITEM
        if catalogs and r["status"] == "done" and path.is_file():
            parts.append(Part.of(r, Catalog.load(path)))
    return rows, parts


def _summarise(rows: list[dict[str, Any]], path: Path) -> None:
    summary = io.StringIO()
    Table(rows=rows).write(summary, format="ascii.ecsv")
    write_bytes(path, summary.getvalue().encode())


def _summary_row(receipt: dict[str, Any]) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    for step in receipt["steps"]:
        metrics |= step["metrics"]
    flags = sorted({f for step in receipt["steps"] for f in step["flags"]})
    row = {"id": receipt["id"], "status": receipt["status"], "seconds": receipt["seconds"]}
    row |= {name: float("nan") if metrics.get(name) is None else float(metrics[name]) for name in SUMMARY}
    return row | {"flags": " ".join(flags), "error": (receipt.get("error") or {}).get("message", "")}


def _provenance(flow: Workflow, backend: Backend, executor: str, items: tuple[WorkItem, ...]) -> dict[str, Any]:
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
        **({} if flow.second is None else {SECOND_PASS: flow.second.described()}),
        "files": {s.id: files for s in flow.steps if (files := s.files(flow.folder))},
        "device": {"asked": backend.asked, "used": backend.name},
        "executor": executor,
        "items": [i.id for i in items],
        "argv": sys.argv,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "host": platform.node(),
        "versions": versions,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
