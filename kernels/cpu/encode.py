# SPDX-License-Identifier: BSD-3-Clause
"""CPU twins of the encoders: tiles side by side, each coded by one thread."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import CPU
from skydelta.kernels.cpu.jit import inline, parallel, prange
from skydelta.kernels.dither import COUNT, STRETCH, dither_table
from skydelta.kernels.encode import BLOCK, LEAST, LEVELS, LOWEST, NOISE, NULL, ZERO, tile_counts

CHUNK = 1 << 16
"""Words that one thread swaps and sums at a time; even, for pixels of two words."""

DIGITS = ((20, 11), (10, 10), (0, 10))
"""(lowest bit, width) of the digits by which the median is found; the sign bit of a distance is 0."""


def big_endian(words: np.ndarray, size: int, flip: bool) -> tuple[np.ndarray, int]:
    out = np.empty_like(words)
    sums = np.zeros(-(-len(words) // CHUNK), np.uint64)
    top = np.uint32(0 if not flip else {1: 0x80808080, 2: 0x80008000, 4: 0x80000000, 8: 0x80000000}[size])
    _swap(words, size, top, out, sums)
    return out, int(sums.sum(dtype=np.uint64))


@inline
def _reversed(word):
    """The four bytes of a word the other way round; Numba computes in 64 bits, hence the cut."""
    return np.uint32(
        ((word >> np.uint32(24)) & np.uint32(0xFF))
        | ((word >> np.uint32(8)) & np.uint32(0xFF00))
        | ((word & np.uint32(0xFF00)) << np.uint32(8))
        | (word << np.uint32(24))
    )


@parallel
def _swap(words, size, top, out, sums):
    for c in prange(len(sums)):
        low, high = c * CHUNK, min((c + 1) * CHUNK, len(words))
        if size == 1:
            for i in range(low, high):
                out[i] = words[i] ^ top
        elif size == 2:
            for i in range(low, high):
                w = words[i] ^ top
                out[i] = ((w & np.uint32(0x00FF00FF)) << np.uint32(8)) | ((w >> np.uint32(8)) & np.uint32(0x00FF00FF))
        elif size == 4:
            for i in range(low, high):
                out[i] = _reversed(words[i] ^ top)
        else:
            for i in range(low, high, 2):
                out[i] = _reversed(words[i + 1] ^ top)
                out[i + 1] = _reversed(words[i])
        total = np.uint64(0)
        for i in range(low, high):
            total += np.uint64(_reversed(out[i]))
        sums[c] = total


def quantise_tiles(
    image: np.ndarray, tile: tuple[int, int], level: float, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    image = np.ascontiguousarray(image)
    ny, nx = tile_counts(image.shape, tile)
    pixels = np.empty(image.shape, np.int32)
    step, zero = np.zeros((2, ny * nx))
    good = np.zeros(ny * nx, bool)
    _quantise(image, *tile, nx, float(level), seed, dither_table(CPU), pixels, step, zero, good)
    return pixels, step, zero, good


@inline
def _usable(v):
    return v - v == 0 and v != 0


@inline
def _distances(image, y0, y1, x0, x1, keys):
    """Bits of |2 x_i - x_(i-2) - x_(i+2)| as float32, of usable triples; returns how many."""
    n = 0
    for y in range(y0, y1):
        row = image[y]
        for x in range(x0 + 2, x1 - 2):
            a, b, c = row[x - 2], row[x], row[x + 2]
            keys[n] = np.float32(abs(2.0 * np.float64(b) - np.float64(a) - np.float64(c)))
            n += _usable(a) and _usable(b) and _usable(c)
    return n


@inline
def _select(keys, n, rank):
    """The rank-th smallest (from 0) of n keys, which are moved about."""
    bins = np.empty(2048, np.int32)
    for shift, width in DIGITS:
        last = np.uint32((1 << width) - 1)
        low = np.uint32(shift)
        bins[:] = 0
        for i in range(n):
            bins[(keys[i] >> low) & last] += 1
        b = 0
        while rank >= bins[b]:
            rank -= bins[b]
            b += 1
        kept = 0
        for i in range(n):
            key = keys[i]
            keys[kept] = key
            kept += ((key >> low) & last) == np.uint32(b)
        n = kept
    return keys[0]


@inline
def _extent(image, y0, y1, x0, x1):
    """Smallest and largest usable value, any NaN or 0, any infinity."""
    low, high = np.inf, -np.inf
    reserved = infinite = False
    for y in range(y0, y1):
        for x in range(x0, x1):
            v = image[y, x]
            if _usable(v):
                low, high = min(low, np.float64(v)), max(high, np.float64(v))
            elif v == 0 or np.isnan(v):
                reserved = True
            else:
                infinite = True
    return low, high, reserved, infinite


@inline
def _steps(image, y0, y1, x0, x1, low, rate, base, entry, table, pixels):
    """Quantise the pixels of a tile; the dither numbers run through its rows."""
    k = int(table[entry] * np.float32(STRETCH))
    for y in range(y0, y1):
        x = x0
        while x < x1:
            run = min(x1 - x, COUNT - k)
            for i in range(run):
                v = image[y, x + i]
                q = np.floor((np.float64(v) - low) * rate + np.float64(table[k + i]))
                if v - v != 0:
                    pixels[y, x + i] = NULL
                elif v == 0:
                    pixels[y, x + i] = ZERO
                else:
                    pixels[y, x + i] = np.int32(np.int64(q) + base)
            x += run
            k += run
            if k == COUNT:
                entry = (entry + 1) % COUNT
                k = int(table[entry] * np.float32(STRETCH))


@parallel
def _quantise(image, th, tw, nx, level, seed, table, pixels, step, zero, good):
    for t in prange(len(good)):
        y0, x0 = t // nx * th, t % nx * tw
        y1, x1 = min(y0 + th, image.shape[0]), min(x0 + tw, image.shape[1])
        keys = np.empty((y1 - y0) * (x1 - x0), np.float32)
        n = _distances(image, y0, y1, x0, x1, keys)
        low, high, reserved, infinite = _extent(image, y0, y1, x0, x1)
        delta = 0.0
        if n >= LEAST and not infinite:
            bits = keys.view(np.uint32)
            median = _select(bits, n, (n - 1) // 2)
            keys.view(np.uint32)[0] = median
            delta = NOISE * np.float64(keys[0]) / level
        if not (0 < delta < np.inf and high - low < LEVELS * delta):
            pixels[y0:y1, x0:x1] = 0
            continue
        base = LOWEST if reserved else 0
        _steps(image, y0, y1, x0, x1, low, 1.0 / delta, base, (t + seed - 1) % COUNT, table, pixels)
        step[t], zero[t], good[t] = delta, low - base * delta, True


SELECTOR = {1: 3, 2: 4, 4: 5}
"""Bits that say how a block is coded, by bytes of a pixel."""

VERBATIM = {1: 6, 2: 14, 4: 25}
"""The split position that stands for verbatim differences."""


def rice_encode(pixels: np.ndarray, tile: tuple[int, int], use: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    pixels = np.ascontiguousarray(pixels)
    size = pixels.dtype.itemsize
    plane = pixels.view(f"u{size}")
    _, nx = tile_counts(plane.shape, tile)
    most = min(tile[0], plane.shape[0]) * min(tile[1], plane.shape[1])
    bits = 8 * size * (most + 1) + SELECTOR[size] * -(-most // BLOCK)
    scratch = np.empty((len(use), -(-bits // 32) + 1), np.uint32)  # pages that no stream reaches are never touched
    sizes = np.zeros(len(use), np.int64)
    _rice(plane, *tile, nx, np.ascontiguousarray(use), 8 * size, SELECTOR[size], VERBATIM[size], scratch, sizes)
    ends = np.cumsum(sizes)
    streams = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    _join(scratch.view(np.uint8), sizes, ends, streams)
    return streams, sizes


@parallel
def _join(scratch, sizes, ends, streams):
    for t in prange(len(sizes)):
        streams[ends[t] - sizes[t] : ends[t]] = scratch[t, : sizes[t]]


@inline
def _mapped(tile, start, n, before, width, mapped):
    """Differences to the pixel before, folded to be not negative (0, -1, 1, -2, ... to 0, 1, 2, 3, ...); their sum."""
    total = np.uint64(0)
    drop, one = np.uint32(32 - width), np.uint32(1)
    for i in range(n):
        pixel = tile[start + i]
        # In the top bits of a word, so that the subtraction wraps where the pixel's own type does.
        d = np.uint32((pixel - before) << drop)
        v = np.uint32(np.uint32(d << one) ^ np.uint32(np.int32(d) >> np.int32(31))) >> drop
        before = pixel
        mapped[i] = v
        total += np.uint64(v)
    return total, before


@parallel
def _rice(plane, th, tw, nx, use, width, selector_bits, verbatim, scratch, sizes):
    for t in prange(len(sizes)):
        if not use[t]:
            continue
        y0, x0 = t // nx * th, t % nx * tw
        y1, x1 = min(y0 + th, plane.shape[0]), min(x0 + tw, plane.shape[1])
        count = (y1 - y0) * (x1 - x0)
        tile, mapped = np.empty(count, np.uint32), np.empty(BLOCK, np.uint32)
        k = 0
        for y in range(y0, y1):
            for x in range(x0, x1):
                tile[k] = plane[y, x]
                k += 1
        sizes[t] = _stream(tile, mapped, width, selector_bits, verbatim, scratch[t])


@inline
def _stream(tile, mapped, width, selector_bits, verbatim, out):
    """One tile's stream in 32-bit words; returns its bytes."""
    before = tile[0]
    held, bits, at = np.uint64(before), np.int64(width), 0  # bits not yet written, in the low end of a word of 64
    if bits == 32:
        out[0] = _reversed(before)
        held, bits, at = np.uint64(0), np.int64(0), 1
    for start in range(0, len(tile), BLOCK):
        n = min(BLOCK, len(tile) - start)
        total, before = _mapped(tile, start, n, before, width, mapped)
        split = 0
        mean = total // np.uint64(n)
        while mean > np.uint64(1):
            mean >>= np.uint64(1)
            split += 1
        high = np.uint64(0)
        for i in range(n):
            high += np.uint64(mapped[i] >> np.uint32(split))
        if total == np.uint64(0):
            selector = 0
        elif split >= verbatim or np.int64(high) + n * (split + 1) >= n * width:
            selector = verbatim + 1
        else:
            selector = split + 1
        held, bits, at = _put(held, bits, at, np.uint64(selector), selector_bits, out)
        if selector == verbatim + 1:
            for i in range(n):
                held, bits, at = _put(held, bits, at, np.uint64(mapped[i]), width, out)
        elif selector > 0:
            one, low = np.uint64(1) << np.uint64(split), np.uint32((1 << split) - 1)
            for i in range(n):
                v = mapped[i]
                zeros = np.int64(v >> np.uint32(split))
                while zeros + split + 1 > 32:
                    step = zeros if zeros < 32 else np.int64(32)
                    held, bits, at = _put(held, bits, at, np.uint64(0), step, out)
                    zeros -= step
                held, bits, at = _put(held, bits, at, one | np.uint64(v & low), zeros + split + 1, out)
    if bits > 0:
        out[at] = _reversed(np.uint32((held << np.uint64(32 - bits)) & np.uint64(0xFFFFFFFF)))
    return 4 * at + (bits + 7) // 8


@inline
def _put(held, bits, at, value, length, out):
    """Append ``length`` (at most 32) bits."""
    held = (held << np.uint64(length)) | value
    bits += length
    if bits >= 32:
        bits -= 32
        out[at] = _reversed(np.uint32((held >> np.uint64(bits)) & np.uint64(0xFFFFFFFF)))
        at += 1
    return held, bits, at
