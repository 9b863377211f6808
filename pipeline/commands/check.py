# SPDX-License-Identifier: BSD-3-Clause
"""``skydelta check``: a workflow and its inputs, nothing run."""

from __future__ import annotations

import click

from skydelta.pipeline.commands.running import show_plan
from skydelta.pipeline.console import reporting


@click.command()
@click.argument("workflow")
@click.option("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N.")
@click.option("--set", "set_", multiple=True, metavar="PATH=VALUE", help="Override, e.g. steps.match.order=3.")
@reporting
def check(workflow: str, device: str | None, set_: tuple[str, ...]) -> None:
    """Check WORKFLOW and all its inputs without running anything."""
    from skydelta.pipeline.workflow import load

    show_plan(load(workflow, set_=set_, device=device), None)
    click.echo("no problems found")
