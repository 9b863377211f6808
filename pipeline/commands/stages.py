# SPDX-License-Identifier: BSD-3-Clause
"""``skydelta stages``: the stages and their settings."""

from __future__ import annotations

import click

from skydelta.pipeline.console import print_config, print_table, reporting


@click.command()
@click.argument("name", required=False)
@reporting
def stages(name: str | None) -> None:
    """List the stages, or show the configuration and ports of one."""
    from skydelta.stages.registry import get, names

    if name is None:
        rows = [[n, (get(n).__doc__ or "").strip().splitlines()[0]] for n in names()]
        print_table("stages", ["stage", "what it does"], rows)
        return
    stage = get(name)
    ports = [
        [side, port, p.type.__name__ + (" (optional)" if p.optional else ""), p.doc]
        for side, table in (("in", stage.inputs), ("out", stage.outputs))
        for port, p in table.items()
    ]
    print_table(f"{name}: ports", ["", "port", "type", "what"], ports)
    print_config(name, stage.config_class())
