# SPDX-License-Identifier: BSD-3-Clause
"""Stage ``register``: the WCS of an image from its stars, against another image or a catalogue."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from astropy.table import Table
from astropy.wcs import WCS
from astropy.wcs.utils import proj_plane_pixel_scales
from pydantic import Field

from skydelta.errors import AlgorithmError, ConfigError, InputError
from skydelta.io.exposure import Exposure
from skydelta.stages.align.chain import SkyChain
from skydelta.stages.base import Context, Port, Stage, StageConfig
from skydelta.stages.register.lists import FEWEST, SCALES, Solution, StarList, register_lists
from skydelta.stages.register.phase import Shift, phase_shift
from skydelta.stages.register.planemap import PlaneMap, frame_grid, similarity
from skydelta.stages.register.sources import epoch_of, frame_box, image_stars, sky_stars
from skydelta.stages.register.wcsfit import catalogue_plane, fit_wcs, made_up_plane

ANY_SCALE = (0.05, 20.0)
"""Of a catalogue against an image of unknown pixel scale, in units of the guess that both cover the same."""

SEARCHED = 2.0
"""A catalogue is used to so many half diagonals of the image around where its WCS puts it."""

NODES = 41
"""Positions along each side of the frame that the new WCS is fitted to."""

SAME_GRID = (0.01, 0.005)
"""Scale, and turn in radians, by which images may differ whose shift is sought by phase correlation."""


class RegisterConfig(StageConfig):
    """How the WCS of an image is found."""

    only_where: ClassVar = {"order": {"method": ("auto", "stars")}, "max_rms": {"method": ("auto", "stars")}}

    method: Literal["auto", "stars", "phase"] = Field(
        "auto",
        description="stars; phase: a shift alone, by phase correlation; auto: phase where an image has too few stars",
    )
    order: int = Field(5, ge=1, le=5, description="highest order of the distortion; held-out stars choose one up to it")
    max_rms: float = Field(
        1.0, gt=0, le=10, description="largest rms of a coordinate of the matched stars, px of the target"
    )
    epoch: float | None = Field(
        None, ge=1800, le=2200, description="Julian year that a catalogue is moved to; unset: from the image's header"
    )


class Register(Stage[RegisterConfig]):
    """Give an image a WCS that agrees, star by star, with another image or with a catalogue.

    No WCS is needed at all, nor need one that is there be right. Parity, turn, scale (0.4 to 2.5) and overlap are
    found from the patterns of stars. Where the image it goes onto has no WCS either, both get one on a made-up tangent
    plane, so that ``align`` works; the notes and WCSNAME say so.

    Raises
    ------
    AlgorithmError
        No map that can be trusted; ``numbers`` say how many stars were found and matched, with which rms.
    InputError
        A catalogue without usable columns, or without stars where the image is.
    """

    name, version = "register", 2
    inputs = {
        "image": Port(Exposure, "image whose WCS is wanted"),
        "onto": Port(Exposure, "image to register on", optional=True),
        "catalog": Port(Table, "or a table of stars: ra, dec, and pmra, pmdec, ref_epoch if known", optional=True),
    }
    outputs = {
        "registered": Port(Exposure, "the image with its new WCS; the pixels are the same", replaces="image"),
        "onto": Port(Exposure, "the image it was registered on, with a made-up WCS if it had none", replaces="onto"),
    }

    def check_inputs(self, given: Collection[str]) -> None:
        if "catalog" not in given:
            self.refuse(["epoch"], "where onto is an image; it is that of a catalogue")

    def memory(self, shape: tuple[int, int], kind: str) -> int:
        return shape[0] * shape[1] * 40

    def run(  # type: ignore[override]
        self, ctx: Context, *, image: Exposure, onto: Exposure | None, catalog: Table | None
    ) -> dict[str, Any]:
        if (onto is None) == (catalog is None):
            raise ConfigError("register: either onto, an image, or catalog, a table of stars, is needed")
        label = f"register {image.id}".rstrip()
        try:
            if onto is not None:
                found, target = self._onto_image(ctx, image, onto)
            else:
                found, target = self._onto_catalog(ctx, image, catalog)
        except AlgorithmError as e:
            for name, value in e.numbers.items():
                ctx.metric(name, value)
            raise AlgorithmError(f"{label}: {e}", **e.numbers) from None
        wcs, numbers = found.wcs(image.shape, target)
        numbers = {**found.numbers, **numbers}
        for name, value in numbers.items():
            ctx.metric(name, value)
        if onto is not None and onto.wcs is None:
            wcs.wcs.name = target.wcs.name
            numbers["plane"] = "made up: one arcsecond a pixel, and positions on the sky mean nothing"
            ctx.flag("made_up_plane", "neither image has a WCS: both got a made-up tangent plane")
            onto = onto.with_(wcs=target, notes={**onto.notes, "register": {"plane": numbers["plane"]}})
        registered = image.with_(wcs=wcs, notes={**image.notes, "register": numbers})
        return {"registered": registered, "onto": onto}

    def _onto_image(self, ctx: Context, image: Exposure, onto: Exposure) -> tuple[_Found, WCS]:
        target = onto.wcs if onto.wcs is not None else made_up_plane(onto.shape)
        prior = _Prior.of(image, target if onto.wcs is not None else None, onto.shape)
        numbers: dict[str, Any] = {}
        if self.config.method != "phase":
            lists = image_stars(image, ctx.backend), image_stars(onto, ctx.backend)
            numbers = {"stars_image": len(lists[0]), "stars_onto": len(lists[1])}
            if min(map(len, lists)) >= FEWEST or self.config.method == "stars":
                return self._by_stars(*lists, prior), target
            ctx.flag("few_stars", "{stars_image} and {stars_onto} stars: a shift is sought instead".format(**numbers))
        if prior is not None and not prior.same_grid:
            raise AlgorithmError(
                "too few stars, and the WCS differ in scale or turn: no shift can be sought by phase correlation",
                **numbers,
                matched=0,
            )
        try:
            shift = phase_shift(image, onto)
        except AlgorithmError as e:
            few = f"too few stars ({numbers['stars_image']} and {numbers['stars_onto']}), " if numbers else ""
            raise AlgorithmError(f"{few}{e}", **{**numbers, "matched": 0, **e.numbers}) from None
        return _Found.shifted(shift, numbers, onto.shape), target

    def _by_stars(self, a: StarList, b: StarList, prior: _Prior | None) -> _Found:
        """Through the WCS the image has, which may know its distortion; then without."""
        if prior is not None:
            try:
                solution = register_lists(prior.moved(a), b, self.config.order, SCALES, self.config.max_rms)
                return _Found.of(solution, prior, a, b)
            except AlgorithmError:
                pass  # the next attempt says why
        return _Found.of(register_lists(a, b, self.config.order, SCALES, self.config.max_rms), None, a, b)

    def _onto_catalog(self, ctx: Context, image: Exposure, catalog: Table) -> tuple[_Found, WCS]:
        if self.config.method == "phase":
            raise ConfigError("register.method: phase needs an image to go onto, not a catalogue")
        sky, warning = sky_stars(catalog, self.config.epoch or epoch_of(image.header))
        if warning:
            ctx.flag("no_epoch", warning)
        for name, note in sky.notes.items():
            ctx.metric(f"catalog_{name}", note)
        a = image_stars(image, ctx.backend)
        if len(sky) < FEWEST or len(a) < FEWEST:
            raise AlgorithmError(
                f"too few stars: {len(a)} in the image and {len(sky)} in the catalogue; {FEWEST} pairs are needed",
                stars_image=len(a),
                stars_onto=len(sky),
                matched=0,
            )
        if getattr(image.wcs, "has_celestial", False):
            centre = image.wcs.pixel_to_world((image.shape[1] - 1) / 2, (image.shape[0] - 1) / 2).icrs
            scale = float(np.sqrt(np.prod(proj_plane_pixel_scales(image.wcs))))
            target = catalogue_plane(centre.ra.deg, centre.dec.deg, scale)
            b = _on_plane(sky, target, SEARCHED * np.hypot(*image.shape) / 2)
            if len(b) < FEWEST:
                raise InputError(
                    f"register {image.id}".rstrip() + f": {len(b)} of {len(sky)} stars of the catalogue lie near "
                    f"ra {centre.ra.deg:.4f}, dec {centre.dec.deg:.4f}, where the image is",
                    stars_onto=len(b),
                )
            prior = _Prior.of(image, target, None)
            return self._by_stars(a, b, prior), target
        return self._blind(image, a, sky)

    def _blind(self, image: Exposure, a: StarList, sky: Any) -> tuple[_Found, WCS]:
        """An image without WCS on a catalogue of the field: the pixel scale is found first, then the rest with it."""
        p = np.array([np.cos(np.radians(sky.dec)) * f(np.radians(sky.ra)) for f in (np.cos, np.sin)])
        z = np.sin(np.radians(sky.dec))
        mean = np.array([p[0].mean(), p[1].mean(), z.mean()])
        ra, dec = np.degrees(np.arctan2(mean[1], mean[0])), np.degrees(np.arctan2(mean[2], np.hypot(*mean[:2])))
        span = np.sqrt(np.prod(np.ptp(_on_plane(sky, catalogue_plane(ra, dec, 1.0), np.inf).at, axis=1)))
        scale = span / np.sqrt(image.shape[0] * image.shape[1])
        rough = register_lists(
            a,
            _on_plane(sky, catalogue_plane(ra, dec, scale), np.inf),
            self.config.order,
            ANY_SCALE,
            self.config.max_rms,
        )
        target = catalogue_plane(ra, dec, scale * rough.numbers()["scale"])
        return self._by_stars(a, _on_plane(sky, target, np.inf), None), target


@dataclass(frozen=True)
class _Prior:
    """The map, px to px of the target, that the WCS an image has gives; ``box`` is its frame there."""

    chain: SkyChain
    box: np.ndarray
    same_grid: bool
    scale: float

    @classmethod
    def of(cls, image: Exposure, target: WCS | None, onto: tuple[int, int] | None) -> _Prior | None:
        """None where either has no WCS, or the image's puts part of it where the target has no pixels."""
        if target is None or image.wcs is None:
            return None
        try:
            chain = SkyChain(target, image.wcs)
        except InputError:
            return None  # a WCS that cannot be used is as good as none
        there = np.stack(chain(*frame_grid(frame_box(image.shape))))
        if not np.isfinite(there).all():
            return None
        middle = np.array([(image.shape[1] - 1) / 2, (image.shape[0] - 1) / 2])
        x, y = chain(middle[0] + np.array([0.0, 1.0, 0.0]), middle[1] + np.array([0.0, 0.0, 1.0]))
        z = x + 1j * y
        alpha, beta = z[1] - z[0], (z[2] - z[0]) / 1j
        scale = float(np.sqrt(abs((np.conj(alpha) * (z[2] - z[0])).imag)))
        near = all(abs(abs(k) - 1) < SAME_GRID[0] and abs(np.angle(k)) < SAME_GRID[1] for k in (alpha, beta))
        return cls(chain, np.stack([there.min(axis=1), there.max(axis=1)], axis=1), near, scale)

    def __call__(self, at: np.ndarray) -> np.ndarray:
        return np.stack(self.chain(*at))

    def moved(self, stars: StarList) -> StarList:
        x, y = self.chain(stars.x, stars.y)
        ok = np.isfinite(x) & np.isfinite(y)
        return StarList(x[ok], y[ok], stars.flux[ok], stars.error[ok] * self.scale, self.box)


