# SPDX-License-Identifier: BSD-3-Clause
"""The folder of a run: receipts, resume, the lock."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import shutil
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from skydelta.errors import ConfigError, InputError, SkydeltaError
from skydelta.io.fits.reader import section_text, split_extension, split_section
from skydelta.io.storage import check_folder, write_bytes
from skydelta.pipeline.executors.base import WORK
from skydelta.pipeline.items import WorkItem
from skydelta.pipeline.workflow import Workflow

PASSING = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.ENOTCONN})
"""What a disk or a network file system says when it may do better a moment later."""


URGENT = (
    "misaligned", "checksum", "noise_scale", "variance_scale", "pixels_lost", "flux_scale_uncertain", "few_stamps"
)  # fmt: skip
"""Flags that a reader must see before the numbers."""


def digest(path: Path) -> str:
    """sha256 of a file's bytes."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


FRESH = 2.0
"""Seconds after a change of a file in which it may change again without its time telling."""

TURN = 60.0
"""Seconds to wait for another thread that is reading the same file; then it is read here."""

_digests: OrderedDict[tuple[Any, ...], str] = OrderedDict()
_reading: dict[tuple[Any, ...], threading.Event] = {}
_digests_lock = threading.Lock()


def _state(path: Path) -> tuple[tuple[Any, ...], bool]:
    """What changes when a file does, and whether it has changed just now."""
    s = path.stat()
    key = str(path), s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns
    return key, time.time() - max(s.st_mtime, s.st_ctime) < FRESH


def knows(path: Path) -> bool:
    """Whether the digest of a file is at hand."""
    try:
        return _state(path)[0] in _digests
    except OSError:
        return False


def known_digest(path: Path) -> str:
    """`digest`, kept for files that many items share while size, time and place on the disk are the same.

    As in git's index: of a file that has changed just now nothing is kept. Of two threads that ask for one file at the
    same time, one reads it.
    """
    key, fresh = _state(path)
    if fresh:
        return digest(path)
    with _digests_lock:
        if key in _digests:
            _digests.move_to_end(key)
            return _digests[key]
        other = _reading.get(key)
        mine = _reading.setdefault(key, threading.Event()) if other is None else None
    if other is not None and other.wait(TURN):
        with _digests_lock:
            if key in _digests:
                return _digests[key]
    try:
        found = digest(path)
        with _digests_lock:
            _digests[key] = found
            while len(_digests) > 512:
                _digests.popitem(last=False)
        return found
    finally:
        if mine is not None:
            with _digests_lock:
                _reading.pop(key, None)
            mine.set()


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


