# SPDX-License-Identifier: BSD-3-Clause
"""CPU twin of the deflate coder: tiles side by side, the chunks of each one after the other."""

from __future__ import annotations

import zlib

import numpy as np

from skydelta.kernels.cpu.jit import inline, parallel, prange
from skydelta.kernels.deflate import CHUNK, HEAD, LEAST, LONGEST, MEMBER, STORED
from skydelta.kernels.encode import tile_counts

END = 256
"""Symbol at the end of a block; lengths have those behind it."""

SYMBOLS, ORDERS = 286, 19
"""Literals, end and lengths; lengths of codes."""

ORDER = np.array([16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15])
"""In which the lengths of the codes of the lengths of codes are told."""

SHORTEST = 3
"""Length of the first symbol of a repeat."""


def gzip_encode(
    pixels: np.ndarray, tile: tuple[int, int], use: np.ndarray, shuffle: bool
) -> tuple[np.ndarray, np.ndarray]:
    size = pixels.dtype.itemsize
    plane = np.ascontiguousarray(pixels).view(f"u{size}")
    ny, nx = tile_counts(plane.shape, tile)
    most = min(tile[0], plane.shape[0]) * min(tile[1], plane.shape[1]) * size
    whole = -(-most // CHUNK) + size  # chunks, at most
    # pages that nothing reaches are never touched
    raw = np.empty((ny * nx, most), np.uint8)
    blocks = np.empty((ny * nx, most + whole * (STORED // 8 + 1) + 8), np.uint8)
    counts, sizes = np.zeros((2, ny * nx), np.int64)
    use = np.ascontiguousarray(use)
    _tiles(plane, *tile, nx, size, use, shuffle, raw, blocks, counts, sizes)
    totals = np.where(use, sizes + MEMBER, 0)
    ends = np.cumsum(totals)
    streams = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    checks = np.zeros((ny * nx, 2), "<u4")
    for t in np.flatnonzero(use):
        checks[t] = zlib.crc32(raw[t, : counts[t]].data), counts[t] & 0xFFFFFFFF
    _join(blocks, sizes, use, ends - totals, np.frombuffer(HEAD, np.uint8), checks.view(np.uint8), streams)
    return streams, totals


@parallel
def _join(blocks, sizes, use, starts, head, checks, streams):
    for t in prange(len(sizes)):
        if use[t]:
            at, n = starts[t] + len(head), sizes[t]
            streams[starts[t] : at] = head
            streams[at : at + n] = blocks[t, :n]
            streams[at + n : at + n + 8] = checks[t]


@parallel
def _tiles(plane, th, tw, nx, size, use, shuffle, raw, blocks, counts, sizes):
    for t in prange(len(sizes)):
        if not use[t]:
            continue
        y0, x0 = t // nx * th, t % nx * tw
        y1, x1 = min(y0 + th, plane.shape[0]), min(x0 + tw, plane.shape[1])
        count = (y1 - y0) * (x1 - x0)
        counts[t] = count * size
        _bytes(plane, y0, y1, x0, x1, size, shuffle, raw[t])
        tokens = np.empty(CHUNK, np.int16)
        piece = count if shuffle else count * size
        held, bits, at = np.uint64(0), 0, 0
        for start in range(0, count * size, piece):
            for begin in range(start, start + piece, CHUNK):
                end = min(begin + CHUNK, start + piece)
                last = end == count * size
                held, bits, at = _chunk(
                    raw[t, begin:end], 1 if shuffle else size, last, tokens, held, bits, at, blocks[t]
                )
        sizes[t] = _flush(held, bits, at, blocks[t])


@inline
def _bytes(plane, y0, y1, x0, x1, size, shuffle, raw):
    """Big-endian bytes of a tile, or its byte planes."""
    count, k = (y1 - y0) * (x1 - x0), 0
    for y in range(y0, y1):
        for x in range(x0, x1):
            v = np.uint64(plane[y, x])
            for b in range(size):
                byte = np.uint8((v >> np.uint64(8 * (size - 1 - b))) & np.uint64(255))
                raw[b * count + k if shuffle else k * size + b] = byte
            k += 1


@inline
def _parse(data, distance, tokens):
    """Bytes, and `END` + n for n bytes that repeat what is ``distance`` before; returns how many."""
    n = made = 0
    for i in range(len(data) + 1):
        again = distance <= i < len(data) and data[i] == data[i - distance]
        if not again or n == LONGEST:  # the repeat before ends
            if n >= LEAST:
                tokens[made] = END + n
                made += 1
            else:
                for j in range(i - n, i):
                    tokens[made] = data[j]
                    made += 1
            n = 0
        if again:
            n += 1
        elif i < len(data):
            tokens[made] = data[i]
            made += 1
    return made


@inline
def _top_bit(v):
    k = 0
    while v > 1:
        v >>= 1
        k += 1
    return k


@inline
def _length(n):
    """(symbol, extra bits, what they say) of a length."""
    v = n - SHORTEST
    if n == LONGEST:
        return SYMBOLS - 1, 0, 0
    if v < 8:
        return END + 1 + v, 0, 0
    more = _top_bit(v) - 2
    return END + 1 + 4 * (more + 1) + ((v >> more) & 3), more, v & ((1 << more) - 1)


@inline
def _distance(n):
    """The same of a distance."""
    v = n - 1
    if v < 4:
        return v, 0, 0
    more = _top_bit(v) - 1
    return 2 * (more + 1) + ((v >> more) & 1), more, v & ((1 << more) - 1)


@inline
def _code_lengths(counts, limit, lengths):
    """Lengths of the codes of the symbols that occur: Huffman's by two queues, ties to the leaf; where one is longer
    than ``limit`` leaves move down until the code is complete."""
    lengths[:] = 0
    order = np.argsort(counts, kind="mergesort")
    order = order[len(counts) - np.count_nonzero(counts) :]
    n = len(order)
    if n < 2:
        for s in order:
            lengths[s] = 1
        return
    weight, parent, leaves = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    leaf = node = 0
    for k in range(n - 1):
        for _ in range(2):
            if leaf < n and (node == k or counts[order[leaf]] <= weight[node]):
                weight[k] += counts[order[leaf]]
                leaves[k] += 1
                leaf += 1
            else:
                weight[k] += weight[node]
                parent[node] = k
                node += 1
    number, depth = np.zeros(limit + 1, np.int64), parent  # a parent's depth is known before its children's
    depth[n - 2] = 0
    for k in range(n - 2, -1, -1):
        if k < n - 2:
            depth[k] = depth[parent[k]] + 1
        number[min(depth[k] + 1, limit)] += leaves[k]
    total = 0
    for k in range(1, limit + 1):
        total += number[k] << (limit - k)
    while total > 1 << limit:
        number[limit] -= 1
        k = limit - 1
        while number[k] == 0:
            k -= 1
        number[k] -= 1
        number[k + 1] += 2
        total -= 1
    i = 0
    for k in range(limit, 0, -1):
        for _ in range(number[k]):
            lengths[order[i]] = k
            i += 1


@inline
def _codes(lengths, codes):
    """The codes, first bit lowest (RFC 1951, 3.2.2)."""
    code = 0
    for k in range(1, 16):
        for s in range(len(lengths)):
            if lengths[s] == k:
                turned = 0
                for b in range(k):
                    turned |= ((code >> b) & 1) << (k - 1 - b)
                codes[s] = turned
                code += 1
        code <<= 1


@inline
def _runs(told, n, symbols, extra):
    """Lengths of codes as symbols and what follows them (RFC 1951, 3.2.7); returns how many."""
    made = i = 0
    while i < n:
        v, left = told[i], 1
        while i + left < n and told[i + left] == v:
            left += 1
        i += left
        if v > 0:
            symbols[made], extra[made] = v, 0
            made += 1
            left -= 1
        most, least, symbol = (138, 11, 18) if v == 0 else (6, 3, 16)
        while left >= least:
            step = min(left, most)
            symbols[made], extra[made] = symbol, step - least
            made += 1
            left -= step
        if v == 0 and left >= 3:
            symbols[made], extra[made] = 17, left - 3
            made += 1
            left = 0
        for _ in range(left):
            symbols[made], extra[made] = v, 0
            made += 1
    return made


@inline
def _extra_bits(symbol):
    """Of a symbol of `_runs`."""
    return 0 if symbol < 16 else 2 if symbol == 16 else 3 if symbol == 17 else 7


@inline
def _chunk(data, distance, last, tokens, held, bits, at, out):
    """One block: with its own code, or stored where that is not longer."""
    made = _parse(data, distance, tokens)
    counts = np.zeros(SYMBOLS, np.int64)
    counts[END] = 1
    far, far_more, far_rest = _distance(distance)
    size = np.int64(3)
    for i in range(made):
        v = np.int64(tokens[i])
        if v > END:
            v, more, _ = _length(v - END)
            size += more + 1 + far_more
        counts[v] += 1
    lengths = np.empty(SYMBOLS, np.uint8)
    _code_lengths(counts, 15, lengths)
    for s in range(SYMBOLS):
        size += counts[s] * lengths[s]

    literals = SYMBOLS
    while lengths[literals - 1] == 0:
        literals -= 1
    told = np.zeros(literals + far + 1, np.uint8)
    told[:literals] = lengths[:literals]
    told[-1] = 1
    symbols, extra = np.empty((2, len(told)), np.uint8)
    runs = _runs(told, len(told), symbols, extra)
    orders, order_lengths = np.zeros(ORDERS, np.int64), np.empty(ORDERS, np.uint8)
    for i in range(runs):
        orders[symbols[i]] += 1
    _code_lengths(orders, 7, order_lengths)
    shown = ORDERS
    while order_lengths[ORDER[shown - 1]] == 0:
        shown -= 1
    size += 14 + 3 * shown
    for s in range(ORDERS):
        size += orders[s] * (order_lengths[s] + _extra_bits(s))

    if size >= 8 * len(data) + STORED:
        held, bits, at = _put(held, bits, at, last, 3, out)
        at = _flush(held, bits, at, out)
        held, bits, at = _put(np.uint64(0), 0, at, len(data) | (len(data) ^ 0xFFFF) << 16, 32, out)
        out[at : at + len(data)] = data
        return np.uint64(0), 0, at + len(data)
    held, bits, at = _put(held, bits, at, last | 4, 3, out)
    held, bits, at = _put(held, bits, at, (literals - 257) | far << 5 | (shown - 4) << 10, 14, out)
    for i in range(shown):
        held, bits, at = _put(held, bits, at, order_lengths[ORDER[i]], 3, out)
    codes = np.empty(SYMBOLS, np.int64)
    _codes(order_lengths, codes)
    for i in range(runs):
        s = symbols[i]
        held, bits, at = _put(held, bits, at, codes[s], order_lengths[s], out)
        held, bits, at = _put(held, bits, at, extra[i], _extra_bits(s), out)
    _codes(lengths, codes)
    for i in range(made):
        v = np.int64(tokens[i])
        if v <= END:
            held, bits, at = _put(held, bits, at, codes[v], lengths[v], out)
        else:
            s, more, rest = _length(v - END)
            held, bits, at = _put(held, bits, at, codes[s], lengths[s], out)
            held, bits, at = _put(held, bits, at, rest | far_rest << (more + 1), more + 1 + far_more, out)
    return _put(held, bits, at, codes[END], lengths[END], out)


@inline
def _put(held, bits, at, value, length, out):
    """Append ``length`` (at most 32) bits, lowest first; fewer than 32 are held then."""
    held |= np.uint64(value) << np.uint64(bits)
    bits += np.int64(length)
    if bits >= 32:
        for k in range(4):
            out[at + k] = np.uint8((held >> np.uint64(8 * k)) & np.uint64(255))
        at += 4
        held >>= np.uint64(32)
        bits -= 32
    return held, bits, at


@inline
def _flush(held, bits, at, out):
    """Write what is held, up to a whole byte; returns the place behind it."""
    while bits > 0:
        out[at] = np.uint8(held & np.uint64(255))
        held >>= np.uint64(8)
        bits -= 8
        at += 1
    return at
