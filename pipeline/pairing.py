# SPDX-License-Identifier: BSD-3-Clause
"""Which reference belongs to which science image: by header keys, by where they are on the sky, or by both.

Only headers are read. A file of several detectors counts as several images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skydelta.errors import ConfigError, InputError, SkydeltaError
from skydelta.io.fits.reader import section_text, split_section
from skydelta.io.observation import unit_vectors
from skydelta.io.outline import Outline, detectors
from skydelta.io.sky import icrs_pixels, icrs_positions

SKY = "sky"
"""The word among the keys that asks for the overlap on the sky."""

LEAST = 0.1
"""Share of the science image that a reference must cover to be its partner."""

SAME = 0.01
"""Candidates whose covered shares differ by less than this cover as much: that with the nearest centre is taken."""

APART = 0.25
"""Candidates that cover as much and whose centres are closer than this, in diagonals of the science image, show the
same field: which of them is meant cannot be told."""

MARGIN = 128
"""Pixels of a mosaic around the footprint that are cut out with it: reach of interpolation, kernel and registration."""

CUT = 2.0
"""A reference with this many times the pixels that are needed is cut."""

GRID = 17
"""Points along each axis of an image by which its footprint is judged, edges included."""

ROUNDING = 1e-3
"""Pixels that a point on the edge may lie outside."""

SHOWN = 40
"""At most this many problems are listed."""


@dataclass(frozen=True)
class Candidate:
    """One detector image of an input.

    Attributes
    ----------
    source : str
        FILE or FILE[EXT].
    outline : Outline
    values : tuple
        Of the header keys.
    """

    source: str
    outline: Outline
    values: tuple[Any, ...]


def paired(
    inputs: Mapping[str, Sequence[str]], leading: str, pair_by: Sequence[str]
) -> list[tuple[str, dict[str, str]]]:
    """Name and paths of every item: each image of the leading input with its partner of every other one.

    Parameters
    ----------
    inputs : mapping
        Files (FILE or FILE[EXT]) of each input.
    leading : str
        The input whose images are the items.
    pair_by : sequence of str
        Header keys that partners have in common, and `SKY`: the partner is the one that covers most of the image, and
        of a mosaic only what is under the image, with `MARGIN`, is taken (``FILE[EXT][x1:x2,y1:y2]``).

    Raises
    ------
    ConfigError
        No key.
    InputError
        Files that cannot be read, images without a key or without partner, or with several: all of them at once.
    """
    keys = [k for k in pair_by if k != SKY]
    if not pair_by:
        raise ConfigError(f"inputs.pair_by: no key; header keys are needed, or {SKY!r}, or both")
    problems: list[str] = []
    found = {name: _candidates(files, keys, SKY in pair_by, problems) for name, files in inputs.items()}
    items = []
    for image in found[leading]:
        paths = {leading: image.source}
        for name, others in found.items():
            if name != leading:
                partner = _partner(image, others, keys, SKY in pair_by, name, problems)
                if partner:
                    paths[name] = partner
        items.append((image.outline.id, paths))
    if problems:
        more = [f"... and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        lines = "\n  ".join([*problems[:SHOWN], *more])
        raise InputError(f"inputs: pairing by {', '.join(pair_by)}: {len(problems)} problems\n  {lines}")
    return items


def _candidates(files: Sequence[str], keys: Sequence[str], sky: bool, problems: list[str]) -> list[Candidate]:
    """The images of files; what is wrong with them goes to the problems."""
    out = []
    for file in files:
        try:
            outlines = detectors(file)
        except SkydeltaError as e:
            problems.append(str(e))
            continue
        for outline in outlines:
            missing = [k for k in keys if k not in outline.cards]
            if missing:
                problems.append(f"{outline.source}: no card {', '.join(missing)}")
            elif sky and outline.wcs is None:
                problems.append(f"{outline.source}: no place on the sky: {outline.why}")
            else:
                out.append(Candidate(outline.source, outline, tuple(_plain(outline.cards[k]) for k in keys)))
    return out


def _plain(value: Any) -> Any:
    """A card's value, such that 1 and 1.0 are one, and blanks at the ends of text are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).strip()
    return float(value)


