# SPDX-License-Identifier: BSD-3-Clause
"""H-compress decoding on the CPU (White, Postman and Lattanzi 1992; FITS 4.0, 10.4.4).

A stream holds the bit planes of the H-transform coefficients of a tile, each plane as a quadtree of 2 x 2 codes, then
the signs. The coefficients lie as a pyramid: sums of 2 x 2 pixels in the upper left quadrant, differences down, across
and diagonal in the others, and the same again inside the upper left one. Rows are the slow axis.
"""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.bits import word_at
from skydelta.kernels.cpu.decode_rice import word
from skydelta.kernels.cpu.jit import inline, serial
from skydelta.kernels.decode import CODE, MAGIC, PLANES, SHORT, SIZE

HEADER = 25
MAX_PLANES = 62

_CODES = {
    1: "000", 2: "001", 4: "010", 8: "011", 3: "1000", 5: "1001", 10: "1010", 12: "1011", 15: "1100",
    6: "11010", 7: "11011", 9: "11100", 11: "11101", 13: "11110", 0: "111110", 14: "111111",
}  # fmt: skip
"""Huffman code of each set of four bits."""


def _table() -> np.ndarray:
    """int64 (64,): for six bits of the stream, value + 16 x bits used."""
    out = np.empty(64, np.int64)
    for i in range(64):
        value = next(v for v, code in _CODES.items() if f"{i:06b}".startswith(code))
        out[i] = value + 16 * len(_CODES[value])
    return out


HUFFMAN = _table()


@inline
def big(heap, at, n):
    """Integer of ``n`` bytes, big-endian; 8 bytes are signed."""
    value = np.int64(0)
    for i in range(n):
        value = (value << 8) | np.int64(heap[at + i])
    return value


@inline
def window(heap, position, end):
    """The 57 to 64 bits from a bit position at the top of a word; those behind byte ``end`` are 0."""
    at = position >> 3
    w = word_at(heap, at) if at + 8 <= end else word(heap, at, end)
    return w << np.uint64(position & 7)


@inline
def bits(heap, position, end, n):
    """``n`` bits, at most 32, from a bit position."""
    return np.int64(window(heap, position, end) >> np.uint64(64 - n))


@inline
def levels(n):
    """Smallest k with 2**k >= n."""
    k = 0
    while (1 << k) < n:
        k += 1
    return k


@inline
def reduced(n, k):
    """Cells of 2**k pixels that cover n pixels; at least 1."""
    return max((n + (1 << k) - 1) >> k, 1)


@inline
def nybbles(heap, position, end, code):
    """Codes as they are, four bits each."""
    full = code.size // 14 * 14
    for i in range(0, full, 14):
        w = window(heap, position + 4 * i, end)
        for k in range(14):
            code[i + k] = (w >> np.uint64(60 - 4 * k)) & np.uint64(15)
    for i in range(full, code.size):
        code[i] = bits(heap, position + 4 * i, end, 4)


@inline
def expand(code, height, width, pairs):
    """The four bits of each code to four cells, 0 or 1, in rows of ``width`` pairs."""
    for i in range(height):
        line = code[i * width : (i + 1) * width]
        upper, lower = pairs[2 * i * width : (2 * i + 1) * width], pairs[(2 * i + 1) * width : (2 * i + 2) * width]
        for j in range(width):
            c = np.uint16(line[j])
            upper[j] = (c >> np.uint16(3)) | ((c << np.uint16(6)) & np.uint16(256))
            lower[j] = ((c >> np.uint16(1)) & np.uint16(1)) | ((c << np.uint16(8)) & np.uint16(256))


