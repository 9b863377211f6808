# SPDX-License-Identifier: BSD-3-Clause
"""The folder of a run: receipts, resume, the lock."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from skydelta.errors import ConfigError
from skydelta.pipeline.items import WorkItem
from skydelta.pipeline.workflow import Workflow


def digest(path: Path) -> str:
    """sha256 of a file's bytes."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def plain(value: Any) -> Any:
    """A value as JSON has it: numpy scalars and arrays unpacked, NaN and infinity as null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return str(value)


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a scratch file beside ``path``, then rename it: the file is whole or absent."""
    scratch = path.with_name(f".{path.name}.part")
    write(scratch)
    with scratch.open("rb") as f:
        os.fsync(f.fileno())
    scratch.replace(path)


def write_json(path: Path, data: Any) -> None:
    """Write an object as JSON, whole or not at all."""
    text = json.dumps(plain(data), indent=1) + "\n"
    write_atomically(path, lambda scratch: scratch.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> dict[str, Any] | None:
    """The file's object, or None when it is missing or damaged."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


class RunFolder:
    """Paths of a run and what is already done in it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def item(self, item: WorkItem) -> Path:
        return self.root / "items" / item.id

    def receipt(self, item: WorkItem) -> Path:
        return self.item(item) / "receipt.json"

    def open(self, workflow: Workflow, overwrite: bool) -> None:
        """Make the folder, or accept it as an earlier run of the same workflow.

        Raises
        ------
        ConfigError
            The folder holds a run of another workflow, or files that are no run.
        """
        earlier = read_json(self.root / "run.json")
        if (
            earlier is None
            and self.root.is_dir()
            and any(p.name != ".lock" for p in self.root.iterdir())
            and not overwrite
        ):
            raise ConfigError(f"{self.root}: not empty and no run; choose another folder, or --overwrite")
        if earlier is not None and not overwrite and earlier.get("workflow") != plain(workflow.described()):
            raise ConfigError(
                f"{self.root}: holds a run of another workflow or configuration ({earlier.get('name')!r}); "
                "choose another folder, or --overwrite"
            )
        (self.root / "items").mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs out; the lock goes with the process that holds it.

        Raises
        ------
        ConfigError
            Another process is running in this folder.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / ".lock").open("w") as f:
            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"{self.root}: another process is running in this folder") from None
            yield

    def done(self, item: WorkItem, identity: str) -> dict[str, Any] | None:
        """The receipt of an item that is done: same identity, every output there with its recorded bytes."""
        receipt = read_json(self.receipt(item))
        if receipt is None or receipt.get("status") != "done" or receipt.get("identity") != identity:
            return None
        outputs = receipt.get("outputs", {})
        for name, sha in outputs.items():
            path = self.item(item) / name
            if not path.is_file() or digest(path) != sha:
                return None
        return receipt


def identity(workflow: Workflow, item: WorkItem, extra: list[Path]) -> str:
    """What an item's results depend on: steps with their configuration and versions, and the bytes of the inputs."""
    inputs = {name: digest(path) if path.is_file() else None for name, path in sorted(item.files().items())}
    inputs |= {f"plane {i}": digest(path) for i, path in enumerate(extra) if path.is_file()}
    text = json.dumps({"workflow": plain(workflow.described()), "inputs": inputs, "hdus": _hdus(item)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _hdus(item: WorkItem) -> dict[str, str]:
    """The ``[EXT]`` part of each input: it decides what is read, the folder does not."""
    return {name: path[len(str(item.files()[name])) :] for name, path in item.inputs.items()}
