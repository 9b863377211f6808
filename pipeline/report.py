# SPDX-License-Identifier: BSD-3-Clause
"""The report of a run: one HTML file with its pictures inside, rebuilt from receipts and item files alone."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from skydelta.errors import InputError
from skydelta.io.storage import check_writable, write_bytes
from skydelta.pipeline.receipts import read_json
from skydelta.pipeline.reportitem import Item, Step, number, pill, section
from skydelta.pipeline.reportnight import night
from skydelta.pipeline.reportstyle import CSS, SORT

log = logging.getLogger(__name__)

DETAILED = 24
"""At most this many items are shown with pictures, failed and flagged ones first; the table lists all."""

URGENCY = {"failed": 0, "flagged": 1, "done": 2}

COLUMNS = {
    "candidates": ("candidates", "Rows of the catalogue"),
    "noise_ratio": ("noise", "Robust std of the difference over its own noise; 1 is perfect"),
    "snr_std": ("score std", "Robust std of the score; 1 is perfect"),
    "chi2_held_out": ("held-out χ²", "Median chi squared per pixel of the stamps that were not fitted; 1 is perfect"),
    "usable_fraction": ("usable", "Share of pixels with a difference"),
}
"""Metrics shown in the table of items: heading and explanation."""


def write_report(out: Path | str) -> Path:
    """Write ``report.html`` into the folder of a run.

    The file needs no other file and no network: pictures are inside. It is made from ``run.json``, the receipts and the
    products of the items, so it can be written again at any time, and is the same each time.

    Parameters
    ----------
    out : Path or str
        Folder of a run.

    Returns
    -------
    Path
        The report.

    Raises
    ------
    InputError
        The folder holds no run, or the report cannot be written.
    """
    root = Path(out)
    try:
        run = json.loads((root / "run.json").read_text())
    except FileNotFoundError:
        raise InputError(f"{root}: no run.json in it; a folder written by `skydelta run` is needed") from None
    except OSError as e:
        raise InputError(f"{root / 'run.json'}: cannot be read: {e.strerror}") from None
    except ValueError as e:
        raise InputError(f"{root / 'run.json'}: not JSON ({e})") from None
    path = root / "report.html"
    check_writable(path)
    items = sorted(filter(None, map(_read_item, (root / "items").glob("*/receipt.json"))), key=lambda i: i.id)
    return write_bytes(path, _page(run, items, root).encode())


def _read_item(path: Path) -> Item | None:
    r = read_json(path)
    if r is None:
        log.warning("%s: not a receipt; the item is left out of the report, and made again by the same run", path)
        return None
    steps = tuple(Step(s["id"], s["seconds"], s.get("metrics", {}), s.get("flags", {})) for s in r["steps"])
    return Item(
        id=r["id"],
        folder=path.parent,
        status=r["status"],
        device=r["device"]["used"],
        seconds=r["seconds"],
        steps=steps,
        error=(r.get("error") or {}).get("message", ""),
        outputs=tuple(sorted(r.get("outputs", {}))),
    )


def _page(run: dict[str, Any], items: Sequence[Item], root: Path) -> str:
    shown = sorted(items, key=lambda i: (URGENCY[i.state], i.id))[:DETAILED]
    body = [_header(run, items), "<main>", _table(items, {i.id for i in shown}), night(items, root)]
    if len(shown) < len(items):
        body.append(
            f'<p class="soft">Pictures of {len(shown)} of {len(items)} items, failed and flagged ones first.</p>'
        )
    body += [section(item, root) for item in shown]
    body += ["</main>", "<footer>Rows of every picture are drawn upwards: row 0 is the lowest.</footer>"]
    if len(items) > 1:
        body.append(f"<script>\n{SORT}\n</script>")
    title = f"skydelta: {run.get('name', 'run')}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{CSS}\n</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _header(run: dict[str, Any], items: Sequence[Item]) -> str:
    failed = sum(i.state == "failed" for i in items)
    flagged = sum(i.state == "flagged" for i in items)
    device = run.get("device", {})
    tiles = (
        (str(len(items)), "items"),
        (str(failed), "failed"),
        (str(flagged), "with flags"),
        (number(sum(i.metric("candidates") or 0 for i in items)), "candidates"),
        (f"{number(sum(i.seconds for i in items))} s", "in the items"),
        (", ".join(sorted({i.device for i in items})) or "–", f"device ({device.get('asked', 'auto')} asked for)"),
    )
    cells = "".join(f'<div class="tile"><b>{escape(v)}</b><span>{escape(k)}</span></div>' for v, k in tiles)
    name, version, executor, started = (
        escape(str(run.get(key, ""))) for key in ("name", "version", "executor", "started")
    )
    how = f"skydelta {version}, {executor} executor, started {started}"
    return f'<header><h1>{name}</h1><p class="soft">{how}</p><div class="tiles">{cells}</div></header>'


def _table(items: Sequence[Item], shown: set[str]) -> str:
    head = "".join(f'<th class="num" title="{escape(words, quote=True)}">{h}</th>' for h, words in COLUMNS.values())
    rows = []
    for item in items:
        name = escape(item.id)
        if item.id in shown:
            name = f'<a href="#item-{escape(item.id, quote=True)}">{name}</a>'
        figures = "".join(_figure(item.metric(m), number(item.metric(m))) for m in COLUMNS)
        flags = escape(", ".join(item.flags)) or "–"
        rows.append(
            f'<tr><td>{name}</td><td data-value="{URGENCY[item.state]}">{pill(item.state)}</td>{figures}'
            f"{_figure(item.seconds, f'{item.seconds:.2f}')}<td>{flags}</td></tr>"
        )
    return (
        '<section class="panel"><h2>Items</h2><div class="wide" tabindex="0" role="region" aria-label="Items">'
        '<table class="sortable"><thead>'
        f'<tr><th>item</th><th>status</th>{head}<th class="num">seconds</th><th>flags</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _figure(value: Any, text: str) -> str:
    """A cell with a number, by which the table can be sorted; one without has no value."""
    known = isinstance(value, int | float | np.number) and np.isfinite(value)
    exact = f' data-value="{float(value):.9g}"' if known else ""
    return f'<td class="num"{exact}>{escape(text)}</td>'
