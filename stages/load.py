# SPDX-License-Identifier: BSD-3-Clause
"""Read an image, or a matching kernel, from a path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from skydelta.io.exposure import Exposure
from skydelta.io.fits.checksum import Checks
from skydelta.io.fits.reader import split_extension
from skydelta.io.matchkernel import MatchKernel
from skydelta.io.read import read
from skydelta.kernels.backend import to_host
from skydelta.kernels.sky import TOGETHER
from skydelta.stages.base import Context, Port, Stage, StageConfig

MUCH_LOST = 0.1
"""Share of the pixels of an image that may be unusable without a word."""

LITTLE = 0.005
"""Reasons for less than this share are not named."""

_PLANE = "as FILE or FILE[EXT]; none: from the image's own file"


class LoadConfig(StageConfig):
    """Which HDUs and files hold what; paths are relative to the workflow."""

    image: str | int | None = Field(
        None, description="HDU name or number; none: SCI or IMAGE, else the first 2-D image."
    )
    variance: str | None = Field(None, description=f"Variance plane, {_PLANE}.")
    sigma: str | None = Field(None, description="Standard deviation instead of a variance, FILE or FILE[EXT].")
    weight: str | None = Field(None, description="Inverse variance instead of a variance, FILE or FILE[EXT].")
    mask: str | None = Field(None, description=f"Mask, {_PLANE}.")
    psf: str | None = Field(None, description=f"PSF stamp, {_PLANE}.")
    dtype: Literal["float32", "native"] = Field("float32", description="Type of the pixels in memory.")
    gain: float | None = Field(None, gt=0, description="Electrons per unit of the pixels; none: from the header.")
    read_noise: float | None = Field(None, gt=0, description="Read noise, electrons; none: from the header.")
    saturation: float | None = Field(None, description="Saturation level, unit of the pixels; none: from the header.")
    checksum: Literal["warn", "error", "ignore"] = Field(
        "warn", description="What is done when DATASUM or CHECKSUM of an HDU do not hold."
    )


class Load(Stage[LoadConfig]):
    """Image, variance, mask, WCS and PSF of a FITS file, on the device of the run."""

    name = "load"
    version = 5
    inputs = {"path": Port(str, "FILE or FILE[EXT]")}
    outputs = {"image": Port(Exposure, "what was read", replaces="path")}
    files = ("variance", "sigma", "weight", "mask", "psf")

    def memory(self, shape: tuple[int, int], kind: str) -> int:
        """Planes of the result, and what is needed to decode, judge or estimate them."""
        pixels = shape[0] * shape[1]
        if kind == "cpu":
            return 36 * pixels
        return 44 * pixels + 64 * min(pixels, TOGETHER)

    def run(self, ctx: Context, *, path: str) -> dict[str, Any]:  # type: ignore[override]
        config = self.config.model_dump()
        for name in self.files:
            if config[name] is not None:
                config[name] = under(ctx.base, config[name])
        exposure = read(under(ctx.base, path), **config, device=ctx.backend.name)
        flag_reading(ctx, exposure)
        for name, note in exposure.notes.items():
            if name != "warnings":
                ctx.metric(name, note)
        flag_lost(ctx, exposure, exposure.notes.get("mask", {}).get("usable_fraction"))
        return {"image": exposure}


def flag_reading(ctx: Context, exposure: Exposure) -> None:
    """Flags for what was odd about a file: ``checksum``, ``checksum_2``, ... and ``reading``, ``reading_2``, ..."""
    wrong = exposure.notes.get("checksum", {}).get("wrong", [])
    others = [line for line in exposure.notes.get("warnings", []) if line not in wrong]
    ctx.flag_each("checksum", wrong)
    ctx.flag_each("reading", others)


def flag_lost(ctx: Context, exposure: Exposure, usable: float | None = None) -> None:
    """Say when more than `MUCH_LOST` of the pixels of an image cannot be used, and for which reasons.

    ``usable`` is the share of those that can, where it is known.
    """
    lost = 1 - (to_host(exposure.good().mean()).item() if usable is None else usable)
    if lost <= MUCH_LOST:
        return
    xp, size = exposure.backend.xp, exposure.image.size
    left = xp.isfinite(exposure.image)
    reasons = [("without a value", ~left)]
    if exposure.variance is not None:
        with np.errstate(invalid="ignore"):
            known = xp.isfinite(exposure.variance) & (exposure.variance > 0)
        reasons.append(("without a valid variance", left & ~known))
        left &= known
    if exposure.mask is not None:
        named = (name for name in exposure.planes if exposure.planes.bit(name) & exposure.planes.invalid)
        reasons += [(name, left & (exposure.mask & exposure.planes.bit(name) != 0)) for name in named]
    counts = {name: int(xp.count_nonzero(pixels)) / size for name, pixels in reasons}
    words = [f"{name} {part:.1%}" for name, part in sorted(counts.items(), key=lambda c: -c[1]) if part >= LITTLE]
    ctx.flag("pixels_lost", f"{lost:.1%} of the pixels cannot be used: {', '.join(words)}")


class LoadKernelConfig(StageConfig):
    """Where the kernel is."""

    file: str = Field(description="FILE, a difference.fits or a saved kernel, or FILE[EXT].")


class LoadKernel(Stage[LoadKernelConfig]):
    """A matching kernel of an earlier run, for `match` to use instead of a fit."""

    name = "load_kernel"
    version = 2
    inputs: ClassVar[Mapping[str, Port]] = {}
    outputs = {"kernel": Port(MatchKernel, "the stored kernel")}
    files = ("file",)

    def check_files(self, base: Path | None = None) -> None:
        MatchKernel.load(under(base, self.config.file))

    def run(self, ctx: Context) -> dict[str, Any]:  # type: ignore[override]
        checks = Checks()
        kernel = MatchKernel.load(under(ctx.base, self.config.file), checks)
        ctx.flag_each("checksum", checks.wrong)
        ctx.metric("kernel_file", self.config.file)
        return {"kernel": kernel}


def under(base: Path | None, path: str) -> str:
    """The path with ``[EXT]`` kept, from ``base`` when it is relative."""
    file, extension = split_extension(path)
    full = Path(file) if base is None or Path(file).is_absolute() else base / file
    return f"{full}[{extension}]" if extension is not None else str(full)
