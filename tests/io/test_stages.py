# SPDX-License-Identifier: BSD-3-Clause
"""Load and write as stages: paths from the workflow's folder, notes into the receipt, files as documented."""

from pathlib import Path

import numpy as np
import pytest
from astropy import units as u
from astropy.io import fits
from astropy.nddata import CCDData
from astropy.table import Table
from astropy.wcs import WCS
from support_io import SHAPE, make_catalog, make_exposure, make_kernel

from skydelta.errors import ConfigError, InputError
from skydelta.io.catalog import Catalog
from skydelta.io.exposure import Exposure
from skydelta.io.fits.writer import write
from skydelta.io.matchkernel import MatchKernel
from skydelta.io.planes import MaskPlanes
from skydelta.io.read import read
from skydelta.kernels.backend import CPU
from skydelta.stages.base import Context
from skydelta.stages.load import Load, flag_lost
from skydelta.stages.write import Write, WriteImage


def test_load_finds_relative_paths_and_fills_the_receipt(rng, tmp_path):
    exposure = make_exposure(rng)
    write(exposure, tmp_path / "e.fits")
    fits.writeto(tmp_path / "v.fits", np.full(SHAPE, 4.0, np.float32))
    ctx = Context(CPU, id="item", base=tmp_path)
    found = Load(variance="v.fits[0]").execute(ctx, {"path": "e.fits[SCI]"})["image"]
    assert isinstance(found, Exposure)
    assert np.all(found.variance[found.good()] == 4)
    assert ctx.metrics["variance"]["source"] == "v.fits HDU 0"
    assert ctx.metrics["image"]["name"] == "SCI"
    assert ctx.metrics["wcs"] == "RA---TAN, DEC--TAN"
    alone = Load()(str(tmp_path / "e.fits"), device="cpu")
    assert np.array_equal(alone.variance, exposure.variance, equal_nan=True)


def test_load_flags_what_is_odd(tmp_path):
    hdu = fits.PrimaryHDU(np.ones(SHAPE, np.float32))
    hdu.header["BUNIT"] = "wibble"
    hdu.writeto(tmp_path / "o.fits")
    ctx = Context(CPU, base=tmp_path)
    Load().execute(ctx, {"path": "o.fits"})
    assert any("wibble" in line for line in ctx.flags.values())


@pytest.mark.parametrize("share", [0.05, 0.2])
@pytest.mark.parametrize("reason", ["value", "nan", "zero", "negative", "BAD", "SAT"])
def test_large_losses_are_said_with_their_reason(rng, reason, share):
    image, variance, mask = rng.normal(0, 1, (100, 100)), np.ones((100, 100)), np.zeros((100, 100), np.int32)
    rows, planes = round(100 * share), MaskPlanes()
    if reason == "value":
        image[:rows] = np.nan
    elif reason in planes:
        mask[:rows] = planes.bit(reason)
    else:
        variance[:rows] = {"nan": np.nan, "zero": 0, "negative": -3}[reason]
    words = {"value": "without a value", "BAD": "BAD", "SAT": "SAT"}.get(reason, "without a valid variance")
    want = {"pixels_lost": f"20.0% of the pixels cannot be used: {words} 20.0%"} if share > 0.1 else {}
    read_ = read(image, variance=variance, mask=(mask == planes.bit("BAD")))
    mask[50] |= planes.bit("INTERP")  # forbids nothing
    for exposure in (Exposure(image, variance, mask), *([read_] if reason != "SAT" else [])):
        ctx = Context(CPU)
        flag_lost(ctx, exposure)
        assert ctx.flags == want


def test_load_errors(tmp_path):
    with pytest.raises(InputError, match=r"no\.fits: no such file"):
        Load().execute(Context(CPU, base=tmp_path), {"path": "no.fits"})
    with pytest.raises(ConfigError, match=r"load\.gain: -1"):
        Load(gain=-1)
    with pytest.raises(ConfigError, match=r"load\.wait: unknown key"):
        Load(wait=1)


@pytest.fixture
def products(rng):
    exposure = make_exposure(rng)
    score = Exposure(rng.normal(size=SHAPE).astype(np.float32), wcs=exposure.wcs)
    kernel = make_kernel(rng)
    stamps = Table({"x": [5.0], "y": [6.0], "role": ["fit"], "chi2": [1.0], "kernel_sum": [0.9], "reason": [""]})
    kernel = MatchKernel(**{**kernel.__dict__, "stamps": stamps})
    plain = Exposure(exposure.image)
    return {"difference": exposure, "score": score, "kernel": kernel, "science": plain, "matched": plain}


