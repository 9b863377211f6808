# SPDX-License-Identifier: BSD-3-Clause
"""The workflow file: TOML with strict keys, and errors that name the place in the file."""

from __future__ import annotations

import copy
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from skydelta.errors import ConfigError
from skydelta.stages.base import Stage, explain
from skydelta.stages.registry import get, names

RESERVED = ("id", "stage", "enabled", "inputs", "outputs")
"""Keys of a step that are not configuration of its stage."""


PAIR_BY = "pair_by"
"""Key of ``[inputs]`` that names no files: what partners have in common (`skydelta.pipeline.pairing`)."""


SECOND_PASS = "second_pass"
"""Key of the steps that every item goes through once the objects of all are known."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RunOptions(_Strict):
    """The ``[run]`` table."""

    device: str = Field("auto", description="auto, cpu, cuda or cuda:N.")
    executor: Literal["serial", "threads", "dask", "mpi"] = Field(
        "serial", description="How items are spread: one after the other, over threads, over Dask workers or MPI ranks."
    )
    workers: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="Threads or Dask workers of one's own; none: one a GPU, else by cores and memory.",
    )
    dask_address: str | None = Field(
        None, min_length=1, description="Scheduler of a Dask cluster that runs already, such as tcp://host:8786."
    )
    retries: int = Field(
        2, ge=0, le=10, description="Further attempts after a fault of storage that can pass (I/O error, stale handle)."
    )
    out_of_memory: Literal["fail", "cpu"] = Field(
        "fail", description="An item that does not fit on the device: fail, or run it on the CPU and say so."
    )
    on_error: Literal["continue", "stop"] = Field(
        "continue", description="After a failed item: go on with the others, or stop."
    )
    association_radius: float | None = Field(
        None,
        gt=0,
        le=60,
        description="Detections of several items this close (arcsec) are one object; none: half the median seeing, "
        "or 1 where it is not known.",
    )
    prometheus: str | None = Field(
        None, min_length=1, description="Text file with the state of the run for Prometheus, rewritten as items end."
    )
    inject: int = Field(
        0, ge=0, description="Fake sources with which the science image is run a second time, to measure the depth."
    )


class WorkflowFile(_Strict):
    """The whole file before its steps are turned into stages."""

    version: Literal[1] = Field(description="Version of this format.")
    name: str = Field(min_length=1, description="Name of the workflow; recorded in the run.")
    inputs: dict[str, str | list[str]] = Field(
        default_factory=dict,
        description="Paths by name (`science`, `reference`), one, a list, or a pattern with * and ?; `pair_by`: header "
        "keys that partners have in common, and `sky`; or `table`: a file with columns id and one for each name.",
    )
    run: RunOptions = Field(default_factory=RunOptions)
    steps: list[dict[str, Any]] = Field(min_length=1, description="Stages in order.")
    second_pass: list[dict[str, Any]] = Field(
        default_factory=list,
        description="Stages that every item goes through once the objects of all items are known. Their inputs are "
        "`objects`, the table of these, and the files that the item has left, by name without suffix.",
    )


@dataclass(frozen=True)
class Step:
    """One configured stage and what its ports are called in the workflow.

    Attributes
    ----------
    id : str
        Unique in the workflow; the stage's name unless given.
    stage : Stage
    inputs, outputs : dict
        Port name to workflow name, only where the file says so.
    """

    id: str
    stage: Stage[Any]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    def described(self) -> dict[str, Any]:
        """Everything but files that decides what this step computes, JSON-able: part of an item's identity."""
        return {
            "id": self.id,
            "stage": self.stage.name,
            "version": self.stage.version,
            "inputs": dict(self.inputs),
            "outputs": dict(self.outputs),
            "config": self.stage.config.model_dump(mode="json", exclude=set(self.stage.files)),
        }

    def files(self, base: Path) -> dict[str, str]:
        """Settings that name files, and the files (FILE or FILE[EXT]); relative ones are under ``base``."""
        named = self.stage.config.model_dump(include=set(self.stage.files), exclude_none=True)
        return {key: str(base / path) for key, path in named.items()}


@dataclass(frozen=True)
class Workflow:
    """A checked workflow.

    Attributes
    ----------
    inputs : dict
        Name to path, or to a list of them; absolute. And `PAIR_BY`, as it was given.
    folder : Path
        What relative paths in the steps are relative to.
    data : dict
        The file's tables with everything that replaced a part of them: what `build` makes this workflow of elsewhere.
    second : Workflow or None
        The steps of the second pass, where there are some.
    """

    name: str
    inputs: Mapping[str, str | list[str]]
    folder: Path
    run: RunOptions
    steps: tuple[Step, ...]
    data: Mapping[str, Any] = field(default_factory=dict, repr=False)
    second: Workflow | None = None

    def described(self) -> dict[str, Any]:
        """What decides the results, JSON-able: the steps and the version of the format."""
        return {"version": 1, "name": self.name, "steps": [s.described() for s in self.steps]}

    def with_settings(self, settings: Mapping[str, Any], where: str) -> Workflow:
        """The same workflow with other settings of its steps: ``{"match.order": 3}``; paths in them are absolute.

        Raises
        ------
        ConfigError
            No such step, setting or value; the message begins with ``where``.
        """
        if not settings:
            return self
        data = copy.deepcopy(dict(self.data))
        for path, value in settings.items():
            _set_step(data, path.split("."), value, f"{where}: {path}")
        return build(data, self.folder, where)


