# SPDX-License-Identifier: BSD-3-Clause
"""One item after the other, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from skydelta.pipeline.executors.base import Receipt
from skydelta.pipeline.items import WorkItem


class Serial:
    """The default executor."""

    size = 1

    def map(self, run: Callable[[WorkItem], Receipt], items: Iterable[WorkItem]) -> Iterator[Receipt]:
        return map(run, items)
