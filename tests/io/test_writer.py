# SPDX-License-Identifier: BSD-3-Clause
"""What is written is whole, the same every time, and read back equal by us and by astropy."""

import hashlib
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from astropy import units as u
from astropy.io import fits
from astropy.nddata import CCDData
from astropy.wcs import WCS
from support_io import make_exposure, make_kernel, tan

from skydelta.errors import InputError
from skydelta.io.exposure import Exposure
from skydelta.io.fits.writer import exposure_hdus, kernel_hdu, write, write_hdus
from skydelta.io.matchkernel import MatchKernel
from skydelta.io.read import read
from skydelta.io.storage import write_bytes


def test_read_gives_back_what_write_wrote(rng, tmp_path):
    for psf in ("pixel", "grid", None):
        exposure = make_exposure(rng, psf)
        write(exposure, tmp_path / "e.fits")
        again = read(tmp_path / "e.fits", device="cpu")
        assert np.array_equal(again.image, exposure.image, equal_nan=True)
        assert np.array_equal(again.variance, exposure.variance, equal_nan=True)
        assert np.array_equal(again.mask, exposure.mask)
        assert again.planes == exposure.planes
        assert again.unit == exposure.unit
        assert [(c.keyword, c.value) for c in again.header.cards] == [
            (c.keyword, c.value) for c in exposure.header.cards
        ]
        x, y = np.array([0.0, 20, 63]), np.array([0.0, 40, 49])
        assert np.allclose(again.wcs.all_pix2world(x, y, 0), exposure.wcs.all_pix2world(x, y, 0), atol=1e-11, rtol=0)
        if psf is None:
            assert again.psf is None
        else:
            assert type(again.psf) is type(exposure.psf)
            assert np.array_equal(again.psf.render(x, y), exposure.psf.render(x, y))
        write(again, tmp_path / "e2.fits")
        assert (tmp_path / "e.fits").read_bytes() == (tmp_path / "e2.fits").read_bytes()


def test_ccddata_reads_it_as_the_design_says(rng, tmp_path):
    exposure = make_exposure(rng)
    write(exposure, tmp_path / "e.fits")
    ccd = CCDData.read(tmp_path / "e.fits", hdu="SCI", hdu_mask="DQ", hdu_uncertainty="VAR")
    assert ccd.unit == u.adu
    assert type(ccd.uncertainty).__name__ == "VarianceUncertainty"
    assert np.array_equal(ccd.uncertainty.array, exposure.variance, equal_nan=True)
    assert ccd.uncertainty.unit == u.adu**2
    assert np.array_equal(ccd.mask, exposure.mask != 0)
    assert np.allclose(ccd.wcs.all_pix2world([[3, 4]], 0), exposure.wcs.all_pix2world([[3, 4]], 0))
    back = Exposure.from_ccddata(exposure.to_ccddata())
    assert np.array_equal(back.variance, exposure.variance, equal_nan=True)


def test_checksums_are_valid_and_the_file_is_standard(rng, tmp_path, recwarn):
    exposure = make_exposure(rng)
    write_hdus(tmp_path / "d.fits", [*exposure_hdus(exposure), kernel_hdu(make_kernel(rng))])
    with fits.open(tmp_path / "d.fits", checksum=True) as h:
        assert [x.name for x in h] == ["PRIMARY", "SCI", "VAR", "DQ", "PSF", "KERNEL"]
        for hdu in h:
            assert hdu.verify_checksum() == 1
            assert hdu.verify_datasum() == 1
        h.verify("exception")
        assert h[0].header["NAXIS"] == 0
        assert h["VAR"].header["BUNIT"] == "adu2"
        assert h["VAR"].header["UTYPE"] == "VarianceUncertainty"
        assert h["DQ"].header["MP_SAT_TEMPLATE"] == exposure.planes["SAT_TEMPLATE"]
        assert {h[n].header["CTYPE1"] for n in ("SCI", "VAR", "DQ")} == {"RA---TAN"}
    assert not [w for w in recwarn if issubclass(w.category, UserWarning)]


_WRITE = """
import sys
import numpy as np
from support_io import make_exposure
from skydelta.io.fits.writer import write
write(make_exposure(np.random.default_rng(5)), sys.argv[1])
"""


def test_the_same_data_give_the_same_bytes_in_any_process_folder_and_time(tmp_path):
    digests = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        target = tmp_path / name / f"{name}.fits"
        root = Path(__file__).resolve().parents[2]
        env = {**os.environ, "TZ": "Asia/Tokyo" if name == "a" else "UTC", "PYTHONHASHSEED": str(len(digests))}
        env["PYTHONPATH"] = os.pathsep.join([str(root), str(root / "tests" / "support")])
        subprocess.run([sys.executable, "-c", _WRITE, str(target)], check=True, env=env, timeout=60)
        digests.add(hashlib.sha256(target.read_bytes()).hexdigest())
        time.sleep(1.1)  # a stamp of the time would differ by a second
    assert len(digests) == 1
    raw = (tmp_path / "a" / "a.fits").read_bytes()
    assert str(tmp_path).encode() not in raw
    assert str(time.gmtime().tm_year).encode() not in raw