@inline
def huffman(heap, position, end, cells, stride, height, width, code):
    """A code for each cell that holds anything, the last one first; the bit position behind them.

    Empty cells take a code of no bits: whether a cell is empty is as good as random, and a branch on it would be
    predicted wrongly half of the time.
    """
    for y in range(height - 1, -1, -1):
        line, out = cells[y * stride : y * stride + width], code[y * width : (y + 1) * width]
        for stop in range(width, 0, -9):
            # nine codes of six bits fit into a window
            w = window(heap, position, end)
            for x in range(stop - 1, max(stop - 9, 0) - 1, -1):
                entry = HUFFMAN[w >> np.uint64(58)] & -np.int64(line[x])
                out[x] = entry & 15
                w <<= np.uint64(entry >> 4)
                position += entry >> 4
    return position


@inline
def insert(code, height, width, plane, pairs):
    """Set bit ``plane`` (0 to 31) of pairs of 32-bit magnitudes from codes of 2 x 2."""
    shift = np.uint64(plane)
    one = np.uint64(1)
    for i in range(height):
        line = code[i * width : (i + 1) * width]
        upper, lower = pairs[2 * i * width : (2 * i + 1) * width], pairs[(2 * i + 1) * width : (2 * i + 2) * width]
        for j in range(width):
            c = np.uint64(line[j])
            upper[j] |= ((c >> np.uint64(3)) | (((c >> np.uint64(2)) & one) << np.uint64(32))) << shift
            lower[j] |= (((c >> one) & one) | ((c & one) << np.uint64(32))) << shift


@inline
def quadrant(heap, position, end, values, rows, columns, planes, code, cells, low, high):
    """Magnitudes of the coefficients of one quadrant, ``values`` (rows, columns); (status, bit position behind them).

    The other arrays are work space: codes, cells, and the lower and upper 32 bits of magnitudes in pairs.
    """
    depth = levels(max(rows, columns))
    height, width = (rows + 1) // 2, (columns + 1) // 2
    low[: 2 * height * width] = 0
    high[: min(2 * height * width, high.size)] = 0
    pairs = cells.view(np.uint16)
    for plane in range(planes - 1, -1, -1):
        if position > 8 * end:
            return SHORT, position
        kind = bits(heap, position, end, 4)
        position += 4
        if kind == 0:
            nybbles(heap, position, end, code[: height * width])
            position += 4 * height * width
        elif kind == 15:
            entry = HUFFMAN[bits(heap, position, end, 6)]
            code[0] = entry & 15
            position += entry >> 4
            h, w = 1, 1
            for k in range(depth - 1, 0, -1):
                expand(code, h, w, pairs)
                stride = 2 * w
                h, w = reduced(rows, k), reduced(columns, k)
                position = huffman(heap, position, end, cells, stride, h, w, code)
        else:
            return CODE, position
        if plane < 32:
            insert(code, height, width, plane, low)
        else:
            insert(code, height, width, plane - 32, high)
    if position > 8 * end:
        return SHORT, position
    halves, upper = low.view(np.uint32), high.view(np.uint32)
    for y in range(rows):
        line = halves[2 * y * width : 2 * y * width + columns]
        for x in range(columns):
            values[y, x] = line[x]
        if planes > 32:
            line = upper[2 * y * width : 2 * y * width + columns]
            for x in range(columns):
                values[y, x] |= np.int64(line[x]) << 32
    return 0, position


@inline
def signs(heap, position, end, values):
    """Give each coefficient other than 0 its sign; the bit position behind them."""
    for y in range(values.shape[0]):
        line = values[y]
        for first in range(0, line.size, 57):
            w = window(heap, position, end)
            for x in range(first, min(first + 57, line.size)):
                coded = np.int64(line[x] != 0)
                sign = np.int64(w >> np.uint64(63)) & coded
                line[x] = (line[x] ^ -sign) + sign
                w <<= np.uint64(coded)
                position += coded
    return position


@inline
def rounded(h, half, mask):
    """To a multiple of a power of two, halves away from zero; ``half`` may be 0."""
    return (h + (half if h >= 0 else half - (half > 0))) & mask


