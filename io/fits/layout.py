# SPDX-License-Identifier: BSD-3-Clause
"""The byte map of a FITS file: where every header and data unit lies, checked before a pixel is touched.

A fault of one HDU is kept with that HDU and raised when it is used, so that a broken table does not hide a good image.
"""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from astropy.io import fits

from skydelta.errors import InputError
from skydelta.io.storage import Content

BLOCK = 2880
CARD = 80
BITPIX = (8, 16, 32, 64, -32, -64)
MAX_HEADER = 64 * 1024 * 1024
MAX_AXES = 999

_KEYWORD = re.compile(rb"[A-Za-z0-9_\-]* *\Z")
_UNSIGNED = {(8, -128): "int8", (16, 2**15): "uint16", (32, 2**31): "uint32", (64, 2**63): "uint64"}
STORED = {8: "uint8", 16: "int16", 32: "int32", 64: "int64", -32: "float32", -64: "float64"}


@dataclass(frozen=True)
class Hdu:
    """One header and data unit.

    Attributes
    ----------
    index : int
    kind : {"image", "compressed image", "table", "groups", "other"}
    header : astropy.io.fits.Header
        As stored; of a compressed image, the header of the table that holds it.
    start, data : int
        First byte of the header and of the data.
    size : int
        Bytes of data, padding excluded.
    shape : tuple of int
        Of the image, (y, x) order; empty without pixels.
    fault : str or None
        Why the HDU cannot be used.
    """

    index: int
    kind: str
    header: fits.Header
    start: int = 0
    data: int = 0
    size: int = 0
    shape: tuple[int, ...] = ()
    fault: str | None = None

    @property
    def name(self) -> str:
        """EXTNAME, else the EXTTYPE of masked images; upper case."""
        found = text(self.header, "EXTNAME") or text(self.header, "EXTTYPE")
        return found.upper()

    @property
    def version(self) -> int:
        found = last(self.header, "EXTVER")
        return found if isinstance(found, int) else 1

    @property
    def is_image(self) -> bool:
        return self.kind in ("image", "compressed image")

    @property
    def bitpix(self) -> int:
        """Of the image, also when it is compressed."""
        return last(self.header, "ZBITPIX" if self.kind == "compressed image" else "BITPIX")

    @property
    def compression(self) -> str:
        """ZCMPTYPE, or an empty text."""
        return text(self.header, "ZCMPTYPE") if self.kind == "compressed image" else ""

    @property
    def dtype(self) -> str:
        """Of the pixels after scaling: the exact unsigned forms keep integers, every other scaling gives floats."""
        scale, zero = last(self.header, "BSCALE", 1), last(self.header, "BZERO", 0)
        stored = STORED.get(self.bitpix, "?")
        if not all(isinstance(v, int | float) for v in (scale, zero)):
            return "?"
        if scale == 1 and (self.bitpix, zero) in _UNSIGNED:
            return _UNSIGNED[self.bitpix, int(zero)]
        if self.bitpix < 0:
            return stored
        if (scale, zero) != (1, 0) or last(self.header, "BLANK") is not None:
            return "float32" if self.bitpix in (8, 16) else "float64"
        return stored

    @property
    def label(self) -> str:
        """``HDU 1 (SCI)``."""
        return f"HDU {self.index}" + (f" ({self.name})" if self.name else "")

    def describe(self) -> str:
        """One phrase: ``[1] SCI image (100, 120)``."""
        shape = f" {self.shape}" if self.is_image else ""
        what = "image without pixels" if self.is_image and 0 in (self.shape or (0,)) else self.kind
        return f"[{self.index}] {self.name + ' ' if self.name else ''}{what}{shape if self.shape else ''}"


def readable(header: fits.Header) -> fits.Header:
    """A copy without the cards that cannot be parsed even after mending."""
    out = fits.Header()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for card in header.cards:
            try:
                card.verify("silentfix+ignore")
                card.value  # noqa: B018 - parsed here or never
                out.append(card, end=True)
            except (fits.VerifyError, ValueError, UnicodeError):
                continue
    return out


