# SPDX-License-Identifier: BSD-3-Clause
"""DATASUM and CHECKSUM of an HDU against its bytes (FITS 4.0, 4.4.2.7 and appendix J)."""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astropy.io import fits

from skydelta.errors import ConfigError, InputError
from skydelta.io.fits.cards import Cards
from skydelta.io.fits.layout import BLOCK, Hdu
from skydelta.io.storage import Content
from skydelta.io.tally import Tally
from skydelta.kernels.checksum import add_words

log = logging.getLogger(__name__)

POLICIES = ("warn", "error", "ignore")
"""What is done about a checksum that does not hold."""

ALL_ONES = 0xFFFFFFFF
"""What the words of header and data of an HDU add up to when CHECKSUM holds."""


CHANGED = "the header has changed since"
UNTRUSTED = "its cards, the WCS among them, cannot be trusted (damage, or a program that left the sum as it was)"
"""Of a header whose sum does not hold."""

SHOWN = 8
"""HDUs that are named of as many as there are, where headers alone were looked at."""


@dataclass
class Checks:
    """What is done about checksums, and what they said of the HDUs that were read.

    Attributes
    ----------
    policy : {"warn", "error", "ignore"}
    right, absent, section : int
        HDUs whose sums hold, that have none, and of which only a part was read.
    wrong : list of str
        A line for each other one, with the file's name and the HDU; one for all HDUs of a file of which the header
        alone was looked at.
    judged : set of (str, int)
        File and number of the HDUs that nothing more is to be said of.

    Raises
    ------
    ConfigError
        Another policy.
    """

    policy: str = "warn"
    right: int = 0
    absent: int = 0
    section: int = 0
    wrong: list[str] = field(default_factory=list)
    judged: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ConfigError(f"read: checksum {self.policy!r}; allowed are {', '.join(POLICIES)}")

    def begin(self, hdu: Hdu, content: Content, whole: bool) -> Tally | None:
        """What to read the data of an HDU through; None where nothing is to be verified."""
        if self.policy == "ignore":
            return None
        if not recorded(hdu):
            self.absent += 1
            return None
        if not whole:
            self.section += 1
            return None
        return tally_of(hdu, content)

    def end(self, hdu: Hdu, tally: Tally, label: str) -> None:
        """Judge an HDU that was read.

        Raises
        ------
        InputError
            A sum does not hold, and the policy is ``error``.
        """
        said, numbers = verdict(hdu, tally)
        self.judged.add((label, hdu.index))
        if said:
            self._complain(hdu.label, said, label, **numbers)
        elif compared(hdu, numbers):
            self.right += 1
        else:
            self.absent += 1

    def others(self, hdus: list[Hdu], content: Content, label: str) -> None:
        """Judge what was not read whole of a file: an HDU that hides all that follows it, and headers.

        A plane of the image may go by another name since its header was damaged. DATASUM, itself in the header, stands
        for the data; where it is missing, they are read under the policy ``error`` alone.

        Raises
        ------
        InputError
            One is wrong, and the policy is ``error``.
        """
        left = [h for h in hdus if (label, h.index) not in self.judged]
        self.judged.update((label, h.index) for h in left)
        for hdu in left:
            if hdu.fault is not None and hdu.size < 0:
                lost = f"cannot be read, and what follows it, planes of this image perhaps, is lost: {hdu.fault}"
                self._complain(hdu.label, lost, label)
        if self.policy == "ignore":
            return
        thorough = self.policy == "error"
        changed = [h.label for h in left if h.size >= 0 and _header_changed(h, content, thorough)]
        if changed:
            more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
            said = f"CHECKSUM does not hold: {CHANGED}; {UNTRUSTED}, and a name may hide a plane of this image"
            self._complain(", ".join(changed[:SHOWN]) + more, said, label)

    def _complain(self, where: str, said: str, label: str, **numbers: object) -> None:
        if self.policy == "error":
            raise InputError(f"{label}: {where}: {said}", **numbers)
        log.warning("%s: %s: %s", label, where, said)
        self.wrong.append(f"{Path(label).name} {where}: {said}")

    def note(self) -> dict[str, Any]:
        """For the notes of an exposure, JSON-able."""
        if self.policy == "ignore":
            return {"policy": self.policy, **({"wrong": self.wrong} if self.wrong else {})}
        counts = {"right": self.right, "absent": self.absent, "section": self.section, "wrong": self.wrong}
        return {"policy": self.policy, **{name: found for name, found in counts.items() if found}}


