# SPDX-License-Identifier: BSD-3-Clause
"""Reference of the deflate streams: RFC 1951 as it is written, a bit at a time."""

from __future__ import annotations

import numpy as np

ORDER = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)
LENGTHS = ((*range(3, 11), *range(11, 19, 2), *range(19, 35, 4), *range(35, 67, 8), *range(67, 131, 16),
            *range(131, 258, 32), 258), (0,) * 8 + tuple(k for k in range(1, 6) for _ in range(4)) + (0,))  # fmt: skip
DISTANCES = ((1, 2, 3, 4, *(v for k in range(1, 14) for v in (1 + (2 << k), 1 + (3 << k)))),
             (0, 0, 0, 0, *(k for k in range(1, 14) for _ in range(2))))  # fmt: skip


class _Damaged(Exception):
    pass


class _Stream:
    def __init__(self, data: bytes, most: int) -> None:
        self.data, self.at, self.most = data, 0, most
        self.out = bytearray()

    def bits(self, n: int) -> int:
        if self.at + n > 8 * len(self.data):
            raise _Damaged
        value = sum((self.data[k >> 3] >> (k & 7) & 1) << (k - self.at) for k in range(self.at, self.at + n))
        self.at += n
        return value

    def symbol(self, code: dict[tuple[int, int], int]) -> int:
        value = 0
        for n in range(1, 16):
            value = 2 * value + self.bits(1)
            if (n, value) in code:
                return code[n, value]
        raise _Damaged

    def put(self, values: bytes) -> None:
        self.out += values
        if len(self.out) > self.most:
            raise _Damaged

    def block(self) -> bool:
        last, kind = self.bits(1), self.bits(2)
        if kind == 0:
            self.at = -(-self.at // 8) * 8
            n = self.bits(16)
            if n ^ self.bits(16) != 0xFFFF:
                raise _Damaged
            self.put(bytes(self.bits(8) for _ in range(n)))
        elif kind == 3:
            raise _Damaged
        else:
            self.symbols(*(self.described() if kind == 2 else _fixed()))
        return bool(last)

    def described(self) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], int]]:
        literals, distances, orders = 257 + self.bits(5), 1 + self.bits(5), 4 + self.bits(4)
        if literals > 286 or distances > 30:
            raise _Damaged
        of = [0] * 19
        for k in ORDER[:orders]:
            of[k] = self.bits(3)
        code, lengths = _code(of, complete=True), list[int]()
        while len(lengths) < literals + distances:
            s = self.symbol(code)
            if s < 16:
                lengths.append(s)
            elif s == 16 and not lengths:
                raise _Damaged
            else:
                times = {16: (3, 2), 17: (3, 3), 18: (11, 7)}[s]
                lengths += [lengths[-1] if s == 16 else 0] * (times[0] + self.bits(times[1]))
        if len(lengths) > literals + distances or not lengths[256]:
            raise _Damaged
        return _code(lengths[:literals]), _code(lengths[literals:])

    def symbols(self, literal: dict[tuple[int, int], int], distance: dict[tuple[int, int], int]) -> None:
        while (s := self.symbol(literal)) != 256:
            if s < 256:
                self.put(bytes([s]))
                continue
            if s > 285:
                raise _Damaged
            n = LENGTHS[0][s - 257] + self.bits(LENGTHS[1][s - 257])
            d = self.symbol(distance)
            if d > 29:
                raise _Damaged
            back = DISTANCES[0][d] + self.bits(DISTANCES[1][d])
            if back > len(self.out):
                raise _Damaged
            for _ in range(n):
                self.put(bytes([self.out[-back]]))


def _fixed() -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], int]]:
    return _code([8] * 144 + [9] * 112 + [7] * 24 + [8] * 8), _code([5] * 32)


def _code(lengths: list[int], complete: bool = False) -> dict[tuple[int, int], int]:
    """Symbols by the bits of their codes and their values. Only zero or one code of one bit may be incomplete."""
    code, value, longest = {}, 0, max(lengths)
    for n in range(1, 16):
        value *= 2
        for s, length in enumerate(lengths):
            if length == n:
                code[n, value] = s
                value += 1
        if value > 1 << n:
            raise _Damaged
    if value < 1 << 15 and (complete or longest > 1):
        raise _Damaged
    return code


def inflate(
    data: np.ndarray, offset: np.ndarray, length: np.ndarray, place: np.ndarray, size: np.ndarray, total: int
) -> tuple[np.ndarray, np.ndarray]:
    out, status = np.zeros(total, np.uint8), np.ones(len(offset), np.int32)
    for t, (a, n, to, most) in enumerate(zip(*(v.tolist() for v in (offset, length, place, size)), strict=True)):
        stream = _Stream(data[a : a + n].tobytes(), most)
        try:
            while not stream.block():
                pass
        except _Damaged:
            continue
        if len(stream.out) == most and -(-stream.at // 8) == n:
            out[to : to + most] = np.frombuffer(bytes(stream.out), np.uint8)
            status[t] = 0
    return out, status
