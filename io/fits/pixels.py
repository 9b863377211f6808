# SPDX-License-Identifier: BSD-3-Clause
"""Pixels of one HDU or a section of it: the cards that scale them, the bytes that are read, the type that comes out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numba
import numpy as np
from astropy.io import fits

from skydelta.errors import InputError
from skydelta.io.fits import tiled
from skydelta.io.fits.cards import last, number, text
from skydelta.io.fits.layout import STORED, UNSIGNED, Hdu
from skydelta.io.storage import SPAN, Content
from skydelta.kernels.backend import CPU, Array, Backend
from skydelta.kernels.core.devices import active
from skydelta.kernels.decode import RAW, Decoded, Form, decode, flag_missing, lossless_tiles, swap_in_place

BAND = 1 << 20
"""Bytes that are read and converted together: they stay in the second-level cache."""

RUN, PIECE = 1 << 22, 1 << 19
"""The same where pixels are read to where they stay: of a thread's share, and of what is read and swapped at once. The
share is longer than a large page of memory, which two threads that came to it together would both clear."""

SENT = 1 << 28
"""Bytes of a band that a device decodes as one tile."""

SKIPPED = 1 << 13
"""Bytes of a row outside a section above which rows are read one by one, without them, from a file at hand."""

_Band = tuple[tuple[int, ...], tuple[int, ...]]

Section = tuple[slice, ...]


@dataclass
class Flags:
    """Pixels without a value, flagged while they are decoded: infinite ones become NaN too.

    Attributes
    ----------
    bit : int
    mask : int32
        Made with the pixels, in their shape and where they are; ``bit`` is set where a floating-point pixel has no
        value.
    missing, infinite : int
        Pixels flagged, and those of them that were infinite in the file.
    native : str
        Type that holds the pixels without loss, which is what ``dtype="native"`` gives.
    """

    bit: int
    mask: Array = field(default_factory=lambda: np.empty(0, np.int32))
    missing: int = 0
    infinite: int = 0
    native: str = ""

    def apply(self, pixels: np.ndarray) -> None:
        """Flag pixels that are in memory already."""
        self.native, self.mask = pixels.dtype.name, np.zeros(pixels.shape, np.int32)
        if pixels.dtype.kind == "f":
            self.add(*flag_missing(pixels, self.mask, self.bit))

    def add(self, missing: int, infinite: int) -> None:
        self.missing += int(missing)
        self.infinite += int(infinite)


def read(
    hdu: Hdu,
    content: Content,
    dtype: str,
    section: Section | None,
    threads: int | None = None,
    flags: Flags | None = None,
    backend: Backend = CPU,
) -> tuple[Array, list[str]]:
    """Pixels in native byte order, scaled as FITS 4.0 (4.4.2, 5.2, 10.2) says, and what is odd.

    Parameters
    ----------
    hdu : Hdu
        An image without fault, with pixels.
    content : Content
    dtype : {"native", "float32"}
        native: integers stay integers where nothing scales them (the exact unsigned forms too), nulls make floats.
    section : tuple of slice, optional
        One slice an axis, (y, x) order; only the tiles or rows it touches are read.
    threads : int, optional
        Numba's number when left out; the pixels do not depend on it.
    flags : Flags, optional
        Filled in the same pass.
    backend : Backend
        Where the pixels are decoded and stay.

    Raises
    ------
    InputError
        A card, the structure or tiles, with the value found and the value allowed.
    """
    box = _box(hdu, section)
    form, oddities = scaling(hdu)
    if hdu.kind == "compressed image":
        plan = tiled.plan(hdu, content, form.stored, box, backend)
        coded = replace(
            plan.form, scale=form.scale, zero=form.zero, flip=form.flip,
            blank=None if form.stored.startswith("float") else form.blank,
        )  # fmt: skip
        nullable = coded.blank is not None or bool(plan.tiles.has_blank.any())
        corner = tuple(s.start for s in box)

        def fill(out: Array, as_form: Form) -> Decoded:
            done = decode(
                out, plan.heap.bytes, plan.tiles, as_form, corner=corner, threads=threads,
                mask=None if flags is None else flags.mask, mask_bit=0 if flags is None else flags.bit,
                ready=plan.heap.wait,
            )  # fmt: skip
            if done.status.any():
                raise tiled.fault(plan, done.status)
            return done

        with plan.heap:
            pixels = _typed(box, coded, nullable, dtype, fill, flags, backend)
        return pixels, [*oddities, *plan.oddities]
    nullable = form.blank is not None
    if backend.is_gpu:
        pixels = _raw_on_device(hdu, content, box, form, nullable, dtype, threads, flags, backend)
    else:
        pixels = _typed(
            box, form, nullable, dtype, lambda out, as_form: _raw(hdu, content, box, out, as_form, threads, flags),
            flags, backend,
        )  # fmt: skip
    return pixels, oddities


def header_of(hdu: Hdu) -> fits.Header:
    """The header of an image, compressed or not. astropy takes longer for its cards than a device for its pixels."""
    return tiled.image_header(hdu) if hdu.kind == "compressed image" else hdu.header


def _box(hdu: Hdu, section: Section | None) -> Section:
    if section is None:
        return tuple(slice(0, n) for n in hdu.shape)
    if len(section) != len(hdu.shape):
        raise InputError(f"section of {len(section)} axes; shape {hdu.shape} needs {len(hdu.shape)}")
    box = []
    for s, n in zip(section, hdu.shape, strict=True):
        start, stop, step = s.indices(n)
        if step != 1 or start >= stop:
            raise InputError(
                f"section {start}:{stop}:{step} of an axis of {n} pixels; at least one pixel, in steps of 1"
            )
        box.append(slice(start, stop))
    return tuple(box)


def _typed(
    box: Section,
    form: Form,
    nullable: bool,
    dtype: str,
    fill: Callable[[Array, Form], Decoded],
    flags: Flags | None,
    backend: Backend,
) -> Array:
    """An array of the type asked for, filled; integers that may be null stay integers only if none is."""
    shape = tuple(s.stop - s.start for s in box)
    exact = form.stored.startswith(("int", "uint")) and form.flip and nullable
    wanted = "float32" if dtype == "float32" else form.native(nullable and not exact)
    with active(backend):
        out = backend.xp.empty(shape, wanted)
        if flags is not None:
            flags.mask = backend.xp.zeros(shape, np.int32)
        done = fill(out, form)
    empty = exact and int(done.nulls.sum()) == 0
    native = form.native(nullable and not empty)
    if out.dtype.kind != "f" and native != wanted:
        zero = next(zero for (_, zero), name in UNSIGNED.items() if name == wanted)
        with active(backend):
            out = backend.xp.empty(shape, native)
            done = fill(out, replace(form, flip=False, zero=float(zero)))
    if flags is not None:
        flags.native = native
        flags.add(done.missing.sum(), done.infinite.sum())
    return out


def scaling(hdu: Hdu) -> tuple[Form, list[str]]:
    """Type, BSCALE, BZERO and BLANK of an image, and what is odd about them.

    Raises
    ------
    InputError
        One of them is not a number that can be used.
    """
    cards = hdu.cards
    oddities = []
    for key in ("BSCALE", "BZERO", "BLANK"):
        if (n := cards.count(key)) > 1:
            oddities.append(f"{key} is given {n} times; the last one is used")
        if n and cards.spelling(key) != key:
            oddities.append(f"{cards.spelling(key)} is not in upper case; it is used as {key}")
    scale, zero = number(cards, "BSCALE", 1.0), number(cards, "BZERO", 0.0)
    for key in ("BSCALE", "BZERO"):
        if isinstance(last(cards, key), str):
            oddities.append(f"{key} is a text; its number is used")
    if not np.isfinite(scale) or not np.isfinite(zero) or scale == 0:
        raise InputError(f"BSCALE = {scale}, BZERO = {zero}; finite numbers and BSCALE other than 0 are needed")
    stored = STORED[hdu.bitpix]
    blank = last(cards, "BLANK")
    if blank is not None and hdu.bitpix < 0:
        if hdu.kind == "image":
            oddities.append(f"BLANK = {blank!r} on floating-point pixels is ignored")
        blank = None
    else:
        blank = tiled.blank_card(cards, "BLANK")
    if scale == 1 and (hdu.bitpix, zero) in UNSIGNED:
        return Form(stored, flip=True, blank=blank), oddities
    return Form(stored, scale, zero, blank=blank), oddities


def nulls(hdu: Hdu) -> str:
    """What stands for a missing pixel, in words: NaN, ``BLANK = -32768``, ``ZBLANK of each tile``, or nothing."""
    if not hdu.is_image or not hdu.shape or hdu.fault:
        return ""
    floating = hdu.bitpix < 0
    said = ["NaN"] if floating else []
    if hdu.kind == "compressed image":
        columns = {text(hdu.cards, f"TTYPE{i}").upper() for i in range(1, 1000) if f"TTYPE{i}" in hdu.cards}
        if "ZBLANK" in columns:
            said.append("ZBLANK of each tile")
        elif (value := last(hdu.cards, "ZBLANK")) is not None:
            said.append(f"ZBLANK = {value}")
    if not floating and "BLANK" in hdu.cards:
        said.append(f"BLANK = {last(hdu.cards, 'BLANK')}")
    return ", ".join(said)


def _raw(
    hdu: Hdu, content: Content, box: Section, out: np.ndarray, form: Form, threads: int | None, flags: Flags | None
) -> Decoded:
    """Read, swap, scale and flag uncompressed pixels band by band; one row of `Decoded` a thread."""
    itemsize = np.dtype(form.stored).itemsize
    plain = not form.scaled and form.blank is None and out.dtype == form.native(False)
    if plain and all((s.start, s.stop) == (0, n) for s, n in zip(box[1:], hdu.shape[1:], strict=True)):
        return _in_place(
            hdu, content, box[0].start * math.prod(hdu.shape[1:]) * itemsize, out, form.flip, threads, flags
        )
    bands = list(_bands(hdu.shape, box, itemsize, max(BAND, content.span)))
    turn = itertools.count()
    corner = tuple(s.start for s in box)
    largest = max(math.prod(extent) for _, extent in bands) * itemsize
    width = box[-1].stop - box[-1].start
    narrow = len(box) > 1 and (hdu.shape[-1] - width) * itemsize >= SKIPPED and content.span <= SPAN
    mask, bit = (None, 0) if flags is None else (flags.mask, flags.bit)

    def work() -> np.ndarray:
        buffer, found = np.empty(largest, np.uint8), np.zeros(3, np.int64)
        while (i := next(turn)) < len(bands):
            origin, extent = bands[i]
            start = int(np.ravel_multi_index(origin, hdu.shape)) * itemsize
            if narrow:
                origin, extent = (*origin[:-1], box[-1].start), (*extent[:-1], width)
                rows = buffer[: math.prod(extent) * itemsize].reshape(-1, width * itemsize)
                for k, row in enumerate(rows):
                    _fill(hdu, content, start + (k * hdu.shape[-1] + box[-1].start) * itemsize, row)
            size = math.prod(extent) * itemsize
            if not narrow:
                _fill(hdu, content, start, buffer[:size])
            tiles = lossless_tiles(np.array([0]), np.array([size]), RAW, np.array([origin]), np.array([extent]))
            done = decode(
                out, buffer[:size], tiles, form, corner=corner, mask=mask, mask_bit=bit, threads=1
            )  # fmt: skip
            found += (done.nulls[0], done.missing[0], done.infinite[0])
        return found

    return _counted(_shared(work, len(bands), threads))


def _raw_on_device(
    hdu: Hdu,
    content: Content,
    box: Section,
    form: Form,
    nullable: bool,
    dtype: str,
    threads: int | None,
    flags: Flags | None,
    backend: Backend,
) -> Array:
    """Uncompressed pixels: what a section touches is sent as it is, and decoded in one launch.

    Everything that can be done before the bytes are there is done while they are on their way.
    """
    itemsize = np.dtype(form.stored).itemsize
    bands = list(_bands(hdu.shape, box, itemsize, SENT))
    width = box[-1].stop - box[-1].start
    if len(box) > 1 and (hdu.shape[-1] - width) * itemsize >= SKIPPED and content.span <= SPAN:
        rows = itertools.product(*(range(s.start, s.stop) for s in box[:-1]))
        bands = [((*row, box[-1].start), (*(1 for _ in row), width)) for row in rows]
    origin, extent = (np.array(part, np.int64) for part in zip(*bands, strict=True))
    start = np.ravel_multi_index(tuple(origin.T), hdu.shape).astype(np.int64) * itemsize
    size = np.prod(extent, axis=1, dtype=np.int64) * itemsize
    with tiled.gather(content, hdu.data, start, size, backend) as heap:

        def fill(out: Array, as_form: Form) -> Decoded:
            return decode(
                out, heap.bytes, lossless_tiles(heap.offset, size, RAW, origin, extent), as_form,
                corner=tuple(s.start for s in box), mask=None if flags is None else flags.mask,
                mask_bit=0 if flags is None else flags.bit, threads=threads, ready=heap.wait,
            )  # fmt: skip

        return _typed(box, form, nullable, dtype, fill, flags, backend)


def _counted(found: list[np.ndarray]) -> Decoded:
    """Nulls, missing and infinite pixels that threads have counted."""
    return Decoded(np.zeros(len(found), np.int32), *np.stack(found, axis=1))


def _in_place(
    hdu: Hdu, content: Content, start: int, out: np.ndarray, flip: bool, threads: int | None, flags: Flags | None
) -> Decoded:
    """Pixels that follow each other in the file and need no more than a swap: read to where they stay."""
    flat = out.reshape(-1)
    mask = None if flags is None or out.dtype.kind != "f" else flags.mask.reshape(-1)
    share = max(RUN, content.span) // out.itemsize
    part = max(PIECE, content.span) // out.itemsize
    turn = itertools.count()

    def work() -> np.ndarray:
        found = np.zeros(3, np.int64)
        while (first := next(turn) * share) < flat.size:
            stop = min(first + share, flat.size)
            for at in range(first, stop, part):
                to = min(at + part, stop)
                pixels = flat[at:to]
                _fill(hdu, content, start + at * out.itemsize, pixels.view(np.uint8))
                swap_in_place(pixels, flip)
                if mask is not None and flags is not None:
                    found[1:] += flag_missing(pixels, mask[at:to], flags.bit)
        return found

    return _counted(_shared(work, -(-flat.size // share), threads))


def _fill(hdu: Hdu, content: Content, start: int, out: np.ndarray) -> None:
    """Bytes of the data unit from ``start``."""
    got = content.read_into(hdu.data + start, out)
    if got != len(out):
        raise InputError(f"data are truncated: {hdu.size} bytes expected, {start + got} present")


def _shared(work: Callable[[], Any], pieces: int, threads: int | None) -> list[Any]:
    """Results of ``work`` in as many threads as there are pieces for."""
    workers = min(threads or numba.get_num_threads(), pieces)
    if workers == 1:
        return [work()]
    with ThreadPoolExecutor(workers) as pool:
        return [f.result() for f in [pool.submit(work) for _ in range(workers)]]


def _bands(shape: tuple[int, ...], box: Section, itemsize: int, band: int) -> Iterator[_Band]:
    """(first pixel, size) of contiguous pieces of an image that cover a section, each of ``band`` bytes or one row."""
    # pieces are ranges along the slowest axis behind which all is wanted and small; rows are read whole
    axis = len(shape) - 1
    while axis > 0:
        whole = axis == len(shape) - 1 or (box[axis].start, box[axis].stop) == (0, shape[axis])
        if not whole or (axis < len(shape) - 1 and math.prod(shape[axis:]) * itemsize > band):
            break
        axis -= 1
    behind = tuple(shape[axis + 1 :])
    step = max(band // (math.prod(behind) * itemsize), 1)
    for outer in itertools.product(*(range(s.start, s.stop) for s in box[:axis])):
        for start in range(box[axis].start, box[axis].stop, step):
            stop = min(start + step, box[axis].stop)
            yield (*outer, start, *(0 for _ in behind)), (*(1 for _ in outer), stop - start, *behind)
