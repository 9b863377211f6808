# SPDX-License-Identifier: BSD-3-Clause
"""Which reference belongs to which image: by keys, on the sky, from files of several detectors, out of a mosaic."""

import numpy as np
import pytest
from astropy.io import fits
from astropy.wcs import WCS

import skydelta
from skydelta.errors import ConfigError, InputError
from skydelta.kernels.core.tiles import Box
from skydelta.pipeline import pairing
from skydelta.pipeline.items import items_of
from skydelta.pipeline.workflow import load

WANTED = {"science": "steps[0] (science)", "reference": "steps[1] (reference)"}
SCALE = 1e-4


def tan(ra, dec, shape, rotation=0.0):
    """A TAN solution with its centre in the middle of an image."""
    wcs = WCS(naxis=2)
    wcs.wcs.ctype = ["RA---TAN", "DEC--TAN"]
    wcs.wcs.crval = ra, dec
    wcs.wcs.crpix = (shape[1] + 1) / 2, (shape[0] + 1) / 2
    c, s = np.cos(np.radians(rotation)), np.sin(np.radians(rotation))
    wcs.wcs.cd = SCALE * np.array([[-c, s], [s, c]])
    return wcs


def image(path, ra=10.0, dec=20.0, shape=(40, 60), rotation=0.0, **cards):
    """A file of one image."""
    header = tan(ra, dec, shape, rotation).to_header() if ra is not None else fits.Header()
    header.update(cards)
    fits.PrimaryHDU(np.zeros(shape, np.float32), header).writeto(path)
    return str(path)


def mosaic_camera(path, names=("N1", "N2", "S1"), versions=None, **cards):
    """A file of several detectors, with the keys that all share in the primary header."""
    hdus = [fits.PrimaryHDU(header=fits.Header(cards))]
    for k, name in enumerate(names):
        header = tan(10 + k, 20, (40, 60)).to_header()
        header["CCDNUM"] = k + 1
        hdus.append(fits.CompImageHDU(np.zeros((40, 60), np.float32), header, name=name))
        if versions:
            hdus[-1].ver = versions[k]
    fits.HDUList(hdus).writeto(path)
    return str(path)


def pair(folder, science="s*.fits", reference="r*.fits", by="FILTER,CCDNUM"):
    inputs = {"science": str(folder / science), "reference": str(folder / reference), "pair_by": by}
    return {i.id: tuple(p.removeprefix(f"{folder}/") for p in i.inputs.values()) for i in items_of(inputs, WANTED)}


def test_by_keys(tmp_path):
    for n, (filter_, ccd) in enumerate([("g", 1), ("g", 2), ("r", 1), ("r", 2)]):
        image(tmp_path / f"s{n}.fits", FILTER=filter_, CCDNUM=ccd)
        # of the reference, the number is a float and the text has blanks
        image(tmp_path / f"r{filter_}{ccd}.fits", FILTER=f"{filter_} ", CCDNUM=float(ccd))
    image(tmp_path / "rz1.fits", FILTER="z", CCDNUM=1)
    expected = {f"s{n}": (f"s{n}.fits", f"r{f}{c}.fits") for n, (f, c) in enumerate(["g1", "g2", "r1", "r2"])}
    assert pair(tmp_path) == expected
    assert pair(tmp_path, by=["CCDNUM", "FILTER"]) == expected
    assert list(pair(tmp_path)) == sorted(expected), "in the order of the names"


def test_all_that_is_wrong_is_said_at_once(tmp_path):
    image(tmp_path / "s0.fits", FILTER="g", CCDNUM=1)
    image(tmp_path / "s1.fits", FILTER="g", CCDNUM=7)
    image(tmp_path / "s2.fits", FILTER="g")
    (tmp_path / "s3.fits").write_text("hello")
    image(tmp_path / "r0.fits", FILTER="g", CCDNUM=1)
    image(tmp_path / "r1.fits", FILTER="g", CCDNUM=1)
    with pytest.raises(InputError) as error:
        pair(tmp_path)
    first, *lines = str(error.value).splitlines()
    assert first == "inputs: pairing by FILTER, CCDNUM: 4 problems"
    text = [line.strip() for line in lines]
    assert f"{tmp_path}/s2.fits: no card CCDNUM" in text
    assert any(t.startswith(f"{tmp_path}/s3.fits: not FITS") for t in text)
    assert f"{tmp_path}/s1.fits: no reference with FILTER = g, CCDNUM = 7" in text
    both = f"{tmp_path}/r0.fits, {tmp_path}/r1.fits"
    assert f"{tmp_path}/s0.fits: 2 reference with FILTER = g, CCDNUM = 1: {both}" in text


