# SPDX-License-Identifier: BSD-3-Clause
"""What a stage is: a configuration, typed ports, and a pure ``run``."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from skydelta.errors import ConfigError, SkydeltaError
from skydelta.interrupt import leave_if_asked
from skydelta.io.exposure import Exposure
from skydelta.io.images import as_image
from skydelta.kernels.backend import Backend, resolve

log = logging.getLogger(__name__)


class StageConfig(BaseModel):
    """Base of all stage configurations: frozen, unknown keys refused; every field has description, unit and range.

    ``only_where`` says of a setting which values of others it needs to have an effect: given without, it is refused.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    only_where: ClassVar[Mapping[str, Mapping[str, tuple[Any, ...]]]] = {}

    @field_validator("*", mode="before")
    @classmethod
    def _no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """True and false are no numbers: Python would count them as 1 and 0."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and kind is not bool and bool not in get_args(kind):
            raise ValueError("a value is needed, not true or false")
        return value

    @model_validator(mode="after")
    def _no_idle_setting(self) -> Self:
        for name in self.given():
            for other, allowed in self.only_where.get(name, {}).items():
                value = getattr(self, other)
                if value not in allowed:
                    rest = [] if None in allowed or False in allowed else [str(v) for v in allowed]
                    only = f", only where it is {' or '.join(rest)}" if rest else ""
                    said = "{name}: {value} has no effect where {other} is {state}" + only
                    found = {"name": name, "value": repr(getattr(self, name)), "other": other, "state": str(value)}
                    raise PydanticCustomError("no_effect", said, found)
        return self

    def given(self) -> tuple[str, ...]:
        """Names of the settings that were given a value, in the order of the fields."""
        return tuple(n for n in type(self).model_fields if n in self.model_fields_set and getattr(self, n) is not None)


C = TypeVar("C", bound=StageConfig)


@dataclass(frozen=True)
class Port:
    """A typed input or output.

    Attributes
    ----------
    type : type
        What travels through it; checked when a workflow is loaded and again when the stage is called.
    doc : str
    optional : bool
        An input that may be missing (the stage then receives None).
    replaces : str or None
        Of an output: the input port whose name in the workflow now means this output (``align`` given
        ``image = "reference"`` makes ``reference`` the aligned image for later steps).
    many : bool
        An input that may be a list of paths: all files of that name that an item has.
    file : str or None
        Of an optional input: what the stage leaves beside its `Stage.products` when it is there.
    """

    type: type
    doc: str = ""
    optional: bool = False
    replaces: str | None = None
    many: bool = False
    file: str | None = None


@dataclass
class Context:
    """What a stage may use beside its inputs.

    Attributes
    ----------
    backend : Backend
    id : str
        Of the work item.
    out : Path or None
        Folder of the item; only ``write`` uses it.
    base : Path or None
        Folder that relative paths are relative to; only ``load`` uses it.
    metrics : dict
        Filled by `metric`: name to value (float, int, str, or a list of them).
    flags : dict
        Filled by `flag`: name to one line of explanation.
    earlier : dict
        Flags of the steps before this one; `write` puts their names into the header.
    failures : list
        Filled by `fail`: the item goes on and its products are written, but it has failed.
    level : int
        At which flags are logged: a stage that is called as a function leaves no receipt that could be read.
    """

    backend: Backend
    id: str = ""
    out: Path | None = None
    base: Path | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)
    earlier: Mapping[str, str] = field(default_factory=dict)
    failures: list[SkydeltaError] = field(default_factory=list)
    level: int = logging.INFO

    def metric(self, name: str, value: Any) -> None:
        """Record a figure for receipt and report (units belong in the name: ``shift_px``)."""
        self.metrics[name] = value

    def flag(self, name: str, message: str) -> None:
        """Record something a reader must know (fallback, clipping, degeneracy): receipt, report and header."""
        self.flags[name] = message
        log.log(self.level, "%s %s: %s", self.id, name, message)

    def flag_each(self, name: str, lines: Iterable[str]) -> None:
        """A flag for each line that is in none yet: ``name``, ``name_2``, ..., behind those that there are."""
        for line in (x for x in lines if x not in self.flags.values()):
            taken = sum(flag == name or flag.startswith(f"{name}_") for flag in self.flags)
            self.flag(f"{name}_{taken + 1}" if taken else name, line)

    def fail(self, name: str, error: SkydeltaError) -> None:
        """Record a fault that makes the products untrustworthy but still worth writing (``misaligned``)."""
        self.flag(name, str(error))
        self.failures.append(error)


class Stage(Generic[C]):
    """Base of all stages.

    Subclasses set ``name``, ``version``, ``inputs``, ``outputs`` and implement ``run``, which does no I/O and keeps
    no state. Called directly, a stage is a function: ``Align(method="lanczos3")(image, onto=science)``. ``files``
    lists the settings that name further files: their bytes, not their paths, decide whether a result still holds.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    inputs: ClassVar[Mapping[str, Port]]
    outputs: ClassVar[Mapping[str, Port]]
    files: ClassVar[tuple[str, ...]] = ()

    def check_files(self, base: Path | None = None) -> None:
        """Whether files that its settings name, relative ones under ``base``, hold what it needs; asked before a run.

        Raises
        ------
        InputError
        """

    def check_inputs(self, given: Collection[str]) -> None:
        """Whether every setting has an effect with these inputs; asked before a run, and when the stage is called.

        Raises
        ------
        ConfigError
        """

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Refuse the first of these settings that was given a value: it has no effect.

        Raises
        ------
        ConfigError
        """
        for name in (n for n in self.config.given() if n in names):
            raise ConfigError(f"{self.name}.{name}: {getattr(self.config, name)!r} has no effect {why}")

    def __init__(self, config: C | None = None, **parameters: Any) -> None:
        if config is None:
            try:
                config = self.config_class()(**parameters)
            except ValidationError as e:
                raise ConfigError(f"{self.name}.{explain(e)}") from None
        self.config: C = config

    @classmethod
    def config_class(cls) -> type[C]:
        for base in getattr(cls, "__orig_bases__", ()):
            for a in get_args(base):
                if isinstance(a, type) and issubclass(a, StageConfig):
                    return a  # type: ignore[return-value]
        raise TypeError(f"{cls.__name__} names no StageConfig")

    def halo(self) -> int:
        """Pixels of neighbourhood the stage needs around each output pixel."""
        return 0

    def memory(self, shape: tuple[int, int], kind: str) -> int:
        """Peak bytes beyond the inputs, for images of this shape, on this kind of backend: cpu or cuda."""
        return 0

    def products(self) -> tuple[str, ...]:
        """Names of the files that it leaves in the folder of an item."""
        return ()

    def run(self, ctx: Context, **inputs: Any) -> dict[str, Any]:
        """The work; returns one value per output port."""
        raise TypeError(f"stage {self.name} does not implement run")

    def execute(self, ctx: Context, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """`run` with both sides of the ports checked."""
        leave_if_asked()
        unknown = set(inputs) - set(self.inputs)
        if unknown:
            allowed = ", ".join(self.inputs)
            raise ConfigError(f"{self.name}: unknown input {', '.join(sorted(unknown))}; allowed: {allowed}")
        given = {}
        for port_name, port in self.inputs.items():
            value = inputs.get(port_name)
            if value is None and not port.optional:
                raise ConfigError(f"{self.name}: input {port_name} ({port.type.__name__}) is missing")
            if value is not None and not isinstance(value, port.type):
                raise ConfigError(
                    f"{self.name}: input {port_name} is {type(value).__name__}, a {port.type.__name__} is needed"
                )
            given[port_name] = value.single() if isinstance(value, Exposure) else value
        self.check_inputs([name for name, value in given.items() if value is not None])
        result = self.run(ctx, **given)
        missing = set(self.outputs) - set(result)
        if missing:
            raise TypeError(f"stage {self.name} returned no {', '.join(sorted(missing))}")
        return result

    def __call__(self, *args: Any, device: str = "auto", **inputs: Any) -> Any:
        """Run alone; flags are logged as warnings. Returns the output, or a dict of outputs when there are several.

        Images may be arrays, NDData or files too, as `skydelta.io.images.as_image` takes them.
        """
        inputs.update(zip(self.inputs, args, strict=False))
        for name, port in self.inputs.items():
            if port.type is Exposure and name in inputs:
                inputs[name] = as_image(inputs[name], device)
        result = self.execute(Context(resolve(device), id=self.name, level=logging.WARNING), inputs)
        return result[next(iter(self.outputs))] if len(self.outputs) == 1 else result


def as_function(stage: type[Stage[Any]]) -> Callable[..., Any]:
    """The stage as a plain function: inputs by position or name, configuration by keyword."""

    def call(*args: Any, device: str = "auto", **keywords: Any) -> Any:
        inputs = {k: keywords.pop(k) for k in list(keywords) if k in stage.inputs}
        return stage(**keywords)(*args, device=device, **inputs)

    call.__name__ = call.__qualname__ = stage.name
    call.__doc__ = stage.__doc__
    return call


def explain(error: ValidationError) -> str:
    """The first problem of a pydantic error as one line: ``order: 9 is above 4``."""
    e = error.errors()[0]
    if e["type"] == "no_effect":  # of several settings together
        return str(e["msg"])
    where = ".".join(str(p) for p in e["loc"])
    context, value = e.get("ctx", {}), e.get("input")
    if isinstance(value, float) and math.isnan(value):  # no bound is any answer to it
        return f"{where}: {value!r}; a finite number is needed"
    kinds = {
        "less_than_equal": lambda: f"{value!r} is above {context['le']}",
        "greater_than_equal": lambda: f"{value!r} is below {context['ge']}",
        "less_than": lambda: f"{value!r} is not below {context['lt']}",
        "greater_than": lambda: f"{value!r} is not above {context['gt']}",
        "extra_forbidden": lambda: "unknown key",
        "literal_error": lambda: f"{value!r} is not one of {context['expected']}",
        "missing": lambda: "missing",
        "tuple_type": lambda: f"{value!r} is no list",
        "value_error": lambda: f"{value!r}: {context['error']}",
    }
    other = f"{value!r}: {e['msg']}"
    return f"{where}: {kinds.get(e['type'], lambda: other)()}"


@dataclass(frozen=True)
class Described:
    """One field of a configuration, as documentation shows it."""

    name: str
    type: str
    default: str
    description: str


def describe(model: type[BaseModel]) -> list[Described]:
    """The fields of a configuration with type, range, default and meaning, from the model itself."""
    out = []
    for name, spec in model.model_json_schema().get("properties", {}).items():
        field_ = model.model_fields[name]
        default = "required" if field_.is_required() else repr(field_.default)
        out.append(Described(name, _type_words(spec), default, field_.description or ""))
    return out


def _type_words(spec: Mapping[str, Any]) -> str:
    if "anyOf" in spec:
        return " or ".join(_type_words(s) for s in spec["anyOf"])
    if "enum" in spec:
        return ", ".join(str(v) for v in spec["enum"])
    if "const" in spec:
        return str(spec["const"])
    if "prefixItems" in spec:
        return f"[{', '.join(_type_words(s) for s in spec['prefixItems'])}]"
    words = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "null": "unset"}
    text = words.get(spec.get("type", ""), spec.get("type", "value"))
    signs = {"minimum": ">=", "maximum": "<=", "exclusiveMinimum": ">", "exclusiveMaximum": "<"}
    limits = ", ".join(f"{sign} {spec[key]:g}" for key, sign in signs.items() if key in spec)
    return f"{text} ({limits})" if limits else text
