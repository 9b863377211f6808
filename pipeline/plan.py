# SPDX-License-Identifier: BSD-3-Clause
"""What a run would do, and what stands in its way, before anything is done."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from skydelta.errors import InputError, SkydeltaError
from skydelta.io.exposure import Exposure
from skydelta.io.fits.reader import open_file, split_extension
from skydelta.kernels.backend import Backend, cuda_device_count, resolve
from skydelta.pipeline.graph import Bound, bind, external
from skydelta.pipeline.items import WorkItem, items_of
from skydelta.pipeline.workflow import Workflow


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
    """

    items: tuple[WorkItem, ...]
    bound: tuple[Bound, ...]
    backend: Backend
    why: str
    bytes_read: int
    memory: int
    outputs: tuple[str, ...]
    problems: tuple[str, ...]


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
    backend = resolve(flow.run.device)
    why = "asked for" if backend.asked != "auto" else cuda_device_count()[1] or "a CUDA device is there"
    problems, total, largest = [], 0, 0
    for step in flow.steps:
        for key, source in step.files(flow.folder).items():
            try:
                total += _size(source)
                _shapes(source)
            except SkydeltaError as e:
                problems.append(f"steps.{step.id}.{key}: {e}")
    for item in items:
        pixels = 0
        for source in item.inputs.values():
            try:
                total += _size(source)
                pixels = max(pixels, _pixels(source))
            except SkydeltaError as e:
                problems.append(f"{item.id}: {e}")
        largest = max(largest, _peak(bound, pixels))
    outputs = tuple(name for step in flow.steps for name in step.stage.products())
    return Plan(items, bound, backend, why, total, largest, outputs, tuple(problems))


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


def peak_of(bound: tuple[Bound, ...], items: tuple[WorkItem, ...]) -> int:
    """Estimated bytes for the largest of these items; 0 where that cannot be told."""
    pixels = 0
    for source in (s for item in items for s in item.inputs.values()):
        with contextlib.suppress(SkydeltaError):
            pixels = max(pixels, _pixels(source))
    return _peak(bound, pixels)


def _peak(bound: tuple[Bound, ...], pixels: int) -> int:
    """Most bytes held at once: image, variance and mask of every exposure alive, and the work of the step."""
    side = int(pixels**0.5)
    alive: dict[str, type] = {}
    peak = 0
    for b in bound:
        alive |= {name: b.step.stage.outputs[port].type for port, name in b.outputs.items()}
        exposures = sum(issubclass(kind, Exposure) for kind in alive.values())
        peak = max(peak, 12 * pixels * exposures + b.step.stage.memory((side, side)))
        for name in b.frees:
            alive.pop(name, None)
    return peak


def _size(source: str) -> int:
    try:
        return Path(split_extension(source)[0]).stat().st_size
    except OSError as e:
        raise InputError(f"{source}: {(e.strerror or str(e)).lower()}") from None


def _shapes(source: str) -> list[tuple[int, ...]]:
    """Shapes of the images in FILE, or of the one that FILE[EXT] names; headers are read, not pixels."""
    path, extension = split_extension(source)
    with open_file(path) as file:
        hdus = file.hdus if extension is None else [file.find(extension)]
        return [h.shape for h in hdus if h.is_image and not h.fault]


def _pixels(source: str) -> int:
    """Pixels of the largest two-dimensional image of FILE or FILE[EXT]."""
    planes = [s[0] * s[1] for s in _shapes(source) if len(s) == 2]
    if not planes:
        raise InputError(f"{source}: no two-dimensional image")
    return max(planes)
