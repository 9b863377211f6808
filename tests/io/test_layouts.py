# SPDX-License-Identifier: BSD-3-Clause
"""Survey layouts and every kind of source give the same Exposure: planes found, converted and named right."""

import numpy as np
import pytest
from astropy import units as u
from astropy.io import fits
from astropy.nddata import CCDData, InverseVariance, NDData, StdDevUncertainty, VarianceUncertainty
from astropy.wcs import WCS

from skydelta.errors import ConfigError, InputError
from skydelta.io.exposure import Exposure
from skydelta.io.fits.reader import inspect
from skydelta.io.planes import MaskPlanes
from skydelta.io.psf import PixelPsf
from skydelta.io.read import read

SHAPE = (60, 72)


@pytest.fixture
def planes(rng):
    """Image, variance (true), and a WCS header."""
    variance = rng.uniform(4, 9, SHAPE)
    image = (50 + rng.normal(0, 1, SHAPE) * np.sqrt(variance)).astype(np.float32)
    wcs = WCS(naxis=2)
    wcs.wcs.ctype = "RA---TAN", "DEC--TAN"
    wcs.wcs.crpix, wcs.wcs.crval, wcs.wcs.cdelt = (30, 25), (150.0, 2.0), (-1e-4, 1e-4)
    return image, variance.astype(np.float32), wcs.to_header()


def gaussian(h, w, y, x, sigma=1.5):
    j, i = np.mgrid[:h, :w]
    return np.exp(-0.5 * ((j - y) ** 2 + (i - x) ** 2) / sigma**2)


def names_at(exposure, y, x):
    return {n for n, b in exposure.planes.bits if int(exposure.mask[y, x]) >> b & 1}


def lsst(path, image, variance, header):
    mask = np.zeros(SHAPE, np.int32)
    mask[3, 4], mask[5, 6], mask[7, 8] = 1 << 3, 1 << 2, 1 << 5
    kinds = (("IMAGE", image), ("MASK", mask), ("VARIANCE", variance))
    hdus = [fits.PrimaryHDU()] + [fits.ImageHDU(a, header) for _, a in kinds]
    for (kind, _), hdu in zip(kinds, hdus[1:], strict=True):
        hdu.header["EXTTYPE"] = kind
    for name, bit in {"BAD": 0, "SAT": 1, "INTRP": 2, "CR": 3, "EDGE": 4, "DETECTED": 5, "NO_DATA": 8}.items():
        hdus[2].header[f"HIERARCH MP_{name}"] = bit
    fits.HDUList(hdus).writeto(path)
    return path


@pytest.mark.parametrize("named", [False, True], ids=["EXTTYPE", "EXTNAME"])
def test_lsst_masked_image(tmp_path, planes, named):
    path = lsst(tmp_path / "calexp.fits", *planes)
    if named:
        with fits.open(path, mode="update") as h:
            for hdu in h[1:]:
                hdu.header["EXTNAME"] = hdu.header.pop("EXTTYPE")
    exposure = read(path, device="cpu")
    assert np.array_equal(exposure.image, planes[0])
    assert np.array_equal(exposure.variance, planes[1])
    assert [names_at(exposure, y, x) for y, x in ((3, 4), (5, 6), (7, 8))] == [{"CR"}, {"INTERP"}, {"DETECTED"}]
    assert exposure.wcs.wcs.crval.tolist() == [150, 2]
    assert list(inspect(path)["role"]) == ["", "image", "mask", "variance"]


def test_real_hsc_cutout(shared_data):
    path = shared_data / "fits/real/afw__HSC-0908120-056-small.fits"
    exposure = read(path, device="cpu")
    with fits.open(path) as h:
        mask = h[2].data
        for theirs, ours in (("INTRP", "INTERP"), ("CR", "CR"), ("SAT", "SAT"), ("DETECTED", "DETECTED")):
            expected = (mask >> h[2].header[f"MP_{theirs}"]) & 1
            assert np.array_equal((exposure.mask >> exposure.planes[ours]) & 1, expected)
        assert np.array_equal(exposure.variance, h[3].data)
    assert exposure.notes["saturation"] == {"source": "mask"}
    assert "SIP" in exposure.notes["wcs"]
    assert 0.5 < exposure.notes["variance"]["sky_chi2"] < 2


