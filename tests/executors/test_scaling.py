# SPDX-License-Identifier: BSD-3-Clause
"""The model of `benchmarks/scaling.py` against runs whose length is known without one."""

import importlib.util
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def scaling():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("benchmark_scaling", BENCHMARKS / "scaling.py")
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    return module


@pytest.mark.parametrize(("workers", "items", "rounds"), [(1, 7, 7), (2, 7, 4), (3, 7, 3), (50, 7, 1)])
def test_rounds_of_equal_items(scaling, workers, items, rounds):
    site = scaling.Site(workers, overhead=0.25, first=1.0)
    assert scaling.Model(site, [scaling.Work(2.0)] * items).seconds() == pytest.approx(1 + 2.25 * rounds)


def test_a_long_item_keeps_one_worker_only(scaling):
    works = [scaling.Work(s) for s in (10.0, 1, 1, 1, 1, 1)]
    assert scaling.Model(scaling.Site(2), works).seconds() == pytest.approx(10)
    assert scaling.Model(scaling.Site(2), works[::-1]).seconds() == pytest.approx(12), "last, after two rounds"


def test_storage_is_shared(scaling):
    """Where reading is all there is, the bytes over the rate of the storage; a node cannot have more than its own."""
    works = [scaling.Work(0.0, read=100.0)] * 8
    for workers, node, seconds in ((1, 1e9, 16), (8, 1e9, 16), (8, 10.0, 40), (16, 20.0, 20)):
        site = scaling.Site(workers, per_node=4, storage=50.0, node=node)
        assert scaling.Model(site, works).seconds() == pytest.approx(seconds), (workers, node)


def test_what_is_read_ahead_is_not_waited_for(scaling):
    """One worker: the first item's bytes and digest show, later ones only as far as they take longer than the work."""
    for seconds, whole in ((3.0, 3 + 4 * 3.0), (1.0, 4 * 3 + 1.0)):
        works = [scaling.Work(seconds, read=20.0, digest=1.0)] * 4
        assert scaling.Model(scaling.Site(1, storage=10.0), works).seconds() == pytest.approx(whole)


def test_writing_is_waited_for(scaling):
    works = [scaling.Work(1.0, written=20.0)] * 3
    assert scaling.Model(scaling.Site(1, storage=10.0), works).seconds() == pytest.approx(3 * 3)
    assert scaling.Model(scaling.Site(3, storage=10.0), works).seconds() == pytest.approx(1 + 6)


def test_one_process_hands_out(scaling):
    site = scaling.Site(1000, hand_out=0.5)
    assert scaling.Model(site, [scaling.Work(2.0)] * 100).seconds() == pytest.approx(52)
