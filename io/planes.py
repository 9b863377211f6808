# SPDX-License-Identifier: BSD-3-Clause
"""Named mask bits and the survey conventions that translate into them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from skydelta.errors import InputError

CORE_PLANES = (
    "BAD",
    "SAT",
    "CR",
    "EDGE",
    "NO_DATA",
    "INTERP",
    "DETECTED",
    "DETECTED_NEGATIVE",
    "STREAK",
)
"""Names every Exposure knows, in bit order."""

INVALID = ("BAD", "SAT", "CR", "EDGE", "NO_DATA", "STREAK")
"""Planes whose pixels carry no usable signal."""

MAX_PLANES = 31


@dataclass(frozen=True)
class MaskPlanes(Mapping[str, int]):
    """Immutable map from plane name to bit number (0 to 30 of an int32 mask).

    Planes are merged and looked up by name, never by number: two files may number the same plane differently.

    Raises
    ------
    InputError
        More than 31 planes, or two names on one bit.
    """

    bits: tuple[tuple[str, int], ...] = tuple((name, i) for i, name in enumerate(CORE_PLANES))

    def __post_init__(self) -> None:
        numbers = [b for _, b in self.bits]
        if len(set(numbers)) != len(numbers):
            raise InputError(f"mask planes share a bit: {dict(self.bits)}")
        if len(numbers) > MAX_PLANES or any(not 0 <= b < MAX_PLANES for b in numbers):
            raise InputError(
                f"{len(numbers)} mask planes on bits {sorted(numbers)}; at most {MAX_PLANES} on bits 0 to "
                f"{MAX_PLANES - 1} fit: {', '.join(n for n, _ in self.bits)}"
            )

    @classmethod
    def of(cls, planes: Mapping[str, int]) -> MaskPlanes:
        return cls(tuple(sorted(planes.items(), key=lambda p: p[1])))

    def __getitem__(self, name: str) -> int:
        return dict(self.bits)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.bits)

    def __len__(self) -> int:
        return len(self.bits)

    def bit(self, *names: str) -> int:
        """The int32 value with the bits of these planes set; names not present contribute nothing."""
        known = dict(self.bits)
        return sum(1 << known[n] for n in set(names) if n in known)

    @property
    def invalid(self) -> int:
        """Bits of all planes whose pixels must not be used (`INVALID` and their ``*_TEMPLATE`` twins)."""
        return self.bit(*INVALID, *(f"{n}_TEMPLATE" for n in INVALID))

    def union(self, names: Any) -> MaskPlanes:
        """These planes plus the given names on the lowest free bits."""
        bits = dict(self.bits)
        for name in names:
            if name not in bits:
                free = set(range(MAX_PLANES + len(bits) + 1)) - set(bits.values())
                bits[name] = min(free)
        return MaskPlanes.of(bits)

    def translate(self, mask: Any, to: MaskPlanes, rename: Mapping[str, str] | None = None) -> Any:
        """Renumber an int32 mask (H, W) of these planes to the planes ``to``; unknown names are an error."""
        new_bit = {name: to[(rename or {}).get(name, name)] for name in self}
        if all(new_bit[name] == self[name] for name in self):
            return mask.copy()
        out = mask * np.int32(0)
        for name in self:
            out |= ((mask >> self[name]) & 1) << new_bit[name]
        return out
