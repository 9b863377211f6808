# SPDX-License-Identifier: BSD-3-Clause
"""CPU twin of `skydelta.kernels.decode`: batches of tiles that stay in the cache, shared out over threads.

A batch is decompressed into a scratch array of a few hundred kilobytes and stored from there; raw tiles are stored
straight from the heap. Threads write disjoint pixels, so their number changes nothing but the time.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numba
import numpy as np

from skydelta.kernels.backend import CPU
from skydelta.kernels.cpu import decode_hcompress, decode_plio, decode_rice, decode_store
from skydelta.kernels.decode import (
    DEFLATE,
    GZIP1,
    GZIP2,
    HCOMPRESS,
    MAGIC,
    NO_DITHER,
    OUTSIDE,
    PLIO,
    RAW,
    RICE,
    SIZE,
    Decoded,
    Form,
    Tiles,
)
from skydelta.kernels.dither import dither_table

BATCH = 1 << 16
"""Pixels of a batch: with its scratch array it fits into the second-level cache."""

ALONE = 1 << 16
"""Pixels below which a second thread costs more than it saves."""

WIDTHS = (1, 2, 4, 8)


class _Scratch:
    """Memory of one thread for the values of a batch; it grows and is used again."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def array(self, count: int, dtype: str) -> np.ndarray:
        nbytes = count * np.dtype(dtype).itemsize
        if nbytes > self._bytes.size:
            self._bytes = np.empty(nbytes, np.uint8)
        return self._bytes[:nbytes].view(dtype)


@dataclass(frozen=True)
class _Job:
    """Everything that a batch needs."""

    heap: np.ndarray
    tiles: Tiles
    form: Form
    pixels: np.ndarray
    status: np.ndarray
    store: _Store


def decode(
    out: np.ndarray,
    heap: np.ndarray,
    tiles: Tiles,
    form: Form,
    corner: tuple[int, ...],
    mask: np.ndarray | None,
    mask_bit: int,
    threads: int | None,
    ready: Callable[[], None] | None = None,
) -> Decoded:
    """The same arguments as the front, in order."""
    if ready is not None:
        ready()
    n = len(tiles)
    status = np.zeros(n, np.int32)
    nulls, missing, infinite = (np.zeros(n, np.int64) for _ in range(3))
    done = Decoded(status, nulls, missing, infinite)
    if n == 0 or out.size == 0:
        return done
    outside = (tiles.offset < 0) | (tiles.length < 0) | (tiles.offset > heap.size)
    outside |= tiles.length > heap.size - np.where(outside, 0, tiles.offset)
    status[outside] = OUTSIDE
    pixels = tiles.pixels()
    job = _Job(heap, tiles, form, pixels, status, _Store(out, tiles, form, corner, mask, mask_bit, done))
    batches = _batches(tiles.codec.astype(np.int64) * 2 + (tiles.dither >= NO_DITHER), pixels)
    workers = min(threads or numba.get_num_threads(), len(batches))
    if workers == 1 or int(pixels.sum()) < ALONE:
        scratch = _Scratch()
        for batch in batches:
            _run(job, scratch, *batch)
        return done
    turn = itertools.count()

    def work() -> None:
        scratch = _Scratch()
        while (i := next(turn)) < len(batches):
            _run(job, scratch, *batches[i])

    with ThreadPoolExecutor(workers) as pool:
        for future in [pool.submit(work) for _ in range(workers)]:
            future.result()
    return done


def _batches(kind: np.ndarray, pixels: np.ndarray) -> list[tuple[int, int]]:
    """[start, stop) of consecutive tiles of one kind with at most `BATCH` pixels, or of one tile."""
    if len(kind) == 1:
        return [(0, 1)]
    edges = [0, *(np.flatnonzero(np.diff(kind)) + 1).tolist(), len(kind)]
    total = np.concatenate([[0], np.cumsum(pixels)])
    out = []
    for first, stop in itertools.pairwise(edges):
        start = first
        while start < stop:
            fit = int(np.searchsorted(total, total[start] + BATCH, "right")) - 1
            end = min(max(fit, start + 1), stop)
            out.append((start, end))
            start = end
    return out


def _run(job: _Job, memory: _Scratch, start: int, stop: int) -> None:
    codec = int(job.tiles.codec[start])
    if codec == RAW:
        _raw(job, memory, start, stop)
    elif codec in (GZIP1, GZIP2):
        _gzip(job, memory, start, stop, codec == GZIP2)
    else:
        _coded(job, memory, start, stop, codec)


