# SPDX-License-Identifier: BSD-3-Clause
"""What is gathered of an image, its planes and its header before it becomes an Exposure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from astropy import units as u
from astropy.io import fits
from astropy.nddata import NDData

from skydelta.errors import InputError
from skydelta.io.arrays import taken_apart
from skydelta.io.fits.checksum import Checks
from skydelta.io.fits.layout import Hdu
from skydelta.io.fits.pixels import Flags, Section
from skydelta.io.fits.reader import Source
from skydelta.io.planes import MaskPlanes
from skydelta.kernels.backend import CPU, Array, Backend, to_host

UNCERTAINTIES = {"VarianceUncertainty": "variance", "StdDevUncertainty": "sigma", "InverseVariance": "weight"}
"""UTYPE of an UNCERT extension (astropy NDData)."""


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


def of_array(array: Any, header: Any, dtype: str) -> Draft:
    """An array with the cards of a header.

    Raises
    ------
    InputError
        No two-dimensional array of numbers.
    """
    values, masked, unit = taken_apart(array)
    pixels = to_host(values)
    if pixels.ndim != 2 or 0 in pixels.shape or pixels.dtype.kind not in "uif":
        raise InputError(f"array of {pixels.dtype} {pixels.shape}: a two-dimensional array of numbers is needed")
    cards = header.copy() if isinstance(header, fits.Header) else fits.Header(header)
    if unit is not None and "BUNIT" not in cards:
        cards["BUNIT"] = unit.to_string()
    native = pixels.dtype.newbyteorder("=")
    if dtype == "native" and not (pixels.dtype.kind == "f" and np.isinf(pixels).any()):
        own = np.ascontiguousarray(pixels, native)
    else:
        with np.errstate(over="ignore"):  # what overflows is flagged below
            own = np.array(pixels, np.float32 if dtype == "float32" else native, order="C")
    flags = Flags(MaskPlanes().bit("NO_DATA"))
    flags.apply(own)
    flags.native = native.name
    stated = {} if masked is None else {"mask": masked}
    return Draft(own, cards, flags, notes={"image": {"type": native.name}}, stated=stated)


def of_nddata(data: NDData, dtype: str) -> Draft:
    """astropy NDData: uncertainty by its type, mask, WCS, unit."""
    header = data.meta.copy() if isinstance(data.meta, fits.Header) else fits.Header()
    if data.unit is not None:
        header["BUNIT"] = data.unit.to_string()
    draft = of_array(np.asarray(data.data), header, dtype)
    draft.stated["wcs"], draft.stated["psf"] = data.wcs, getattr(data, "psf", None)
    if data.uncertainty is not None:
        kind = UNCERTAINTIES.get(type(data.uncertainty).__name__)
        if kind is None:
            raise InputError(
                f"uncertainty {type(data.uncertainty).__name__} has no known meaning; known: {', '.join(UNCERTAINTIES)}"
            )
        # one without a unit is in that of the data
        own = data.uncertainty.unit
        draft.stated[kind] = data.uncertainty.array if own is None else u.Quantity(data.uncertainty.array, own)
    if data.mask is not None:
        draft.stated["mask"] = np.broadcast_to(np.asarray(data.mask), draft.pixels.shape)
    return draft
