# SPDX-License-Identifier: BSD-3-Clause
"""All items of the report together: seconds by step, quality over the night, depth on the sky, objects."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from skydelta.errors import InputError
from skydelta.io.catalog import OF_ITEM, Catalog
from skydelta.pipeline import pictures
from skydelta.pipeline.receipts import RunFolder
from skydelta.pipeline.reportitem import Item, candidates, number, ranks
from skydelta.pipeline.secondpass import LIGHT_CURVES

OBJECTS = 24
"""At most this many objects are shown with their light curves, the most significant first."""

GALLERY = 24
"""At most this many candidates of all items are shown together."""

TRENDS = {
    "noise_ratio": ("Noise of the difference over its own", 1.0),
    "snr_std": ("Standard deviation of the score", 1.0),
    "chi2_held_out": ("Chi squared of held-out stamps", 1.0),
    "fwhm_science_px": ("Seeing of the science image, px", None),
    "candidates": ("Candidates", None),
    "flux_limit_5sigma": ("Flux at five standard deviations", None),
}
"""Metrics drawn over the night: heading, and the value that is right."""


def night(items: Sequence[Item], root: Path) -> str:
    """The panels of a run of several items; empty for one item.

    Parameters
    ----------
    items : sequence of Item
    root : Path
        Folder of the run, with ``catalog.parquet`` and ``objects.ecsv`` where there are some.
    """
    if len(items) < 2:
        return ""
    return "\n".join(p for p in (_steps(items), _trends(items), _gallery(items), _objects(root), _failed(root)) if p)


def _steps(items: Sequence[Item]) -> str:
    seconds: dict[str, list[float]] = {}
    for item in items:
        for step in item.steps:
            seconds.setdefault(step.id, []).append(step.seconds)
    longest = max((sum(s) for s in seconds.values()), default=0) or 1
    rows = "".join(
        f'<span>{escape(name)}</span><i style="width:{100 * sum(s) / longest:.1f}%"></i>'
        f'<span class="num">{sum(s):.2f} s, median {np.median(s):.3f}, longest {max(s):.3f}</span>'
        for name, s in seconds.items()
    )
    return f'<section class="panel"><h2>Seconds by step</h2><div class="bars">{rows}</div></section>' if rows else ""


def _trends(items: Sequence[Item]) -> str:
    mjd = [item.metric("mjd") for item in items]
    timed = 2 * sum(t is not None for t in mjd) > len(items)
    start = np.floor(min(t for t in mjd if t is not None)) if timed else 0
    x = [(np.nan if t is None else t - start) if timed else k + 1 for k, t in enumerate(mjd)]
    name = f"MJD - {start:.0f}" if timed else "item, by id"
    figures = []
    for metric, (words, level) in TRENDS.items():
        points = [
            (at, np.nan if (v := item.metric(metric)) is None else float(v), "", f"{item.id}: {number(v, 4)}")
            for at, item in zip(x, items, strict=True)
        ]
        figures.append((words, pictures.scatter(points, f"{words} against {name}", name, level)))
    figures.append(("Depth on the sky", _sky(items)))
    cells = "".join(f"<figure>{svg}<figcaption><b>{escape(w)}</b></figcaption></figure>" for w, svg in figures if svg)
    return f'<section class="panel"><h2>Over the night</h2><div class="grid">{cells}</div></section>' if cells else ""


def _sky(items: Sequence[Item]) -> str:
    """Centres of the items, red where the flux limit is highest (shallow), blue where it is lowest."""
    placed = [(i, c, d) for i in items if (c := i.metric("sky_centre_deg")) and (d := i.metric("flux_limit_5sigma"))]
    if not placed:
        return ""
    turned = np.radians([c[0] for _, c, _ in placed])
    middle = float(np.degrees(np.arctan2(np.sin(turned).sum(), np.cos(turned).sum())) % 360)
    depth = np.log(np.array([d for *_, d in placed], float))
    low, high = np.percentile(depth, [5, 95])
    share = 2 * (depth - low) / ((high - low) or 1) - 1 if high > low else np.zeros(len(depth))
    points = [
        ((c[0] - middle + 180) % 360 - 180, c[1], pictures.colour(float(t)), f"{i.id}: limit {number(d, 4)}")
        for (i, c, d), t in zip(placed, share, strict=True)
    ]
    name = f"ra - {middle:.4f} (degrees), dec upwards; blue is deep, red shallow"
    return pictures.scatter(points, "Depth of the items on the sky", name, flip=True)


def _objects(root: Path) -> str:
    """Objects with two detections or more, or all where each visit was measured, and their fluxes."""
    forced = (root / LIGHT_CURVES).is_file()
    try:
        table, catalog = (
            Catalog.load(root / name) for name in ("objects.ecsv", LIGHT_CURVES if forced else "catalog.parquet")
        )
    except InputError:
        return ""
    if not {"object", "mjd"} <= set(catalog.colnames):
        return ""
    again = np.flatnonzero(np.asarray(table["detections"]) >= (1 if forced else 2))
    if not again.size:
        return ""
    strength = np.nan_to_num(np.abs(np.asarray(table["snr_peak"], float)[again]))
    shown = again[np.argsort(-strength, kind="stable")][:OBJECTS]
    rows_of = np.asarray(catalog["object"])
    cards = []
    for k in shown:
        row = table[int(k)]
        rows = catalog[np.flatnonzero(rows_of == row["object"])]
        if not len(rows):  # the second pass of the items that have seen it failed
            continue
        mjd, flux, error = (np.asarray(rows[c].value, float) for c in ("mjd", "flux", "flux_err"))
        seen = np.asarray(rows["detected"]) if forced else np.ones(len(rows), bool)
        timed = bool(np.isfinite(mjd).all())
        start = np.floor(mjd.min()) if timed else 0
        at = mjd - start if timed else np.arange(len(rows)) + 1.0
        x_name = f"MJD - {start:.0f}" if timed else "item, by id"
        points = [
            (
                float(a),
                float(f),
                "" if there else "var(--soft)",
                f"{item}: {number(float(f), 4)}" + (f" ± {number(float(e), 3)}" if forced else ""),
            )
            for a, f, e, item, there in zip(at, flux, error, rows["item"], seen, strict=True)
        ]
        name = escape(str(row["object"]))
        words = (
            f"<b>{name}</b> {row['detections']} detections, ra {row['ra'].value:.5f}, dec {row['dec'].value:+.5f}, "
            f"mean flux {number(float(row['flux_mean'].value), 4)}, peak S/N {number(float(row['snr_peak']))}, "
            f"chi squared of a constant {number(float(row['chi2_constant']))}"
        )
        level = 0.0 if forced else None
        svg = pictures.scatter(points, f"Flux of {row['object']} against {x_name}", x_name, level)
        cards.append(f"<figure>{svg}<figcaption>{words}</figcaption></figure>")
    if not cards:
        return ""
    if forced:
        heading = "Light curves"
        words = (
            f"{len(cards)} of {len(table)} objects, the most significant first; grey: measured where it was not "
            f"detected ({LIGHT_CURVES})."
        )
    else:
        heading = "Objects detected again"
        words = (
            f"{len(shown)} of {len(again)} with two detections or more ({len(table)} objects in all, objects.ecsv), "
            "the most significant first."
        )
    return (
        f'<section class="panel"><h2>{heading}</h2><p class="soft">{words}</p>'
        f'<div class="grid">{"".join(cards)}</div></section>'
    )


def _failed(root: Path) -> str:
    """Items whose second pass failed, and why."""
    failed = [r for r in RunFolder(root).second().all() if r["status"] == "failed"]
    if not failed:
        return ""
    lines = "".join(
        f'<li class="error"><code>{escape(r["id"])}</code> {escape((r.get("error") or {}).get("message", ""))}</li>'
        for r in failed
    )
    return f'<section class="panel"><h2>Failed in the second pass</h2><ul class="notes">{lines}</ul></section>'


def _gallery(items: Sequence[Item]) -> str:
    """The most significant candidates of all items, clean ones first; each names its item."""
    found = []
    for n, item in enumerate(items):
        path = item.folder / OF_ITEM
        if item.status == "done" and path.is_file() and (item.folder / "stamps.fits").is_file():
            catalog = Catalog.load(path)
            if {"flags", "snr"} <= set(catalog.colnames):
                found += [(*rank, n) for rank in sorted(ranks(catalog))[:GALLERY]]
    if not found:
        return ""
    found.sort()
    wanted: dict[int, int] = {}
    for *_, n in found[:GALLERY]:
        wanted[n] = wanted.get(n, 0) + 1
    cards = {}
    for n, most in wanted.items():
        made = candidates(items[n], most, escape(items[n].id))
        cards[n] = iter(made[1] if made else [])
    shown = [card for *_, n in found[:GALLERY] if (card := next(cards[n], None)) is not None]
    return (
        '<section class="panel"><h2>Candidates of all items</h2><p class="soft">The most significant, clean ones '
        f'first: science, template, difference.</p><div class="cards">{"".join(shown)}</div></section>'
    )