def test_nothing_is_left_on_failure(tmp_path, monkeypatch):
    old = tmp_path / "kept.fits"
    old.write_bytes(b"old")
    with pytest.raises(InputError, match=r"missing/x\.fits: cannot be written: No such file or directory"):
        write_bytes(tmp_path / "missing" / "x.fits", b"new")

    def no_rename(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_rename)
    with pytest.raises(InputError, match=r"kept\.fits: cannot be written: No space left on device"):
        write_bytes(old, b"new")
    assert old.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["kept.fits"]


def test_a_link_is_followed_and_a_pipe_is_left_alone(tmp_path):
    target, link, pipe = tmp_path / "target.fits", tmp_path / "link.fits", tmp_path / "pipe"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_bytes(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="pipe: cannot be written: it is a device or a pipe"):
        write_bytes(pipe, b"new")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.fits", "pipe", "target.fits"]


def test_permissions_follow_the_umask(tmp_path):
    write_bytes(tmp_path / "x", b"1")
    (tmp_path / "y").write_bytes(b"1")
    modes = [stat.S_IMODE((tmp_path / n).stat().st_mode) for n in ("x", "y")]
    assert modes[0] == modes[1]


@pytest.mark.parametrize("kind", ["SIP", "TPV"])
def test_distortions_survive(rng, tmp_path, kind):
    header = tan().to_header()
    header["CTYPE1"], header["CTYPE2"] = ("RA---TAN-SIP", "DEC--TAN-SIP") if kind == "SIP" else ("RA---TPV", "DEC--TPV")
    cards = (
        {"A_ORDER": 2, "B_ORDER": 2, "A_2_0": 2e-5, "B_1_1": -3e-5, "A_0_2": 1e-5}
        if kind == "SIP"
        else {"PV1_0": 1e-4, "PV1_1": 1.002, "PV1_4": 0.3, "PV2_0": 0.0, "PV2_1": 0.998, "PV2_5": 0.2}
    )
    header.update(cards)
    wcs = WCS(header)
    exposure = make_exposure(rng, wcs=wcs)
    x, y = (a.ravel() for a in np.meshgrid(np.linspace(0, 63, 5), np.linspace(0, 49, 5)))
    plain = tan().all_pix2world(x, y, 0)
    assert np.abs(np.array(wcs.all_pix2world(x, y, 0)) - plain).max() > 1e-6  # the distortion does something
    write(exposure, tmp_path / "d.fits")
    again = read(tmp_path / "d.fits", device="cpu")
    assert np.allclose(again.wcs.all_pix2world(x, y, 0), wcs.all_pix2world(x, y, 0), atol=1e-10, rtol=0)
    with fits.open(tmp_path / "d.fits") as h:
        for name in ("SCI", "VAR", "DQ"):
            theirs = WCS(h[name].header).all_pix2world(x, y, 0)
            assert np.allclose(theirs, wcs.all_pix2world(x, y, 0), atol=1e-10, rtol=0)


def test_lookup_tables_survive(shared_data, tmp_path):
    first = read(shared_data / "fits/real/astropy__dist_lookup.fits.gz", device="cpu")
    write(first, tmp_path / "t.fits")
    again = read(tmp_path / "t.fits", device="cpu")
    x, y = (a.ravel() for a in np.meshgrid(np.linspace(0, 99, 7), np.linspace(0, 99, 7)))
    assert np.array_equal(again.wcs.all_pix2world(x, y, 0), first.wcs.all_pix2world(x, y, 0))
    with fits.open(tmp_path / "t.fits") as h:
        theirs = WCS(h["SCI"].header, h).all_pix2world(x, y, 0)
        assert np.array_equal(theirs, first.wcs.all_pix2world(x, y, 0))


def test_the_kernel_reloads(rng, tmp_path):
    kernel = make_kernel(rng)
    write_hdus(tmp_path / "k.fits", [kernel_hdu(kernel)])
    with fits.open(tmp_path / "k.fits") as h:
        again = MatchKernel.from_hdu(h["KERNEL"].data, h["KERNEL"].header)
        short = h["KERNEL"].header.copy()
        del short["BGORDER"]
        with pytest.raises(InputError, match="BGORDER"):
            MatchKernel.from_hdu(h["KERNEL"].data, short)
        with pytest.raises(InputError, match=r"shape \(2, 9, 9\); 6 images are needed for KORDER = 2"):
            MatchKernel.from_hdu(h["KERNEL"].data[:2], h["KERNEL"].header)
    x, y = rng.uniform(0, 50, (2, 7))
    assert np.allclose(again.render(x, y), kernel.render(x, y), rtol=0, atol=1e-13)
    assert np.allclose(again.background_at(x, y), kernel.background_at(x, y), rtol=1e-13)
    assert (again.direction, again.order, again.rank, again.size) == ("reference", 2, 20, 27)


def test_a_psf_extension_that_does_not_fit_its_cards(rng, tmp_path):
    exposure = make_exposure(rng)
    for card, value, words in (
        ("PSFORDER", 1, r"shape \(6, 11, 11\)"), ("PSFKIND", "wavelet", "allowed: polynomial, grid"),
        ("DOMNX", None, "DOMNX"),
    ):  # fmt: skip
        hdus = exposure_hdus(exposure)
        if value is None:
            del hdus[3].header[card]
        else:
            hdus[3].header[card] = value
        write_hdus(tmp_path / "p.fits", hdus)
        with pytest.raises(InputError, match=words):
            read(tmp_path / "p.fits", device="cpu")
