# SPDX-License-Identifier: BSD-3-Clause
"""``skydelta doctor``: what this machine would use."""

from __future__ import annotations

import sys

import click

from skydelta.errors import ExitCode
from skydelta.pipeline.console import print_table, reporting


@click.command()
@click.option("--warm", is_flag=True, help="Compile all kernels once, so that no timed job has to.")
@click.option("--device", default="auto", show_default=True, metavar="DEVICE", help="Device to judge and to warm.")
@reporting
def doctor(warm: bool, device: str) -> None:
    """Say what would be used on this machine, and why."""
    from skydelta.pipeline.doctor import examine
    from skydelta.pipeline.warm import warm_up

    findings = examine(device)
    print_table("doctor", ["", "found", "verdict"], [[f.name, f.value, f.verdict] for f in findings])
    if warm:
        click.echo("compiling all kernels once (a few minutes) ...")
        click.echo(f"done in {warm_up(device):.0f} s")
    if any(f.refused for f in findings):
        sys.exit(int(ExitCode.DEVICE))