@inline
def limited(difference, low, high, h, shift, most):
    """A coefficient moved towards ``difference`` >> ``shift``, by ``most`` at most, inside the monotonic range."""
    if low >= high:
        return h
    step = max(min(difference, high), low) - (h << shift)
    step = step >> shift if step >= 0 else (step + (1 << shift) - 1) >> shift
    return h + max(min(step, most), -most)


@inline
def smooth_level(sums, values, rows, columns, most):
    """Interpolate the differences of one level from the neighbouring sums; cells at the edge stay."""
    height, width = (rows + 1) // 2, (columns + 1) // 2
    zero = np.int64(0)
    for i in range(1, height):
        if 2 * i >= rows - 2:
            break
        for j in range(width):
            up, here, down = sums[i - 1, j], sums[i, j], sums[i + 1, j]
            high = max(min(down - here, here - up), zero) << 2
            low = min(max(down - here, here - up), zero) << 2
            values[height + i, j] = limited(down - up, low, high, values[height + i, j], 3, most)
    for i in range(height):
        for j in range(1, width):
            if 2 * j >= columns - 2:
                break
            before, here, after = sums[i, j - 1], sums[i, j], sums[i, j + 1]
            high = max(min(after - here, here - before), zero) << 2
            low = min(max(after - here, here - before), zero) << 2
            values[i, width + j] = limited(after - before, low, high, values[i, width + j], 3, most)
    for i in range(1, height):
        if 2 * i >= rows - 2:
            break
        for j in range(1, width):
            if 2 * j >= columns - 2:
                break
            here = sums[i, j]
            mm, pm, mp, pp = sums[i - 1, j - 1], sums[i + 1, j - 1], sums[i - 1, j + 1], sums[i + 1, j + 1]
            x2, y2 = values[height + i, j] << 1, values[i, width + j] << 1
            a, b, c, d = pp - here, here - pm, here - mp, mm - here
            high = min(
                max(a, zero) - x2 - y2, max(b, zero) + x2 - y2, max(c, zero) - x2 + y2, max(d, zero) + x2 + y2
            )  # fmt: skip
            low = max(
                min(a, zero) - x2 - y2, min(b, zero) + x2 - y2, min(c, zero) - x2 + y2, min(d, zero) + x2 + y2
            )  # fmt: skip
            h = values[height + i, width + j]
            values[height + i, width + j] = limited(pp + mm - mp - pm, low << 4, high << 4, h, 6, most)


