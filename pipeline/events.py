# SPDX-License-Identifier: BSD-3-Clause
"""What happens during a run, told to whoever listens: a JSON-lines file, a progress bar."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    Attributes
    ----------
    kind : str
        run_started, second_pass_started, item_started, step_started, step_done, item_retried, item_done, item_resumed,
        item_failed or run_done.
    time : float
        Seconds since 1970 on the machine where it happened.
    """

    kind: str
    item: str = ""
    step: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    time: float = field(default_factory=time.time)


class Tell(Protocol):
    """How whoever works says what happens."""

    def __call__(self, kind: str, item: str = "", step: str = "", **data: Any) -> None: ...


class Listener(Protocol):
    def tell(self, event: Event) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """Every event as one line of JSON, with the time in seconds since 1970; a full disk ends the file, not the run.

    Parameters
    ----------
    path : Path or text stream
        A file is appended to; a stream (standard error) stays open.
    """

    def __init__(self, path: Path | TextIO) -> None:
        self._path = path
        self._file: TextIO | None = None
        if not isinstance(path, Path):
            self._file = path
            return
        with self._or_none():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")

    @contextlib.contextmanager
    def _or_none(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            name = self._path if isinstance(self._path, Path) else "standard error"
            log.warning("%s: no more events are written: %s", name, e.strerror or e)
            self._file = None

    def tell(self, event: Event) -> None:
        if self._file is None:
            return
        line = {
            "time": round(event.time, 3),
            "event": event.kind,
            "item": event.item,
            "step": event.step,
            **event.data,
        }
        with self._or_none():
            self._file.write(json.dumps({k: v for k, v in line.items() if v != ""}) + "\n")
            self._file.flush()

    def close(self) -> None:
        with self._or_none():
            if self._file is not None and isinstance(self._path, Path):
                self._file.close()


class JsonFormatter(logging.Formatter):
    """A log record as a line like those of `JsonLines`: event ``log``, with level, logger and message."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": round(record.created, 3), "event": "log", "level": record.levelname.lower()}
        return json.dumps({**line, "logger": record.name, "message": record.getMessage()})


def log_as_json() -> None:
    """From now on what is logged to standard error has the form of events."""
    for handler in logging.getLogger().handlers:
        if type(handler) is logging.StreamHandler and handler.stream is sys.stderr:
            handler.setFormatter(JsonFormatter())


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
        if event.kind == "second_pass_started":
            self._steps = event.data["steps"]
            self._progress.reset(self._task, total=event.data["items"] * self._steps)
        elif event.kind == "step_started":
            self._progress.update(self._task, description=f"{event.item}: {event.step}")
        elif event.kind == "step_done":
            self._progress.advance(self._task)
        elif event.kind in ("item_resumed", "item_failed"):
            left = self._steps - event.data.get("steps_done", 0)
            self._progress.advance(self._task, left)

    def close(self) -> None:
        self._progress.stop()


class Hub:
    """Passes every event to all listeners, from whatever thread it comes."""

    def __init__(self, listeners: Iterable[Listener]) -> None:
        self._listeners = list(listeners)
        self._one = threading.Lock()

    def tell(self, kind: str, item: str = "", step: str = "", **data: Any) -> None:
        self.replay([Event(kind, item, step, data)])

    def replay(self, events: Iterable[Event]) -> None:
        """Pass on what happened elsewhere."""
        with self._one:
            for event in events:
                for listener in self._listeners:
                    listener.tell(event)

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()


class Collector:
    """Keeps events until they can be sent to the hub."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def tell(self, kind: str, item: str = "", step: str = "", **data: Any) -> None:
        self.events.append(Event(kind, item, step, data))
