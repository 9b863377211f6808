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

from skydelta.io.catalog import OF_ITEM, Catalog, bits, names_of
from skydelta.io.field import Domain, polynomial_terms
from skydelta.io.fits.reader import open_file
from skydelta.pipeline import pictures
from skydelta.pipeline.receipts import flag_lines, urgent

CANDIDATES = 60
"""At most this many candidates are shown as pictures, the most significant first."""

SUSPECT = bits("EDGE", "MASKED", "SATURATED", "SATURATED_TEMPLATE", "LARGE", "NOT_CONVERGED", "NO_FIT")
"""Candidates with one of these flags are shown after the others."""

KERNEL_GRID = 5
"""The kernel is drawn at this many places along each axis."""

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
    if isinstance(value, Mapping):
        return ", ".join(f"{key.replace('_', ' ')} {number(v, digits)}" for key, v in value.items()) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(number(v, digits) for v in value) or "–"
    if isinstance(value, bool | str):
        return str(value)
    if value is None or not np.isfinite(value):
        return "–"
    if isinstance(value, int | np.integer):
        return f"{int(value):,}".replace(",", "\u202f")
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(digits - 1 - int(np.floor(np.log10(abs(value)))), 0)}f}"


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
        _quality(item),
        _candidates(item),
        _injections(item),
        _timings(item),
        _numbers(item),
        _links(item, root),
        "</section>",
    ]
    return "\n".join(p for p in parts if p)


def _notes(item: Item) -> str:
    lines = [f'<li class="error"><b>Failed.</b> {escape(item.error)}</li>'] if item.error else []
    for name, text in flag_lines((step.id, step.flags) for step in item.steps):
        if text != item.error:
            mark = ' class="error"' if urgent(name) else ""
            lines.append(f"<li{mark}><code>{escape(name)}</code> {escape(text)}</li>")
    return f'<ul class="notes">{"".join(lines)}</ul>' if lines else ""


def _figure(picture: str, title: str, words: str, pixels: bool = False) -> str:
    """A figure from a PNG address or SVG text; ``pixels`` keeps enlarged pixels sharp."""
    if not picture.startswith("<svg"):
        picture = f'<img alt="{escape(title, quote=True)}" src="{picture}">'
    caption = f"<figcaption><b>{escape(title)}</b> {words}</figcaption>"
    return f"<figure{' class=pixels' if pixels else ''}>{picture}{caption}</figure>"


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
            f"Signal-to-noise; blue to red is ±{REACH:g}. Hatched: no usable pixel.",
        ),
    ]
    figures = (_figure(pictures.data_uri(data), title, words) for _, data, title, words in shown)
    return f'<h3>Images</h3><div class="grid">{"".join(figures)}</div>'


def _charts(item: Item) -> str:
    difference, preview = item.folder / "difference.fits", item.folder / "preview.fits"
    if not (difference.is_file() and preview.is_file()):
        return ""
    with fits.open(difference) as hdus:
        kernel = hdus["KERNEL"]
        with open_file(difference) as file:
            score = file.pixels("SNR")
        figures = [_kernel(kernel, score.shape), *_stamps(Table.read(preview, hdu="STAMPS"), score.shape)]
        figures += _histogram(score)
    return f'<h3>Matching and noise</h3><div class="grid">{"".join(figures)}</div>'


def _kernel(hdu: fits.ImageHDU, shape: tuple[int, int]) -> str:
    """The matching kernel on a grid over the field, each centred where it belongs."""
    h = hdu.header
    domain = Domain((h["DOMNY"], h["DOMNX"]), (h["DOMY0"], h["DOMX0"]))
    y, x = ((np.arange(KERNEL_GRID) + 0.5) * n / KERNEL_GRID - 0.5 for n in shape)
    terms = polynomial_terms(*domain.uv(*np.meshgrid(x, y)), h["KORDER"])
    tiles = np.tensordot(terms, hdu.data.astype(float), axes=(0, 0))
    limit = float(np.abs(tiles).max()) or 1.0
    root = np.sign(tiles) * np.sqrt(np.abs(tiles) / limit)
    picture = pictures.data_uri(pictures.diverging(pictures.montage(root), 1.0))
    words = (
        f"{hdu.shape[1]} × {hdu.shape[2]} px at {KERNEL_GRID} × {KERNEL_GRID} places; the {h['KDIRECT']} image is "
        "convolved. Square-root stretch, blue is negative."
    )
    return _figure(picture, "Kernel over the field", words, pixels=True)


