# SPDX-License-Identifier: BSD-3-Clause
"""The report over many items: what it draws is what the receipts and the objects say."""

import re
import time

import numpy as np
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
            Catalog.of(columns, units).save(folder / "catalog.ecsv")
        metrics = {"noise_ratio": 1 + k / 1000, "flux_limit_5sigma": 50.0 + k, "candidates": 1}
        metrics["sky_centre_deg"] = [(359.5 + k / n) % 360, 5.0]
        metrics |= {"mjd": 60000.0 + k / 24} if mjd else {}
        step = {"id": "match", "seconds": 1.0 + k, "metrics": metrics, "flags": {}}
        receipt = {"id": f"i{k:03d}", "status": "done", "seconds": 1.0 + k, "steps": [step], "device": {"used": "cpu"}}
        write_json(folder / "receipt.json", receipt)
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
    assert "<script" not in text
    assert write_report(tmp_path).read_text() == text


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
