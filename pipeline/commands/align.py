# SPDX-License-Identifier: BSD-3-Clause
"""``skydelta align``: one image onto the grid of another image or of a header."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from skydelta.pipeline.commands.difference import PLANES
from skydelta.pipeline.console import check_outputs, options, reporting

METHODS = ("bspline3", "bspline5", "lanczos3", "lanczos4", "lanczos5", "bilinear", "nearest", "exact", "drizzle",
           "adaptive")  # fmt: skip
CONSERVE = ("auto", "flux", "brightness")


@click.command()
@click.argument("image")
@click.option("--onto", metavar="FILE[EXT]", required=True, help="Image, or text file of header cards: the grid.")
@click.option("-o", "--out", metavar="FILE", type=click.Path(path_type=Path), required=True, help="FITS file to write.")
@click.option("--method", type=click.Choice(METHODS), help="Interpolation.  [default: bspline3]")
@click.option("--pixfrac", type=float, metavar="SIDE",
              help="Of drizzle: side of a drop, in sides of a pixel of IMAGE, 0.01 to 1.  [default: 1]")  # fmt: skip
@click.option("--conserve", type=click.Choice(CONSERVE),
              help="What a change of pixel size keeps; auto: by the unit of the image.  [default: auto]")  # fmt: skip
@click.option("--tolerance", type=float, help="Largest error of a position, px.  [default: 1e-4]")
@click.option("--compress", type=click.Choice(("RICE_1", "GZIP_2")), help="Write tile-compressed images.")
@click.option("--device", default="auto", show_default=True, metavar="DEVICE", help="auto, cpu, cuda or cuda:N.")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it is there.")
@click.option("--image-hdu", metavar="HDU", help="Image HDU of IMAGE, by name or number.")
@options(
    *(
        click.option(f"--{plane}", metavar="FILE[EXT]", help=f"{words} of IMAGE, from a file of its own.")
        for plane, words in PLANES.items()
        if plane != "psf"
    )
)
@reporting
def align(
    image: str,
    onto: str,
    out: Path,
    method: str | None,
    pixfrac: float | None,
    conserve: str | None,
    tolerance: float | None,
    compress: str | None,
    device: str,
    overwrite: bool,
    image_hdu: str | None,
    **planes: str | None,
) -> None:
    """Bring IMAGE (FILE or FILE[EXT]), its variance and its mask onto the pixel grid of another.

    The file holds SCI, VAR, DQ and FOOTPRINT, the part of the interpolation kernel's weight that lay on good pixels (of
    drizzle the area of the drops over that of full cover), and NOISECOR: how much noisier sums over pixels are than VAR
    says, in tiles. A map that is a whole-pixel shift is copied. The cards
    ALMETHOD, ALMAPERR, ALCONSRV and ALCOVER say what was done.
    """
    from skydelta.errors import InputError
    from skydelta.io.fits.compressed import Compression
    from skydelta.io.fits.writer import exposure_hdus, write_hdus
    from skydelta.io.read import read
    from skydelta.kernels.backend import resolve
    from skydelta.stages.align import Align
    from skydelta.stages.align.grids import grid_of
    from skydelta.stages.base import Context

    settings: dict[str, Any] = {"method": method, "pixfrac": pixfrac, "conserve": conserve, "tolerance": tolerance}
    stage = Align(**{name: value for name, value in settings.items() if value is not None})
    check_outputs(out, overwrite=overwrite)
    context = Context(resolve(device), id="align")
    grid = grid_of(onto).exposure()
    hdu = int(image_hdu) if image_hdu is not None and image_hdu.isdigit() else image_hdu
    source = read(image, image=hdu, device=device, **planes)  # type: ignore[arg-type]
    if not bool(source.backend.xp.isfinite(source.image).any()):
        raise InputError(f"align: {image} has no pixel with a value")
    aligned, footprint = stage.resampled(context, source, grid)
    hdus = [*exposure_hdus(aligned, {"FOOTPRINT": footprint}), stage.correlation(source, grid).hdu()]
    for key in ("variance", "mask"):
        note = source.notes.get(key)
        if isinstance(note, dict) and "source" in note:
            hdus[0].header[f"AL{key[:4].upper()}"] = (str(note["source"])[:60], f"where the {key} came from")
    write_hdus(out, hdus, None if compress is None else Compression(compress))
    m = context.metrics
    click.echo(
        f"{out}: {grid.shape[1]} x {grid.shape[0]} px, {m['method']}, {m['overlap_fraction']:.1%} covered, "
        f"{m['conserved']} kept, map error {m['map_error_px']:.2g} px"
    )