def test_variance_zero_is_no_information(shared_data):
    path = shared_data / "fits/real/ip_diffim__templateMI.fits"
    exposure = read(path, device="cpu")
    zero = fits.getdata(path, 3) == 0
    assert zero.any()
    assert np.array_equal((exposure.mask & exposure.planes.bit("NO_DATA")) != 0, zero)
    assert exposure.notes["variance"]["invalid"] == {"zero": int(zero.sum())}


def test_real_decam_community_pipeline(shared_data):
    name = str(shared_data / "fits/real/legacypipe__c4d_170316_062107_{}_z_ls9.N2.fits")
    exposure = read(name.format("ooi"), weight=name.format("oow"), mask=name.format("ood"), device="cpu")
    codes, weight = fits.getdata(name.format("ood"), 1), fits.getdata(name.format("oow"), 1)
    assert np.array_equal((exposure.mask & exposure.planes.bit("CR")) != 0, codes == 5)
    assert not (exposure.mask & exposure.planes.bit("BAD")).any()  # 5 as bits would be BAD and more
    assert np.array_equal((exposure.mask & exposure.planes.bit("NO_DATA")) != 0, weight == 0)
    ok = weight > 0
    assert np.allclose(exposure.variance[ok], 1 / weight[ok], rtol=1e-6)
    assert exposure.notes["variance"]["sky_chi2"] == pytest.approx(1, abs=0.1)
    assert exposure.wcs.to_header(relax=True)["CTYPE1"] == "RA---TPV"
    alone = read(name.format("ooi"), device="cpu").notes["variance"]
    assert alone["gain"] == pytest.approx(3.8767, abs=1e-3)
    assert np.median(exposure.variance[ok]) == pytest.approx(alone["median"], rel=0.05)


def test_decam_companions_are_found_by_the_image_extension(tmp_path, planes):
    image, variance, header = planes
    for kind, data in (("ooi", image), ("oow", 1 / variance), ("ood", np.zeros(SHAPE, np.int32))):
        hdus = [fits.PrimaryHDU()] + [
            fits.ImageHDU(data * f, header, name=n) for n, f in (("N1", 0), ("N2", 1), ("N3", 0))
        ]
        hdus[0].header["INSTRUME"], hdus[0].header["PROCTYPE"] = "DECam", "InstCal"
        fits.HDUList(hdus).writeto(tmp_path / f"{kind}.fits")
    at = str(tmp_path / "{}.fits")
    exposure = read(at.format("ooi") + "[N2]", weight=at.format("oow"), mask=at.format("ood"), device="cpu")
    assert np.allclose(exposure.variance, variance, rtol=1e-6)
    assert exposure.notes["mask"]["convention"] == "community pipeline codes"
    assert exposure.header["INSTRUME"] == "DECam"


def jwst(path, image, variance, header, **planes):
    hdus = [fits.PrimaryHDU(), fits.ImageHDU(image, header, name="SCI")]
    hdus[0].header["TELESCOP"] = "JWST"
    hdus[1].header["BUNIT"] = "MJy/sr"
    hdus += [fits.ImageHDU(np.asarray(a), name=n) for n, a in planes.items()]
    hdus.append(fits.BinTableHDU.from_columns([fits.Column("ASDF_METADATA", "B", array=[1])], name="ASDF"))
    fits.HDUList(hdus).writeto(path)
    return path


