# SPDX-License-Identifier: BSD-3-Clause
"""What a run would do, and what stands in its way, before anything is done."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from skydelta.errors import InputError, SkydeltaError
from skydelta.io.exposure import Exposure
from skydelta.io.fits.reader import open_file, split_extension, split_section
from skydelta.kernels.backend import Backend, cuda_device_count, resolve
from skydelta.pipeline.executors.base import device_of, workers_for
from skydelta.pipeline.graph import Bound, bind, external
from skydelta.pipeline.items import WorkItem, items_of
from skydelta.pipeline.secondpass import LIGHT_CURVES, checked
from skydelta.pipeline.workflow import Workflow

RUN_FILES = ("run.json", "events.jsonl", "summary.ecsv", "report.html")
"""What every run leaves beside the items."""

NIGHT_FILES = ("catalog.parquet", "objects.ecsv")
"""What covers the catalogues of all items, where they have some."""


TABLES = (".ecsv", ".csv", ".parquet", ".vot", ".xml", ".votable")
"""Suffixes of inputs that are tables."""


@dataclass(frozen=True)
class Need:
    """What one item needs.

    Attributes
    ----------
    bytes_read : int
        Sum of the sizes of its files.
    memory : int
        Estimated peak bytes.
    """

    bytes_read: int
    memory: int


@dataclass(frozen=True)
class Plan:
    """The checked plan of a run.

    Attributes
    ----------
    items : tuple of WorkItem
    bound : tuple of Bound
    backend : Backend
    why : str
        Why this device.
    bytes_read : int
        Sum of the sizes of all input files.
    memory : int
        Estimated peak bytes for the largest item.
    outputs : tuple of str
        Files that each item will leave beside its receipt.
    problems : tuple of str
        Everything that would make an item fail at once, one line each.
    needs : dict
        By id of the item.
    workers, devices : int, tuple of str
        How many items are in flight, and where; 0 workers: as many as the cluster or the launcher has.
    run_outputs : tuple of str
        Files beside the items.
    second : tuple of Bound
        The steps of the second pass.
    """

    items: tuple[WorkItem, ...]
    bound: tuple[Bound, ...]
    backend: Backend
    why: str
    bytes_read: int
    memory: int
    outputs: tuple[str, ...]
    problems: tuple[str, ...]
    needs: Mapping[str, Need] = field(default_factory=dict)
    workers: int = 1
    devices: tuple[str, ...] = ()
    run_outputs: tuple[str, ...] = ()
    second: tuple[Bound, ...] = ()


def plan(flow: Workflow, id_: str | None = None) -> Plan:
    """Check a workflow and all its inputs without running anything.

    Raises
    ------
    ConfigError, InputError, DeviceError
        The workflow itself cannot run. Faults of single inputs are collected in ``problems``.
    """
    wanted = external(flow.steps)
    bound = bind(flow.steps, dict.fromkeys(wanted, str))
    items = items_of(flow.inputs, wanted, id_, flow.steps)
    check_settings(flow, items)
    second = checked(flow, bound)
    backend = resolve(flow.run.device)
    why = "asked for" if backend.asked != "auto" else cuda_device_count()[1] or "a CUDA device is there"
    look = _Look()
    problems, total, largest = [], 0, 0
    needs: dict[str, Need] = {}
    kind = _kind(flow.run.device)
    for step in flow.steps:
        try:
            step.stage.check_files(flow.folder)
        except SkydeltaError as e:
            problems.append(f"steps.{step.id}: {e}")
            continue
        for key, source in step.files(flow.folder).items():
            try:
                total += _size(source)
                if not _is_table(source):
                    look.shapes(source)
            except SkydeltaError as e:
                problems.append(f"steps.{step.id}.{key}: {e}")
    for item in items:
        pixels, size = 0, 0
        for source in item.inputs.values():
            try:
                size += _size(source)
                pixels = pixels if _is_table(source) else max(pixels, look.pixels(source))
            except SkydeltaError as e:
                problems.append(f"{item.id}: {e}")
        needs[item.id] = Need(size, max(_peak(bound, pixels, kind), _peak(second, pixels, kind)))
        total, largest = total + size, max(largest, needs[item.id].memory)
    outputs = tuple(dict.fromkeys(name for b in bound for name in _products(b)))
    covers = NIGHT_FILES if "catalog.ecsv" in outputs else ()
    workers, devices = _places(flow, largest)
    return Plan(
        items,
        bound,
        backend,
        why,
        total,
        largest,
        outputs,
        tuple(problems),
        needs,
        workers,
        devices,
        (*RUN_FILES, *covers, *((LIGHT_CURVES,) if second else ())),
        second,
    )


def _products(b: Bound) -> list[str]:
    """Files that a step will leave, with what is tied to it."""
    stage = b.step.stage
    return [*stage.products(), *(p.file for name, p in stage.inputs.items() if p.file and name in b.inputs)]


def _places(flow: Workflow, peak: int) -> tuple[int, tuple[str, ...]]:
    """Items in flight and their devices, as the executor will have them on this machine."""
    run = flow.run
    if run.executor == "serial":
        return 1, (resolve(run.device).name,)
    if run.executor == "mpi" or run.dask_address is not None:
        return 0, ()
    workers = workers_for(run.device, run.workers, peak)
    return workers, tuple(dict.fromkeys(device_of(run.device, i) for i in range(workers)))


def check_settings(flow: Workflow, items: tuple[WorkItem, ...]) -> None:
    """Check the settings that items have of their own, before anything runs.

    Raises
    ------
    ConfigError
        A value that a step does not take; the message names the item.
    """
    seen: set[str] = set()
    for item in items:
        key = repr(sorted(item.settings.items()))
        if item.settings and key not in seen:
            seen.add(key)
            flow.with_settings(item.settings, f"item {item.id}")


def peak_of(bound: tuple[Bound, ...], items: tuple[WorkItem, ...], device: str) -> int:
    """Estimated bytes for the largest of these items on a device as asked for; 0 where that cannot be told."""
    pixels, look = 0, _Look()
    for source in (s for item in items for s in item.inputs.values()):
        with contextlib.suppress(SkydeltaError):
            pixels = max(pixels, look.pixels(source))
    return _peak(bound, pixels, _kind(device))


def _kind(device: str) -> str:
    """Of the backend that a device as asked for will be on this machine."""
    return "cpu" if device == "cpu" or not cuda_device_count()[0] else "cuda"


def _peak(bound: tuple[Bound, ...], pixels: int, kind: str) -> int:
    """Most bytes held at once: image, variance and mask of every exposure alive, and the work of the step."""
    side = int(pixels**0.5)
    alive: dict[str, type] = {}
    peak = 0
    for b in bound:
        alive |= {name: b.step.stage.outputs[port].type for port, name in b.outputs.items()}
        exposures = sum(issubclass(made, Exposure) for made in alive.values())
        peak = max(peak, 12 * pixels * exposures + b.step.stage.memory((side, side), kind))
        for name in b.frees:
            alive.pop(name, None)
    return peak


def _is_table(source: str) -> bool:
    """Whether the suffix is that of a table, which holds no image."""
    return Path(source).suffix.lower() in TABLES


def _size(source: str) -> int:
    try:
        return Path(split_extension(split_section(source)[0])[0]).stat().st_size
    except OSError as e:
        raise InputError(f"{source}: {(e.strerror or str(e)).lower()}") from None


class _Look:
    """What headers say of files; each source is looked at once."""

    def __init__(self) -> None:
        self._known: dict[str, list[tuple[int, ...]] | SkydeltaError] = {}

    def shapes(self, source: str) -> list[tuple[int, ...]]:
        """Shapes of the images in FILE, or of the one that FILE[EXT] names; headers are read, not pixels."""
        if source not in self._known:
            try:
                self._known[source] = self._read(source)
            except SkydeltaError as e:
                self._known[source] = e
        found = self._known[source]
        if isinstance(found, SkydeltaError):
            raise found
        return found

    def _read(self, source: str) -> list[tuple[int, ...]]:
        whole, section = split_section(source)
        path, extension = split_extension(whole)
        with open_file(path) as file:
            hdus = file.hdus if extension is None else [file.find(extension)]
            shapes = [h.shape for h in hdus if h.is_image and not h.fault]
        return shapes if section is None else [tuple(s.stop - s.start for s in section)] if shapes else []

    def pixels(self, source: str) -> int:
        """Pixels of the largest two-dimensional image of a source."""
        planes = [s[0] * s[1] for s in self.shapes(source) if len(s) == 2]
        if not planes:
            raise InputError(f"{source}: no two-dimensional image")
        return max(planes)
