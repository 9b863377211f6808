# SPDX-License-Identifier: BSD-3-Clause
"""``skydelta run``: the items of a workflow."""

from __future__ import annotations

from pathlib import Path

import click

from skydelta.pipeline.commands.running import INJECT_OPTION, INPUT_OPTIONS, RUN_OPTIONS, inputs_of, run_workflow
from skydelta.pipeline.console import reporting


@click.command()
@click.argument("workflow")
@INPUT_OPTIONS
@RUN_OPTIONS
@INJECT_OPTION
@click.option("--limit", type=click.IntRange(1), help="Only the first items.")
@reporting
def run(
    workflow: str,
    science: str | None,
    reference: str | None,
    pair_by: str | None,
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
    inject: int | None,
    limit: int | None,
) -> None:
    """Run WORKFLOW, a TOML file or the name of a shipped one. Items that are done already are not run again."""
    run_workflow(
        workflow,
        inputs=inputs_of(science, reference, pair_by),
        out=out,
        device=device,
        executor=executor,
        workers=workers,
        dask_address=dask_address,
        set_=(*([] if inject is None else [f"run.inject={inject}"]), *set_),
        overwrite=overwrite,
        dry_run=dry_run,
        progress=not no_progress,
        prometheus=prometheus,
        log_json=log_json,
        limit=limit,
    )
