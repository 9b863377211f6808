# SPDX-License-Identifier: BSD-3-Clause
"""``skydelta detect``: the sources of one image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from skydelta.pipeline.commands.difference import PLANES
from skydelta.pipeline.console import check_outputs, options, reporting


@click.command()
@click.argument("image")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="Catalogue to write, by its suffix (.ecsv, .parquet, .vot, .reg), or a folder for catalog.ecsv and .parquet.",
)
@click.option("--positions", metavar="FILE", help="Measure at the x, y or ra, dec of this table instead of finding.")
@click.option("--threshold", type=float, help="Signal-to-noise of the faintest pixel of a source.")
@click.option("--contrast", type=float, help="Light of a peak over its neighbour's from which on it is a source.")
@click.option("--negative", is_flag=True, help="Find sources below the sky too.")
@click.option("--aperture", "apertures", type=float, multiple=True, metavar="R", help="Radius, px; again for more.")
@click.option(
    "--background",
    type=click.Choice(["mesh", "polynomial", "none"]),
    default="mesh",
    show_default=True,
    help="The sky.",
)
@click.option("--cell", type=int, help="Side of a mesh cell, px.")
@options(*(click.option(f"--{plane}", metavar="FILE[EXT]", help=f"{words}, from a file of its own.")
           for plane, words in PLANES.items()))  # fmt: skip
@click.option("--fwhm", type=float, help="Take a Gaussian of this FWHM, px, for the PSF.")
@click.option("--hdu", metavar="HDU", help="Image HDU, by name or number.")
@click.option("--device", default="auto", show_default=True, metavar="DEVICE", help="auto, cpu, cuda or cuda:N.")
@click.option("--overwrite", is_flag=True, help="Replace a catalogue that is there.")
@reporting
def detect(
    image: str,
    out: Path,
    positions: str | None,
    threshold: float | None,
    contrast: float | None,
    negative: bool,
    apertures: tuple[float, ...],
    background: str,
    cell: int | None,
    fwhm: float | None,
    hdu: str | None,
    device: str,
    overwrite: bool,
    **planes: str | None,
) -> None:
    """Find and measure the sources of IMAGE (FILE or FILE[EXT]).

    What the file lacks is measured: sky, variance, PSF.
    """
    from threadpoolctl import threadpool_limits

    from skydelta.errors import ConfigError
    from skydelta.io.catalog import FORMATS, Catalog
    from skydelta.io.read import read
    from skydelta.kernels.backend import resolve
    from skydelta.stages.base import Context
    from skydelta.stages.findsources import check_used, find_sources, gaussian_psf
    from skydelta.stages.sources import Sources, check_positions

    if out.suffix and out.suffix not in FORMATS and not out.is_dir():
        raise ConfigError(f"{out}: catalogues are written as {', '.join(FORMATS)}, not {out.suffix!r}")
    files = [out] if out.suffix in FORMATS else [out / "catalog.ecsv", out / "catalog.parquet"]
    wanted: dict[str, Any] = {
        "threshold": threshold,
        "contrast": contrast,
        "negative": negative or None,
        "apertures": apertures or None,
    }
    wanted = {name: value for name, value in wanted.items() if value is not None}
    check_used(wanted, positions is not None, planes["psf"] is not None, fwhm is not None)
    stage = Sources(**wanted)
    check_outputs(*files, overwrite=overwrite, folder=None if out in files else out)
    table = None if positions is None else Catalog.of_file(positions)
    if table is not None:
        check_positions(table, str(positions))
    ctx = Context(resolve(device), id="detect")
    named: dict[str, Any] = {name: path for name, path in planes.items() if path is not None}
    number = int(hdu) if hdu is not None and hdu.isdigit() else hdu
    with threadpool_limits(limits=1, user_api="blas"):
        exposure = read(image, image=number, device=device, **named)
        if fwhm is not None:
            exposure = exposure.with_(psf=gaussian_psf(fwhm, exposure.shape))
        catalog = find_sources(ctx, exposure, stage, background, cell, table)
    if out not in files:
        out.mkdir(parents=True, exist_ok=True)
    for file in files:
        catalog.save(file)
    outside = ctx.metrics.get("positions_outside", 0)
    found = f"{len(catalog)} sources" if table is None else f"{len(catalog) - outside} positions measured"
    more = f" ({outside} more outside the image)" if outside else ""
    click.echo(f"{image}: {found}{more} on {ctx.backend.name}, written to {', '.join(map(str, files))}")
    for line in exposure.notes.get("warnings", []):
        click.echo(f"  reading: {line}")
    for name, text in ctx.flags.items():
        click.echo(f"  flag {name}: {text}")
