# SPDX-License-Identifier: BSD-3-Clause
"""What users hand to ``align`` and ``reproject`` beside exposures, and results in the form they came in."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from astropy.io import fits
from astropy.nddata import CCDData, NDData

from skydelta.errors import ConfigError, InputError
from skydelta.io.exposure import Exposure
from skydelta.io.fits.reader import InMemory, Source, open_file, split_extension
from skydelta.io.images import ANY_WCS, HDUS, as_image, is_array
from skydelta.io.sky import low_level
from skydelta.io.wcs import celestial_wcs
from skydelta.stages.align.grids import Grid, grid_of


def as_target(value: Any, shape: tuple[int, int] | None = None) -> Any:
    """An Exposure whose grid is wanted; it takes no memory unless it was one.

    Parameters
    ----------
    value : Exposure, NDData, array, WCS, Header, Grid, HDU, path, or (WCS or Header, shape)
        An array has a size, and no WCS. Of a FITS file or a text file of header cards only the header is read.
    shape : (int, int), optional
        (H, W); otherwise that of the image, ``array_shape`` of the WCS, or NAXIS1 and NAXIS2 of the header.

    Raises
    ------
    InputError
        No WCS, no size, or a file that cannot be read.
    """
    if isinstance(value, tuple) and len(value) == 2:
        value, shape = value
    if isinstance(value, NDData):
        value = Exposure.from_ccddata(value)
    if isinstance(value, HDUS):
        value = value.header
    if is_array(value):
        value = Exposure(value)
    if shape is not None:
        shape = _shape(shape)
        if isinstance(value, fits.Header):  # its own size, if it has one, does not count
            value = value.copy()
            value["NAXIS"], value["NAXIS1"], value["NAXIS2"] = 2, shape[1], shape[0]
    if isinstance(value, Exposure) and shape in (None, value.shape):
        return value
    if isinstance(value, fits.Header | Grid | str | Path):
        value = grid_of(value)
    if isinstance(value, Grid | Exposure):
        value, size = value.wcs, value.shape
    elif isinstance(value, ANY_WCS):
        size = low_level(value).array_shape
    else:
        return value
    if shape is None and size is None:
        raise InputError("onto: the WCS has no size; give its array_shape, or (WCS, shape)")
    return Exposure(np.broadcast_to(np.float32(np.nan), shape or _shape(size)), wcs=value)


def _shape(value: Any) -> tuple[int, int]:
    try:
        height, width = (int(n) for n in value)
    except (TypeError, ValueError):
        raise InputError(f"shape {value!r}: two whole numbers (height, width) are needed") from None
    if min(height, width) < 1:
        raise InputError(f"shape ({height}, {width}): both must be 1 or more")
    return height, width


def like(original: Any, exposure: Exposure) -> Any:
    """A result as CCDData or NDData when the image came as one."""
    if not isinstance(original, NDData):
        return exposure
    ccd = exposure.to_ccddata()
    if isinstance(original, CCDData):
        return ccd
    return NDData(
        ccd.data, ccd.uncertainty, ccd.mask, ccd.wcs, ccd.meta, original.unit if exposure.unit is None else ccd.unit
    )


def bare_image(value: Any, hdu: int | str | None = None) -> Exposure:
    """Pixels, WCS and (of Exposure and NDData) mask of an input, without a variance.

    Parameters
    ----------
    value : path, HDU, HDUList, (array, WCS or Header), NDData, or Exposure
    hdu : int or str, optional
        Of a file or HDUList: number or name; by rule otherwise, as in `skydelta.read`.

    Raises
    ------
    InputError
        Nothing two-dimensional, a file that cannot be read, or cards of a WCS that cannot be used.
    """
    value = as_image(value) if isinstance(value, NDData) else value
    if isinstance(value, Exposure):
        return value.with_(variance=None).single()
    if isinstance(value, tuple) and len(value) == 2:
        array, world = value
        array = np.ma.filled(array.astype(float), np.nan) if isinstance(array, np.ma.MaskedArray) else array
        if not isinstance(world, fits.Header):
            return Exposure(array, wcs=world).single()
        return Exposure(array, wcs=celestial_wcs(world, None, np.shape(array)[:2])[0]).single()
    with ExitStack() as stack:
        if isinstance(value, str | Path):
            path, extension = split_extension(str(value))
            opened: Source = stack.enter_context(open_file(path))
            hdu = extension if hdu is None else hdu
        elif isinstance(value, fits.HDUList):
            opened = InMemory(value)
        elif isinstance(value, HDUS):
            opened = InMemory(fits.HDUList([value]))
        else:
            raise ConfigError(
                f"reproject: {type(value).__name__} is no image; a path, HDU, HDUList, (array, WCS or header), NDData "
                "or Exposure is needed"
            )
        found = opened.image(hdu)
        header, pixels, _ = opened.read(found)
        try:
            wcs, _ = celestial_wcs(opened.keywords(found, header), opened.astropy, (pixels.shape[0], pixels.shape[1]))
        except InputError as e:
            raise opened.error(found, str(e)) from None
        return Exposure(pixels, wcs=wcs, id=Path(opened.label).name).single()
