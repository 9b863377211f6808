# SPDX-License-Identifier: BSD-3-Clause
"""The steps of a stack, from outlines of the images to the combination of what was aligned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from astropy.table import Table
from astropy.wcs import WCS

from skydelta.errors import AlgorithmError, ConfigError, InputError, SkydeltaError
from skydelta.io.correlation import NoiseCorrelation
from skydelta.io.exposure import Exposure
from skydelta.io.many import SHARE, free_memory
from skydelta.io.outline import Outline, outline
from skydelta.io.planes import MAX_PLANES, MaskPlanes
from skydelta.io.spool import Spool
from skydelta.io.storage import check_writable
from skydelta.kernels.backend import to_host
from skydelta.kernels.combine import HALO, Band, Bits, Combined, Sums, Terms
from skydelta.kernels.core.tiles import Box
from skydelta.stages.align import Align
from skydelta.stages.align.chain import SkyChain
from skydelta.stages.align.correlation import correlation
from skydelta.stages.align.grids import ONE_GRID, Grid, grid_of, mosaic, north_up
from skydelta.stages.align.mapping import one_grid
from skydelta.stages.base import Context
from skydelta.stages.stack.cards import TIME_CARDS, filter_of, positive, stacked_header
from skydelta.stages.stack.kept import flux_kept
from skydelta.stages.stack.levels import BlockGrid, Levels, Matching, match, sky_rows
from skydelta.stages.stack.noise import joined, tile_means
from skydelta.stages.stack.scaling import GOOD, Measured, fit, measure, zero_point

if TYPE_CHECKING:
    from skydelta.stages.stack import StackConfig

SUMS = 40
"""Bytes a pixel of running sums."""

BAND = 64 << 20
"""Bytes of a band, at most: larger ones gain nothing."""

LEAST_ROWS = 8
"""Of a band, however small the budget is."""

ZENITHAL = ("TAN", "TPV", "SIN", "STG", "ARC", "ZEA")
"""Projections of a target on which an image lies in the box around its border."""


class Waiting(NamedTuple):
    """One aligned image.

    Attributes
    ----------
    outline : Outline
    box : Box
        Where its planes lie on the target.
    noise : float
        Median variance, unscaled; NaN without.
    has_variance : bool
    method : str
        Of the alignment; ``copy`` was not interpolated.
    overlap : float
        Part of the target that the image covers.
    power : float64 (ny, nx)
        Mean in each tile of the noise's correlation of the variance of good pixels (1 without), unscaled, times the
        squares of the weights of their drops.
    levels : Levels or None
    stars : Measured or None
    """

    outline: Outline
    box: Box
    noise: float
    has_variance: bool
    method: str
    overlap: float
    power: np.ndarray
    levels: Levels | None
    stars: Measured | None


@dataclass
class Scaling:
    """Factors of the images, their errors (NaN if not fitted), where they come from, and the stars behind them."""

    scale: np.ndarray
    error: np.ndarray
    source: list[str]
    stars: np.ndarray


class Job:
    """One stack; `run` is all of it."""

    def __init__(self, config: StackConfig, ctx: Context, images: list[Any], onto: Any) -> None:
        self.config, self.ctx, self.onto = config, ctx, onto
        if not images:
            raise InputError("stack: no images; at least one is needed")
        if config.scales is not None and len(config.scales) != len(images):
            raise ConfigError(f"stack: {len(config.scales)} scales for {len(images)} images; one each is needed")
        if config.scales is not None and not all(np.isfinite(s) and s > 0 for s in config.scales):
            raise ConfigError(f"stack: scales = {list(config.scales)}; positive numbers are needed")
        if config.pixel_scale is not None and onto not in (None, "mosaic", "north-up"):
            raise ConfigError(
                f"stack.pixel_scale: {config.pixel_scale:g} has no effect where onto is a grid; mosaic and north-up "
                "take it"
            )
        if config.scratch is not None:
            check_writable(Path(config.scratch) / "scratch")
        self.images, self.given = images, config.scales
        self.budget = config.budget or free_memory() // SHARE
        self.planes = MaskPlanes().union(["INEXACT_PSF", "CLIPPED"])
        self.drops = config.resampling == "drizzle"
        self.skipped: dict[str, str] = {}

    def run(self) -> dict[str, Any]:
        outlines, given = self._outlines()
        scaling = self._known_scales(outlines, given)
        grid = self._grid(outlines)
        self._fits(grid)
        blocks = BlockGrid.of(grid.shape)
        config = self.config
        direct = scaling is not None and config.background == "none" and config.method in ("mean", "weighted")
        sums = Sums(grid.shape, self._bits(), config.weights == "pixel") if direct else None
        waiting: list[Waiting] = []
        index: list[int] = []
        with Spool(self.budget // 2, config.scratch) as spool:
            for k, one in enumerate(outlines):
                try:
                    found, planes = self._aligned(
                        one, grid, blocks, measure_stars=scaling is None or config.method == "median"
                    )
                except SkydeltaError as e:
                    self._refuse(one.id, e)
                    continue
                waiting.append(found)
                index.append(k)
                if sums is None:
                    spool.put(*planes)
                    continue
                assert scaling is not None
                terms = self._terms(float(scaling.scale[k]), found.noise, None, 0)
                sums.bits = self._bits()
                self._add(sums, planes, found.box, terms)
            self._some(waiting)
            if scaling is not None:
                scaling = _taken(scaling, index)
            else:
                scaling = self._fitted([w.stars for w in waiting], [w.outline for w in waiting])
            matching, terms_of = self._matched(waiting, scaling, blocks)
            if sums is not None:
                combined, clipped = sums.finish(), np.zeros(len(waiting), np.int64)
            else:
                combined, clipped = self._combined(spool, waiting, terms_of, matching, grid)
        return self._result(combined, clipped, waiting, scaling, matching, terms_of, grid)

    def _add(self, sums: Sums, planes: tuple[np.ndarray, ...], box: Box, terms: Terms) -> None:
        image, mask, variance, share = self._unpacked(planes)
        sums.add(image, variance, mask, _corner(box), terms, share)

    def _unpacked(
        self, planes: tuple[np.ndarray, ...]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]:
        """Image, mask, variance and weights of the drops, of what `_aligned` put together."""
        image, mask, *more = planes
        share = more.pop() if self.drops else None
        return image, mask, more[0] if more else None, share

    def _refuse(self, name: str, error: SkydeltaError) -> None:
        """Stop, or go on without an image."""
        if self.config.on_error == "raise":
            raise error
        self.skipped[name] = str(error)
        self.ctx.flag(f"skipped_{len(self.skipped)}", str(error))

    def _some(self, left: list[Any]) -> None:
        if not left:
            raise InputError(
                f"stack: no image is left of {len(self.images)}; the first was refused because: "
                f"{next(iter(self.skipped.values()))}"
            )

    def _outlines(self) -> tuple[list[Outline], list[float] | None]:
        """Outlines of the images that can be used, and the scales given for them."""
        found, scales = [], []
        for k, image in enumerate(self.images):
            name = str(image) if isinstance(image, str) else getattr(image, "id", "") or f"image {k + 1}"
            try:
                one = outline(image)
                one = one if one.id else Outline(**{**vars(one), "id": name})
                if not self.config.aligned and one.wcs is None:
                    why = f" ({one.why})" if one.why else ""
                    raise InputError(
                        f"stack: {one.id} has no celestial WCS{why}; register it first (a WCS in its header){ONE_GRID}"
                    )
            except SkydeltaError as e:
                self._refuse(name, e)
                continue
            found.append(one)
            scales.append(1.0 if self.given is None else self.given[k])
        self._some(found)
        if len(found) == 1:
            self.ctx.flag("single_image", f"{found[0].id} is the only image")
        filters = {o.id: filter_of(o.header) for o in found}
        if len({f for f in filters.values() if f}) > 1:
            said = ", ".join(f"{name} {f or 'unknown'}" for name, f in filters.items())
            self.ctx.flag("filters", f"images of different filters are combined: {said}")
        return found, None if self.given is None else scales

    def _unit_factors(self, outlines: list[Outline]) -> tuple[np.ndarray, InputError | None]:
        """Factors from each unit to the first's, and the error that units without any would be."""
        first, out, error = outlines[0].unit, np.ones(len(outlines)), None
        for k, one in enumerate(outlines):
            if one.unit == first:
                continue
            if one.unit is None or first is None:
                self.ctx.flag("units", f"{outlines[0].id} has unit {first}, {one.id} {one.unit}: taken as the same")
            elif one.unit.is_equivalent(first):
                out[k] = one.unit.to(first)
            elif error is None:
                error = InputError(
                    f"stack: {one.id} has unit {one.unit}, {outlines[0].id} {first}; units that can be converted, zero "
                    "points or scales are needed"
                )
        return out, error

    def _known_scales(self, outlines: list[Outline], given: list[float] | None) -> Scaling | None:
        """Scales that need no pixels; None when they are to be fitted."""
        factors, wrong_unit = self._unit_factors(outlines)
        nothing, none = np.full(len(outlines), np.nan), np.zeros(len(outlines), int)
        if given is not None:
            return Scaling(np.array(given), nothing, ["given"] * len(outlines), none)
        points = [zero_point(o.header) for o in outlines]
        wanted = self.config.scaling
        if wanted == "header" or (wanted == "auto" and all(p is not None for p in points)):
            missing = next((o.id for o, p in zip(outlines, points, strict=True) if p is None), None)
            if missing is not None:
                raise InputError(f"stack: {missing} has no zero point in its header; scaling = 'header' needs one each")
            known = [p for p in points if p is not None]
            scale = np.array([10 ** (-0.4 * (p[1] - known[0][1])) for p in known])
            return Scaling(scale, nothing, [p[0] for p in known], none)
        if wanted == "none" or len(outlines) == 1:
            if wrong_unit is not None:
                raise wrong_unit
            return Scaling(factors, nothing, ["unit" if f != 1 else "none" for f in factors], none)
        return None

    def _fitted(self, stars: list[Measured | None], outlines: list[Outline]) -> Scaling:
        """Scales from stars; what they do not give is an error, or said."""
        factors, wrong_unit = self._unit_factors(outlines)
        if len(outlines) == 1:
            return Scaling(factors, np.full(1, np.nan), ["none"], np.zeros(1, int))
        found = fit([s for s in stars if s is not None])
        source, scale = ["stars"] * len(outlines), found.scale.copy()
        self.ctx.metric("aperture_px", found.radius)
        for k, one in enumerate(outlines):
            known = np.isfinite(found.scale[k]) and (self.config.scaling == "stars" or found.error[k] <= GOOD)
            if known:
                continue
            said = (
                f"{one.id}: {found.stars[k]} stars in common with other images"
                + (f" give its scale to {found.error[k]:.1%}" if np.isfinite(found.error[k]) else "")
                + "; its flux scale is not fitted"
            )
            if wrong_unit is not None or self.config.scaling == "stars":
                raise AlgorithmError(f"stack: {said}") if wrong_unit is None else wrong_unit
            self.ctx.flag(f"not_scaled_{k + 1}", said)
            scale[k], source[k] = factors[k], "none"
        return Scaling(scale, found.error, source, found.stars)

    def _grid(self, outlines: list[Outline]) -> Grid:
        if self.config.aligned:
            if self.onto is not None:
                raise ConfigError("stack: aligned images are on one grid already; onto cannot be given too")
            return Grid(outlines[0].wcs, outlines[0].shape, outlines[0].id)
        if self.onto is not None and not isinstance(self.onto, str):
            return grid_of(self.onto)
        grids = [Grid(o.wcs, o.shape, o.id) for o in outlines]
        if self.onto in (None, "mosaic"):
            return mosaic(grids, scale=self.config.pixel_scale)
        if self.onto == "north-up":
            return north_up(grids, self.config.pixel_scale)
        return grid_of(self.onto)

    def _fits(self, grid: Grid) -> None:
        need, free = SUMS * grid.shape[0] * grid.shape[1], free_memory()
        if need > free:
            raise InputError(
                f"stack: a target of {grid.shape[1]} x {grid.shape[0]} px needs {need / 1e9:.1f} GB of memory, "
                f"{free / 1e9:.1f} GB are free; give a smaller grid or a larger pixel scale"
            )

    def _bits(self) -> Bits:
        p = self.planes
        return Bits(p.invalid, p.bit("SAT", "EDGE"), p.bit("NO_DATA"), p.bit("INEXACT_PSF"), p.bit("CLIPPED"))

    def _aligned(
        self, one: Outline, grid: Grid, blocks: BlockGrid, measure_stars: bool
    ) -> tuple[Waiting, tuple[np.ndarray, ...]]:
        """One image on its part of the target; planes on the host: image, mask, variance and weights of the drops, the
        last two if there are any."""
        config = self.config
        box = Box(0, grid.shape[0], 0, grid.shape[1]) if config.aligned else blocks.around(_box(one, grid))
        whole = one.read(self.ctx.backend.name)
        self.ctx.flag_each("checksum", whole.notes.get("checksum", {}).get("wrong", []))
        image = self._known_planes(whole.single())
        how: dict[str, Any] = {"method": config.resampling, "conserve": config.conserve}
        how |= {"pixfrac": config.pixfrac} if self.drops else {}
        align = Align(**({"aligned": True} if config.aligned else how))
        ctx = Context(self.ctx.backend, id=one.id)
        onto = grid.exposure(box).with_(planes=self.planes)
        out, share = align.resampled(ctx, image.with_(id=one.id), onto)
        self.planes = out.planes
        mask = np.zeros(box.shape, np.int32) if out.mask is None else to_host(out.mask)
        variance = None if out.variance is None else to_host(out.variance)
        host = Exposure(to_host(out.image), variance, mask, out.planes, origin=(box.y0, box.x0), id=one.id)
        good = host.good()
        if not good.any():
            raise InputError(f"stack: {one.id} has no usable pixel on the target")
        needs = config.method == "clipped" or (config.method == "weighted" and config.weights != "equal")
        if variance is None and needs:
            raise InputError(f"stack: {one.id} has no variance, which method = {config.method!r} needs")
        levels = None
        if config.background != "none" or config.method == "clipped":
            levels = blocks.levels(host.image, good, box)
        drops = [to_host(share)] if self.drops else []
        power = good.astype(np.float32)
        for factor in ([] if variance is None else [variance]) + 2 * drops:
            power = np.where(good, power * factor, np.float32(0))
        found = Waiting(
            one,
            box,
            np.nan if variance is None else float(np.median(variance[good])),
            variance is not None,
            ctx.metrics["method"],
            ctx.metrics["overlap_fraction"] * box.shape[0] * box.shape[1] / (grid.shape[0] * grid.shape[1]),
            tile_means(power, box, grid.shape),
            levels,
            measure(host) if measure_stars else None,
        )
        return found, (host.image, mask, *([] if variance is None else [variance]), *drops)

    def _known_planes(self, image: Exposure) -> Exposure:
        """Without mask planes for which no bit is left; the ones that forbid a pixel always have theirs."""
        more = [n for n in image.planes if n not in self.planes]
        lost = more[MAX_PLANES - len(self.planes) :]
        if not lost:
            return image
        self.ctx.flag("planes_dropped", f"{len(self.planes) + len(more)} mask planes; left out: {', '.join(lost)}")
        kept = MaskPlanes.of({n: b for n, b in image.planes.items() if n not in lost})
        mask = None if image.mask is None else image.mask & np.int32(~image.planes.bit(*lost))
        return image.with_(mask=mask, planes=kept)

    def _matched(
        self, waiting: list[Waiting], scaling: Scaling, blocks: BlockGrid
    ) -> tuple[Matching | None, list[Terms]]:
        levels = [w.levels for w in waiting if w.levels is not None]
        matching = None
        if levels:
            matching = match(levels, scaling.scale, blocks, 1 if self.config.background == "plane" else 0)
        used = matching if self.config.background != "none" and len(waiting) > 1 else None
        if used is not None:
            groups = used.solution.group
            if groups.max() > 0:
                apart = ", ".join(w.outline.id for w, g in zip(waiting, groups, strict=True) if g > 0)
                self.ctx.flag("not_connected", f"no overlap ties these to the first image in background: {apart}")
            self.ctx.metric("background_scatter", used.solution.scatter)
        terms = [self._terms(float(scaling.scale[k]), w.noise, used, k) for k, w in enumerate(waiting)]
        return matching, terms

    def _terms(self, scale: float, noise: float, matching: Matching | None, k: int) -> Terms:
        noise = scale**2 * noise
        weighted = self.config.method in ("weighted", "clipped") and self.config.weights == "exposure"
        plane = (0.0, 0.0, 0.0) if matching is None else matching.plane(k)
        at = (0.0, 0.0) if matching is None else (matching.x0, matching.y0)
        return Terms(scale, *plane, *at, 1 / noise if weighted else 1.0, noise)

    def _combined(
        self, spool: Spool, waiting: list[Waiting], terms: list[Terms], matching: Matching | None, grid: Grid
    ) -> tuple[Combined, np.ndarray]:
        config, bits, lost = self.config, self._bits(), np.zeros(len(waiting), np.int64)
        if config.method in ("mean", "weighted"):
            sums = Sums(grid.shape, bits, config.method == "weighted" and config.weights == "pixel")
            for k, w in enumerate(waiting):
                self._add(sums, spool.take(k), w.box, terms[k])
            return sums.finish(), lost
        h, width = grid.shape
        rows = min(self.budget // 2, BAND) // (Band.bytes_per_pixel(self.drops) * len(waiting) * width) - 2 * HALO
        rows = min(max(rows, LEAST_ROWS), h)
        kinds = (np.float32, np.float32, np.int32, np.int32, np.float32)
        out = Combined(*(np.empty(grid.shape, kind) for kind in kinds))
        known = all(w.has_variance for w in waiting)
        sky = None if matching is None else matching.sky_blocks()
        for y0 in range(0, h, rows):
            y1 = min(y0 + rows, h)
            here = [k for k, w in enumerate(waiting) if w.box.y0 < y1 + HALO and w.box.y1 > y0 - HALO]
            band = Band(max(len(here), 1), y0, y1, width, bits, self.drops)
            for i, k in enumerate(here):
                box = waiting[k].box
                low, high = max(y0 - HALO, box.y0), min(y1 + HALO, box.y1)
                image, mask, variance, share = self._unpacked(spool.take(k, slice(low - box.y0, high - box.y0)))
                band.put(i, image, variance, mask, (low, box.x0), terms[k], share)
            if config.method == "median":
                part = band.median()
            else:
                assert matching is not None and sky is not None
                level = sky_rows(sky, matching.grid, y0 - HALO, y1 + HALO)
                part, gone = band.clipped(level, config.sigma, config.core, config.weights)
                lost[here] += gone[: len(here)]
            for whole, piece in zip(vars(out).values(), vars(part).values(), strict=True):
                if piece is not None:
                    whole[y0:y1] = piece
        return out if known else Combined(out.image, None, out.mask, out.count, out.weight), lost

    def _result(
        self,
        combined: Combined,
        clipped: np.ndarray,
        waiting: list[Waiting],
        scaling: Scaling,
        matching: Matching | None,
        terms: list[Terms],
        grid: Grid,
    ) -> dict[str, Any]:
        config, outlines = self.config, [w.outline for w in waiting]
        moved = sorted({w.method for w in waiting} - {"copy"})
        notes = {
            "stack": f"{config.method} of {len(waiting)}",
            "noise": f"neighbouring pixels are correlated by resampling ({', '.join(moved)}); the variance is that of "
            "single pixels"
            if moved
            else "no image was interpolated; pixels are as independent as those of the images",
            "psf": "not known; measure it on the stack",
        }
        weights = np.array([t.weight for t in terms])
        point = zero_point(outlines[0].header)
        on_one_scale = point is not None and "none" not in scaling.source
        if config.method in ("weighted", "clipped") and config.weights == "pixel":
            weights = np.array([1 / t.noise for t in terms])
        stacked = Exposure(
            combined.image,
            combined.variance,
            combined.mask,
            self.planes,
            grid.wcs,
            unit=outlines[0].unit,
            header=stacked_header(
                [o.header for o in outlines],
                scaling.scale,
                weights,
                config.method,
                [point[0]] if point is not None and on_one_scale else [],
            ),
            id="stack",
            notes=notes,
        )
        self._kept(stacked, waiting, scaling.scale)
        used = matching is not None and config.background != "none" and len(waiting) > 1
        times = [positive(o.header, TIME_CARDS) for o in outlines]
        columns: dict[str, Any] = {
            "id": [o.id for o in outlines],
            "scale": scaling.scale,
            "scale_error": scaling.error,
            "scale_from": scaling.source,
            "stars": scaling.stars,
            "level": [t.level for t in terms],
            "level_error": [matching.error(k) if used and matching is not None else np.nan for k in range(len(terms))],
            "slope_x": [t.x for t in terms],
            "slope_y": [t.y for t in terms],
            "weight": weights,
            "sky_noise": [np.sqrt(t.noise) for t in terms],
            "exptime": [np.nan if t is None else t for t in times],
            "overlap": [w.overlap for w in waiting],
            "resampling": [w.method for w in waiting],
            "clipped": clipped,
        }
        ctx = self.ctx
        ctx.metric("images", len(waiting))
        ctx.metric("skipped", list(self.skipped))
        ctx.metric("shape", list(grid.shape))
        ctx.metric("covered_fraction", float((combined.count > 0).mean()))
        ctx.metric("most_exposures", int(combined.count.max()))
        for name in ("scale", "scale_from", "level", "weight", "clipped"):
            ctx.metric(name, [v.item() if isinstance(v, np.generic) else v for v in columns[name]])
        alike = {"wcs": grid.wcs, "id": "stack"}
        return {
            "stacked": stacked,
            "coverage": Exposure(combined.count.astype(np.float32), **alike),
            "weight": Exposure(combined.weight, **alike),
            "correlation": self._correlation(waiting, weights * scaling.scale, grid),
            "table": Table(columns),
        }

    def _kept(self, stacked: Exposure, waiting: list[Waiting], scales: np.ndarray) -> None:
        """Say what a median or clipping has done to the flux of stars, or that nobody knows."""
        stars = [w.stars for w in waiting if w.stars is not None]
        if self.config.method not in ("median", "clipped") or len(waiting) < 3 or len(stars) < len(waiting):
            return
        kept = flux_kept(measure(stacked), stars, scales)
        if kept.stars:
            self.ctx.metric("flux_kept", kept.ratio)
            self.ctx.metric("flux_kept_err", kept.error)
            stacked.header["FLUXKEPT"] = (kept.ratio, "flux of stars over that in the images")
            stacked.header["FLUXKERR"] = (kept.error, "standard error of FLUXKEPT")
        said = kept.complaint(self.config.method, all(w.method == "copy" for w in waiting))
        if said:
            self.ctx.flag("flux_not_kept" if kept.stars else "flux_unchecked", said)

    def _correlation(self, waiting: list[Waiting], factors: np.ndarray, grid: Grid) -> NoiseCorrelation:
        """How resampling correlates the noise of the stack, to which exposures add with these factors."""
        parts, shares = [], []
        for w, factor in zip(waiting, factors, strict=True):
            evaluate = one_grid if self.config.aligned else SkyChain(w.outline.wcs, grid.wcs)
            method = "nearest" if w.method == "copy" else self.config.resampling
            shape, many = w.outline.shape, len(waiting)
            parts.append(correlation(evaluate, grid.shape, shape, method, self.config.pixfrac, of_many=many))
            shares.append(factor**2 * w.power)
        return joined(parts, shares)


def _corner(box: Box) -> tuple[int, int]:
    return box.y0, box.x0


def _taken(scaling: Scaling, index: list[int]) -> Scaling:
    """Of these images only."""
    at = np.array(index)
    return Scaling(scaling.scale[at], scaling.error[at], [scaling.source[i] for i in index], scaling.stars[at])


def _box(one: Outline, grid: Grid) -> Box:
    """The part of the target that an image can touch.

    Raises
    ------
    InputError
        None of it.
    """
    whole = Box(0, grid.shape[0], 0, grid.shape[1])
    h, w = one.shape
    x, y = np.meshgrid(np.linspace(-1, w, 33), np.linspace(-1, h, 33))
    at = np.stack(SkyChain(grid.wcs, one.wcs)(x, y))
    kind = grid.wcs.wcs.ctype[0].removesuffix("-SIP") if isinstance(grid.wcs, WCS) else ""
    if not kind.endswith(ZENITHAL) or not np.isfinite(at).all():
        return whole
    low, high = np.floor(at.min(axis=(1, 2))).astype(int), np.ceil(at.max(axis=(1, 2))).astype(int)
    box = Box(int(low[1]) - 2, int(high[1]) + 3, int(low[0]) - 2, int(high[0]) + 3).clip(grid.shape)
    if box.y0 >= box.y1 or box.x0 >= box.x1:
        raise InputError(
            f"stack: {one.id} does not overlap the target: it lies at x {low[0]} to {high[0]}, y {low[1]} to {high[1]} "
            f"of a grid of {grid.shape[1]} x {grid.shape[0]} px"
        )
    return box
