# SPDX-License-Identifier: BSD-3-Clause
"""``skydelta check``: a workflow and its inputs, nothing run."""

from __future__ import annotations

import click

from skydelta.pipeline.commands.running import INPUT_OPTIONS, inputs_of, show_plan
from skydelta.pipeline.console import reporting


@click.command()
@click.argument("workflow")
@INPUT_OPTIONS
@click.option("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N.")
@click.option("--set", "set_", multiple=True, metavar="PATH=VALUE", help="Override, e.g. steps.match.order=3.")
@reporting
def check(
    workflow: str,
    science: str | None,
    reference: str | None,
    pair_by: str | None,
    device: str | None,
    set_: tuple[str, ...],
) -> None:
    """Check WORKFLOW and all its inputs without running anything."""
    from skydelta.pipeline.workflow import load

    show_plan(load(workflow, set_=set_, inputs=inputs_of(science, reference, pair_by), device=device), None)
    click.echo("no problems found")