def _header_changed(hdu: Hdu, content: Content, thorough: bool) -> bool:
    """Whether CHECKSUM says that a header is not as it was.

    A DATASUM of 0 is that of zeros, or was never filled in: the data tell, where the sums do not go together. They are
    read for a missing one where ``thorough``.
    """
    data_sum = _datasum(hdu)
    if _checksum(hdu) is None:
        return False
    if isinstance(data_sum, str):
        return True
    if data_sum is not None and add_words(hdu.words, data_sum) in (0, ALL_ONES):
        return False
    if data_sum or hdu.fault or (data_sum is None and not thorough):
        return bool(data_sum)
    return bool(verdict(hdu, tally_of(hdu, content))[0])


def compared(hdu: Hdu, numbers: dict[str, object]) -> bool:
    """Whether a `verdict` without words rests on a sum: a DATASUM of 0 that the data do not have is a kept place."""
    return _checksum(hdu) is not None or not (numbers["datasum"] == 0 and numbers["found"])


def recorded(hdu: Hdu) -> list[str]:
    """Which of DATASUM and CHECKSUM an HDU has with a value."""
    values = {"DATASUM": _datasum(hdu), "CHECKSUM": _checksum(hdu)}
    return [keyword for keyword, value in values.items() if value is not None]


def tally_of(hdu: Hdu, content: Content) -> Tally:
    """A content that sums the data of an HDU, the padding of its last block with them."""
    return Tally(content, hdu.data, hdu.data + math.ceil(max(hdu.size, 0) / BLOCK) * BLOCK)


def verdict(hdu: Hdu, tally: Tally) -> tuple[str, dict[str, object]]:
    """What is wrong with the sums of an HDU, in words and numbers; an empty text when they hold.

    Parameters
    ----------
    hdu : Hdu
    tally : Tally
        Of its data.
    """
    data_sum, checksum, total = _datasum(hdu), _checksum(hdu), tally.total()
    numbers: dict[str, object] = {"datasum": data_sum, "found": total}
    whole = ALL_ONES
    if checksum is not None:
        whole = add_words(hdu.words, total)
    holds = whole in (0, ALL_ONES)
    together = f"CHECKSUM = {checksum!r}: header and data sum to {whole}, {ALL_ONES} is needed"
    if isinstance(data_sum, str):
        return f"DATASUM = {data_sum}, the data sum to {total}: what is recorded is no sum of 32 bits", numbers
    if data_sum == 0 and total and holds:
        return "", numbers  # a place kept for a sum that was never filled in, as some writers do
    if data_sum is not None and add_words(data_sum) % ALL_ONES != total % ALL_ONES:
        said = f"DATASUM = {data_sum}, the data sum to {total}: "
        if checksum is not None and holds:
            return f"{said}yet CHECKSUM holds: header and data are as written, with a wrong DATASUM", numbers
        return f"{said}the data have changed since (damage, or a program that left the sum as it was)", numbers
    if holds:
        return "", numbers
    if data_sum is None:
        return f"{together}: header or data have changed since", numbers
    return f"{together}; DATASUM holds: {CHANGED}, the data have not; {UNTRUSTED}", numbers


def _datasum(hdu: Hdu) -> int | str | None:
    """The number of DATASUM; a text that shows what else it holds; None when it is missing or blank."""
    value = _value(hdu.cards, "DATASUM")
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, str) and re.fullmatch(r"\d{1,40}", value.strip()):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= ALL_ONES:
        return repr(value)
    return value


def _checksum(hdu: Hdu) -> str | None:
    """The value of CHECKSUM; None when it is missing, blank or the zeros that keep its place."""
    value = _value(hdu.cards, "CHECKSUM")
    said = "" if value is None else str(value)
    return said if said.strip("0 ") else None


def _value(cards: Cards, keyword: str) -> Any:
    """Of the last card; None without one or without a value, a question mark where none can be made out."""
    try:
        value = cards[keyword, cards.count(keyword) - 1] if keyword in cards else None
    except (fits.VerifyError, ValueError):
        return "?"
    return None if isinstance(value, fits.card.Undefined) else value
