# SPDX-License-Identifier: BSD-3-Clause
"""``skydelta simulate``: a pair with known truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from skydelta.pipeline.console import print_config, reporting


class WithSettings(click.Command):
    """A command whose help shows the settings of the scene beside its own options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from skydelta.pipeline.simulate import SimulationConfig
        from skydelta.stages.base import describe

        super().format_options(ctx, formatter)
        rows = [
            (f"--{f.name.replace('_', '-')}", f"{f.description}  [{f.type}; default: {f.default}]")
            for f in describe(SimulationConfig)
        ]
        with formatter.section("Settings of the scene"):
            formatter.write_dl(rows)


@click.command(cls=WithSettings, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("out", type=click.Path(path_type=Path), required=False)
@click.option("--list", "list_", is_flag=True, help="Show all settings and stop.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier pair in OUT.")
@click.pass_context
@reporting
def simulate(ctx: click.Context, out: Path | None, list_: bool, overwrite: bool) -> None:
    """Write a simulated science/reference pair with known truth into OUT.

    Every setting of the scene is an option: --size 1024 --seed 2 --same-grid --sky [400,120].
    """
    from skydelta.errors import ConfigError
    from skydelta.pipeline.simulate import SimulationConfig
    from skydelta.pipeline.simulate import simulate as make

    if list_:
        print_config("simulate", SimulationConfig)
        return
    if out is None:
        raise ConfigError("simulate: OUT is missing, the folder to write to")
    truth = make(out, overwrite, **_settings(ctx.args))
    click.echo(f"{truth.science}\n{truth.reference}\n{truth.table}")


def _settings(words: list[str]) -> dict[str, Any]:
    """``--key value`` pairs as keywords; a key without a value is true, values are TOML or plain words."""
    import tomllib

    from skydelta.errors import ConfigError

    out: dict[str, Any] = {}
    i = 0
    while i < len(words):
        if not words[i].startswith("--"):
            raise ConfigError(f"simulate: {words[i]!r}: --key value is needed; OUT comes before the settings")
        key, sep, text = words[i][2:].partition("=")
        if not sep and i + 1 < len(words) and not words[i + 1].startswith("--"):
            i += 1
            text = words[i]
        try:
            out[key.replace("-", "_")] = tomllib.loads(f"v = {text or 'true'}")["v"]
        except tomllib.TOMLDecodeError:
            out[key.replace("-", "_")] = text
        i += 1
    return out
