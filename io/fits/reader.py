# SPDX-License-Identifier: BSD-3-Clause
"""A FITS file as a list of HDUs, and the choice of the one that is wanted."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from astropy.io import fits
from astropy.table import Table

from skydelta.errors import InputError
from skydelta.io.fits.cards import Cards, readable
from skydelta.io.fits.checksum import Checks, recorded
from skydelta.io.fits.layout import Hdu, scan
from skydelta.io.fits.pixels import Flags, Section, header_of, nulls
from skydelta.io.fits.pixels import read as read_pixels
from skydelta.io.fits.tiled import grid_of
from skydelta.io.fits.verify import verify as verified
from skydelta.io.routes import Counted, is_url, open_source
from skydelta.io.storage import Content
from skydelta.kernels.backend import CPU, Array, Backend, resolve
from skydelta.kernels.core.devices import active

ROLES = {
    "image": ("SCI", "IMAGE", "SCIENCE", "DATA"),
    "variance": ("VAR", "VARIANCE"),
    "sigma": ("ERR", "ERROR", "SIGMA", "RMS", "STDDEV"),
    "uncertainty": ("UNCERT", "UNCERTAINTY"),
    "variance component": ("VAR_POISSON", "VAR_RNOISE", "VAR_FLAT"),
    "weight": ("WHT", "WEIGHT", "IVAR", "INVVAR"),
    "mask": ("DQ", "MASK", "FLAGS", "BPM"),
    "psf": ("PSF", "PSFIMAGE"),
    "other": (
        *("SNR", "CON", "KERNEL", "KIMAGES", "KTERMS", "KCOVAR", "UNMATCHED", "WHITENER", "AREA"),
        *("D2IMARR", "WCSDVARR", "WCSCORR"),
    ),
}
"""What an HDU holds, by its name (EXTNAME, else EXTTYPE)."""

_SECTION = re.compile(
    r"(?P<before>.*[^\[\]](\[[^\[\]]+\])?)\[(?P<x1>\d+):(?P<x2>\d+),(?P<y1>\d+):(?P<y2>\d+)\]\Z", re.DOTALL
)

_LIKE_SECTION = re.compile(r"\[(?=[^\[\]]*[:*])[-+*:,.\d\s]*\]\Z")
"""What looks like a section: other programs know steps, whole axes and floating bounds."""

_PLANES = ("variance", "sigma", "uncertainty", "weight", "mask", "psf")

_ROLE_OF = {name: role for role, names in ROLES.items() for name in names}

_EXTENSION = re.compile(r"(?P<file>.*[^\[\]])\[(?P<ext>[^\[\]]+)\]\Z", re.DOTALL)


class Source:
    """HDUs with pixels behind them; `FitsFile` and `InMemory` say where from.

    Attributes
    ----------
    label : str
        For messages and notes: the path as given.
    hdus : list of Hdu
    oddities : list of str
        What a careful reader should know about the file as a whole.
    """

    label: str
    hdus: list[Hdu]
    oddities: list[str]

    def _pixels(
        self, hdu: Hdu, dtype: str, section: Section | None, flags: Flags | None, backend: Backend, checks: Checks
    ) -> tuple[Array, list[str]]:
        raise TypeError("a source implements _pixels")

    def _header(self, hdu: Hdu) -> fits.Header:
        raise TypeError("a source implements _header")

    def astropy(self) -> fits.HDUList:
        """The whole file as astropy sees it (lookup tables of a WCS)."""
        raise TypeError("a source implements astropy")

    def close(self) -> None:
        """Release the file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def error(self, hdu: Hdu, message: str, **numbers: object) -> InputError:
        return InputError(f"{self.label}: {hdu.label}: {message}", **numbers)

    def read(
        self,
        hdu: Hdu,
        dtype: Literal["native", "float32"] = "native",
        section: Section | None = None,
        flags: Flags | None = None,
        backend: Backend = CPU,
        checks: Checks | None = None,
    ) -> tuple[fits.Header, Array, list[str]]:
        """Image header, pixels in native byte order (y, x), and what is odd about them.

        Parameters
        ----------
        hdu : Hdu
        dtype : {"native", "float32"}
            native keeps integers and float64.
        section : tuple of slice, optional
            One slice an axis; only what it touches is read and decoded.
        flags : Flags, optional
            Marks pixels without a value in the same pass.
        backend : Backend
            Where the pixels are decoded and stay.
        checks : Checks, optional
            What is done about checksums, and what they said; warnings when left out.

        Raises
        ------
        InputError
            The HDU is no image, has no pixels, is truncated or damaged.
        """
        pixels, odd = self._checked(hdu, dtype, section, flags, backend, checks or Checks())
        return self._header(hdu), pixels, odd

    def _checked(
        self, hdu: Hdu, dtype: str, section: Section | None, flags: Flags | None, backend: Backend, checks: Checks
    ) -> tuple[Array, list[str]]:
        """Pixels and what is odd about them; errors name file and HDU."""
        if hdu.fault:
            raise self.error(hdu, hdu.fault)
        if not hdu.is_image:
            raise self.error(hdu, f"is a {hdu.kind}; an image is needed")
        if 0 in (hdu.shape or (0,)):
            raise self.error(hdu, f"has no pixel data (shape {hdu.shape})")
        try:
            return self._pixels(hdu, dtype, section, flags, backend, checks)
        except InputError as e:
            said = str(e).removeprefix(f"{self.label}: ").removeprefix(f"{hdu.label}: ")
            raise self.error(hdu, said, **e.numbers) from None
        except MemoryError:
            raise self.error(hdu, f"shape {hdu.shape} does not fit in memory") from None

    def pixels(
        self,
        extension: str | int | None = None,
        section: Section | None = None,
        dtype: Literal["native", "float32"] = "native",
        device: str = "cpu",
        checksum: Literal["warn", "error", "ignore"] = "warn",
    ) -> Array:
        """Pixels of an HDU, by name or number, or of the image chosen by rule; a part of them with ``section``.

        Parameters
        ----------
        extension : str or int, optional
        section : tuple of slice, optional
            One slice an axis, (y, x) order, in steps of 1.
        dtype : {"native", "float32"}
        device : str
            auto, cpu, cuda or cuda:N: where they are decoded and stay.
        checksum : {"warn", "error", "ignore"}
            What is done when DATASUM or CHECKSUM do not hold; a part of an HDU is not verified.

        Raises
        ------
        InputError
            As `read`; no such HDU; an empty section.
        ConfigError
            Another ``checksum``.
        """
        checks = Checks(checksum)
        hdu = self.image() if extension is None else self.find(extension)
        pixels = self._checked(hdu, dtype, section, None, resolve(device), checks)[0]
        self.judge(checks, self.hdus if extension is None else [hdu])
        return pixels

    def judge(self, checks: Checks, hdus: list[Hdu] | None = None) -> None:
        """Hold the headers of all HDUs (or of these) that were not read whole against their sums.

        Raises
        ------
        InputError
            One does not hold, and ``checks`` makes it an error.
        """

    def keywords(self, hdu: Hdu, header: fits.Header | None = None) -> fits.Header:
        """Cards of the HDU over those of a primary HDU without pixels."""
        merged = readable(hdu.header if header is None else header)
        primary = self.hdus[0]
        if primary is not hdu and not primary.shape:
            merged.extend((c for c in readable(primary.header).cards if c.keyword not in _STRUCTURE), unique=True)
        return merged

    def find(self, extension: str | int) -> Hdu:
        """The HDU of this number or name (``SCI``, ``SCI,2``, ``1``).

        Raises
        ------
        InputError
            There is none; the message lists what there is.
        """
        wanted = str(extension).strip()
        if re.fullmatch(r"\d+", wanted):
            if int(wanted) < len(self.hdus):
                return self.hdus[int(wanted)]
        else:
            name, _, version = wanted.upper().partition(",")
            for hdu in self.hdus:
                if hdu.name == name.strip() and (not version or str(hdu.version) == version.strip()):
                    return hdu
            if name == "PRIMARY":
                return self.hdus[0]
        raise InputError(f"{self.label}: no HDU {wanted!r}; it has {self.contents()}")

    def image(self, extension: str | int | None = None) -> Hdu:
        """The two-dimensional image that is asked for, or chosen by rule.

        The rule: the first image named SCI or IMAGE (or SCIENCE, DATA), else the first two-dimensional image whose name
        says nothing else.

        Raises
        ------
        InputError
            There is no image, or it has another number of dimensions.
        """
        if extension is not None:
            hdu = self.find(extension)
        else:
            images = [h for h in self.hdus if h.fault is None and len(h.shape) == 2 and 0 not in h.shape]
            named = [h for h in self.hdus if h.is_image and role(h) == "image"]
            plain = [h for h in self.hdus if (h in images or (h.is_image and h.fault)) and role(h) is None]
            best = next(iter([*named, *plain]), None)
            if best is None:
                raise InputError(f"{self.label}: {self._no_image()}")
            hdu = best
        if hdu.fault is None and hdu.is_image and hdu.shape and len(hdu.shape) != 2:
            raise self.error(hdu, f"shape {hdu.shape} has {len(hdu.shape)} dimensions; an image of two is needed")
        return hdu

    def detectors(self) -> list[Hdu]:
        """Every image that `image` would take by rule, if it stood alone: of a file of several detectors, each.

        Raises
        ------
        InputError
            There is none.
        """
        images = [h for h in self.hdus if h.is_image and (h.fault or (len(h.shape) == 2 and 0 not in h.shape))]
        named = [h for h in images if role(h) == "image"]
        return named or [h for h in images if role(h) is None] or [self.image()]

    def _no_image(self) -> str:
        odd = [h for h in self.hdus if h.is_image and h.shape and 0 not in h.shape and len(h.shape) != 2]
        if odd:
            h = odd[0]
            return f"no two-dimensional image: {h.label} has shape {h.shape}, {len(h.shape)} dimensions"
        faulty = next((h for h in self.hdus if h.fault), None)
        if faulty is not None:
            return f"{faulty.label}: {faulty.fault}"
        if any(h.is_image and len(h.shape) == 2 and 0 not in h.shape for h in self.hdus):
            return f"no image HDU by rule, name one; it has {self.contents()}"
        return f"no image HDU with pixel data; it has {self.contents()}"

    def companion(self, kind: str, of: Hdu) -> Hdu | None:
        """The HDU of the same file that plays a role (`ROLES`) for an image, by name and EXTVER."""
        found = [h for h in self.hdus if h is not of and role(h) == kind and (h.is_image or h.fault)]
        same = [h for h in found if h.version == of.version]
        return next(iter(same or found), None)

    def contents(self) -> str:
        return "; ".join(h.describe() for h in self.hdus)