def shipped() -> dict[str, str]:
    """Workflows of the package: name to first comment line."""
    out = {}
    for f in sorted(resources.files("skydelta.workflows").iterdir(), key=lambda f: f.name):
        if f.name.endswith(".toml"):
            out[f.name[:-5]] = f.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
    return out


def text_of(name: str) -> str:
    """The TOML of a shipped workflow."""
    return (resources.files("skydelta.workflows") / f"{name}.toml").read_text(encoding="utf-8")


def load(
    source: str | Path,
    *,
    set_: Iterable[str] = (),
    inputs: Mapping[str, str | Path | list[str]] | None = None,
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Workflow:
    """Read and check a workflow.

    Parameters
    ----------
    source : str or Path
        A file, or the name of a shipped workflow, which comes first (``./name`` is the file).
    set_ : iterable of str
        Overrides ``path=value``: ``steps.match.order=3``, ``run.device=cpu``, ``inputs.science=a.fits``; paths in them
        are relative to the current folder.
    inputs : mapping, optional
        Paths by name, one or a list, relative to the current folder; they replace the file's.
    device : str, optional
        Replaces ``run.device``.
    options : mapping, optional
        Replace other keys of ``[run]``; None leaves the file's.

    Raises
    ------
    ConfigError
        Not TOML, an unknown key, stage or value; the message names the file and the place in it.
    """
    label, folder, text = _open(source)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise ConfigError(f"{label}: not TOML: {e}") from None
    _checked(label, data)
    for assignment in set_:
        _override(data, assignment)
    if inputs:
        data["inputs"] = _with(data.get("inputs", {}), {k: _input(k, v) for k, v in inputs.items()})
    replaced = {"device": device, **(options or {})}
    data["run"] = data.get("run", {}) | {key: value for key, value in replaced.items() if value is not None}
    return build(data, folder, label)


def build(data: Mapping[str, Any], folder: Path, label: str) -> Workflow:
    """A workflow from its tables; ``label`` begins the messages, ``folder`` is what relative paths are relative to.

    Raises
    ------
    ConfigError
        An unknown key, stage or value.
    """
    file = _checked(label, data)
    steps = _steps(label, "steps", file.steps)
    if not steps:
        raise ConfigError(f"{label}: steps: every step has enabled = false; at least one is needed")
    if file.run.inject:
        from skydelta.pipeline.injection import with_injections

        steps = with_injections(steps, file.run.inject)
        _different(label, "steps", steps)
    second = None
    if later := _steps(label, SECOND_PASS, file.second_pass):
        tables = {"version": 1, "name": file.name, "steps": file.second_pass}
        tables["run"] = {k: v for k, v in data.get("run", {}).items() if k != "inject"}
        second = Workflow(file.name, {}, folder, file.run.model_copy(update={"inject": 0}), later, tables)
    paths = {
        name: path
        if name == PAIR_BY
        else [str(folder / p) for p in path]
        if isinstance(path, list)
        else str(folder / path)
        for name, path in file.inputs.items()
    }
    return Workflow(file.name, paths, folder, file.run, steps, data, second)


def _steps(label: str, table: str, raws: Iterable[Mapping[str, Any]]) -> tuple[Step, ...]:
    """The steps of one of the two lists, those that take part."""
    found = ((f"{label}: {table}[{i}]", raw) for i, raw in enumerate(raws))
    steps = tuple(_step(where, raw) for where, raw in found if _enabled(where, raw))
    _different(label, table, steps)
    return steps


def _different(label: str, table: str, steps: Iterable[Step]) -> None:
    seen: set[str] = set()
    for i, step in enumerate(steps):
        if step.id in seen:
            raise ConfigError(f"{label}: {table}[{i}].id: {step.id!r} is used twice; give the step an id of its own")
        seen.add(step.id)


def _checked(label: str, data: Mapping[str, Any]) -> WorkflowFile:
    try:
        return WorkflowFile.model_validate(data)
    except ValidationError as e:
        raise ConfigError(f"{label}: {explain(e)}") from None


def _open(source: str | Path) -> tuple[str, Path, str]:
    """Label for messages, folder that paths are relative to, and the text."""
    path = Path(source)
    if isinstance(source, str) and source in shipped():
        return source, Path.cwd(), text_of(source)
    if isinstance(source, str) and not path.suffix and not os.path.exists(path):
        raise ConfigError(f"workflow {source!r}: no such file, and the shipped ones are {', '.join(shipped())}")
    try:
        return str(source), path.absolute().parent, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"workflow {source}: cannot be read ({getattr(e, 'strerror', None) or e})") from None


