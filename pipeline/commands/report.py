# SPDX-License-Identifier: BSD-3-Clause
"""``skydelta report``: the report of a run again."""

from __future__ import annotations

from pathlib import Path

import click

from skydelta.pipeline.console import reporting


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@reporting
def report(out: Path) -> None:
    """Write report.html again from the receipts and files of the run in OUT."""
    from skydelta.pipeline.report import write_report

    click.echo(write_report(out))
