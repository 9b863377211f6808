# SPDX-License-Identifier: BSD-3-Clause
"""Named mask bits and the survey conventions that translate into them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from skydelta.errors import InputError
from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.judge import distinct, translate_bits, used_bits

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

    def renumbered(self, to: MaskPlanes, rename: Mapping[str, str] | None = None) -> np.ndarray:
        """The int32 value in the planes ``to`` of each of our bits, (31,); unknown names are an error.

        Bits without a name keep their number as long as all others do, else they are dropped.
        """
        values = np.zeros(MAX_PLANES, np.int32)
        for name in self:
            values[self[name]] = 1 << to[(rename or {}).get(name, name)]
        own = np.left_shift(1, np.arange(MAX_PLANES), dtype=np.int32)
        return own if all(values[b] in (0, own[b]) for b in range(MAX_PLANES)) else values

    def translate(self, mask: Any, to: MaskPlanes, rename: Mapping[str, str] | None = None) -> Any:
        """Renumber an int32 mask (H, W) of these planes to the planes ``to``; unknown names are an error."""
        new = self.renumbered(to, rename)
        if all(new[b] == 1 << b for b in range(MAX_PLANES)):
            return mask.copy()
        out = mask * np.int32(0)
        for name in self:
            out |= ((mask >> self[name]) & 1) * new[self[name]]
        return out


ALIASES = {
    "INTRP": "INTERP",
    "INTERPOLATED": "INTERP",
    "SATURATED": "SAT",
    "COSMIC": "CR",
    "COSMICRAY": "CR",
    "NODATA": "NO_DATA",
    "UNMASKEDNAN": "NO_DATA",
}
"""Other spellings of core planes in ``MP_*`` cards (LSST, HSC)."""

JWST_BITS: dict[int, str] = {
    0: "BAD",  # DO_NOT_USE
    1: "SAT",
    2: "JUMP_DET",
    3: "DROPOUT",
    4: "CR",  # OUTLIER
    5: "PERSISTENCE",
    6: "AD_FLOOR",
    7: "CHARGELOSS",
    8: "UNRELIABLE_ERROR",
    9: "NO_DATA",  # NON_SCIENCE
    10: "BAD",  # DEAD
    11: "HOT",
    12: "WARM",
    13: "LOW_QE",
    14: "RC",
    15: "TELEGRAPH",
    16: "NONLINEAR",
    17: "BAD_REF_PIXEL",
    18: "NO_FLAT_FIELD",
    19: "NO_GAIN_VALUE",
    20: "NO_LIN_CORR",
    21: "NO_SAT_CHECK",
    22: "UNRELIABLE_BIAS",
    23: "UNRELIABLE_DARK",
    24: "UNRELIABLE_SLOPE",
    25: "UNRELIABLE_FLAT",
    26: "OPEN",
    27: "ADJ_OPEN",
    28: "FLUX_ESTIMATED",
    29: "MSA_FAILED_OPEN",
    30: "BAD",  # OTHER_BAD_PIXEL
    31: "NO_DATA",  # REFERENCE_PIXEL
}
"""Bits of JWST data-quality planes."""

COMMUNITY_CODES: dict[int, tuple[str, ...]] = {
    1: ("BAD",),
    2: ("NO_DATA",),
    3: ("SAT",),
    4: ("SAT",),  # bleed trail
    5: ("CR",),
    6: ("BAD",),  # low weight
    7: ("TRANSIENT",),  # differs between exposures: what a difference looks for
    8: ("STREAK",),
}
"""Values of the data-quality images of the NOIRLab community pipelines (DECam, Mosaic-3, 90Prime): codes, not bits."""

COMMUNITY_BITS: dict[int, str] = {
    0: "BAD",
    1: "SAT",
    2: "INTERP",
    3: "BAD",  # low
    4: "CR",
    5: "BAD",  # halo of a bright star
    6: "SAT",  # bleed trail
    7: "SAT",  # edge bleed
    8: "BAD",  # crosstalk
    9: "EDGE",
    10: "STREAK",
    11: "INTERP",  # fixed
}
"""Bits of the same data-quality images before version 3.5 of the pipeline."""

_COMMUNITY_CAMERAS = ("DECAM", "MOSAIC3", "90PRIME")
_CODES_SINCE = (3, 5)


@dataclass(frozen=True)
class DecodedMask:
    """A mask in int32 with named planes, and which convention gave the names.

    Attributes
    ----------
    mask : int32 (H, W)
        Where the stored one is; of its memory where nothing had to change.
    planes : MaskPlanes
    convention : str
    notes : list of str
    """

    mask: Array
    planes: MaskPlanes
    convention: str
    notes: list[str]


def decode_mask(pixels: Array, header: Mapping[str, Any]) -> DecodedMask:
    """Translate a mask as stored into named planes.

    In this order: ``MP_*`` cards (LSST, HSC, our own), JWST bits, codes (before version 3.5 bits) of the community
    pipelines, and else every non-zero pixel is BAD. Bits without a name are BAD too, with a note.

    Parameters
    ----------
    pixels : integer, bool or integral float (H, W)
        On the host or on a device. NaN is NO_DATA.
    header : mapping
        Cards of the mask over those of its primary HDU.

    Raises
    ------
    InputError
        Values are not integers, or more planes than fit (the message lists them).
    """
    stored, missing = _integers(pixels)
    named = _named_bits(header)
    instrument = str(header.get("INSTRUME", "")).upper().strip()
    if named:
        decoded = _from_bits(stored, named, "MP_* cards")
    elif str(header.get("TELESCOP", "")).upper().strip() == "JWST" and stored.dtype.kind in "ui":
        decoded = _from_bits(stored, JWST_BITS, "JWST")
    elif instrument in _COMMUNITY_CAMERAS and "PROCTYPE" in header:
        version = re.match(r"[Vv]?(\d+)\.(\d+)", str(header.get("PLVER", "")))
        if version and (int(version[1]), int(version[2])) < _CODES_SINCE:
            decoded = _from_bits(stored, COMMUNITY_BITS, "community pipeline bits")
        else:
            decoded = _from_codes(stored)
    else:
        planes = MaskPlanes()
        bad = (stored != 0) * np.int32(planes.bit("BAD"))
        decoded = DecodedMask(bad, planes, "non-zero is BAD", [])
    if missing is not None:
        no_data = missing * np.int32(decoded.planes.bit("NO_DATA"))
        decoded = replace(decoded, mask=decoded.mask | no_data)
    return decoded


def _integers(pixels: Array) -> tuple[Array, Array | None]:
    """Integers in this machine's byte order, and where there is no value."""
    if pixels.dtype.kind == "b":
        return pixels.astype(np.uint8), None
    if pixels.dtype.kind in "ui":
        return pixels.astype(pixels.dtype.newbyteorder("="), copy=False), None
    xp = backend_of(pixels).xp
    missing = ~xp.isfinite(pixels)
    filled = xp.where(missing, pixels.dtype.type(0), pixels)
    broken = filled != xp.rint(filled)
    if broken.any():
        raise InputError(f"mask of {pixels.dtype} holds {float(filled[broken][0]):g}; integers are needed")
    if filled.size and float(abs(filled).max()) >= 2**53:
        raise InputError(f"mask of {pixels.dtype} holds {float(abs(filled).max()):g}; below 2^53 is needed")
    return filled.astype(np.int64), missing if missing.any() else None


