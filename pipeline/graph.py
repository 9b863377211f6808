# SPDX-License-Identifier: BSD-3-Clause
"""Names and ports: what each step takes, what it gives, and when nobody needs it any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from skydelta.errors import ConfigError
from skydelta.pipeline.workflow import Step


@dataclass(frozen=True)
class Bound:
    """A step with every port tied to a name of the workflow.

    Attributes
    ----------
    inputs, outputs : dict
        Port to name; optional inputs that nothing provides are absent.
    frees : tuple of str
        Names no later step reads.
    """

    step: Step
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    frees: tuple[str, ...]


def external(steps: Iterable[Step]) -> dict[str, str]:
    """Names that the items must provide, paths that no step gives, and who reads each first."""
    made: set[str] = set()
    wanted: dict[str, str] = {}
    for i, step in enumerate(steps):
        read = {}
        for port_name, port in step.stage.inputs.items():
            read[port_name] = name = step.inputs.get(port_name, port_name)
            if name not in made and (port.type is str or port.many) and (not port.optional or port_name in step.inputs):
                wanted.setdefault(name, f"steps[{i}] ({step.id})")
        made |= {_output(step, port_name, read) for port_name in step.stage.outputs}
    return wanted


def listed(steps: Iterable[Step]) -> frozenset[str]:
    """Of the names that the items must provide, those that mean all files an item has of them."""
    steps = tuple(steps)
    wanted = external(steps)
    read = [(s.inputs.get(p, p), port.many) for s in steps for p, port in s.stage.inputs.items()]
    return frozenset(name for name, many in read if many and name in wanted)


def _output(step: Step, port_name: str, read: Mapping[str, str]) -> str:
    """What an output is called: as the step says, else like the input it replaces, else like its port."""
    replaces = step.stage.outputs[port_name].replaces
    return step.outputs.get(port_name) or (read.get(replaces, port_name) if replaces else port_name)


def bind(steps: Iterable[Step], given: Mapping[str, type]) -> tuple[Bound, ...]:
    """Tie ports to names and check their types before anything is read.

    An input port takes the name the step says, or its own. An output goes by the name the step says; else by the name
    tied to the input it replaces; else by its own.

    Parameters
    ----------
    given : mapping
        Names the items provide and their type (paths).

    Raises
    ------
    ConfigError
        A name nobody has provided yet, or of another type.
    """
    known: dict[str, type] = dict(given)
    tied: list[tuple[Step, dict[str, str], dict[str, str]]] = []
    for i, step in enumerate(steps):
        inputs = {}
        for port_name, port in step.stage.inputs.items():
            name = step.inputs.get(port_name, port_name)
            if name not in known:
                if port.optional and port_name not in step.inputs:
                    continue
                raise ConfigError(
                    f"steps[{i}] ({step.id}): input {port_name} = {name!r}: nothing provides it; known here: "
                    f"{', '.join(known) or 'nothing'}"
                )
            if not issubclass(known[name], port.type):
                if port.optional and port_name not in step.inputs:
                    continue
                raise ConfigError(
                    f"steps[{i}] ({step.id}): input {port_name} = {name!r} is {known[name].__name__}; "
                    f"{port.type.__name__} is needed"
                )
            inputs[port_name] = name
        try:
            step.stage.check_inputs(inputs)
        except ConfigError as e:
            raise ConfigError(f"steps[{i}] ({step.id}): {e}") from None
        outputs = {}
        for port_name, port in step.stage.outputs.items():
            outputs[port_name] = name = _output(step, port_name, inputs)
            known[name] = port.type
        tied.append((step, inputs, outputs))
    last = {name: i for i, (_, inputs, outputs) in enumerate(tied) for name in (*outputs.values(), *inputs.values())}
    return tuple(
        Bound(step, inputs, outputs, tuple(sorted(n for n, k in last.items() if k == i)))
        for i, (step, inputs, outputs) in enumerate(tied)
    )