def test_jwst_i2d(tmp_path, planes):
    variance = planes[1]
    parts = [variance * f for f in (0.5, 0.3, 0.2)]
    exposures = dict(zip(("VAR_POISSON", "VAR_RNOISE", "VAR_FLAT"), parts, strict=True))
    path = jwst(
        tmp_path / "i2d.fits", *planes, ERR=np.sqrt(variance), CON=np.zeros((1, *SHAPE), np.int32),
        WHT=np.full(SHAPE, 5000, np.float32), **exposures,
    )  # fmt: skip
    exposure = read(path, device="cpu")
    assert np.allclose(exposure.variance, variance, rtol=1e-5)
    assert exposure.notes["variance"]["kind"] == "sigma"
    assert exposure.unit == u.MJy / u.sr
    no_err = jwst(tmp_path / "no_err.fits", *planes, WHT=np.full(SHAPE, 5000, np.float32), **exposures)
    exposure = read(no_err, device="cpu")
    assert np.allclose(exposure.variance, variance, rtol=1e-5)
    assert exposure.notes["variance"]["source"] == "VAR_POISSON + VAR_RNOISE + VAR_FLAT"


def test_jwst_dq_with_the_highest_bit(tmp_path, planes):
    dq = np.zeros(SHAPE, np.uint32)
    dq[1, 1], dq[2, 2], dq[3, 3] = 1, 1 << 31, 1 << 2
    exposure = read(jwst(tmp_path / "cal.fits", *planes, ERR=np.sqrt(planes[1]), DQ=dq), device="cpu")
    assert [names_at(exposure, i, i) for i in (1, 2, 3)] == [{"BAD"}, {"NO_DATA"}, {"JUMP_DET"}]


def test_real_jwst_pair_member(shared_data):
    stem = shared_data / "pairs/jwst_nircam_f200w/jw02561001002-02561-o001_t003_nircam_clear-f200w_i2d_stamp"
    exposure = read(f"{stem}.fits", sigma=f"{stem}.noise.fits", psf=f"{stem}.WebbPSF.fits", device="cpu")
    assert exposure.notes["variance"]["invalid"] == {"negative": 1}
    assert 0.5 < exposure.notes["variance"]["sky_chi2"] < 2
    assert exposure.psf.shape == (205, 205)
    assert exposure.psf.at(10, 10).sum() == pytest.approx(1, abs=1e-12)
    assert exposure.notes["psf"]["sum"] == pytest.approx(0.99998, abs=1e-5)
    other = str(stem).replace("jw02561001002-02561-o001_t003", "jw01324001001-01324-o001_t001")
    earlier = read(f"{other}.fits", sigma=f"{other}.noise.fits", device="cpu")
    assert earlier.notes["mask"]["missing_pixels"] == 5
    assert ((earlier.mask & earlier.planes.bit("NO_DATA")) != 0).sum() == 5


def test_single_hdu_with_cards_only(tmp_path, rng):
    image = rng.normal(100, 9, SHAPE).astype(np.float32)
    image[4, 5], image[6, 7] = 60000, np.nan
    hdu = fits.PrimaryHDU(image, fits.Header({"GAIN": 1.3, "RDNOISE": 4.0, "SATURATE": 50000.0, "BUNIT": "ADU"}))
    hdu.writeto(tmp_path / "s.fits")
    exposure = read(tmp_path / "s.fits", device="cpu")
    assert names_at(exposure, 4, 5) == {"SAT"}
    assert names_at(exposure, 6, 7) == {"NO_DATA"}
    assert exposure.unit == u.adu
    assert exposure.notes["saturation"] == {"source": "SATURATE", "level": 50000.0, "pixels": 1}
    assert exposure.notes["wcs"] == "no WCS in the header"
    assert exposure.wcs is None


@pytest.mark.parametrize(
    ("cards", "level", "source"),
    [({"SATURATE": 200.0, "ESATUR": 150.0}, 150, "ESATUR"), ({"TSATUR": 120.0}, 120, "TSATUR"),
     ({"SATURAT": 130.0}, 130, "SATURAT"), ({"SATURATA": 300.0, "SATURATB": 250.0}, 250, "SATURATA, SATURATB"),
     ({"SATURATE": "NaN"}, None, "none")],
)  # fmt: skip
def test_saturation_cards(cards, level, source):
    image = np.arange(4320, dtype=np.float32).reshape(SHAPE) / 10
    exposure = read((image, fits.Header(cards)), variance=np.ones(SHAPE), device="cpu")
    assert exposure.notes["saturation"]["source"] == source
    reached = (exposure.mask & exposure.planes.bit("SAT")) != 0
    assert np.array_equal(reached, image >= level if level else np.zeros(SHAPE, bool))


