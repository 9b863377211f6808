# SPDX-License-Identifier: BSD-3-Clause
"""Header cards: which belong to the WCS or to the layout of the file, and which are the user's."""

from __future__ import annotations

import functools
import re
import warnings

from astropy import units as u
from astropy.io import fits

from skydelta.errors import InputError
from skydelta.io.fits.cards import text

_WCS = re.compile(
    r"(WCSAXES|WCSNAME|WCSDIM|CTYPE\d|CUNIT\d|CRVAL\d|CRPIX\d|CDELT\d|CROTA\d|CRDER\d|CSYER\d|CNAME\d|CD\d+_\d+|"
    r"PC\d+_\d+|PV\d+_\d+|PS\d+_\d+|LONPOLE|LATPOLE|RADESYS|RADECSYS|EQUINOX|EPOCH|MJDREF|SPECSYS|VELREF|"
    r"LTV\d|LTM\d_\d|WAT\d_\d+)[A-Z]?\Z|"
    r"(A|B|AP|BP)_(\d+_\d+|ORDER|DMAX)\Z|(CPDIS|CQDIS|CPERR|CQERR|D2IMDIS|D2IMERR|D2IM|DP|DQ)\d(\..*)?\Z|AXISCORR\Z|"
    r"(D2IMARR|D2IMEXT|AMD[XY]\d+|[XY]PIXELSZ|PPO\d|CNPIX\d|PLT(RA|DEC).*|PLTSCALE|PC\d{6})\Z"
)
"""Cards of world coordinate systems; alternates (a letter at the end) and detector frames go too: nobody moves them."""

_LAYOUT = re.compile(
    r"(SIMPLE|XTENSION|BITPIX|NAXIS\d*|EXTEND|PCOUNT|GCOUNT|GROUPS|BSCALE|BZERO|BLANK|BUNIT|CHECKSUM|DATASUM|EXTNAME|"
    r"EXTVER|EXTLEVEL|INHERIT|ZIMAGE|ZSIMPLE|ZTENSION|ZEXTEND|ZBITPIX|ZNAXIS\d*|ZTILE\d+|ZCMPTYPE|ZNAME\d+|ZVAL\d+|"
    r"ZMASKCMP|ZQUANTIZ|ZDITHER0|ZBLANK|ZHECKSUM|ZDATASUM|ZPCOUNT|ZGCOUNT|TFIELDS|TTYPE\d+|TFORM\d+|THEAP|UTYPE|"
    r"DATAMIN|DATAMAX|DATAMEAN|EXTTYPE|TDIM\d+|TUNIT\d+|TNULL\d+|FZALGOR|FZQVALUE|FZQMETHD|FZDTHRSD|FZTILE)\Z"
)
"""Cards that describe how the pixels are stored; they are made anew when the file is written."""


def is_wcs_card(keyword: str) -> bool:
    """Whether a keyword belongs to a world coordinate system."""
    return _WCS.match(keyword) is not None


def user_cards(header: fits.Header) -> fits.Header:
    """The cards that belong neither to the WCS nor to the layout, in order, comments and duplicates kept."""
    out = fits.Header()
    for card in header.cards:
        if _WCS.match(card.keyword) or _LAYOUT.match(card.keyword) or card.keyword.startswith("MP_"):
            continue
        out.append(card, end=True)
    return out


def unit_of(header: fits.Header) -> tuple[u.UnitBase | None, str]:
    """Unit of the pixels from BUNIT and, when it cannot be understood, the text that was there (else empty).

    Spellings of the field that astropy does not know (``DN``, ``electrons``, ``ADU``, ``counts/s``) are understood, and
    ``S`` and ``A`` are seconds and Angstroms: no image is in siemens, amperes or years.
    """
    written = text(header, "BUNIT")
    known = {"electrons": "electron", "e-": "electron", "e": "electron", "dn": "adu", "counts": "count"}
    known |= {"s": "s", "sec": "s", "second": "s", "seconds": "s", "a": "Angstrom", "ergs": "erg"}
    if not written:
        return None, ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for spelling in (written, written.lower()):
            words = [_spelled(w.strip(), known) for w in spelling.split("/")]
            try:
                return u.Unit(" / ".join(words)), ""
            except (ValueError, TypeError):
                continue
    return None, written


def _spelled(word: str, known: dict[str, str]) -> str:
    """A word of a unit, perhaps with a power (``electrons**2``), as astropy spells it."""
    match = re.fullmatch(r"([A-Za-z-]+?)((?:\*\*|\^)?\d+)?", word)
    return word if match is None else known.get(match[1].lower(), match[1]) + (match[2] or "")


def check_flux(unit: u.UnitBase | None, label: str) -> None:
    """Refuse numbers that are logarithms.

    Raises
    ------
    InputError
        They are magnitudes, decibels or dex, of a solid angle perhaps.
    """
    if unit is not None and _is_logarithm(unit):
        raise InputError(
            f"{label}: unit is {unit}: logarithms cannot be subtracted or added up; a unit of flux is needed"
        )


@functools.cache
def _is_logarithm(unit: u.UnitBase) -> bool:
    return isinstance(unit, u.function.FunctionUnitBase) or u.dex in unit.decompose().bases


def unit_text(unit: u.UnitBase) -> str:
    """A unit as BUNIT says it: the form of the standard where it has one, empty without dimension."""
    if unit == u.dimensionless_unscaled:
        return ""
    try:
        return unit.to_string("fits")
    except ValueError:
        return unit.to_string()
