# SPDX-License-Identifier: BSD-3-Clause
"""Header cards: an index over the raw bytes for what the layout needs, astropy's Header for everything else.

A file of thousands of HDUs is walked without building a Header for each: the few cards that give sizes are parsed here,
and what does not look plain is left to astropy.
"""

from __future__ import annotations

import re
import warnings
from functools import cached_property
from typing import Any

from astropy.io import fits

from skydelta.errors import InputError

CARD = 80

_VALUE = re.compile(
    r"= *(?:(?P<int>[+-]?\d{1,40})|(?P<bool>[TF])|'(?P<text>[^']*)'"
    r"|(?P<float>[+-]?(?:\d+\.\d*|\.\d+|\d+(?=[ED]))(?:[ED][+-]?\d{1,9})?)) *(?:/.*)?\Z"
)


class Cards:
    """The cards of one header, looked up as in an astropy Header: ``cards[keyword, n]``, ``count``, ``in``.

    Parameters
    ----------
    text : str
        Printable ASCII, 80 characters a card, END left out.
    header : astropy.io.fits.Header, optional
        Already parsed; ``text`` is then not looked at.
    """

    def __init__(self, text: str = "", header: fits.Header | None = None) -> None:
        self._text = text
        if header is not None:
            self.header = header

    @cached_property
    def header(self) -> fits.Header:
        """As stored."""
        return fits.Header.fromstring(self._text)

    @cached_property
    def _places(self) -> dict[str, list[int]]:
        places: dict[str, list[int]] = {}
        for at in range(0, len(self._text), CARD):
            places.setdefault(self._text[at : at + 8].rstrip().upper(), []).append(at)
        return places

    def __contains__(self, keyword: str) -> bool:
        return self.count(keyword) > 0

    def count(self, keyword: str) -> int:
        """How often a keyword is given."""
        if not self._text:
            return self.header.count(keyword) if keyword in self.header else 0
        return len(self._places.get(keyword, ()))

    def __getitem__(self, key: tuple[str, int]) -> Any:
        """Value of the n-th card of a keyword; errors are those of a Header."""
        keyword, n = key
        if not self._text:
            return self.header[key]
        at = self._places[keyword][n]
        match = _VALUE.match(self._text[at + 8 : at + CARD])
        if match is None or (match["text"] is not None and match["text"].rstrip().endswith("&")):
            return self.header[key]
        if match["int"] is not None:
            return int(match["int"])
        if match["bool"] is not None:
            return match["bool"] == "T"
        if match["text"] is not None:
            return match["text"].rstrip()
        return float(match["float"].replace("D", "E"))

    def spelling(self, keyword: str) -> str:
        """The last card's keyword as it is written."""
        if not self._text:
            return keyword
        at = self._places[keyword][-1]
        return self._text[at : at + 8].rstrip()


Lookup = Any  # Cards or astropy.io.fits.Header, which mypy does not know


def readable(header: fits.Header) -> fits.Header:
    """A copy without the cards that cannot be parsed even after mending."""
    out = fits.Header()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for card in header.cards:
            try:
                card.verify("silentfix+ignore")
                card.value  # noqa: B018 - parsed here or never
                out.append(card, end=True)
            except (fits.VerifyError, ValueError, UnicodeError):
                continue
    return out


def last(cards: Lookup, keyword: str, default: Any = None) -> Any:
    """Value of a card; of repeated cards the last one; ``default`` when missing, undefined or unreadable."""
    count = cards.count(keyword) if keyword in cards else 0
    if count == 0:
        return default
    try:
        value = cards[keyword, count - 1]
    except (fits.VerifyError, ValueError):
        return default
    return default if isinstance(value, fits.card.Undefined) else value


def text(cards: Lookup, keyword: str) -> str:
    """A text card without blanks around it; empty when missing or not a text."""
    value = last(cards, keyword, "")
    return value.strip() if isinstance(value, str) else ""


def number(cards: Lookup, keyword: str, default: float) -> float:
    """A number card; a number written as text is used.

    Raises
    ------
    InputError
        Neither (the message names the card).
    """
    value = last(cards, keyword, default)
    try:
        if isinstance(value, bool):
            raise ValueError
        return float(value.replace("D", "E").replace("d", "e")) if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{keyword} = {value!r}; a number is needed") from None


def integer(cards: Lookup, keyword: str, least: int, default: int | None = None) -> int:
    """An integer card.

    Raises
    ------
    InputError
        Missing without a default, no integer, or below ``least``.
    """
    value = last(cards, keyword, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        found = "missing" if value is None else f"{value!r}"
        raise InputError(f"{keyword} = {found}; an integer of at least {least} is needed")
    return value
