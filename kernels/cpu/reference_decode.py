# SPDX-License-Identifier: BSD-3-Clause
"""Plain decoder of tiles, bit by bit from the texts that define the streams; slow. H-compress is not in it.

Faults raise ValueError: what is compared with it are sound streams.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable

import numpy as np

from skydelta.kernels.backend import CPU
from skydelta.kernels.decode import (
    EXACT_ZERO,
    GZIP1,
    GZIP2,
    NO_DITHER,
    PLIO,
    RAW,
    RICE,
    Decoded,
    Form,
    Tiles,
)
from skydelta.kernels.dither import COUNT, STRETCH, dither_table


def rice(stream: bytes, pixels: int, block: int, nbytes: int) -> np.ndarray:
    """Integers of a Rice stream (FITS 4.0, 10.4.1)."""
    bits = "".join(f"{b:08b}" for b in stream)
    width = 8 * nbytes
    selector, raw = {1: (3, 6), 2: (4, 14), 4: (5, 25)}[nbytes]
    last, at = int(bits[:width], 2), width
    out: list[int] = []
    while len(out) < pixels:
        fs = int(bits[at : at + selector], 2) - 1
        at += selector
        for _ in range(min(block, pixels - len(out))):
            if fs < 0:
                mapped = 0
            elif fs == raw:
                mapped, at = int(bits[at : at + width], 2), at + width
            else:
                one = bits.index("1", at)
                mapped = ((one - at) << fs) | int(bits[one + 1 : one + 1 + fs] or "0", 2)
                at = one + 1 + fs
            last = (last + (mapped // 2 if mapped % 2 == 0 else -(mapped + 1) // 2)) % (1 << width)
            out.append(last - (1 << width) if nbytes > 1 and last >> (width - 1) else last)
    return np.array(out, np.int64)


def plio(stream: bytes, pixels: int) -> np.ndarray:
    """Integers of an IRAF line list (FITS 4.0, 10.4.3)."""
    words = np.frombuffer(stream[: len(stream) // 2 * 2], ">i2").astype(int).tolist()
    start, stop = (3, words[2]) if words[2] > 0 else (words[1], (words[4] << 15) + words[3])
    out: list[int] = []
    value, i = 1, start
    while i < stop:
        code, n = divmod(words[i], 4096)
        i += 1
        if code == 1:
            value, i = (words[i] << 12) + n, i + 1
        elif code in (2, 3):
            value += n if code == 2 else -n
        elif code in (6, 7):
            value += n if code == 6 else -n
            out.append(value)
        else:
            out += {0: [0] * n, 4: [value] * n, 5: [0] * (n - 1) + [value]}[code]
    return np.array((out + [0] * pixels)[:pixels], np.int64)


def values_of(stream: bytes, codec: int, pixels: int, form: Form, quantized: bool) -> np.ndarray:
    """Stored values of a tile, native."""
    if codec == RICE:
        return rice(stream, pixels, form.rice_block, form.rice_bytes)
    if codec == PLIO:
        return plio(stream, pixels)
    if codec in (GZIP1, GZIP2):
        stream = gzip.decompress(stream)
    elif codec != RAW:
        raise ValueError(f"codec {codec} has no plain reference")
    width = len(stream) // pixels
    if codec == GZIP2:
        stream = np.frombuffer(stream, np.uint8).reshape(width, pixels).T.tobytes()
    kind = "f" if form.stored.startswith("float") and not quantized and width >= 4 else "u" if width == 1 else "i"
    return np.frombuffer(stream, f">{kind}{width}").astype(f"{kind}{width}")


def random_numbers(start: int, pixels: int) -> np.ndarray:
    """float64 (pixels,): the dither of a tile."""
    table = dither_table(CPU)
    out: list[np.ndarray] = []
    left, i = pixels, start
    while left > 0:
        part = table[int(table[i] * np.float32(STRETCH)) :][:left]
        out.append(part)
        left -= len(part)
        i = (i + 1) % COUNT
    return np.concatenate(out).astype(np.float64)


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
    """The same arguments as the front, in order; ``threads`` is not used."""
    if ready is not None:
        ready()
    nulls, missing, infinite = (np.zeros(len(tiles), np.int64) for _ in range(3))
    real = np.dtype(form.arithmetic).type
    for t in range(len(tiles)):
        stream = heap[tiles.offset[t] : tiles.offset[t] + tiles.length[t]].tobytes()
        shape = tuple(tiles.extent[t])
        quantized = bool(tiles.dither[t] >= NO_DITHER)
        stored = values_of(stream, int(tiles.codec[t]), int(np.prod(shape)), form, quantized)
        null = np.zeros(len(stored), bool)
        if stored.dtype.kind != "f":
            if not form.stored.startswith("float"):
                stored = stored.astype(form.stored)
            null |= (stored == tiles.blank[t]) & bool(tiles.has_blank[t])
            null |= stored == form.blank if form.blank is not None else False
        value = stored
        if quantized:
            value = stored.astype(np.float64)
            if tiles.dither[t] >= 0:
                value = value - random_numbers(int(tiles.dither[t]), len(stored)) + 0.5
            value = value * tiles.scale[t] + tiles.zero[t]
            if form.exact_zero and tiles.dither[t] >= 0:
                value = np.where(stored == EXACT_ZERO, 0.0, value)
            value = value.astype(form.stored)
        if form.flip:
            bits = stored.view(f"u{stored.itemsize}") ^ np.array(1 << (8 * stored.itemsize - 1), f"u{stored.itemsize}")
            value = bits.view(form.native(False))
        elif form.scaled:
            value = value.astype(form.arithmetic) * real(form.scale)
            value = value + real(form.zero) if form.zero != 0 else value
        value = value.astype(out.dtype)
        if out.dtype.kind == "f":
            value[null] = np.nan
        inside = tuple(
            slice(max(int(o) - c, 0), max(min(int(o) + int(e) - c, n), 0))
            for o, e, c, n in zip(tiles.origin[t], tiles.extent[t], corner, out.shape, strict=True)
        )
        own = tuple(
            slice(s.start + c - int(o), s.stop + c - int(o))
            for s, c, o in zip(inside, corner, tiles.origin[t], strict=True)
        )
        if any(s.start >= s.stop for s in inside):
            continue
        out[inside] = value.reshape(shape)[own]
        nulls[t] = null.reshape(shape)[own].sum()
        if mask is not None and out.dtype.kind == "f":
            unsound = ~np.isfinite(out[inside])
            missing[t], infinite[t] = unsound.sum(), np.isinf(out[inside]).sum()
            out[inside] = np.where(unsound, np.nan, out[inside])
            mask[inside] |= np.where(unsound, np.int32(mask_bit), np.int32(0))
    return Decoded(np.zeros(len(tiles), np.int32), nulls, missing, infinite)
