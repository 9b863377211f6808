# SPDX-License-Identifier: BSD-3-Clause
"""Bytes of a FITS data unit to pixels: decompress, unquantise, swap, scale, flag nulls and store, a tile at a time.

This front knows nothing of headers. Its caller turns an HDU into a `Tiles` table (one row a tile, struct of arrays) and
a `Form` (what is the same for all tiles), so that one call, and on a device one launch for each codec in use, decodes
the whole HDU or the part of it that a window cuts out. An uncompressed image is a table of `RAW` tiles: bands of rows.

The order for one stored value ``s`` at index ``j`` of its tile (axis of ``extent[-1]`` fastest):

1. decompress to ``s``: an integer for `RICE`, `PLIO`, `HCOMPRESS` and for quantised tiles; for `RAW`, `GZIP1`, `GZIP2`
   a big-endian element whose width is bytes / pixels (1, 2, 4, 8), a float when ``Form.stored`` is one, the tile is not
   quantised and the width is 4 or 8; 1-byte integers are unsigned, wider ones signed. In an integer image ``s`` is cut
   to the width of ``Form.stored``;
2. null test in the stored domain: integer ``s`` equal to ``Tiles.blank[t]`` (if ``has_blank[t]``) or ``Form.blank``;
3. quantised tiles: ``(s - R + 0.5) * scale[t] + zero[t]`` in double, each operation rounded (no fused multiply-add),
   ``R`` from `dither_table`; without dither ``s * scale[t] + zero[t]``; with ``Form.exact_zero`` an ``s`` of
   `EXACT_ZERO` in a dithered tile gives 0.0; the result is rounded to ``Form.stored``;
4. ``value * Form.scale + Form.zero`` in ``Form.arithmetic`` (skipped for 1, 0; a product of -0.0 plus a zero of 0 stays
   -0.0); or, with ``Form.flip``, the top bit inverted and the value taken as of the other signedness;
5. rounded to the type of ``out``; a null becomes NaN in a floating-point ``out``, and stays ``s`` in an integer one;
6. with a mask, an infinite result becomes NaN, and ``mask |= mask_bit`` where a floating-point result is NaN.

The random number of pixel ``j``: with ``i = dither[t]`` and ``p = int(R[i] * float32(STRETCH))``, pixel 0 takes
``R[p]``, the next ``R[p + 1]``; when ``p`` reaches `COUNT`, ``i`` becomes ``(i + 1) % COUNT`` and ``p`` starts again.
Null and zero pixels use up a number too.

Sources: FITS 4.0 sections 4.4.2, 5.2, 10.1 to 10.4 and appendix I (quantisation); Rice, Yeh and Miller 1993
(AIAA-93-4541); White, Postman and Lattanzi 1992 (H-compress); Tody 1990 (pixel lists).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance, implementation, register
from skydelta.kernels.dither import COUNT

SPEC = register(
    KernelSpec(
        name="decode",
        twin="skydelta.kernels.cpu.decode:decode",
        launch="skydelta.kernels.cuda.decode:decode",
        reference="skydelta.kernels.cpu.reference_decode:decode",
        entries=(
            CudaEntry("decode.cu", "rice_tiles", (("4",), ("8",), ("16",), ("32",))),
            CudaEntry("decode.cu", "stored_tiles"),
        ),
        halo="the tile",
        bytes_per_pixel=6.0,
        tolerance=Tolerance(0.0, 0.0, "integers, and steps that round alike everywhere: the same values"),
    )
)

RAW, RICE, GZIP1, GZIP2, PLIO, HCOMPRESS = range(6)
"""Values of `Tiles.codec`."""

LONGEST_GZIP = 1 << 17
"""Bytes of a GZIP tile that a device inflates, at most: a warp inflates a tile, and the longest one sets the time."""

LOSSLESS, NO_DITHER = -2, -1
"""Values of `Tiles.dither` besides the index into `dither_table`."""

EXACT_ZERO = -2147483646
"""Stored value that SUBTRACTIVE_DITHER_2 keeps for exactly zero."""

FAULTS = {
    1: "its bytes lie outside the heap",
    2: "the stream ends before its last pixel",
    3: "the stream goes on after its last pixel",
    4: "a Rice selector is out of range",
    5: "the stream holds another number of pixels than the tile",
    6: "the stream does not start with its magic bytes",
    7: "the deflate stream is damaged",
    8: "the line list is damaged",
    9: "scale or number of bit planes is out of range",
    10: "a bit plane starts with an unknown code",
}
"""`Decoded.status` of a tile that could not be decoded; 0 is success. On the host nothing of such a tile is stored; a
device stores while it decodes, so that pixels and mask of the tile are not to be used."""

(OUTSIDE, SHORT, TRAILING, SELECTOR, SIZE, MAGIC, DEFLATE, LINES, PLANES, CODE) = FAULTS


@dataclass(frozen=True)
class Tiles:
    """n tiles of an image of d axes (slowest first), host arrays, C-contiguous.

    Attributes
    ----------
    offset, length : int64 (n,)
        Bytes of the tile in the heap; checked against the heap here too, the caller's numbers are not trusted.
    codec : uint8 (n,)
        `RAW`, `RICE`, `GZIP1`, `GZIP2`, `PLIO` or `HCOMPRESS`; may differ from tile to tile (fallback columns).
    origin, extent : int64 (n, d)
        First pixel and size of the tile in the image; edge tiles are already cut to the image.
    dither : int32 (n,)
        `LOSSLESS`: not quantised. `NO_DITHER`: quantised without dither. 0 to 9999: quantised, and the index into
        `dither_table` with which the tile starts: (table row + ZDITHER0 - 1) mod 10000, table rows counted from 0.
    scale, zero : float64 (n,)
        ZSCALE and ZZERO; read where ``dither >= NO_DITHER``.
    blank : int64 (n,)
        Stored integer that means null; read where ``has_blank``.
    has_blank : uint8 (n,)
    """

    offset: np.ndarray
    length: np.ndarray
    codec: np.ndarray
    origin: np.ndarray
    extent: np.ndarray
    dither: np.ndarray
    scale: np.ndarray
    zero: np.ndarray
    blank: np.ndarray
    has_blank: np.ndarray

    def __len__(self) -> int:
        return len(self.offset)

    def pixels(self) -> np.ndarray:
        """int64 (n,): pixels of each tile."""
        pixels = self.extent[:, 0].copy()
        for axis in range(1, self.extent.shape[1]):
            pixels *= self.extent[:, axis]
        return pixels

    def take(self, rows: np.ndarray) -> Tiles:
        """The tiles of these rows."""
        return Tiles(*(np.ascontiguousarray(getattr(self, name)[rows]) for name in self.__dataclass_fields__))


def lossless_tiles(offset: np.ndarray, length: np.ndarray, codec: int, origin: np.ndarray, extent: np.ndarray) -> Tiles:
    """Tiles without quantisation and without null value."""
    n = len(offset)
    return Tiles(
        np.ascontiguousarray(offset, np.int64),
        np.ascontiguousarray(length, np.int64),
        np.full(n, codec, np.uint8),
        np.ascontiguousarray(origin, np.int64),
        np.ascontiguousarray(extent, np.int64),
        np.full(n, LOSSLESS, np.int32),
        np.ones(n),
        np.zeros(n),
        np.zeros(n, np.int64),
        np.zeros(n, np.uint8),
    )


@dataclass(frozen=True)
class Form:
    """What all tiles of an image share.

    Attributes
    ----------
    stored : {"uint8", "int16", "int32", "int64", "float32", "float64"}
        Type of the image before scaling (BITPIX or ZBITPIX).
    scale, zero : float
        BSCALE and BZERO; 1 and 0 with ``flip``.
    flip : bool
        The exact unsigned forms (signed for 8 bits): the top bit is inverted.
    blank : int or None
        BLANK: a stored integer that means null, in every tile.
    exact_zero : bool
        SUBTRACTIVE_DITHER_2.
    rice_block, rice_bytes : int
        BLOCKSIZE and BYTEPIX of `RICE`: 1 to 4096; 1, 2 or 4.
    smooth : bool
        SMOOTH of `HCOMPRESS`.
    """

    stored: str
    scale: float = 1.0
    zero: float = 0.0
    flip: bool = False
    blank: int | None = None
    exact_zero: bool = False
    rice_block: int = 32
    rice_bytes: int = 4
    smooth: bool = False

    @property
    def scaled(self) -> bool:
        return (self.scale, self.zero) != (1.0, 0.0)

    @property
    def arithmetic(self) -> str:
        """Type in which step 4 computes."""
        return "float32" if self.stored in ("uint8", "int16", "float32") else "float64"

    def native(self, nullable: bool) -> str:
        """Type that holds the pixels without loss; ``nullable``: integers may be null."""
        if self.stored.startswith("float"):
            return self.stored
        if self.scaled or nullable:
            return self.arithmetic
        if not self.flip:
            return self.stored
        return {"uint8": "int8"}.get(self.stored, f"u{self.stored}")


@dataclass(frozen=True)
class Decoded:
    """What became of n tiles.

    Attributes
    ----------
    status : int32 (n,)
        0 or a key of `FAULTS`.
    nulls : int64 (n,)
        Integer pixels of the tile inside the window that are null.
    missing, infinite : int64 (n,)
        Pixels of the tile that step 6 flags, and those of them that were infinite; 0 without a mask.
    """

    status: np.ndarray
    nulls: np.ndarray
    missing: np.ndarray
    infinite: np.ndarray


def decode(
    out: Array,
    heap: Array,
    tiles: Tiles,
    form: Form,
    *,
    corner: tuple[int, ...] | None = None,
    mask: Array | None = None,
    mask_bit: int = 0,
    threads: int | None = None,
    ready: Callable[[], None] | None = None,
) -> Decoded:
    """Decode tiles into an image or a window of it.

    Parameters
    ----------
    out : array of d axes, C-contiguous
        Receives the pixels of the tiles that lie in it; everything else is left as it is. float32,
        ``form.native(False)`` or ``form.native(True)``.
    heap : uint8 (m,), C-contiguous
        On the host, or where ``out`` is. Nothing outside it is read, but for the rest of its first 4-byte word.
    tiles : Tiles
        On the host.
    form : Form
    corner : tuple of int (d,), optional
        Image coordinates of ``out[0, 0, ...]``; zeros when left out. Parts of tiles outside the window are decoded
        where the codec needs it, and not stored.
    mask : int32, the shape of ``out``, optional
        ``mask_bit`` is set where a floating-point ``out`` is NaN or infinite; the latter becomes NaN. Left alone by an
        integer ``out``, and not touched where no bit is set.
    mask_bit : int
    threads : int, optional
        Host threads; Numba's number when left out. The result does not depend on it.
    ready : callable, optional
        Called, perhaps more than once, before a byte of the heap is looked at and after what does not need any: a heap
        may still be on its way. What it raises comes through.

    Returns
    -------
    Decoded

    Raises
    ------
    ValueError
        Shapes or types that do not fit together: a mistake of the caller, not of a file.
    """
    corner = (0,) * out.ndim if corner is None else tuple(int(c) for c in corner)
    _check(out, heap, tiles, form, corner, mask)
    return implementation(SPEC, backend_of(out))(
        out, heap, tiles, form, corner, mask, mask_bit, threads, ready
    )  # fmt: skip


def _check(out: Array, heap: Array, tiles: Tiles, form: Form, corner: tuple[int, ...], mask: Array | None) -> None:
    d = out.ndim
    if not (out.flags.c_contiguous and heap.flags.c_contiguous and heap.dtype == np.uint8 and heap.ndim == 1):
        raise ValueError("decode: out and heap must be C-contiguous, heap uint8 of one axis")
    allowed = ("float32", form.native(False), form.native(True))
    if out.dtype.name not in allowed:
        raise ValueError(f"decode: out is {out.dtype}; allowed: {', '.join(allowed)}")
    if tiles.origin.shape != (len(tiles), d) or tiles.extent.shape != (len(tiles), d) or len(corner) != d:
        raise ValueError(f"decode: tiles of {tiles.origin.shape}, corner {corner}, out of {d} axes")
    if len(tiles) and (tiles.extent.min() < 1 or tiles.dither.max() >= COUNT or tiles.codec.max() > HCOMPRESS):
        raise ValueError("decode: extents of at least 1, dither below 10000 and codecs of this module are needed")
    if not 1 <= form.rice_block <= 4096 or form.rice_bytes not in (1, 2, 4):
        raise ValueError(f"decode: Rice blocks of {form.rice_block} pixels, {form.rice_bytes} bytes a pixel")
    if backend_of(heap).is_gpu and backend_of(heap).index != (backend_of(out).index if backend_of(out).is_gpu else -1):
        raise ValueError("decode: the heap must be on the host or where out is")
    if mask is not None and (mask.shape != out.shape or mask.dtype != np.int32 or not mask.flags.c_contiguous):
        raise ValueError("decode: mask must be int32, C-contiguous, of the shape of out")


def is_decoded_there(codec: int, tile_bytes: int) -> bool:
    """Whether a device decodes tiles of a codec from its own memory, so that the heap goes there as it is.

    Parameters
    ----------
    codec : int
    tile_bytes : int
        Of the pixels of a tile.
    """
    return codec in (RICE, RAW) or (codec in (GZIP1, GZIP2) and tile_bytes <= LONGEST_GZIP)


def swap_in_place(pixels: Array, flip: bool) -> None:
    """Big-endian pixels to native ones where they are: what `decode` does with `RAW` tiles that need nothing else.

    Parameters
    ----------
    pixels : array of any shape, C-contiguous, on the host
        Read from a file as it is.
    flip : bool
        As `Form.flip`.
    """
    from skydelta.kernels.cpu import decode_store

    bits = pixels.reshape(-1).view("uint8" if pixels.itemsize == 1 else f"int{8 * pixels.itemsize}")
    if flip or pixels.itemsize > 1:
        top = np.array(1 << (8 * pixels.itemsize - 1) if flip else 0, f"u{pixels.itemsize}")
        decode_store.swap(bits, top.view(bits.dtype)[()])


def flag_missing(pixels: Array, mask: Array, mask_bit: int) -> tuple[int, int]:
    """Step 6 of the decoding, for pixels that are in memory already.

    Parameters
    ----------
    pixels : floating-point array of any shape, C-contiguous, on the host
        Infinite values become NaN.
    mask : int32, the same shape, C-contiguous
    mask_bit : int

    Returns
    -------
    (int, int)
        Pixels that are NaN now, and those of them that were infinite.
    """
    from skydelta.kernels.cpu import decode_store

    return decode_store.flag(pixels.reshape(-1), mask.reshape(-1), np.int32(mask_bit))


def expand_lzw(data: np.ndarray, limit: int) -> np.ndarray | None:
    """The bytes of a file that compress has written (``.Z``); None if it is damaged or holds more than ``limit``.

    Parameters
    ----------
    data : uint8 (n,)
        On the host, from the magic bytes on.
    limit : int
    """
    from skydelta.kernels.cpu import lzw

    size = int(lzw.expand(data, np.empty(0, np.uint8))) if len(data) >= lzw.HEADER else -1
    if not 0 <= size <= limit:
        return None
    out = np.empty(size, np.uint8)
    lzw.expand(data, out)
    return out
