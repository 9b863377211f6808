# SPDX-License-Identifier: BSD-3-Clause
"""``skydelta register``: an image with a WCS from its stars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from skydelta.errors import ConfigError
from skydelta.pipeline.console import check_outputs, print_table, reporting

CATALOGUES = (".ecsv", ".parquet", ".vot", ".xml", ".votable")


@click.command()
@click.argument("image")
@click.option(
    "--onto", required=True, metavar="FILE", help="Image (FILE or FILE[EXT]), or catalogue (.ecsv, .parquet, .vot)."
)
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="File to write: IMAGE with its WCS.")
@click.option(
    "--onto-out",
    type=click.Path(path_type=Path),
    help="Where the other image is written when neither has a WCS: both get a made-up plane.",
)
@click.option("--method", type=click.Choice(("auto", "stars", "phase")), help="[default: auto]")
@click.option(
    "--order", type=click.IntRange(1, 5), help="Highest order of the distortion that stars give.  [default: 5]"
)
@click.option("--epoch", type=float, help="Julian year that a catalogue is moved to; else the image's date.")
@click.option("--device", default="auto", show_default=True, metavar="DEVICE", help="auto, cpu, cuda or cuda:N.")
@click.option("--overwrite", is_flag=True, help="Replace files that are there.")
@reporting
def register(
    image: str,
    onto: str,
    out: Path,
    onto_out: Path | None,
    method: str | None,
    order: int | None,
    epoch: float | None,
    device: str,
    overwrite: bool,
) -> None:
    """Write IMAGE with a WCS that agrees star by star with another image or a catalogue.

    Neither needs a WCS; one that is there may be wrong. Without a match that can be trusted nothing is written, the
    numbers are printed and the exit code is 4.
    """
    from skydelta.io.fits.writer import write
    from skydelta.io.read import read
    from skydelta.kernels.backend import resolve
    from skydelta.stages.base import Context
    from skydelta.stages.register import Register
    from skydelta.stages.register.sources import read_catalog

    settings: dict[str, Any] = {"method": method, "order": order, "epoch": epoch}
    stage = Register(**{name: value for name, value in settings.items() if value is not None})
    stage.check_inputs(["catalog" if Path(onto).suffix in CATALOGUES else "onto"])
    check_outputs(*(p for p in (out, onto_out) if p is not None), overwrite=overwrite)
    ctx = Context(resolve(device), id=Path(image).name)
    first = read(image, device=device)
    given: dict[str, Any] = {"image": first}
    if Path(onto).suffix in CATALOGUES:
        given["catalog"] = read_catalog(onto)
    else:
        given["onto"] = read(onto, device=device)
        if given["onto"].wcs is None and onto_out is None:
            raise ConfigError(
                f"register: {onto} has no WCS; --onto-out FILE is needed, so that both get the same plane"
            )
    try:
        done = stage.execute(ctx, given)
    finally:
        _show(ctx)
    write(done["registered"], out)
    click.echo(str(out))
    if onto_out is not None and done["onto"] is not None:
        write(done["onto"], onto_out)
        click.echo(str(onto_out))


def _show(ctx: Any) -> None:
    """The numbers of a registration, also of one that failed."""
    if ctx.metrics:
        print_table(f"register {ctx.id}", ["", "value"], [[k, _text(v)] for k, v in ctx.metrics.items()])
    for name, text in ctx.flags.items():
        click.echo(f"flag {name}: {text}")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_text(v) for v in value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
