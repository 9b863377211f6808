# SPDX-License-Identifier: BSD-3-Clause
"""What can be known of an image before its pixels are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astropy import units as u
from astropy.io import fits
from astropy.wcs import WCS

from skydelta.errors import InputError
from skydelta.io.exposure import Exposure
from skydelta.io.fits.reader import open_file, split_extension
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
    """

    source: Any
    id: str
    shape: tuple[int, int]
    wcs: WCS | None
    unit: u.UnitBase | None
    header: fits.Header = field(default_factory=fits.Header)
    why: str = ""

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
        hdu = file.image(extension)
        if hdu.fault or len(hdu.shape) != 2:
            raise file.error(hdu, hdu.fault or f"shape {hdu.shape}; an image of two dimensions is needed")
        header = file.keywords(hdu)
        shape = hdu.shape[0], hdu.shape[1]
        try:
            wcs, notes = celestial_wcs(header, file.astropy, shape)
        except InputError as e:
            wcs, notes = None, [str(e)]
    why = "" if wcs is not None else "; ".join(notes)
    name = Path(path).name + (f"[{extension}]" if extension is not None else "")
    return Outline(source, name, shape, wcs, unit_of(header)[0], user_cards(header), why)