def test_a_file_of_several_detectors_is_as_many_items(tmp_path):
    mosaic_camera(tmp_path / "s.fits", FILTER="g")
    mosaic_camera(tmp_path / "rg.fits", names=("S1", "N1", "N2"), FILTER="g")
    mosaic_camera(tmp_path / "rr.fits", FILTER="r")
    assert pair(tmp_path, by="FILTER,EXTNAME") == {
        f"s_{name}": (f"s.fits[{name}]", f"rg.fits[{name}]") for name in ("N1", "N2", "S1")
    }
    # by the number it is another one
    assert pair(tmp_path)["s_N1"] == ("s.fits[N1]", "rg.fits[S1]")
    assert list(pair(tmp_path, science="s.fits[N2]")) == ["s_N2"]
    mosaic_camera(tmp_path / "t.fits", names=("SCI", "SCI", "SCI"), versions=(1, 2, 3), FILTER="g")
    ids = pair(tmp_path, science="t.fits")
    assert ids["t_SCI_2"] == ("t.fits[SCI,2]", "rg.fits[N1]")
    assert skydelta.read(str(tmp_path / "t.fits[SCI,2]"), device="cpu").header["CCDNUM"] == 2


def test_planes_are_no_detectors(tmp_path):
    hdus = [fits.PrimaryHDU()]
    for version in (1, 2):
        for name in ("SCI", "ERR", "DQ"):
            header = fits.Header({"CCDNUM": version, "FILTER": "g"})
            dtype = np.int16 if name == "DQ" else np.float32
            hdus.append(fits.ImageHDU(np.ones((20, 30), dtype), header, name=name, ver=version))
    fits.HDUList(hdus).writeto(tmp_path / "s.fits")
    mosaic_camera(tmp_path / "r.fits", FILTER="g")
    assert list(pair(tmp_path)) == ["s_SCI_1", "s_SCI_2"]


@pytest.mark.parametrize("rotation", [0.0, 30.0, 180.0])
def test_on_the_sky(tmp_path, rotation):
    """Three fields; of each the reference that covers it, whatever its name and rotation."""
    for n, ra in enumerate((10.0, 10.0058, 359.9999)):
        image(tmp_path / f"s{n}.fits", ra=ra)
        image(tmp_path / f"r{2 - n}.fits", ra=ra + 0.0005, shape=(80, 100), rotation=rotation)
    image(tmp_path / "r9.fits", ra=10, dec=-20)
    assert pair(tmp_path, by="sky") == {f"s{n}": (f"s{n}.fits", f"r{2 - n}.fits") for n in range(3)}


def test_the_share_that_is_covered_is_that_of_the_areas(tmp_path):
    first = image(tmp_path / "a.fits", dec=0)
    (science,) = pairing.detectors(first)
    for share in (0.25, 0.5, 0.75):
        (other,) = pairing.detectors(image(tmp_path / f"{share}.fits", ra=10 + 60 * (1 - share) * SCALE, dec=0))
        cover = pairing.covered(science, other)
        assert abs(cover.share - share) < 1 / pairing.GRID
        # east is to the left: what it covers is at the right end of the other
        assert cover.x == pytest.approx((60 * (1 - share) - 0.5, 59.5), abs=60 / (pairing.GRID - 1))
    (far,) = pairing.detectors(image(tmp_path / "far.fits", ra=11))
    assert pairing.covered(science, far) is None


