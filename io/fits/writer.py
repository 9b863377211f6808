# SPDX-License-Identifier: BSD-3-Clause
"""FITS files that are whole or absent, and the same bytes for the same data."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from astropy import units as u
from astropy.io import fits
from astropy.table import Table

from skydelta import __version__
from skydelta.io.exposure import Exposure
from skydelta.io.header import unit_text
from skydelta.io.matchkernel import MatchKernel
from skydelta.io.psf import GridPsf, PixelPsf, Psf
from skydelta.io.storage import write_bytes
from skydelta.io.wcs import wcs_cards
from skydelta.kernels.backend import Array, to_host

CHECKED = "by skydelta"
"""Fixed text of the checksum comments: the writer's default is the time, and equal data must give equal bytes."""


def write_hdus(path: str | Path, hdus: Iterable[Any]) -> None:
    """Write an empty primary and these HDUs, with checksums on every HDU; the file is whole or absent.

    Raises
    ------
    InputError
        The folder is missing or cannot be written.
    """
    primary = fits.PrimaryHDU()
    primary.header["CREATOR"] = (f"skydelta {__version__}", "program and version")
    buffer = io.BytesIO()
    all_hdus = fits.HDUList([primary, *hdus])
    for hdu in all_hdus:
        hdu.add_checksum(when=CHECKED)
    all_hdus.writeto(buffer, output_verify="exception")
    write_bytes(Path(path), buffer.getvalue())


def write(exposure: Exposure, path: str | Path) -> None:
    """Write an Exposure: SCI, then VAR, DQ and PSF where it has them. `read` gives it back.

    Parameters
    ----------
    exposure : Exposure
        On any device.
    path : str or Path

    Raises
    ------
    InputError
        The folder cannot be written, or the WCS has no header form.
    """
    write_hdus(path, exposure_hdus(exposure))


def exposure_hdus(exposure: Exposure) -> list[Any]:
    """SCI, VAR (``UTYPE`` VarianceUncertainty), DQ (``MP_*`` cards name the bits) and PSF of an exposure.

    The lookup tables of a distortion, if the WCS has any, follow as D2IMARR and WCSDVARR.

    Raises
    ------
    InputError
        The WCS cannot be written (`skydelta.io.wcs.wcs_cards`).
    """
    out = [image_hdu("SCI", exposure.image, exposure, exposure.unit, exposure.header)]
    if exposure.variance is not None:
        squared = None if exposure.unit is None else exposure.unit**2
        hdu = image_hdu("VAR", exposure.variance, exposure, squared)
        hdu.header["UTYPE"] = ("VarianceUncertainty", "what astropy's CCDData reads this as")
        out.append(hdu)
    if exposure.mask is not None:
        out.append(mask_hdu(exposure))
    if exposure.psf is not None:
        out.append(psf_hdu(exposure.psf))
    if exposure.wcs is not None:
        out += wcs_cards(exposure.wcs)[1]
    return out


def image_hdu(
    name: str, plane: Array, exposure: Exposure, unit: u.UnitBase | None, header: fits.Header | None = None
) -> fits.ImageHDU:
    """One plane as an image HDU with unit and the WCS of the exposure."""
    cards = fits.Header() if header is None else header.copy()
    if exposure.wcs is not None:
        cards.extend(wcs_cards(exposure.wcs)[0], end=True)
    hdu = fits.ImageHDU(np.ascontiguousarray(to_host(plane)), cards, name=name)
    if unit is not None:
        hdu.header["BUNIT"] = (unit_text(unit), "unit of the pixels")
    return hdu


def mask_hdu(exposure: Exposure) -> fits.ImageHDU:
    """The mask, its planes named by ``MP_*`` cards."""
    hdu = image_hdu("DQ", exposure.mask, exposure, None)
    for plane, bit in exposure.planes.bits:
        key = f"MP_{plane}"
        hdu.header[key if len(key) <= 8 else f"HIERARCH {key}"] = (bit, "bit")
    return hdu


def psf_hdu(psf: Psf, name: str = "PSF") -> fits.ImageHDU:
    """A PSF as coefficient images (``PSFKIND`` polynomial) or as stamps on a grid (grid)."""
    if isinstance(psf, PixelPsf):
        hdu = fits.ImageHDU(psf.coefficients.astype(np.float64), name=name)
        hdu.header["PSFKIND"] = ("polynomial", "planes are coefficients of Chebyshev terms")
        hdu.header["PSFORDER"] = (psf.order, "total degree over the field")
        _domain_cards(hdu.header, psf)
        return hdu
    if isinstance(psf, GridPsf):
        hdu = fits.ImageHDU(psf.stamps.astype(np.float64), name=name)
        hdu.header["PSFKIND"] = ("grid", "stamps on a grid, bilinear in between")
        for axis, nodes in (("X", psf.x), ("Y", psf.y)):
            for i, value in enumerate(nodes):
                hdu.header[f"GRID{axis}{i}"] = (float(value), "0-based px")
        return hdu
    raise TypeError(f"a {type(psf).__name__} cannot be written; PixelPsf and GridPsf can")


def _domain_cards(header: fits.Header, owner: Any) -> None:
    header["DOMNX"], header["DOMNY"] = owner.domain.shape[1], owner.domain.shape[0]
    header["DOMX0"], header["DOMY0"] = owner.domain.origin[1], owner.domain.origin[0]


def kernel_hdu(kernel: MatchKernel) -> fits.ImageHDU:
    """The matching kernel: one image for each spatial term, the background in cards ``BG0``, ``BG1``, ..."""
    hdu = fits.ImageHDU(kernel.images, name="KERNEL")
    h = hdu.header
    h["KDIRECT"] = (kernel.direction, "image that is convolved")
    h["KORDER"] = (kernel.order, "total degree of the kernel over the field")
    h["BGORDER"] = (kernel.background_order, "total degree of the background")
    h["KRANK"], h["KSIZE"] = (kernel.rank, "rank of the fit"), (kernel.size, "free parameters of the fit")
    for i, value in enumerate(kernel.background):
        h[f"BG{i}"] = (float(value), "coefficient of the background")
    _domain_cards(h, kernel)
    return hdu


def table_hdu(table: Table, name: str) -> fits.BinTableHDU:
    hdu = fits.table_to_hdu(table)
    hdu.name = name
    return hdu
