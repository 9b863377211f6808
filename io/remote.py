# SPDX-License-Identifier: BSD-3-Clause
"""Byte ranges of files on web servers (RFC 9110, section 14), with the standard library alone.

urllib follows redirects, proxies and the system's certificates, and says exactly what a server answered; a package for
remote file systems would add an event loop and hide short answers. Small reads (headers, rows of a section) come from
blocks that are kept; large ones are one request each.
"""

from __future__ import annotations

import re
import threading
import time
import urllib.error
import urllib.request as web
from collections import OrderedDict
from http.client import HTTPException, HTTPResponse
from typing import Protocol
from urllib.parse import urlsplit

import numpy as np

from skydelta.errors import InputError
from skydelta.io.storage import SPAN, Content, Memory

TIMEOUT = 30.0
"""Seconds without a byte after which an attempt is given up."""

ATTEMPTS = 4
PAUSE = 0.2
"""Seconds before the second attempt; doubled each time."""

RETRIED = (408, 429, 500, 502, 503, 504)
BLOCK = 1 << 18
KEPT = 64
"""Blocks of `BLOCK` bytes that are kept."""

MAX_WHOLE = 1 << 32
"""Bytes above which a file is not fetched from a server that gives no ranges."""

_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})\Z")


class _Again(Exception):
    """An attempt that failed in a way that may pass."""


def _opener() -> web.OpenerDirector:
    """http and https alone: a redirect cannot lead to a local file or another protocol."""
    opener = web.OpenerDirector()
    for handler in (
        web.ProxyHandler, web.HTTPHandler, web.HTTPSHandler, web.HTTPRedirectHandler, web.HTTPDefaultErrorHandler,
        web.HTTPErrorProcessor, web.UnknownHandler,
    ):  # fmt: skip
        opener.add_handler(handler())
    return opener


