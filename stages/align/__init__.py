# SPDX-License-Identifier: BSD-3-Clause
"""Stage ``align``: an image on the pixel grid of another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from astropy import units as u
from pydantic import Field

from skydelta.errors import InputError
from skydelta.io.correlation import NoiseCorrelation
from skydelta.io.exposure import Exposure
from skydelta.io.planes import CORE_PLANES, MaskPlanes
from skydelta.io.psf import Psf
from skydelta.io.sky import low_level
from skydelta.kernels.backend import Array, to_host
from skydelta.kernels.core.tiles import Box
from skydelta.kernels.resample import METHODS, TAPS, MaskBits, Method, PixelMap, Resampled, resample
from skydelta.stages.align.chain import SkyChain
from skydelta.stages.align.correlation import correlation
from skydelta.stages.align.grids import ONE_GRID
from skydelta.stages.align.mapping import one_grid, pixel_map, shift_map
from skydelta.stages.base import Context, Port, Stage, StageConfig

FILL = ("BAD", "CR", "NO_DATA")
"""Planes whose pixels are replaced before interpolation; all others still carry a signal of the sky."""

GROW = ("SAT", "EDGE")
"""Planes that reach as far as the interpolation kernel."""

EQUAL_AREA = 1e-4
"""Pixel areas closer than this to each other need no factor."""

FULL_OVERLAP = 0.9
"""Part of the target below which a missing rest is worth a flag."""


ALIGNED: Mapping[str, tuple[Any, ...]] = {"aligned": (False,)}
"""Where an image is resampled: one on the grid already is copied."""


class AlignConfig(StageConfig):
    """How an image is brought onto another grid."""

    only_where: ClassVar = {
        "method": ALIGNED,
        "pixfrac": {**ALIGNED, "method": ("drizzle",)},
        "tolerance": ALIGNED,
        "conserve": ALIGNED,
    }

    method: Method = Field(
        "bspline3",
        description="interpolation kernel; bspline3 keeps the flux of stars to 1e-5; exact: shared areas; drizzle: "
        "shared areas of drops; adaptive: no aliasing on coarser grids",
    )
    pixfrac: float = Field(
        1.0,
        ge=0.01,
        le=1,
        description="drizzle: side of a drop, in sides of the image's pixels, about whose centres it lies",
    )
    tolerance: float = Field(
        1e-4, gt=0, le=0.1, description="largest error of an interpolated position and of a shift that is copied, px"
    )
    aligned: bool = Field(False, description="the images are on one grid already, whatever their WCS say")
    conserve: Literal["auto", "flux", "brightness"] = Field(
        "auto",
        description="what a change of pixel size keeps: flux per pixel times area, or brightness; auto: flux for "
        "units that count per pixel (adu, electron, electron/s, Jy), brightness for all others",
    )


class Align(Stage[AlignConfig]):
    """Resample an image, its variance and its mask onto the grid of another.

    A map within the tolerance of a whole-pixel shift is copied, never interpolated. Pixels outside the image are
    NaN and NO_DATA.

    Raises
    ------
    InputError
        No WCS, a frame that cannot be transformed, or no overlap.
    """

    name, version = "align", 6
    inputs = {"image": Port(Exposure, "image to move"), "onto": Port(Exposure, "image whose grid is wanted")}
    outputs = {"aligned": Port(Exposure, "image on the grid of onto", replaces="image")}

    def halo(self) -> int:
        method = self.config.method
        return TAPS[METHODS.index(method)] // 2 if method in METHODS else 2

    def memory(self, shape: tuple[int, int], kind: str) -> int:
        return shape[0] * shape[1] * 26  # coefficients, working mask, what it touches, the four planes of the result

    def __call__(self, *args: Any, device: str = "auto", **inputs: Any) -> Any:
        """Run alone. Where ``image`` is CCDData or NDData, the result is one too; ``onto`` may be a WCS with its
        array_shape, a header, a file of one, or (WCS or header, shape).
        """
        from skydelta.stages.align.inputs import as_target, like

        given = {**dict(zip(self.inputs, args, strict=False)), **inputs}
        ready = {**given, "onto": as_target(given["onto"])} if "onto" in given else given
        return like(given.get("image"), super().__call__(device=device, **ready))

    def run(  # type: ignore[override]
        self, ctx: Context, *, image: Exposure, onto: Exposure
    ) -> dict[str, Any]:
        return {"aligned": self._resampled(ctx, image, onto)[0]}

    def resampled(
        self, ctx: Context, image: Exposure, onto: Exposure, *, empty: bool = False
    ) -> tuple[Exposure, Array]:
        """The aligned image and its footprint, float32 (H, W): the part of the kernel's weight on usable pixels, or the
        area of the drops over that of full cover.

        With ``empty``, an image that covers nothing of the grid is a result, and not an error.
        """
        aligned, weight = self._resampled(ctx, image.single(), onto, empty)
        if weight is None:  # a copy: the kernel is the pixel
            usable = aligned.backend.xp.isfinite(aligned.image)
            if aligned.mask is not None:
                usable &= (aligned.mask & aligned.planes.bit(*FILL)) == 0
            weight = usable.astype(np.float32)
        return aligned, weight

    def correlation(self, image: Exposure, onto: Exposure) -> NoiseCorrelation:
        """How aligning correlates noise that is white in the image, in tiles of ``onto``: from the maps alone."""
        copied = self._map(image, onto).shift is not None
        evaluate = one_grid if self.config.aligned else SkyChain(image.wcs, onto.wcs)
        method = "nearest" if copied else self.config.method
        return correlation(evaluate, onto.shape, image.shape, method, self.config.pixfrac)

    def _resampled(
        self, ctx: Context, image: Exposure, onto: Exposure, empty: bool = False
    ) -> tuple[Exposure, Array | None]:
        """The aligned image, and its footprint if it was interpolated."""
        grid = self._map(image, onto)
        planes = onto.planes.union([*CORE_PLANES, *image.planes])
        mask = None if image.mask is None else image.planes.translate(image.mask, planes)
        ctx.metric("map_by", grid.way)
        ctx.metric("map_error_px", grid.error)
        ctx.metric("map_spacing_px", grid.spacing)
        ctx.metric("map_exact_fraction", grid.exact_fraction)
        ctx.metric("pixel_area_ratio", list(grid.area))
        by_area = self.config.method in ("exact", "drizzle") and grid.shift is None
        flux = self._factor(image) and (by_area or max(abs(a - 1) for a in grid.area) > EQUAL_AREA)
        ctx.metric("conserved", "flux" if flux else "brightness")
        if grid.shift is None:
            method: str = self.config.method
            bits = MaskBits(
                planes.bit(*FILL), planes.bit(*GROW), *(planes.bit(n) for n in ("BAD", "NO_DATA", "EDGE", "INTERP"))
            )
            points = grid
            if method not in METHODS:
                points = _made(image, onto, self.config.tolerance, corners=True)
                ctx.metric("map_error_px", max(grid.error, points.error))
            new = resample(
                image.image, image.variance, mask, points,
                method=self.config.method, pixfrac=self.config.pixfrac, flux=flux, bits=bits,
            )  # fmt: skip
            psf: Psf | None = None
            overlap = float((new.weight > 0).mean())
        else:
            method = "copy"
            ctx.metric("shift_px", list(grid.shift[::-1]))
            box = _covered(grid.shift, onto.shape, image.shape)
            new = _copied(image, mask, grid.shift, box, onto.shape, planes)
            psf = None if image.psf is None else image.psf.moved(*grid.shift)
            overlap = (box.y1 - box.y0) * (box.x1 - box.x0) / (onto.shape[0] * onto.shape[1])
        ctx.metric("method", method)
        ctx.metric("overlap_fraction", overlap)
        if overlap == 0 and not empty:
            raise InputError(_no_overlap(image, onto, grid), overlap=0.0)
        if overlap < FULL_OVERLAP:
            ctx.flag("partial_overlap", f"{image.id or 'image'} covers {overlap:.1%} of the target grid")
        header = image.header.copy()
        header["ALMETHOD"] = (method, "kernel of the interpolation; copy: none")
        if method == "drizzle":
            header["ALPIXFRA"] = (self.config.pixfrac, "side of a drop in sides of a pixel")
        header["ALMAPERR"] = (grid.error, "[pix] largest error of the position map")
        header["ALCONSRV"] = ("flux" if flux else "brightness", "kept when the pixel size changed")
        header["ALCOVER"] = (overlap, "part of the grid that the image covers")
        aligned = image.with_(
            image=new.image,
            variance=new.variance,
            mask=new.mask,
            planes=planes,
            wcs=onto.wcs,
            psf=psf,
            origin=onto.origin,
            header=header,
            notes={**image.notes, "align": method},
            kernel_error=None,  # known on the grid of the difference alone
        )
        return aligned, new.weight

    def _map(self, image: Exposure, onto: Exposure) -> PixelMap:
        if self.config.aligned:
            if image.shape != onto.shape:
                raise InputError(f"align: aligned is set, but image has shape {image.shape} and onto {onto.shape}")
            return shift_map(onto.shape, image.shape)
        for name, e in (("image", image), ("onto", onto)):
            if e.wcs is None or _nameless(e.wcs):
                raise InputError(
                    f"align: {name} {e.id or ''}".rstrip() + " has no celestial WCS; register it first (a WCS in its "
                    f"header){ONE_GRID}"
                )
        return _made(image, onto, self.config.tolerance)

    def _factor(self, image: Exposure) -> bool:
        """Whether a pixel value is a flux per pixel."""
        if self.config.conserve != "auto":
            return self.config.conserve == "flux"
        return image.unit is not None and _counts(image.unit)


COUNTED = (u.adu, u.DN, u.electron, u.photon, u.count, u.Jy, u.mgy, u.erg / u.s / u.cm**2, u.erg / u.s / u.cm**2 / u.AA)
"""Units of light that a pixel holds, as they are, per time and per pixel."""


def _counts(unit: u.UnitBase) -> bool:
    """Whether a pixel of an image in this unit holds light: twice as much where it is twice as large."""
    ways = (unit, unit * u.s, unit * u.pix, unit * u.s * u.pix)
    return any(way.is_equivalent(light) for way in ways for light in COUNTED)


def _made(image: Exposure, onto: Exposure, tolerance: float, corners: bool = False) -> PixelMap:
    return pixel_map(image.wcs, onto.wcs, onto.shape, image.shape, tolerance, corners, image.backend)


def _nameless(wcs: Any) -> bool:
    """Whether a WCS says of no axis what it measures."""
    return not any(low_level(wcs).world_axis_physical_types)


def _covered(shift: tuple[int, int], shape: tuple[int, int], source_shape: tuple[int, int]) -> Box:
    """Pixels of the target that a source moved by whole pixels covers."""
    (sy, sx), (h, w), (hs, ws) = shift, shape, source_shape
    y0, y1, x0, x1 = max(0, -sy), min(h, hs - sy), max(0, -sx), min(w, ws - sx)
    return Box(y0, y1, x0, x1) if y0 < y1 and x0 < x1 else Box(0, 0, 0, 0)


def _copied(
    image: Exposure, mask: Array | None, shift: tuple[int, int], box: Box, shape: tuple[int, int], planes: MaskPlanes
) -> Resampled:
    """The planes moved by whole pixels, bit by bit; pixels without a value are `NO_DATA`, as beside the image."""
    if shift == (0, 0) and shape == image.shape:
        return Resampled(image.image, image.variance, mask, None)
    xp = image.backend.xp
    at = box.shift(*shift)

    def move(plane: Array, outside: float) -> Array:
        out = xp.full(shape, outside, plane.dtype)
        out[box.slices] = plane[at.slices]
        return out

    empty = xp.where(xp.isfinite(image.image), np.int32(0), np.int32(planes.bit("NO_DATA")))
    inside = empty if mask is None else mask | empty
    return Resampled(
        move(image.image, np.nan),
        None if image.variance is None else move(image.variance, np.nan),
        move(inside, planes.bit("NO_DATA")),
        None,
    )


def _no_overlap(image: Exposure, onto: Exposure, grid: PixelMap) -> str:
    h, w = image.shape
    nodes = to_host(grid.nodes)
    finite = np.isfinite(nodes).all(axis=0)
    where = "nowhere"
    if finite.any():
        (x0, y0), (x1, y1) = (f(nodes[:, finite], axis=1) for f in (np.min, np.max))
        where = f"at x {x0:.0f} to {x1:.0f}, y {y0:.0f} to {y1:.0f}"
    return (
        f"align: {image.id or 'image'} and {onto.id or 'onto'} do not overlap: the target grid of {onto.shape[1]} x "
        f"{onto.shape[0]} px lies {where} in the pixels of an image of {w} x {h}"
    )
