# SPDX-License-Identifier: BSD-3-Clause
"""KvikIO: bytes of local files straight into device memory, through GPUDirect Storage or KvikIO's own host buffers.

Without a device KvikIO raises or never returns, so nothing of it is imported then. Where there is one, a child process
reads a file first, within a time limit; what it sees goes into `probe`. A file on which KvikIO fails is read again in
its compatibility mode, and if that fails too, this process reads every file in another way from then on.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from skydelta.errors import ConfigError
from skydelta.kernels.backend import Array, Backend, cuda_device_count, cupy, to_host
from skydelta.kernels.core.devices import active

log = logging.getLogger(__name__)

PAGE = 4096
"""Offsets and sizes that GPUDirect Storage takes as they are."""

THREADS, TASK = 16, 4 << 20
"""Threads of KvikIO, and bytes of each of their reads."""

TIME_LIMIT = 60.0
"""Seconds that the child process of the probe may take, with the start of Python and of the device."""

SWITCH = "SKYDELTA_KVIKIO"
"""Environment variable: auto (where the nvidia-fs driver is loaded), on or off."""

NVIDIA_FS = Path("/proc/driver/nvidia-fs")

_PROBED = 1 << 20
_PROBING = threading.Lock()  # readers of many files begin together; one child process answers all


@dataclass(frozen=True)
class Probe:
    """What a child process found.

    Attributes
    ----------
    usable : bool
    why : str
        Why not; else which of KvikIO's ways carried the bytes.
    seen : dict
        Version, compatibility mode, bytes by KvikIO's own statistics (26.10 and later), reads of the nvidia-fs driver.
    """

    usable: bool
    why: str
    seen: dict[str, Any] = field(default_factory=dict)


def wanted() -> tuple[bool, str]:
    """Whether this machine and the user ask for KvikIO, and why not.

    Raises
    ------
    ConfigError
        `SWITCH` holds something else than auto, on, off.
    """
    asked = os.environ.get(SWITCH, "auto")
    if asked not in ("auto", "on", "off"):
        raise ConfigError(f"{SWITCH} = {asked!r}; allowed are auto, on, off")
    if asked == "off":
        return False, f"{SWITCH} = off"
    count, why = cuda_device_count()
    if not count:
        return False, f"{why}, so KvikIO is not touched"
    if asked == "auto" and not NVIDIA_FS.exists():
        return False, f"the nvidia-fs driver is not loaded ({SWITCH}=on takes KvikIO's host buffers)"
    return True, ""


@functools.cache
def probe(index: int = 0) -> Probe:
    """Read a small file through KvikIO in a child process; once for each device and process."""
    asked, why = wanted()
    if not asked:
        return Probe(False, why)
    command = [sys.executable, "-c", f"from skydelta.io import direct; direct.child({index})"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return Probe(False, f"KvikIO did not return within {TIME_LIMIT:g} s")
    except OSError as e:
        return Probe(False, f"no child process can be started: {e.strerror}")
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        said = done.stderr.strip().splitlines()
        return Probe(False, f"KvikIO fails: {said[-1] if said else f'exit code {done.returncode}'}")
    seen = json.loads(lines[-1])
    used = [name for name, size in seen["by_backend"].items() if size]
    carried = ", ".join(used) or ("host buffers" if seen["compatibility_mode"] else "cuFile")
    return Probe(True, carried, seen)


def child(index: int) -> None:
    """What runs in the child process: reads ranges that are and are not on pages, compares, prints JSON.

    Raises
    ------
    ValueError
        Other bytes came back.
    """
    backend = Backend("cuda", index, "cuda")
    pattern = np.random.default_rng(0).integers(0, 256, _PROBED + 77, np.uint8)
    with active(backend), tempfile.TemporaryDirectory() as folder:
        cupy().empty(1)  # the device's context comes before the first file
        path = Path(folder) / "probe"
        path.write_bytes(pattern.tobytes())
        before = driver_reads()
        monitor = _monitor()
        file = _Handle(path, len(pattern))
        try:
            for start, size in ((0, _PROBED), (2880, 5000), (_PROBED - 3, 80)):
                if to_host(file.read(start, size, backend)).tobytes() != pattern[start : start + size].tobytes():
                    raise ValueError(f"bytes {start} to {start + size} came back changed")
        finally:
            file.close()
        after = driver_reads()
        module = _kvikio()
        seen = {
            "version": getattr(module, "__version__", "?"),
            "compatibility_mode": bool(module.defaults.is_compat_mode_preferred()),
            "by_backend": monitor(),
            "nvidia_fs": {key: after[key] - before.get(key, 0) for key in after},
        }
    sys.stdout.write(json.dumps(seen) + "\n")


def driver_reads() -> dict[str, int]:
    """Counters of the reads that the nvidia-fs driver did; empty without it."""
    try:
        text = (NVIDIA_FS / "stats").read_text()
    except OSError:
        return {}
    line = re.search(r"^Reads\s*:(.*)$", text, re.MULTILINE)
    return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", line[1] if line else "")}


@functools.cache
def _kvikio() -> ModuleType:
    """KvikIO, set up; only with a device at hand."""
    import kvikio
    import kvikio.defaults

    kvikio.defaults.set({"num_threads": THREADS, "task_size": TASK})
    return kvikio


def _monitor() -> Any:
    """A function that gives the bytes read by each of KvikIO's ways since now; empty in older releases."""
    try:
        from kvikio.statistics import SummaryMonitor
    except ImportError:
        return dict
    monitor = SummaryMonitor()
    start = monitor.get()

    def since() -> dict[str, int]:
        found = monitor.get().since(start).by_backend
        return {name: int(totals["bytes_transferred"]) for name, totals in found.items()}

    return since


