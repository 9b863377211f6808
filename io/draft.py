# SPDX-License-Identifier: BSD-3-Clause
"""What is gathered of an image, its planes and its header before it becomes an Exposure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from astropy.io import fits

from skydelta.io.fits.checksum import Checks
from skydelta.io.fits.layout import Hdu
from skydelta.io.fits.pixels import Flags, Section
from skydelta.io.fits.reader import Source
from skydelta.io.planes import MaskPlanes
from skydelta.kernels.backend import CPU, Array, Backend


@dataclass
class Draft:
    """What is gathered before it becomes an Exposure; planes at ``place``, where files are decoded.

    The pixels are in the type that was asked for. ``flags`` holds the mask, with NO_DATA where they have no value, and
    the type that they have in the file. ``stated`` holds what an NDData object brings along: variance, sigma or weight,
    mask, psf, wcs.
    """

    pixels: Array
    header: fits.Header
    flags: Flags
    source: Source | None = None
    hdu: Hdu | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    stated: dict[str, Any] = field(default_factory=dict)
    planes: MaskPlanes = field(default_factory=MaskPlanes)
    has_saturation: bool = False
    place: Backend = CPU
    opened: list[Source] = field(default_factory=list)
    section: Section | None = None
    checks: Checks = field(default_factory=Checks)

    @property
    def frame(self) -> tuple[int, int]:
        """Shape of the image that the section is a part of; other planes must have it too."""
        if self.section is not None and self.hdu is not None:
            return self.hdu.shape[0], self.hdu.shape[1]
        return self.pixels.shape[0], self.pixels.shape[1]

    @property
    def corner(self) -> tuple[int, int]:
        """(y, x) of the first pixel in the frame."""
        return (self.section[0].start, self.section[1].start) if self.section is not None else (0, 0)

    @property
    def mask(self) -> Array:
        return self.flags.mask

    @property
    def label(self) -> str:
        if self.source is None or self.hdu is None:
            return "array"
        return f"{self.source.label}: {self.hdu.label}"
