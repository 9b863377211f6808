# SPDX-License-Identifier: BSD-3-Clause
"""Whether two WCS are one, and the maps of pairs that were evaluated before."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from astropy.wcs import WCS, WCSCOMPARE_ANCILLARY, WCSHDO_P14, WCSHDO_all

from skydelta.kernels.resample import PixelMap
from skydelta.stages.align.chain import TABLES

ENTRIES = 16
"""Maps kept at most."""

BYTES = 1 << 28
"""Bytes of maps kept at most."""

_TABLE = ("data", "crpix", "crval", "cdelt")
_SIP = ("a", "b", "ap", "bp", "crpix")
"""What makes up a lookup table and SIP."""

_NOT_MAP = ("DATE-OBS", "MJD-OBS", "DATE-BEG", "MJD-BEG", "DATE-AVG", "MJD-AVG", "DATE-END", "MJD-END", "DATEREF",
            "MJDREF", "MJDREFI", "MJDREFF", "TIMESYS", "WCSNAME")  # fmt: skip
"""Cards of a WCS header that do not take part in the map of a sky that stands still."""


def same_wcs(a: Any, b: Any) -> bool:
    """Whether two WCS are the same in every lookup table, and in all numbers or at least in every card.

    Objects without cards are the same when they are one object.
    """
    if a is b:
        return True
    if not (isinstance(a, WCS) and isinstance(b, WCS)):
        return False
    if not all(_same(getattr(a, n), getattr(b, n), _TABLE) for n in TABLES):
        return False
    # the numbers themselves first: cards take longer, and their digits are fewer
    return _same_numbers(a, b) or (_same(a.sip, b.sip, _SIP) and _cards(a) == _cards(b))


def _cards(w: WCS) -> list[str]:
    """Cards that take part in the map, but those of SIP."""
    text = w.wcs.to_header(relax=WCSHDO_all | WCSHDO_P14)
    return [c for c in (text[i : i + 80] for i in range(0, len(text), 80)) if c[:8].rstrip() not in _NOT_MAP]


def _same_numbers(a: WCS, b: WCS) -> bool:
    """All numbers but those of lookup tables.

    The comparison of wcslib leaves out the polynomials of TPV, TNX and ZPX; their values at 25 points show them.
    """
    return (
        a.wcs.compare(b.wcs, WCSCOMPARE_ANCILLARY)
        and _frame_cards(a) == _frame_cards(b)
        and _same(a.sip, b.sip, _SIP)
        and _values(a, (4000, 4000)) == _values(b, (4000, 4000))
    )


def _same(a: Any, b: Any, names: tuple[str, ...]) -> bool:
    """Whether two objects, of which either may be absent, have the same values of these attributes."""
    if a is None or b is None:
        return a is b
    pairs = [(getattr(a, n), getattr(b, n)) for n in names]
    return all(p is q or (p is not None and q is not None and np.array_equal(p, q)) for p, q in pairs)


def _frame_cards(w: WCS) -> tuple[str, float | None]:
    """What the comparison of the numbers leaves out although the sky turns by it; an absent equinox is NaN."""
    return w.wcs.radesys, None if np.isnan(w.wcs.equinox) else w.wcs.equinox


def _values(wcs: Any, shape: tuple[int, int]) -> bytes:
    """World values of 5 x 5 points over an array, bit by bit."""
    y, x = (g.ravel() for g in np.meshgrid(*(np.linspace(0.0, n - 1.0, 5) for n in shape), indexing="ij"))
    return np.asarray(wcs.pixel_to_world_values(x, y), float).tobytes()


class MapCache:
    """The last maps, by a hash of both WCS, the shapes and the settings; a hit is confirmed by comparing both WCS.

    FITS WCS are compared number by number with copies made at the time; any other object must be the same object and
    still give the same values at 25 points. Bounded by `ENTRIES` and `BYTES`, least recently used out first. Safe in
    threads; the arrays of a map are shared and are not to be written to.
    """

    def __init__(self, entries: int = ENTRIES, nbytes: int = BYTES) -> None:
        self.entries, self.nbytes = entries, nbytes
        self._kept: OrderedDict[bytes, tuple[_Seen, _Seen, PixelMap]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()

    def get(
        self,
        source: Any,
        target: Any,
        target_shape: tuple[int, int],
        source_shape: tuple[int, int],
        settings: tuple[Any, ...],
        make: Callable[[], PixelMap],
    ) -> PixelMap:
        """The map of these arguments; ``make`` is called when there is none."""
        key = hashlib.blake2b(repr((target_shape, source_shape, settings)).encode(), digest_size=16)
        for wcs, shape in ((source, source_shape), (target, target_shape)):
            key.update(_values(wcs, shape))
        digest = key.digest()
        with self._lock:
            found = self._kept.get(digest)
            if found is not None and found[0].is_of(source) and found[1].is_of(target):
                self._kept.move_to_end(digest)
                return found[2]
        made = make()
        with self._lock:
            self._kept[digest] = _Seen.of(source), _Seen.of(target), made
            self._kept.move_to_end(digest)
            while self._kept and (len(self._kept) > self.entries or self._size() > self.nbytes):
                self._kept.popitem(last=False)
        return made

    def _size(self) -> int:
        return sum(m.nodes.nbytes + m.cells.nbytes + m.exact.nbytes for _, _, m in self._kept.values())


@dataclass(frozen=True)
class _Seen:
    """A WCS as it was when its map was made."""

    copy: WCS | None
    ref: Callable[[], Any]

    @classmethod
    def of(cls, wcs: Any) -> _Seen:
        if isinstance(wcs, WCS):
            return cls(wcs.deepcopy(), lambda: None)
        try:
            return cls(None, weakref.ref(wcs))
        except TypeError:
            return cls(None, lambda: None)  # never found again

    def is_of(self, wcs: Any) -> bool:
        if self.copy is None:
            return self.ref() is wcs
        copy = self.copy
        return (
            isinstance(wcs, WCS)
            and all(_same(getattr(copy, n), getattr(wcs, n), _TABLE) for n in TABLES)
            and _same_numbers(copy, wcs)
        )


MAPS = MapCache()
"""The maps of this process: planes and exposures with one pair of WCS evaluate it once."""