_STRUCTURE = {
    "SIMPLE", "XTENSION", "BITPIX", "NAXIS", "EXTEND", "PCOUNT", "GCOUNT", "GROUPS", "EXTNAME", "EXTVER", "EXTLEVEL",
    "INHERIT", "CREATOR", "CHECKSUM", "DATASUM", "BSCALE", "BZERO", "BLANK", "COMMENT", "HISTORY", "", "CONTINUE",
}  # fmt: skip


def role(hdu: Hdu) -> str | None:
    """What an HDU holds by its name; None when the name says nothing."""
    return _ROLE_OF.get(hdu.name)


def split_section(source: str) -> tuple[str, Section | None]:
    """``FILE[x1:x2,y1:y2]`` or ``FILE[EXT][x1:x2,y1:y2]`` to what is before the section and its slices (y, x).

    The section is written as FITS tools do: x first, both ends inclusive, the first pixel is 1. A file of that very
    name wins.

    Raises
    ------
    InputError
        An end before its beginning, or a pixel 0.
    """
    match = _SECTION.match(source)
    if not is_url(source) and os.path.exists(source):
        return source, None
    if match is None:
        if odd := _LIKE_SECTION.search(source):
            raise InputError(
                f"{source}: section {odd[0]} is not understood; [x1:x2,y1:y2] of whole pixels, from 1 on, is"
            )
        return source, None
    x1, x2, y1, y2 = (int(match[name]) for name in ("x1", "x2", "y1", "y2"))
    if not (1 <= x1 <= x2 and 1 <= y1 <= y2):
        raise InputError(f"{source}: section of no pixels; 1 <= x1 <= x2 and 1 <= y1 <= y2 are needed")
    return match["before"], (slice(y1 - 1, y2), slice(x1 - 1, x2))


