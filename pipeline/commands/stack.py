# SPDX-License-Identifier: BSD-3-Clause
"""``skydelta stack``: many exposures as one image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from skydelta.pipeline.commands.align import METHODS as RESAMPLING
from skydelta.pipeline.console import check_outputs, print_table, reporting

METHODS = ("mean", "weighted", "median", "clipped")


@click.command()
@click.argument("files", nargs=-1, metavar="FILES...")
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="File to write.")
@click.option(
    "--onto",
    metavar="TARGET",
    help="mosaic, north-up, or a FITS image or text file of cards whose grid is wanted.  [default: mosaic]",
)
@click.option("--pixel-scale", type=float, metavar="ARCSEC", help="Of mosaic and north-up; else the images' smallest.")
@click.option("--method", type=click.Choice(METHODS), help="How the images are combined.  [default: clipped]")
@click.option("--resampling", type=click.Choice(RESAMPLING), help="Interpolation of align.  [default: bspline3]")
@click.option("--pixfrac", type=float, metavar="SIDE", help="Of drizzle: side of a drop, in sides of a pixel.")
@click.option("--weights", type=click.Choice(("exposure", "pixel", "equal")), help="Of weighted and clipped.")
@click.option("--scaling", type=click.Choice(("auto", "header", "stars", "none")), help="Where flux scales come from.")
@click.option("--background", type=click.Choice(("none", "offset", "plane")), help="How skies are matched.")
@click.option("--sigma", type=float, help="Clipping limit, standard deviations.")
@click.option("--aligned", is_flag=True, help="The images are on one pixel grid: use no WCS.")
@click.option("--skip-bad", is_flag=True, help="Go on without images that cannot be used, and name them.")
@click.option("--budget", type=click.IntRange(1), metavar="MB", help="Memory for images that wait.")
@click.option("--scratch", type=click.Path(), help="Folder for what exceeds the budget.")
@click.option("--device", default="auto", show_default=True, metavar="DEVICE", help="auto, cpu, cuda or cuda:N.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier file.")
@reporting
def stack(
    files: tuple[str, ...],
    out: Path,
    onto: str | None,
    skip_bad: bool,
    budget: int | None,
    device: str,
    overwrite: bool,
    **settings: Any,
) -> None:
    """Co-add FILES (FILE or FILE[EXT]): aligned, brought to one flux scale and one sky, combined.

    OUT holds SCI, VAR, DQ, NEXP (exposures of each pixel), SUMW (sum of weights), NOISECOR (how much noisier sums over
    pixels are than VAR says, in tiles) and the table INPUTS.
    """
    from skydelta.io.fits.writer import write_hdus
    from skydelta.kernels.backend import resolve
    from skydelta.stages.base import Context
    from skydelta.stages.stack import Stack
    from skydelta.stages.stack.write import stack_hdus

    given = {k: v for k, v in settings.items() if v is not None}
    if budget is not None:
        given["budget"] = budget << 20
    stage = Stack(**given, on_error="skip" if skip_bad else "raise")
    check_outputs(out, overwrite=overwrite)
    ctx = Context(resolve(device), id=out.name)
    result = stage.execute(ctx, {"images": list(files), "onto": onto})
    stacked, table = result["stacked"], result["table"]
    write_hdus(out, stack_hdus(stacked, result["coverage"], result["weight"], result["correlation"], table))
    shown = ("id", "scale", "scale_from", "level", "weight", "resampling", "clipped")
    rows = [[f"{v:.5g}" if isinstance(v, float) else str(v) for v in row] for row in table[shown].iterrows()]
    print_table(f"{out.name}: {stacked.notes['stack']}, {stacked.shape[1]} x {stacked.shape[0]} px", list(shown), rows)
    for name, text in ctx.flags.items():
        click.echo(f"  flag {name}: {text}")