class _Handle:
    """An open file of KvikIO."""

    def __init__(self, path: Path, size: int) -> None:
        self._file = _kvikio().CuFile(str(path), "r")
        self._size = size

    def begin(self, room: _Room) -> Any:
        """Start to read; what `finish` waits for."""
        with active(room.backend):
            return self._file.pread(room.pages, room.wanted, room.low) if room.wanted else None

    def finish(self, room: _Room, future: Any) -> int:
        """Wait, and ask again for what a short read has left; how much of the array is there."""
        done = 0
        with active(room.backend):
            while future is not None and (got := future.get()) > 0:
                done += got
                left = room.wanted - done
                future = self._file.pread(room.pages[done:], left, room.low + done) if left > 0 else None
        return max(min(done - room.ahead, room.array.size), 0)

    def read(self, offset: int, size: int, backend: Backend) -> Array:
        """uint8 (size,) on the device, fewer only at the end of the file."""
        room = _Room(offset, size, self._size, backend)
        return room.array[: self.finish(room, self.begin(room))]

    def close(self) -> None:
        self._file.close()


class _Room:
    """Memory of a device for whole pages of a file.

    Attributes
    ----------
    pages : uint8 (n,)
    array : uint8 (m,)
        The part that was asked for, as far as the file goes.
    low, wanted : int
        First byte of the file and bytes to read.
    ahead : int
        Bytes before those that were asked for.
    """

    def __init__(self, offset: int, size: int, end: int, backend: Backend) -> None:
        self.backend = backend
        self.low = offset // PAGE * PAGE
        self.wanted = max(min(-(-(offset + size) // PAGE) * PAGE, end) - self.low, 0)
        self.ahead = offset - self.low
        with active(backend):
            self.pages = cupy().empty(-(-max(self.wanted, 1) // PAGE) * PAGE, np.uint8)
            # KvikIO works outside of streams: what used this memory before must have ended
            cupy().cuda.get_current_stream().synchronize()
        self.array = self.pages[self.ahead : self.ahead + max(min(size, end - offset), 0)]


class Reading:
    """Bytes of a file that KvikIO is reading.

    Attributes
    ----------
    array : uint8 (n,)
        On the device, fewer than asked for only at the end of the file; not to be used, nor let go, before `finish`.
    """

    def __init__(self, owner: Direct, room: _Room) -> None:
        self._owner, self._room, self.array = owner, room, room.array
        self._handle: _Handle | None = None
        self._error: Exception | None = None
        try:
            self._handle = owner.opened(room.backend)
            self._future = self._handle.begin(room)
        except _FAILURES as e:
            self._error = e

    def finish(self) -> int | None:
        """How many bytes are there; None where KvikIO fails."""
        try:
            if self._error is not None:
                raise self._error
            assert self._handle is not None
            return self._handle.finish(self._room, self._future)
        except _FAILURES as e:
            first = e
        return self._owner.again(self._room, self._handle, first)


_FAILURES = (RuntimeError, OSError, ValueError)


class Direct:
    """A local file as KvikIO reads it: opened at the first read, kept open. Thread-safe.

    Parameters
    ----------
    path : Path
    size : int
        Bytes of the file.
    """

    _failed = ""  # of the process: what KvikIO said when it failed in both of its modes

    def __init__(self, path: Path, size: int) -> None:
        self._path, self._size = path, size
        self._handle: _Handle | None = None
        self._left: list[_Handle] = []
        self._lock = threading.Lock()

    def start(self, offset: int, size: int, backend: Backend) -> Reading | None:
        """Begin to read onto a device; None where KvikIO cannot be used."""
        if Direct._failed or not wanted()[0]:
            return None
        with _PROBING:
            if not probe(backend.index).usable:
                return None
        return Reading(self, _Room(offset, size, self._size, backend))

    def again(self, room: _Room, failed: _Handle | None, first: Exception) -> int | None:
        """Read in compatibility mode what could not be read."""
        try:
            handle = self._reopened(failed, room.backend)
            return handle.finish(room, handle.begin(room))
        except _FAILURES as e:
            if not self._whole():
                return None  # others say so, with the bytes that there are
            Direct._failed = str(e) or type(e).__name__
            log.warning("KvikIO fails (%s; in compatibility mode: %s); files are read without it", first, e)
            return None

    def _whole(self) -> bool:
        """The file is as long as it was."""
        try:
            return os.stat(self._path).st_size >= self._size
        except OSError:
            return False

    def opened(self, backend: Backend) -> _Handle:
        with self._lock, active(backend):
            self._handle = self._handle or _Handle(self._path, self._size)
            return self._handle

    def _reopened(self, failed: _Handle | None, backend: Backend) -> _Handle:
        """The file in compatibility mode. What failed stays open to the end: other threads may be reading with it."""
        with self._lock:
            if self._handle is not None and self._handle is failed:
                self._left.append(self._handle)
                self._handle = None
            _kvikio().defaults.set({"compat_mode": _kvikio().CompatMode.ON})
        return self.opened(backend)

    def close(self) -> None:
        with self._lock:
            for handle in (*self._left, *([] if self._handle is None else [self._handle])):
                handle.close()
            self._left, self._handle = [], None