def test_saturation_argument_and_plateau(shared_data):
    path = shared_data / "pairs/saao_bulge/AKB13475I0007.fits"
    assert read(path, device="cpu").notes["saturation"]["pixels"] == 54
    assert read(path, saturation=60000, device="cpu").notes["saturation"]["level"] == 60000


@pytest.mark.parametrize(
    ("kind", "function"),
    [(StdDevUncertainty, np.sqrt), (VarianceUncertainty, lambda v: v), (InverseVariance, lambda v: 1 / v)],
)
def test_ccddata_in_memory_and_as_a_file(tmp_path, planes, kind, function):
    image, variance, header = planes
    mask = np.zeros(SHAPE, bool)
    mask[2, 3] = True
    ccd = CCDData(image, unit="adu", uncertainty=kind(function(variance)), mask=mask, wcs=WCS(header))
    ccd.write(tmp_path / "ccd.fits")
    for source in (ccd, tmp_path / "ccd.fits"):
        exposure = read(source, device="cpu")
        assert np.array_equal(exposure.image, image)
        assert np.allclose(exposure.variance, variance, rtol=1e-5)
        assert names_at(exposure, 2, 3) == {"BAD"}
        assert exposure.unit == u.adu
        assert exposure.wcs.wcs.crval.tolist() == [150, 2]


def test_unknown_uncertainty(tmp_path, planes):
    path = tmp_path / "u.fits"
    hdus = [fits.PrimaryHDU(planes[0]), fits.ImageHDU(planes[1], name="UNCERT")]
    hdus[1].header["UTYPE"] = "Mystery"
    fits.HDUList(hdus).writeto(path)
    with pytest.raises(InputError, match="UTYPE = 'Mystery'; allowed: VarianceUncertainty"):
        read(path, device="cpu")


@pytest.mark.parametrize(
    ("name", "kind"), [("VAR", "variance"), ("VARIANCE", "variance"), ("ERR", "sigma"), ("SIGMA", "sigma"),
                       ("ERROR", "sigma"), ("WHT", "weight"), ("IVAR", "weight"), ("WEIGHT", "weight")],
)  # fmt: skip
def test_planes_by_name(tmp_path, planes, name, kind):
    image, variance, header = planes
    stored = {"variance": variance, "sigma": np.sqrt(variance), "weight": 1 / variance}[kind]
    hdus = [fits.PrimaryHDU(), fits.ImageHDU(image, header, name="SCI"), fits.ImageHDU(stored, name=name)]
    fits.HDUList(hdus).writeto(tmp_path / "p.fits")
    exposure = read(tmp_path / "p.fits", device="cpu")
    assert exposure.notes["variance"]["kind"] == kind
    assert np.allclose(exposure.variance, variance, rtol=1e-5)


def test_extension_versions_stay_together(tmp_path, planes):
    image, variance, _ = planes
    hdus = [fits.PrimaryHDU()]
    for ver, factor in ((1, 1), (2, 100)):
        hdus.append(fits.ImageHDU(image * factor, name="SCI", ver=ver))
        hdus.append(fits.ImageHDU(np.sqrt(variance) * factor, name="ERR", ver=ver))
    fits.HDUList(hdus).writeto(tmp_path / "flt.fits")
    second = read(f"{tmp_path}/flt.fits[SCI,2]", device="cpu")
    assert np.allclose(second.variance, variance * 1e4, rtol=1e-5)


def test_sources_in_memory_agree_with_the_file(tmp_path, planes):
    path = lsst(tmp_path / "m.fits", *planes)
    from_file = read(path, device="cpu")
    with fits.open(path) as hdulist:
        from_list = read(hdulist, device="cpu")
        one = read(hdulist[1], variance=hdulist[3].data, device="cpu")
    assert np.array_equal(from_list.image, from_file.image)
    assert np.array_equal(from_list.variance, from_file.variance)
    assert np.array_equal(from_list.mask, from_file.mask)
    assert np.array_equal(one.variance, from_file.variance)
    arrays = read((planes[0], planes[2]), variance=planes[1], device="cpu")
    assert np.array_equal(arrays.variance, planes[1])
    assert arrays.wcs is not None
    assert read(NDData(planes[0]), device="cpu").notes["variance"]["source"] == "measured"
    assert read(from_file, device="cpu").image is from_file.image


