# SPDX-License-Identifier: BSD-3-Clause
"""Launcher of the decoders; arguments and result as the twin of ``kernels/cpu/decode.py``.

Rice tiles and tiles that are not coded are decoded where they are, one launch each for all of an image. GZIP tiles are
inflated there first; those in doubt, and PLIO and H-compress tiles, are unpacked on the host and sent. What is left to
do with them (byte order, values, scaling, nulls) is done on the device with the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from skydelta.kernels.backend import Array, Backend, backend_of, to_host
from skydelta.kernels.core.devices import page_locked, send
from skydelta.kernels.core.module import kernel
from skydelta.kernels.cpu import decode as twin
from skydelta.kernels.cpu.tile_table import BIG, NATIVE, PLANES, fill
from skydelta.kernels.cpu.unpack import Unpacked, unpack
from skydelta.kernels.cuda import gunzip
from skydelta.kernels.decode import GZIP1, GZIP2, OUTSIDE, RAW, RICE, Decoded, Form, Tiles
from skydelta.kernels.dither import dither_table

MAX_AXES = 8
"""As in ``decode.cuh``."""

MAX_RICE_BYTES, MAX_PIXELS = 1 << 27, 1 << 30
"""Of a tile: bits and pixels are counted in 32 bits. Larger ones are decoded on the host."""

RICE_THREADS, THREADS = 64, 256
SPAN = 8 * THREADS
"""Pixels of a block of tiles that are not coded, as in ``decode.cu``."""

SHARED = ((24_576, 4), (8192, 8), (3072, 16))
"""Tiles from which on so many lanes of a warp share one; fewer take a whole warp each: more tiles in a warp cost fewer
instructions for each, but then fewer warps hide each other's waits. Between the numbers measured on an H200, whatever
the size of the tiles (``benchmarks/results/fits-read-h200-rice.json``)."""

FORM = np.dtype(
    [
        ("scale", "f8"), ("zero", "f8"), ("common", "i8"), ("corner", "i8", (MAX_AXES,)), ("shape", "i8", (MAX_AXES,)),
        *((name, "i4") for name in (
            "axes", "type", "stored", "floating", "single", "linear", "flip", "has_common", "exact_zero", "block",
            "width", "mask_bit",
        )),
    ]
)  # fmt: skip
TILE = np.dtype(
    [
        ("offset", "i8"), ("length", "i8"), ("first", "i8"), ("blank", "i8"), ("scale", "f8"), ("zero", "f8"),
        ("pixels", "i4"), ("dither", "i4"), ("fault", "i4"), ("layout", "u1"), ("width", "u1"), ("has_blank", "u1"),
        ("inside", "u1"), ("unpacked", "u1"), ("unused", "u1", (7,)),
    ]
)  # fmt: skip
BOX = np.dtype([("origin", "i8", (MAX_AXES,)), ("extent", "i4", (MAX_AXES,))])


def decode(
    out: Array,
    heap: Array,
    tiles: Tiles,
    form: Form,
    corner: tuple[int, ...],
    mask: Array | None,
    mask_bit: int,
    threads: int | None,
    ready: Callable[[], None] | None = None,
) -> Decoded:
    backend, n = backend_of(out), len(tiles)
    wait = ready or _nothing
    if n == 0 or out.size == 0:
        wait()
        return Decoded(np.zeros(n, np.int32), *(np.zeros(n, np.int64) for _ in range(3)))
    pixels = tiles.pixels()
    rice = tiles.codec == RICE
    # a length that is damage leads out of the heap, which the kernel sees
    longest = tiles.length[rice & (tiles.length <= heap.size)].max(initial=0)
    if out.ndim > MAX_AXES or pixels.max() > MAX_PIXELS or longest > MAX_RICE_BYTES:
        wait()
        return _on_host(out, heap, tiles, form, corner, mask, mask_bit, threads)
    packed = np.flatnonzero(~rice & (tiles.codec != RAW))
    tables, table, first = _tables(backend, out, tiles, form, corner, mask_bit)
    if len(packed):
        wait()
    unpacked = (
        _unpacked(backend, table, packed, heap, tiles, form, threads) if len(packed) else backend.xp.zeros(1, "u1")
    )
    there = send(tables, backend)
    if len(packed) == n:
        heap = np.zeros(1, np.uint8)
    heap = backend.asarray(heap)
    found = backend.xp.zeros((n, 4), np.int32)
    numbers = dither_table(backend)
    plane = np.uintp(0) if mask is None else mask
    size = np.int64(heap.size)
    launches: list[tuple[Any, int, int, tuple[Any, ...]]] = []
    if count := int(rice.sum()):
        lanes = _lanes(count)
        groups = RICE_THREADS // lanes
        of_rice = (heap, size, there, np.int32(n), there[first:], np.int32(count), numbers, out, plane, found)
        function = kernel("decode.cu", "rice_tiles", (str(lanes),))
        launches.append((function, -(-count // groups), RICE_THREADS, of_rice))
    first += 4 * count
    if count := n - count:
        share = -(-int(pixels[~rice].max()) // SPAN)
        arguments = (
            heap, size, unpacked, np.int64(unpacked.size), there, np.int32(n), there[first:], np.int32(share), numbers,
            out, plane, found,
        )  # fmt: skip
        launches.append((kernel("decode.cu", "stored_tiles"), count * share, THREADS, arguments))
    wait()
    for function, blocks, size_of_block, given in launches:
        function((blocks,), (size_of_block,), given)
    return _told(to_host(found))


def _nothing() -> None:
    """Nothing is on its way."""


def _told(found: np.ndarray) -> Decoded:
    """Fault, nulls, missing and infinite pixels of each tile, int32 (n, 4); rarely any."""
    counts = np.zeros((3, len(found)), np.int64)
    if not found.any():
        return Decoded(np.zeros(len(found), np.int32), *counts)
    status = np.ascontiguousarray(found[:, 0])
    np.copyto(counts, found[:, 1:].T, where=status == 0)
    return Decoded(status, *counts)


def _tables(
    backend: Backend, out: Array, tiles: Tiles, form: Form, corner: tuple[int, ...], mask_bit: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """What a launch is told, to be sent at once; the tiles in it; and where the list of Rice tiles begins."""
    n = len(tiles)
    room = page_locked(FORM.itemsize + n * (TILE.itemsize + BOX.itemsize + 4), backend)
    ends = FORM.itemsize, FORM.itemsize + n * TILE.itemsize
    room[: ends[0]].view(FORM)[:] = _form(form, tiles, out, corner, mask_bit)
    table = room[ends[0] : ends[1]].view(TILE)
    order, inside = fill(table, tiles, corner, out.shape)
    first = ends[1]
    if not inside:
        first += n * BOX.itemsize
        boxes = room[ends[1] : first].view(BOX)
        boxes["origin"], boxes["extent"] = 0, 0
        boxes["origin"][:, : out.ndim], boxes["extent"][:, : out.ndim] = tiles.origin, tiles.extent
    room[first : first + 4 * n].view(np.int32)[:] = order
    return room[: first + 4 * n], table, first


def _lanes(tiles: int) -> int:
    """Lanes of a warp that decode a Rice tile."""
    return next((lanes for least, lanes in SHARED if tiles >= least), 32)


def _form(form: Form, tiles: Tiles, out: Array, corner: tuple[int, ...], mask_bit: int) -> np.ndarray:
    made = np.zeros(1, FORM)
    floating = form.stored.startswith("float")
    nullable = form.blank is not None or bool(tiles.has_blank.any())
    size = np.dtype(out.dtype).itemsize
    values = {
        "scale": form.scale,
        # adding -0.0 changes nothing, adding 0.0 would change -0.0
        "zero": form.zero if form.zero != 0 else -0.0,
        "common": form.blank or 0,
        "axes": out.ndim,
        "type": size + (16 if out.dtype.kind == "f" else 0),
        "stored": np.dtype(form.stored).itemsize,
        "floating": floating,
        "single": form.arithmetic == "float32",
        # an integer image that may hold nulls computes in its arithmetic type even where it is not scaled
        "linear": form.scaled or (nullable and not floating and not form.flip),
        "flip": form.flip,
        "has_common": form.blank is not None,
        "exact_zero": form.exact_zero,
        "block": form.rice_block,
        "width": 8 * form.rice_bytes,
        "mask_bit": mask_bit,
    }
    for name, value in values.items():
        made[name] = value
    made["corner"][0, : out.ndim], made["shape"][0, : out.ndim] = corner, out.shape
    return made


def _unpacked(
    backend: Backend,
    table: np.ndarray,
    rows: np.ndarray,
    heap: Array,
    tiles: Tiles,
    form: Form,
    threads: int | None,
) -> Array:
    """Bytes of the tiles of these rows, inflated there or unpacked on the host; ``table`` then tells of them."""
    made = _inflated(heap, tiles, rows)
    if made is None:
        return backend.asarray(_by_host(table, rows, heap, tiles, form, threads))
    table["unpacked"][made.rows] = 1
    for name, values in (("offset", made.offset), ("length", made.length), ("width", made.width)):
        table[name][made.rows] = values
    table["layout"][made.rows] = np.where(tiles.codec[made.rows] == GZIP1, BIG, PLANES)
    left = np.setdiff1d(rows, made.rows, assume_unique=True)
    if not len(left):
        return made.data
    data = _by_host(table, left, heap, tiles, form, threads)
    table["offset"][left] += made.data.size
    return backend.xp.concatenate([made.data, backend.asarray(data)])


def _inflated(heap: Array, tiles: Tiles, rows: np.ndarray) -> gunzip.Inflated | None:
    """Those of the tiles of these rows that the device inflates."""
    zipped = rows[(tiles.codec[rows] == GZIP1) | (tiles.codec[rows] == GZIP2)]
    return gunzip.inflate(heap, tiles, zipped) if len(zipped) and _is_there(heap) else None


def _is_there(heap: Array) -> bool:
    return backend_of(heap).is_gpu


def _by_host(
    table: np.ndarray, rows: np.ndarray, heap: Array, tiles: Tiles, form: Form, threads: int | None
) -> np.ndarray:
    """Bytes of the tiles of these rows after the host's part of decoding; ``table`` then tells of them."""
    offset, length = tiles.offset[rows], tiles.length[rows]
    outside = (offset < 0) | (length < 0) | (offset > heap.size)
    outside |= length > heap.size - np.where(outside, 0, offset)
    table["fault"][rows[outside]] = OUTSIDE
    table["offset"][rows[outside]] = table["length"][rows[outside]] = 0
    table["unpacked"][rows] = 1
    good = rows[~outside]
    if not len(good):
        return np.zeros(1, np.uint8)
    low, high = int(tiles.offset[good].min()), int((tiles.offset + tiles.length)[good].max())
    chosen = tiles.take(good)
    chosen.offset[:] -= low
    made: Unpacked = unpack(to_host(heap[low:high]), chosen, form, threads)
    for name, values in (("offset", made.offset), ("length", made.length), ("fault", made.status)):
        table[name][good] = values
    table["width"][good] = made.width
    table["layout"][good] = np.select([chosen.codec == GZIP1, chosen.codec == GZIP2], [BIG, PLANES], NATIVE)
    return made.data if made.data.size else np.zeros(1, np.uint8)


def _on_host(
    out: Array,
    heap: Array,
    tiles: Tiles,
    form: Form,
    corner: tuple[int, ...],
    mask: Array | None,
    mask_bit: int,
    threads: int | None,
) -> Decoded:
    """Decoded by the twin, then sent."""
    backend: Backend = backend_of(out)
    here, flags = to_host(out), None if mask is None else to_host(mask)
    done = twin.decode(here, to_host(heap), tiles, form, corner, flags, mask_bit, threads)
    out[...] = backend.asarray(here)
    if mask is not None:
        mask[...] = backend.asarray(flags)
    return done
