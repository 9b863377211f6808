# SPDX-License-Identifier: BSD-3-Clause
"""Catalogues: every format reads back equal, the same bytes each time, empty ones too."""

import pickle

import numpy as np
import pyarrow.parquet as pq
import pytest
from astropy import units as u
from astropy.io import votable
from astropy.table import QTable
from support_io import make_catalog

from skydelta.errors import ConfigError, InputError
from skydelta.io.catalog import FLAGS, UCDS, Catalog, bits, names_of


@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize("suffix", [".ecsv", ".parquet", ".vot"])
def test_read_back_equal(tmp_path, n, suffix):
    table = make_catalog(n)
    path = tmp_path / f"c{suffix}"
    table.save(path)
    again = Catalog.load(path)
    assert again.colnames == table.colnames
    for name in table.colnames:
        ours, theirs = (np.asarray(getattr(t[name], "value", t[name])) for t in (table, again))
        assert theirs.dtype.kind == ours.dtype.kind
        assert np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == "f")
        assert again[name].info.unit == table[name].info.unit
        assert (again[name].info.meta or {}).get("ucd") == UCDS.get(name)


@pytest.mark.parametrize("suffix", [".ecsv", ".parquet", ".vot", ".reg"])
@pytest.mark.parametrize("n", [0, 4])
def test_the_same_table_gives_the_same_bytes(tmp_path, suffix, n):
    files = [tmp_path / f"{name}{suffix}" for name in ("a", "b")]
    for path in files:
        make_catalog(n).save(path)
    raw = [p.read_bytes() for p in files]
    assert raw[0] == raw[1]
    assert str(tmp_path).encode() not in raw[0]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(p.name for p in files)


def test_other_programs_read_them(tmp_path):
    table = make_catalog(4)
    for suffix in (".ecsv", ".parquet", ".vot", ".reg"):
        table.save(tmp_path / f"c{suffix}")
    plain = QTable.read(tmp_path / "c.ecsv", format="ascii.ecsv")
    assert plain["flux"].unit == u.adu
    assert pq.read_table(tmp_path / "c.parquet")["flux"].to_pylist() == [100, 10, -80, -170]
    fields = {f.name: f for f in votable.parse_single_table(tmp_path / "c.vot").fields}
    assert fields["ra"].ucd == "pos.eq.ra;meta.main"
    assert str(fields["ra"].unit) == "deg"
    regions = (tmp_path / "c.reg").read_text().splitlines()
    assert sum(line.startswith("circle(") for line in regions) == 4
    assert regions[2].startswith("circle(1.000,1.000,")  # DS9 counts from 1


def test_both_forms_of_an_item_read_the_same_whatever_was_read_before(tmp_path):
    plain = make_catalog(5)
    other = make_catalog(3)
    other["flux"] = other["flux"].value * u.Jy
    other.meta["limit"] = [1.5, {"unit": "mag"}]
    for k, table in enumerate((plain, other, plain)):
        files = [tmp_path / f"{k}{suffix}" for suffix in (".ecsv", ".parquet")]
        for path in files:
            table.save(path)
        slow, fast = (Catalog.load(path) for path in files)
        assert slow.meta == fast.meta and slow.colnames == fast.colnames
        for name in slow.colnames:
            a, b = slow[name], fast[name]
            assert (type(a), a.info.unit, a.dtype.kind) == (type(b), b.info.unit, b.dtype.kind)
            assert (a.info.description, a.info.meta) == (b.info.description, b.info.meta)
            pair = (np.asarray(getattr(v, "value", v)) for v in (a, b))
            assert np.array_equal(*pair, equal_nan=a.dtype.kind == "f")
        fast["flux"].info.description = "changed"  # what is read next is not told of it
        fast["flux"].info.meta["ucd"] = "changed"
        fast.meta.setdefault("limit", []).append("changed")
        fast["flux"][:] *= 2


def test_ready_columns_make_the_table_that_the_constructor_makes(tmp_path):
    rng = np.random.default_rng(3)
    columns = {
        "id": np.arange(1, 6),
        "x": rng.normal(size=5),
        "flux": rng.normal(size=(5, 2))[:, 1],
        "model": np.array(["psf", "dipole", "", "none", "psf"], "U8"),
        "flags": np.arange(5, dtype=np.int32),
    }
    units = {"x": u.pix, "flux": u.adu * u.pix}
    fast = Catalog.of(columns, units, meta={"note": "kept"})
    slow = Catalog({n: v * units[n] if n in units else v for n, v in columns.items()}, meta={"note": "kept"})
    assert [(type(fast[n]), fast[n].dtype, fast[n].info.unit) for n in fast.colnames] == [
        (type(slow[n]), slow[n].dtype, slow[n].info.unit) for n in slow.colnames
    ]
    for k, (a, b) in enumerate(
        [(fast, slow), (fast[1:4], slow[1:4]), (fast.copy(), slow.copy()), (pickle.loads(pickle.dumps(fast)), slow)]
    ):
        files = [tmp_path / f"{k}{name}.ecsv" for name in "ab"]
        for table, path in zip((a, b), files, strict=True):
            table.save(path)
        assert files[0].read_bytes() == files[1].read_bytes()
    fast["new"] = np.zeros(5)
    order = np.argsort(columns["x"])
    model = columns["model"][order]
    fast.sort("x")
    fast.remove_column("id")
    fast.rename_column("model", "kind")
    assert fast.colnames == ["x", "flux", "kind", "flags", "new"]
    assert fast["kind"].tolist() == model.tolist()
    fast.add_row((1 * u.pix, 2 * u.adu * u.pix, "psf", 0, 0.0))
    assert len(fast) == 6
    assert len(Catalog.of({n: v[:0] for n, v in columns.items()}, units)) == 0


def test_ready_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="id 2, x 3"):
        Catalog.of({"id": np.arange(2), "x": np.zeros(3)}, {"x": u.pix})


def test_flags():
    assert len({bit for bit, _ in FLAGS.values()}) == len(FLAGS)
    assert max(bit for bit, _ in FLAGS.values()) < 31
    for name in FLAGS:
        assert names_of(bits(name)) == [name]
    assert make_catalog(3).has("DIPOLE").tolist() == [False, True, False]


def test_errors(tmp_path):
    with pytest.raises(ConfigError, match=r"written as \.ecsv, \.parquet, \.vot, \.reg, not '\.csv'"):
        make_catalog(1).save(tmp_path / "c.csv")
    with pytest.raises(InputError, match=r"no\.ecsv: no such file"):
        Catalog.load(tmp_path / "no.ecsv")
    (tmp_path / "bad.parquet").write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"bad\.parquet: cannot be read"):
        Catalog.load(tmp_path / "bad.parquet")
    with pytest.raises(InputError, match="cannot be written"):
        make_catalog(1).save(tmp_path / "missing" / "c.ecsv")
