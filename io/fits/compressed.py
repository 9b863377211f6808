# SPDX-License-Identifier: BSD-3-Clause
"""Images as compressed tiles in a binary table (FITS 4.0, section 10): pixels are coded where they are, and what goes
to the host is the compressed bytes. Deflate has no coder here for a device, so GZIP pixels go to the host first.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from astropy.io import fits

from skydelta.errors import ConfigError
from skydelta.kernels import encode
from skydelta.kernels.backend import Array, backend_of, to_host

METHODS = ("RICE_1", "GZIP_2")

DITHER = "SUBTRACTIVE_DITHER_2"

GZIP_LEVEL = 1
"""Higher ones shrink noise by less than one part in a hundred, at a multiple of the time."""

SHORT = 2**31 - 1
"""Largest heap that descriptors of 32 bits reach."""

_GZIP_BATCH = 64
"""Tiles that a thread compresses at a time."""


@dataclass(frozen=True)
class Compression:
    """How the images of a file are compressed.

    Attributes
    ----------
    method : {"RICE_1", "GZIP_2"}
        GZIP_2 is lossless. RICE_1 is lossless for integers; floats are quantised first.
    level : float
        Quantisation steps in one standard deviation of the noise of a tile: each restored value is at most half a
        step off, and the noise variance grows by 1 / (12 level^2), which is 0.03 % at 16 and 0.5 % at 4.
    tile : (int, int) or None
        Rows and columns of a tile; None for one row.

    Raises
    ------
    ConfigError
        A value is not allowed.
    """

    method: str
    level: float = 16.0
    tile: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"write: compression {self.method!r}; allowed are None, {', '.join(METHODS)}")
        if not (isinstance(self.level, int | float) and math.isfinite(self.level) and 1 <= self.level <= 1000):
            raise ConfigError(f"write: quantise_level {self.level!r}; 1 to 1000 is allowed")
        if self.tile is not None and not (
            len(self.tile) == 2 and all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in self.tile)
        ):
            raise ConfigError(f"write: tile {self.tile!r}; (rows, columns), each at least 1, are needed")

    def tile_for(self, shape: tuple[int, int]) -> tuple[int, int]:
        """The tile of an image: never larger than it."""
        rows, columns = self.tile or (1, shape[1])
        return min(rows, shape[0]), min(columns, shape[1])


def takes(pixels: Array) -> bool:
    """Whether there are pixels, of a type that can be compressed: readers take no 64-bit integers in tiles."""
    return pixels.size > 0 and (pixels.dtype.kind == "f" or pixels.dtype.itemsize <= 4)


def dither_seed(name: str) -> int:
    """ZDITHER0 of an image, from its name: the same file every time, other dither numbers in each plane."""
    return 1 + zlib.crc32(name.encode()) % 10000


def compressed(
    header: fits.Header, pixels: Array, unsigned: bool, compression: Compression
) -> tuple[fits.Header, list[np.ndarray]]:
    """Header and data unit (table, then heap) of a compressed image.

    Parameters
    ----------
    header : astropy.io.fits.Header
        Of the image, uncompressed.
    pixels : array (H, W)
        On any device; as they are, not yet moved by BZERO.
    unsigned : bool
        The stored integers are the pixels with their top bit flipped.
    compression : Compression

    Returns
    -------
    header : astropy.io.fits.Header
        Without checksums.
    parts : list of uint8 arrays
        Unpadded.
    """
    tile = compression.tile_for(pixels.shape)
    floats = pixels.dtype.kind == "f"
    seed = dither_seed(str(header.get("EXTNAME", "")))
    cards: list[tuple[str, Any, str]] = []
    parameters: list[tuple[str, Any, str]] = []
    if compression.method == "GZIP_2":
        streams, sizes = _gzip(_tiles(pixels, tile, unsigned), shuffle=True)
        columns = {"COMPRESSED_DATA": (sizes, streams)}
        numbers: dict[str, np.ndarray] = {}
    elif floats:
        columns, numbers = _quantised(pixels, tile, compression.level, seed)
        cards = [("ZQUANTIZ", DITHER, "how floats became integers"), ("ZDITHER0", seed, "start of the dither numbers")]
        cards += [("ZBLANK", encode.NULL, "integer of NaN")]
    else:
        stored = _flipped(pixels) if unsigned else pixels
        xp = backend_of(pixels).xp
        use = xp.ones(math.prod(encode.tile_counts(pixels.shape, tile)), bool)
        coded, sizes = encode.rice_encode(stored, tile, use)
        columns, numbers = {"COMPRESSED_DATA": (to_host(sizes), to_host(coded))}, {}
    table, heap = _table(columns, numbers)
    if compression.method == "RICE_1":
        parameters += [("BLOCKSIZE", encode.BLOCK, "pixels in a block")]
        parameters += [("BYTEPIX", 4 if floats else pixels.dtype.itemsize, "bytes of a pixel")]
    if numbers:
        parameters += [("NOISEBIT", float(compression.level), "steps in one sigma of the noise")]
    out = _structure(table, sum(len(part) for part in heap), columns, numbers)
    out["ZIMAGE"] = (True, "this table is a compressed image")
    out["ZTENSION"] = ("IMAGE", "the image's own XTENSION")
    for key in ("BITPIX", "NAXIS", "NAXIS1", "NAXIS2", "PCOUNT", "GCOUNT"):
        out[f"Z{key}"] = (header[key], f"the image's own {key}")
    for axis, side in enumerate(reversed(tile), start=1):
        out[f"ZTILE{axis}"] = (side, "pixels of a tile along this axis")
    out["ZCMPTYPE"] = (compression.method, "how tiles are compressed")
    for i, (name, value, comment) in enumerate(parameters, start=1):
        out[f"ZNAME{i}"], out[f"ZVAL{i}"] = name, (value, comment)
    for key, value, comment in cards:
        out[key] = (value, comment)
    own = {*out, "XTENSION"}
    for card in header.cards:
        if card.keyword not in own or card.keyword in ("COMMENT", "HISTORY", ""):
            out.append(card, end=True)
    return out, [table, *heap]


def _flipped(pixels: Array) -> Array:
    """Integers with their top bit flipped; of 8 bits unsigned, of more signed, as FITS stores them."""
    size = pixels.dtype.itemsize
    plain = np.dtype(f"u{size}")
    flipped = pixels.view(plain) ^ plain.type(1 << (8 * size - 1))
    return flipped if size == 1 else flipped.view(f"i{size}")


def _quantised(
    pixels: Array, tile: tuple[int, int], level: float, seed: int
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], dict[str, np.ndarray]]:
    """Rice streams of the quantised tiles, gzip streams of the others, and the columns that restore values."""
    steps, scale, zero, good = encode.quantise_tiles(pixels, tile, level, seed)
    streams, sizes = encode.rice_encode(steps, tile, good)
    whole = ~to_host(good)
    kept, kept_sizes = _gzip(_tiles(pixels, tile, False, whole), shuffle=False)
    lossless = np.zeros(len(whole), np.int64)
    lossless[whole] = kept_sizes
    columns = {"COMPRESSED_DATA": (to_host(sizes), to_host(streams)), "GZIP_COMPRESSED_DATA": (lossless, kept)}
    return columns, {"ZSCALE": to_host(scale), "ZZERO": to_host(zero)}


def _tiles(pixels: Array, tile: tuple[int, int], unsigned: bool, wanted: np.ndarray | None = None) -> list[np.ndarray]:
    """The wanted tiles as big-endian bytes (pixels, bytes of a pixel), in raster order, on the host."""
    ny, nx = encode.tile_counts(pixels.shape, tile)
    numbers = np.arange(ny * nx) if wanted is None else np.flatnonzero(wanted)
    if not len(numbers):
        return []
    if wanted is not None and backend_of(pixels).is_gpu:  # one transfer of the rows of tiles that are wanted
        rows = np.unique(numbers // nx)
        where = {row: i for i, row in enumerate(rows)}
        bands = [pixels[row * tile[0] : (row + 1) * tile[0]] for row in rows]
        host, at = to_host(backend_of(pixels).xp.concatenate(bands)), where
    else:
        host, at = to_host(pixels), {row: row for row in range(ny)}
    size = pixels.dtype.itemsize
    out = []
    for number in numbers:
        row, column = divmod(int(number), nx)
        height = min(tile[0], pixels.shape[0] - row * tile[0])
        y, x = at[row] * tile[0], column * tile[1]
        box = host[y : y + height, x : x + tile[1]]
        raw = np.ascontiguousarray(box).reshape(-1, 1).view(np.uint8).reshape(-1, size)[:, ::-1]
        if unsigned:
            raw = raw ^ np.array([0x80] + [0] * (size - 1), np.uint8)
        out.append(raw)
    return out


def _gzip(tiles: list[np.ndarray], shuffle: bool) -> tuple[np.ndarray, np.ndarray]:
    """gzip members without a time, one for each tile, and their sizes; ``shuffle``: byte planes, top ones first."""

    def batch(start: int) -> list[bytes]:
        out = []
        for raw in tiles[start : start + _GZIP_BATCH]:
            coder = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 31)
            out.append(coder.compress((raw.T if shuffle else raw).tobytes()) + coder.flush())
        return out

    with ThreadPoolExecutor(numba.get_num_threads()) as pool:
        members = [m for made in pool.map(batch, range(0, len(tiles), _GZIP_BATCH)) for m in made]
    return np.frombuffer(b"".join(members), np.uint8), np.array([len(m) for m in members], np.int64)


def _table(
    columns: dict[str, tuple[np.ndarray, np.ndarray]], numbers: dict[str, np.ndarray]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Rows of descriptors and numbers as bytes, and the parts of the heap they point into."""
    kind = ">i4" if sum(len(streams) for _, streams in columns.values()) <= SHORT else ">i8"
    fields = [*((name, kind, (2,)) for name in columns), *((name, ">f8") for name in numbers)]
    rows = np.zeros(len(next(iter(columns.values()))[0]), fields)
    start = 0
    for name, (sizes, streams) in columns.items():
        rows[name][:, 0] = sizes
        rows[name][:, 1] = np.where(sizes > 0, start + np.cumsum(sizes) - sizes, 0)
        start += len(streams)
    for name, values in numbers.items():
        rows[name] = values
    return np.frombuffer(rows.tobytes(), np.uint8), [streams for _, streams in columns.values()]


def _structure(
    table: np.ndarray, heap: int, columns: dict[str, tuple[np.ndarray, np.ndarray]], numbers: Iterable[str]
) -> fits.Header:
    """The mandatory cards of the table."""
    rows = len(next(iter(columns.values()))[0])
    form = "P" if heap <= SHORT else "Q"
    forms = {name: f"1{form}B({int(sizes.max(initial=0))})" for name, (sizes, _) in columns.items()}
    forms |= dict.fromkeys(numbers, "1D")
    cards = [
        ("XTENSION", "BINTABLE", "binary table extension"),
        ("BITPIX", 8, "array data type"),
        ("NAXIS", 2, "number of array dimensions"),
        ("NAXIS1", len(table) // rows, "bytes of a row"),
        ("NAXIS2", rows, "rows: one a tile"),
        ("PCOUNT", heap, "bytes of the heap"),
        ("GCOUNT", 1, "number of groups"),
        ("TFIELDS", len(forms), "number of columns"),
    ]
    for i, (name, text) in enumerate(forms.items(), start=1):
        cards += [(f"TTYPE{i}", name, ""), (f"TFORM{i}", text, "")]
    return fits.Header(cards)
