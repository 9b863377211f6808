# SPDX-License-Identifier: BSD-3-Clause
"""What can be known of an image before its pixels are read."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from astropy import units as u
from astropy.io import fits
from astropy.wcs import WCS

from skydelta.errors import InputError
from skydelta.io.exposure import Exposure
from skydelta.io.fits.layout import Hdu
from skydelta.io.fits.reader import Source, open_file, split_extension
from skydelta.io.header import unit_of, user_cards
from skydelta.io.read import read
from skydelta.io.wcs import celestial_wcs


@dataclass(frozen=True)
class Outline:
    """An image without its pixels; attributes as of `Exposure`.

    Attributes
    ----------
    source : object
        What `skydelta.read` takes to get the pixels.
    why : str
        Why there is no WCS.
    cards : astropy.io.fits.Header
        From `detectors`: all cards of the HDU over those of a primary HDU without pixels, as they are stored.
    """

    source: Any
    id: str
    shape: tuple[int, int]
    wcs: WCS | None
    unit: u.UnitBase | None
    header: fits.Header = field(default_factory=fits.Header)
    why: str = ""
    cards: fits.Header = field(default_factory=fits.Header, repr=False)

    def read(self, device: str = "auto") -> Exposure:
        """The image, as `skydelta.read`."""
        return read(self.source, device=device)


def outline(source: Any) -> Outline:
    """Of a file only headers are read.

    Parameters
    ----------
    source : whatever `skydelta.read` takes

    Raises
    ------
    InputError
        As `skydelta.read`, as far as headers tell.
    """
    if not isinstance(source, str | Path):
        found = source if isinstance(source, Exposure) else read(source, device="cpu")
        return Outline(source, found.id, found.shape, found.wcs, found.unit, found.header)
    path, extension = split_extension(str(source))
    with open_file(path) as file:
        name = Path(path).name + (f"[{extension}]" if extension is not None else "")
        return _of(file, file.image(extension), source, name)


def detectors(path: str | Path) -> list[Outline]:
    """Every detector of a file: its images by name (SCI, SCI,2, ...), else its images whose names say nothing else.

    A file of one has ``FILE`` as its source; of several, each has ``FILE[NAME]``, ``FILE[NAME,VER]`` where names occur
    twice, or ``FILE[NUMBER]``.

    Raises
    ------
    InputError
        As `outline`.
    """
    path, extension = split_extension(str(path))
    with open_file(path) as file:
        hdus = file.detectors() if extension is None else [file.image(extension)]
        if len(hdus) == 1:
            suffixes = ["" if extension is None else f"[{extension}]"]
        else:
            suffixes = [f"[{_address(file, hdu)}]" for hdu in hdus]
        found = zip(hdus, suffixes, strict=True)
        return [replace(_of(file, h, path + end, Path(path).name + end), cards=file.keywords(h)) for h, end in found]


def _address(file: Source, hdu: Hdu) -> str:
    """What `Source.find` finds the HDU by, and no other one: its name, else with its version, else its number."""
    alike = [h for h in file.hdus if h.name == hdu.name]
    if not hdu.name or any(c in hdu.name for c in ",[]") or hdu.name.isdigit():
        return str(hdu.index)
    if len(alike) == 1:
        return hdu.name
    return f"{hdu.name},{hdu.version}" if sum(h.version == hdu.version for h in alike) == 1 else str(hdu.index)


def _of(file: Source, hdu: Hdu, source: Any, name: str) -> Outline:
    if hdu.fault or len(hdu.shape) != 2:
        raise file.error(hdu, hdu.fault or f"shape {hdu.shape}; an image of two dimensions is needed")
    header = file.keywords(hdu)
    shape = hdu.shape[0], hdu.shape[1]
    try:
        wcs, notes = celestial_wcs(header, file.astropy, shape)
    except InputError as e:
        wcs, notes = None, [str(e)]
    why = "" if wcs is not None else "; ".join(notes)
    return Outline(source, name, shape, wcs, unit_of(header)[0], user_cards(header), why)
