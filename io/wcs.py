# SPDX-License-Identifier: BSD-3-Clause
"""Celestial world coordinate systems from headers and back; astropy and wcslib do the mathematics."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable

import numpy as np
from astropy.io import fits
from astropy.wcs import WCS, FITSFixedWarning

from skydelta.errors import InputError
from skydelta.io.fits.cards import last, text
from skydelta.io.header import is_wcs_card

ROUND_TRIP = 1e-6
"""Largest difference between a WCS and its header form, px."""

SINGULAR = 1e8
"""Condition number of the linear matrix above which an image has no area on the sky."""

_TABLE_CARDS = ("CPDIS1", "CPDIS2", "D2IMDIS1", "D2IMDIS2", "AXISCORR")
_HARMLESS = (
    "datfix",
    "RADECSYS",
    "unitfix",
    "more axes",
    "CROTA = ",
    "AXISCORR",
    "obsfix",
    "PROJP",
    "keyword is invalid",
)


_PLATE = re.compile(r"(AMD[XY]\d+|[XY]PIXELSZ|PPO\d|CNPIX\d|PLT(RA|DEC).*|PLTSCALE)\Z")


def celestial_wcs(
    header: fits.Header,
    tables: Callable[[], fits.HDUList] | None = None,
    shape: tuple[int, int] | None = None,
) -> tuple[WCS | None, list[str]]:
    """The primary celestial WCS of an image, or None and the reason.

    Alternate versions (A to Z) are never used, nor are their cards mixed in. Of a cube the celestial axes are kept.

    Parameters
    ----------
    header : astropy.io.fits.Header
    tables : callable, optional
        Gives the whole file when the header refers to lookup tables (CPDIS, D2IM).
    shape : (int, int), optional
        Of the image, stored with the WCS.

    Returns
    -------
    wcs : astropy.wcs.WCS or None
    notes : list of str
        Why there is none, what was left out, what the header contradicts.

    Raises
    ------
    InputError
        The cards are there but cannot be used (the message names the card).
    """
    types = {i: text(header, f"CTYPE{i}") for i in range(1, 10) if f"CTYPE{i}" in header}
    if not any(types.values()):
        return None, [_why_none(header)]
    linear = [k for k in header if re.fullmatch(r"CD\d_\d", k)]
    if linear and not any(last(header, k) for k in linear):
        raise InputError(f"WCS cannot be used: {', '.join(linear)} are all 0")  # wcslib would take one degree a pixel
    notes = _contradictions(header, types) + _defaults(header, types)
    needs_tables = any(card in header for card in _TABLE_CARDS) or any("-TAB" in t for t in types.values())
    hdulist = None
    if needs_tables and tables is not None:
        hdulist = tables()
    elif needs_tables:
        notes.append("the lookup tables of the distortion are not at hand and are left out")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cards = _without_plate(header)
            wcs = WCS(_without_tables(cards) if hdulist is None else cards, hdulist, relax=True)
            wcs.wcs.set()
            notes += _said(caught)
            found = _celestial_part(wcs, types, notes)
            if found is not None:
                found.wcs.set()
    except (ValueError, KeyError, TypeError, AttributeError, MemoryError, AssertionError, OSError) as e:
        raise InputError(f"WCS cannot be used: {_reason(e)}") from None
    if found is not None and not np.linalg.cond(found.pixel_scale_matrix) < SINGULAR:
        raise InputError(f"WCS cannot be used: its linear matrix {found.pixel_scale_matrix.tolist()} is singular")
    if found is not None and shape is not None:
        found.pixel_shape = (shape[1], shape[0])
    return found, notes


def _celestial_part(wcs: WCS, types: dict[int, str], notes: list[str]) -> WCS | None:
    axes = ", ".join(types.values())
    if not wcs.has_celestial:
        notes.append(f"no celestial WCS: axes are {axes}")
        return None
    lng, lat = wcs.wcs.lng, wcs.wcs.lat
    flat = [types.get(i + 1, "") for i in (lng, lat) if "-" not in types.get(i + 1, "")]
    if flat:
        notes.append(f"no celestial WCS: axes {', '.join(flat)} have no projection")
        return None
    if wcs.naxis == 2:
        return wcs
    if {lng, lat} != {0, 1}:
        notes.append(f"no celestial WCS of the image: axes are {axes}, the first two are not on the sky")
        return None
    notes.append(f"axes other than the sky are left out: {axes}")
    return wcs.celestial


def _why_none(header: fits.Header) -> str:
    alternates = sorted({k[-1] for k in header if re.fullmatch(r"CTYPE\d[A-Z]", k)})
    if alternates:
        return f"no primary WCS; alternate {', '.join(alternates)} is not used"
    if any(re.fullmatch(r"TC(TYP|TY|RVL|RPX)\d+", k) for k in header):
        return "no image WCS: the cards describe table columns"
    if "AMDX1" in header:
        return "no WCS: the plate solution (AMDXn, AMDYn) is not supported"
    return "no WCS in the header"


def _contradictions(header: fits.Header, types: dict[int, str]) -> list[str]:
    """What the header says twice; the choice is named."""
    notes = []
    sip = "A_ORDER" in header or "B_ORDER" in header
    if sip and not any("-SIP" in t for t in types.values()):
        notes.append(f"SIP cards are applied although CTYPE ({', '.join(types.values())}) does not say -SIP")
    if sip and any(re.fullmatch(r"PV\d+_[1-9]\d*", k) for k in header):
        notes.append("SIP and PV cards together: SIP is used, PV is ignored")
    return notes


def _defaults(header: fits.Header, types: dict[int, str]) -> list[str]:
    """Cards of the sky axes that are missing or no numbers: the standard's defaults put the image somewhere else."""
    sky = [i for i, t in types.items() if "-" in t]
    notes = []
    for card in (f"{k}{i}" for k in ("CRVAL", "CRPIX") for i in sky):
        value = last(header, card)
        if card not in header:
            notes.append(f"{card} is missing and taken as 0")
        elif isinstance(value, bool) or not isinstance(value, int | float):
            shown = "without a value" if value is None else f"{value!r}, no number,"
            notes.append(f"{card} is {shown} and taken as 0: the WCS is wrong")
    if sky and not any(re.fullmatch(r"(CD|PC)\d+_\d+|CDELT\d+", k) for k in header):
        notes.append("no CD, PC or CDELT card: a pixel is taken as one degree")
    return notes


