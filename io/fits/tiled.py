# SPDX-License-Identifier: BSD-3-Clause
"""Tile-compressed images: the structure is checked here, the tiles are decoded by astropy.

The C decoders trust sizes that come from the file, so whatever they would trust (tile grid, descriptors, sizes inside
the streams) is checked before they see a byte (FITS 4.0, 10.1 to 10.4).
"""

from __future__ import annotations

import math
import re
import struct
import warnings
from dataclasses import dataclass

import numpy as np
from astropy.io import fits

from skydelta.errors import InputError
from skydelta.io.fits.layout import BLOCK, Hdu, last, text

METHODS = ("NOCOMPRESS", "RICE_1", "GZIP_1", "GZIP_2", "PLIO_1", "HCOMPRESS_1")
RICE_BLOCKS = (16, 32)
RICE_BYTES = (1, 2, 4)
HCOMPRESS_MAGIC = b"\xdd\x99"
MAX_RATIO = 5000
"""Pixel bytes per stored byte above which a size of more than a gigabyte is not believed."""

DATA_COLUMNS = {"COMPRESSED_DATA": "", "GZIP_COMPRESSED_DATA": "GZIP_1", "UNCOMPRESSED_DATA": "NOCOMPRESS"}
"""Columns that hold tiles and the method they imply; empty: that of the header."""

_FORM = re.compile(r"(\d*)(?:([PQ])([LXBAIJKEDCM])|([LXBAIJKEDCM]))")


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

    def slices(self, row: int) -> tuple[slice, ...]:
        """The pixels of the tile in table row ``row``; edge tiles are cut to the image."""
        index = np.unravel_index(row, self.counts)
        return tuple(slice(i * t, min((i + 1) * t, n)) for i, t, n in zip(index, self.tile, self.shape, strict=True))

    def pixels(self) -> np.ndarray:
        """int64 (n,): pixels of each tile."""
        per_axis = [
            np.minimum(np.arange(1, c + 1) * t, n) - np.arange(c) * t
            for c, t, n in zip(self.counts, self.tile, self.shape, strict=True)
        ]
        out = np.ones(1, np.int64)
        for lengths in per_axis:
            out = np.multiply.outer(out, lengths).reshape(-1)
        return out


def grid_of(hdu: Hdu) -> TileGrid:
    """The tile grid that a header announces.

    Raises
    ------
    InputError
        ZTILEn or the number of rows is wrong.
    """
    tile = []
    for i, n in enumerate(reversed(hdu.shape)):
        default = n if i == 0 else 1
        t = last(hdu.header, f"ZTILE{i + 1}", default)
        if isinstance(t, bool) or not isinstance(t, int) or t < 1:
            raise InputError(f"ZTILE{i + 1} = {t!r}; an integer of at least 1 is needed")
        tile.append(min(t, max(n, 1)))
    grid = TileGrid(hdu.shape, tuple(reversed(tile)))
    rows = last(hdu.header, "NAXIS2")
    if rows != len(grid):
        raise InputError(f"NAXIS2 = {rows} tiles; {len(grid)} are needed for {hdu.shape} in tiles of {grid.tile}")
    return grid


def check(hdu: Hdu, data: bytes) -> TileGrid:
    """Check everything that the decoders trust.

    Raises
    ------
    InputError
        Names the card or the tile, the value found and the value allowed.
    """
    method = text(hdu.header, "ZCMPTYPE")
    if method not in METHODS:
        raise InputError(f"ZCMPTYPE = {last(hdu.header, 'ZCMPTYPE')!r}; allowed: {', '.join(METHODS)}")
    grid = grid_of(hdu)
    pixel_bytes = math.prod(hdu.shape) * abs(hdu.bitpix) // 8
    if pixel_bytes > max(1 << 30, MAX_RATIO * hdu.size):
        raise InputError(f"{hdu.size} stored bytes cannot hold {pixel_bytes} bytes of pixels {hdu.shape}")
    if method == "RICE_1":
        _check_rice(hdu.header)
    if method == "HCOMPRESS_1" and (len(grid.tile) < 2 or any(t != 1 for t in grid.tile[:-2])):
        raise InputError(f"HCOMPRESS_1 tiles of {grid.tile}; two-dimensional tiles are needed")
    columns = _columns(hdu, data)
    if "COMPRESSED_DATA" not in columns:
        raise InputError("column COMPRESSED_DATA is missing")
    pixels = grid.pixels()
    filled = np.zeros(len(grid), bool)
    for name, column in columns.items():
        _check_extent(name, column, len(data) - column.heap)
        if name not in DATA_COLUMNS:
            continue
        filled |= column.counts > 0
        stream_check = _STREAM_CHECKS.get(DATA_COLUMNS[name] or method)
        if stream_check is None:
            continue
        for row in np.flatnonzero(column.counts > 0):
            start = column.heap + int(column.offsets[row])
            stream = data[start : start + int(column.counts[row]) * column.width]
            fault = stream_check(stream, int(pixels[row]), tuple(s.stop - s.start for s in grid.slices(int(row))))
            if fault:
                raise InputError(f"tile {row}: {fault}", tiles=[int(row)])
    if not filled.all():
        raise InputError(f"{_names(np.flatnonzero(~filled))} of {len(grid)} hold no data in any column")
    return grid


