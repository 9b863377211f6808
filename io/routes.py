# SPDX-License-Identifier: BSD-3-Clause
"""Where the bytes of a source come from: a file, memory, a file object or a server; every read is counted."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np

from skydelta.errors import ConfigError, InputError
from skydelta.io.direct import Direct, Reading
from skydelta.io.remote import open_url, shown
from skydelta.io.storage import SPAN, Content, Memory, expanded, open_path
from skydelta.io.stores import STORES, open_object
from skydelta.kernels.backend import Backend

ROUTES = {
    "posix": "positioned reads of a local file",
    "kvikio": "KvikIO, from a local file into device memory",
    "http": "range requests to a web server",
    "object store": "ranges of an object, through fsspec",
    "file object": "seek and read on an open binary file, one at a time",
    "memory": "bytes that are in memory already",
}
"""Names of the routes as they stand in notes and receipts."""

REQUESTS = 4
"""Requests to one server at a time."""

_FAR = ("http", "object store")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://")


class Counted:
    """A content that counts what is read from it. Thread-safe.

    Attributes
    ----------
    route : str
        A key of `ROUTES`.
    reads, bytes : int
        Calls so far and the bytes that they gave.
    device_reads, device_bytes : int
        The same of what KvikIO has read into a device.
    """

    def __init__(self, content: Content, route: str, direct: Direct | None = None) -> None:
        self._content, self.route, self._direct = content, route, direct
        self.size, self.span = content.size, content.span
        self.reads = self.bytes = self.device_reads = self.device_bytes = 0
        self._lock = threading.Lock()

    def _count(self, got: int) -> None:
        with self._lock:
            self.reads += 1
            self.bytes += got

    def start(self, offset: int, size: int, backend: Backend) -> Reading | None:
        """Begin to read into a device; None where that takes host memory. What came of it is told to `arrived`."""
        return None if self._direct is None else self._direct.start(offset, size, backend)

    def arrived(self, got: int) -> None:
        """Count a read into a device."""
        with self._lock:
            self.device_reads += 1
            self.device_bytes += got

    def read(self, offset: int, size: int) -> bytes:
        data = self._content.read(offset, size)
        self._count(len(data))
        return data

    def read_into(self, offset: int, out: np.ndarray) -> int:
        """As of every content; from a server, pieces of a large span are asked for at the same time."""
        if self.route not in _FAR or len(out) < 2 * self.span:
            got = self._content.read_into(offset, out)
            self._count(got)
            return got
        starts = range(0, len(out), self.span)

        def piece(start: int) -> int:
            got = self._content.read_into(offset + start, out[start : start + self.span])
            self._count(got)
            return got

        with ThreadPoolExecutor(min(REQUESTS, len(starts))) as pool:
            return sum(pool.map(piece, starts))

    def close(self) -> None:
        self._content.close()
        if self._direct is not None:
            self._direct.close()


class _Object:
    """A seekable binary file object; it is left open, and where it stood."""

    span = SPAN

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._lock = file, threading.Lock()
        self._place = file.tell()
        self.size = file.seek(0, 2)

    def read(self, offset: int, size: int) -> bytes:
        with self._lock:
            self._file.seek(offset)
            parts, wanted = [], size
            while wanted > 0 and (part := self._file.read(min(wanted, 1 << 30))):
                parts.append(part)
                wanted -= len(part)
        return b"".join(parts)

    def read_into(self, offset: int, out: np.ndarray) -> int:
        data = self.read(offset, len(out))
        out[: len(data)] = np.frombuffer(data, np.uint8)
        return len(data)

    def close(self) -> None:
        if not self._file.closed:
            self._file.seek(self._place)


def is_url(source: Any) -> bool:
    """``scheme://...``"""
    return isinstance(source, str) and _SCHEME.match(source) is not None


def open_source(source: Any) -> tuple[Content, Counted, str]:
    """Open anything that holds the bytes of one file.

    Parameters
    ----------
    source : str, Path, http(s), s3, gs or file URL, bytes, or binary file object
        A file object is read from its first byte, and left open where it stood; one that cannot seek is read to its
        end.

    Returns
    -------
    content : Content
        What a whole-file compression holds, if there is one.
    counted : Counted
        What is read from the source itself.
    label : str
        For messages and notes; of a URL, without what may be secret.

    Raises
    ------
    InputError
        Missing, empty, unreadable, or a kind of URL that cannot be read.
    """
    raw, route, label = _open(source)
    counted = Counted(raw, route, Direct(_local(source), raw.size) if route == "posix" else None)
    try:
        return expanded(counted, label), counted, label
    except BaseException:
        counted.close()
        raise


def _open(source: Any) -> tuple[Content, str, str]:
    if isinstance(source, bytes | bytearray | memoryview):
        return Memory(bytes(source)), "memory", "bytes"
    if hasattr(source, "read"):
        label = str(getattr(source, "name", "file object"))
        return _of_object(source, label), "file object", label
    if is_url(source):
        scheme = urlsplit(source).scheme.lower()
        if scheme in ("http", "https"):
            return open_url(source), "http", shown(source)
        if scheme in STORES:
            return open_object(source), "object store", shown(source)
        if scheme != "file":
            raise InputError(
                f"{shown(source)}: {scheme} cannot be read; http, https, {', '.join(STORES)}, file URLs and paths can "
                "(object stores give out https URLs)"
            )
        return open_path(_local(source)), "posix", str(_local(source))
    if not isinstance(source, str | Path):
        raise ConfigError(
            f"{type(source).__name__} is no file; a path, URL, bytes or binary file object is needed "
            "(skydelta.read takes arrays)"
        )
    return open_path(_local(source)), "posix", str(source)


def _local(source: str | Path) -> Path:
    """Path of a file, given as one or as a file URL."""
    return Path(url2pathname(urlsplit(str(source)).path) if is_url(source) else source)


def _of_object(file: Any, label: str) -> Content:
    try:
        seekable = file.seekable()
        if not seekable:
            data = file.read()
        elif not isinstance(data := file.read(0), bytes):
            seekable = False
        content = _Object(file) if seekable else None
    except (OSError, ValueError, AttributeError) as e:
        raise InputError(f"{label}: cannot be read: {e}") from None
    if content is not None:
        return content
    if not isinstance(data, bytes):
        raise InputError(f"{label}: gives {type(data).__name__}; a file opened as binary is needed")
    return Memory(data)


def summary(opened: Iterable[Counted]) -> dict[str, dict[str, int]]:
    """Files, reads and bytes by route, JSON-able."""
    out: dict[str, dict[str, int]] = {}
    for counted in opened:
        for route, reads, size in (
            (counted.route, counted.reads, counted.bytes),
            ("kvikio", counted.device_reads, counted.device_bytes),
        ):
            if reads or route == counted.route:
                entry = out.setdefault(route, {"files": 0, "reads": 0, "bytes": 0})
                entry["files"] += 1
                entry["reads"] += reads
                entry["bytes"] += size
    return out
