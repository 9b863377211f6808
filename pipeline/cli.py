# SPDX-License-Identifier: BSD-3-Clause
"""The command line. Heavy modules are imported by the command that needs them."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skydelta import __version__
from skydelta.errors import ExitCode, SkydeltaError

if TYPE_CHECKING:
    from skydelta.pipeline.runner import RunResult

LEVELS = ("debug", "info", "warning", "error")

PLANES = {
    "variance": "Variance plane",
    "sigma": "Standard deviation plane",
    "weight": "Inverse variance plane",
    "mask": "Mask",
    "psf": "PSF",
}


def reporting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turn our own errors into one line and their exit code, and Ctrl-C into 130."""

    @functools.wraps(command)
    def wrapped(*args: Any, **keywords: Any) -> Any:
        try:
            return command(*args, **keywords)
        except SkydeltaError as e:
            click.echo(f"skydelta: {e}", err=True)
            sys.exit(int(e.exit_code))
        except KeyboardInterrupt:
            click.echo("skydelta: interrupted; the same command goes on where it stopped", err=True)
            sys.exit(int(ExitCode.INTERRUPTED))

    return wrapped


def options(*decorators: Callable[..., Any]) -> Callable[..., Any]:
    def apply(command: Callable[..., Any]) -> Callable[..., Any]:
        for d in reversed(decorators):
            command = d(command)
        return command

    return apply


RUN_OPTIONS = options(
    click.option(
        "-o", "--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder of the run."
    ),
    click.option("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N."),
    click.option("--set", "set_", multiple=True, metavar="PATH=VALUE", help="Override, e.g. steps.match.order=3."),
    click.option("--overwrite", is_flag=True, help="Run every item again, whatever the folder holds."),
    click.option("--dry-run", is_flag=True, help="Show the plan, its memory and problems, and stop."),
    click.option("--no-progress", is_flag=True, help="No progress bar."),
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="skydelta")
@click.option("--log-level", type=click.Choice(LEVELS), default="warning", show_default=True, help="What is logged.")
def cli(log_level: str) -> None:
    """Image differencing for astronomy: two FITS images in, a difference image and a catalogue out."""
    logging.basicConfig(level=log_level.upper(), format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)


@cli.command()
@click.argument("science")
@click.argument("reference")
@RUN_OPTIONS
@click.option("--id", "id_", metavar="NAME", help="Name of the item; else the science file's.")
@click.option("--aligned", is_flag=True, help="The images are on one pixel grid: use no WCS to align them.")
@options(
    *(
        click.option(
            f"--{role}-{plane}", metavar="FILE[EXT]", help=f"{words} of the {role} image, from a file of its own."
        )
        for role in ("science", "reference")
        for plane, words in PLANES.items()
    ),
    *(
        click.option(f"--{role}-image", metavar="HDU", help=f"Image HDU of the {role} file, by name or number.")
        for role in ("science", "reference")
    ),
)
@reporting
def difference(
    science: str,
    reference: str,
    out: Path,
    device: str | None,
    set_: tuple[str, ...],
    overwrite: bool,
    dry_run: bool,
    no_progress: bool,
    id_: str | None,
    aligned: bool,
    **planes: str | None,
) -> None:
    """Subtract REFERENCE from SCIENCE (FILE or FILE[EXT]) and catalogue what changed.

    The same as `skydelta run` with the shipped workflow `difference`.
    """
    settings = []
    for option, value in planes.items():
        if value is not None:
            role, plane = option.split("_", 1)
            text = value if plane == "image" else str(Path(value).absolute())
            settings.append(f"steps.{role}.{plane}={_toml(text, number=plane == 'image')}")
    if aligned:
        settings.append("steps.align.aligned=true")
    _run(
        "difference",
        inputs={"science": science, "reference": reference},
        out=out,
        device=device,
        set_=(*settings, *set_),
        overwrite=overwrite,
        dry_run=dry_run,
        progress=not no_progress,
        id_=id_,
    )