def test_partners_on_the_sky_that_are_missing_or_alike(tmp_path):
    image(tmp_path / "s0.fits")
    image(tmp_path / "s1.fits", dec=-40)
    image(tmp_path / "s2.fits", ra=None)
    image(tmp_path / "r0.fits", shape=(80, 100))
    image(tmp_path / "r1.fits", shape=(80, 100), ra=10.0002)
    with pytest.raises(InputError) as error:
        pair(tmp_path, by="sky")
    said = str(error.value)
    assert f"s1.fits: no reference covers {pairing.LEAST:.0%} of it" in said
    assert "s2.fits: no place on the sky: " in said
    assert f"s0.fits: 2 reference cover 100% of it alike: {tmp_path}/r0.fits, {tmp_path}/r1.fits" in said


def test_tiles_that_both_cover_an_image(tmp_path):
    """Where tiles of a survey overlap, that with the nearest centre."""
    image(tmp_path / "s.fits")
    image(tmp_path / "r0.fits", ra=10 + 0.006, shape=(300, 300))
    image(tmp_path / "r1.fits", ra=10 - 0.004, shape=(300, 300))
    assert pair(tmp_path, by="sky")["s"][1].startswith("r1.fits")


def test_keys_and_sky(tmp_path):
    image(tmp_path / "s.fits", FILTER="r")
    image(tmp_path / "rg.fits", FILTER="g")
    image(tmp_path / "rr.fits", FILTER="r", ra=10.0001)
    image(tmp_path / "rr2.fits", FILTER="r", ra=20)
    assert pair(tmp_path, by="FILTER, sky") == {"s": ("s.fits", "rr.fits")}


def test_a_mosaic_is_cut(tmp_path):
    """The part that is read is the mosaic's own pixels, and holds the image with a margin."""
    rng = np.random.default_rng(3)
    shape, at = (700, 900), (500, 300)
    wcs = tan(10, 20, shape)
    pixels = rng.normal(size=shape).astype(np.float32)
    fits.HDUList([fits.PrimaryHDU(), fits.ImageHDU(pixels, wcs.to_header(), name="SCI")]).writeto(tmp_path / "m.fits")
    ra, dec = (float(v) for v in wcs.pixel_to_world_values(*at))
    image(tmp_path / "s.fits", ra=ra, dec=dec, rotation=90)
    path = pair(tmp_path, reference="m.fits", by="sky")["s"][1]
    # turned by a right angle, 60 x 40 px are 40 x 60
    x1, x2 = at[0] - 20 - pairing.MARGIN, at[0] + 20 + pairing.MARGIN
    y1, y2 = at[1] - 30 - pairing.MARGIN, at[1] + 30 + pairing.MARGIN
    found = [int(v) for v in path.removeprefix("m.fits[").rstrip("]").replace(",", ":").split(":")]
    np.testing.assert_allclose(found, (x1 + 1, x2 + 1, y1 + 1, y2 + 1), atol=1)
    read = skydelta.read(str(tmp_path / path), device="cpu")
    np.testing.assert_array_equal(read.image, pixels[found[2] - 1 : found[3], found[0] - 1 : found[1]])
    x, y = read.wcs.world_to_pixel_values(ra, dec)
    np.testing.assert_allclose((x + read.origin[1], y + read.origin[0]), at, atol=1e-6)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_section_is_the_same_part_of_everything(tmp_path, compressed):
    """SCI, VAR, DQ and PSF of a section are those of the whole image, cut."""
    rng = np.random.default_rng(4)
    kind = fits.CompImageHDU if compressed else fits.ImageHDU
    header = tan(10, 20, (90, 70)).to_header()
    sci, var = rng.normal(100, 10, (90, 70)).astype(np.float32), rng.uniform(50, 150, (90, 70)).astype(np.float32)
    hdus = [
        kind(sci, header, name="SCI"),
        kind(var, name="VAR"),
        kind((rng.random((90, 70)) < 0.1).astype(np.int32), name="DQ"),
        fits.ImageHDU(np.pad(np.ones((3, 3)), 4), name="PSF"),
    ]
    path = tmp_path / "a.fits"
    fits.HDUList([fits.PrimaryHDU(), *hdus]).writeto(path)
    whole = skydelta.read(path, device="cpu").section(Box(20, 80, 10, 45))
    for source in (f"{path}[11:45,21:80]", f"{path}[SCI][11:45,21:80]"):
        part = skydelta.read(source, device="cpu")
        for plane in ("image", "variance", "mask"):
            np.testing.assert_array_equal(getattr(part, plane), getattr(whole, plane))
        assert part.origin == whole.origin == (20, 10)
        assert part.wcs.to_header() == whole.wcs.to_header()
        np.testing.assert_array_equal(part.psf.at(5, 5), whole.psf.at(5, 5))
        assert part.notes["image"]["section"] == "[11:45,21:80]"
    with pytest.raises(InputError, match=r"section \[11:71,21:80\] of 70 x 90 px"):
        skydelta.read(f"{path}[11:71,21:80]", device="cpu")
    with pytest.raises(InputError, match="section of no pixels; 1 <= x1"):
        skydelta.read(f"{path}[0:71,21:80]", device="cpu")


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (
            {"science": "s*.fits", "reference": "r*.fits"},
            ConfigError,
            "inputs.pair_by: missing; inputs.science and",
        ),
        ({"science": "x*.fits", "reference": "r0.fits"}, InputError, "x*.fits: no file matches"),
        ({"science": "s*.fits", "reference": "r*.fits", "pair_by": " ,"}, ConfigError, "inputs.pair_by: ' ,'; header"),
        ({"science": "s*.fits", "reference": "r*.fits", "pair_by": []}, ConfigError, "inputs.pair_by: no key"),
    ],
)
def test_inputs_that_say_too_little(tmp_path, inputs, error, message):
    for name in ("s0", "s1", "r0", "r1"):
        image(tmp_path / f"{name}.fits")
    given = {k: str(tmp_path / v) if k != "pair_by" else v for k, v in inputs.items()}
    with pytest.raises(error) as raised:
        items_of(given, WANTED)
    assert message in str(raised.value)


