# SPDX-License-Identifier: BSD-3-Clause
"""One item after the other, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from skydelta.pipeline.executors.base import Order, Receipt, Seat, Task, hub_of
from skydelta.pipeline.items import WorkItem


class Serial:
    """The default executor.

    Parameters
    ----------
    device : str
        Where it computes.
    """

    size = 1
    description = "serial"

    def __init__(self, device: str) -> None:
        self._seat = Seat(device, name="serial")

    def map(self, task: Task, items: Iterable[WorkItem]) -> Iterator[Receipt]:
        tell, order = hub_of(task).tell, Order(items)
        while (item := order.next(0)) is not None:
            yield task(item, self._seat, tell, order.following(0))

    def close(self) -> None:
        """Nothing to end."""
