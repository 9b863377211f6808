# SPDX-License-Identifier: BSD-3-Clause
"""Tiles of the codecs that no device decodes, as bytes to store from: inflated elements, or 32-bit integers."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numba
import numpy as np

from skydelta.kernels.cpu import decode_hcompress, decode_plio
from skydelta.kernels.cpu.decode import hcompress_shape, inflate
from skydelta.kernels.decode import GZIP1, GZIP2, PLIO, Form, Tiles

ALIGNMENT = 16

BATCH = 16
"""Tiles that a thread takes at a time."""


@dataclass(frozen=True)
class Unpacked:
    """n tiles, one behind the other.

    Attributes
    ----------
    data : uint8 (m,)
    offset, length : int64 (n,)
        Bytes of each tile; offsets are multiples of `ALIGNMENT`.
    width : int64 (n,)
        Bytes of an element; 4 of native integers.
    status : int32 (n,)
        0 or a key of `skydelta.kernels.decode.FAULTS`.
    """

    data: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    width: np.ndarray
    status: np.ndarray


def unpack(heap: np.ndarray, tiles: Tiles, form: Form, threads: int | None = None) -> Unpacked:
    """Inflate GZIP tiles (elements stay big-endian, or in byte planes) and decode PLIO and H-compress tiles.

    Parameters
    ----------
    heap : uint8 (m,)
    tiles : Tiles
        Of these codecs, with bytes inside the heap.
    form : Form
    threads : int, optional
        Numba's number when left out.
    """
    n, pixels = len(tiles), tiles.pixels()
    width, status = np.zeros(n, np.int64), np.zeros(n, np.int32)
    made: list[bytes | np.ndarray] = [b""] * n
    turn = itertools.count()
    batches = -(-n // BATCH)

    def work() -> None:
        while (i := next(turn)) < batches:
            for t in range(i * BATCH, min((i + 1) * BATCH, n)):
                if tiles.codec[t] in (GZIP1, GZIP2):
                    stream = heap[tiles.offset[t] : tiles.offset[t] + tiles.length[t]]
                    made[t], width[t], status[t] = inflate(stream, int(pixels[t]))
                else:
                    made[t], width[t] = _integers(heap, tiles.take(np.array([t])), form, status[t : t + 1]), 4

    workers = min(threads or numba.get_num_threads(), batches)
    if workers <= 1:
        work()
    else:
        with ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(work) for _ in range(workers)]:
                done.result()
    length = np.array([len(m) for m in made], np.int64)
    room = -(-length // ALIGNMENT) * ALIGNMENT
    offset = np.cumsum(room) - room
    data = np.zeros(int(room.sum()), np.uint8)
    for t, values in enumerate(made):
        data[offset[t] : offset[t] + length[t]] = np.frombuffer(values, np.uint8)
    return Unpacked(data, offset, length, width, status)


def _integers(heap: np.ndarray, tile: Tiles, form: Form, status: np.ndarray) -> np.ndarray:
    """Bytes of the native integers of one tile; none with a fault."""
    pixels, first = tile.pixels(), np.zeros(1, np.int64)
    out = np.empty(int(pixels[0]), np.int32)
    if tile.codec[0] == PLIO:
        decode_plio.decode(heap, tile.offset, tile.length, first, pixels, out, status)
    else:
        rows, columns = hcompress_shape(tile.extent)
        decode_hcompress.decode(heap, tile.offset, tile.length, first, rows, columns, out, form.smooth, status)
    return out.view(np.uint8) if status[0] == 0 else out[:0].view(np.uint8)
