# SPDX-License-Identifier: BSD-3-Clause
"""The report over many items: what it draws is what the receipts and the objects say."""

import json
import re
import shutil
import subprocess
import time

import numpy as np
import pytest
from astropy import units as u

from skydelta.io.catalog import Catalog
from skydelta.pipeline.receipts import RunFolder, write_json
from skydelta.pipeline.report import write_report
from skydelta.pipeline.runner import finish


def night(root, n, mjd=True, rows=True):
    """A folder of n items over RA 0: a source that rises, and metrics that grow with the item."""
    for k in range(n):
        folder = root / "items" / f"i{k:03d}"
        folder.mkdir(parents=True)
        columns = {"id": np.array([1]), "ra": np.array([359.99999]), "dec": np.array([5.0])}
        columns |= {"flux": np.array([100.0 + k]), "flux_err": np.array([10.0]), "snr": np.array([10.0 + k])}
        units = {"ra": u.deg, "dec": u.deg, "flux": u.adu, "flux_err": u.adu}
        if rows:
            Catalog.of(columns, units).save(folder / "catalog.parquet")
        metrics = {"noise_ratio": 1 + k / 1000, "flux_limit_5sigma": 50.0 + k, "candidates": 1}
        metrics["sky_centre_deg"] = [(359.5 + k / n) % 360, 5.0]
        metrics |= {"mjd": 60000.0 + k / 24} if mjd else {}
        step = {"id": "match", "seconds": 1.0 + k, "metrics": metrics, "flags": {}}
        receipt = {"id": f"i{k:03d}", "status": "done", "seconds": 1.0 + k, "steps": [step], "device": {"used": "cpu"}}
        (folder / "receipt.json").write_text(json.dumps(receipt))  # `write_json` waits for the disk, 500 times
    write_json(root / "run.json", {"name": "<night>"})
    return root


def charts(text):
    """Heights and tooltips of the points of each chart by its label."""
    found = {}
    for label, body in re.findall(r'<svg [^>]*aria-label="([^"]*)">(.*?)</svg>', text, re.DOTALL):
        circles = re.findall(r'cx="([\d.]+)" cy="([\d.]+)" r="3.5"><title>([^<]*)<', body)
        found[label] = [(float(x), float(y), t) for x, y, t in circles]
    return found


def test_trends_sky_and_light_curve(tmp_path):
    night(tmp_path, 12)
    assert finish(RunFolder(tmp_path))
    text = (tmp_path / "report.html").read_text()
    drawn = charts(text)
    noise = drawn["Noise of the difference over its own against MJD - 60000"]
    assert [p[2] for p in noise][:2] == ["i000: 1.000", "i001: 1.001"]
    assert (np.diff([p[0] for p in noise]) > 0).all()
    assert (np.diff([p[1] for p in noise]) < 0).all(), "up is a smaller y"
    depth = drawn["Depth of the items on the sky"]
    assert len(depth) == 12
    assert (np.diff([p[0] for p in depth]) < 0).all(), "RA grows to the left, across 0 too"
    (curve,) = (c for label, c in drawn.items() if label.startswith("Flux of J"))
    assert [p[2] for p in curve][:2] == ["i000: 100.0", "i001: 101.0"]
    assert (np.diff([p[1] for p in curve]) < 0).all()
    assert "78.00 s, median 6.500, longest 12.000" in text
    assert text.count("<script") == 1, "that of the table"
    assert write_report(tmp_path).read_text() == text


PAGE = """
class Element {
  constructor(text, value) { this.textContent = text; this.dataset = value === null ? {} : {value};
    this.childNodes = []; this.attributes = {}; }
  append(...nodes) { for (const n of nodes) { const k = this.childNodes.indexOf(n);
    if (k >= 0) this.childNodes.splice(k, 1); this.childNodes.push(n); } }
  addEventListener(kind, call) { this.click = call; }
  getAttribute(name) { return this.attributes[name] ?? null; }
  setAttribute(name, value) { this.attributes[name] = value; }
  removeAttribute(name) { delete this.attributes[name]; }
}
const heads = HEADS.map(text => new Element(text, null));
const body = new Element("", null);
const cells = row => row.map(([text, value]) => new Element(text, value));
body.append(...ROWS.map(row => Object.assign(new Element(), {cells: cells(row)})));
body.rows = body.childNodes;
const table = {tBodies: [body], tHead: {rows: [{cells: heads}]}};
const document = {querySelectorAll: () => [table], createElement: () => new Element("", null)};
SCRIPT
const out = [];
for (const column of PRESSED) {
  heads[column].childNodes[0].click();
  out.push([heads.map(h => h.getAttribute("aria-sort")), body.childNodes.map(row => row.cells[0].textContent)]);
}
console.log(JSON.stringify(out));
"""
"""As much of a page as the script of the report needs, for node."""