def _stamps(stamps: Table, shape: tuple[int, int]) -> Iterable[str]:
    """Where the stamps of the fit are, and how well those held out are reproduced."""
    x, y, chi2 = (np.asarray(stamps[name], float) for name in ("x", "y", "chi2"))
    roles = [str(role).strip() for role in stamps["role"]]
    count = {role: roles.count(role) for role in STAMP_MARKS}
    points = [
        (*at, STAMP_MARKS[role], "", f"{role}, chi squared {value:.2f}")
        for *at, value, role in zip(x, y, chi2, roles, strict=True)
    ]
    words = (
        f'<span class="key"></span>{count["fit"]} used '
        f'<span class="key open"></span>{count["held-out"]} held out '
        f'<span class="key x">×</span>{count["clipped"]} clipped'
    )
    yield _figure(pictures.field(shape, points, "Stamps of the kernel fit on the field"), "Stamps on the field", words)
    held = np.flatnonzero(np.array(roles) == "held-out")
    if len(held):
        points = [(x[k], y[k], "dot", pictures.colour((chi2[k] - 1) / 0.5), f"chi squared {chi2[k]:.2f}") for k in held]
        chart = pictures.field(shape, points, "Chi squared per pixel of the stamps that were not fitted")
        words = f"Median {number(float(np.median(chi2[held])))}; blue 0.5, white 1, red 1.5 per pixel."
        yield _figure(chart, "Held-out χ²", words)


def _histogram(score: np.ndarray) -> Iterable[str]:
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


def _candidates(item: Item) -> str:
    found = candidates(item, CANDIDATES)
    if found is None:
        return ""
    count, cards = found
    if not count:
        return "<h3>Candidates</h3><p>None.</p>"
    if not cards:
        return "<h3>Candidates</h3><p>stamps.fits belongs to another catalogue.</p>"
    of_all = f" of {count}" if len(cards) < count else ""
    return (
        f'<h3>Candidates</h3><p class="soft">{len(cards)}{of_all}: science, template, difference. Clean ones first, '
        "then those with a flag that casts doubt, each by significance.</p>"
        f'<div class="cards">{"".join(cards)}</div>'
    )


def ranks(catalog: Catalog) -> list[tuple[bool, float]]:
    """What candidates are sorted by: those with a flag that casts doubt come last, the others by significance."""
    suspect = (np.asarray(catalog["flags"]) & SUSPECT) != 0
    strength = np.nan_to_num(np.abs(np.asarray(catalog["snr"], float)))
    return [(bool(s), -float(n)) for s, n in zip(suspect, strength, strict=True)]


def candidates(item: Item, most: int, heading: str = "") -> tuple[int, list[str]] | None:
    """How many an item has, and the cards of the first of them; None without a catalogue or stamps."""
    table, cubes = item.folder / OF_ITEM, item.folder / "stamps.fits"
    if not (table.is_file() and cubes.is_file()):
        return None
    catalog = Catalog.load(table)
    if not len(catalog):
        return 0, []
    by = ranks(catalog)
    order = sorted(range(len(catalog)), key=lambda k: by[k])[:most]
    with fits.open(cubes) as hdus:
        if list(hdus["STAMPS"].data["id"]) != list(catalog["id"]):
            return len(catalog), []
        cubes_of = [hdus[n].data for n in ("SCIENCE", "TEMPLATE", "DIFFERENCE")]
        return len(catalog), [_card(catalog[k], heading, *(cube[k] for cube in cubes_of)) for k in order]