def shown(url: str) -> str:
    """A URL without user, password and query: those of signed URLs are secret."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def open_url(url: str) -> Content:
    """A file on a web server; fetched whole at once if the server does not give ranges.

    Raises
    ------
    InputError
        Not there, not allowed, no answer, cut short, or too large without ranges.
    """
    label = shown(url)
    if "@" in urlsplit(url).netloc:
        raise InputError(f"{label}: user and password in a URL are not used; a signed URL is needed")
    if not urlsplit(url).hostname:
        raise InputError(f"{label}: the URL names no server")
    request = _Request(url, label)
    answer = request.first()
    return answer if isinstance(answer, Memory) else Blocks(request, *answer)


class _Request:
    """Attempts to get bytes of one URL."""

    def __init__(self, url: str, label: str) -> None:
        self._url, self._label = url, label
        self._opener = _opener()
        self._etag, self._size = "", -1

    def _error(self, message: str) -> InputError:
        return InputError(f"{self._label}: {message}")

    def _send(self, start: int, stop: int) -> HTTPResponse:
        headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity", "User-Agent": "skydelta"}
        if self._etag:
            headers["If-Range"] = self._etag
        try:
            return self._opener.open(web.Request(self._url, headers=headers), timeout=TIMEOUT)
        except urllib.error.HTTPError as e:
            with e:
                if e.code in RETRIED:
                    raise _Again(f"HTTP {e.code} {e.reason}") from None
                if e.code == 416 and start == 0:
                    raise self._error("is empty (0 bytes)") from None
                raise self._error(f"HTTP {e.code} {e.reason}") from None
        except (OSError, HTTPException) as e:
            raise _Again(f"no answer: {getattr(e, 'reason', None) or e or type(e).__name__}") from None
        except ValueError as e:
            raise self._error(f"not a URL that can be asked for: {e}") from None

    def first(self) -> Memory | tuple[int, bytes]:
        """The whole file from a server without ranges, else its size and first bytes."""
        for attempt in range(ATTEMPTS):
            try:
                return self._first()
            except _Again as e:
                why = str(e)
            time.sleep(PAUSE * 2**attempt if attempt < ATTEMPTS - 1 else 0)
        raise self._error(f"{why} ({ATTEMPTS} attempts)")

    def _first(self) -> Memory | tuple[int, bytes]:
        with self._send(0, BLOCK) as response:
            if response.status != 206:
                return Memory(self._whole(response))
            self._size = self._total(response, 0)
            etag = response.headers.get("ETag", "")
            self._etag = "" if etag.startswith("W/") else etag
            head = bytearray(min(BLOCK, self._size))
            got = _fill(response, memoryview(head))
        if got < len(head):
            raise _Again(f"the answer ends after {got} of {len(head)} bytes")
        return self._size, bytes(head)

    def _whole(self, response: HTTPResponse) -> bytes:
        length = response.headers.get("Content-Length", "")
        expected = int(length) if length.isdigit() else None
        if expected is not None and expected > MAX_WHOLE:
            raise self._error(f"the server gives no ranges; {expected} bytes at once, at most {MAX_WHOLE} are allowed")
        try:
            data = response.read(MAX_WHOLE + 1) if expected is None else response.read(expected)
        except (OSError, HTTPException) as e:
            raise _Again(f"the answer breaks off: {e}") from None
        if len(data) > MAX_WHOLE:
            raise self._error(f"the server gives no ranges; more than {MAX_WHOLE} bytes at once")
        if expected is not None and len(data) < expected:
            raise _Again(f"the answer ends after {len(data)} of {expected} bytes")
        return data

    def _total(self, response: HTTPResponse, start: int) -> int:
        said = response.headers.get("Content-Range", "")
        match = _RANGE.match(said.strip())
        if match is None or int(match[1]) != start:
            raise self._error(f"Content-Range = {said!r}; bytes from {start} of a known number were asked for")
        return int(match[3])

    def fill(self, start: int, out: memoryview) -> None:
        """All bytes from ``start``, in as many attempts as it takes and are allowed.

        Raises
        ------
        InputError
            The server cuts its answers short, is silent, or has another file by now.
        """
        done, why = 0, ""
        for attempt in range(ATTEMPTS):
            try:
                done += self._part(start + done, out[done:])
                why = f"the answers end after {done} of {len(out)} bytes"
            except _Again as e:
                why = str(e)
            if done == len(out):
                return
            time.sleep(PAUSE * 2**attempt if attempt < ATTEMPTS - 1 else 0)
        raise self._error(f"bytes {start} to {start + len(out)}: {why} ({ATTEMPTS} attempts)")

    def _part(self, start: int, out: memoryview) -> int:
        with self._send(start, start + len(out)) as response:
            if response.status != 206 or self._total(response, start) != self._size:
                raise self._error("the file on the server has changed while it was read")
            return _fill(response, out)


def _fill(response: HTTPResponse, out: memoryview) -> int:
    """Bytes of an answer until it ends or breaks off."""
    done = 0
    try:
        while done < len(out) and (got := response.readinto(out[done:])):
            done += got
    except (OSError, HTTPException):
        pass  # what has come is kept, the rest is asked for again
    return done


class Requests(Protocol):
    """Ranges of one file far away."""

    def fill(self, start: int, out: memoryview) -> None:
        """All bytes from ``start``, or an InputError. Thread-safe."""
        ...


class Blocks:
    """Byte ranges of a file far away: large ones as they are asked for, small ones from blocks that are kept.

    Parameters
    ----------
    request : Requests
    size : int
    head : bytes, optional
        The first block, where it is known.
    """

    span = 8 * SPAN

    def __init__(self, request: Requests, size: int, head: bytes | None = None) -> None:
        self._request, self.size = request, size
        self._blocks: OrderedDict[int, bytes] = OrderedDict({} if head is None else {0: head})
        self._lock = threading.Lock()

    def read(self, offset: int, size: int) -> bytes:
        out = np.empty(max(min(size, self.size - offset), 0), np.uint8)
        self.read_into(offset, out)
        return out.tobytes()

    def read_into(self, offset: int, out: np.ndarray) -> int:
        wanted = max(min(len(out), self.size - offset), 0)
        view = out.data[:wanted]
        if wanted >= BLOCK:
            self._request.fill(offset, view)
            return wanted
        done = 0
        while done < wanted:
            number, inside = divmod(offset + done, BLOCK)
            part = self._block(number)[inside : inside + wanted - done]
            view[done : done + len(part)] = part
            done += len(part)
        return done

    def _block(self, number: int) -> bytes:
        with self._lock:
            if number not in self._blocks:
                data = bytearray(min(BLOCK, self.size - number * BLOCK))
                self._request.fill(number * BLOCK, memoryview(data))
                self._blocks[number] = bytes(data)
                if len(self._blocks) > KEPT:
                    self._blocks.popitem(last=False)
            self._blocks.move_to_end(number)
            return self._blocks[number]

    def close(self) -> None:
        with self._lock:
            self._blocks.clear()
