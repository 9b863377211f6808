# SPDX-License-Identifier: BSD-3-Clause
"""What an executor is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from skydelta.pipeline.items import WorkItem

Receipt = dict[str, Any]


class Executor(Protocol):
    """Spreads work items; what comes back are receipts, never pixels."""

    size: int

    def map(self, run: Callable[[WorkItem], Receipt], items: Iterable[WorkItem]) -> Iterator[Receipt]:
        """Run every item; receipts in any order. ``run`` raises only to stop everything."""
        ...