@dataclass(frozen=True)
class _Column:
    """Descriptors of a variable-length column: int64 (n,) counts and byte offsets from ``heap``, bytes per element."""

    counts: np.ndarray
    offsets: np.ndarray
    width: int
    heap: int


_WIDTH = {"L": 1, "B": 1, "A": 1, "I": 2, "J": 4, "K": 8, "E": 4, "D": 8, "C": 8, "M": 16, "P": 8, "Q": 16}


def _columns(hdu: Hdu, data: bytes) -> dict[str, _Column]:
    """The variable-length columns of the table."""
    rows, row_bytes = last(hdu.header, "NAXIS2"), last(hdu.header, "NAXIS1")
    heap = last(hdu.header, "THEAP", row_bytes * rows)
    if isinstance(heap, bool) or not isinstance(heap, int) or not row_bytes * rows <= heap <= len(data):
        raise InputError(f"THEAP = {heap!r}; {row_bytes * rows} to {len(data)} are allowed")
    table = np.frombuffer(data, np.uint8, rows * row_bytes).reshape(rows, row_bytes)
    found: dict[str, _Column] = {}
    at = 0
    for i in range(1, (last(hdu.header, "TFIELDS", 0) or 0) + 1):
        form = text(hdu.header, f"TFORM{i}")
        match = _FORM.match(form)
        if match is None:
            raise InputError(f"TFORM{i} = {form!r} is not a column format")
        repeat, code, element = int(match[1] or 1), match[2] or match[4], match[3]
        nbytes = -(-repeat // 8) if code == "X" else repeat * _WIDTH[code]
        if element in _WIDTH and repeat == 1 and at + nbytes <= row_bytes:
            pairs = np.ascontiguousarray(table[:, at : at + nbytes]).view(">i4" if code == "P" else ">i8")
            name = text(hdu.header, f"TTYPE{i}").upper()
            found[name] = _Column(pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64), _WIDTH[element], heap)
        at += nbytes
    if at != row_bytes:
        raise InputError(f"NAXIS1 = {row_bytes} bytes a row; the columns need {at}")
    return found


def _check_extent(name: str, column: _Column, heap_size: int) -> None:
    """Every descriptor must lie inside the heap."""
    nbytes = column.counts * column.width
    bad = (column.counts < 0) | (column.offsets < 0) | (column.counts > heap_size) | (column.offsets > heap_size)
    bad |= (column.counts > 0) & (nbytes > heap_size - np.where(bad, 0, column.offsets))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"{_names(np.flatnonzero(bad))}: {name} descriptor ({column.counts[row]}, {column.offsets[row]}) "
            f"of tile {row} points outside the heap of {heap_size} bytes",
            tiles=np.flatnonzero(bad).tolist(),
        )


def _check_rice(header: fits.Header) -> None:
    parameters = {
        text(header, f"ZNAME{i}").upper(): last(header, f"ZVAL{i}") for i in range(1, 10) if f"ZNAME{i}" in header
    }
    for name, allowed in (("BLOCKSIZE", RICE_BLOCKS), ("BYTEPIX", RICE_BYTES)):
        if name in parameters and parameters[name] not in allowed:
            raise InputError(f"{name} = {parameters[name]!r}; allowed: {', '.join(map(str, allowed))}")


