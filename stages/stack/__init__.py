# SPDX-License-Identifier: BSD-3-Clause
"""Stage ``stack``: many exposures as one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

from astropy.table import Table
from pydantic import Field
from threadpoolctl import ThreadpoolController

from skydelta.errors import InputError
from skydelta.io.correlation import NoiseCorrelation
from skydelta.io.exposure import Exposure
from skydelta.io.images import is_array
from skydelta.kernels.resample import Method
from skydelta.stages.align import ALIGNED
from skydelta.stages.base import Context, Port, Stage, StageConfig
from skydelta.stages.stack.job import Job


class StackConfig(StageConfig):
    """How exposures are brought together and combined."""

    only_where: ClassVar = {
        "weights": {"method": ("weighted", "clipped")},
        "scaling": {"scales": (None,)},
        "sigma": {"method": ("clipped",)},
        "core": {"method": ("clipped",)},
        "resampling": ALIGNED,
        "pixfrac": {**ALIGNED, "resampling": ("drizzle",)},
        "conserve": ALIGNED,
        "pixel_scale": ALIGNED,
    }

    method: Literal["mean", "weighted", "median", "clipped"] = Field(
        "clipped", description="mean; weighted by inverse variance; median; or weighted mean without outliers"
    )
    weights: Literal["exposure", "pixel", "equal"] = Field(
        "exposure",
        description="of weighted and clipped: inverse sky variance of each exposure, which keeps one PSF for faint and "
        "bright stars; of each pixel, for depth that varies over an image; or equal",
    )
    scaling: Literal["auto", "header", "stars", "none"] = Field(
        "auto",
        description="flux scale: from zero points of the headers, from stars in common, none; auto: zero points if all "
        "have one, else stars where they give it to 2 %",
    )
    scales: tuple[float, ...] | None = Field(
        None, description="Factors to multiply the images by, one each, instead of scaling."
    )
    background: Literal["none", "offset", "plane"] = Field(
        "offset", description="sky matched by an offset or a plane of each image, solved over all overlaps at once"
    )
    sigma: float = Field(4.0, gt=0, le=100, description="Clipping: standard deviations from the median.")
    core: float = Field(
        0.8,
        ge=0,
        le=10,
        description="Clipping: part of the signal within one pixel that a value may differ by as well; 0.8 leaves "
        "stars alone where seeing differs by 20 %.",
    )
    resampling: Method = Field(
        "bspline3", description="interpolation kernel of align; drizzle: weights are multiplied by those of the drops"
    )
    pixfrac: float = Field(
        1.0, ge=0.01, le=1, description="as of align: side of a drop of drizzle, in sides of a pixel"
    )
    conserve: Literal["auto", "flux", "brightness"] = Field("auto", description="as of align")
    aligned: bool = Field(False, description="The images are on one grid already, whatever their WCS say.")
    pixel_scale: float | None = Field(
        None, gt=0, description="Of north-up and mosaic grids, arcsec; the smallest of the images' if unset."
    )
    on_error: Literal["raise", "skip"] = Field(
        "raise", description="An image that cannot be read, placed or scaled: stop, or go on without it and say so."
    )
    budget: int | None = Field(
        None, ge=1 << 20, description="Bytes of memory for images that wait; a quarter of what is free if unset."
    )
    scratch: str | None = Field(
        None, description="Folder for what exceeds the budget; the system's temporary folder if unset."
    )


class Stack(Stage[StackConfig]):
    """Align, scale, match in background and combine exposures of different grids and sizes.

    One exposure at a time is read and aligned; what must wait for the others waits in memory up to the budget, then
    in a scratch file, and is combined by bands of rows: memory does not grow with their number, and the same
    exposures in the same order give the same bytes whatever the budget is.

    Raises
    ------
    InputError
        No images; one that cannot be read, has no WCS, does not overlap the target or has another unit; no variance
        where the method needs one.
    AlgorithmError
        ``scaling = "stars"`` and too few stars in common.
    """

    name, version = "stack", 6
    inputs = {
        "images": Port(Iterable, "exposures, paths (FILE or FILE[EXT]) or whatever `skydelta.read` takes", many=True),
        "onto": Port(
            object, "target: an image, WCS, header or path, 'north-up' or 'mosaic'; unset: mosaic", optional=True
        ),
    }
    outputs = {
        "stacked": Port(Exposure, "the stack"),
        "coverage": Port(Exposure, "number of exposures that each pixel is made of"),
        "weight": Port(Exposure, "sum of their weights"),
        "correlation": Port(NoiseCorrelation, "how resampling correlates the noise, in tiles"),
        "table": Port(Table, "what was done to each exposure"),
    }

    def halo(self) -> int:
        return 3

    def memory(self, shape: tuple[int, int], kind: str) -> int:
        return shape[0] * shape[1] * 24  # as align; all else is on the host

    def run(self, ctx: Context, *, images: Any, onto: Any = None) -> dict[str, Any]:  # type: ignore[override]
        if isinstance(images, str | bytes) or is_array(images):
            raise InputError(f"stack: images is {type(images).__name__}; a list of images is needed")
        with ThreadpoolController().limit(limits=1, user_api="blas"):  # its threads must not decide about a byte
            return Job(self.config, ctx, list(images), onto).run()