def _is_whole(section: Section, shape: tuple[int, ...]) -> bool:
    """Whether a section is all of an image."""
    return len(section) == len(shape) and all(s.indices(n) == (0, n, 1) for s, n in zip(section, shape, strict=True))


def section_text(section: Section) -> str:
    """Slices (y, x) as ``[x1:x2,y1:y2]``; the inverse of `split_section`."""
    y, x = section
    return f"[{x.start + 1}:{x.stop},{y.start + 1}:{y.stop}]"


def split_extension(source: str) -> tuple[str, str | None]:
    """``FILE[EXT]`` to (FILE, EXT); a file of that very name wins."""
    match = _EXTENSION.match(source)
    if match is None or (not is_url(source) and os.path.exists(source)):
        return source, None
    return match["file"], match["ext"]


class FitsFile(Source):
    """A file of which the headers have been read; pixels are read when they are asked for.

    Parameters
    ----------
    source : str, Path, URL, bytes or binary file object
        As in `skydelta.io.routes.open_source`.

    Attributes
    ----------
    counted : Counted or None
        Route, reads and bytes so far; None for contents from elsewhere.

    Raises
    ------
    InputError
        Missing, a directory, empty, not FITS, no END card, or whole-file compression that cannot be undone.
    """

    counted: Counted | None

    def __init__(self, source: Any) -> None:
        content, self.counted, label = open_source(source)
        self._scan(content, label)

    @classmethod
    def of(cls, content: Content, label: str) -> FitsFile:
        """A file whose bytes have been opened already."""
        file = cls.__new__(cls)
        file.counted = None
        file._scan(content, label)
        return file

    def _scan(self, content: Content, label: str) -> None:
        self.label, self.content = label, content
        try:
            self.hdus, self.oddities = scan(self.content, self.label)
        except BaseException:
            self.content.close()
            raise

    def _pixels(
        self, hdu: Hdu, dtype: str, section: Section | None, flags: Flags | None, backend: Backend, checks: Checks
    ) -> tuple[Array, list[str]]:
        if section is not None and _is_whole(section, hdu.shape):
            section = None  # the whole image: its sums can be verified
        tally = checks.begin(hdu, self.content, section is None)
        pixels = read_pixels(hdu, tally or self.content, dtype, section, flags=flags, backend=backend)
        if tally is not None:
            with active(backend):
                checks.end(hdu, tally, self.label)
        return pixels

    def _header(self, hdu: Hdu) -> fits.Header:
        return header_of(hdu)

    def judge(self, checks: Checks, hdus: list[Hdu] | None = None) -> None:
        checks.others(self.hdus if hdus is None else hdus, self.content, self.label)

    def astropy(self) -> fits.HDUList:
        return fits.HDUList.fromstring(self.content.read(0, self.content.size))

    def close(self) -> None:
        self.content.close()


