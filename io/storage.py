# SPDX-License-Identifier: BSD-3-Clause
"""Byte ranges of files and of memory, whole-file compression, and the one way files are written: whole or not at all.

`skydelta.io.routes` chooses where the bytes come from.
"""

from __future__ import annotations

import bz2
import errno
import lzma
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from skydelta.errors import ConfigError, InputError
from skydelta.kernels.decode import expand_lzw

CONTAINERS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x1f\x9d": "LZW", b"PK\x03\x04": "zip"}
"""First bytes of whole-file compressions; the suffix decides nothing."""

_INFLATE: dict[str, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(31),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lzma.LZMADecompressor,
}

_DEFLATE: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.compressobj(wbits=31),
    ".bz2": bz2.BZ2Compressor,
    ".xz": lzma.LZMACompressor,
}
"""Whole-file compressions by the suffix that asks for them. Of their headers zlib writes no time and no name."""

_UNWRITTEN = (".z", ".zip", ".zst", ".lz4")
"""Suffixes that ask for others."""

MAX_RATIO, MAX_SIZE = 200, 1 << 30
"""Expansion above which a file of more than a gigabyte is not believed (images of nothing but zeros reach 1000)."""


SPAN = 1 << 20
"""Bytes of a positioned read that are worth a call of their own."""


