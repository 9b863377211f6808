# SPDX-License-Identifier: BSD-3-Clause
"""A workflow that runs a second time with fake sources, by the same settings, and leaves the real products alone."""

from __future__ import annotations

from collections.abc import Sequence

from skydelta.errors import ConfigError
from skydelta.pipeline.graph import Bound, Step, bind, external
from skydelta.stages.inject import Inject
from skydelta.stages.recover import Recover

NEEDED = ("match", "difference", "detect", "fit")
"""Stages that the sources go through, with every other step behind the first of them, but `write`."""


def with_injections(steps: Sequence[Step], count: int) -> tuple[Step, ...]:
    """The steps, and before anything is written the way of the science image again, with sources in it.

    Every step from `match` on that depends on the science image gets a twin ``<id>_injected`` of the same stage object,
    so that no setting can differ; `inject` goes before them, `recover` behind.

    Raises
    ------
    ConfigError
        The workflow lacks a stage that is needed.
    """
    end = next((i for i, s in enumerate(steps) if s.stage.name == "write"), len(steps))
    before = steps[:end]
    bound = bind(before, dict.fromkeys(external(before), str))
    first: dict[str, Bound] = {}
    for b in bound:
        first.setdefault(b.step.stage.name, b)
    missing = [name for name in NEEDED if name not in first]
    if missing:
        raise ConfigError(f"run.inject: the workflow has no step {', '.join(missing)} before it writes")
    science = first["match"].inputs["science"]
    whitened, catalog = first["difference"].outputs["whitened"], first["fit"].outputs["catalog"]
    renamed = {science: _named(science)}
    twins = []
    for b in bound[bound.index(first["match"]) :]:
        if not set(b.inputs.values()) & set(renamed):
            continue
        inputs = {port: renamed.get(name, name) for port, name in b.inputs.items()}
        renamed |= {name: _named(name) for name in b.outputs.values()}
        outputs = {port: renamed[name] for port, name in b.outputs.items()}
        twins.append(Step(_named(b.step.id), b.step.stage, inputs, outputs))
    inject = Step(
        "inject",
        Inject(count=count),
        {"image": science, "whitened": whitened, "catalog": catalog},
        {"injected": renamed[science], "sources": "injected_sources"},
    )
    recover = Step(
        "recover",
        Recover(),
        {"image": renamed[whitened], "catalog": renamed[catalog], "sources": "injected_sources"},
        {},
    )
    return (*before, inject, *twins, recover, *steps[end:])


def _named(name: str) -> str:
    return f"{name}_injected"