def test_native_type_is_kept(planes):
    for dtype in ("float64", "uint16", ">i4"):
        image = planes[0].astype(dtype)
        found = read(image, variance=planes[1], dtype="native", device="cpu").image
        assert found.dtype == np.dtype(dtype).newbyteorder("=")
        assert read(image, variance=planes[1], device="cpu").image.dtype == np.float32


@pytest.mark.parametrize("kind", ["variance", "sigma", "weight", "mask"])
def test_shapes_must_agree(tmp_path, planes, kind):
    fits.writeto(tmp_path / "other.fits", np.ones((5, 6), np.float32))
    for given in (np.ones((5, 6)), tmp_path / "other.fits", f"{tmp_path}/other.fits[0]"):
        with pytest.raises(InputError, match=rf"{kind} \(.*\) has shape \(5, 6\), the image \(60, 72\)"):
            read(planes[0], **{kind: given}, device="cpu")


def test_arguments_that_contradict(planes, tmp_path):
    with pytest.raises(ConfigError, match="variance and sigma are given; one of them"):
        read(planes[0], variance=planes[1], sigma=planes[1], device="cpu")
    with pytest.raises(ConfigError, match="dtype 'int8'"):
        read(planes[0], dtype="int8", device="cpu")
    with pytest.raises(ConfigError, match="dict cannot be read"):
        read({}, device="cpu")
    with pytest.raises(InputError, match=r"array of float32 \(3, 4, 5\)"):
        read(np.zeros((3, 4, 5), np.float32), device="cpu")
    lsst(tmp_path / "m.fits", *planes)
    with pytest.raises(ConfigError, match="names HDU '1', image= names 2"):
        read(f"{tmp_path}/m.fits[1]", image=2, device="cpu")


def test_infinite_pixels_and_all_masked(rng):
    image = rng.normal(0, 1, SHAPE).astype(np.float32)
    image[0, 0], image[1, 1] = np.inf, -np.inf
    exposure = read(image, device="cpu")
    assert "2 infinite pixels are masked" in exposure.notes["warnings"]
    assert names_at(exposure, 0, 0) == names_at(exposure, 1, 1) == {"NO_DATA"}
    blank = read(np.full(SHAPE, np.nan, np.float32), device="cpu")
    assert not blank.good().any()
    assert "no usable pixel: all are masked" in blank.notes["warnings"]


def test_a_variance_that_is_none_is_said(planes):
    for kind, value in (("variance", -1.0), ("sigma", 0.0), ("weight", np.nan)):
        exposure = read(planes[0], **{kind: np.full(planes[0].shape, value, np.float32)}, device="cpu")
        assert f"variance from array (read as {kind}) has no finite positive value" in exposure.notes["warnings"][-1]


@pytest.mark.parametrize(
    ("text", "unit"), [("adu", u.adu), ("ADU", u.adu), ("DN", u.adu), ("electrons/s", u.electron / u.s),
                       ("counts/s", u.count / u.s), ("nJy", u.nJy), ("", None)],
)  # fmt: skip
def test_units(text, unit):
    assert read((np.ones(SHAPE), fits.Header({"BUNIT": text})), variance=np.ones(SHAPE), device="cpu").unit == unit


def test_an_unknown_unit_is_said():
    exposure = read((np.ones(SHAPE), fits.Header({"BUNIT": "wibble"})), variance=np.ones(SHAPE), device="cpu")
    assert exposure.unit is None
    assert any("BUNIT = 'wibble' is not understood" in w for w in exposure.notes["warnings"])