def open_file(source: Any) -> FitsFile:
    """Open a FITS file without reading pixels: ``with skydelta.open(path) as file``.

    Parameters
    ----------
    source : str, Path, http(s) URL, bytes or binary file object

    Returns
    -------
    FitsFile
        ``hdus`` (name, shape, dtype, compression, first byte and size of header and data), and
        ``pixels("SCI", section)``, which reads and decodes only the rows or tiles that a section touches.

    Raises
    ------
    InputError
        As `FitsFile`.
    """
    return FitsFile(source)


class InMemory(Source):
    """astropy HDUs."""

    def __init__(self, hdulist: fits.HDUList, label: str = "HDU list") -> None:
        self.label, self.oddities, self._hdulist = label, [], hdulist
        self.hdus = []
        for i, hdu in enumerate(hdulist):
            kind = "image" if hdu.is_image else "table"
            self.hdus.append(Hdu(i, kind, Cards(header=hdu.header), shape=tuple(hdu.shape) if hdu.is_image else ()))

    def _pixels(
        self, hdu: Hdu, dtype: str, section: Section | None, flags: Flags | None, backend: Backend, checks: Checks
    ) -> tuple[Array, list[str]]:
        data = np.asarray(self._hdulist[hdu.index].data)
        data = data if section is None else data[section]
        wanted = np.dtype("float32") if dtype == "float32" else data.dtype.newbyteorder("=")
        if flags is None:
            return backend.asarray(data.astype(wanted, copy=False)), []
        with np.errstate(over="ignore"):  # what overflows is flagged
            pixels = np.array(data, wanted, order="C")
        flags.apply(pixels)
        flags.native, flags.mask = data.dtype.name, backend.asarray(flags.mask)
        return backend.asarray(pixels), []

    def _header(self, hdu: Hdu) -> fits.Header:
        return hdu.header

    def astropy(self) -> fits.HDUList:
        return self._hdulist