@inline
def level(sums, values, rows, columns, k, out):
    """Sums and differences of one level to the sums of the next finer one (pixels at k = 0).

    Coefficients are rounded to what the forward transform can have given; its lost lowest bits are restored from
    parity, which makes the inverse exact.
    """
    height, width = (rows + 1) // 2, (columns + 1) // 2
    b0 = np.int64(1) << k
    b1 = b0 << 1
    half0 = b0 >> 1
    shift = 2 if k == 0 else 1
    for i in range(rows // 2):
        h_line, x_line = sums[i], values[height + i, :width]
        y_line, c_line = values[i, width:columns], values[height + i, width:columns]
        upper, lower = out[2 * i], out[2 * i + 1]
        for j in range(columns // 2):
            h, x, y = h_line[j], rounded(x_line[j], b0, -b1), rounded(y_line[j], b0, -b1)
            c = rounded(c_line[j], half0, -b0)
            low = c & b0
            x += -low if x >= 0 else low
            y += -low if y >= 0 else low
            parity = (c ^ x ^ y) & b1
            h += low - parity if h >= 0 or low else parity
            upper[2 * j] = (h - x - y + c) >> shift
            upper[2 * j + 1] = (h - x + y - c) >> shift
            lower[2 * j] = (h + x - y - c) >> shift
            lower[2 * j + 1] = (h + x + y + c) >> shift
        if columns % 2:
            h, x = h_line[width - 1], rounded(x_line[width - 1], b0, -b1)
            parity = x & b1
            h += -parity if h >= 0 else parity
            upper[columns - 1], lower[columns - 1] = (h - x) >> shift, (h + x) >> shift
    if rows % 2:
        i = height - 1
        for j in range(columns // 2):
            h, y = sums[i, j], rounded(values[i, width + j], b0, -b1)
            parity = y & b1
            h += -parity if h >= 0 else parity
            out[rows - 1, 2 * j], out[rows - 1, 2 * j + 1] = (h - y) >> shift, (h + y) >> shift
        if columns % 2:
            out[rows - 1, columns - 1] = sums[i, width - 1] >> shift


@inline
def inverse(values, smooth, scale):
    """Inverse H-transform of int64 (rows, columns); the pixels in a new array."""
    rows, columns = values.shape
    depth = levels(max(rows, columns))
    sums = np.empty((rows, columns), np.int64)
    finer = np.empty((rows, columns), np.int64)
    sums[0, 0] = rounded(values[0, 0], np.int64(1) << depth, -(np.int64(2) << depth))
    for k in range(depth - 1, -1, -1):
        height, width = reduced(rows, k), reduced(columns, k)
        if smooth and scale > 1:
            smooth_level(sums, values, height, width, scale >> 1)
        level(sums, values, height, width, k, finer)
        sums, finer = finer, sums
    return sums


@inline
def tile(heap, at, end, rows, columns, smooth, out):
    """Decode one tile into int32 ``out``; status."""
    if end - at < HEADER or heap[at] != 0xDD or heap[at + 1] != 0x99:
        return MAGIC
    if big(heap, at + 2, 4) != rows or big(heap, at + 6, 4) != columns or max(rows, columns) < 2:
        return SIZE
    scale = big(heap, at + 10, 4)
    planes = heap[at + 22], heap[at + 23], heap[at + 24]
    if scale >= 1 << 31 or max(planes[0], planes[1], planes[2]) > MAX_PLANES:
        return PLANES
    values = np.empty((rows, columns), np.int64)
    height, width = (rows + 1) // 2, (columns + 1) // 2
    codes = ((height + 1) // 2) * ((width + 1) // 2)
    code, cells = np.empty(codes, np.uint8), np.empty(4 * codes, np.uint8)
    low = np.empty(2 * codes, np.uint64)
    high = np.empty(2 * codes if max(planes[0], planes[1], planes[2]) > 32 else 0, np.uint64)
    position = 8 * (at + HEADER)
    for q in range(4):
        top, left = (q // 2) * height, (q % 2) * width
        count = planes[0] if q == 0 else planes[2] if q == 3 else planes[1]
        below, right = rows // 2 if top else height, columns // 2 if left else width
        part = values[top : top + below, left : left + right]
        status, position = quadrant(
            heap, position, end, part, below, right, np.int64(count), code, cells, low, high
        )  # fmt: skip
        if status:
            return status
    if bits(heap, position, end, 4):
        return CODE
    position = (position + 4 + 7) // 8 * 8
    position = signs(heap, position, end, values)
    if position > 8 * end:
        return SHORT
    values[0, 0] = big(heap, at + 14, 8)
    if scale > 1:
        for y in range(rows):
            for x in range(columns):
                values[y, x] *= scale
    pixels = inverse(values, smooth, scale)
    for y in range(rows):
        for x in range(columns):
            out[y * columns + x] = pixels[y, x]
    return 0


@serial
def decode(heap, offset, length, first, rows, columns, out, smooth, status):
    """Decode tiles of ``rows[i]`` x ``columns[i]`` pixels into int32 ``out``, tile i from ``first[i]``.

    The other arguments are those of `decode_rice.decode`.
    """
    for i in range(len(offset)):
        if status[i] == 0:
            pixels = out[first[i] : first[i] + rows[i] * columns[i]]
            status[i] = tile(heap, offset[i], offset[i] + length[i], rows[i], columns[i], smooth, pixels)
