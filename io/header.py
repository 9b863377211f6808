# SPDX-License-Identifier: BSD-3-Clause
"""Header cards: which belong to the WCS or to the layout of the file, and which are the user's."""

from __future__ import annotations

import re
import warnings

from astropy.io import fits
from astropy.wcs import WCS

_WCS = re.compile(
    r"(WCSAXES|WCSNAME|WCSDIM|CTYPE\d|CUNIT\d|CRVAL\d|CRPIX\d|CDELT\d|CROTA\d|CD\d_\d|PC\d+_\d+|PV\d_\d+|PS\d_\d+|LONPOLE|"
    r"LATPOLE|RADESYS|RADECSYS|EQUINOX|EPOCH|[AB]P?_(\d_\d|ORDER|DMAX)|CPDIS\d|CPERR\d|D2IMDIS\d|D2IMERR\d|DP\d|DQ\d|"
    r"D2IM\d|AXISCORR|MJDREF|SPECSYS|VELREF|CUNIT\d)\Z"
)
"""Cards of the primary celestial WCS; alternates (a letter at the end) are left alone."""

_LAYOUT = re.compile(
    r"(SIMPLE|XTENSION|BITPIX|NAXIS\d*|EXTEND|PCOUNT|GCOUNT|GROUPS|BSCALE|BZERO|BLANK|BUNIT|CHECKSUM|DATASUM|EXTNAME|"
    r"EXTVER|EXTLEVEL|INHERIT|ZIMAGE|ZSIMPLE|ZTENSION|ZEXTEND|ZBITPIX|ZNAXIS\d*|ZTILE\d+|ZCMPTYPE|ZNAME\d+|ZVAL\d+|"
    r"ZMASKCMP|ZQUANTIZ|ZDITHER0|ZBLANK|ZHECKSUM|ZDATASUM|ZPCOUNT|ZGCOUNT|TFIELDS|TTYPE\d+|TFORM\d+|THEAP|UTYPE|"
    r"DATAMIN|DATAMAX|DATAMEAN)\Z"
)
"""Cards that describe how the pixels are stored; they are made anew when the file is written."""


def user_cards(header: fits.Header) -> fits.Header:
    """The cards that belong neither to the WCS nor to the layout, in order, comments and duplicates kept."""
    out = fits.Header()
    for card in header.cards:
        if not _WCS.match(card.keyword) and not _LAYOUT.match(card.keyword) and not card.keyword.startswith("MP_"):
            out.append(card, end=True)
    return out


def with_wcs(header: fits.Header, wcs: WCS | None) -> fits.Header:
    """A copy of the header with the cards of a WCS (distortion polynomials included, lookup tables not)."""
    out = header.copy()
    if wcs is None:
        return out
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cards = wcs.to_header(relax=True)
    for card in cards.cards:
        # dates of the WCS standard: the file's own say when it was taken
        if card.keyword and not card.keyword.startswith(("DATE", "MJD")):
            out.set(card.keyword, card.value, card.comment)
    return out
