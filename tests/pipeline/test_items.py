# SPDX-License-Identifier: BSD-3-Clause
"""Work items from one pair, from lists and from tables."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from astropy.table import MaskedColumn, Table

from skydelta.errors import ConfigError, InputError
from skydelta.pipeline.items import items_of
from skydelta.pipeline.workflow import load

WANTED = {"science": "steps[0] (science)", "reference": "steps[1] (reference)"}


def table(folder, text, name="t.csv"):
    path = folder / name
    path.write_text(text)
    return {"table": str(path)}


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("/d/a.fits", "a"),
        ("/d/a.b.fits.gz", "a.b"),
        ("/d/a.fits.fz[SCI]", "a"),
        ("/d/night 1 (copy).fit", "night_1__copy_"),
        ("/d/.fits", "item"),
        ("/d/été.fits", "t_"),
    ],
)
def test_a_single_item_is_named_after_its_first_file(file, name):
    (item,) = items_of({"science": file, "reference": "/d/r.fits"}, WANTED)
    assert item.id == name
    assert item.inputs == {"science": file, "reference": "/d/r.fits"}


def test_an_id_of_ones_own():
    pair = {"science": "/a.fits", "reference": "/b.fits"}
    assert items_of(pair, WANTED, "field-1")[0].id == "field-1"
    for bad in ("../up", "a/b", ".hidden", "a b", "x" * 201, ""):
        with pytest.raises(ConfigError, match="cannot name a folder") as caught:
            items_of(pair, WANTED, bad)
        assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "inputs.science: missing; steps[0] (science) reads it"),
        ({"science": "a"}, "inputs.reference: missing"),
        ({"science": "a", "reference": "b", "sience": "c"}, "inputs.sience: no step reads it; they read science, ref"),
        ({"table": "t.csv", "science": "a"}, "table is one file and excludes all others"),
        ({"science": ["a", "b"], "reference": ["c"]}, "lists of one length are needed"),
        ({"science": [], "reference": "c"}, "lists of one length are needed"),
    ],
)
def test_missing_and_superfluous_inputs(inputs, message):
    with pytest.raises(ConfigError) as error:
        items_of(inputs, WANTED)
    assert message in str(error.value)


def test_lists_with_one_reference_for_all():
    items = items_of({"science": ["/d/a.fits", "/d/b.fits"], "reference": "/d/r.fits"}, WANTED)
    assert [(i.id, i.inputs["reference"]) for i in items] == [("a", "/d/r.fits"), ("b", "/d/r.fits")]
    items = items_of({"science": "/d/s.fits", "reference": ["/d/a.fits", "/d/b.fits"]}, WANTED)
    assert [i.id for i in items] == ["a", "b"]
    with pytest.raises(InputError, match="row 2: id 'a' occurs twice"):
        items_of({"science": ["/d/a.fits", "/e/a.fits"], "reference": "/d/r.fits"}, WANTED)


def test_table_paths_are_relative_to_the_table_and_other_columns_are_ignored(tmp_path):
    inputs = table(tmp_path, "id,science,reference,seeing,note\n007,a.fits,/x/b.fits[1],1.2,cloudy\n")
    (item,) = items_of(inputs, WANTED)
    assert item.id == "007"
    assert item.inputs == {"science": str(tmp_path / "a.fits"), "reference": "/x/b.fits[1]"}


def test_ecsv(tmp_path):
    rows = Table({"id": ["x", "y"], "science": ["a", "b"], "reference": MaskedColumn(["c", "d"], mask=[False, True])})
    rows.write(tmp_path / "t.ecsv", format="ascii.ecsv")
    with pytest.raises(InputError, match="row 2: reference is empty"):
        items_of({"table": str(tmp_path / "t.ecsv")}, WANTED)
    rows[:1].write(tmp_path / "t.ecsv", format="ascii.ecsv", overwrite=True)
    assert [i.id for i in items_of({"table": str(tmp_path / "t.ecsv")}, WANTED)] == ["x"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,science\n1,a\n", "no column 'reference'; it has id, science"),
        ("name,science,reference\n1,a,b\n", "no column 'id'"),
        ("id,science,reference\n", "no rows"),
        ("id,science,reference\n1,a,b\n1,c,d\n", "row 2: id '1' occurs twice"),
        ("id,science,reference\n../1,a,b\n", "row 1: id: '../1' cannot name a folder"),
        ("id,science,reference\n1,a,\n", "row 1: reference is empty"),
        ("id,science,reference\n1,a,b,c,d\n", "cannot be read as csv"),
    ],
)
def test_bad_tables(tmp_path, text, message):
    with pytest.raises(InputError) as error:
        items_of(table(tmp_path, text), WANTED)
    assert str(error.value).startswith(str(tmp_path / "t.csv"))
    assert message in str(error.value)


def test_tables_that_are_none(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        items_of({"table": str(tmp_path / "none.csv")}, WANTED)
    with pytest.raises(InputError, match=r"tables are \.ecsv, \.csv or \.parquet, not '\.txt'"):
        items_of(table(tmp_path, "x", "t.txt"), WANTED)
    with pytest.raises(InputError, match="cannot be read as ecsv"):
        items_of(table(tmp_path, "x", "t.ecsv"), WANTED)
    with pytest.raises(ConfigError, match="have their ids from"):
        items_of(table(tmp_path, "id,science,reference\n1,a,b\n"), WANTED, "mine")


STEPS = load("difference").steps


def test_parquet(tmp_path):
    columns = {"id": ["x", "007"], "science": ["a", "b"], "reference": ["c", "/d"], "match.order": [None, 3]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    first, second = items_of({"table": str(tmp_path / "t.parquet")}, WANTED, steps=STEPS)
    assert (first.id, first.inputs["science"], dict(first.settings)) == ("x", str(tmp_path / "a"), {})
    assert (second.id, second.inputs["reference"], dict(second.settings)) == ("007", "/d", {"match.order": 3})
    (tmp_path / "bad.parquet").write_text("x")
    with pytest.raises(InputError, match=r"bad\.parquet: cannot be read as parquet"):
        items_of({"table": str(tmp_path / "bad.parquet")}, WANTED)


def test_settings_of_one_item(tmp_path):
    text = "id,science,reference,align.method,match.order,science.mask\nx,a,b,lanczos3,,m.fits[DQ]\ny,a,b,,2,\n"
    first, second = items_of(table(tmp_path, text), WANTED, steps=STEPS)
    assert dict(first.settings) == {"align.method": "lanczos3", "science.mask": str(tmp_path / "m.fits[DQ]")}
    assert dict(second.settings) == {"match.order": 2}
    flow = load("difference")
    steps = {s.id: s.stage.config for s in flow.with_settings(first.settings, "item x").steps}
    assert (steps["align"].method, steps["science"].mask) == ("lanczos3", str(tmp_path / "m.fits[DQ]"))
    with pytest.raises(ConfigError, match=r"item y: steps\[\d+\]\.match\.order: 9 is above"):
        flow.with_settings({"match.order": 9}, "item y")


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("mtach.order", "column 'mtach.order': no step 'mtach'; the steps are science, reference"),
        ("match.ordre", "column 'match.ordre': match has no setting 'ordre'; it has "),
    ],
)
def test_settings_that_are_none(tmp_path, column, message):
    with pytest.raises(InputError) as error:
        items_of(table(tmp_path, f"id,science,reference,{column}\nx,a,b,1\n"), WANTED, steps=STEPS)
    assert message in str(error.value)
