# SPDX-License-Identifier: BSD-3-Clause
"""A run as a Prometheus text file, for the textfile collector of a node exporter.

The format is the text exposition format 0.0.4; the file is replaced whole, so a collector never reads half of it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from pathlib import Path

from skydelta.errors import SkydeltaError
from skydelta.io.storage import write_bytes
from skydelta.pipeline.events import Event

log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two writes while items end."""

ENDS = {"item_done": "done", "item_resumed": "resumed", "item_failed": "failed"}


class TextFile:
    """What has become of the items, and the seconds of the steps; a folder that is gone ends the file, not the run.

    Parameters
    ----------
    path : Path
        ``NAME.prom`` in the folder of the collector.
    workflow : str
        Label of every metric.
    """

    def __init__(self, path: Path, workflow: str) -> None:
        self._path: Path | None = path
        self._label = f'workflow="{_escaped(workflow)}"'
        self._items: Counter[str] = Counter(dict.fromkeys(ENDS.values(), 0))
        self._retries = self._planned = 0
        self._seconds: Counter[str] = Counter()
        self._steps: Counter[str] = Counter()
        self._started = self._last = 0.0
        self._running = 1
        self._written = 0.0

    def tell(self, event: Event) -> None:
        self._last = event.time
        if event.kind == "run_started":
            self._planned, self._started = int(event.data["items"]), event.time
        elif event.kind == "second_pass_started":
            self._planned += int(event.data["items"])
        elif event.kind == "step_done":
            self._seconds[event.step] += event.data["seconds"]
            self._steps[event.step] += 1
        elif event.kind == "item_retried":
            self._retries += 1
        elif event.kind in ENDS:
            self._items[ENDS[event.kind]] += 1
        elif event.kind == "run_done":
            self._running = 0
        else:
            return
        if event.kind in ("run_started", "run_done") or time.monotonic() - self._written > EVERY:
            self._write()

    def close(self) -> None:
        self._write()

    def text(self) -> str:
        """All metrics, as they are in the file."""
        label = self._label
        families = (
            ("items_planned", "gauge", "Items of the run.", {label: self._planned}),
            (
                "items_total",
                "counter",
                "Items that have ended.",
                {f'{label},status="{status}"': n for status, n in self._items.items()},
            ),
            ("retries_total", "counter", "Further attempts at items.", {label: self._retries}),
            (
                "step_seconds",
                "summary",
                "Seconds of a step.",
                {
                    f'{label},step="{_escaped(step)}"': (self._seconds[step], self._steps[step])
                    for step in sorted(self._steps)
                },
            ),
            ("run_start_time_seconds", "gauge", "When the run began, since 1970.", {label: self._started}),
            ("last_event_time_seconds", "gauge", "When something happened last, since 1970.", {label: self._last}),
            ("running", "gauge", "1 while the run goes on.", {label: self._running}),
        )
        lines = []
        for name, kind, words, values in families:
            if not values:
                continue
            lines += [f"# HELP skydelta_{name} {words}", f"# TYPE skydelta_{name} {kind}"]
            for labels, value in values.items():
                if isinstance(value, tuple):
                    lines += [f"skydelta_{name}_sum{{{labels}}} {value[0]:.6g}"]
                    lines += [f"skydelta_{name}_count{{{labels}}} {value[1]}"]
                else:
                    lines.append(f"skydelta_{name}{{{labels}}} {value!r}")
        return "\n".join(lines) + "\n"

    def _write(self) -> None:
        if self._path is None:
            return
        self._written = time.monotonic()
        try:
            write_bytes(self._path, self.text().encode())
        except SkydeltaError as e:
            log.warning("%s: no more metrics are written", e)
            self._path = None


def _escaped(text: str) -> str:
    """A label's value as the format wants it."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