@cli.command()
@click.argument("workflow")
@RUN_OPTIONS
@click.option("--limit", type=click.IntRange(1), help="Only the first items.")
@reporting
def run(
    workflow: str,
    out: Path,
    device: str | None,
    set_: tuple[str, ...],
    overwrite: bool,
    dry_run: bool,
    no_progress: bool,
    limit: int | None,
) -> None:
    """Run WORKFLOW, a TOML file or the name of a shipped one. Items that are done already are not run again."""
    _run(
        workflow,
        inputs=None,
        out=out,
        device=device,
        set_=set_,
        overwrite=overwrite,
        dry_run=dry_run,
        progress=not no_progress,
        limit=limit,
    )


@cli.command()
@click.argument("workflow")
@click.option("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N.")
@click.option("--set", "set_", multiple=True, metavar="PATH=VALUE", help="Override, e.g. steps.match.order=3.")
@reporting
def check(workflow: str, device: str | None, set_: tuple[str, ...]) -> None:
    """Check WORKFLOW and all its inputs without running anything."""
    from skydelta.pipeline.workflow import load

    _show_plan(load(workflow, set_=set_, device=device), None)
    click.echo("no problems found")


@cli.command()
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
        _print_table(path, table.colnames, [[str(v) for v in row] for row in table])
    if failed is not None:
        sys.exit(int(failed.exit_code))


@cli.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("out", type=click.Path(file_okay=False, path_type=Path), required=False)
@click.option("--list", "list_", is_flag=True, help="Show all settings and stop.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier pair in OUT.")
@click.pass_context
@reporting
def simulate(ctx: click.Context, out: Path | None, list_: bool, overwrite: bool) -> None:
    """Write a simulated science/reference pair with known truth into OUT.

    Every setting of the scene is an option: --size 1024 --seed 2 --same-grid; --list shows them all.
    """
    from skydelta.errors import ConfigError
    from skydelta.pipeline.simulate import SimulationConfig
    from skydelta.pipeline.simulate import simulate as make

    if list_:
        _print_config("simulate", SimulationConfig)
        return
    if out is None:
        raise ConfigError("simulate: OUT is missing, the folder to write to")
    truth = make(out, overwrite, **_settings(ctx.args))
    click.echo(f"{truth.science}\n{truth.reference}\n{truth.table}")


@cli.command()
@click.argument("name", required=False)
@reporting
def stages(name: str | None) -> None:
    """List the stages, or show the configuration and ports of one."""
    from skydelta.stages.registry import get, names

    if name is None:
        rows = [[n, (get(n).__doc__ or "").strip().splitlines()[0]] for n in names()]
        _print_table("stages", ["stage", "what it does"], rows)
        return
    stage = get(name)
    ports = [
        [side, port, p.type.__name__ + (" (optional)" if p.optional else ""), p.doc]
        for side, table in (("in", stage.inputs), ("out", stage.outputs))
        for port, p in table.items()
    ]
    _print_table(f"{name}: ports", ["", "port", "type", "what"], ports)
    _print_config(name, stage.config_class())


@cli.command()
@click.option("--warm", is_flag=True, help="Compile all kernels once, so that no timed job has to.")
@click.option("--device", default="auto", show_default=True, metavar="DEVICE", help="Device to judge and to warm.")
@reporting
def doctor(warm: bool, device: str) -> None:
    """Say what would be used on this machine, and why."""
    from skydelta.pipeline.doctor import examine, warm_up

    findings = examine(device)
    _print_table("doctor", ["", "found", "verdict"], [[f.name, f.value, f.verdict] for f in findings])
    if warm:
        click.echo("compiling all kernels once (a few minutes) ...")
        click.echo(f"done in {warm_up(device):.0f} s")
    if any(f.refused for f in findings):
        sys.exit(int(ExitCode.DEVICE))


@cli.command()
@click.argument("out", type=click.Path(exists=True, file_okay=False, path_type=Path))
@reporting
def report(out: Path) -> None:
    """Write report.html again from the receipts and files of the run in OUT."""
    from skydelta.pipeline.report import write_report

    click.echo(write_report(out))


@cli.group()
def workflow() -> None:
    """Shipped workflows, and the schema of workflow files."""


@workflow.command("list")
@reporting
def list_workflows() -> None:
    """List the shipped workflows."""
    from skydelta.pipeline.workflow import shipped

    _print_table("workflows", ["name", "what it does"], [[k, v] for k, v in shipped().items()])


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


