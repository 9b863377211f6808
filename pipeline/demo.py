# SPDX-License-Identifier: BSD-3-Clause
"""``python -m skydelta.pipeline.demo``: a simulated pair through the whole job, judged against its truth."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from astropy.io import fits
from astropy.table import QTable
from rich.console import Console
from rich.table import Table

from skydelta.errors import SkydeltaError
from skydelta.io.catalog import Catalog
from skydelta.kernels.backend import resolve
from skydelta.pipeline.reportitem import SUSPECT
from skydelta.pipeline.runner import run
from skydelta.pipeline.simulate import simulate
from skydelta.pipeline.warm import warm_up

FOLDER = Path("demo-output")

SNR_COUNTED, SNR_REQUIRED, SHARE_REQUIRED = 5.0, 6.0, 0.8
"""Changes above the first are counted; of those above the second this share must be found."""

REACH = {"transient": 3.0, "dipole": 6.0}
"""A candidate this close to a change (px) is that change."""


@dataclass(frozen=True)
class Recovery:
    """What a catalogue recovered of the truth.

    Attributes
    ----------
    kind : (n,) str
    snr : (n,) float
        True signal-to-noise of the changes on usable pixels, at least `SNR_COUNTED`.
    found : (n,) bool
    flux_ratio : (n,) float
        Catalogue over truth for found transients, NaN elsewhere.
    unexplained, doubtful : int
        Candidates that are no change: clean ones, and those with a flag that casts doubt.
    """

    kind: np.ndarray
    snr: np.ndarray
    found: np.ndarray
    flux_ratio: np.ndarray
    unexplained: int
    doubtful: int

    def counts(self, kind: str) -> str:
        of = self.kind == kind
        return f"{int(self.found[of].sum())} of {int(of.sum())}"

    @property
    def flux(self) -> tuple[float, float]:
        """Mean catalogue flux over true flux of found transients, weighted by S/N squared, and its error."""
        known = np.isfinite(self.flux_ratio)
        weight = self.snr[known] ** 2
        if not weight.sum():
            return float("nan"), float("nan")
        return float((weight * self.flux_ratio[known]).sum() / weight.sum()), float(weight.sum() ** -0.5)

    @property
    def share(self) -> float:
        """Share of the clear transients that were found."""
        clear = (self.kind == "transient") & (self.snr >= SNR_REQUIRED)
        return float(self.found[clear].mean()) if clear.any() else float("nan")


def recover(truth: QTable, catalog: Catalog, difference: Path) -> Recovery:
    """Compare a catalogue with the simulator's truth.

    Parameters
    ----------
    truth : QTable
        Changes, as `skydelta.pipeline.simulate.simulate` gives them.
    catalog : Catalog
    difference : Path
        ``difference.fits`` of the item: changes on pixels without a difference are not counted.
    """
    image = fits.getdata(difference, "SCI")
    x, y = truth["x"].value, truth["y"].value
    usable = np.isfinite(image[np.rint(y).astype(int), np.rint(x).astype(int)])
    at = np.column_stack([catalog["x"].value, catalog["y"].value])
    distance = np.hypot(*(np.column_stack([x, y])[:, None] - at[None, :]).transpose(2, 0, 1))
    reach = np.array([REACH[k] for k in truth["kind"]])
    same_sign = np.sign(catalog["flux"].value)[None, :] == np.sign(truth["flux"].value)[:, None]
    matched = (distance < reach[:, None]) & (same_sign | (truth["kind"] == "dipole")[:, None])
    found = matched.any(axis=1)
    ratio = np.full(len(truth), np.nan)
    for k in np.flatnonzero(found & (truth["kind"] == "transient")):
        nearest = np.argmin(np.where(matched[k], distance[k], np.inf))
        ratio[k] = catalog["flux"].value[nearest] / truth["flux"].value[k]
    counted = usable & (truth["snr"] >= SNR_COUNTED)
    unexplained = ~(distance < 2 * reach[:, None]).any(axis=0)
    suspect = (np.asarray(catalog["flags"]) & SUSPECT) != 0
    return Recovery(
        np.asarray(truth["kind"])[counted],
        np.asarray(truth["snr"])[counted],
        found[counted],
        ratio[counted],
        int((unexplained & ~suspect).sum()),
        int((unexplained & suspect).sum()),
    )


def main() -> int:
    """Run the demo in ``demo-output``; 0 when the truth is recovered."""
    console = Console()
    try:
        backend = resolve()
        console.print(f"[bold]skydelta demo[/] on {backend.name}")
        console.print("compiling the kernels, once on this machine (a few minutes the first time) ...")
        console.print(f"kernels ready after {warm_up():.0f} s")
        shutil.rmtree(FOLDER, ignore_errors=True)
        console.print("simulating a pair with known truth ...")
        pair = simulate(FOLDER / "pair", overwrite=True, size=1024, seed=7)
        inputs: dict[str, str | Path] = {"science": pair.science, "reference": pair.reference}
        result = run("difference", inputs=inputs, out=FOLDER / "run", id_="demo", progress=sys.stderr.isatty())
    except SkydeltaError as e:
        console.print(f"skydelta: {e}", style="red", markup=False)
        return int(e.exit_code)
    receipt = result.receipts[0]
    if receipt["status"] != "done":
        console.print(f"skydelta: {receipt['error']['message']}", style="red", markup=False)
        return int(result.exit_code)
    item = result.out / "items" / receipt["id"]
    found = recover(pair.changes, Catalog.load(item / "catalog.ecsv"), item / "difference.fits")
    console.print(_table(_results(receipt, found)))
    console.print(_table(_seconds(receipt)))
    console.print(f"report: {result.report.resolve()}", soft_wrap=True)
    if not found.share >= SHARE_REQUIRED:
        text = (
            f"{found.share:.0%} of the transients above S/N {SNR_REQUIRED:g} found; {SHARE_REQUIRED:.0%} are expected"
        )
        console.print(text, style="red")
        return 1
    return 0


def _results(receipt: dict[str, Any], found: Recovery) -> list[tuple[str, str]]:
    metrics = {name: value for step in receipt["steps"] for name, value in step["metrics"].items()}
    return [
        ("candidates", str(metrics["candidates"])),
        (f"transients above S/N {SNR_COUNTED:g} found", found.counts("transient")),
        (f"moved stars above S/N {SNR_COUNTED:g} found", found.counts("dipole")),
        ("clean candidates that are no change", str(found.unexplained)),
        ("flagged candidates that are no change", str(found.doubtful)),
        ("flux over true flux", "{:.3f} ± {:.3f}".format(*found.flux)),
        ("noise of the difference over its own variance", f"{metrics['noise_ratio']:.3f}"),
        ("width of the score in noise (1 is right)", f"{metrics['snr_std']:.3f}"),
    ]


def _seconds(receipt: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [(f"seconds: {step['id']}", f"{step['seconds']:.2f}") for step in receipt["steps"]]
    return [*rows, (f"seconds: all, on {receipt['device']['used']}", f"{receipt['seconds']:.2f}")]


def _table(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table(show_header=False, title_justify="left")
    table.add_column(overflow="fold")
    table.add_column(justify="right", overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


if __name__ == "__main__":
    sys.exit(main())
