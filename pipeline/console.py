# SPDX-License-Identifier: BSD-3-Clause
"""What all commands do alike: errors as one line and an exit code, groups of options, tables."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from skydelta.errors import ConfigError, ExitCode, SkydeltaError
from skydelta.interrupt import leave_if_asked

ANEW = "no file is half written; the same command starts anew"
"""What is said when a command is interrupted that says nothing else of it."""


def reporting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turn our own errors, and those of files and memory, into one line and their exit code, and Ctrl-C into 130.

    Of MPI ranks, only one talks.
    """

    @functools.wraps(command)
    def wrapped(*args: Any, **keywords: Any) -> Any:
        try:
            return _unless_interrupted(command, *args, **keywords)
        except SkydeltaError as e:
            if not follower():
                click.echo(f"skydelta: {e}", err=True)
            _leave(int(e.exit_code))
        except MemoryError as e:
            if not follower():
                click.echo(f"skydelta: out of memory: {str(e) or 'of this machine'}", err=True)
            _leave(int(ExitCode.DEVICE))
        except OSError as e:
            if e.filename is None:
                raise  # no file's fault: a fault of ours, whose trace is wanted
            if not follower():
                click.echo(f"skydelta: {e.filename}: {e.strerror}", err=True)
            _leave(int(ExitCode.NOTHING_USABLE))
        except KeyboardInterrupt as e:
            if not follower():
                click.echo(f"skydelta: interrupted; {str(e) or ANEW}", err=True)
            _leave(int(ExitCode.INTERRUPTED))
        except SystemExit as e:
            _leave(int(e.code or 0))

    return wrapped


def _unless_interrupted(command: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Call it; what fails after Ctrl-C, an import that was cut short for one, has failed by that."""
    try:
        return command(*args, **keywords)
    except Exception:
        leave_if_asked()
        raise


def check_outputs(*files: Path, overwrite: bool, folder: Path | None = None) -> None:
    """Refuse what a command is to write, before any work begins.

    Parameters
    ----------
    *files : Path
    overwrite : bool
        Whether they may be there.
    folder : Path, optional
        Where the files will be, made if it is missing.

    Raises
    ------
    ConfigError
        A file is there already.
    InputError
        A file cannot be written.
    """
    from skydelta.io.storage import check_folder, check_writable

    if folder is not None:
        check_folder(folder)
    for file in files:
        if folder is None or folder.exists():
            check_writable(file)
        if file.exists() and not overwrite:
            raise ConfigError(f"{file}: is there already; --overwrite replaces it")


def _mpi() -> Any:
    """The MPI executor, if this process uses it."""
    return sys.modules.get("skydelta.pipeline.executors.mpi")


def follower() -> bool:
    """Whether this is an MPI rank that serves another and has nothing to say."""
    return _mpi() is not None and bool(_mpi().follower())


def _leave(code: int) -> None:
    if _mpi() is not None:
        _mpi().leave(code)
    sys.exit(code)


def options(*decorators: Callable[..., Any]) -> Callable[..., Any]:
    """Several decorators as one, in the order of the help text."""

    def apply(command: Callable[..., Any]) -> Callable[..., Any]:
        for d in reversed(decorators):
            command = d(command)
        return command

    return apply


def print_table(title: str, heads: list[str], rows: list[list[str]]) -> None:
    """Print rows of cells under their heads, as wide as the terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left")
    for head in heads:
        table.add_column(escape(head), overflow="fold")
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a file has no edge to wrap at
    console.print(table)


def print_config(name: str, model: Any) -> None:
    """Print the settings of a configuration model: key, type, default, meaning."""
    from skydelta.stages.base import describe

    rows = [[f.name, f.type, f.default, f.description] for f in describe(model)]
    print_table(f"{name}: configuration", ["key", "type", "default", "meaning"], rows)
