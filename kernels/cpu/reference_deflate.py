# SPDX-License-Identifier: BSD-3-Clause
"""Reference of the deflate coder: plain Python, codes by a heap, bits as text. zlib must give the bytes back."""

from __future__ import annotations

import heapq
import itertools
import zlib

import numpy as np

from skydelta.kernels.cpu.reference_encode import slices_of
from skydelta.kernels.cpu.reference_inflate import DISTANCES, LENGTHS, ORDER
from skydelta.kernels.deflate import CHUNK, HEAD, LEAST, LONGEST, STORED


def gzip_encode(
    pixels: np.ndarray, tile: tuple[int, int], use: np.ndarray, shuffle: bool
) -> tuple[np.ndarray, np.ndarray]:
    members = [
        member(pixels[box], shuffle) if used else b""
        for box, used in zip(slices_of(pixels.shape, tile), use, strict=True)
    ]
    return np.frombuffer(b"".join(members), np.uint8), np.array([len(m) for m in members], np.int64)


def member(pixels: np.ndarray, shuffle: bool) -> bytes:
    """One tile."""
    size = pixels.dtype.itemsize
    raw = np.frombuffer(pixels.astype(pixels.dtype.newbyteorder(">")).tobytes(), np.uint8).reshape(-1, size)
    pieces = [plane.tobytes() for plane in raw.T] if shuffle else [raw.tobytes()]
    chunks = [piece[i : i + CHUNK] for piece in pieces for i in range(0, len(piece), CHUNK)]
    bits = ""
    for number, chunk in enumerate(chunks):
        bits = block(bits, chunk, 1 if shuffle else size, number == len(chunks) - 1)
    whole = b"".join(pieces)
    check = zlib.crc32(whole).to_bytes(4, "little") + (len(whole) % 2**32).to_bytes(4, "little")
    return HEAD + in_bytes(bits) + check


def in_bytes(bits: str) -> bytes:
    return bytes(int(bits[i : i + 8][::-1], 2) for i in range(0, len(bits), 8))


def number(value: int, width: int) -> str:
    """Bits of a number, lowest first."""
    return f"{value:0{width}b}"[::-1] if width else ""


def block(bits: str, chunk: bytes, distance: int, last: bool) -> str:
    """The bits so far and those of one more chunk."""
    tokens = list(parse(chunk, distance))
    symbols = [t if kind == "literal" else symbol_of(t, LENGTHS)[0] + 257 for kind, t in tokens] + [256]
    literal = prefix_code([symbols.count(s) for s in range(286)], 15)
    coded = f"{int(last)}01" + description(literal, symbol_of(distance, DISTANCES)[0])
    for kind, t in tokens:
        if kind == "literal":
            coded += literal[t]
        else:
            symbol, width, rest = symbol_of(t, LENGTHS)
            _, far_width, far_rest = symbol_of(distance, DISTANCES)
            coded += literal[symbol + 257] + number(rest, width) + "0" + number(far_rest, far_width)
    coded += literal[256]
    if len(coded) < 8 * len(chunk) + STORED:
        return bits + coded
    bits += f"{int(last)}00"
    bits += "0" * (-len(bits) % 8) + number(len(chunk), 16) + number(len(chunk) ^ 0xFFFF, 16)
    return bits + "".join(number(b, 8) for b in chunk)


def parse(chunk: bytes, distance: int):
    """Literals and lengths of repeats at one distance."""
    again = [i >= distance and chunk[i] == chunk[i - distance] for i in range(len(chunk))]
    i = 0
    for repeats, group in itertools.groupby(again):
        left = len(list(group))
        while left:
            n = min(left, LONGEST) if repeats else 1
            if n >= LEAST and repeats:
                yield "repeat", n
            else:
                yield from (("literal", b) for b in chunk[i : i + n])
            i, left = i + n, left - n


def symbol_of(value: int, table: tuple) -> tuple[int, int, int]:
    """(symbol, extra bits, what they say) of a length or a distance."""
    first, more = table
    symbol = max(s for s, f in enumerate(first) if f <= value)
    return symbol, more[symbol], value - first[symbol]


def prefix_code(counts: list[int], limit: int) -> dict[int, str]:
    """Codes of the symbols that occur: Huffman's, ties to the leaf and then to the first made; no code longer than
    ``limit`` bits: too long ones are cut, and leaves move down until the code is complete."""
    ordered = sorted((n, s) for s, n in enumerate(counts) if n)
    depth = dict.fromkeys((s for _, s in ordered), 0)
    heap: list[tuple[int, int, int, tuple[int, ...]]] = [(n, 0, i, (s,)) for i, (n, s) in enumerate(ordered)]
    for made in range(len(heap) - 1):
        (a, _, _, left), (b, _, _, right) = heapq.heappop(heap), heapq.heappop(heap)
        for s in left + right:
            depth[s] += 1
        heapq.heappush(heap, (a + b, 1, made, left + right))
    lengths = sorted((min(d, limit) for d in depth.values()), reverse=True) if len(ordered) > 1 else [1]
    while sum(2.0**-n for n in lengths) > 1:
        lengths.remove(limit)
        shorter = max(n for n in lengths if n < limit)
        lengths.remove(shorter)
        lengths = sorted([*lengths, shorter + 1, shorter + 1], reverse=True)
    of = {s: n for (_, s), n in zip(ordered, lengths, strict=True)}
    out, code, before = {}, 0, 0
    for n, s in sorted((n, s) for s, n in of.items()):
        code <<= n - before
        out[s], before = f"{code:0{n}b}", n
        code += 1
    return out


def description(literal: dict[int, str], far: int) -> str:
    """The codes, told by the lengths of their words (RFC 1951, 3.2.7)."""
    count = max(literal) + 1
    lengths = [len(literal.get(s, "")) for s in range(count)] + [0] * far + [1]
    tokens = []
    for n, group in itertools.groupby(lengths):
        left = len(list(group))
        if n:
            tokens.append((n, 0, 0))
            left -= 1
        while n == 0 and left >= 11:
            tokens.append((18, 7, min(left, 138) - 11))
            left -= min(left, 138)
        while n and left >= 3:
            tokens.append((16, 2, min(left, 6) - 3))
            left -= min(left, 6)
        if n == 0 and left >= 3:
            tokens.append((17, 3, left - 3))
            left = 0
        tokens += [(n, 0, 0)] * left
    code = prefix_code([sum(t[0] == s for t in tokens) for s in range(19)], 7)
    shown = max(i for i, s in enumerate(ORDER) if s in code) + 1
    out = number(count - 257, 5) + number(far, 5) + number(shown - 4, 4)
    out += "".join(number(len(code.get(s, "")), 3) for s in ORDER[:shown])
    return out + "".join(code[s] + number(value, width) for s, width, value in tokens)