def inspect(source: Any, verify: bool = False) -> Table:
    """The byte map of a file, and what `skydelta.read` would take it for.

    Parameters
    ----------
    source : str, Path, http(s) URL, bytes, binary file object
    verify : bool
        Read everything: hold the checksums against the bytes, and decode every tile.

    Returns
    -------
    astropy.table.Table
        index, name, kind, shape (y, x), dtype after scaling, compression, tiles (pixels of one and their number),
        nulls (what stands for a missing pixel), header and data (their first byte, in what a whole-file compression
        holds), bytes of data, device (bytes that `skydelta.read` keeps of it where it computes, at float32), role
        (what the HDU would be read as), checksum (the sums that it has; once verified, right or wrong), problem. A
        variance that must be estimated is counted with the image.

    Raises
    ------
    InputError
        Missing file, not FITS, or ``FILE[EXT]`` with an EXT that is no image of the file.
    """
    path, extension = split_extension(str(source)) if isinstance(source, str | Path) else (source, None)
    with open_file(path) as file:
        try:
            chosen = file.image(extension)
        except InputError:
            if extension is not None:
                raise
            chosen = None
        rows = []
        for h in file.hdus:
            used = "" if not h.is_image or 0 in (h.shape or (0,)) else role(h) or ""
            if chosen is not None and used in _PLANES and file.companion(used, chosen) is not h:
                used = "other"
            used = "image" if h is chosen else "other" if used == "image" else used
            sums, problems = " ".join(recorded(h)), [h.fault] if h.fault else []
            if verify:
                sums, problems = verified(h, file.content)
            rows.append(
                (
                    h.index, h.name, h.kind, " x ".join(map(str, h.shape)),
                    h.dtype if h.is_image and h.shape else "", h.compression, _tiles(h), nulls(h), h.start, h.data,
                    max(h.size, 0), used, sums, "; ".join(problems),
                )
            )  # fmt: skip
        table = Table(rows=rows, names=_COLUMNS, meta={"oddities": file.oddities})
    table.add_column(_device_bytes(file.hdus, chosen, list(table["role"])), name="device", index=11)
    return table


_COLUMNS = (
    "index", "name", "kind", "shape", "dtype", "compression", "tiles", "nulls", "header", "data", "bytes", "role",
    "checksum", "problem",
)  # fmt: skip


def _tiles(hdu: Hdu) -> str:
    """``128 x 128 (1024)``, in (y, x) order."""
    if hdu.kind != "compressed image" or hdu.fault or 0 in (hdu.shape or (0,)):
        return ""
    try:
        grid = grid_of(hdu)
    except InputError:
        return "?"
    return f"{' x '.join(map(str, grid.tile))} ({len(grid)})"


def _device_bytes(hdus: list[Hdu], chosen: Hdu | None, roles: list[str]) -> list[int]:
    """Planes of four bytes a pixel: image, variance and mask; those that are not in the file are made for the image."""
    out = [0] * len(hdus)
    if chosen is None or chosen.fault or len(chosen.shape) != 2:
        return out
    plane = 4 * math.prod(chosen.shape)
    variances = [
        i
        for kind in ("variance", "sigma", "uncertainty", "variance component", "weight")
        for i, found in enumerate(roles)
        if found == kind
    ]
    masks = [i for i, found in enumerate(roles) if found == "mask"]
    for i in (chosen.index, variances[0] if variances else chosen.index, masks[0] if masks else chosen.index):
        out[i] += plane
    return out
