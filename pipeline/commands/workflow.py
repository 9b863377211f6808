# SPDX-License-Identifier: BSD-3-Clause
"""``skydelta workflow``: shipped workflows, and the schema of workflow files."""

from __future__ import annotations

import click

from skydelta.pipeline.console import print_table, reporting


@click.group()
def workflow() -> None:
    """Shipped workflows, and the schema of workflow files."""


@workflow.command("list")
@reporting
def list_workflows() -> None:
    """List the shipped workflows."""
    from skydelta.pipeline.workflow import shipped

    print_table("workflows", ["name", "what it does"], [[k, v] for k, v in shipped().items()])


@workflow.command("show")
@click.argument("name")
@reporting
def show_workflow(name: str) -> None:
    """Print the TOML of a shipped workflow: a file to start from."""
    from skydelta.errors import ConfigError
    from skydelta.pipeline.workflow import shipped, text_of

    if name not in shipped():
        raise ConfigError(f"workflow {name!r}: the shipped ones are {', '.join(shipped())}")
    click.echo(text_of(name), nl=False)


@workflow.command("schema")
@reporting
def schema_of_workflow() -> None:
    """Print the JSON schema of workflow files, for editors."""
    import json

    from skydelta.pipeline.workflow import schema

    click.echo(json.dumps(schema(), indent=1))
