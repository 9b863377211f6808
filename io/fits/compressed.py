# SPDX-License-Identifier: BSD-3-Clause
"""Images as compressed tiles in a binary table (FITS 4.0, section 10): pixels are coded where they are, and what goes
to the host is the compressed bytes.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from astropy.io import fits

from skydelta.errors import ConfigError
from skydelta.kernels import encode
from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.kernels.deflate import gzip_encode

METHODS = ("RICE_1", "GZIP_2")

DITHER = "SUBTRACTIVE_DITHER_2"

LEVEL = 16.0
"""Quantisation steps in one standard deviation of the noise where no others are asked for."""

SHORT = 2**31 - 1
"""Largest heap that descriptors of 32 bits reach."""


@dataclass(frozen=True)
class Compression:
    """How the images of a file are compressed.

    Attributes
    ----------
    method : {"RICE_1", "GZIP_2"}
        GZIP_2 is lossless. RICE_1 is lossless for integers; floats are quantised first.
    level : float, optional
        Of RICE_1, 16 when left out: quantisation steps in one standard deviation of the noise of a tile. Each restored
        value is at most half a step off, and the noise variance grows by 1 / (12 level^2), which is 0.03 % at 16 and
        0.5 % at 4.
    tile : (int, int) or None
        Rows and columns of a tile; None for one row.

    Raises
    ------
    ConfigError
        A value is not allowed, or has no effect.
    """

    method: str
    level: float | None = None
    tile: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"write: compression {self.method!r}; allowed are None, {', '.join(METHODS)}")
        if self.level is not None and self.method != "RICE_1":
            raise ConfigError(
                f"write: quantise_level with compression {self.method!r}, which is lossless; RICE_1 takes it"
            )
        if not (isinstance(self.steps, int | float) and math.isfinite(self.steps) and 1 <= self.steps <= 1000):
            raise ConfigError(f"write: quantise_level {self.level!r}; 1 to 1000 is allowed")
        if self.tile is not None and not (
            isinstance(self.tile, tuple | list)
            and len(self.tile) == 2
            and all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in self.tile)
        ):
            raise ConfigError(f"write: tile {self.tile!r}; (rows, columns), each at least 1, are needed")

    @property
    def steps(self) -> float:
        """``level``, or what is used without one."""
        return LEVEL if self.level is None else self.level

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
    numbers: dict[str, np.ndarray] = {}
    if floats and compression.method == "RICE_1":
        columns, numbers = _quantised(pixels, tile, compression.steps, seed)
        cards = [("ZQUANTIZ", DITHER, "how floats became integers"), ("ZDITHER0", seed, "start of the dither numbers")]
        cards += [("ZBLANK", encode.NULL, "integer of NaN")]
    else:
        stored = _flipped(pixels) if unsigned else pixels
        use = backend_of(pixels).xp.ones(math.prod(encode.tile_counts(pixels.shape, tile)), bool)
        rice = compression.method == "RICE_1"
        coded, sizes = encode.rice_encode(stored, tile, use) if rice else gzip_encode(stored, tile, use, shuffle=True)
        columns = {"COMPRESSED_DATA": (to_host(sizes), to_host(coded))}
    table, heap = _table(columns, numbers)
    if compression.method == "RICE_1":
        parameters += [("BLOCKSIZE", encode.BLOCK, "pixels in a block")]
        parameters += [("BYTEPIX", 4 if floats else pixels.dtype.itemsize, "bytes of a pixel")]
    if numbers:
        parameters += [("NOISEBIT", float(compression.steps), "steps in one sigma of the noise")]
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
    columns = {"COMPRESSED_DATA": (to_host(sizes), to_host(streams))}
    lossless, kept = np.zeros(len(good), np.int64), np.empty(0, np.uint8)
    if not to_host(good).all():
        lossless, kept = map(to_host, reversed(gzip_encode(pixels, tile, ~good, shuffle=False)))
    columns["GZIP_COMPRESSED_DATA"] = (lossless, kept)
    return columns, {"ZSCALE": to_host(scale), "ZZERO": to_host(zero)}


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