def table_of(text):
    """Headings, cells (text, data-value or None) and the script of the table of items."""
    head, body = re.search(
        r'<table class="sortable"><thead>(.*?)</thead><tbody>(.*?)</tbody>', text, re.DOTALL
    ).groups()
    heads = re.findall(r"<th[^>]*>([^<]*)</th>", head)
    rows = []
    for row in re.findall(r"<tr>(.*?)</tr>", body):
        cells = re.findall(r"<td([^>]*)>(.*?)</td>", row)
        values = [re.search(r'data-value="([^"]*)"', attributes) for attributes, _ in cells]
        texts = [re.sub("<[^>]*>", "", inner) for _, inner in cells]
        rows.append([(t, v and v[1]) for t, v in zip(texts, values, strict=True)])
    return heads, rows, re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]


def items_for_sorting(root):
    """Items whose figures are in another order than their names, two without a figure, one failed."""
    for name, seconds, noise, status in (
        ("i2", 3.0, 1.0, "done"),
        ("i10", 20.0, None, "done"),
        ("i1", 100.0, 1234.5, "done"),
        ("i3", 1.0, None, "failed"),
    ):
        step = {"id": "match", "seconds": seconds, "metrics": {"noise_ratio": noise}, "flags": {}}
        receipt = {"id": name, "status": status, "seconds": seconds, "steps": [step], "device": {"used": "cpu"}}
        (root / "items" / name).mkdir(parents=True)
        write_json(root / "items" / name / "receipt.json", receipt)
    write_json(root / "run.json", {"name": "night"})
    return write_report(root).read_text()


def test_the_table_of_items_says_its_numbers(tmp_path):
    heads, rows, script = table_of(items_for_sorting(tmp_path))
    assert heads[:4] == ["item", "status", "candidates", "noise"] and heads[-2:] == ["seconds", "flags"]
    assert {len(row) for row in rows} == {len(heads)}
    by_name = {row[0][0]: row for row in rows}
    assert {n: row[3][1] for n, row in by_name.items()} == {"i1": "1234.5", "i2": "1", "i3": None, "i10": None}
    assert {n: float(row[-2][1]) for n, row in by_name.items()} == {"i1": 100, "i2": 3, "i3": 1, "i10": 20}
    assert by_name["i3"][1][1] == "0" and by_name["i1"][1][1] == "2", "failed ones are first"
    assert not re.search(r"https?:|src=|import|fetch|eval", script)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed: the script of the report is not run")
def test_the_table_of_items_can_be_sorted(tmp_path):
    heads, rows, script = table_of(items_for_sorting(tmp_path))
    pressed = [0, 0, len(heads) - 2, len(heads) - 2, 3, 3, 1]
    source = PAGE
    for name, value in (("HEADS", heads), ("ROWS", rows), ("PRESSED", pressed)):
        source = source.replace(name, json.dumps(value))
    (tmp_path / "page.js").write_text(source.replace("SCRIPT", script))
    done = subprocess.run(["node", tmp_path / "page.js"], capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)
    names = ["i1", "i2", "i3", "i10"]
    assert found[0][1] == names and found[1][1] == names[::-1], "by name, numbers in names as numbers"
    assert found[2][1] == ["i3", "i2", "i10", "i1"] and found[3][1] == ["i1", "i10", "i2", "i3"], "seconds"
    assert [f[1][:2] for f in found[4:6]] == [["i2", "i1"], ["i1", "i2"]], "those without a number are last either way"
    assert found[6][1][0] == "i3"
    for column, (marks, _) in zip(pressed, found, strict=True):
        assert [k for k, mark in enumerate(marks) if mark] == [column]
    assert [found[k][0][0] for k in (0, 1)] == ["ascending", "descending"]


def test_without_times_or_catalogues(tmp_path):
    text = write_report(night(tmp_path, 3, mjd=False, rows=False)).read_text()
    assert len(charts(text)["Noise of the difference over its own against item, by id"]) == 3
    assert "Objects detected again" not in text
    assert "Over the night" not in write_report(night(tmp_path / "one", 1)).read_text()


def test_five_hundred_items_take_seconds(tmp_path, figure):
    night(tmp_path, 500, rows=False)
    began = time.process_time()
    write_report(tmp_path)
    figure("report of 500 items without pictures: CPU seconds", time.process_time() - began, 5)