def _card(row: Any, heading: str, science: np.ndarray, template: np.ndarray, difference: np.ndarray) -> str:
    """Three stamps of one candidate and its numbers; the heading, markup, stands above them."""
    limits = pictures.sky_limits(np.stack([science, template]))
    known = np.abs(difference[np.isfinite(difference)])
    limit = max(REACH * pictures.robust_std(difference), float(np.percentile(known, 99.5))) if known.size else 1.0
    drawn = (
        pictures.grey(science, limits),
        pictures.grey(template, limits),
        pictures.diverging(difference, limit or 1.0),
    )
    name = f"candidate {row['id']}"
    images = "".join(
        f'<img alt="{name}, {words}" src="{pictures.data_uri(data)}">'
        for words, data in zip(("science", "template", "difference"), drawn, strict=True)
    )
    x, y, ra, dec, flux, error = (float(row[c].value) for c in ("x", "y", "ra", "dec", "flux", "flux_err"))
    flags = ", ".join(f.lower().replace("_", " ") for f in names_of(int(row["flags"])))
    lines = [
        heading,
        f"<b>{row['id']}</b> {escape(str(row['model']))}, S/N {number(float(row['snr']))}",
        f'flux {number(flux, 4)} ± {number(error, 2)} <span class="soft">{escape(str(row["flux"].unit or ""))}</span>',
        f"x {x:.2f}, y {y:.2f}",
        f'<span class="soft">ra {ra:.5f}, dec {dec:+.5f}</span>' if np.isfinite(ra) else "",
        f'<span class="soft">{escape(flags)}</span>' if flags else "",
    ]
    text = "<br>".join(line for line in lines if line)
    return f'<div class="card"><div class="trio">{images}</div><p class="num">{text}</p></div>'


MAPS = {
    "chi2_map": ("Held-out χ² over the field", "Median per pixel of stamps that were not fitted; 1 is perfect."),
    "kernel_sum_map": ("Kernel sum over the field", "The flux scale that stamps which were not fitted ask for."),
}
"""Maps of the receipt, lowest row first: heading and explanation."""


def _quality(item: Item) -> str:
    """Maps over the field, what is left of the registration, and the signs of the candidates."""
    tables = []
    for name, (title, words) in MAPS.items():
        cells = item.metric(name)
        if not cells:
            continue
        side = round(len(cells) ** 0.5)
        rows = (cells[k : k + side] for k in reversed(range(0, len(cells), side)))
        body = "".join(f"<tr>{''.join(f'<td class=num>{number(c)}</td>' for c in row)}</tr>" for row in rows)
        tables.append(_figure_of(f"<table>{body}</table>", title, words))
    if not tables:
        return ""
    shift, chi2, up, down, asymmetry = (
        number(item.metric(name))
        for name in (
            "residual_shift_px", "residual_shift_chi2", "candidates_positive", "candidates_negative", "asymmetry",
        )
    )  # fmt: skip
    words = (
        f"Stars that were not fitted are shifted by {shift} px (rms of an axis, noise taken off; χ² {chi2}, 1 without "
        f"shifts). Clean candidates: {up} positive, {down} negative, asymmetry {asymmetry}."
    )
    return f'<h3>Quality over the field</h3><p>{words}</p><div class="grid">{"".join(tables)}</div>'


def _figure_of(body: str, title: str, words: str) -> str:
    return f"<figure>{body}<figcaption><b>{escape(title)}</b> {words}</figcaption></figure>"


def _injections(item: Item) -> str:
    """Completeness of the fake sources by signal-to-noise, and what their fluxes say."""
    edges, shares = item.metric("completeness_snr"), item.metric("completeness")
    if not edges or not shares:
        return ""
    rows = "".join(
        f'<span>S/N {low:g} to {high:g}</span><i style="width:{100 * share:.1f}%"></i>'
        f'<span class="num">{100 * share:.0f} %</span>'
        for low, high, share in zip(edges[:-1], edges[1:], shares, strict=True)
        if share is not None and np.isfinite(share)
    )
    n, found, half, flux, magnitude = (
        number(item.metric(name)) for name in ("injected", "injected_found", "snr_50", "flux_50", "magnitude_50")
    )
    ratio, error, pull, spread = (
        number(item.metric(name), 4) for name in ("flux_ratio", "flux_ratio_err", "pull_median", "pull_std")
    )
    words = (
        f"{found} of {n} fake sources found. Half are found at S/N {half}, flux {flux}, magnitude {magnitude}. "
        f"Forced flux over true flux {ratio} ± {error}; (flux − true) / error has median {pull} and standard "
        f"deviation {spread}. They are in none of the other products."
    )
    return f'<h3>Depth from injected sources</h3><p>{words}</p><div class="bars">{rows}</div>'


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
