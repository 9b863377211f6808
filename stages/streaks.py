# SPDX-License-Identifier: BSD-3-Clause
"""Stage ``streaks``: trails of satellites and aircraft, named in the mask."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field
from scipy.ndimage import binary_dilation, binary_erosion, find_objects, label, uniform_filter

from skydelta.errors import InputError
from skydelta.io.exposure import Exposure
from skydelta.kernels.backend import CPU, Array, to_host
from skydelta.stages.background import Background
from skydelta.stages.base import Context, Port, Stage, StageConfig
from skydelta.stages.robust import levels, median
from skydelta.stages.stars import find_stars
from skydelta.stages.streaklines import CLIP, PIECE, Line, Tracer, strongest

SIDE = 512
"""Longest side of the binned image in which lines are looked for, px."""

MESH = 32
"""Cells of the sky that is taken out first, px: the halos of bright stars go with it, a streak does not."""

STAR = 4.0
"""Significance of 3 x 3 binned pixels that belong to stars, if what is connected is no line."""

SLENDER = 5.0
"""Ratio of the axes from which on a patch of light is a line."""

DISK = 10.0
"""Radius of a disk that fits into stars and blends but not into a streak, px."""

SNR = 6.0
"""Least median light along a streak over its error."""

HALF_LIT = 0.4
"""Light that a piece of a streak has, in that of the median piece."""

EVEN = ((0.85, 0.4), (0.75, 0.7), (0.75, 1.0))
"""Least share of such pieces, and largest robust scatter of the pieces over their median; of lines up to twice the
least length, of longer ones, and of those through the whole image. Chains of stars are less even."""

NARROW = 0.6
"""Least width of a streak, in the FWHM of point sources, and `THIN` px where that is not known."""

THIN = 1.5

ALONG = 0.4
"""Lines this close to a row or a column, degrees, may be defects or bleeding charge."""

FULL = 0.2
"""Bright pixels within 3 px of a line through the whole image, over its length, from which on it is bleeding charge."""

BRIGHT = 100.0
"""Signal-to-noise of a pixel of a star that has spikes or bleeds."""

FALL = 1.7
"""A spike has this many times as much light in its third next to the star as in the one furthest away."""

FADING = 3.0
"""The same for lines from an edge of the image, behind which the star may be."""


class StreaksConfig(StageConfig):
    """What counts as a streak."""

    threshold: float = Field(
        7.0, ge=5, le=1000, description="Significance of a line over all lines of its length, standard deviations."
    )
    least_length: int = Field(128, ge=48, le=100_000, description="Shortest streak that is looked for, px.")
    most: int = Field(10, ge=1, le=100, description="Streaks to mask at most.")
    margin: float = Field(1.0, ge=0, le=50, description="Pixels masked beyond the light that is seen, on each side.")


class Streaks(Stage[StreaksConfig]):
    """Set the mask bit STREAK on trails that cross the image, or end in it; no pixel value changes.

    Lines are found in the Radon transform of the binned image, whose pixels count up to 3 standard deviations, at all
    angles and at lengths of every power of two; each is then followed in the full image, masked as far as its light is
    seen, and taken out before the next is looked for. Lines whose light falls off from a bright star (diffraction
    spikes), that run along a column or row of one (bleeding charge), or that are narrower than a point source (bad
    columns), are said in a flag and left unmasked.

    Raises
    ------
    InputError
        The image has no variance.
    """

    name = "streaks"
    version = 1
    inputs = {"image": Port(Exposure, "one exposure with its variance")}
    outputs = {"image": Port(Exposure, "the same with mask bit STREAK", replaces="image")}

    def halo(self) -> int:
        return 0

    def memory(self, shape: tuple[int, int], kind: str) -> int:
        return shape[0] * shape[1] * 16

    def run(self, ctx: Context, *, image: Exposure) -> dict[str, Any]:  # type: ignore[override]
        if image.variance is None:
            raise InputError("streaks: the image has no variance")
        backend, xp = image.backend, image.backend.xp
        flat = Background(model="mesh", cell=MESH).execute(Context(ctx.backend), {"image": image})["image"]
        good = image.good()
        noise = xp.sqrt(xp.where(good, image.variance, np.float32(1)))
        scaled = xp.where(good, flat.image / noise, np.float32(np.nan)).astype(np.float32)
        spread = float(levels(scaled)[1])
        if spread > 0:
            scaled = scaled / np.float32(spread)
        finder = _Finder(image, scaled, self.config, _Scene.of(flat, scaled))
        streaks, others = finder.run()
        planes = image.planes.union(["STREAK"])
        hit = xp.zeros(image.shape, bool)
        for line in streaks:
            hit |= line.area(backend, image.shape, line.reach + self.config.margin)
        bits = xp.where(hit, np.int32(planes.bit("STREAK")), np.int32(0))
        mask = bits if image.mask is None else image.mask | bits
        ctx.metric("streaks", len(streaks))
        ctx.metric("streak_fraction", float(hit.mean()))
        for name in ("length", "angle", "fwhm", "level"):
            ctx.metric(f"streak_{name}", [round(float(getattr(s, name)), 3) for s in streaks])
        ctx.metric("streak_ends_px", [[round(float(c), 1) for c in (*s.start, *s.end)] for s in streaks])
        if others:
            kinds = ", ".join(f"{why} ({n})" for why, n in Counter(why for _, why in others).items())
            ctx.flag("lines_not_masked", f"lines that are no streaks, the first at {_where(others[0][0])}: {kinds}")
        if len(streaks) == self.config.most:
            ctx.flag("many_streaks", f"{len(streaks)} streaks are masked, the most allowed; there may be more")
        return {"image": image.with_(mask=mask, planes=planes)}


def _where(line: Line) -> str:
    return f"({line.start[0]:.0f}, {line.start[1]:.0f}) to ({line.end[0]:.0f}, {line.end[1]:.0f})"


@dataclass(frozen=True)
class _Scene:
    """What may make lines: bright stars (x, y), saturated pixels among them, and the FWHM of point sources or NaN."""

    x: np.ndarray
    y: np.ndarray
    fwhm: float

    @classmethod
    def of(cls, flat: Exposure, scaled: Array) -> _Scene:
        stars = find_stars(flat)
        use = stars.isolated & stars.compact & ~stars.saturated
        fwhm = float(median(stars.fwhm[use])) if use.sum() >= 3 else float("nan")
        xp = flat.backend.xp
        bright = scaled > np.float32(BRIGHT)
        if flat.mask is not None:
            bright |= (flat.mask & np.int32(flat.planes.bit("SAT"))) != 0
        y, x = (to_host(a) for a in xp.nonzero(bright))
        return cls(x.astype(float), y.astype(float), fwhm)


class _Finder:
    """Looks for one line after the other."""

    def __init__(self, image: Exposure, scaled: Array, config: StreaksConfig, scene: _Scene) -> None:
        self.config, self.scene, self.shape = config, scene, image.shape
        self.tracer = Tracer(scaled, image.backend)
        self.bin = max(2, -(-max(image.shape) // SIDE))
        self.light, self.weight = _binned(scaled, image.backend.xp, self.bin)
        self._forget_stars()

    def run(self) -> tuple[list[Line], list[tuple[Line, str]]]:
        """Streaks, and lines that are none with what they are."""
        streaks: list[Line] = []
        others: list[tuple[Line, str]] = []
        for _ in range(2 * self.config.most):
            found = strongest(self.light, self.weight, max(self.config.least_length // self.bin, 16))
            if found is None or found.significance < self.config.threshold or len(streaks) == self.config.most:
                break
            ends = [tuple((c + 0.5) * self.bin - 0.5 for c in end) for end in (found.start, found.end)]
            line = self.tracer.follow(ends[0], ends[1], 2.0 * self.bin)  # type: ignore[arg-type]
            if line is not None and self._real(line):
                why = self._other(line)
                if why is None:
                    streaks.append(line)
                else:
                    others.append((line, why))
                self._forget(line.start, line.end, line.reach + 2 * self.bin)
                self._forget_stars()  # those that the line ran into
            self._forget(ends[0], ends[1], 1.5 * self.bin)  # type: ignore[arg-type]
        return streaks, others

    def _forget_stars(self) -> None:
        gone = _stars(self.light, self.weight, self.config.least_length / self.bin, DISK / self.bin)
        self.light[gone] = 0
        self.weight[gone] = 0

    def _real(self, line: Line) -> bool:
        """Whether there is light all along it, more than chance and stars leave."""
        typical = float(np.median(line.pieces))
        lit = float((line.pieces > HALF_LIT * typical).mean())
        scatter = 1.4826 * float(np.median(np.abs(line.pieces - typical))) / typical
        least, most = EVEN[int(line.length >= 2 * self.config.least_length) * (1 + line.whole)]
        long = line.length >= 0.75 * self.config.least_length
        return long and line.snr >= SNR and lit >= least and scatter <= most

    def _forget(self, start: tuple[float, float], end: tuple[float, float], reach: float) -> None:
        """Take a line out of the binned image."""
        a, b = (tuple((c + 0.5) / self.bin - 0.5 for c in p) for p in (start, end))
        line = Line(a, b, 0, 0, 0, 0, np.empty(0), False)  # type: ignore[arg-type]
        gone = line.area(CPU, self.light.shape, reach / self.bin)
        self.light[gone] = 0
        self.weight[gone] = 0

    def _other(self, line: Line) -> str | None:
        """What a line is that is no streak."""
        off = min(line.angle % 90, 90 - line.angle % 90)
        least = THIN if np.isnan(self.scene.fwhm) else max(THIN, NARROW * self.scene.fwhm)
        u, v = line.along(self.scene.x, self.scene.y)
        margin = 2 * PIECE
        on = (np.abs(v) <= 3) & (u > -margin) & (u < line.length + margin)
        # a streak that is itself so bright is no star: only what is far brighter than the line
        if line.level > BRIGHT / 3:
            on &= False
        if off < ALONG and on.any() and (not line.whole or on.sum() > FULL * line.length):
            return "bleeding charge"
        if off < ALONG and line.fwhm < least:
            return "a bad column or row"
        if line.fwhm < min(THIN, least):
            return "a line narrower than a point source"
        n = len(line.pieces)
        third = max(n // 3, 1)
        if on.any() and n >= 3:
            star = float(np.median(u[on])) / PIECE
            away = np.abs(np.arange(n) + 0.5 - star)
            order = np.argsort(away[away > 1.5])
            light = line.pieces[away > 1.5][order]
            third = max(len(light) // 3, 1)
            if len(light) < 3 or np.median(light[:third]) > FALL * np.median(light[-third:]):
                return "a diffraction spike"
        ends = np.median(line.pieces[:third]), np.median(line.pieces[-third:])
        if not line.whole and max(ends) > FADING * max(min(ends), 1e-9):
            return "a line that fades from one end, like a diffraction spike"
        return None


def _stars(light: np.ndarray, weight: np.ndarray, least: float, radius: float) -> np.ndarray:
    """Binned pixels of stars, galaxies and blends: bright patches that are no lines.

    A patch is a line when it is long and slender. Of others, long ones may be lines that cross: what a disk fits into
    goes, with what is left in short pieces.
    """
    near = uniform_filter(light, 3) * 9
    bright = near > STAR * np.sqrt(np.maximum(uniform_filter(weight, 3) * 9, 0.1))
    out = np.zeros(light.shape, bool)
    groups, _ = label(bright, np.ones((3, 3)))
    reach = int(np.ceil(radius))
    disk = np.hypot(*np.ogrid[-reach : reach + 1, -reach : reach + 1]) <= radius
    for k, box in enumerate(find_objects(groups), 1):
        patch = groups[box] == k
        if max(patch.shape) < least / 4:
            out[box] |= patch
        elif not _slender(patch, SLENDER):
            thick = binary_dilation(binary_erosion(np.pad(patch, reach), disk), disk)[reach:-reach, reach:-reach]
            thin, _ = label(patch & ~thick, np.ones((3, 3)))
            for j, part in enumerate(find_objects(thin), 1):
                piece = thin[part] == j
                if max(piece.shape) < least / 4 or not _slender(piece, SLENDER / 2):
                    thick[part] |= piece
            out[box] |= thick
    return binary_dilation(out, np.ones((3, 3)), iterations=2)


def _slender(patch: np.ndarray, ratio: float) -> bool:
    y, x = np.nonzero(patch)
    if len(y) < 3:
        return False
    small, large = np.linalg.eigvalsh(np.cov(np.stack([x, y])) + np.eye(2) / 12)
    return bool(large > ratio**2 * small)


def _binned(scaled: Array, xp: Any, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums over square blocks of unit variance where all pixels count, and the share that does; on the host."""
    h, w = (-(-n // side) for n in scaled.shape)
    padded = xp.full((h * side, w * side), np.nan, np.float32)
    padded[: scaled.shape[0], : scaled.shape[1]] = scaled
    known = xp.isfinite(padded)
    cut = xp.where(known, xp.clip(padded, np.float32(-CLIP), np.float32(CLIP)), np.float32(0))
    blocks = (h, side, w, side)
    light = cut.reshape(blocks).sum(axis=(1, 3)) / np.float32(side)
    weight = known.reshape(blocks).sum(axis=(1, 3)).astype(np.float32) / np.float32(side * side)
    return to_host(light.astype(np.float32)), to_host(weight)
