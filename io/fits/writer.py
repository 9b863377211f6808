# SPDX-License-Identifier: BSD-3-Clause
"""FITS files that are whole or absent, and the same bytes for the same data."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from astropy import units as u
from astropy.io import fits
from astropy.table import Table

from skydelta import __version__
from skydelta.errors import ConfigError, InputError
from skydelta.io.exposure import Exposure
from skydelta.io.fits.cards import CARD
from skydelta.io.fits.compressed import Compression, compressed, takes
from skydelta.io.fits.layout import BLOCK
from skydelta.io.header import unit_text
from skydelta.io.kernelerror import LIGHT, WHITENER
from skydelta.io.matchkernel import COVARIANCE, MatchKernel, parameter_numbers
from skydelta.io.psf import GridPsf, PixelPsf, Psf
from skydelta.io.storage import write_bytes
from skydelta.io.wcs import wcs_cards
from skydelta.kernels.backend import Array, to_host
from skydelta.kernels.checksum import add_words, word_sum
from skydelta.kernels.encode import big_endian

CHECKED = "by skydelta"
"""Fixed text of the checksum comments: the writer's default is the time, and equal data must give equal bytes."""

SIZES = {"i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (4, 8)}
"""Bytes of a pixel that FITS stores, by kind of number."""

COARSE = Compression("RICE_1", 4.0)
"""How the light that a kernel acts on is written: it tells errors, for which a quarter of its noise is fine enough."""

COMMENT, VALUE = 40, 30
"""Characters of a value and its comment that fit in any case; the column that a fixed-format value reaches."""


class Image:
    """An image HDU whose pixels stay where they are until they are encoded.

    Attributes
    ----------
    header : astropy.io.fits.Header
        Of the image without compression; cards may be added.
    pixels : array (H, W)
        Integers or floats, on any device.
    own : Compression or None
        Of this one, whatever that of the file is.

    Raises
    ------
    InputError
        FITS has no such type of pixels.
    """

    def __init__(
        self, name: str, pixels: Array, cards: fits.Header | None = None, own: Compression | None = None
    ) -> None:
        if pixels.dtype.itemsize not in SIZES.get(pixels.dtype.kind, ()):
            raise InputError(f"{name}: pixels of {pixels.dtype} cannot be written to FITS")
        # astropy makes the structural cards, from an array that takes no memory
        self._cards = fits.ImageHDU(np.broadcast_to(np.zeros((), pixels.dtype), pixels.shape), cards, name=name)
        self.header: fits.Header = self._cards.header
        self.pixels, self.own = pixels, own

    @property
    def name(self) -> str:
        return self._cards.name

    def encode(self, compression: Compression | None) -> list[Any]:
        """The bytes of the HDU in parts, checksums in its header."""
        self._cards.verify("exception")
        compression = self.own or compression
        # FITS stores unsigned integers of 16 bits or more, and signed ones of 8, by an offset of half their range
        unsigned = (self.pixels.dtype.kind, self.pixels.dtype.itemsize > 1) in (("u", True), ("i", False))
        if compression is None or not takes(self.pixels):
            data, total = big_endian(self.pixels, unsigned)
            return _with_checksums(self.header.copy(), [to_host(data)[: self.pixels.nbytes]], total)
        header, parts = compressed(self.header, self.pixels, unsigned, compression)
        joined = np.concatenate(parts)
        return _with_checksums(header, [joined], word_sum(joined))


def _with_checksums(header: fits.Header, parts: list[np.ndarray], total: int) -> list[Any]:
    """Header and data unit, each filled up to whole blocks; ``total`` is the checksum of the data."""
    header["DATASUM"] = (str(total), CHECKED)
    header.set("CHECKSUM", "0" * 16, CHECKED, before="DATASUM")
    text = header.tostring().encode("ascii")
    header["CHECKSUM"] = checksum_text(add_words(word_sum(np.frombuffer(text, np.uint8)), total))
    return [header.tostring().encode("ascii"), *parts, bytes(-sum(map(len, parts)) % BLOCK)]


def checksum_text(total: int) -> str:
    """The 16 letters and digits that make a sum of words come out as all ones (FITS 4.0, appendix J).

    Each byte of the complement is split over four characters, punctuation avoided by moving one up and its partner
    down, and the whole is turned by one byte, because a card's value starts there in its word.
    """
    punctuation = {*range(0x3A, 0x41), *range(0x5B, 0x61)}
    characters = bytearray(16)
    for i, byte in enumerate((~total & 0xFFFFFFFF).to_bytes(4, "big")):
        four = [byte // 4 + 0x30] * 4
        four[0] += byte % 4
        while punctuation & set(four):
            for j in (0, 2):
                if punctuation & set(four[j : j + 2]):
                    four[j], four[j + 1] = four[j] + 1, four[j + 1] - 1
        characters[i::4] = four
    return (characters[-1:] + characters[:-1]).decode("ascii")


def write_hdus(path: str | Path, hdus: Iterable[Any], compression: Compression | None = None) -> None:
    """Write an empty primary and these HDUs, with checksums on every HDU; the file is whole or absent.

    Parameters
    ----------
    path : str or Path
    hdus : iterable of Image or astropy HDU
        astropy's are written as they are; they are small.
    compression : Compression, optional
        Of every `Image`; GZIP_2, which loses nothing, where the name ends in .fz and none is given.

    Raises
    ------
    InputError
        The folder is missing or cannot be written, or the disk is full.
    """
    if compression is None and Path(path).suffix.lower() == ".fz":
        compression = Compression("GZIP_2")
    primary = fits.PrimaryHDU()
    primary.header["CREATOR"] = (f"skydelta {__version__}", "program and version")
    parts: list[Any] = []
    for hdu in (primary, *hdus):
        _fit_comments(hdu.header)
        parts += hdu.encode(compression) if isinstance(hdu, Image) else [_astropy_bytes(hdu)]
    write_bytes(Path(path), *parts)


def _fit_comments(header: fits.Header) -> None:
    """Cut comments that do not fit on the card beside the value; astropy does too, with a warning for each."""
    for card in header.cards:
        if len(card.keyword) > 8 or len(str(card.value)) + len(card.comment) < COMMENT:
            continue
        image = fits.Card(card.keyword, card.value).image.rstrip()
        room = CARD - max(len(image), VALUE) - len(" / ")
        if len(image) <= CARD and len(card.comment) > room:
            card.comment = card.comment[: max(room, 0)].rstrip()


def _astropy_bytes(hdu: Any) -> bytes:
    """An HDU of astropy as bytes."""
    hdu.add_checksum(when=CHECKED)
    alone = isinstance(hdu, fits.PrimaryHDU)
    buffer = io.BytesIO()
    fits.HDUList([hdu] if alone else [fits.PrimaryHDU(), hdu]).writeto(buffer, output_verify="exception")
    return buffer.getvalue() if alone else buffer.getvalue()[BLOCK:]


def write(
    exposure: Exposure,
    path: str | Path,
    compression: Literal["RICE_1", "GZIP_2"] | None = None,
    *,
    quantise_level: float | None = None,
    tile: tuple[int, int] | None = None,
) -> None:
    """Write an Exposure: SCI, then VAR, DQ and PSF where it has them. `read` gives it back.

    Parameters
    ----------
    exposure : Exposure
        On any device: pixels are encoded there, and only what is written comes to the host.
    path : str or Path
        A name that ends in .gz, .bz2 or .xz makes a file that is compressed as a whole, one that ends in .fz images in
        GZIP_2 tiles, which lose nothing, unless ``compression`` says RICE_1.
    compression : {"RICE_1", "GZIP_2"}, optional
        In tiles, of SCI, VAR and DQ. Integers, so every mask, and all of GZIP_2 are lossless. RICE_1 quantises floats
        with SUBTRACTIVE_DITHER_2: NaN and exact zeros stay what they are, tiles without measurable noise stay
        lossless. 64-bit integers are not compressed.
    quantise_level : float, optional
        Of RICE_1: steps in one standard deviation of a tile's noise, 1 to 1000; 16 when not given. Values are off by
        half a step at most.
    tile : (int, int), optional
        Rows and columns of a tile of a compressed image; one row when not given.

    Raises
    ------
    InputError
        The folder cannot be written, the disk is full, the image has no pixels, the WCS no header form, or FITS no such
        type of pixels.
    ConfigError
        No Exposure; a value of the compression is not allowed or has no effect; the name asks for another compression.
    """
    given: object = exposure  # whatever the caller has
    if not isinstance(given, Exposure):
        raise ConfigError(f"write: {type(given).__name__} is given; an Exposure is needed, as skydelta.read makes it")
    if compression is None:
        unused = {"quantise_level": quantise_level, "tile": tile}
        if idle := " and ".join(name for name, value in unused.items() if value is not None):
            raise ConfigError(f"write: {idle} without compression; 'RICE_1' or 'GZIP_2' is needed")
    chosen = None if compression is None else Compression(compression, quantise_level, tile)
    hdus = exposure_hdus(exposure)
    if chosen is not None:
        _check_effect(chosen, [hdu.pixels.dtype for hdu in hdus if isinstance(hdu, Image) and takes(hdu.pixels)])
    write_hdus(path, hdus, chosen)


def _check_effect(compression: Compression, types: list[np.dtype]) -> None:
    """Refuse a compression of planes that it leaves as they are; ``types`` are of those that can be compressed."""
    if not types:
        raise ConfigError(f"write: compression {compression.method!r} has no effect on 64-bit integers")
    if compression.level is not None and all(kind.kind != "f" for kind in types):
        kinds = ", ".join(dict.fromkeys(map(str, types)))
        raise ConfigError(f"write: quantise_level has no effect on integers ({kinds}), which RICE_1 keeps as they are")


def exposure_hdus(exposure: Exposure, further: Mapping[str, Array] | None = None) -> list[Any]:
    """SCI, VAR (``UTYPE`` VarianceUncertainty), DQ (``MP_*`` cards name the bits) and PSF of an exposure.

    Planes without a unit that are ``further`` given by name come after DQ. A difference that brings the error of its
    kernel has the kernel with its covariance before PSF, and UNMATCHED, the image that was convolved, in steps of a
    quarter of its noise. The lookup tables of a distortion, if the WCS has any, follow as D2IMARR and WCSDVARR.

    Raises
    ------
    InputError
        The image has no pixels, which no reader here takes, or the WCS cannot be written (`skydelta.io.wcs.wcs_cards`).
    """
    if 0 in exposure.shape:
        raise InputError(f"{exposure.id or 'exposure'}: image has shape {exposure.shape}; at least one pixel is needed")
    wcs, tables = (None, []) if exposure.wcs is None else wcs_cards(exposure.wcs)
    out: list[Any] = [image_hdu("SCI", exposure.image, wcs, exposure.unit, exposure.header)]
    if exposure.variance is not None:
        squared = None if exposure.unit is None else exposure.unit**2
        hdu = image_hdu("VAR", exposure.variance, wcs, squared)
        hdu.header["UTYPE"] = ("VarianceUncertainty", "what astropy's CCDData reads this as")
        out.append(hdu)
    if exposure.mask is not None:
        hdu = image_hdu("DQ", exposure.mask, wcs, None)
        for plane, bit in exposure.planes.bits:
            key = f"MP_{plane}"
            hdu.header[key if len(key) <= 8 else f"HIERARCH {key}"] = (bit, "bit")
        out.append(hdu)
    out += [image_hdu(n, plane, wcs, u.dimensionless_unscaled) for n, plane in (further or {}).items()]
    if exposure.kernel_error is not None:
        error = exposure.kernel_error
        out += kernel_hdus(error.kernel)
        out.append(Image(LIGHT, error.light, own=COARSE))
        if error.whitening is not None:
            out.append(psf_hdu(error.whitening, WHITENER))
    if exposure.psf is not None:
        out.append(psf_hdu(exposure.psf))
    return out + tables


def image_hdu(
    name: str, plane: Array, wcs: fits.Header | None, unit: u.UnitBase | None, header: fits.Header | None = None
) -> Image:
    """One plane as an image HDU with the cards of a WCS and its unit."""
    cards = fits.Header() if header is None else header.copy()
    if wcs is not None:
        cards.extend(wcs, end=True)
    hdu = Image(name, plane, cards)
    if unit is not None:
        hdu.header["BUNIT"] = (unit_text(unit), "unit of the pixels")
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
        hdu = fits.ImageHDU(to_host(psf.stamps).astype(np.float64), name=name)
        hdu.header["PSFKIND"] = ("grid", "stamps on a grid, bilinear in between")
        for axis, nodes in (("X", psf.x), ("Y", psf.y)):
            for i, value in enumerate(nodes):
                hdu.header[f"GRID{axis}{i}"] = (float(value), "0-based px")
        return hdu
    raise TypeError(f"a {type(psf).__name__} cannot be written; PixelPsf and GridPsf can")


def _domain_cards(header: fits.Header, owner: Any) -> None:
    header["DOMNX"], header["DOMNY"] = owner.domain.shape[1], owner.domain.shape[0]
    header["DOMX0"], header["DOMY0"] = owner.domain.origin[1], owner.domain.origin[0]


BASIS_CARDS = {
    "chi2_gaussian": ("KCHI2G", "mean chi2 of held-out stamps, gaussian basis"),
    "chi2_delta": ("KCHI2D", "mean chi2 of held-out stamps, delta basis"),
    "stamps_judging": ("KJUDGES", "held-out stamps that were compared"),
    "delta_chance": ("KCHANCE", "chance of that if both were as good"),
    "penalty_strength": ("KPENALTY", "strength of the penalty on roughness"),
}
"""Figures of a kernel that tell why its basis was taken: cards and their comments."""


def kernel_hdu(kernel: MatchKernel) -> fits.ImageHDU:
    """The matching kernel: one image for each spatial term, the background in cards ``BG0``, ``BG1``, ..."""
    hdu = fits.ImageHDU(kernel.images, name="KERNEL")
    h = hdu.header
    h["KDIRECT"] = (kernel.direction, "image that is convolved")
    h["KORDER"] = (kernel.order, "total degree of the kernel over the field")
    h["KBASIS"] = (kernel.choice, "gaussian: Gaussians x polynomials; delta: pixels")
    for name, (card, words) in BASIS_CARDS.items():
        if np.isfinite(value := kernel.quality.get(name, np.nan)):
            h[card] = (value, words)
    h["BGORDER"] = (kernel.background_order, "total degree of the background")
    h["KRANK"], h["KSIZE"] = (kernel.rank, "rank of the fit"), (kernel.size, "free parameters of the fit")
    h["KFITTED"] = (kernel.fitted, "to this pair; F: stored by an earlier run")
    for i, value in enumerate(kernel.background.tolist()):
        # a card holds 14 digits of any number: what is left of a double follows in another
        shown = float(f"{value:.13e}")
        h[f"BG{i}"] = (shown, "coefficient of the background")
        if value != shown:
            h[f"BG{i}LO"] = (float(f"{value - shown:.13e}"), f"to be added to BG{i}")
    for i, (ra, dec) in enumerate([] if kernel.corners is None else kernel.corners.tolist()):
        h[f"SKYRA{i}"], h[f"SKYDE{i}"] = (ra, "ICRS of a corner of the field, deg"), (dec, "lower, then upper; deg")
    _domain_cards(h, kernel)
    return hdu


def kernel_hdus(kernel: MatchKernel) -> list[fits.ImageHDU]:
    """The matching kernel (`kernel_hdu`) and, where it has one, its covariance: KIMAGES, KTERMS and KCOVAR."""
    if kernel.covariance is None:
        return [kernel_hdu(kernel)]
    packed = kernel.covariance[np.tril_indices(len(kernel.covariance))]
    planes = (kernel.own_basis.astype(np.float64), parameter_numbers(kernel.parameters), packed)
    return [kernel_hdu(kernel), *(fits.ImageHDU(a, name=n) for n, a in zip(COVARIANCE, planes, strict=True))]


def table_hdu(table: Table, name: str) -> fits.BinTableHDU:
    hdu = fits.table_to_hdu(table)
    hdu.name = name
    return hdu
