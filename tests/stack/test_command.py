# SPDX-License-Identifier: BSD-3-Clause
"""``skydelta stack``: files in, one file out, errors of one line."""

import click.testing
import numpy as np
import pytest
from astropy.io import fits
from astropy.nddata import CCDData
from astropy.table import Table
from support_align import plane
from support_stack import grid_field, visit

import skydelta
from skydelta.pipeline.cli import cli

SHAPE = (150, 160)


@pytest.fixture
def run():
    return lambda *words: click.testing.CliRunner().invoke(cli, ["stack", *map(str, words)])


@pytest.fixture
def night(tmp_path, rng):
    field = grid_field(rng, SHAPE)
    paths = [tmp_path / f"v{k}.fits" for k in range(3)]
    for k, path in enumerate(paths):
        skydelta.write(visit(field, rng, k, shape=SHAPE, sky=100.0 + 20 * k), path)
    return paths


def test_file_holds_the_stack(run, night, tmp_path):
    out = tmp_path / "deep.fits"
    result = run(*night, "-o", out, "--scaling", "none", "--onto", "north-up", "--pixel-scale", "0.4")
    assert result.exit_code == 0, result.output
    assert all(p.name in result.stdout for p in night) and "clipped of 3" in result.stdout
    with fits.open(out, checksum=True) as hdus:
        names = [h.name for h in hdus]
        assert names[1:4] == ["SCI", "VAR", "DQ"] and {"NEXP", "SUMW", "NOISECOR", "INPUTS"} <= set(names)
        assert hdus["NEXP"].data.max() == 3 and hdus["SCI"].header["NCOMBINE"] == 3
        assert str(tmp_path) not in "".join(str(h.header) for h in hdus)
    table = Table.read(out, hdu="INPUTS")
    assert [str(i).strip() for i in table["id"]] == [p.name for p in night]
    np.testing.assert_allclose(np.diff(table["level"]), 20, atol=1)
    python = skydelta.stack(night, onto="north-up", pixel_scale=0.4, scaling="none", device="cpu")["stacked"]
    again = skydelta.read(out, device="cpu")
    for name in ("image", "variance", "mask"):
        np.testing.assert_array_equal(getattr(again, name), getattr(python, name))
    assert again.planes["CLIPPED"] == python.planes["CLIPPED"]
    assert CCDData.read(out, hdu="SCI", hdu_mask="DQ", hdu_uncertainty="VAR", unit="adu").shape == python.shape
    first = out.read_bytes()
    assert run(*night, "-o", out, "--scaling", "none", "--onto", "north-up", "--pixel-scale", "0.4").exit_code == 2
    more = ("--onto", "north-up", "--pixel-scale", "0.4", "--overwrite", "--budget", "1")
    assert run(*night, "-o", out, "--scaling", "none", *more).exit_code == 0
    assert out.read_bytes() == first


def test_grid_of_a_file_and_of_a_header(run, night, tmp_path):
    cards = plane(SHAPE, turn=4.0).to_header()
    cards["NAXIS1"], cards["NAXIS2"] = 111, 99
    (tmp_path / "target.hdr").write_text(cards.tostring(sep="\n"))
    for target, shape in ((tmp_path / "target.hdr", (99, 111)), (night[2], SHAPE), (f"{night[2]}[SCI]", SHAPE)):
        out = tmp_path / "out.fits"
        done = run(*night, "-o", out, "--method", "mean", "--scaling", "none", "--onto", target, "--overwrite")
        assert done.exit_code == 0, done.output
        assert fits.getdata(out, "SCI").shape == shape


def test_errors_are_one_line(run, night, tmp_path):
    out = tmp_path / "out.fits"
    (tmp_path / "bad.fits").write_bytes(b"nothing")
    cases = (
        ((), 3, "no images"),
        ((*night, tmp_path / "gone.fits"), 3, "gone.fits"),
        ((*night, tmp_path / "bad.fits"), 3, "bad.fits"),
        ((*night, "--onto", tmp_path / "gone.hdr"), 3, "gone.hdr: no such file"),
        ((*night, "--pixel-scale", "-1"), 2, "stack.pixel_scale: -1.0 is not above 0"),
        ((*night, "--onto", "north-up", "--aligned"), 2, "onto cannot be given too"),
    )
    for words, code, said in cases:
        done = run(*words, "-o", out)
        assert done.exit_code == code and said in done.stderr and done.stderr.count("\n") == 1, done.output
        assert not out.exists()
    done = run(*night, tmp_path / "bad.fits", "-o", out, "--scaling", "none", "--skip-bad")
    assert done.exit_code == 0 and "flag skipped_1" in done.stdout and "bad.fits" in done.stdout
    assert fits.getheader(out, "SCI")["NCOMBINE"] == 3