def test_a_pattern_beside_one_file(tmp_path):
    for name in ("s0", "s1", "r"):
        image(tmp_path / f"{name}.fits")
    items = items_of({"science": str(tmp_path / "s?.fits"), "reference": str(tmp_path / "r.fits")}, WANTED)
    assert [i.id for i in items] == ["s0", "s1"]
    (tmp_path / "s*.fits").write_bytes((tmp_path / "s0.fits").read_bytes())
    (item,) = items_of({"science": str(tmp_path / "s*.fits"), "reference": str(tmp_path / "r.fits")}, WANTED)
    assert item.inputs["science"].endswith("s*.fits"), "a file of that very name wins"


def test_the_plan_says_what_goes_with_what(skydelta, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for n in range(2):
        image(tmp_path / f"s{n}.fits", CCDNUM=n)
        image(tmp_path / f"r{n}.fits", CCDNUM=n)
    words = ("--science", "s*.fits", "--reference", "r*.fits", "--pair-by")
    result = skydelta("check", "difference", *words, "CCDNUM", "--device", "cpu", "--set", "run.inject=5")
    assert result.exit_code == 0, result.stderr
    rows = [[c.strip() for c in line.split("│")[1:-1]] for line in result.stdout.splitlines() if ".fits" in line]
    size = f"{2 * (tmp_path / 's0.fits').stat().st_size / 1e6:.1f}"
    assert [r[:4] for r in rows if len(r) == 5] == [[f"s{n}", f"s{n}.fits", f"r{n}.fits", size] for n in range(2)]
    assert "injections.ecsv" in result.stdout
    assert "executor: serial, 1 in flight on cpu" in result.stdout
    assert "beside them: run.json, events.jsonl, summary.ecsv, report.html, catalog.parquet" in result.stdout
    result = skydelta("run", "difference", *words, "FILTER", "--dry-run", "-o", "out")
    assert result.exit_code == 3
    assert result.stderr.count("no card FILTER") == 4
    flow = load("difference", inputs={"science": "s*.fits", "reference": "r0.fits", "pair_by": "sky"})
    assert flow.inputs["pair_by"] == "sky"
    assert flow.inputs["science"] == str(tmp_path / "s*.fits")