def _coded(job: _Job, memory: _Scratch, start: int, stop: int, codec: int) -> None:
    """Tiles of codecs that give integers."""
    tiles, status = job.tiles, job.status[start:stop]
    offset, length, pixels = tiles.offset[start:stop], tiles.length[start:stop], job.pixels[start:stop]
    first = np.cumsum(pixels) - pixels
    scratch = memory.array(int(pixels.sum()), "int32")
    if codec == RICE:
        decode_rice.decode(
            job.heap, offset, length, first, pixels, scratch, job.form.rice_block, job.form.rice_bytes, status
        )
    elif codec == PLIO:
        decode_plio.decode(job.heap, offset, length, first, pixels, scratch, status)
    elif codec == HCOMPRESS:
        rows, columns = hcompress_shape(tiles.extent[start:stop])
        decode_hcompress.decode(
            job.heap, offset, length, first, rows, columns, scratch, job.form.smooth, status
        )  # fmt: skip
    job.store.runs(scratch, False, first, start, job.status, False)


def hcompress_shape(extent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64 (n,) rows and columns of H-compress tiles (n, d): the last axis longer than 1 and all others."""
    columns = extent[:, -1].copy()
    swap = columns == 1
    if extent.shape[1] > 1:
        columns[swap] = extent[swap, -2]
    pixels = np.prod(extent, axis=1, dtype=np.int64)
    return pixels // columns, columns


def _raw(job: _Job, memory: _Scratch, start: int, stop: int) -> None:
    """Big-endian elements, in place where they are aligned."""
    tiles, pixels = job.tiles, job.pixels
    width = tiles.length[start:stop] // pixels[start:stop]
    sound = (width > 0) & (width <= 8) & (width & (width - 1) == 0)
    sound &= width * pixels[start:stop] == tiles.length[start:stop]
    status = job.status[start:stop]
    if not sound.all():
        status[~sound & (status == 0)] = SIZE
    for t0, t1 in _alike(width, status):
        w = int(width[t0])
        a, b = start + t0, start + t1
        place = tiles.offset[a:b]
        shift = -job.heap.ctypes.data % w
        if np.all((place - shift) % w == 0):
            count = (job.heap.size - shift) // w
            source = job.heap[shift : shift + count * w].view(_stored_type(w))
            job.store(source, True, (place - shift) // w, a, b, True)
            continue
        first = np.cumsum(pixels[a:b]) - pixels[a:b]
        source = memory.array(int(pixels[a:b].sum()), _stored_type(w))
        raw = source.view(np.uint8)
        for i in range(b - a):
            raw[first[i] * w : (first[i] + pixels[a + i]) * w] = job.heap[place[i] : place[i] + tiles.length[a + i]]
        job.store(source, True, first, a, b, True)


def _gzip(job: _Job, memory: _Scratch, start: int, stop: int, shuffled: bool) -> None:
    """Deflated big-endian elements, or their bytes sorted by significance."""
    tiles, pixels, status = job.tiles, job.pixels, job.status[start:stop]
    width = np.zeros(stop - start, np.int64)
    inflated: list[bytes] = []
    for i in range(stop - start):
        data = b""
        if status[i] == 0:
            at = int(tiles.offset[start + i])
            stream = job.heap[at : at + int(tiles.length[start + i])]
            data, width[i], status[i] = inflate(stream, int(pixels[start + i]))
        inflated.append(data)
    for t0, t1 in _alike(width, status):
        w = int(width[t0])
        count = pixels[start + t0 : start + t1]
        first = np.cumsum(count) - count
        size = int(count.sum())
        both = memory.array(2 * size, _stored_type(w))
        source, raw = both[:size], both[:size].view(np.uint8)
        for i in range(t1 - t0):
            raw[first[i] * w : (first[i] + count[i]) * w] = np.frombuffer(inflated[t0 + i], np.uint8)
        if shuffled and w > 1:
            source = both[size:]
            decode_store.unshuffle(raw, first, count, source)
        job.store(source, not shuffled, first, start + t0, start + t1, True)


def inflate(stream: np.ndarray, pixels: int) -> tuple[bytes, int, int]:
    """(bytes, bytes a pixel, status) of a gzip member; never more bytes than the tile may have."""
    if len(stream) < 18 or stream[0] != 0x1F or stream[1] != 0x8B:
        return b"", 0, MAGIC
    size = int.from_bytes(stream[-4:].tobytes(), "little")
    if size not in {pixels * w for w in WIDTHS}:
        return b"", 0, SIZE
    inflater = zlib.decompressobj(31)
    try:
        data = inflater.decompress(stream.data, size + 1)
    except zlib.error:
        return b"", 0, DEFLATE
    if not inflater.eof:
        return b"", 0, DEFLATE
    return (data, size // pixels, 0) if len(data) == size else (b"", 0, SIZE)


def _alike(width: np.ndarray, status: np.ndarray) -> list[tuple[int, int]]:
    """[start, stop) of consecutive sound tiles of one width."""
    if len(width) == 1:
        return [] if status[0] or not width[0] else [(0, 1)]
    key = np.where(status == 0, width, 0)
    edges = [0, *(np.flatnonzero(np.diff(key)) + 1).tolist(), len(key)]
    return [(a, b) for a, b in itertools.pairwise(edges) if key[a]]


def _stored_type(width: int) -> str:
    """Integer type for the bits of an element."""
    return "uint8" if width == 1 else f"int{8 * width}"


class _Store:
    """Puts stored values of tiles into the window; one call for a run of tiles."""

    def __init__(
        self,
        out: np.ndarray,
        tiles: Tiles,
        form: Form,
        corner: tuple[int, ...],
        mask: np.ndarray | None,
        mask_bit: int,
        done: Decoded,
    ) -> None:
        self.tiles, self.form, self.done = tiles, form, done
        self.is_float = form.stored.startswith("float")
        self.to_float = out.dtype.kind == "f"
        flat = out.reshape(-1)
        self.out = flat if self.to_float else flat.view(_stored_type(out.itemsize))
        self.mask = np.empty(0, np.int32) if mask is None else mask.reshape(-1)
        self.bit = np.int32(mask_bit)
        self.corner, self.shape = np.array(corner, np.int64), np.array(out.shape, np.int64)
        real = np.dtype(form.arithmetic).type
        # adding -0.0 changes nothing, adding 0.0 would change -0.0
        self.scale, self.zero = real(form.scale), real(form.zero if form.zero != 0 else -0.0)
        # an integer image that may hold nulls computes in its arithmetic type even where it is not scaled
        self.nullable = form.blank is not None or bool(tiles.has_blank.any())
        self.linear = form.scaled or (self.nullable and not self.is_float and not form.flip)
        self.stored = np.dtype(form.stored)
        self.common, self.has_common = np.int64(form.blank or 0), form.blank is not None

    def runs(
        self, source: np.ndarray, swap: bool, first: np.ndarray, start: int, status: np.ndarray, typed: bool
    ) -> None:
        """Store the sound ones of the tiles from ``start``."""
        for t0, t1 in _alike(np.ones(len(first), np.int64), status[start : start + len(first)]):
            self(source, swap, first[t0:t1], start + t0, start + t1, typed)

    def __call__(self, source: np.ndarray, swap: bool, first: np.ndarray, t0: int, t1: int, typed: bool) -> None:
        """Store tiles t0 to t1.

        Parameters
        ----------
        source : integer array
            Stored values or bits, big-endian where ``swap``.
        first : int64 (t1 - t0,)
            Where each tile starts in it.
        typed : bool
            Elements of a floating-point image that is not quantised are floats; False: integers from a codec.
        """
        tiles = self.tiles
        where = (first, t0, t1, tiles.origin, tiles.extent, self.corner, self.shape, self.out)
        blank = (tiles.blank, tiles.has_blank, self.common, self.has_common, self.done.nulls)
        flags = (self.mask, self.bit, self.done.missing, self.done.infinite)
        quantized = tiles.dither[t0] >= NO_DITHER
        if quantized:
            decode_store.quantized(
                source, swap, *where, tiles.dither, tiles.scale, tiles.zero, dither_table(CPU), self.form.exact_zero,
                self.linear, self.scale, self.zero, *blank, *flags,
            )  # fmt: skip
            return
        if self.is_float and typed and source.itemsize >= 4:
            decode_store.floats(source, swap, *where, self.linear, self.scale, self.zero, *flags)
            return
        if not self.is_float and source.dtype != self.stored and (self.to_float or self.nullable or swap):
            # a stream of another width than the image: its values are cut to the type of the image, as elsewhere;
            # storing into an integer type does that by itself
            source, swap = (source.byteswap() if swap else source).astype(self.form.stored), False
        if self.to_float:
            decode_store.integers_to_floats(
                source, swap, *where, self.form.flip, self.linear, self.scale, self.zero, *blank, *flags
            )
            return
        top = 1 << (8 * self.out.itemsize - 1)
        flip = np.array(top if self.form.flip else 0, f"u{self.out.itemsize}").view(self.out.dtype)[()]
        decode_store.integers(source, swap, *where, flip, *blank)