def last(header: fits.Header, keyword: str, default: Any = None) -> Any:
    """Value of a card; of repeated cards the last one; ``default`` when missing, undefined or unreadable."""
    count = header.count(keyword) if keyword in header else 0
    if count == 0:
        return default
    try:
        value = header[(keyword, count - 1)]
    except (fits.VerifyError, ValueError):
        return default
    return default if isinstance(value, fits.card.Undefined) else value


def text(header: fits.Header, keyword: str) -> str:
    """A text card without blanks around it; empty when missing or not a text."""
    value = last(header, keyword, "")
    return value.strip() if isinstance(value, str) else ""


def number(header: fits.Header, keyword: str, default: float) -> float:
    """A number card; a number written as text is used.

    Raises
    ------
    InputError
        Neither (the message names the card).
    """
    value = last(header, keyword, default)
    try:
        if isinstance(value, bool):
            raise ValueError
        return float(value.replace("D", "E").replace("d", "e")) if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        raise InputError(f"{keyword} = {value!r}; a number is needed") from None


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
        if offset and not head.startswith(b"XTENSION"):
            if head.strip(b"\x00 "):
                oddities.append(
                    f"{content.size - offset} bytes after HDU {hdus[-1].index} are not an HDU and are ignored"
                )
            break
        if not offset and not re.match(rb"SIMPLE  *=", head):
            raise InputError(f"{path}: not FITS: starts with {head[:9]!r}, SIMPLE = is needed")
        try:
            header, data = _header(content, offset)
            hdu = _interpret(Hdu(len(hdus), "other", header, offset, data), content.size)
        except InputError as e:
            if not hdus:
                raise InputError(f"{path}: HDU 0: {e}", **e.numbers) from None
            hdus.append(Hdu(len(hdus), "other", fits.Header(), offset, fault=str(e)))
            break
        hdus.append(hdu)
        if hdu.index == 0 and last(header, "SIMPLE") is False:
            oddities.append("SIMPLE = F: the file says that it does not follow the standard")
        if hdu.size < 0:
            break
        offset = data + math.ceil(hdu.size / BLOCK) * BLOCK
    return hdus, oddities


def _header(content: Content, offset: int) -> tuple[fits.Header, int]:
    """Header at ``offset`` and the first byte behind it."""
    blocks: list[bytes] = []
    at = offset
    while at - offset < MAX_HEADER:
        block = content.read(at, BLOCK)
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
                return fits.Header.fromstring(plain), at + BLOCK
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


