# SPDX-License-Identifier: BSD-3-Clause
"""Many files as a stream of exposures: the next ones are read and decoded while the last one is used."""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numba
import numpy as np

from skydelta.errors import ConfigError, SkydeltaError
from skydelta.io.exposure import Exposure
from skydelta.io.fits.layout import STORED
from skydelta.io.fits.reader import FitsFile, Source, open_file, role, split_extension
from skydelta.io.read import read
from skydelta.io.routes import is_url
from skydelta.io.storage import container
from skydelta.kernels.backend import Backend, cupy, resolve
from skydelta.kernels.core.devices import DeviceSet, active, streams

WORK = 44
"""Bytes a pixel that `read` needs at its peak besides the pixels as stored; measured over the layouts of the tests."""

EXPANSION = 64
"""Bytes for each stored byte of a file with whole-file compression, until its headers are known."""

SHARE = 4
"""Part of the free memory that is the default budget: one in so many."""

_PLANES = ("variance", "sigma", "weight", "mask")


def read_many(
    paths: Iterable[Any],
    hdus: str | int | Sequence[str | int] | None = None,
    *,
    device: str = "auto",
    depth: int = 2,
    budget: int | None = None,
    on_error: Literal["raise", "yield"] = "raise",
    **options: Any,
) -> Iterator[Exposure | SkydeltaError]:
    """Read files one after another, each as `skydelta.read` would, ahead of their use.

    Parameters
    ----------
    paths : iterable of str, Path, URL, bytes or binary file objects
        ``FILE[EXT]`` names an HDU. Taken one by one, so that a list without end will do.
    hdus : str, int or sequence of them, optional
        An HDU of every file, or several: then one exposure each, file by file. By rule when left out.
    device : str
        auto, cpu, cuda or cuda:N. On a device, each of the threads reads, sends and decodes on a stream of its own.
    depth : int
        Exposures that are read ahead, by as many threads.
    budget : int, optional
        Bytes of host memory for what is read ahead and what was given out last, predicted from the headers before
        pixels are read; a quarter of the free memory, or of the device's where that is less, when left out. What alone
        exceeds it is read alone.
    on_error : {"raise", "yield"}
        raise: the first file that cannot be read ends the iteration with its error, after all before it were given.
        yield: the error takes its place in the stream, and the others follow.
    **options
        Of `skydelta.read`, the same for all.

    Yields
    ------
    Exposure
        In the order asked for; the same as from `skydelta.read`, whatever depth and budget are. With
        ``on_error="yield"`` also SkydeltaError.

    Raises
    ------
    ConfigError
        A depth or budget below 1, or another ``on_error``.
    InputError
        As `skydelta.read`, at the turn of the file.

    Notes
    -----
    Closing the iterator, or leaving it to the garbage collector, finishes what is being read, starts nothing else and
    joins its threads.
    """
    if isinstance(paths, str | bytes | Path):
        raise ConfigError(f"read_many: a list of sources is needed, {type(paths).__name__} was given")
    if on_error not in ("raise", "yield"):
        raise ConfigError(f"read_many: on_error {on_error!r}; allowed are raise, yield")
    if depth < 1:
        raise ConfigError(f"read_many: depth = {depth}; at least 1 is needed")
    backend = resolve(device)
    if budget is None:
        free = free_memory()
        budget = (min(free, DeviceSet.of(backend).memory_budget()) if backend.is_gpu else free) // SHARE
    if budget < 1:
        raise ConfigError(f"read_many: budget = {budget} bytes; at least 1 is needed")
    several = isinstance(hdus, Sequence) and not isinstance(hdus, str)
    wanted: list[Any] = list(hdus) if several else [hdus]  # type: ignore[arg-type]
    jobs = ((source, hdu) for source in paths for hdu in wanted)
    return _stream(jobs, backend, depth, _Budget(budget), on_error == "yield", options)


