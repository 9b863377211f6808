# SPDX-License-Identifier: BSD-3-Clause
"""Toy stages that work on numbers in text files: what a run does, without images."""

from pathlib import Path

from pydantic import Field

from skydelta.errors import AlgorithmError, InputError, MisalignedError
from skydelta.stages.base import Port, Stage, StageConfig

ALIVE = set()
"""Values that still exist; `ToySave` notes how many."""


class Number:
    """A value that can be watched."""

    def __init__(self, value):
        self.value = value
        ALIVE.add(id(self))

    def __del__(self):
        ALIVE.discard(id(self))


class ToyReadConfig(StageConfig):
    """How a number is read."""

    scale: float = Field(1.0, ge=0, le=4, description="Factor.")
    offset: str | None = Field(None, description="FILE with a number to add.")


class ToyRead(Stage[ToyReadConfig]):
    """A number from a file."""

    name = "toy_read"
    version = 2
    inputs = {"path": Port(str, "file")}
    outputs = {"number": Port(Number, "what was read", replaces="path")}
    files = ("offset",)

    def run(self, ctx, *, path):
        try:
            value = float(Path(path).read_text())
        except OSError as e:
            raise InputError(f"{path}: cannot be read: {e.strerror}") from None
        if self.config.offset is not None:
            value += float((ctx.base / self.config.offset).read_text())
        ctx.metric("read", value)
        return {"number": Number(value * self.config.scale)}


class ToyAddConfig(StageConfig):
    """How numbers are added."""

    highest: float = Field(100.0, description="Sums above fail.")


class ToyAdd(Stage[ToyAddConfig]):
    """The sum of two numbers; some sums mean trouble."""

    name = "toy_add"
    inputs = {"left": Port(Number), "right": Port(Number), "more": Port(Number, optional=True)}
    outputs = {"sum": Port(Number), "word": Port(str)}

    def run(self, ctx, *, left, right, more):
        total = left.value + right.value + (more.value if more else 0)
        if total > self.config.highest:
            raise AlgorithmError(f"toy_add: {total} is above {self.config.highest}", total=total)
        if total == 13:
            raise ZeroDivisionError("thirteen\nis bad luck")
        if total == 14:
            raise KeyboardInterrupt
        if total == 15:
            raise MemoryError("15 GiB")
        if total == 16:
            ctx.fail("misaligned", MisalignedError("toy_add: 16 is off by 5"))
        if total == 17:
            ctx.flag("odd", "17 is odd")
        return {"sum": Number(total), "word": str(total)}


class ToySave(Stage[StageConfig]):
    """A number into the folder of the item."""

    name = "toy_save"
    inputs = {"number": Port(Number)}
    outputs = {"files": Port(list)}

    def run(self, ctx, *, number):
        path = ctx.out / "number.txt"
        path.write_text(f"{number.value}\n")
        ctx.metric("alive", len(ALIVE))
        ctx.metric("candidates", 1)
        return {"files": [path]}


STAGES = {s.name: f"support_toys:{s.__name__}" for s in (ToyRead, ToyAdd, ToySave)}

WORKFLOW = """
version = 1
name = "sum"
[[steps]]
id = "first"
stage = "toy_read"
inputs = { path = "a" }
[[steps]]
id = "second"
stage = "toy_read"
inputs = { path = "b" }
[[steps]]
stage = "toy_add"
inputs = { left = "a", right = "b" }
[[steps]]
stage = "toy_save"
inputs = { number = "sum" }
"""