def _named_bits(header: Mapping[str, Any]) -> dict[int, str]:
    found: dict[int, str] = {}
    for key in header:
        if not key.upper().startswith("MP_"):
            continue
        name, bit = key[3:].strip().upper(), header[key]
        if isinstance(bit, bool) or not isinstance(bit, int) or not 0 <= bit < 64:
            raise InputError(f"{key} = {bit!r}; a bit number from 0 to 63 is needed")
        if bit in found:
            raise InputError(f"mask planes {found[bit]} and {name} share bit {bit}")
        found[bit] = ALIASES.get(name, name)
    return found


def _from_bits(stored: Array, names: Mapping[int, str], convention: str) -> DecodedMask:
    width = 8 * stored.dtype.itemsize
    unsigned = stored.view(f"u{stored.dtype.itemsize}")
    used = used_bits(unsigned)
    present = {bit for bit in range(width) if used >> bit & 1}
    notes = []
    unnamed = sorted(present - set(names))
    if unnamed:
        notes.append(f"mask bits {', '.join(map(str, unnamed))} have no name and count as BAD")
    # names of cards are kept even where no pixel carries them, as long as they fit; a fixed list gives what is used
    wanted = [n for b, n in sorted(names.items()) if b in present or convention == "MP_* cards"]
    if len(set(wanted) | set(CORE_PLANES)) > MAX_PLANES:
        wanted = [n for b, n in sorted(names.items()) if b in present]
    own = dict(zip(wanted, (b for b, n in sorted(names.items()) if n in wanted), strict=False))
    planes = _planes_like(own) if convention == "MP_* cards" else MaskPlanes().union(wanted)
    if all(planes.get(names.get(b, "")) == b for b in present):
        return DecodedMask(stored.astype(np.int32, copy=False), planes, convention, notes)
    values = np.zeros(width, np.int32)
    for bit in present:
        values[bit] = planes.bit(names.get(bit, "BAD"))
    return DecodedMask(translate_bits(unsigned, values), planes, convention, notes)


def _planes_like(own: Mapping[str, int]) -> MaskPlanes:
    """Core planes and those of a file; our own numbering is kept when the file has it."""
    core = dict(MaskPlanes().bits)
    if all(own.get(name) == bit for name, bit in core.items()):
        return MaskPlanes.of(own)
    return MaskPlanes().union(own)


def _from_codes(stored: Array) -> DecodedMask:
    values = distinct(stored)
    names = sorted({n for v in values for n in COMMUNITY_CODES.get(v, ())})
    planes = MaskPlanes().union(names)
    unknown = [v for v in values if v != 0 and v not in COMMUNITY_CODES]
    mask = (stored != 0) * np.int32(planes.bit("BAD"))
    for value in values:
        if value in COMMUNITY_CODES:
            mask[stored == value] = planes.bit(*COMMUNITY_CODES[value])
    notes = [f"mask codes {', '.join(map(str, unknown))} are unknown and count as BAD"] if unknown else []
    return DecodedMask(mask, planes, "community pipeline codes", notes)
