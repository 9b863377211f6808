# SPDX-License-Identifier: BSD-3-Clause
"""What a run keeps of an item that is done: little. `benchmarks/executors.py --items 5000` is the long version."""

import gc
import tracemalloc
from pathlib import Path

import pytest

import skydelta
from skydelta.pipeline import runner

ITEMS, FIRST = 120, 40


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_memory_is_flat_over_many_items(sums, monkeypatch, figure, executor):
    """Bytes that Python holds after the first third of the items, and at the end.

    A run before that, which is not measured, imports and compiles what is kept once.
    """
    Path("t.csv").write_text("id,a,b\n" + "".join(f"i{n},1,{1 + n % 5}\n" for n in range(ITEMS)))
    held, whole = {}, runner.Outcome.of

    def of(*receipt):
        outcome = whole(*receipt)
        held[len(held)] = 0
        if len(held) in (FIRST, ITEMS):
            gc.collect()
            held[len(held) - 1] = tracemalloc.get_traced_memory()[0]
        return outcome

    workers = {"workers": 2} if executor == "threads" else {}
    assert skydelta.run("sum.toml", {"table": "t.csv"}, out="before", executor=executor, **workers).exit_code == 0
    monkeypatch.setattr(runner.Outcome, "of", of)
    tracemalloc.start()
    try:
        result = skydelta.run("sum.toml", {"table": "t.csv"}, out="out", executor=executor, **workers)
    finally:
        tracemalloc.stop()
    assert result.exit_code == 0
    grown = (held[ITEMS - 1] - held[FIRST - 1]) / (ITEMS - FIRST)
    figure(f"bytes kept of an item that is done, {executor}", grown, 1500)
