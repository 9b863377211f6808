# SPDX-License-Identifier: BSD-3-Clause
"""What the commands that run workflows share: options, the plan, the result."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skydelta.errors import ExitCode, SkydeltaError
from skydelta.pipeline.console import follower, options, print_table
from skydelta.pipeline.events import log_as_json

if TYPE_CHECKING:
    from skydelta.pipeline.runner import RunResult

EXECUTORS = ("serial", "threads", "dask", "mpi")

ITEMS = 40
"""At most this many items of a plan are listed."""

INPUT_OPTIONS = options(
    click.option("--science", metavar="FILES", help="Science image, or a pattern such as 'sci_*.fits'."),
    click.option("--reference", metavar="FILES", help="Reference, or a pattern, or a mosaic (--pair-by sky)."),
    click.option(
        "--pair-by",
        metavar="KEYS",
        help="What a science image and its reference share: header keys such as FILTER,CCDNUM; sky: the reference "
        "that covers it, cut out of a mosaic; or both.",
    ),
)


INJECT_OPTION = click.option(
    "--inject",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run a second time with N fake sources: completeness, flux bias and limiting magnitude.",
)


def inputs_of(science: str | None, reference: str | None, pair_by: str | None) -> dict[str, str | Path] | None:
    """Inputs given on the command line; they replace those of the workflow."""
    given = {"science": science, "reference": reference, "pair_by": pair_by}
    return {name: value for name, value in given.items() if value is not None} or None


RUN_OPTIONS = options(
    click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="Folder of the run."),
    click.option("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N."),
    click.option("--executor", type=click.Choice(EXECUTORS), help="How items are spread; else as the workflow says."),
    click.option("--workers", type=click.IntRange(1), metavar="N", help="Threads, or Dask workers of its own."),
    click.option("--dask-address", metavar="ADDRESS", help="Scheduler of a Dask cluster that runs already."),
    click.option("--set", "set_", multiple=True, metavar="PATH=VALUE", help="Override, e.g. steps.match.order=3."),
    click.option("--overwrite", is_flag=True, help="Run every item again, whatever the folder holds."),
    click.option("--dry-run", is_flag=True, help="Show the plan, its memory and problems, and stop."),
    click.option("--no-progress", is_flag=True, help="No progress bar."),
    click.option(
        "--prometheus",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Keep the state of the run in a text file for Prometheus.",
    ),
    click.option(
        "--log-json", is_flag=True, help="Events and warnings on standard error, a JSON object a line; no progress bar."
    ),
)


def run_workflow(
    source: str,
    *,
    inputs: dict[str, str | Path] | None,
    out: Path,
    device: str | None,
    set_: tuple[str, ...],
    overwrite: bool,
    dry_run: bool,
    progress: bool,
    log_json: bool,
    prometheus: Path | None = None,
    id_: str | None = None,
    limit: int | None = None,
    executor: str | None = None,
    workers: int | None = None,
    dask_address: str | None = None,
) -> None:
    """Run a workflow, or show its plan; ends the process with the exit code of the run."""
    file = None if prometheus is None else str(prometheus.absolute())
    options = {"executor": executor, "workers": workers, "dask_address": dask_address, "prometheus": file}

    def lead() -> int:
        from skydelta.pipeline.receipts import RunFolder
        from skydelta.pipeline.workflow import load

        flow = load(source, set_=set_, inputs=inputs, device=device, options=options)
        from skydelta.pipeline import runner

        if dry_run:
            show_plan(flow, id_, lambda: runner.check_outputs(flow, RunFolder(out), overwrite))
            return int(ExitCode.OK)
        if log_json:
            log_as_json()
        shown = "json" if log_json else progress and sys.stderr.isatty()
        try:
            result = runner.run(flow, out=out, overwrite=overwrite, id_=id_, progress=shown, limit=limit)
        except KeyboardInterrupt:
            again = "the same command without --overwrite" if overwrite else "the same command"
            raise KeyboardInterrupt(f"{again} goes on where it stopped") from None
        if not follower():
            _show_result(result, errors=not log_json)
        return int(result.exit_code)

    if executor == "mpi":  # before anything is read: rank 0 does that, and alone says what is wrong
        from skydelta.pipeline.executors.mpi import together

        sys.exit(together(lead))
    sys.exit(lead())


def show_plan(flow: Any, id_: str | None, check_outputs: Callable[[], None] = lambda: None) -> None:
    """Print the plan of a workflow; problems, also those that ``check_outputs`` raises, end the process."""
    from skydelta.pipeline.plan import plan

    p = plan(flow, id_)
    for title, bound in ((f"plan of {flow.name}", p.bound), ("second pass, when the objects are known", p.second)):
        if bound:
            rows = [
                [
                    b.step.id,
                    b.step.stage.name,
                    ", ".join(dict.fromkeys(b.inputs.values())),
                    ", ".join(b.outputs.values()),
                ]
                for b in bound
            ]
            print_table(title, ["step", "stage", "takes", "gives"], rows)
    if len(p.items) > 1:
        _show_items(p)
    click.echo(f"items: {len(p.items)} ({', '.join(i.id for i in p.items[:5])}{', ...' if len(p.items) > 5 else ''})")
    click.echo(f"device: {p.backend.name} ({p.why})")
    where = f" on {', '.join(p.devices)}" if p.devices else ""
    click.echo(f"executor: {flow.run.executor}, {p.workers or 'as many as there are'} in flight{where}")
    click.echo(f"read: {p.bytes_read / 1e6:.1f} MB; peak memory of an item: about {p.memory / 1e6:.0f} MB")
    if p.outputs:
        click.echo(f"writes: {', '.join(p.outputs)} and receipt.json in items/ID of each")
    click.echo(f"beside them: {', '.join(p.run_outputs)}")
    problems, code = list(p.problems), ExitCode.NOTHING_USABLE
    try:
        check_outputs()
    except SkydeltaError as e:
        code = code if problems else e.exit_code
        problems.append(str(e))
    for problem in problems:
        click.echo(f"problem: {problem}", err=True)
    if problems:
        sys.exit(int(code))


def _show_items(p: Any) -> None:
    """Print the items of a plan, what each reads and needs."""
    names = list(p.items[0].inputs)
    rows = []
    for item in p.items[:ITEMS]:
        need = p.needs[item.id]
        files = [Path(item.inputs[n]).name for n in names]
        rows.append([item.id, *files, f"{need.bytes_read / 1e6:.1f}", f"{need.memory / 1e6:.0f}"])
    if len(p.items) > ITEMS:
        rows.append([f"{len(p.items) - ITEMS} more", *["" for _ in names], "", ""])
    print_table("items", ["id", *names, "MB read", "peak MB"], rows)


def _show_result(result: RunResult, errors: bool) -> None:
    """Print what became of the items; what failed on standard error too, unless events have said so there."""
    from skydelta.pipeline.receipts import flag_lines, urgent

    for r in result.receipts:
        metrics: dict[str, Any] = {}
        for step in r["steps"]:
            metrics |= step["metrics"]
        rows = [[s["id"], f"{s['seconds']:.2f}", f"{s['cpu_seconds']:.2f}"] for s in r["steps"]]
        rows.append(["all", f"{r['seconds']:.2f}", f"{sum(s['cpu_seconds'] for s in r['steps']):.2f}"])
        if len(result.receipts) == 1:
            print_table(f"{r['id']} on {r['device']['used']}", ["step", "seconds", "CPU seconds"], rows)
        found = metrics.get("candidates")
        status = r["status"] + (" already" if r.get("resumed") else "")
        weak = metrics.get("candidates_below_noise")
        doubt = f", {weak} of them below the threshold in the noise that is there" if weak else ""
        click.echo(f"{r['id']}: {status}" + ("" if found is None else f", {found} candidates{doubt}"))
        for name, text in flag_lines((s["id"], s["flags"]) for s in r["steps"]):
            line = f"  flag {name}: {text}"
            click.echo(click.style(line, bold=True) if urgent(name) else line)
        if errors and r.get("error"):
            click.echo(f"skydelta: {r['error']['message']}", err=True)
    failed = sum(r["status"] == "failed" for r in result.receipts)
    if len(result.receipts) > 1:
        click.echo(f"{len(result.receipts) - failed} done, {failed} failed")
    if result.second:
        bad = [o.receipt(result.out) for o in result.second if o.status == "failed"]
        click.echo(f"second pass: {len(result.second) - len(bad)} done, {len(bad)} failed")
        for r in bad if errors else []:
            click.echo(f"skydelta: second pass of {r['id']}: {r['error']['message']}", err=True)
    click.echo(f"report: {result.report}")
