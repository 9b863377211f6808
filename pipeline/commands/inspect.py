# SPDX-License-Identifier: BSD-3-Clause
"""``skydelta inspect``: what files hold."""

from __future__ import annotations

import sys

import click

from skydelta.errors import SkydeltaError
from skydelta.pipeline.console import print_table, reporting


@click.command()
@click.argument("files", nargs=-1, required=True)
@reporting
def inspect(files: tuple[str, ...]) -> None:
    """Show the HDUs of FILES: sizes, compression, and what each would be read as."""
    from skydelta.io.fits.reader import inspect as table_of

    failed: SkydeltaError | None = None
    for path in files:
        try:
            table = table_of(path)
        except SkydeltaError as e:
            click.echo(f"skydelta: {e}", err=True)
            failed = e
            continue
        print_table(path, table.colnames, [[str(v) for v in row] for row in table])
    if failed is not None:
        sys.exit(int(failed.exit_code))
