# SPDX-License-Identifier: BSD-3-Clause
"""Write the products of an item."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from astropy.io import fits
from pydantic import Field

from skydelta.errors import ConfigError, InputError
from skydelta.io.catalog import Catalog
from skydelta.io.exposure import Exposure
from skydelta.io.fits.compressed import Compression
from skydelta.io.fits.writer import exposure_hdus, kernel_hdus, table_hdu, write_hdus
from skydelta.io.matchkernel import MatchKernel
from skydelta.io.observation import observed
from skydelta.io.sky import icrs_positions
from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.kernels.cutouts import cutouts
from skydelta.stages.base import Context, Port, Stage, StageConfig
from skydelta.stages.recover import CARDS

NOISE_CARDS = {
    "SKYNSCI": "noise of the science sky over what VAR says",
    "SKYNREF": "noise of the reference sky over what VAR says",
    "SNRSTD": "scatter of the SNR plane; 1 in noise",
}
"""Cards of measured noise over what the variances say, which nothing is divided by."""

PREVIEW = 512
"""Longest side of the pictures in ``preview.fits``, px."""


class Packing(StageConfig):
    """How the images of a file are written."""

    compress: Literal["RICE_1", "GZIP_2"] | None = Field(
        None, description="Tile compression: RICE_1 quantises floats, GZIP_2 is lossless; none: plain images."
    )

    @property
    def compression(self) -> Compression | None:
        return None if self.compress is None else Compression(self.compress)


class WriteConfig(Packing):
    """What is written."""

    stamp_half: int = Field(15, ge=3, le=100, description="Half-size of the candidates' stamps, px.")
    regions: bool = Field(False, description="Also write catalog.reg, regions for DS9.")
    votable: bool = Field(False, description="Also write catalog.vot, a VOTable.")


class Write(Stage[WriteConfig]):
    """Difference, catalogue, candidate stamps and previews into the folder of the item.

    ``difference.fits``: SCI, VAR, DQ, SNR, which ``compress`` packs, KERNEL with its covariance, UNMATCHED, PSF.
    ``catalog.ecsv`` and ``catalog.parquet``. ``stamps.fits``: cubes SCIENCE, TEMPLATE, DIFFERENCE with one stamp for
    each row of the catalogue, and table STAMPS with their ids and the WCS of each.
    ``preview.fits``: block means for the report, and the stamps of the kernel fit. ``injections.ecsv``: fake sources
    and what became of them, where there were any; they are in no other file. Every file is whole or absent.
    """

    name = "write"
    version = 4
    inputs = {
        "difference": Port(Exposure, "the difference"),
        "score": Port(Exposure, "its signal-to-noise plane"),
        "kernel": Port(MatchKernel, "the matching kernel"),
        "catalog": Port(Catalog, "what was found"),
        "science": Port(Exposure, "sky-subtracted science image"),
        "matched": Port(Exposure, "matched reference"),
        "injections": Port(Catalog, "fake sources and what became of them", optional=True, file="injections.ecsv"),
    }
    outputs = {"files": Port(list, "paths of what was written")}

    def products(self) -> tuple[str, ...]:
        more = ((self.config.regions, "catalog.reg"), (self.config.votable, "catalog.vot"))
        files = ("difference.fits", "catalog.ecsv", "catalog.parquet", "stamps.fits", "preview.fits")
        return (*files, *(name for wanted, name in more if wanted))

    def run(  # type: ignore[override]
        self,
        ctx: Context,
        *,
        difference: Exposure,
        score: Exposure,
        kernel: MatchKernel,
        catalog: Catalog,
        science: Exposure,
        matched: Exposure,
        injections: Catalog | None = None,
    ) -> dict[str, Any]:
        if ctx.out is None:
            raise ConfigError(
                "write: no folder to write to; use it in a workflow, or `skydelta.write` for one exposure"
            )
        out = ctx.out
        out.mkdir(parents=True, exist_ok=True)
        planes = exposure_hdus(difference, {"SNR": score.image})
        for i, flag in enumerate(sorted(ctx.earlier)):
            planes[0].header[f"SDFLAG{i}"] = (flag, "what to know about this difference")
        measured = (science.notes, "sky_sigma_over_predicted"), (matched.notes, "sky_sigma_over_predicted")
        for (card, words), (notes, name) in zip(
            NOISE_CARDS.items(), (*measured, (score.notes, "snr_std")), strict=True
        ):
            planes[0].header.remove(card, ignore_missing=True)
            if np.isfinite(value := notes.get(name, np.nan)):
                planes[0].header[card] = (float(f"{value:.4g}"), words)
        depth = {} if injections is None else injections.meta
        for name, (card, words) in CARDS.items():
            if np.isfinite(value := depth.get(name, np.nan)):
                planes[0].header[card] = (value, words)
        if difference.kernel_error is None:
            before = next((i for i, hdu in enumerate(planes) if hdu.name == "PSF"), len(planes))
            planes[before:before] = kernel_hdus(kernel)
        write_hdus(out / "difference.fits", planes, self.config.compression)
        files = list(self.products())
        for name in files:
            if name.startswith("catalog."):
                catalog.save(out / name)
        if injections is not None:
            injections.save(out / "injections.ecsv")
            files.append("injections.ecsv")
        images = {"SCIENCE": science.image, "TEMPLATE": matched.image, "DIFFERENCE": difference.image}
        write_hdus(out / "stamps.fits", _stamps(images, catalog, self.config.stamp_half, difference))
        pictures = {
            "SCIENCE": science.image,
            "MATCHED": matched.image,
            "DIFFERENCE": difference.image,
            "SCORE": score.image,
        }
        write_hdus(out / "preview.fits", [*_previews(pictures), table_hdu(kernel.stamps, "STAMPS")])
        ctx.metric("candidates", len(catalog))
        for fact, value in observed(difference).items():
            ctx.metric(fact, value)
        return {"files": [out / f for f in files]}


class WriteImageConfig(Packing):
    """Where and how it is written."""

    file: str = Field(
        "image.fits", pattern=r"^[A-Za-z0-9][\w.+-]*\.fits$", description="Name of the file in the folder of the item."
    )


class WriteImage(Stage[WriteImageConfig]):
    """Any image of a workflow into the folder of the item: SCI, VAR, DQ, PSF."""

    name = "write_image"
    version = 2
    inputs = {"image": Port(Exposure, "what is written")}
    outputs = {"file": Port(list, "its path, in a list")}

    def products(self) -> tuple[str, ...]:
        return (self.config.file,)

    def run(self, ctx: Context, *, image: Exposure) -> dict[str, Any]:  # type: ignore[override]
        if ctx.out is None:
            raise ConfigError("write_image: no folder to write to; use it in a workflow, or `skydelta.write`")
        ctx.out.mkdir(parents=True, exist_ok=True)
        write_hdus(ctx.out / self.config.file, exposure_hdus(image), self.config.compression)
        return {"file": [ctx.out / self.config.file]}


def _stamps(images: dict[str, Array], catalog: Catalog, half: int, difference: Exposure) -> list[Any]:
    """Cubes (n, 2 half + 1, 2 half + 1) around the rows of a catalogue, NaN outside the image, their ids and places."""
    x, y = (np.rint(np.asarray(catalog[c].value, float)).astype(int) for c in ("x", "y"))
    hdus = []
    for name, plane in images.items():
        cube = to_host(cutouts(plane, x, y, half, np.nan))
        hdus.append(fits.ImageHDU(cube if len(x) else None, name=name))
    ids = fits.BinTableHDU.from_columns(
        [
            fits.Column("id", "K", array=np.asarray(catalog["id"])),
            fits.Column("x0", "K", unit="pix", array=x - half),
            fits.Column("y0", "K", unit="pix", array=y - half),
            *(fits.Column(name, "D", unit="deg", array=values) for name, values in _local(difference, x, y).items()),
        ],
        name="STAMPS",
    )
    return [*hdus, ids]


def _local(image: Exposure, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Tangent-plane WCS of each stamp at its middle pixel, degrees: CRVAL and the CD matrix; NaN without a sky."""
    names = ("CRVAL1", "CRVAL2", "CD1_1", "CD1_2", "CD2_1", "CD2_2")
    out = {name: np.full(len(x), np.nan) for name in names}
    if image.wcs is None or not len(x):
        return out
    try:
        ra, dec = icrs_positions(image.wcs, x, y)
        ends = [icrs_positions(image.wcs, x + dx, y + dy) for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1))]
    except InputError:  # axes that are no sky: the catalogue has no positions either
        return out
    out["CRVAL1"], out["CRVAL2"] = ra, dec
    for j, (plus, minus) in enumerate((ends[:2], ends[2:]), 1):
        turn = (plus[0] - minus[0] + 180) % 360 - 180
        out[f"CD1_{j}"] = turn * np.cos(np.radians(dec)) / 2
        out[f"CD2_{j}"] = (plus[1] - minus[1]) / 2
    return out


def _previews(planes: dict[str, Array]) -> list[fits.ImageHDU]:
    """Means of square blocks (NaN pixels left out) with the block's side in card BLOCK."""
    out = []
    for name, plane in planes.items():
        xp = backend_of(plane).xp
        block = max(1, -(-max(plane.shape) // PREVIEW))
        ny, nx = (-(-n // block) for n in plane.shape)
        padded = xp.full((ny * block, nx * block), np.nan, np.float32)
        padded[: plane.shape[0], : plane.shape[1]] = plane
        ok = xp.isfinite(padded)
        count = ok.reshape(ny, block, nx, block).sum(axis=(1, 3))
        total = xp.where(ok, padded, np.float32(0)).reshape(ny, block, nx, block).sum(axis=(1, 3))
        mean = xp.where(count > 0, total / xp.maximum(count, 1), np.float32(np.nan)).astype(np.float32)
        hdu = fits.ImageHDU(to_host(mean), name=name)
        hdu.header["BLOCK"] = (block, "side of the averaged blocks, px")
        out.append(hdu)
    return out