def _with(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs with some replaced: a table replaces all the others, the others replace a table."""
    return dict(new) if "table" in new else {**{k: v for k, v in old.items() if k != "table"}, **new}


def _input(name: str, value: Any) -> Any:
    """A value of ``[inputs]``: paths from the current folder, and what is none as it is."""
    return value if name == PAIR_BY else _absolute(value)


def _absolute(path: Any) -> Any:
    """Paths relative to the current folder; what is no path is left to the check of the file."""
    if isinstance(path, list | tuple):
        return [_absolute(p) for p in path]
    return str(Path(path).absolute()) if isinstance(path, str | Path) else path


def _enabled(where: str, raw: Mapping[str, Any]) -> bool:
    """Does the step take part? One that does not is left out, as if the file did not have it."""
    value = raw.get("enabled", True)
    if not isinstance(value, bool):
        raise ConfigError(f"{where}.enabled: {value!r}; true or false is needed")
    return value


def _step(where: str, raw: Mapping[str, Any]) -> Step:
    name = raw.get("stage")
    if not isinstance(name, str):
        raise ConfigError(f"{where}.stage: missing; the name of a stage is needed")
    try:
        stage_class = get(name)
    except ConfigError as e:
        raise ConfigError(f"{where}.stage: {e}") from None
    config = {k: v for k, v in raw.items() if k not in RESERVED}
    try:
        stage = stage_class(stage_class.config_class()(**config))
    except ValidationError as e:
        raise ConfigError(f"{where}.{name}.{explain(e)}") from None
    bound_names = {}
    for side, ports in (("inputs", stage.inputs), ("outputs", stage.outputs)):
        bound = raw.get(side, {})
        if not isinstance(bound, dict) or not all(isinstance(v, str) for v in bound.values()):
            raise ConfigError(f"{where}.{side}: a table of port = name is needed")
        for port in bound:
            if port not in ports:
                raise ConfigError(f"{where}.{side}.{port}: {name} has no such port; it has {', '.join(ports)}")
        bound_names[side] = bound
    identity = raw.get("id", name)
    if not isinstance(identity, str) or not identity.replace("_", "").replace("-", "").isalnum():
        raise ConfigError(f"{where}.id: {identity!r}; letters, digits, _ and - are allowed")
    return Step(identity, stage, bound_names["inputs"], bound_names["outputs"])


def _override(data: dict[str, Any], assignment: str) -> None:
    """Apply one ``path=value``; the value is TOML, or a plain word."""
    path, sep, text = assignment.partition("=")
    keys = path.strip().split(".")
    if not sep or not all(keys) or len(keys) < 2:
        raise ConfigError(f"--set {assignment!r}: path=value is needed, e.g. steps.match.order=3")
    value = value_of(text)
    if keys[0] in ("steps", SECOND_PASS):
        _set_step(data, keys[1:], value, f"--set {assignment!r}", keys[0])
        return
    if keys[0] == "inputs" and len(keys) == 2:
        data["inputs"] = _with(data.get("inputs", {}), {keys[1]: _input(keys[1], value)})
        return
    table = data
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {assignment!r}: {key!r} is no table")
    table[keys[-1]] = value


def value_of(text: str) -> Any:
    """A setting written as text: a TOML value, else the word as it is."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def _set_step(data: Mapping[str, Any], keys: list[str], value: Any, where: str, table: str = "steps") -> None:
    """Set ``<id or stage>.<key>`` in the steps of a workflow, or in those of its second pass."""
    steps = data.get(table, [])
    hit = [s for s in steps if s.get("id", s.get("stage")) == keys[0]]
    hit = hit or [s for s in steps if s.get("stage") == keys[0]]
    if not hit:
        known = ", ".join(str(s.get("id", s.get("stage"))) for s in steps)
        raise ConfigError(f"{where}: no step {keys[0]!r}; the steps are {known or 'none'}")
    if len(keys) != 2:
        raise ConfigError(f"{where}: {table}.<id or stage>.<key>=value is needed")
    for step in hit:
        names_file = isinstance(step.get("stage"), str) and keys[1] in _files_of(step["stage"])
        step[keys[1]] = _absolute(value) if names_file else value


def _files_of(stage: str) -> tuple[str, ...]:
    try:
        return get(stage).files
    except ConfigError:
        return ()  # the check of the step says what is wrong with it


def schema() -> dict[str, Any]:
    """JSON schema of a workflow file, every stage's configuration included."""
    base = WorkflowFile.model_json_schema()
    variants = []
    for name in names():
        stage = get(name)
        config = stage.config_class().model_json_schema()
        properties = {
            "stage": {"const": name},
            "id": {"type": "string"},
            "enabled": {"type": "boolean"},
            "inputs": {"type": "object", "properties": {p: {"type": "string"} for p in stage.inputs}},
            "outputs": {"type": "object", "properties": {p: {"type": "string"} for p in stage.outputs}},
            **config.get("properties", {}),
        }
        base.setdefault("$defs", {}).update(config.get("$defs", {}))
        variants.append(
            {"type": "object", "properties": properties, "required": ["stage"], "additionalProperties": False}
        )
    for table in ("steps", SECOND_PASS):
        base["properties"][table]["items"] = {"oneOf": variants}
    return base
