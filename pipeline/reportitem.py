# SPDX-License-Identifier: BSD-3-Clause
"""One item of the report: its pictures, charts and candidates, from the item's own files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from astropy.io import fits
from astropy.table import Table

from skydelta.pipeline import pictures

HISTOGRAM_PIXELS = 1_000_000
"""The score's histogram samples about this many pixels."""

REACH = 5.0
"""Ends of the difference's and the score's colours, in standard deviations."""

STAMP_MARKS = {"fit": "dot", "held-out": "ring", "clipped": "cross"}


@dataclass(frozen=True)
class Step:
    """One step of a receipt: its name in the workflow, seconds, metrics and flags."""

    id: str
    seconds: float
    metrics: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Item:
    """What a receipt says about one item."""

    id: str
    folder: Path
    status: str
    device: str
    seconds: float
    steps: tuple[Step, ...]
    error: str
    outputs: tuple[str, ...]

    @property
    def flags(self) -> dict[str, str]:
        return {name: text for step in self.steps for name, text in step.flags.items()}

    @property
    def state(self) -> str:
        """``failed``, ``flagged`` or ``done``: what the reader must look at first."""
        if self.status != "done":
            return "failed"
        return "flagged" if self.flags else "done"

    def metric(self, name: str) -> Any:
        """The last value any step recorded under this name, or None."""
        found = [step.metrics[name] for step in self.steps if name in step.metrics]
        return found[-1] if found else None


def number(value: Any, digits: int = 3) -> str:
    """A figure for people: at most ``digits`` significant ones, a dash where there is none."""
    if value is None:
        return "–"
    if isinstance(value, bool | str) or not np.isscalar(value):
        return str(value)
    if isinstance(value, int | np.integer):
        return f"{int(value):,}".replace(",", "\u202f")
    if not np.isfinite(value):
        return "–"
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(digits - 1 - int(np.floor(np.log10(abs(value)))), 0)}f}" if value else "0"


def pill(state: str) -> str:
    """Status as a mark and a word, so that colour alone says nothing."""
    mark = {"done": "✓", "flagged": "!", "failed": "✗"}[state]
    return f'<span class="status {state}">{mark} {state}</span>'


def section(item: Item, root: Path) -> str:
    """The panel of one item.

    Parameters
    ----------
    item : Item
    root : Path
        Folder of the report; links are relative to it.
    """
    parts = [
        f'<section class="panel" id="item-{escape(item.id, quote=True)}">',
        f'<div class="head"><h2>{escape(item.id)}</h2>{pill(item.state)}',
        f'<span class="soft num">{item.seconds:.2f} s on {escape(item.device)}</span></div>',
        _notes(item),
        _pictures(item),
        _charts(item),
        _timings(item),
        _numbers(item),
        _links(item, root),
        "</section>",
    ]
    return "\n".join(p for p in parts if p)


def _notes(item: Item) -> str:
    lines = [f'<li class="error"><b>Failed.</b> {escape(item.error)}</li>'] if item.error else []
    lines += [f"<li><code>{escape(n)}</code> {escape(t)}</li>" for n, t in item.flags.items() if t != item.error]
    return f'<ul class="notes">{"".join(lines)}</ul>' if lines else ""


def _figure(picture: str, title: str, words: str, label: str | None = None) -> str:
    """A figure from a PNG address or SVG text."""
    if not picture.startswith("<svg"):
        picture = f'<img alt="{escape(label or title, quote=True)}" src="{picture}">'
    return f"<figure>{picture}<figcaption><b>{escape(title)}</b> {words}</figcaption></figure>"


def _pictures(item: Item) -> str:
    path = item.folder / "preview.fits"
    if not path.is_file():
        return ""
    with fits.open(path) as hdus:
        planes = {name: hdus[name].data.astype(float) for name in ("SCIENCE", "MATCHED", "DIFFERENCE", "SCORE")}
        block = hdus["SCIENCE"].header.get("BLOCK", 1)
    limits = pictures.sky_limits(planes["SCIENCE"])
    spread = pictures.robust_std(planes["DIFFERENCE"])
    cells = f"Means of {block} × {block} px." if block > 1 else ""
    shown = [
        ("SCIENCE", pictures.grey(planes["SCIENCE"], limits), "Science", f"Sky subtracted, asinh stretch. {cells}"),
        ("MATCHED", pictures.grey(planes["MATCHED"], limits), "Matched reference", "Same stretch and units."),
        (
            "DIFFERENCE",
            pictures.diverging(planes["DIFFERENCE"], REACH * spread),
            "Difference",
            f"Blue to red is ±{number(REACH * spread)}, five times the noise of these means.",
        ),
        (
            "SCORE",
            pictures.diverging(planes["SCORE"], REACH),
            "Score",
            f"Signal-to-noise; blue to red is ±{REACH:g}. Transparent: no usable pixel.",
        ),
    ]
    figures = (_figure(pictures.data_uri(data), title, words) for _, data, title, words in shown)
    return f'<h3>Images</h3><div class="grid">{"".join(figures)}</div>'


