# SPDX-License-Identifier: BSD-3-Clause
"""Byte ranges of objects in stores (s3://bucket/key), through fsspec and the package that it needs for each kind.

Who may read is decided where that package looks: its environment variables and files, and fsspec's configuration.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from skydelta.errors import InputError
from skydelta.io.remote import Blocks, shown
from skydelta.io.storage import Content

STORES = {"s3": "s3fs", "gs": "gcsfs"}
"""Scheme of a URL: package that reads it."""


def open_object(url: str) -> Content:
    """An object of which ranges are read when they are asked for.

    Raises
    ------
    InputError
        The package is missing, or the object is not there, not allowed, or no answer comes.
    """
    label, scheme = shown(url), urlsplit(url).scheme.lower()
    if "@" in urlsplit(url).netloc:
        raise InputError(f"{label}: user and password in a URL are not used; the environment of {STORES[scheme]} is")
    try:
        from fsspec.core import url_to_fs

        system, path = url_to_fs(url)
    except ImportError:
        package = STORES[scheme]
        extra = f" (pip install 'skydelta[{scheme}]')" if scheme == "s3" else ""
        raise InputError(f"{label}: {scheme} URLs need fsspec and the package {package}{extra}") from None
    except Exception as e:
        raise _error(label, e) from None
    objects = _Objects(system, path, label)
    return Blocks(objects, objects.size())


def _error(label: str, e: Exception) -> InputError:
    """Packages of stores raise what they like; the first line of it is passed on."""
    if isinstance(e, FileNotFoundError):
        return InputError(f"{label}: no such object")
    said = (str(e).strip() or type(e).__name__).splitlines()[0]
    return InputError(f"{label}: {'not allowed' if isinstance(e, PermissionError) else 'cannot be read'}: {said}")


class _Objects:
    """Requests for one object."""

    def __init__(self, system: Any, path: str, label: str) -> None:
        self._system, self._path, self._label = system, path, label

    def size(self) -> int:
        try:
            found = self._system.info(self._path)
        except Exception as e:
            raise _error(self._label, e) from None
        if found.get("type") == "directory" or found.get("size") is None:
            raise InputError(f"{self._label}: is a folder, or has no size; an object is needed")
        return int(found["size"])

    def fill(self, start: int, out: memoryview) -> None:
        """All bytes from ``start``.

        Raises
        ------
        InputError
            No answer, or fewer bytes than there were.
        """
        try:
            data = self._system.cat_file(self._path, start=start, end=start + len(out))
        except Exception as e:
            raise _error(self._label, e) from None
        if len(data) != len(out):
            raise InputError(
                f"{self._label}: {len(data)} bytes came from byte {start}, {len(out)} were there: "
                "the object has changed meanwhile"
            )
        out[:] = data