def _partner(
    image: Candidate, others: Sequence[Candidate], keys: Sequence[str], sky: bool, name: str, problems: list[str]
) -> str | None:
    said = ", ".join(f"{k} = {image.outline.cards[k]}" for k in keys)
    fitting = [c for c in others if c.values == image.values]
    if not fitting:
        what = f"with {said}" if keys else "at all"
        problems.append(f"{image.source}: no {name} {what}")
        return None
    if not sky:
        if len(fitting) > 1:
            problems.append(f"{image.source}: {len(fitting)} {name} with {said}: {_names(fitting)}")
            return None
        return fitting[0].source
    covers = [(c, cover) for c in fitting if (cover := covered(image.outline, c.outline)) and cover.share >= LEAST]
    if not covers:
        of = f" of the {len(fitting)} with {said}" if keys else ""
        problems.append(f"{image.source}: no {name}{of} covers {LEAST:.0%} of it")
        return None
    most = max(cover.share for _, cover in covers)
    covers = [(c, cover) for c, cover in covers if cover.share > most - SAME]
    covers.sort(key=lambda pair: (pair[1].distance, pair[0].source))
    nearest = covers[0][1]
    close = [c for c, cover in covers if _angle(cover.centre, nearest.centre) < APART * nearest.diagonal]
    if len(close) > 1:
        problems.append(f"{image.source}: {len(close)} {name} cover {most:.0%} of it alike: {_names(close)}")
        return None
    best, cover = covers[0]
    return best.source + cover.cut(best.outline.shape)


def _names(candidates: Sequence[Candidate]) -> str:
    shown = [c.source for c in candidates[:5]]
    return ", ".join(shown) + (", ..." if len(candidates) > 5 else "")


@dataclass(frozen=True)
class Cover:
    """How one image covers another.

    Attributes
    ----------
    share : float
        Of the points of the image that lie inside the other.
    distance, diagonal : float
        Between the centres, and of the image, radians.
    centre : float64 (3,)
        Direction of the centre of the other.
    x, y : (float, float)
        First and last pixel position in the other that the image reaches.
    """

    share: float
    distance: float
    diagonal: float
    centre: np.ndarray
    x: tuple[float, float]
    y: tuple[float, float]

    def cut(self, shape: tuple[int, int]) -> str:
        """The section of an image of this shape that is needed; empty where that is most of it."""
        box = []
        for (low, high), n in ((self.y, shape[0]), (self.x, shape[1])):
            box.append(slice(max(int(np.floor(low)) - MARGIN, 0), min(int(np.ceil(high)) + MARGIN + 1, n)))
        needed = (box[0].stop - box[0].start) * (box[1].stop - box[1].start)
        return section_text(tuple(box)) if shape[0] * shape[1] >= CUT * needed else ""


def covered(image: Outline, other: Outline) -> Cover | None:
    """How much of an image another one covers, by a grid of points; None when they are far apart.

    Raises
    ------
    InputError
        Axes of a WCS that are not on the sky.
    """
    _, _, ra, dec = _points(image)
    _, _, other_ra, other_dec = _points(other)
    here, there = unit_vectors(ra, dec), unit_vectors(other_ra, other_dec)
    middle = ra.size // 2
    radii = sum(np.nanmax(_angle(v, v[middle])) for v in (here, there))
    apart = float(_angle(here[middle], there[middle]))
    if not apart < 1.1 * radii:
        return None
    px, py = icrs_pixels(other.wcs, ra, dec)
    h, w = other.shape
    least, rim = -0.5 - ROUNDING, -0.5 + ROUNDING
    inside = (px >= least) & (px <= w + rim) & (py >= least) & (py <= h + rim)
    if not inside.any():
        return None
    diagonal = 2 * float(np.nanmax(_angle(here, here[middle])))
    ends = [(float(p[inside].min()), float(p[inside].max())) for p in (px, py)]
    return Cover(float(inside.mean()), apart, diagonal, there[middle], *ends)


def _points(image: Outline) -> tuple[np.ndarray, ...]:
    """Pixel positions and ICRS positions of a grid of points up to the outer edges; the middle one is the centre."""
    h, w = image.shape
    x, y = (a.ravel() for a in np.meshgrid(np.linspace(-0.5, w - 0.5, GRID), np.linspace(-0.5, h - 0.5, GRID)))
    return x, y, *icrs_positions(image.wcs, x, y)


def _angle(v: np.ndarray, to: np.ndarray) -> np.ndarray:
    """Angle between directions, radians, from their chord: exact for small ones."""
    return 2 * np.arcsin(np.clip(np.linalg.norm(v - to, axis=-1) / 2, 0, 1))


def expand(pattern: str) -> list[str]:
    """Files that a pattern (``*`` and ``?``) matches, sorted, each with the pattern's ``[EXT]``; the path itself if it
    is none.

    Raises
    ------
    InputError
        No file matches.
    """
    before, section = split_section(pattern)
    end = "" if section is None else section_text(section)
    if before.endswith("]") and "[" in before:
        cut = before.rindex("[")
        before, end = before[:cut], before[cut:] + end
    if not ("*" in before or "?" in before) or Path(before).exists():
        return [pattern]
    folder = Path(before).anchor or "."
    matched = sorted(str(p) for p in Path(folder).glob(str(Path(before).relative_to(folder)))) if folder else []
    files = [p for p in matched if Path(p).is_file()]
    if not files:
        raise InputError(f"{pattern}: no file matches")
    return [f + end for f in files]
