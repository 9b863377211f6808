# SPDX-License-Identifier: BSD-3-Clause
"""``skydelta inspect``: what files hold."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from skydelta.errors import InputError, SkydeltaError
from skydelta.pipeline.console import print_table, reporting

if TYPE_CHECKING:
    from astropy.table import Table


@click.command()
@click.argument("files", nargs=-1, required=True)
@click.option("--verify", is_flag=True, help="Read everything: verify the checksums, decode every tile.")
@reporting
def inspect(files: tuple[str, ...], verify: bool) -> None:
    """Show the HDUs of FILES: sizes, compression, checksums, and what each would be read as.

    With --verify, a file in which something is wrong ends in exit code 3.
    """
    from skydelta.io.fits.reader import inspect as table_of

    failed: SkydeltaError | None = None
    for path in files:
        try:
            table = table_of(path, verify)
        except SkydeltaError as e:
            click.echo(f"skydelta: {e}", err=True)
            failed = e
            continue
        print_table(path, table.colnames, [[str(v) for v in row] for row in table])
        if not verify:
            for line in table.meta["oddities"]:
                click.echo(line)
            continue
        for line in [*_wrong(table), *table.meta["oddities"]]:
            failed = InputError(f"{path}: {line}")
            click.echo(f"skydelta: {failed}", err=True)
    if failed is not None:
        sys.exit(int(failed.exit_code))


def _wrong(table: Table) -> list[str]:
    """A line for each HDU that has a problem."""
    hdus = [f"HDU {row['index']}" + (f" ({row['name']})" if row["name"] else "") for row in table]
    return [f"{hdu}: {problem}" for hdu, problem in zip(hdus, table["problem"], strict=True) if problem]