def _run(
    source: str,
    *,
    inputs: dict[str, str | Path] | None,
    out: Path,
    device: str | None,
    set_: tuple[str, ...],
    overwrite: bool,
    dry_run: bool,
    progress: bool,
    id_: str | None = None,
    limit: int | None = None,
) -> None:
    from skydelta.pipeline.workflow import load

    flow = load(source, set_=set_, inputs=inputs, device=device)
    if dry_run:
        _show_plan(flow, id_)
        return
    from skydelta.pipeline import runner

    result = runner.run(
        flow, out=out, overwrite=overwrite, id_=id_, progress=progress and sys.stderr.isatty(), limit=limit
    )
    _show_result(result)
    sys.exit(int(result.exit_code))


def _show_plan(flow: Any, id_: str | None) -> None:
    from skydelta.pipeline.plan import plan

    p = plan(flow, id_)
    _print_table(
        f"plan of {flow.name}",
        ["step", "stage", "takes", "gives"],
        [
            [b.step.id, b.step.stage.name, ", ".join(dict.fromkeys(b.inputs.values())), ", ".join(b.outputs.values())]
            for b in p.bound
        ],
    )
    click.echo(f"items: {len(p.items)} ({', '.join(i.id for i in p.items[:5])}{', ...' if len(p.items) > 5 else ''})")
    click.echo(f"device: {p.backend.name} ({p.why})")
    click.echo(f"read: {p.bytes_read / 1e6:.1f} MB; peak memory of an item: about {p.memory / 1e6:.0f} MB")
    for problem in p.problems:
        click.echo(f"problem: {problem}", err=True)
    if p.problems:
        sys.exit(int(ExitCode.NOTHING_USABLE))


def _show_result(result: RunResult) -> None:
    for r in result.receipts:
        metrics: dict[str, Any] = {}
        for step in r["steps"]:
            metrics |= step["metrics"]
        rows = [[s["id"], f"{s['seconds']:.2f}", f"{s['cpu_seconds']:.2f}"] for s in r["steps"]]
        rows.append(["all", f"{r['seconds']:.2f}", f"{sum(s['cpu_seconds'] for s in r['steps']):.2f}"])
        if len(result.receipts) == 1:
            _print_table(f"{r['id']} on {r['device']['used']}", ["step", "seconds", "CPU seconds"], rows)
        found = metrics.get("candidates")
        status = r["status"] + (" already" if r.get("resumed") else "")
        click.echo(f"{r['id']}: {status}" + ("" if found is None else f", {found} candidates"))
        for name, text in {k: v for s in r["steps"] for k, v in s["flags"].items()}.items():
            click.echo(f"  flag {name}: {text}")
        if r.get("error"):
            click.echo(f"skydelta: {r['error']['message']}", err=True)
    failed = sum(r["status"] == "failed" for r in result.receipts)
    if len(result.receipts) > 1:
        click.echo(f"{len(result.receipts) - failed} done, {failed} failed")
    click.echo(f"report: {result.report}")


def _print_table(title: str, heads: list[str], rows: list[list[str]]) -> None:
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


def _print_config(name: str, model: Any) -> None:
    from skydelta.stages.base import describe

    rows = [[f.name, f.type, f.default, f.description] for f in describe(model)]
    _print_table(f"{name}: configuration", ["key", "type", "default", "meaning"], rows)


def _settings(words: list[str]) -> dict[str, Any]:
    """``--key value`` pairs as keywords; a key without a value is true, values are TOML or plain words."""
    import tomllib

    from skydelta.errors import ConfigError

    out: dict[str, Any] = {}
    i = 0
    while i < len(words):
        if not words[i].startswith("--"):
            raise ConfigError(f"simulate: {words[i]!r}: --key value is needed")
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


def _toml(text: str, number: bool) -> str:
    """A value for --set: a number stays one, anything else is quoted."""
    import json

    return text if number and text.isdigit() else json.dumps(text, ensure_ascii=False)


def main() -> None:
    """Entry point of the console script."""
    cli(prog_name="skydelta")