def _rice_stream(stream: bytes, pixels: int, shape: tuple[int, ...]) -> str | None:
    """A block of 32 pixels takes 3 bits at least, behind a first value of 1 byte at least."""
    least = 1 + 3 * (-(-pixels // 32)) // 8
    return (
        f"{len(stream)} bytes cannot hold {pixels} pixels; at least {least} are needed" if len(stream) < least else None
    )


def _gzip_stream(stream: bytes, pixels: int, shape: tuple[int, ...]) -> str | None:
    if len(stream) < 18 or stream[:2] != b"\x1f\x8b":
        return f"starts with {stream[:2]!r} and has {len(stream)} bytes; a gzip member is needed"
    inflated = struct.unpack("<I", stream[-4:])[0]
    if inflated not in {pixels * width for width in (1, 2, 4, 8)}:
        return f"inflates to {inflated} bytes; {pixels} pixels of 1, 2, 4 or 8 bytes are needed"
    return None


def _plio_stream(stream: bytes, pixels: int, shape: tuple[int, ...]) -> str | None:
    words = np.frombuffer(stream[: len(stream) // 2 * 2], ">i2")
    if len(words) < 3:
        return f"{len(words)} words; at least 3 are needed"
    if words[2] > 0:
        length, first = int(words[2]), 3
    elif len(words) < 7:
        return f"{len(words)} words; at least 7 are needed"
    else:
        length, first = (int(words[4]) << 15) + int(words[3]), int(words[1])
    if not 0 <= first <= length <= len(words):
        return f"line list from word {first} to {length}; {len(words)} words are there"
    return None


def _hcompress_stream(stream: bytes, pixels: int, shape: tuple[int, ...]) -> str | None:
    if len(stream) < 25 or stream[:2] != HCOMPRESS_MAGIC:
        return f"starts with {stream[:2]!r} and has {len(stream)} bytes; an H-compress stream is needed"
    rows, columns, scale = struct.unpack(">3i", stream[2:14])
    if (rows, columns) != shape[-2:]:
        return f"the stream holds {rows} x {columns} pixels; {shape[-2]} x {shape[-1]} are needed"
    if scale < 0 or max(stream[22:25]) > 62:
        return f"scale {scale} and bit planes {tuple(stream[22:25])}; at least 0 and at most 62 are allowed"
    return None


_STREAM_CHECKS = {
    "RICE_1": _rice_stream,
    "GZIP_1": _gzip_stream,
    "GZIP_2": _gzip_stream,
    "PLIO_1": _plio_stream,
    "HCOMPRESS_1": _hcompress_stream,
}


def decode(hdu: Hdu, data: bytes) -> tuple[fits.Header, np.ndarray, list[str]]:
    """Image header, pixels in native byte order (scaled) and what is odd.

    Raises
    ------
    InputError
        A faulty structure, or tiles that cannot be decoded, by number.
    """
    grid = check(hdu, data)
    header, oddities = hdu.header.copy(), []
    if text(header, "ZQUANTIZ").startswith("SUBTRACTIVE") and "ZDITHER0" not in header:
        header["ZDITHER0"] = 1  # FITS 4.0, 10.2.1; some readers take 0, which gives other pixels
        oddities.append("ZDITHER0 is missing; 1 is used")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = _as_astropy(header, data)
            return image.header, np.asarray(image.data), oddities
    except Exception as e:  # the decoders raise whatever they like on damaged streams
        bad = _undecodable(header, data, grid)
        raise InputError(
            f"{_names(bad)} of {len(grid)} cannot be decoded ({text(header, 'ZCMPTYPE')}: {e})", tiles=bad.tolist()
        ) from None


def _as_astropy(header: fits.Header, data: bytes) -> fits.CompImageHDU:
    stub = fits.PrimaryHDU().header.tostring().encode()
    padding = b"\x00" * (-len(data) % BLOCK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fits.HDUList.fromstring(stub + header.tostring().encode("ascii", "replace") + data + padding)[1]


def _undecodable(header: fits.Header, data: bytes, grid: TileGrid) -> np.ndarray:
    """Rows of the tiles that fail when decoded alone; all of them when the image as a whole fails."""
    bad = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = _as_astropy(header, data)
        except Exception:  # as in decode
            return np.arange(len(grid))
        for row in range(len(grid)):
            try:
                image.section[grid.slices(row)]
            except Exception:  # as in decode
                bad.append(row)
    return np.array(bad or range(len(grid)))


def _names(rows: np.ndarray) -> str:
    """``tile 3``, ``tiles 0-7`` or ``tiles 1, 4, ... (9 tiles)``."""
    if len(rows) == 1:
        return f"tile {rows[0]}"
    if np.all(np.diff(rows) == 1):
        return f"tiles {rows[0]}-{rows[-1]}"
    shown = ", ".join(str(r) for r in rows[:8])
    return f"tiles {shown}" + (f", ... ({len(rows)} tiles)" if len(rows) > 8 else "")
