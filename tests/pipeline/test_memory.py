# SPDX-License-Identifier: BSD-3-Clause
"""What a run keeps of an item that is done: little. `benchmarks/executors.py --items 5000` is the long version."""

import gc
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import skydelta
from skydelta.pipeline import runner

ITEMS, FIRST, EVERY = 120, 40, 20


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_memory_is_flat_over_many_items(sums, monkeypatch, figure, executor):
    """Bytes that Python holds after a third of the items, and after so many more.

    What is kept once, as a module that is imported late, is in one of the steps; what is kept of every item is in all.
    """
    Path("t.csv").write_text("id,a,b\n" + "".join(f"i{n},1,{1 + n % 5}\n" for n in range(ITEMS)))
    held, whole = {}, runner.Outcome.of

    def of(*receipt):
        outcome = whole(*receipt)
        held[len(held)] = 0
        if len(held) >= FIRST and len(held) % EVERY == 0:
            gc.collect()
            held[len(held) - 1] = tracemalloc.get_traced_memory()[0]
        return outcome

    monkeypatch.setattr(runner.Outcome, "of", of)
    workers = {"workers": 2} if executor == "threads" else {}
    tracemalloc.start()
    try:
        result = skydelta.run("sum.toml", {"table": "t.csv"}, out="out", executor=executor, **workers)
    finally:
        tracemalloc.stop()
    assert result.exit_code == 0
    steps = [held[n + EVERY - 1] - held[n - 1] for n in range(FIRST, ITEMS, EVERY)]
    grown = float(np.median(steps)) / EVERY
    figure(f"bytes kept of an item that is done, {executor}", grown, 1500)