class Content(Protocol):
    """The bytes of one file.

    Attributes
    ----------
    span : int
        Bytes that are worth one request: smaller pieces cost more than they save.
    """

    span: int

    @property
    def size(self) -> int:
        """Number of bytes."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """At most ``size`` bytes from ``offset``; fewer only at the end of the file."""
        ...

    def read_into(self, offset: int, out: np.ndarray) -> int:
        """Fill uint8 (n,) from ``offset``; the bytes read, fewer only at the end of the file. Thread-safe."""
        ...

    def close(self) -> None: ...


class _File:
    """Byte ranges by positioned reads: nothing is mapped, so a file that shrinks meanwhile cannot kill the process."""

    span = SPAN

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open("rb", buffering=0)
        except FileNotFoundError:
            raise InputError(f"{path}: no such file") from None
        except (OSError, ValueError) as e:
            number = getattr(e, "errno", None)
            raise InputError(f"{path}: cannot be opened: {getattr(e, 'strerror', e)}", errno=number) from None
        self.size = os.fstat(self._file.fileno()).st_size

    def read(self, offset: int, size: int) -> bytes:
        parts, wanted = [], size
        while wanted > 0:
            try:
                part = os.pread(self._file.fileno(), min(wanted, 1 << 30), offset)
            except OSError as e:
                raise InputError(
                    f"{self._path}: cannot be read at byte {offset}: {e.strerror}", errno=e.errno
                ) from None
            if not part:
                break
            parts.append(part)
            offset += len(part)
            wanted -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, offset: int, out: np.ndarray) -> int:
        view, done = out.data, 0
        while done < len(view):
            try:
                got = os.preadv(self._file.fileno(), [view[done : done + (1 << 30)]], offset + done)
            except OSError as e:
                where = f"{self._path}: cannot be read at byte {offset + done}"
                raise InputError(f"{where}: {e.strerror}", errno=e.errno) from None
            if not got:
                break
            done += got
        return done

    def close(self) -> None:
        self._file.close()


class Memory:
    """Bytes already in host memory."""

    span = SPAN

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]

    def read_into(self, offset: int, out: np.ndarray) -> int:
        got = max(min(len(out), self.size - offset), 0)
        out[:got] = np.frombuffer(self._data, np.uint8, got, offset if got else 0)
        return got

    def close(self) -> None:
        self._data = b""


def open_path(path: Path) -> Content:
    """A file as it is stored.

    Raises
    ------
    InputError
        Missing, a directory or unreadable.
    """
    if os.path.isdir(path):
        raise InputError(f"{path}: is a directory; a file is needed")
    return _File(path)


def expanded(content: Content, label: str) -> Content:
    """The content itself, or what its whole-file compression holds; then the content is closed.

    Raises
    ------
    InputError
        Empty, or a compression that cannot be undone.
    """
    if content.size == 0:
        raise InputError(f"{label}: is empty (0 bytes)")
    kind = container(content.read(0, 8))
    if kind is None:
        return content
    try:
        return Memory(_decompress(label, kind, content.read(0, content.size)))
    finally:
        content.close()


def container(head: bytes) -> str | None:
    """Whole-file compression by its first bytes, or None."""
    return next((kind for magic, kind in CONTAINERS.items() if head.startswith(magic)), None)


def _decompress(path: str, kind: str, data: bytes) -> bytes:
    limit = max(MAX_SIZE, MAX_RATIO * len(data))
    if kind == "LZW":
        found = expand_lzw(np.frombuffer(data, np.uint8), limit)
        if found is None:
            raise InputError(f"{path}: damaged LZW stream of {len(data)} bytes")
        return found.tobytes()
    if kind not in _INFLATE:
        raise InputError(
            f"{path}: whole-file {kind} compression cannot be read; allowed: {', '.join(_INFLATE)}, LZW "
            "(decompress it first)"
        )
    magic = next(m for m, name in CONTAINERS.items() if name == kind)
    parts: list[bytes] = []
    size, rest = 0, data
    try:
        # members may follow each other; padding behind the last one is ignored
        while rest.startswith(magic) or not parts:
            member = _INFLATE[kind]()
            part = member.decompress(rest, limit + 1 - size)
            parts.append(part)
            size += len(part)
            if size > limit:
                raise InputError(f"{path}: {len(data)} {kind} bytes hold more than {limit} bytes")
            if not member.eof:
                raise EOFError("the stream ends early")
            rest = member.unused_data
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as e:
        raise InputError(f"{path}: damaged {kind} stream of {len(data)} bytes: {e}") from None
    return b"".join(parts)


def write_bytes(path: Path, *parts: bytes | np.ndarray) -> Path:
    """Write under a temporary name in the same folder, flush to disk, rename; nothing is left behind on failure.

    The parts follow each other; arrays are uint8 (n,). A name that ends in .gz, .bz2 or .xz compresses them; the same
    parts give the same bytes. A symbolic link is followed: the file that it names is replaced.
    A process that is killed meanwhile leaves what was at ``path`` before, and a hidden ``.NAME.*.part`` beside it.

    Raises
    ------
    InputError
        The folder is missing or cannot be written, the disk is full, or ``path`` is there and no regular file.
    ConfigError
        The name asks for a whole-file compression that is not written.
    """
    temporary, asked, path = None, path, _written(path)
    try:
        fd, temporary = _part(path)
        with os.fdopen(fd, "wb", buffering=0) as file:
            for part in _packed(asked, parts):
                _write_all(file.fileno(), part)
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
        _flush_folder(path.parent)
    except (OSError, ValueError) as e:
        raise _unwritable(asked, e) from None
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
    return asked


def _packed(path: Path, parts: tuple[bytes | np.ndarray, ...]) -> Iterator[memoryview]:
    """The parts as the suffix wants them."""
    pieces = (part.data if isinstance(part, np.ndarray) else memoryview(part) for part in parts)
    make = _DEFLATE.get(path.suffix.lower())
    if make is None:
        yield from pieces
        return
    stream = make()
    for piece in pieces:
        yield memoryview(stream.compress(piece))
    yield memoryview(stream.flush())


def check_writable(path: Path) -> None:
    """Raise what `write_bytes` would, before the work that leads to it; nothing changes.

    Raises
    ------
    InputError
        The folder is missing or takes no file, or ``path`` is there and no regular file.
    ConfigError
        The name asks for a whole-file compression that is not written.
    """
    target = _written(path)
    if os.path.isdir(target):
        raise _unwritable(path, IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))
    _try_part(path, target)


def check_folder(path: Path) -> None:
    """The same for a folder that takes files, or can be made.

    Raises
    ------
    InputError
        It takes no file; where it is missing, the folder that it would be in takes none.
    """
    there = path
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    _try_part(path, there / path.name)


def _try_part(asked: Path, path: Path) -> None:
    """Make and remove the temporary file of `write_bytes`."""
    try:
        fd, temporary = _part(path)
        os.close(fd)
        os.unlink(temporary)
    except (OSError, ValueError) as e:
        raise _unwritable(asked, e) from None


def _written(path: Path) -> Path:
    """The file that is written where ``path`` is asked for."""
    if path.suffix.lower() in _UNWRITTEN:
        raise ConfigError(
            f"{path}: {path.suffix} cannot be written; allowed are {', '.join(_DEFLATE)}, or none of these"
        )
    # os.path answers where pathlib raises: a folder above may be closed, a name too long
    target = Path(os.path.realpath(path)) if os.path.islink(path) else path
    if os.path.exists(target) and not os.path.isfile(target) and not os.path.isdir(target):
        raise InputError(f"{path}: cannot be written: it is a device or a pipe; a regular file is needed")
    return target


def _part(path: Path) -> tuple[int, str]:
    """A temporary file beside another: descriptor and path."""
    return tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)


def _unwritable(path: Path, e: OSError | ValueError) -> InputError:
    why = getattr(e, "strerror", None) or e
    return InputError(f"{path}: cannot be written: {why}", errno=getattr(e, "errno", None))


def _write_all(fd: int, part: memoryview) -> None:
    """All of a buffer: one call may take less of it."""
    while len(part):
        part = part[os.write(fd, part[: 1 << 30]) :]


def _flush_folder(folder: Path) -> None:
    """Make a rename last through a loss of power; file systems that cannot flush a folder say so and need not."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as e:
        if e.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(fd)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