def _without_plate(header: fits.Header) -> fits.Header:
    """Without the left-over cards of a plate solution (DSS): wcslib overruns its memory when it counts them together
    with other distortion cards."""
    complete = "AMDX1" in header and "AMDY1" in header and not any(k.startswith(("CQDIS", "CPDIS")) for k in header)
    if complete:
        return header
    out = header.copy()
    for key in [k for k in out if _PLATE.match(k)]:
        out.remove(key, ignore_missing=True, remove_all=True)
    return out


def _without_tables(header: fits.Header) -> fits.Header:
    out = header.copy()
    for key in [k for k in header if re.match(r"(CPDIS|CPERR|D2IM|DP\d|AXISCORR)", k)]:
        out.remove(key, ignore_missing=True, remove_all=True)
    return out


def _said(caught: list[warnings.WarningMessage]) -> list[str]:
    """What astropy and wcslib warn of: cards that wcslib could not parse come as they are written."""
    said = [str(w.message).splitlines()[0] for w in caught if not issubclass(w.category, DeprecationWarning)]
    return sorted({f"WCS: {s}" for s in said if not any(h in s for h in _HARMLESS)})


def _reason(error: Exception) -> str:
    """The line of a wcslib message that names the card."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if not line.startswith("ERROR")]
    return (named or lines or [type(error).__name__])[-1].rstrip(".")


def wcs_cards(wcs: WCS) -> tuple[fits.Header, list[fits.ImageHDU]]:
    """Header cards of a WCS, and the image HDUs with its lookup tables (empty for most).

    Dates and other cards that wcslib adds are left out: the exposure's own header has them.

    Raises
    ------
    InputError
        The cards do not give the same map to `ROUND_TRIP`, or the object has none.
    """
    if not isinstance(wcs, WCS):
        raise InputError(f"a WCS of type {type(wcs).__name__} cannot be written: it has no header cards")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        has_tables = any(t is not None for t in (wcs.cpdis1, wcs.cpdis2, wcs.det2im1, wcs.det2im2))
        hdulist = (
            wcs.to_fits(relax=True) if has_tables else fits.HDUList([fits.PrimaryHDU(header=wcs.to_header(relax=True))])
        )
    written = hdulist[0].header
    keep = fits.Header()
    for card in written.cards:
        if is_wcs_card(card.keyword) or "." in card.keyword:
            keep.append(card)
    _check_round_trip(wcs, keep, hdulist)
    return keep, [fits.ImageHDU(h.data, h.header) for h in hdulist[1:]]


def _check_round_trip(wcs: WCS, cards: fits.Header, tables: fits.HDUList) -> None:
    width, height = wcs.pixel_shape or (1000, 1000)
    x, y = (a.ravel() for a in np.meshgrid(np.linspace(0, width - 1, 5), np.linspace(0, height - 1, 5)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FITSFixedWarning)
        again = WCS(cards, tables if len(tables) > 1 else None, relax=True)
    there, back = (np.array(w.all_pix2world(x, y, 0)) for w in (wcs, again))
    step = np.array(wcs.all_pix2world(x + 1, y, 0))
    off = _separation(wcs, there, back) / np.maximum(_separation(wcs, there, step), 1e-300)
    worst = float(np.nanmax(off)) if np.isfinite(off).any() else 0.0
    if worst > ROUND_TRIP or not np.array_equal(np.isfinite(there), np.isfinite(back)):
        raise InputError(f"WCS {wcs.wcs.ctype[0]} cannot be written: its cards are off by {worst:.3g} px")


def _separation(wcs: WCS, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Chord between positions in degrees (2, n), in radians; precise when small."""
    lng, lat = wcs.wcs.lng, wcs.wcs.lat
    d_lng, d_lat = np.radians(a[lng] - b[lng]), np.radians(a[lat] - b[lat])
    d_lng = (d_lng + np.pi) % (2 * np.pi) - np.pi
    return np.hypot(d_lng * np.cos(np.radians(a[lat])), d_lat)