def _charts(item: Item) -> str:
    figures = [*_kernel_charts(item), *_histogram(item)]
    return f'<h3>Matching and noise</h3><div class="grid">{"".join(figures)}</div>' if figures else ""


def _kernel_charts(item: Item) -> Iterable[str]:
    path = item.folder / "preview.fits"
    if not path.is_file():
        return
    stamps = Table.read(path, hdu="STAMPS")
    with fits.open(path) as hdus:
        block = hdus["SCIENCE"].header.get("BLOCK", 1)
        shape = tuple(n * block for n in hdus["SCIENCE"].shape)
    roles = np.char.strip(np.asarray(stamps["role"], str)) if len(stamps) else np.empty(0, str)
    count = {role: int((roles == role).sum()) for role in STAMP_MARKS}
    points = [
        (row["x"], row["y"], STAMP_MARKS.get(role, "cross"), "", f"{role}, chi2 {row['chi2']:.2f}")
        for row, role in zip(stamps, roles, strict=True)
    ]
    words = (
        f'<span class="key"></span>{count["fit"]} used '
        f'<span class="key open"></span>{count["held-out"]} held out '
        f'<span class="key x">×</span>{count["clipped"]} clipped'
    )
    yield _figure(pictures.field(shape, points, "Stamps of the kernel fit on the field"), "Stamps on the field", words)
    held = [
        (row["x"], row["y"], "dot", pictures.colour((row["chi2"] - 1) / 0.5), f"chi2 {row['chi2']:.2f}")
        for row, role in zip(stamps, roles, strict=True)
        if role == "held-out"
    ]
    if held:
        median = float(np.median([row["chi2"] for row, role in zip(stamps, roles, strict=True) if role == "held-out"]))
        label = "Chi squared per pixel of the stamps that were not fitted"
        words = f"Median {number(median)}; blue 0.5, white 1, red 1.5 per pixel."
        yield _figure(pictures.field(shape, held, label), "Held-out χ²", words)


def _histogram(item: Item) -> Iterable[str]:
    path = item.folder / "difference.fits"
    if not path.is_file():
        return
    with fits.open(path) as hdus:
        score = hdus["SNR"].data
        every = max(1, int(np.sqrt(score.size / HISTOGRAM_PIXELS)))
        values = np.asarray(score[::every, ::every], float)
    values = values[np.isfinite(values)]
    if values.size:
        label = "Histogram of the score against a Gaussian of unit width"
        words = (
            f"Robust std {number(pictures.robust_std(values))}; the line is a Gaussian of unit width. "
            f"Beyond ±8 counted at the ends."
        )
        yield _figure(pictures.histogram(values, label, "signal-to-noise"), "Score of all pixels", words)


def _timings(item: Item) -> str:
    longest = max((step.seconds for step in item.steps), default=0) or 1
    rows = "".join(
        f'<span>{escape(s.id)}</span><i style="width:{100 * s.seconds / longest:.1f}%"></i>'
        f'<span class="num">{s.seconds:.2f} s</span>'
        for s in item.steps
    )
    return f'<h3>Seconds per step</h3><div class="bars">{rows}</div>' if rows else ""


def _numbers(item: Item) -> str:
    rows = "".join(
        f'<tr><td>{escape(s.id)}</td><td>{escape(name)}</td><td class="num">{escape(number(value, 4))}</td></tr>'
        for s in item.steps
        for name, value in s.metrics.items()
    )
    if not rows:
        return ""
    return (
        '<details><summary>All numbers of the receipt</summary><div class="wide"><table>'
        f"<tr><th>step</th><th>figure</th><th class=num>value</th></tr>{rows}</table></div></details>"
    )


def _links(item: Item, root: Path) -> str:
    files = [p for p in (*item.outputs, "receipt.json") if (item.folder / p).is_file()]
    links = (
        f'<a href="{escape((item.folder / name).relative_to(root).as_posix(), quote=True)}">{escape(name)}</a>'
        for name in files
    )
    return f"<p>Files: {' · '.join(links)}</p>" if files else ""
