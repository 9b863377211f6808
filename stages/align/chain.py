# SPDX-License-Identifier: BSD-3-Clause
"""Target pixel to world to source pixel, evaluated exactly by the two WCS themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
from astropy import units as u
from astropy.coordinates import BaseCoordinateFrame, SkyCoord
from astropy.wcs import WCS, NoConvergence
from astropy.wcs.wcsapi import BaseLowLevelWCS

from skydelta.errors import InputError
from skydelta.io.sky import celestial_axes, low_level, sky_type

INVERSE_TOLERANCE = 1e-8
"""Convergence of the inverse distortion, px."""

ROUND_TRIP = 1e-5
"""A source position is believed when it maps back to the place it came from to within this, source px."""

FRAMES = ("icrs", "fk5", "fk4", "fk4noeterms", "galactic", "supergalactic", "barycentricmeanecliptic",
          "barycentrictrueecliptic")  # fmt: skip
"""Frames that turn into each other by rotations of the sky (and the E-terms of FK4), whatever the distance."""

ALLOWED = "ICRS, FK5, FK4, galactic, supergalactic and ecliptic axes"
"""The same for messages."""

TABLES = ("cpdis1", "cpdis2", "det2im1", "det2im2")
"""Lookup tables of a FITS WCS."""


class SkyChain:
    """The exact map of two WCS: FITS cards, or any object of astropy's shared interface (APE 14), in any combination.

    Both are on the sky, in one frame or in two of `FRAMES`; or both have the same physical types, in either order.

    Raises
    ------
    InputError
        Axes that are not two, are not known, or cannot be turned into each other.
    """

    def __init__(self, source: Any, target: Any) -> None:
        self.source, self.target = _end(source, "image"), _end(target, "onto")
        frames = self.source.frame, self.target.frame
        if frames[0] is None or frames[1] is None:
            _demand_same_axes(self.source, self.target)
            self.turned = False
        else:
            self.turned = not frames[0].is_equivalent_frame(frames[1])
            if self.turned:
                _demand_known_frames(self.source, self.target)

    @property
    def smooth(self) -> bool:
        """Whether the map has derivatives: lookup tables have kinks at every entry."""
        return self.source.smooth and self.target.smooth

    def __call__(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shape = np.shape(x)
        world = self.target.world(np.ravel(x).astype(float), np.ravel(y).astype(float))
        ok = np.isfinite(world).all(axis=0)
        q = np.full((2, ok.size), np.nan)
        if ok.any():
            world = world[:, ok]
            if self.turned:
                there = SkyCoord(*world, unit="deg", frame=self.target.frame).transform_to(self.source.frame)
                world = np.stack([there.spherical.lon.deg, there.spherical.lat.deg])
            q[:, ok] = self.source.pixel(world)
        return q[0].reshape(shape), q[1].reshape(shape)


class _End:
    """One side of the chain.

    Attributes
    ----------
    name : str
        "image" or "onto".
    types : str
        The axes in words.
    frame : BaseCoordinateFrame or None
        None when the axes are not on the sky of the stars.
    sphere : bool
        World values are longitude and latitude in degrees.
    axes : tuple
        What must be equal on both sides without a frame.
    smooth : bool
    refine : bool
        The inverse may stop early: a step of Newton follows.
    """

    name: str
    types: str
    frame: BaseCoordinateFrame | None
    sphere: bool
    axes: tuple[Any, ...]
    smooth: bool
    refine = False

    def world(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """World values (2, n); not finite where there are none."""
        raise NotImplementedError

    def inverse(self, world: np.ndarray) -> np.ndarray:
        """Pixels (2, n), which need not be right."""
        raise NotImplementedError

    def pixel(self, world: np.ndarray) -> np.ndarray:
        """Pixels (2, n) of world values; NaN where the projection or the inverse distortion gives none.

        Every position is mapped back and must come out where it started: an iteration that stopped early or ended on
        another sheet of a folded polynomial yields no pixel.
        """
        with np.errstate(all="ignore"):
            q = np.array(self.inverse(world), float)
            q[:, ~np.isfinite(q).all(axis=0)] = np.nan
            back = self._vector(self.world(*q))
            step = self._step(q, back, (0.5, 0.0)), self._step(q, back, (0.0, 0.5))
            if self.refine:
                q = q + _newton(step, self._vector(world) - back)
                back = self._vector(self.world(*q))
            if not self.sphere:  # each axis has its own unit: measure it in pixels before the axes are mixed
                unit = 2 * np.sqrt(step[0] ** 2 + step[1] ** 2)
                gap, pixel = (np.abs(back - self._vector(world)) / unit).max(axis=0), np.ones(q.shape[1])
            else:
                gap = np.sqrt(((back - self._vector(world)) ** 2).sum(axis=0))
                pixel = 2 * np.sqrt(np.minimum(*[(s**2).sum(axis=0) for s in step]))  # radians of the shorter side
            q[:, ~(gap <= ROUND_TRIP * pixel + 1e-14)] = np.nan
        return q

    def _step(self, q: np.ndarray, back: np.ndarray, d: tuple[float, float]) -> np.ndarray:
        """Change of the world vector over half a pixel, backwards where there is nothing ahead."""
        step = self._vector(self.world(q[0] + d[0], q[1] + d[1])) - back
        lost = np.isnan(step).any(axis=0) & np.isfinite(back).all(axis=0)
        if lost.any():
            step[:, lost] = self._vector(self.world(q[0, lost] - d[0], q[1, lost] - d[1])) - back[:, lost]
        return step

    def _vector(self, world: np.ndarray) -> np.ndarray:
        """Unit vectors (3, n) of positions on a sphere: no seam and no pole. Other values stay what they are."""
        if not self.sphere:
            return world
        a, d = np.radians(world[0]), np.radians(world[1])
        return np.stack([np.cos(d) * np.cos(a), np.cos(d) * np.sin(a), np.sin(d)])


def _newton(step: tuple[np.ndarray, np.ndarray], gap: np.ndarray) -> np.ndarray:
    """Change of the pixel (2, n) that closes a small gap, from the changes over half a pixel; least squares."""
    a, b = (2 * s for s in step)
    scale = 1 / np.sqrt((a**2 + b**2).sum(axis=0) if a.shape[0] == 3 else a**2 + b**2)  # axes without sky: own units
    a, b, gap = a * scale, b * scale, gap * scale
    aa, ab, bb = (a * a).sum(axis=0), (a * b).sum(axis=0), (b * b).sum(axis=0)
    ag, bg = (a * gap).sum(axis=0), (b * gap).sum(axis=0)
    return np.stack([bb * ag - ab * bg, aa * bg - ab * ag]) / (aa * bb - ab * ab)


class _Fits(_End):
    """Celestial axes of FITS cards."""

    def __init__(self, wcs: WCS, name: str) -> None:
        self.wcs, self.name, self.types = wcs, name, sky_type(wcs)
        if any(t.endswith("-CSC") for t in wcs.wcs.ctype):
            raise InputError(f"{name}: projection of {self.types} cannot be used; its inverse is good to 0.2 px only")
        axes = celestial_axes(wcs)
        self.frame, self.sphere = None if axes is None else axes[0], True  # the sun's own axes are no known frame
        aux = tuple(getattr(wcs.wcs.aux, n) for n in ("rsun_ref", "dsun_obs", "crln_obs", "hgln_obs", "hglt_obs"))
        self.axes = (*sorted(t[:4] for t in wcs.wcs.ctype), wcs.wcs.radesys, wcs.wcs.dateobs, aux)
        self.smooth = all(getattr(wcs, t) is None for t in TABLES)
        self.order = [0, 1] if wcs.wcs.lng == 0 else [1, 0]

    def world(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        world = self.wcs.all_pix2world(x, y, 0)
        return np.stack([world[i] for i in self.order])

    def inverse(self, world: np.ndarray) -> np.ndarray:
        try:
            return self.wcs.all_world2pix(
                *(world[i] for i in self.order), 0,
                tolerance=INVERSE_TOLERANCE, maxiter=50, adaptive=True, detect_divergence=True,
            )  # fmt: skip
        except NoConvergence as e:
            return e.best_solution.T


class _Interface(_End):
    """Two axes of any object of the shared interface: on the sky, or anything else with known physical types."""

    refine = True

    def __init__(self, wcs: BaseLowLevelWCS, name: str) -> None:
        self.wcs, self.name, self.types = wcs, name, sky_type(wcs)
        axes = celestial_axes(wcs)
        units = [u.Unit(unit) for unit in wcs.world_axis_units]
        physical = [str(t) for t in wcs.world_axis_physical_types]
        if axes is not None:
            self.frame, *order = axes
            scale = [units[i].to(u.deg) for i in order]
        else:
            self.frame = None
            order = sorted((0, 1), key=lambda i: physical[i])
            scale = [units[i].to(units[i].si) for i in order]
            if isinstance(wcs, WCS):
                w = wcs.wcs
                physical += [w.specsys, w.timesys, str((w.restfrq, w.restwav)), w.radesys]
        self.sphere = axes is not None
        self.axes = (*sorted(physical[:2]), *(str(units[i].si.decompose().bases) for i in order), *physical[2:])
        self.order, self.scale = order, np.array(scale)[:, None]
        self.smooth = not _has_tables(wcs)

    def world(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        world = self.wcs.pixel_to_world_values(x, y)
        return np.stack([np.asarray(world[i], float) for i in self.order]) * self.scale

    def inverse(self, world: np.ndarray) -> np.ndarray:
        values = np.empty_like(world)
        values[self.order] = world / self.scale
        try:
            return np.stack([np.asarray(q, float) for q in self.wcs.world_to_pixel_values(*values)])
        except NoConvergence as e:
            return e.best_solution.T
        except Exception as e:  # whatever an object of somebody else's raises
            raise InputError(
                f"{self.name}: WCS of {self.types} cannot be inverted: {type(e).__name__} {e}".rstrip()
            ) from e


def _end(wcs: Any, name: str) -> _End:
    low = low_level(wcs, name)
    if low.pixel_n_dim != 2 or low.world_n_dim != 2:
        raise InputError(
            f"{name}: WCS of {sky_type(low)} has {low.pixel_n_dim} pixel and {low.world_n_dim} world axes; "
            "two of each are needed"
        )
    if isinstance(low, WCS) and low.has_celestial:
        return _Fits(low, name)
    return _Interface(low, name)


def _has_tables(wcs: BaseLowLevelWCS) -> bool:
    """Whether values between the points of a table take part, as far as the object shows it."""
    if isinstance(wcs, WCS):
        return any(getattr(wcs, t) is not None for t in TABLES)
    model = getattr(wcs, "forward_transform", None)
    models = list(model.traverse_postorder()) if getattr(model, "n_submodels", 1) > 1 else [model]  # type: ignore[union-attr]
    inner = getattr(wcs, "_wcs", None)  # astropy's slices
    return any("Tabular" in type(m).__name__ for m in models) or (inner is not None and _has_tables(inner))


def on_sky(wcs: Any, name: str) -> BaseCoordinateFrame:
    """The frame of a WCS that can be turned into all others of `FRAMES`.

    Raises
    ------
    InputError
        It has none, or another.
    """
    end = _end(wcs, name)
    if end.frame is None or end.frame.name not in FRAMES:
        raise InputError(f"{name}: frame of {end.types} cannot be used; allowed are {ALLOWED}")
    return end.frame


def _demand_same_axes(source: _End, target: _End) -> None:
    for end, other in ((source, target), (target, source)):
        if end.frame is None and (other.frame is not None or "None" in end.axes):
            raise InputError(
                f"{end.name}: frame of {end.types} cannot be turned into that of {other.types}; "
                f"allowed are {ALLOWED}, or the same axes on both sides"
            )
    if source.axes != target.axes:
        raise InputError(
            f"image: axes {source.types} {source.axes} are not those of onto: {target.types} {target.axes}"
        )


def _demand_known_frames(source: _End, target: _End) -> None:
    for end in (source, target):
        if end.frame is not None and end.frame.name not in FRAMES:
            raise InputError(
                f"{end.name}: frame {end.frame.name} of {end.types} cannot be used; "
                f"allowed are {ALLOWED}, or one frame on both sides"
            )