def write_json(path: Path, data: Any) -> None:
    """Write an object as JSON, whole or not at all."""
    write_bytes(path, (json.dumps(plain(data), indent=1) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """The file's object, or None when it is missing or damaged."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


SECOND = "second_pass"
"""Folder for what the items leave when they go through the second steps of a workflow."""


class RunFolder:
    """Paths of a run and what is already done in it.

    Parameters
    ----------
    root : Path
    place : str
        Folder in it that has one for each item.
    """

    def __init__(self, root: Path, place: str = "items") -> None:
        self.root, self.place = root, place

    def second(self) -> RunFolder:
        """The same run, where the items of its second pass are."""
        return RunFolder(self.root, SECOND)

    def item(self, item: WorkItem) -> Path:
        return self.root / self.place / item.id

    @contextlib.contextmanager
    def attempt(self, item: WorkItem) -> Iterator[Path]:
        """A folder for one attempt at an item; `publish` makes it the item's, else it is removed.

        Whoever is killed in the middle, or works on for a run that has ended, leaves no half item behind.
        """
        work = self.root / WORK / f"{item.id}.{uuid.uuid4().hex[:12]}"
        work.mkdir(parents=True)
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def publish(self, work: Path, item: WorkItem) -> None:
        """Put the folder of an attempt in the item's place."""
        target = self.item(item)
        target.parent.mkdir(exist_ok=True)
        self._remove(target)
        work.replace(target)

    def receipt(self, item: WorkItem) -> Path:
        return self.item(item) / "receipt.json"

    def check(self, workflow: Workflow, overwrite: bool) -> bool:
        """Refuse the folder unless it is empty or an earlier run of the same workflow; nothing changes.

        Returns
        -------
        bool
            Whether it holds the run of another workflow, which is to be overwritten.

        Raises
        ------
        ConfigError
            The folder holds a run of another workflow, or files that are no run.
        InputError
            The folder cannot be written to.
        """
        check_folder(self.root)
        earlier = read_json(self.root / "run.json")
        if earlier is None:
            names = [p.name for p in self.root.iterdir()] if self.root.exists() else []
            if not overwrite and any(not name.startswith(".") for name in names):
                raise ConfigError(f"{self.root}: not empty and no run; choose another folder, or --overwrite")
            return False
        other = earlier.get("workflow") != plain(workflow.described())
        if other and not overwrite:
            raise ConfigError(
                f"{self.root}: holds a run of another workflow or configuration ({earlier.get('name')!r}); "
                "choose another folder, or --overwrite"
            )
        return bool(other)

    def open(self, workflow: Workflow, overwrite: bool) -> None:
        """Accept the folder (`check`); to overwrite the run of another workflow removes its items."""
        if self.check(workflow, overwrite):
            for place in ("items", SECOND):
                shutil.rmtree(self.root / place, ignore_errors=True)
        self.sweep()

    def sweep(self) -> None:
        """Remove what attempts that were killed have left."""
        with contextlib.suppress(OSError):
            for attempt in list((self.root / WORK).iterdir()):
                self._remove(attempt)
            (self.root / WORK).rmdir()

    def _remove(self, path: Path) -> None:
        """Remove a file or folder of this run: renamed first, so that nobody finds a half of it or publishes one."""
        away = self.root / WORK / f".{uuid.uuid4().hex}"
        with contextlib.suppress(OSError):
            away.parent.mkdir(exist_ok=True)
            path.replace(away)
            if away.is_dir():
                shutil.rmtree(away, ignore_errors=True)
            else:
                away.unlink()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs out; the lock goes with the process that holds it.

        A run that ends before it has left ``run.json`` takes its lock, and the folders that were made, away again.

        Raises
        ------
        ConfigError
            Another process is running in this folder.
        InputError
            The folder cannot be written to.
        """
        path = self.root / ".lock"
        made = [p for p in (self.root, *self.root.parents) if not p.exists()]
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = path.open("w")
            while not self._held(lock, path):
                lock = path.open("w")
        except OSError as e:
            raise InputError(f"{self.root}: cannot be written: {e.strerror or e}") from None
        with lock:
            try:
                yield
            finally:
                if not (self.root / "run.json").exists():
                    with contextlib.suppress(OSError):
                        path.unlink()
                        for folder in made:
                            folder.rmdir()

    def _held(self, lock: TextIO, path: Path) -> bool:
        """Lock an open file; False, and closed, where whoever had it has taken it away meanwhile."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(lock.fileno())):
                    return True
        except BlockingIOError:
            lock.close()
            raise ConfigError(f"{self.root}: another process is running in this folder") from None
        lock.close()
        return False

    def all(self) -> Iterator[dict[str, Any]]:
        """Every receipt in the folder, by id, one at a time: also those of earlier runs of the same workflow."""
        for path in sorted((self.root / self.place).glob("*/receipt.json"), key=lambda p: p.parent.name):
            receipt = read_json(path)
            if receipt is not None:
                yield receipt

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


def flag_lines(steps: Iterable[tuple[str, Mapping[str, str]]]) -> list[tuple[str, str]]:
    """Flags of the steps of an item, `URGENT` ones first.

    Parameters
    ----------
    steps : iterable of (id, flags)

    Returns
    -------
    list of (name, text)
        The name has that of the step behind it where several steps say different things.
    """
    said: dict[str, dict[str, str]] = {}
    for step, flags in steps:
        for name, text in flags.items():
            said.setdefault(name, {}).setdefault(text, step)
    order = {name: k for k, name in enumerate(URGENT)}
    return [
        (f"{name} ({step})" if len(texts) > 1 else name, text)
        for name, texts in sorted(said.items(), key=lambda flag: order.get(flag[0], len(order)))
        for text, step in texts.items()
    ]


def urgent(name: str) -> bool:
    """Whether a flag, as `flag_lines` names it, says that the numbers cannot be trusted."""
    return name.partition(" ")[0] in URGENT


def passing(error: BaseException) -> bool:
    """Whether a fault of storage can pass: another attempt may find the file well."""
    number = error.numbers.get("errno") if isinstance(error, SkydeltaError) else getattr(error, "errno", None)
    return number in PASSING or isinstance(error, TimeoutError)


def identity(workflow: Workflow, item: WorkItem) -> str:
    """What an item's results depend on: steps with their configuration and versions, and the bytes of all files.

    Parameters
    ----------
    workflow : Workflow
        With the settings of the item.

    Raises
    ------
    OSError
        A file cannot be read now, but perhaps later (`passing`).
    """
    contents = {name: _content(path) for name, path in files_of(workflow, item).items()}
    text = json.dumps({"workflow": plain(workflow.described()), "files": contents}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def files_of(workflow: Workflow, item: WorkItem) -> dict[str, str]:
    """What an item reads, FILE or FILE[EXT] by name: its inputs, and the files that the settings of steps name."""
    files = dict(item.inputs)
    for step in workflow.steps:
        files |= {f"steps.{step.id}.{key}": path for key, path in step.files(workflow.folder).items()}
    return files


def path_of(source: str) -> Path:
    """The file of FILE, FILE[EXT] or FILE[EXT][section]."""
    return Path(split_extension(split_section(source)[0])[0])


def _content(source: str) -> tuple[str, str]:
    """What is read from FILE or FILE[EXT]: the digest of its bytes, empty when it cannot be read, and EXT and section.

    Raises
    ------
    OSError
        It cannot be read now, but perhaps later (`passing`).
    """
    whole, section = split_section(source)
    path, extension = split_extension(whole)
    part = (extension or "") + ("" if section is None else section_text(section))
    try:
        return known_digest(Path(path)), part
    except OSError as e:
        if passing(e):
            raise
        return "", part