@pytest.mark.parametrize("n", [0, 3])
def test_write(products, tmp_path, n):
    catalog = make_catalog(n)
    ctx = Context(CPU, id="item", out=tmp_path, earlier={"misaligned": "off by 5 px"})
    files = Write(stamp_half=4, regions=True, votable=True).execute(ctx, {**products, "catalog": catalog})["files"]
    assert all(isinstance(f, Path) and f.is_file() for f in files)
    assert {f.name for f in files} == {p.name for p in tmp_path.iterdir()}
    with fits.open(tmp_path / "difference.fits", checksum=True) as h:
        assert [x.name for x in h] == ["PRIMARY", "SCI", "VAR", "DQ", "SNR", "KERNEL", "PSF"]
        assert h["SCI"].header["SDFLAG0"] == "misaligned"
        assert np.array_equal(h["SNR"].data, products["score"].image)
        assert h["SNR"].header["CTYPE1"] == "RA---TAN"
        again = MatchKernel.from_hdu(h["KERNEL"].data, h["KERNEL"].header)
        assert np.allclose(again.at(3, 4), products["kernel"].at(3, 4), atol=1e-13)
    assert CCDData.read(tmp_path / "difference.fits", hdu="SCI", hdu_mask="DQ", hdu_uncertainty="VAR").unit == u.adu
    difference = read(tmp_path / "difference.fits", device="cpu")
    assert np.array_equal(difference.mask, products["difference"].mask)
    assert difference.psf.at(9, 9) == pytest.approx(products["difference"].psf.at(9, 9))
    assert len(Catalog.load(tmp_path / "catalog.parquet")) == len(Catalog.load(tmp_path / "catalog.ecsv")) == n
    with fits.open(tmp_path / "stamps.fits") as h:
        assert h["STAMPS"].data["id"].tolist() == list(range(1, n + 1))
        for name in ("SCIENCE", "TEMPLATE", "DIFFERENCE"):
            if n:
                assert h[name].data.shape == (n, 9, 9)
                assert h[name].data.dtype == np.dtype(">f4")
        if n:
            x, y = (int(np.rint(catalog[c][2].value)) for c in ("x", "y"))
            cut = h["DIFFERENCE"].data[2]
            assert cut[4, 4] == products["difference"].image[y, x]
            assert np.isnan(h["DIFFERENCE"].data[0, 0, 0])  # outside the image
            row, own = h["STAMPS"].data[2], WCS(naxis=2)
            own.wcs.ctype, own.wcs.crpix = ["RA---TAN", "DEC--TAN"], [5, 5]
            own.wcs.crval = [row["CRVAL1"], row["CRVAL2"]]
            own.wcs.cd = [[row["CD1_1"], row["CD1_2"]], [row["CD2_1"], row["CD2_2"]]]
            sky = products["difference"].wcs.pixel_to_world(x + 3.2, y - 2.1)
            assert np.allclose(own.world_to_pixel(sky), (7.2, 1.9), atol=1e-3)
    with fits.open(tmp_path / "preview.fits") as h:
        assert [x.name for x in h[1:]] == ["SCIENCE", "MATCHED", "DIFFERENCE", "SCORE", "STAMPS"]


@pytest.mark.parametrize("compress", ["RICE_1", "GZIP_2"])
def test_write_packs_the_planes_of_the_difference(products, tmp_path, compress):
    """As astropy reads them: masks and GZIP_2 to the bit, RICE_1 within half of a sixteenth of the noise."""
    Write(compress=compress).execute(Context(CPU, out=tmp_path), {**products, "catalog": make_catalog(1)})
    path, image = tmp_path / "difference.fits", products["difference"]
    with fits.open(path, disable_image_compression=True, checksum=True) as h:
        packed = {x.name: x.header["ZCMPTYPE"] for x in h if "ZCMPTYPE" in x.header}
    assert packed == dict.fromkeys(("SCI", "VAR", "DQ", "SNR"), compress)
    planes = {"SCI": image.image, "VAR": image.variance, "DQ": image.mask, "SNR": products["score"].image}
    with fits.open(path) as h:
        for name, plane in planes.items():
            step = np.nanstd(plane) / 16 if compress == "RICE_1" and name != "DQ" else 0
            np.testing.assert_allclose(h[name].data, plane, rtol=0, atol=step)
        assert h["SNR"].header["CTYPE1"] == "RA---TAN"
        assert MatchKernel.from_hdu(h["KERNEL"].data, h["KERNEL"].header).at(3, 4).shape == products["kernel"].shape
    assert CCDData.read(path, hdu="SCI", hdu_mask="DQ", hdu_uncertainty="VAR").unit == u.adu
    np.testing.assert_array_equal(read(path, device="cpu").mask, image.mask)
    WriteImage(compress=compress).execute(Context(CPU, out=tmp_path), {"image": image})
    with fits.open(tmp_path / "image.fits", disable_image_compression=True) as h:
        assert h["SCI"].header["ZCMPTYPE"] == compress


def test_write_twice_gives_the_same_bytes(products, tmp_path):
    for name in ("a", "b"):
        Write().execute(Context(CPU, out=tmp_path / name), {**products, "catalog": make_catalog(3)})
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_write_needs_a_folder(products):
    with pytest.raises(ConfigError, match="no folder"):
        Write().execute(Context(CPU), {**products, "catalog": make_catalog(1)})
