# SPDX-License-Identifier: BSD-3-Clause
"""GZIP tiles inflated where they are, and judged there as zlib judges them on the host.

A tile counts only if its member has the plain header that FITS writers give it, its stream is sound, and size and
CRC-32 of what came out are those of its trailer. All others are left to the host, whose result or fault counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skydelta.kernels import decode
from skydelta.kernels import inflate as streams
from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.kernels.crc import crc32
from skydelta.kernels.decode import Tiles

HEADER, TRAILER = 10, 8
PLAIN = np.array([0x1F, 0x8B, 8, 0], np.uint8)
"""Magic bytes, deflate, no flags: no name, no comment, nothing between the header and the deflate stream."""

ALIGNMENT = 16


@dataclass(frozen=True)
class Inflated:
    """k tiles.

    Attributes
    ----------
    data : uint8 (m,)
        On a device; m is a multiple of `ALIGNMENT`.
    rows : int64 (k,)
        Of the table of tiles.
    offset, length : int64 (k,)
        Bytes of each tile.
    width : int64 (k,)
        Bytes of an element.
    """

    data: Array
    rows: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    width: np.ndarray


def inflate(heap: Array, tiles: Tiles, rows: np.ndarray) -> Inflated | None:
    """Those of some GZIP tiles that are beyond doubt; None where there is none.

    Parameters
    ----------
    heap : uint8 (m,), on a device
        There already.
    tiles : Tiles
        May lie outside the heap.
    rows : int64 (n,)
    """
    offset, length = tiles.offset[rows], tiles.length[rows]
    fits = (offset >= 0) & (length >= HEADER + TRAILER) & (offset <= heap.size)
    fits &= length <= heap.size - np.where(fits, offset, 0)
    rows, offset, length = rows[fits], offset[fits], length[fits]
    if not len(rows):
        return None
    size, check, plain = _ends(heap, offset, length)
    pixels = tiles.pixels()[rows]
    width = size // pixels
    sound = plain & np.isin(width, (1, 2, 4, 8)) & (width * pixels == size) & (size <= decode.LONGEST_GZIP)
    if not sound.any():
        return None
    rows, offset, length, size, check, width = (a[sound] for a in (rows, offset, length, size, check, width))
    room = -(-size // ALIGNMENT) * ALIGNMENT
    place = np.cumsum(room) - room
    data, status = streams.inflate(heap, offset + HEADER, length - HEADER - TRAILER, place, size, int(room.sum()))
    told = backend_of(heap).asarray(check.astype(np.uint32))
    whole = to_host((status == 0) & (crc32(data, place, size) == told))
    return Inflated(data, rows[whole], place[whole], size[whole], width[whole]) if whole.any() else None


def _ends(heap: Array, offset: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ISIZE and CRC32 of each member's trailer, and whether its header is `PLAIN`."""
    backend = backend_of(heap)
    head, tail = np.arange(len(PLAIN)), np.arange(-TRAILER, 0)
    begin = backend.asarray(offset)[:, None]
    places = (begin + backend.asarray(head), begin + backend.asarray(length)[:, None] + backend.asarray(tail))
    ends = to_host(heap[backend.xp.concatenate(places, axis=1)])
    check, size = np.ascontiguousarray(ends[:, len(PLAIN) :]).view("<u4").T.astype(np.int64)
    return size, check, (ends[:, : len(PLAIN)] == PLAIN).all(axis=1)
