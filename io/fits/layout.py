# SPDX-License-Identifier: BSD-3-Clause
"""The byte map of a FITS file: where every header and data unit lies, checked before a pixel is touched.

A fault of one HDU is kept with that HDU and raised when it is used, so that a broken table does not hide a good image.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

import numpy as np
from astropy.io import fits

from skydelta.errors import InputError
from skydelta.io.fits.cards import CARD, Cards, integer, last, text
from skydelta.io.storage import Content
from skydelta.kernels.checksum import add_words, word_sum

BLOCK = 2880
BITPIX = (8, 16, 32, 64, -32, -64)
MAX_HEADER = 32 * 1024 * 1024
MAX_AXES = 999
MAX_HDUS = 65536

_KEYWORD = re.compile(rb"[A-Za-z0-9_\-]* *\Z")
_BITPIX = re.compile(rb"BITPIX  *=")  # the second card of every header: what has it is an HDU with a damaged first one
UNSIGNED = {(8, -128): "int8", (16, 2**15): "uint16", (32, 2**31): "uint32", (64, 2**63): "uint64"}
STORED = {8: "uint8", 16: "int16", 32: "int32", 64: "int64", -32: "float32", -64: "float64"}


@dataclass(frozen=True)
class Hdu:
    """One header and data unit.

    Attributes
    ----------
    index : int
    kind : {"image", "compressed image", "table", "groups", "other"}
    cards : Cards
        As stored; of a compressed image, those of the table that holds it.
    start, data : int
        First byte of the header and of the data.
    size : int
        Bytes of data, padding excluded; -1 where a fault hides it, and with it all that follows.
    shape : tuple of int
        Of the image, (y, x) order; empty without pixels.
    words : int
        Checksum of the header: the ones-complement sum of its 32-bit words.
    fault : str or None
        Why the HDU cannot be used.
    """

    index: int
    kind: str
    cards: Cards
    start: int = 0
    data: int = 0
    size: int = 0
    shape: tuple[int, ...] = ()
    words: int = 0
    fault: str | None = None

    @property
    def header(self) -> fits.Header:
        """``cards`` as astropy parses them."""
        return self.cards.header

    @property
    def name(self) -> str:
        """EXTNAME, else the EXTTYPE of masked images; upper case."""
        found = text(self.cards, "EXTNAME") or text(self.cards, "EXTTYPE")
        return found.upper()

    @property
    def version(self) -> int:
        found = last(self.cards, "EXTVER")
        return found if isinstance(found, int) else 1

    @property
    def is_image(self) -> bool:
        return self.kind in ("image", "compressed image")

    @property
    def bitpix(self) -> int:
        """Of the image, also when it is compressed."""
        return last(self.cards, "ZBITPIX" if self.kind == "compressed image" else "BITPIX")

    @property
    def compression(self) -> str:
        """ZCMPTYPE, or an empty text."""
        return text(self.cards, "ZCMPTYPE") if self.kind == "compressed image" else ""

    @property
    def dtype(self) -> str:
        """Of the pixels after scaling: the exact unsigned forms keep integers, every other scaling gives floats."""
        scale, zero = last(self.cards, "BSCALE", 1), last(self.cards, "BZERO", 0)
        stored = STORED.get(self.bitpix, "?")
        if stored == "?" or not all(isinstance(v, int | float) for v in (scale, zero)):
            return "?"
        if scale == 1 and (self.bitpix, zero) in UNSIGNED:
            return UNSIGNED[self.bitpix, int(zero)]
        if self.bitpix < 0:
            return stored
        if (scale, zero) != (1, 0) or self.nullable:
            return "float32" if self.bitpix in (8, 16) else "float64"
        return stored

    @property
    def nullable(self) -> bool:
        """Integer pixels may be null: there is a BLANK, or a ZBLANK of a compressed image."""
        keywords = ("BLANK", "ZBLANK") if self.kind == "compressed image" else ("BLANK",)
        return any(last(self.cards, k) is not None for k in keywords)

    @property
    def label(self) -> str:
        """``HDU 1 (SCI)``."""
        return f"HDU {self.index}" + (f" ({self.name})" if self.name else "")

    def describe(self) -> str:
        """One phrase: ``[1] SCI image (100, 120)``."""
        shape = f" {self.shape}" if self.is_image else ""
        what = "image without pixels" if self.is_image and 0 in (self.shape or (0,)) else self.kind
        return f"[{self.index}] {self.name + ' ' if self.name else ''}{what}{shape if self.shape else ''}"


def scan(content: Content, path: str) -> tuple[list[Hdu], list[str]]:
    """All HDUs of a file and what is odd about it.

    Raises
    ------
    InputError
        Not FITS, or its first header cannot be read.
    """
    hdus: list[Hdu] = []
    oddities: list[str] = []
    offset = 0
    while offset < content.size:
        head = content.read(offset, BLOCK)
        if len(hdus) == MAX_HDUS:
            oddities.append(f"HDUs after the first {MAX_HDUS} are ignored")
            break
        if offset and not head.startswith(b"XTENSION"):
            if _BITPIX.match(head, CARD):
                fault = f"header begins with {head[:8]!r}, XTENSION is needed"
                hdus.append(Hdu(len(hdus), "other", Cards(header=fits.Header()), offset, size=-1, fault=fault))
            elif head.strip(b"\x00 "):
                oddities.append(
                    f"{content.size - offset} bytes after HDU {hdus[-1].index} are not an HDU and are ignored"
                )
            break
        if not offset and not re.match(rb"SIMPLE  *=", head):
            raise InputError(f"{path}: not FITS: starts with {head[:9]!r}, SIMPLE = is needed")
        try:
            cards, data, words = _header(content, offset)
            hdu = _interpret(Hdu(len(hdus), "other", cards, offset, data, words=words), content.size)
        except InputError as e:
            if not hdus:
                raise InputError(f"{path}: HDU 0: {e}", **e.numbers) from None
            hdus.append(Hdu(len(hdus), "other", Cards(header=fits.Header()), offset, size=-1, fault=str(e)))
            break
        hdus.append(hdu)
        if hdu.index == 0 and last(cards, "SIMPLE") is False:
            oddities.append("SIMPLE = F: the file says that it does not follow the standard")
        if hdu.size < 0:
            break
        offset = data + math.ceil(hdu.size / BLOCK) * BLOCK
        if data + hdu.size <= content.size < offset:
            oddities.append(
                f"the file ends {offset - content.size} bytes before the block of HDU {hdu.index} is full: it was "
                "written without padding, or cut off there, and what came after it is lost"
            )
    return hdus, oddities


def _header(content: Content, offset: int) -> tuple[Cards, int, int]:
    """Header at ``offset``, the first byte behind it, and the checksum of its bytes."""
    blocks: list[bytes] = []
    at, words = offset, 0
    while at - offset < MAX_HEADER:
        block = content.read(at, BLOCK)
        words = add_words(words, word_sum(np.frombuffer(block, np.uint8)))
        for i in range(0, len(block), CARD):
            keyword = block[i : i + 8]
            if keyword in (b"END     ", b"END"):
                rest = block[i + 8 :]
                if rest.strip(b"\x00 "):
                    raise InputError(
                        f"header is not filled with blanks to {BLOCK} bytes: data follow END at byte {at + i + CARD}"
                    )
                if len(block) < BLOCK:
                    raise InputError(f"header is cut at byte {at + len(block)}, inside its last {BLOCK}-byte block")
                blocks.append(block[:i])
                # control characters inside cards would make the header unusable for every later card
                cards = re.sub(rb"[\x00-\x1f]", b" ", b"".join(blocks))
                plain = re.sub(rb"[^ -~]", b"?", cards).decode("ascii")
                return Cards(plain), at + BLOCK, words
            if not _KEYWORD.match(keyword.replace(b"\x00", b" ")):
                n = (at - offset + i) // CARD
                if b"\n" in content.read(offset, 2 * CARD + 8):
                    raise InputError("not FITS: header lines are separated by line feeds; cards are 80 bytes each")
                raise InputError(f"END card is missing: card {n} starts with {keyword!r}")
        if len(block) < BLOCK:
            raise InputError(f"END card is missing: the file ends after {at + len(block)} bytes")
        blocks.append(block)
        at += BLOCK
    raise InputError(f"END card is missing in the first {MAX_HEADER} bytes of the header")


def _interpret(hdu: Hdu, file_size: int) -> Hdu:
    """Fill in kind, size and shape. A size of -1 means that nothing behind this HDU can be found."""
    header = hdu.cards
    bitpix = last(header, "BITPIX")
    if bitpix not in BITPIX or isinstance(bitpix, bool):
        kind = "image" if text(header, "XTENSION") in ("", "IMAGE") else "other"
        allowed = ", ".join(map(str, BITPIX))
        return replace(hdu, kind=kind, size=-1, fault=f"BITPIX = {bitpix!r}; allowed: {allowed}")
    try:
        axes = [integer(header, f"NAXIS{i + 1}", 0) for i in range(_naxis(header, "NAXIS"))]
        extra, groups = integer(header, "PCOUNT", 0, 0), integer(header, "GCOUNT", 0, 1)
    except InputError as e:
        return replace(hdu, kind="image", size=-1, fault=str(e))
    random_groups = hdu.index == 0 and last(header, "GROUPS") is True and (not axes or axes[0] == 0)
    elements = math.prod(axes[1:] if random_groups else axes) if axes else 0
    size = abs(bitpix) // 8 * groups * (extra + elements) if axes else 0
    hdu = replace(hdu, size=size, kind=_kind(header, hdu.index, random_groups))
    if hdu.kind == "image":
        hdu = replace(hdu, shape=tuple(reversed(axes)))
        if axes and (extra, groups) != (0, 1):
            hdu = replace(hdu, fault=f"PCOUNT = {extra}, GCOUNT = {groups} in an image; 0 and 1 are needed")
    elif hdu.kind == "compressed image":
        try:
            shape = [integer(header, f"ZNAXIS{i + 1}", 0) for i in range(_naxis(header, "ZNAXIS"))]
            hdu = replace(hdu, shape=tuple(reversed(shape)))
            if hdu.bitpix not in BITPIX:
                raise InputError(f"ZBITPIX = {hdu.bitpix!r}; allowed: {', '.join(map(str, BITPIX))}")
        except InputError as e:
            hdu = replace(hdu, fault=str(e))
    present = max(file_size - hdu.data, 0)
    if size > present:
        hdu = replace(hdu, fault=f"data are truncated: {size} bytes expected, {present} present")
    return hdu


def _naxis(header: Cards, keyword: str) -> int:
    n = integer(header, keyword, 0)
    if n > MAX_AXES:
        raise InputError(f"{keyword} = {n}; at most {MAX_AXES} are allowed")
    return n


def _kind(header: Cards, index: int, random_groups: bool) -> str:
    if random_groups:
        return "groups"
    xtension = text(header, "XTENSION")
    if index == 0 or xtension in ("IMAGE", "IUEIMAGE"):
        return "image"
    if xtension == "BINTABLE" and last(header, "ZIMAGE") is True:
        return "compressed image"
    return "table" if xtension in ("BINTABLE", "TABLE", "A3DTABLE") else "other"