@dataclass(frozen=True)
class _Found:
    """A map from the image to its target, and the numbers that speak for it."""

    map: PlaneMap
    prior: _Prior | None
    box: np.ndarray
    numbers: dict[str, Any]

    @classmethod
    def of(cls, s: Solution, prior: _Prior | None, a: StarList, b: StarList) -> _Found:
        numbers = {"method": "stars", "stars_image": len(a), "stars_onto": len(b), **s.numbers()}
        return cls(s.map, prior, b.box, {**numbers, "from_wcs": prior is not None})

    @classmethod
    def shifted(cls, s: Shift, numbers: dict[str, Any], shape: tuple[int, int]) -> _Found:
        further = {
            "method": "phase",
            "shift_px": [s.x, s.y],
            "significance": s.significance,
            "second_peak": s.second,
            "overlap_fraction": s.overlap,
        }
        return cls(similarity(1.0 + 0j, complex(s.x, s.y), False), None, frame_box(shape), {**numbers, **further})

    def __call__(self, at: np.ndarray) -> np.ndarray:
        """Positions (2, n) in the target of pixels of the image."""
        return self.map(at if self.prior is None else self.prior(at))

    def wcs(self, shape: tuple[int, int], target: WCS) -> tuple[WCS, dict[str, Any]]:
        """The WCS of the image, fitted all over what it has in common with the target, and how well it fits."""
        grid = frame_grid(frame_box(shape), NODES)
        there = self(grid)
        inside = np.isfinite(there).all(axis=0)
        if self.prior is None or self.map.order > 1:
            # beyond the target, and beyond its stars, neither its WCS nor the map is known
            inside &= ((there >= self.box[:, :1]) & (there <= self.box[:, 1:])).all(axis=0)
        if inside.sum() < 6:
            raise AlgorithmError("the image and what it goes onto have next to no overlap", **self.numbers)
        sky = target.pixel_to_world(*there[:, inside]).icrs
        ra, dec = np.zeros((2, grid.shape[1]))
        ra[inside], dec[inside] = sky.ra.deg, sky.dec.deg
        try:
            fitted = fit_wcs(grid, ra, dec, inside, shape)
        except AlgorithmError as e:
            raise AlgorithmError(str(e), **{**self.numbers, **e.numbers}) from None
        return fitted.wcs, {
            "wcs_order": fitted.order,
            "wcs_residual_px": fitted.residual,
            "wcs_inverse_residual_px": fitted.inverse_residual,
        }


def _on_plane(sky: Any, plane: WCS, radius: float) -> StarList:
    """Stars of a catalogue on a tangent plane, to a radius in its pixels around its origin."""
    x, y = plane.wcs_world2pix(sky.ra, sky.dec, 0)
    # the other half of the sky comes out on the same plane
    a = np.radians(sky.ra - plane.wcs.crval[0])
    d, d0 = np.radians(sky.dec), np.radians(plane.wcs.crval[1])
    front = np.sin(d) * np.sin(d0) + np.cos(d) * np.cos(d0) * np.cos(a) > 0.1
    keep = front & np.isfinite(x) & np.isfinite(y) & (np.hypot(x, y) <= radius)
    at = np.stack([x[keep], y[keep]])
    box = np.stack([at.min(axis=1), at.max(axis=1)], axis=1) if keep.any() else np.zeros((2, 2))
    return StarList(at[0], at[1], sky.flux[keep], np.zeros(keep.sum()), box)
