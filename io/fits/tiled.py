# SPDX-License-Identifier: BSD-3-Clause
"""Tile-compressed images: the table that holds them becomes a table of tiles for the decoders (FITS 4.0, 10.1 to 10.4).

Nothing that a file says about sizes is passed on unchecked: tile grid, row length, descriptors, parameters.
"""

from __future__ import annotations

import math
import re
import struct
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from astropy.io import fits

from skydelta.errors import InputError
from skydelta.io.fits.cards import Cards, integer, last, number, readable, text
from skydelta.io.fits.layout import Hdu
from skydelta.io.staging import Transfer, to_device
from skydelta.io.storage import Content
from skydelta.kernels import decode as kernel
from skydelta.kernels.backend import CPU, Array, Backend, to_host
from skydelta.kernels.core.devices import active
from skydelta.kernels.decode import LOSSLESS, NO_DITHER, Form, Tiles
from skydelta.kernels.dither import COUNT

METHODS = {
    "NOCOMPRESS": kernel.RAW,
    "RICE_1": kernel.RICE,
    "GZIP_1": kernel.GZIP1,
    "GZIP_2": kernel.GZIP2,
    "PLIO_1": kernel.PLIO,
    "HCOMPRESS_1": kernel.HCOMPRESS,
    "RICE_ONE": kernel.RICE,
}
"""Values of ZCMPTYPE; the last is an older name."""

FALLBACKS = {"GZIP_COMPRESSED_DATA": kernel.GZIP1, "UNCOMPRESSED_DATA": kernel.RAW}
"""Columns that hold the tiles which COMPRESSED_DATA leaves empty, as values that are not quantised."""

DITHERS = ("SUBTRACTIVE_DITHER_1", "SUBTRACTIVE_DITHER_2")
UNDITHERED = ("", "NO_DITHER", "NONE")
RICE_BLOCKS = (16, 32)
RICE_BYTES = (1, 2, 4)

MAX_RATIO = 5000
"""Pixel bytes per stored byte above which a size of more than a gigabyte is not believed."""

_FORM = re.compile(r"(\d{0,9})(?:([PQ])([LXBAIJKEDCM])|([LXBAIJKEDCM]))")
_WIDTH = {"L": 1, "B": 1, "A": 1, "I": 2, "J": 4, "K": 8, "E": 4, "D": 8, "C": 8, "M": 16, "P": 8, "Q": 16}
_NUMBERS = {"B": ">u1", "I": ">i2", "J": ">i4", "K": ">i8", "E": ">f4", "D": ">f8"}