def _integer(header: fits.Header, keyword: str, least: int, default: int | None = None) -> int:
    value = last(header, keyword, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        found = "missing" if value is None else f"{value!r}"
        raise InputError(f"{keyword} = {found}; an integer of at least {least} is needed")
    return value


def _interpret(hdu: Hdu, file_size: int) -> Hdu:
    """Fill in kind, size and shape. A size of -1 means that nothing behind this HDU can be found."""
    header = hdu.header
    bitpix = last(header, "BITPIX")
    if bitpix not in BITPIX or isinstance(bitpix, bool):
        kind = "image" if text(header, "XTENSION") in ("", "IMAGE") else "other"
        allowed = ", ".join(map(str, BITPIX))
        return replace(hdu, kind=kind, size=-1, fault=f"BITPIX = {bitpix!r}; allowed: {allowed}")
    try:
        axes = [_integer(header, f"NAXIS{i + 1}", 0) for i in range(_naxis(header, "NAXIS"))]
        extra, groups = _integer(header, "PCOUNT", 0, 0), _integer(header, "GCOUNT", 0, 1)
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
            shape = [_integer(header, f"ZNAXIS{i + 1}", 0) for i in range(_naxis(header, "ZNAXIS"))]
            hdu = replace(hdu, shape=tuple(reversed(shape)))
            if hdu.bitpix not in BITPIX:
                raise InputError(f"ZBITPIX = {hdu.bitpix!r}; allowed: {', '.join(map(str, BITPIX))}")
        except InputError as e:
            hdu = replace(hdu, fault=str(e))
    present = max(file_size - hdu.data, 0)
    if size > present:
        hdu = replace(hdu, fault=f"data are truncated: {size} bytes expected, {present} present")
    return hdu


def _naxis(header: fits.Header, keyword: str) -> int:
    n = _integer(header, keyword, 0)
    if n > MAX_AXES:
        raise InputError(f"{keyword} = {n}; at most {MAX_AXES} are allowed")
    return n


def _kind(header: fits.Header, index: int, random_groups: bool) -> str:
    if random_groups:
        return "groups"
    xtension = text(header, "XTENSION")
    if index == 0 or xtension in ("IMAGE", "IUEIMAGE"):
        return "image"
    if xtension == "BINTABLE" and last(header, "ZIMAGE") is True:
        return "compressed image"
    return "table" if xtension in ("BINTABLE", "TABLE", "A3DTABLE") else "other"


def raw_pixels(hdu: Hdu, data: bytes) -> tuple[np.ndarray, list[str]]:
    """Pixels of an uncompressed image in native byte order, scaled as FITS 4.0 (4.4.2, 5.2) says.

    BLANK is compared in the stored domain and becomes NaN; the exact unsigned forms keep their integer type.

    Raises
    ------
    InputError
        BSCALE, BZERO or BLANK is not a number.
    """
    oddities = [
        f"{key} is given {n} times; the last one is used"
        for key in ("BSCALE", "BZERO", "BLANK")
        if (n := hdu.header.count(key) if key in hdu.header else 0) > 1
    ]
    stored = np.frombuffer(data, np.dtype(STORED[hdu.bitpix]).newbyteorder(">")).reshape(hdu.shape)
    scale, zero = number(hdu.header, "BSCALE", 1.0), number(hdu.header, "BZERO", 0.0)
    for key in ("BSCALE", "BZERO"):
        if isinstance(last(hdu.header, key), str):
            oddities.append(f"{key} is a text; its number is used")
    if not np.isfinite(scale) or not np.isfinite(zero) or scale == 0:
        raise InputError(f"BSCALE = {scale}, BZERO = {zero}; finite numbers and BSCALE other than 0 are needed")
    blank = last(hdu.header, "BLANK")
    if blank is not None and hdu.bitpix < 0:
        oddities.append(f"BLANK = {blank!r} on floating-point pixels is ignored")
        blank = None
    if blank is not None and (isinstance(blank, bool) or not isinstance(blank, int)):
        raise InputError(f"BLANK = {blank!r}; an integer is needed")
    unsigned = _UNSIGNED.get((hdu.bitpix, int(zero))) if scale == 1 and zero == int(zero) else None
    blanks = None if blank is None else stored == blank
    if unsigned is not None and (blanks is None or not blanks.any()):
        native = stored.astype(stored.dtype.newbyteorder("="))
        bits = native.view(f"u{native.itemsize}") ^ np.array(1 << (8 * native.itemsize - 1), f"u{native.itemsize}")
        return bits.view(unsigned), oddities
    if hdu.bitpix < 0:
        pixels = stored.astype(STORED[hdu.bitpix])
    elif (scale, zero) == (1, 0) and blank is None:
        return stored.astype(STORED[hdu.bitpix]), oddities
    else:
        pixels = stored.astype("float32" if hdu.bitpix in (8, 16) else "float64")
    if scale != 1:
        pixels *= pixels.dtype.type(scale)
    if zero != 0:
        pixels += pixels.dtype.type(zero)
    if blanks is not None:
        pixels[blanks] = np.nan
    return pixels, oddities
