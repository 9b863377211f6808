# SPDX-License-Identifier: BSD-3-Clause
"""What happens during a run, told to whoever listens: a JSON-lines file, a progress bar."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    Attributes
    ----------
    kind : str
        run_started, item_started, step_started, step_done, item_done, item_resumed, item_failed or run_done.
    """

    kind: str
    item: str = ""
    step: str = ""
    data: dict[str, Any] = field(default_factory=dict)


class Listener(Protocol):
    def tell(self, event: Event) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """Every event as one line of JSON, with the time in seconds since 1970."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a", encoding="utf-8")

    def tell(self, event: Event) -> None:
        line = {
            "time": round(time.time(), 3),
            "event": event.kind,
            "item": event.item,
            "step": event.step,
            **event.data,
        }
        self._file.write(json.dumps({k: v for k, v in line.items() if v != ""}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class ProgressBar:
    """A bar on the terminal: items, the step at work, the time left."""

    def __init__(self, items: int, steps: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._steps = steps
        self._task = self._progress.add_task("starting", total=items * steps)
        self._progress.start()

    def tell(self, event: Event) -> None:
        if event.kind == "step_started":
            self._progress.update(self._task, description=f"{event.item}: {event.step}")
        elif event.kind == "step_done":
            self._progress.advance(self._task)
        elif event.kind in ("item_resumed", "item_failed"):
            left = self._steps - event.data.get("steps_done", 0)
            self._progress.advance(self._task, left)

    def close(self) -> None:
        self._progress.stop()


class Hub:
    """Passes every event to all listeners."""

    def __init__(self, listeners: Iterable[Listener]) -> None:
        self._listeners = list(listeners)

    def tell(self, kind: str, item: str = "", step: str = "", **data: Any) -> None:
        for listener in self._listeners:
            listener.tell(Event(kind, item, step, data))

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