def test_user_cards_survive_and_wcs_cards_do_not(tmp_path, planes):
    header = fits.Header({"OBJECT": "M 31", "EXPTIME": 30.0})
    header["HIERARCH ESO TEL ALT"] = 45.0
    header["HISTORY"] = "flat fielded"
    header["COMMENT"] = "a remark"
    header.update(planes[2])
    header["CTYPE1A"] = "LINEAR"
    fits.writeto(tmp_path / "h.fits", planes[0], header)
    kept = read(tmp_path / "h.fits", device="cpu").header
    assert kept["OBJECT"] == "M 31"
    assert kept["ESO TEL ALT"] == 45
    assert list(kept["HISTORY"]) == ["flat fielded"]
    assert list(kept["COMMENT"])[-1] == "a remark"
    assert not {"CTYPE1", "CRVAL1", "CDELT1", "CTYPE1A", "NAXIS1", "SIMPLE", "WCSAXES"} & set(kept)


def test_psf_stamps(tmp_path, planes):
    image, variance, _ = planes

    def given(stamp):
        return read(image, variance=variance, psf=stamp, device="cpu")

    exposure = given(3 * gaussian(15, 15, 7, 7))
    assert isinstance(exposure.psf, PixelPsf)
    assert exposure.psf.at(3, 4).sum() == pytest.approx(1)
    even = given(gaussian(16, 16, 8, 8))
    assert even.psf.shape == (15, 15)
    assert even.notes["psf"]["recentred_from"] == [16, 16]
    assert np.unravel_index(even.psf.at(0, 0).argmax(), (15, 15)) == (7, 7)
    shifted = given(gaussian(21, 21, 8, 11))
    assert shifted.psf.shape == (17, 19)
    assert np.unravel_index(shifted.psf.at(0, 0).argmax(), (17, 19)) == (8, 9)
    holes = gaussian(15, 15, 7, 7)
    holes[0] = np.nan
    assert np.isfinite(given(holes).psf.at(0, 0)).all()
    for stamp, words in (
        (gaussian(16, 16, 7.5, 7.5), "between pixels"), (np.zeros((9, 9)), "sum of the stamp is 0"),
        (np.full((9, 9), np.nan), "sum of the stamp is 0"), (np.ones(5), "two dimensions"),
        (gaussian(9, 9, 0, 4, 0.6), "at the edge"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            given(stamp)


def test_psf_from_extension_and_file(tmp_path, planes):
    image, variance, header = planes
    stamp = gaussian(15, 15, 7, 7)
    fits.HDUList(
        [fits.PrimaryHDU(), fits.ImageHDU(image, header, name="SCI"), fits.ImageHDU(variance, name="VAR"),
         fits.ImageHDU(stamp, name="PSF")]
    ).writeto(tmp_path / "p.fits")  # fmt: skip
    fits.writeto(tmp_path / "stamp.fits", stamp * 5)
    fits.writeto(tmp_path / "bad.fits", np.zeros((5, 5)))
    expected = stamp / stamp.sum()
    own = read(tmp_path / "p.fits", device="cpu").psf.at(0, 0)
    other = read(image, variance=variance, psf=tmp_path / "stamp.fits", device="cpu").psf.at(0, 0)
    named = read(image, variance=variance, psf=f"{tmp_path}/p.fits[PSF]", device="cpu").psf.at(0, 0)
    for found in (own, other, named):
        assert np.allclose(found, expected, atol=1e-15)
    with pytest.raises(InputError, match=r"bad\.fits: HDU 0: PSF: sum of the stamp is 0"):
        read(image, variance=variance, psf=tmp_path / "bad.fits", device="cpu")


def test_section_of_what_was_read_keeps_the_sky(tmp_path, planes):
    from skydelta.kernels.core.tiles import Box

    exposure = read(lsst(tmp_path / "m.fits", *planes), device="cpu")
    cut = exposure.section(Box(10, 40, 20, 60))
    assert np.allclose(cut.wcs.all_pix2world([[1, 2]], 0), exposure.wcs.all_pix2world([[21, 12]], 0), atol=1e-12)
    assert cut.shape == (30, 40)
    assert isinstance(cut, Exposure)
    assert isinstance(cut.planes, MaskPlanes)
