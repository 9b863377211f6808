# SPDX-License-Identifier: BSD-3-Clause
"""``skydelta difference``: one pair through the shipped workflow."""

from __future__ import annotations

from pathlib import Path

import click

from skydelta.pipeline.commands.running import INJECT_OPTION, RUN_OPTIONS, run_workflow
from skydelta.pipeline.console import options, reporting

PLANES = {
    "variance": "Variance plane",
    "sigma": "Standard deviation plane",
    "weight": "Inverse variance plane",
    "mask": "Mask",
    "psf": "PSF",
}


@click.command()
@click.argument("science")
@click.argument("reference")
@RUN_OPTIONS
@click.option("--id", "id_", metavar="NAME", help="Name of the item; else the science file's.")
@click.option(
    "--kernel",
    metavar="FILE[EXT]",
    help="Use the matching kernel of an earlier difference.fits, or a saved one, instead of fitting one.",
)
@INJECT_OPTION
@click.option("--aligned", is_flag=True, help="The images are on one pixel grid: use no WCS to align them.")
@options(
    *(
        click.option(
            f"--{role}-{plane}", metavar="FILE[EXT]", help=f"{words} of the {role} image, from a file of its own."
        )
        for role in ("science", "reference")
        for plane, words in PLANES.items()
    ),
    *(
        click.option(f"--{role}-image", metavar="HDU", help=f"Image HDU of the {role} file, by name or number.")
        for role in ("science", "reference")
    ),
)
@reporting
def difference(
    science: str,
    reference: str,
    out: Path,
    device: str | None,
    executor: str | None,
    workers: int | None,
    dask_address: str | None,
    set_: tuple[str, ...],
    overwrite: bool,
    dry_run: bool,
    no_progress: bool,
    prometheus: Path | None,
    log_json: bool,
    id_: str | None,
    kernel: str | None,
    inject: int | None,
    aligned: bool,
    **planes: str | None,
) -> None:
    """Subtract REFERENCE from SCIENCE (FILE or FILE[EXT]) and catalogue what changed.

    The same as `skydelta run` with the shipped workflow `difference`.
    """
    settings = []
    for option, value in planes.items():
        if value is not None:
            role, plane = option.split("_", 1)
            text = value if plane == "image" else str(Path(value).absolute())
            settings.append(f"steps.{role}.{plane}={_toml(text, number=plane == 'image')}")
    if aligned:
        settings.append("steps.align.aligned=true")
    if kernel is not None:
        path = _toml(str(Path(kernel).absolute()), number=False)
        settings += ["steps.load_kernel.enabled=true", f"steps.load_kernel.file={path}"]
    if inject is not None:
        settings.append(f"run.inject={inject}")
    run_workflow(
        "difference",
        inputs={"science": science, "reference": reference},
        out=out,
        device=device,
        executor=executor,
        workers=workers,
        dask_address=dask_address,
        set_=(*settings, *set_),
        overwrite=overwrite,
        dry_run=dry_run,
        progress=not no_progress,
        prometheus=prometheus,
        log_json=log_json,
        id_=id_,
    )


def _toml(text: str, number: bool) -> str:
    """A value for --set: a number stays one, anything else is quoted."""
    import json

    return text if number and text.isdigit() else json.dumps(text, ensure_ascii=False)
