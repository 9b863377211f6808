# SPDX-License-Identifier: BSD-3-Clause
"""The report: self-contained, complete, escaped, the same each time, and made from the files of the run alone."""

import json
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
from astropy.io import fits

from skydelta.errors import InputError
from skydelta.io.catalog import Catalog
from skydelta.pipeline import reportnight
from skydelta.pipeline.report import write_report
from skydelta.pipeline.reportitem import SUSPECT, number

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Collects tags, text and addresses; fails on tags that do not nest."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.images, self.links, self.ids, self.text, self.tags = [], [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == [], f"unclosed {self.open}"

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append(tag)
        if tag == "img":
            self.images.append(attributes)
        if tag == "a":
            self.links.append(attributes["href"])
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag not in VOID and tag not in ("path", "circle", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in ("path", "circle", "rect"):
            return
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def page(finished):
    return Page(finished.report.read_text())


def test_needs_no_other_file_and_no_network(finished, page):
    text = finished.report.read_text()
    assert page.images
    for image in page.images:
        assert image["src"].startswith("data:image/png;base64,")
        assert image["alt"]
    assert page.tags.count("script") == text.count("<script>") == 1, "that of the table of items, in the file itself"
    assert not re.search(r"https?://", text)
    assert "@import" not in text and "url(" not in text


def test_links_lead_to_files_of_the_run(finished, page):
    for link in page.links:
        if link.startswith("#"):
            assert link[1:] in page.ids
        else:
            assert (finished.out / link).is_file(), link
    assert "items/good/difference.fits" in page.links


def test_shows_every_item_with_its_fate(finished, page):
    text = " ".join(page.text)
    assert [r["status"] for r in finished.receipts] == ["done", "failed", "failed"]
    assert {"item-good", "item-nothing", "item-shifted"} <= set(page.ids)
    for receipt in finished.receipts[1:]:
        assert receipt["error"]["message"] in text
    assert "absent & gone.fits" in text
    assert "misaligned" in text


def test_good_item_has_all_its_pictures(finished, page):
    text = " ".join(page.text)
    for title in (
        "Science", "Matched reference", "Difference", "Score", "Kernel over the field", "Stamps on the field",
        "Score of all pixels", "Candidates", "Seconds per step",
    ):  # fmt: skip
        assert title in text, title
    catalog = Catalog.load(finished.out / "items" / "good" / "catalog.ecsv")
    alts = [i["alt"] for i in page.images]
    for row in catalog:
        assert f"candidate {row['id']}, difference" in alts
    assert len(catalog) >= 4


def test_is_the_same_each_time(finished):
    first = finished.report.read_bytes()
    assert write_report(finished.out).read_bytes() == first


def test_names_are_escaped(run_copy):
    path = run_copy / "items" / "good" / "receipt.json"
    receipt = json.loads(path.read_text())
    receipt["steps"][0]["flags"]["odd"] = "<script>alert('x')</script> & more"
    receipt["steps"][0]["metrics"]["<b>"] = "<i>"
    path.write_text(json.dumps(receipt))
    page = Page(write_report(run_copy).read_text())
    assert page.tags.count("script") == 1, "that of the table of items"
    assert "<script>alert('x')</script> & more" in " ".join(page.text)


def test_is_made_from_what_is_left(run_copy):
    """Deleted products leave gaps, not errors."""
    for name in ("stamps.fits", "preview.fits", "difference.fits"):
        (run_copy / "items" / "good" / name).unlink()
        Page(write_report(run_copy).read_text())


def test_a_damaged_receipt_leaves_its_item_out(run_copy, caplog):
    path = run_copy / "items" / "good" / "receipt.json"
    path.write_text("{")
    assert 'id="item-good"' not in write_report(run_copy).read_text()
    assert f"{path}: not a receipt" in caplog.text


def test_empty_catalogue(run_copy):
    item = run_copy / "items" / "good"
    Catalog.load(item / "catalog.parquet")[:0].save(item / "catalog.parquet")
    assert "None." in " ".join(Page(write_report(run_copy).read_text()).text)


def test_stamps_of_another_catalogue_are_not_shown(run_copy):
    item = run_copy / "items" / "good"
    with fits.open(item / "stamps.fits", mode="update") as hdus:
        hdus["STAMPS"].data["id"] += 1
    assert "another catalogue" in " ".join(Page(write_report(run_copy).read_text()).text)


@pytest.mark.parametrize("content", [None, "{"])
def test_a_folder_without_a_run_is_refused(tmp_path, content):
    if content:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match=r"run\.json"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (float("nan"), "–"), (0.0, "0"), (1.23456, "1.23"), (0.01234, "0.0123"), (12345.6, "12346"),
        (1.2e-7, "1.20e-07"), (3, "3"), (1234567, "1\u202f234\u202f567"),
        ("copy", "copy"), ({"a_b": 1.0, "c": None}, "a b 1.00, c –"), ([1, 2.5], "1, 2.50"), ([], "–"),
        (True, "True"), (-0.5, "-0.500"),
    ],
)  # fmt: skip
def test_numbers_for_people(value, text):
    assert number(value) == text


def test_candidates_of_all_items_together(run_copy):
    """A second item with the same files, of which one candidate is ten times as significant: it comes first."""
    shutil.copytree(run_copy / "items" / "good", run_copy / "items" / "twin")
    receipt = json.loads((run_copy / "items" / "twin" / "receipt.json").read_text())
    (run_copy / "items" / "twin" / "receipt.json").write_text(json.dumps(receipt | {"id": "twin"}))
    catalog = Catalog.load(run_copy / "items" / "twin" / "catalog.parquet")
    clean = np.flatnonzero((np.asarray(catalog["flags"]) & SUSPECT) == 0)
    weakest = clean[np.argmin(np.abs(np.asarray(catalog["snr"])[clean]))]
    catalog["snr"][weakest] = 10 * np.abs(np.asarray(catalog["snr"])).max()
    catalog.save(run_copy / "items" / "twin" / "catalog.parquet")
    text = write_report(run_copy).read_text()
    gallery = text[text.index("Candidates of all items") :]
    gallery = gallery[: gallery.index("</section>")]
    found = re.findall(r'<p class="num">([^<]*)<br><b>([^<]*)</b>', gallery)
    assert found[0] == ("twin", str(catalog["id"][weakest]))
    assert {name for name, _ in found} == {"good", "twin"}, "of items that are done"
    assert len(found) == len(set(found)) == min(reportnight.GALLERY, 2 * len(catalog))