def _stream(
    jobs: Iterator[tuple[Any, Any]],
    backend: Backend,
    depth: int,
    budget: _Budget,
    give_errors: bool,
    options: dict[str, Any],
) -> Iterator[Exposure | SkydeltaError]:
    share = max(numba.get_num_threads() // depth, 1)
    ahead: deque[tuple[int, Future[Exposure]]] = deque()
    pool = ThreadPoolExecutor(depth, "skydelta-read", numba.set_num_threads, (share,))
    turns, own = itertools.count(), threading.local()

    def top_up() -> None:
        while len(ahead) < depth and (job := next(jobs, None)) is not None:
            turn = next(turns)
            ahead.append((turn, pool.submit(_one, budget, turn, *job, backend, own, options)))

    try:
        top_up()
        while ahead:
            given, future = ahead.popleft()
            try:
                found: Exposure | SkydeltaError = _taken_over(future.result(), backend)
            except SkydeltaError as e:
                if not give_errors:
                    raise
                found = e
            del future  # it holds the exposure too
            top_up()
            yield found
            del found
            budget.release(given)
    finally:
        budget.close()
        pool.shutdown(wait=True, cancel_futures=True)


def _taken_over(exposure: Exposure, backend: Backend) -> Exposure:
    """The exposure in memory of the current stream: that of a reader's stream is used again for what it reads next."""
    if not backend.is_gpu:
        return exposure
    with active(backend):
        names = ("image", "variance", "mask", "kernel_error")
        planes = {n: p.copy() for n in names if (p := getattr(exposure, n)) is not None}
        cupy().cuda.get_current_stream().synchronize()
    return exposure.with_(**planes)


def _one(
    budget: _Budget,
    turn: int,
    source: Any,
    hdu: Any,
    backend: Backend,
    own: threading.local,
    options: dict[str, Any],
) -> Exposure:
    """Headers first, then pixels as soon as they fit, on the stream of this thread."""
    if not hasattr(own, "stream"):
        (own.stream,) = streams(backend, 1)
    packed = _packed_size(source)
    try:
        if packed:
            budget.reserve(turn, EXPANSION * packed)
        path, extension = split_extension(str(source)) if isinstance(source, str | Path) else (source, None)
        if extension is not None and hdu is not None and str(hdu) != extension:
            raise ConfigError(f"read_many: {source} names HDU {extension!r}, hdus= names {hdu!r}; one is allowed")
        with open_file(path) as file:
            hdu = extension if extension is not None else hdu
            need = predicted_bytes(file, hdu, tuple(k for k in _PLANES if options.get(k) is not None))
            (budget.adjust if packed else budget.reserve)(turn, need)
            with active(backend, own.stream):
                exposure = read(file, image=hdu, device=backend.name, **options)
                if own.stream is not None:
                    own.stream.synchronize()
        budget.adjust(turn, exposure.nbytes)
        return exposure
    except BaseException:
        budget.release(turn)
        raise


def predicted_bytes(file: Source, hdu: str | int | None = None, given: tuple[str, ...] = ()) -> int:
    """Host memory that `skydelta.read` of an open file needs at its peak.

    Parameters
    ----------
    file : Source
    hdu : str or int, optional
    given : tuple of str
        Planes that come from elsewhere; taken for 8 bytes a pixel.

    Raises
    ------
    InputError
        No such image.
    """
    image = file.image(hdu)
    companions = [h for h in file.hdus if h.is_image and h is not image and h.shape == image.shape]
    used = [image, *(h for h in companions if role(h) not in (None, "image", "psf", "other"))]
    stored = sum(np.dtype(STORED.get(h.bitpix, "float64")).itemsize for h in used) + 8 * len(given)
    compressed = max((h.size for h in used if h.compression), default=0)
    unpacked = 0
    if isinstance(file, FitsFile) and file.counted is not None and file.content is not file.counted:
        unpacked = file.content.size
    return math.prod(image.shape) * (WORK + stored) + compressed + unpacked


def _packed_size(source: Any) -> int:
    """Stored size of a local file with a whole-file compression, else 0."""
    if isinstance(source, bytes | bytearray | memoryview):
        return len(source) if container(bytes(source[:8])) else 0
    if not isinstance(source, str | Path) or is_url(source):
        return 0
    path = split_extension(str(source))[0]
    try:
        with open(path, "rb") as file:
            return os.fstat(file.fileno()).st_size if container(file.read(8)) else 0
    except OSError:
        return 0  # said by name when it is opened


def free_memory() -> int:
    """Bytes that this machine could still give out."""
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class _Budget:
    """Bytes in use. Requests are granted in the order of their turns: the next one out never waits for a later one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[int, int] = {}
        self._passed: set[int] = set()
        self._next, self._closed = 0, False
        self._change = threading.Condition()

    def reserve(self, turn: int, size: int) -> None:
        """Hold ``size`` bytes: waits until all earlier turns hold theirs, and these are free or nothing is held.

        Raises
        ------
        SkydeltaError
            Closed meanwhile.
        """
        with self._change:
            while not self._closed and not (turn == self._next and self._fits(size)):
                self._change.wait()
            if self._closed:
                raise SkydeltaError("read_many: closed")
            self._held[turn] = size
            self._pass(turn)

    def _fits(self, size: int) -> bool:
        held = sum(self._held.values())
        return held == 0 or held + size <= self._limit

    def _pass(self, turn: int) -> None:
        self._passed.add(turn)
        while self._next in self._passed:
            self._passed.remove(self._next)
            self._next += 1
        self._change.notify_all()

    def adjust(self, turn: int, size: int) -> None:
        """Hold this much from now on."""
        with self._change:
            self._held[turn] = size
            self._change.notify_all()

    def release(self, turn: int) -> None:
        """Hold nothing more; also without a reservation."""
        with self._change:
            self._held.pop(turn, None)
            if turn >= self._next:
                self._pass(turn)
            self._change.notify_all()

    def close(self) -> None:
        """Let all that wait fail."""
        with self._change:
            self._closed = True
            self._change.notify_all()