@dataclass(frozen=True)
class TileGrid:
    """The tiles of a compressed image in row order of the table.

    Attributes
    ----------
    shape, tile : tuple of int
        Of the image and of one tile, (y, x) order.
    """

    shape: tuple[int, ...]
    tile: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(-(-n // t) for n, t in zip(self.shape, self.tile, strict=True))

    def __len__(self) -> int:
        return math.prod(self.counts)

    def touched(self, section: tuple[slice, ...]) -> np.ndarray:
        """int64 (n,): rows of the tiles that hold pixels of a section (start and stop inside the image, not empty)."""
        parts = [np.arange(s.start // t, -(-s.stop // t)) for s, t in zip(section, self.tile, strict=True)]
        return np.ravel_multi_index(np.ix_(*parts), self.counts).reshape(-1).astype(np.int64)

    def boxes(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """int64 (n, d) first pixel and size of tiles; edge tiles are cut to the image."""
        shape, tile = np.array(self.shape, np.int64), np.array(self.tile, np.int64)
        origin, rest = np.zeros((len(rows), len(tile)), np.int64), rows
        several = [axis for axis, count in enumerate(self.counts) if count > 1]
        for axis in reversed(several[1:]):
            rest, number = np.divmod(rest, self.counts[axis])
            origin[:, axis] = number * tile[axis]
        if several:  # nothing is left of the slowest one but its own number
            origin[:, several[0]] = rest * tile[several[0]]
        return origin, np.minimum(tile, shape - origin)


@dataclass(frozen=True)
class Plan:
    """What it takes to decode a compressed image or a section of it.

    Attributes
    ----------
    tiles : Tiles
        Offsets in ``heap``.
    rows : int64 (n,)
        Table row of each tile.
    total : int
        Tiles of the whole image.
    form : Form
        Scaling left out.
    heap : Heap
        On the host, or where it is decoded.
    method : str
    oddities : list of str
    """

    tiles: Tiles
    rows: np.ndarray
    total: int
    form: Form
    heap: Heap
    method: str
    oddities: list[str]


def grid_of(hdu: Hdu) -> TileGrid:
    """The tile grid that a header announces.

    Raises
    ------
    InputError
        ZTILEn or the number of rows is wrong.
    """
    tile = []
    for i, n in enumerate(reversed(hdu.shape)):
        t = integer(hdu.cards, f"ZTILE{i + 1}", 1, max(n, 1) if i == 0 else 1)
        tile.append(min(t, max(n, 1)))
    grid = TileGrid(hdu.shape, tuple(reversed(tile)))
    rows = last(hdu.cards, "NAXIS2")
    if last(hdu.cards, "NAXIS") != 2 or rows != len(grid):
        raise InputError(f"NAXIS2 = {rows} tiles; {len(grid)} are needed for {hdu.shape} in tiles of {grid.tile}")
    return grid


def plan(hdu: Hdu, content: Content, stored: str, section: tuple[slice, ...], backend: Backend = CPU) -> Plan:
    """Check the structure, read the descriptors and the bytes of the tiles that a section touches.

    Parameters
    ----------
    hdu : Hdu
        A compressed image.
    content : Content
    stored : str
        Type of ZBITPIX.
    section : tuple of slice
        Inside the image, not empty.
    backend : Backend
        Where the tiles are to be decoded.

    Raises
    ------
    InputError
        Names the card or the tiles, the value found and the value allowed.
    """
    method = text(hdu.cards, "ZCMPTYPE")
    if method not in METHODS:
        raise InputError(f"ZCMPTYPE = {last(hdu.cards, 'ZCMPTYPE')!r}; allowed: {', '.join(METHODS)}")
    grid = grid_of(hdu)
    pixel_bytes = math.prod(hdu.shape) * abs(hdu.bitpix) // 8
    if pixel_bytes > max(1 << 30, MAX_RATIO * hdu.size):
        raise InputError(f"{hdu.size} stored bytes cannot hold {pixel_bytes} bytes of pixels {hdu.shape}")
    if METHODS[method] == kernel.HCOMPRESS and sum(t != 1 for t in grid.tile) != 2:
        raise InputError(f"HCOMPRESS_1 tiles of {grid.tile}; two-dimensional tiles are needed")
    rows = grid.touched(section)
    table = _Table(hdu, content, rows)
    offset, length, codec = _places(table, METHODS[method], rows, len(grid))
    oddities: list[str] = []
    with ExitStack() as guard:
        heap = None
        tile_bytes = math.prod(grid.tile) * abs(hdu.bitpix) // 8
        if backend.is_gpu and kernel.is_decoded_there(METHODS[method], tile_bytes):
            # on its way while the rest is found out; what the host has to unpack is not sent before
            heap = guard.enter_context(gather(content, hdu.data + table.heap, offset, length, backend))
        origin, extent = grid.boxes(rows)
        dither, scale, zero, exact_zero = _quantization(hdu.cards, table, rows, stored, codec, oddities)
        blank, has_blank = _blanks(hdu.cards, table, rows, dither)
        block, nbytes, smooth = _parameters(hdu.cards, METHODS[method])
        form = Form(stored, exact_zero=exact_zero, rice_block=block, rice_bytes=nbytes, smooth=smooth)
        heap = heap or gather(content, hdu.data + table.heap, offset, length)
        tiles = Tiles(heap.offset, length, codec, origin, extent, dither, scale, zero, blank, has_blank)
        guard.pop_all()
    return Plan(tiles, rows, len(grid), form, heap, method, oddities)


class _Table:
    """The rows of the table that are needed: descriptors of variable-length columns and numbers of plain ones.

    Attributes
    ----------
    heap : int
        First byte of the heap, from the start of the data.
    size : int
        Bytes of the heap.
    """

    def __init__(self, hdu: Hdu, content: Content, needed: np.ndarray) -> None:
        rows, row_bytes = integer(hdu.cards, "NAXIS2", 0), integer(hdu.cards, "NAXIS1", 0)
        self.heap = last(hdu.cards, "THEAP", row_bytes * rows)
        if (
            isinstance(self.heap, bool)
            or not isinstance(self.heap, int)
            or not row_bytes * rows <= self.heap <= hdu.size
        ):
            raise InputError(f"THEAP = {self.heap!r}; {row_bytes * rows} to {hdu.size} are allowed")
        self.size = hdu.size - self.heap
        self._columns: dict[str, tuple[int, str, str]] = {}
        at = 0
        for i in range(1, min(integer(hdu.cards, "TFIELDS", 0, 0), 999) + 1):
            form = text(hdu.cards, f"TFORM{i}")
            match = _FORM.match(form)
            if match is None:
                raise InputError(f"TFORM{i} = {form!r} is not a column format")
            repeat, code, element = int(match[1] or 1), match[2] or match[4], match[3] or ""
            nbytes = -(-repeat // 8) if code == "X" else repeat * _WIDTH[code]
            if repeat == 1:
                self._columns.setdefault(text(hdu.cards, f"TTYPE{i}").upper(), (at, code, element))
            at += nbytes
        if at != row_bytes:
            raise InputError(f"NAXIS1 = {row_bytes} bytes a row; the columns need {at}")
        self._bytes = read_array(content, hdu.data, rows * row_bytes).reshape(rows, row_bytes)
        self._needed = slice(None) if len(needed) == rows else needed

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def _cells(self, name: str, dtype: str, second: bool = False) -> np.ndarray:
        """(rows,) native: the first or second number of each cell of a column."""
        stored = np.dtype(dtype)
        at = self._columns[name][0] + stored.itemsize * second
        rows, step = self._bytes.shape
        return np.ndarray(rows, stored, self._bytes.data, at, step).astype(stored.newbyteorder("="))

    def numbers(self, name: str) -> np.ndarray:
        """(n,) of a column with one number a row.

        Raises
        ------
        InputError
            The column has another format.
        """
        _, code, _ = self._columns[name]
        if code not in _NUMBERS:
            raise InputError(f"column {name} has format {code}; one of {', '.join(_NUMBERS)} is needed")
        return self._cells(name, _NUMBERS[code])[self._needed]

    def streams(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """int64 (n,) byte offsets in the heap and lengths in bytes.

        Raises
        ------
        InputError
            The column is not of variable length, or a descriptor, of any row, points outside the heap.
        """
        _, code, element = self._columns[name]
        if code not in "PQ":
            raise InputError(f"column {name} has format {code}; P or Q is needed")
        stored = ">i4" if code == "P" else ">i8"
        counts, offsets = (self._cells(name, stored, second).astype(np.int64) for second in (False, True))
        width = _WIDTH[element]
        if len(counts) and min(counts.min(), offsets.min()) >= 0 and counts.max() <= self.size // width:
            lengths = counts * width
            if offsets.max() <= self.size and (offsets + lengths).max() <= self.size:
                return offsets[self._needed], lengths[self._needed]
        bad = (counts < 0) | (counts > self.size // width) | (counts > 0) & ((offsets < 0) | (offsets > self.size))
        bad |= (counts > 0) & (np.where(bad, 0, counts) * width > self.size - np.where(bad, 0, offsets))
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise InputError(
                f"{names(np.flatnonzero(bad))}: {name} descriptor ({counts[row]}, {offsets[row]}) "
                f"of tile {row} points outside the heap of {self.size} bytes",
                tiles=np.flatnonzero(bad).tolist(),
            )
        return offsets[self._needed], (counts * width)[self._needed]


def _places(table: _Table, codec: int, rows: np.ndarray, total: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Offset, length and codec of tiles: the first column that holds something wins."""
    if "COMPRESSED_DATA" not in table:
        raise InputError("column COMPRESSED_DATA is missing")
    offset, length = table.streams("COMPRESSED_DATA")
    codecs = np.full(len(rows), codec, np.uint8)
    for name, other in FALLBACKS.items():
        if name in table:
            empty = length == 0
            other_offset, other_length = table.streams(name)
            offset, length = np.where(empty, other_offset, offset), np.where(empty, other_length, length)
            # the top bit marks a fallback until `_quantization` has seen it
            codecs[empty] = other | 0x80
    missing = rows[length == 0]
    if len(missing):
        raise InputError(f"{names(missing)} of {total} hold no data in any column", tiles=missing.tolist())
    return offset, length, codecs


def _quantization(
    cards: Cards, table: _Table, rows: np.ndarray, stored: str, codec: np.ndarray, oddities: list[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """dither, scale and zero of each tile and the rule for exact zeros; clears the fallback marks of ``codec``.

    A tile is quantised if the image is floating-point and has ZSCALE, whatever ZQUANTIZ says.
    """
    n = len(rows)
    fallback = codec >= 0x80
    codec &= 0x7F
    dither, scale, zero = np.full(n, LOSSLESS, np.int32), np.ones(n), np.zeros(n)
    if not stored.startswith("float") or not ("ZSCALE" in table or "ZSCALE" in cards):
        return dither, scale, zero, False
    for name, values, default in (("ZSCALE", scale, 1.0), ("ZZERO", zero, 0.0)):
        values[:] = table.numbers(name) if name in table else number(cards, name, default)
    method = text(cards, "ZQUANTIZ")
    if method in UNDITHERED:
        dither[:] = NO_DITHER
    elif method in DITHERS:
        if "ZDITHER0" not in cards:
            oddities.append("ZDITHER0 is missing; 1 is used")  # FITS 4.0, 10.2.1; some readers take 0: other pixels
        dither[:] = (rows + integer(cards, "ZDITHER0", 1, 1) - 1) % COUNT
    else:
        raise InputError(f"ZQUANTIZ = {method!r}; allowed: {', '.join((*UNDITHERED[1:], *DITHERS))}")
    dither[fallback] = LOSSLESS
    return dither, scale, zero, method == DITHERS[1]


def _blanks(cards: Cards, table: _Table, rows: np.ndarray, dither: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Null value of each tile: the column ZBLANK, else the card, else for quantised tiles BLANK."""
    blank, has = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.uint8)
    if "ZBLANK" in table:
        blank[:] = table.numbers("ZBLANK")
        has[:] = 1
        return blank, has
    keyword = "ZBLANK" if last(cards, "ZBLANK") is not None else "BLANK" if (dither != LOSSLESS).any() else "ZBLANK"
    value = blank_card(cards, keyword)
    if value is not None:
        blank[:], has[:] = value, 1
    return blank, has


def blank_card(cards: Cards, keyword: str) -> int | None:
    """BLANK or ZBLANK; None when missing.

    Raises
    ------
    InputError
        No integer of 64 bits.
    """
    value = last(cards, keyword)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63):
        raise InputError(f"{keyword} = {value!r}; an integer of 64 bits is needed")
    return value


def _parameters(cards: Cards, codec: int) -> tuple[int, int, bool]:
    """BLOCKSIZE and BYTEPIX of RICE_1, SMOOTH of HCOMPRESS_1."""
    found: dict[str, object] = {}
    for i in range(1, 1000):
        if f"ZNAME{i}" not in cards:
            break
        found.setdefault(text(cards, f"ZNAME{i}").upper(), last(cards, f"ZVAL{i}"))
    if codec != kernel.RICE:
        return 32, 4, bool(found.get("SMOOTH"))
    out = []
    for name, allowed, default in (("BLOCKSIZE", RICE_BLOCKS, 32), ("BYTEPIX", RICE_BYTES, 4)):
        value = found.get(name, default)
        if not isinstance(value, int) or value not in allowed:
            raise InputError(f"{name} = {value!r}; allowed: {', '.join(map(str, allowed))}")
        out.append(value)
    return out[0], out[1], False


def read_array(content: Content, offset: int, size: int) -> np.ndarray:
    """uint8 (size,) from a file.

    Raises
    ------
    InputError
        The file ends before.
    """
    out = np.empty(size, np.uint8)
    _complete(content.read_into(offset, out), offset, size)
    return out


def _complete(got: int, offset: int, size: int) -> None:
    if got != size:
        raise InputError(f"data are truncated: {size} bytes expected from byte {offset}, {got} present")


@dataclass(frozen=True)
class Heap:
    """The bytes of tiles; used as a context, which ends when nothing is written into them any more.

    Attributes
    ----------
    bytes : uint8 (m,)
        On the host or on a device; there after `wait`.
    offset : int64 (n,)
        Of each tile.
    transfer : Transfer, optional
        That brings them.
    begin, size : int
        Where they are in the file, and how many it must give.
    """

    bytes: Array
    offset: np.ndarray
    transfer: Transfer | None = None
    begin: int = 0
    size: int = 0

    def wait(self) -> None:
        """Until they are there.

        Raises
        ------
        InputError
            The file ends before.
        """
        if self.transfer is not None:
            _complete(self.transfer.wait(), self.begin, self.size)

    def __enter__(self) -> Heap:
        return self

    def __exit__(self, *_: object) -> None:
        if self.transfer is not None:
            self.transfer.__exit__()


GAP = 1 << 16
"""Bytes between tiles that are read rather than skipped."""


def gather(content: Content, base: int, offset: np.ndarray, length: np.ndarray, backend: Backend = CPU) -> Heap:
    """The bytes of tiles; near tiles are read together, shared ones once. On a device they may still be on their way.

    Parameters
    ----------
    content : Content
    base : int
        Where ``offset`` counts from.
    offset, length : int64 (n,)
    backend : Backend
        Where the bytes are to be.

    Raises
    ------
    InputError
        The file ends before.
    """
    order = np.argsort(offset, kind="stable")
    start, stop = offset[order], (offset + length)[order]
    reach = np.maximum.accumulate(stop)
    new = np.concatenate([[True], start[1:] > reach[:-1] + GAP])
    first = np.flatnonzero(new)
    begin, end = start[first], reach[np.concatenate([first[1:] - 1, [len(start) - 1]])]
    places = np.cumsum(end - begin) - (end - begin)
    if len(first) == 1:
        at, size = base + int(begin[0]), int(end[0] - begin[0])
        if not backend.is_gpu:
            return Heap(read_array(content, at, size), offset - begin[0])
        transfer = Transfer(content, at, size, backend)
        return Heap(transfer.array, offset - begin[0], transfer, at, size)
    with active(backend):
        heap = backend.xp.empty(int((end - begin).sum()), np.uint8)
        for a, b, place in zip(begin.tolist(), end.tolist(), places.tolist(), strict=True):
            if backend.is_gpu:
                part = to_device(content, base + a, b - a, backend)
                _complete(len(part), base + a, b - a)
                heap[place : place + b - a] = part
            else:
                _complete(content.read_into(base + a, heap[place : place + b - a]), base + a, b - a)
    moved = np.empty_like(offset)
    moved[order] = start - (begin - places)[np.cumsum(new) - 1]
    return Heap(heap, moved)


def names(rows: np.ndarray) -> str:
    """``tile 3``, ``tiles 0-7`` or ``tiles 1, 4, ... (9 tiles)``."""
    if len(rows) == 1:
        return f"tile {rows[0]}"
    if np.all(np.diff(rows) == 1):
        return f"tiles {rows[0]}-{rows[-1]}"
    shown = ", ".join(str(r) for r in rows[:8])
    return f"tiles {shown}" + (f", ... ({len(rows)} tiles)" if len(rows) > 8 else "")


def fault(plan: Plan, status: np.ndarray) -> InputError:
    """The error for tiles that could not be decoded: which they are, and what is wrong with the first."""
    bad = np.flatnonzero(status)
    first = why(plan, int(bad[0]), int(status[bad[0]]))
    return InputError(
        f"{names(plan.rows[bad])} of {plan.total} cannot be decoded ({plan.method}): {first}",
        tiles=plan.rows[bad].tolist(),
    )


def why(plan: Plan, i: int, status: int) -> str:
    """``tile 3: ...``: what is wrong with the i-th tile of a plan."""
    tiles = plan.tiles
    stream = to_host(plan.heap.bytes[tiles.offset[i] : tiles.offset[i] + tiles.length[i]]).tobytes()
    pixels = int(np.prod(tiles.extent[i]))
    said = kernel.FAULTS[status] + f" ({len(stream)} bytes, {pixels} pixels)"
    codec = int(tiles.codec[i])
    if status == kernel.MAGIC:
        said = f"starts with {stream[:2]!r} and has {len(stream)} bytes"
    elif status == kernel.SIZE and codec in (kernel.GZIP1, kernel.GZIP2):
        size = int.from_bytes(stream[-4:], "little")
        said = f"inflates to {size} bytes; {pixels} pixels of 1, 2, 4 or 8 bytes are needed"
    elif status == kernel.SIZE and codec == kernel.RAW:
        said = f"{len(stream)} bytes; {pixels} pixels of 1, 2, 4 or 8 bytes are needed"
    elif status == kernel.SIZE and codec == kernel.HCOMPRESS:
        rows, columns = struct.unpack(">2i", stream[2:10])
        needed = [n for n in tiles.extent[i].tolist() if n != 1] or [1]
        said = f"the stream holds {rows} x {columns} pixels; {' x '.join(map(str, needed))} are needed"
    return f"tile {plan.rows[i]}: {said}"


_TABLE_CARD = re.compile(
    r"(XTENSION|BITPIX|NAXIS\d*|PCOUNT|GCOUNT|TFIELDS|THEAP|T(TYPE|FORM|UNIT|NULL|SCAL|ZERO|DISP|DIM)\d+|CHECKSUM|DATASUM"
    r"|ZIMAGE|ZCMPTYPE|Z(TILE|NAME|VAL|NAXIS)\d+|ZBITPIX|ZNAXIS|ZQUANTIZ|ZDITHER0|ZMASKCMP|ZSCALE|ZZERO|ZBLANK"
    r"|ZSIMPLE|ZTENSION|ZEXTEND|ZBLOCKED|ZPCOUNT|ZGCOUNT|ZHECKSUM|ZDATASUM|END)\Z"
)
"""Cards of the table and of its compression; the image has its own."""


def image_header(hdu: Hdu) -> fits.Header:
    """The header of the image that a table holds (FITS 4.0, 10.1.1), as an extension."""
    cards = hdu.cards
    shape = tuple(reversed(hdu.shape))
    out = fits.Header([("XTENSION", "IMAGE", "Image extension"), ("BITPIX", hdu.bitpix), ("NAXIS", len(shape))])
    out.extend([(f"NAXIS{i + 1}", n) for i, n in enumerate(shape)])
    out.extend([("PCOUNT", 0), ("GCOUNT", 1)])
    out.extend((c for c in readable(hdu.header).cards if not _TABLE_CARD.match(c.keyword)), bottom=True)
    if hdu.bitpix > 0 and "BLANK" not in out and last(cards, "ZBLANK") is not None:
        out["BLANK"] = last(cards, "ZBLANK")
    return out
