# SPDX-License-Identifier: BSD-3-Clause
"""What users hand over for an image: exposures, NDData, arrays, HDUs, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astropy.io import fits
from astropy.nddata import NDData
from astropy.wcs.wcsapi import BaseHighLevelWCS, BaseLowLevelWCS

from skydelta.io.exposure import Exposure
from skydelta.io.read import read

HDUS = fits.PrimaryHDU | fits.ImageHDU | fits.CompImageHDU
ANY_WCS = BaseLowLevelWCS | BaseHighLevelWCS


def as_image(value: Any, device: str = "auto") -> Any:
    """An Exposure of an NDData or (array, WCS), to which nothing is added, or of whatever `skydelta.read` reads.

    So an array, and (array, header), get what a file without planes of its own gets: a variance estimated from the
    pixels, and NO_DATA where they have no value. What is no image stays what it is.
    """
    if isinstance(value, NDData):
        return Exposure.from_ccddata(value)
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], ANY_WCS):
        return Exposure(value[0], wcs=value[1])
    if isinstance(value, str | Path | tuple | fits.HDUList | HDUS) or is_array(value):
        return read(value, device=device)
    return value


def is_array(value: Any) -> bool:
    """Whether a value is an array of numbers, of numpy or of a device."""
    return hasattr(value, "ndim") and hasattr(value, "dtype") and not isinstance(value, Exposure)
