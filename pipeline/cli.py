# SPDX-License-Identifier: BSD-3-Clause
"""The command line: its commands by name, each imported when it is called."""

from __future__ import annotations

import importlib
import logging
import sys

import click

from skydelta import __version__
from skydelta.errors import ExitCode

LEVELS = ("debug", "info", "warning", "error")

COMMANDS = (
    "difference",
    "register",
    "align",
    "detect",
    "run",
    "check",
    "inspect",
    "simulate",
    "stages",
    "doctor",
    "report",
    "workflow",
    "stack",
)
"""Each is a function of its own name in a module of `skydelta.pipeline.commands`."""


class Commands(click.Group):
    """A group whose commands are imported by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = getattr(importlib.import_module(f"skydelta.pipeline.commands.{cmd_name}"), cmd_name)
        return found

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # while the module of a command was imported; commands have their own words
            click.echo("skydelta: interrupted; nothing has begun", err=True)
            ctx.exit(int(ExitCode.INTERRUPTED))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="skydelta")
@click.option("--log-level", type=click.Choice(LEVELS), default="warning", show_default=True, help="What is logged.")
def cli(log_level: str) -> None:
    """Image differencing for astronomy: two FITS images in, a difference image and a catalogue out."""
    logging.basicConfig(level=log_level.upper(), format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)


def main() -> None:
    """What `skydelta.__main__`, the entry point of the console script, imports and calls."""
    cli(prog_name="skydelta")
