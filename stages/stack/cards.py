# SPDX-License-Identifier: BSD-3-Clause
"""The header of a stack."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from astropy.io import fits

from skydelta.errors import InputError
from skydelta.io.fits.cards import number
from skydelta.io.read import GAIN_CARDS, NOISE_CARDS, SATURATION_CARDS

FILTER_CARDS = ("FILTER", "BAND", "FILTNAM", "FILTNAME", "FILTER1", "FILTERID")
TIME_CARDS = ("EXPTIME", "EXPOSURE", "XPOSURE", "EFFEXPTM")

_OF_ONE = {*GAIN_CARDS, *NOISE_CARDS, *SATURATION_CARDS, *TIME_CARDS, "NCOMBINE", "GAINA", "GAINB", "RDNOISEA",
           "RDNOISEB", "SATURATA", "SATURATB", "BIASLVL", "TOTEXP"}  # fmt: skip
"""Cards that describe one exposure and would be wrong for a stack, even where all agree."""


def filter_of(header: fits.Header) -> str:
    """Name of the filter; empty when no card says it."""
    return next((str(header[c]).strip() for c in FILTER_CARDS if c in header), "")


def positive(header: fits.Header, cards: Sequence[str]) -> float | None:
    """The first of these cards that is a positive number."""
    for card in cards:
        if card in header:
            try:
                value = number(header, card, float("nan"))
            except InputError:
                continue
            if np.isfinite(value) and value > 0:
                return value
    return None


def stacked_header(
    headers: Sequence[fits.Header], scales: np.ndarray, weights: np.ndarray, method: str, of_first: Sequence[str] = ()
) -> fits.Header:
    """The cards that are the same in all images, those ``of_first`` of the first, and what can be said of the whole.

    EXPTIME is the exposure time of the flux scale (that of the first image), TOTEXP the sum. GAIN is the effective
    one, electrons per unit of the stack: the Poisson variance of a flux F is sum (w^2 s F / g) / (sum w)^2, so
    1 / GAIN = sum (w^2 s / g) / (sum w)^2 for weights w and scales s; of a median pi/2 times that.
    """
    first = headers[0]
    out = fits.Header()
    for card in first.cards:
        alike = card.keyword not in _OF_ONE and card.keyword not in ("COMMENT", "HISTORY", "")
        if alike and all(h.get(card.keyword) == card.value for h in headers[1:]):
            out.append(card, end=True)
    for keyword in of_first:
        out[keyword] = (headers[0][keyword], headers[0].comments[keyword])
    out["NCOMBINE"] = (len(headers), "images combined")
    out["COMBINE"] = (method, "how")
    times = [positive(h, TIME_CARDS) for h in headers]
    if times[0] is not None:
        out["EXPTIME"] = (times[0], "of the flux scale (first image), s")
    if all(t is not None for t in times):
        out["TOTEXP"] = (float(np.sum(np.array(times, float))), "sum over the images, s")
    gains = [positive(h, GAIN_CARDS) for h in headers]
    if all(g is not None for g in gains):
        w = np.asarray(weights, float)
        inverse = (w**2 * scales / np.array(gains, float)).sum() / w.sum() ** 2
        if method == "median":
            inverse *= np.pi / 2 if len(w) > 2 else 1.0
        out["GAIN"] = (float(1 / inverse), "electrons per unit, where all images count")
    return out
