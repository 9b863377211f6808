# SPDX-License-Identifier: BSD-3-Clause
"""Files of our own writer as astropy sees them: raw ones the same bytes, compressed ones the same pixels."""

import hashlib
import io

import numba
import numpy as np
import pytest
from astropy import units as u
from astropy.io import fits
from support_io import make_exposure, tan

from skydelta.errors import ConfigError, InputError
from skydelta.io.exposure import Exposure
from skydelta.io.fits import compressed as module
from skydelta.io.fits.compressed import Compression, dither_seed
from skydelta.io.fits.writer import CHECKED, Image, checksum_text, write, write_hdus
from skydelta.io.read import read

INTEGERS = ("u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8")
FLOATS = ("f4", "f8")
SIZES = {"u1": 1, "i1": 1, "i2": 2, "u2": 2, "i4": 4, "u4": 4}


def pixels_of(rng, kind, shape=(41, 57)):
    """Random pixels over the whole range of integers; of floats some NaN, infinite, zero, minus zero, denormal."""
    kind = np.dtype(kind)
    if kind.kind != "f":
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max, shape, kind, endpoint=True)
    out = rng.normal(100, 3, shape).astype(kind)
    out.flat[:6] = np.nan, np.inf, -np.inf, 0, -0.0, np.finfo(kind).smallest_subnormal
    return out


def star_field(rng, shape=(300, 257), kind=np.float32):
    """Sky of noise with stars, NaN, exact zeros."""
    image = rng.normal(200, 7, shape)
    image[rng.integers(0, shape[0], 60), rng.integers(0, shape[1], 60)] += rng.exponential(2e4, 60)
    image[100:110, 50:90] = np.nan
    image[200:220] = np.where(rng.random((20, shape[1])) < 0.3, 0, image[200:220])
    return image.astype(kind)


def verified(path):
    """The HDUs as astropy gives them, checksums and structure verified."""
    with fits.open(path, checksum=True, disable_image_compression=True) as plain:
        plain.verify("exception")
        for hdu in plain:
            assert hdu.verify_checksum() == 1
            assert hdu.verify_datasum() == 1
    return fits.open(path)


@pytest.mark.parametrize("kind", INTEGERS + FLOATS)
@pytest.mark.parametrize("shape", [(3, 5), (7, 1), (48, 60), (0, 4)])
def test_raw_bytes_are_those_of_astropy(rng, tmp_path, kind, shape):
    pixels = pixels_of(rng, kind) if min(shape) > 6 else np.zeros(shape, kind)
    pixels = pixels[: shape[0], : shape[1]]
    cards = fits.Header({"OBJECT": "M 31", "LONGTEXT": "x" * 100})
    cards["HISTORY"] = "made"
    write_hdus(tmp_path / "ours.fits", [Image("SCI", pixels, cards)])
    theirs = fits.ImageHDU(pixels, cards, name="SCI")
    theirs.add_checksum(when=CHECKED)
    buffer = io.BytesIO()
    fits.HDUList([fits.PrimaryHDU(), theirs]).writeto(buffer)
    ours = (tmp_path / "ours.fits").read_bytes()
    assert ours[2880:] == buffer.getvalue()[2880:]


@pytest.mark.parametrize("total", [0, 1, 0xFFFFFFFF, 0x12345678, 0xC5C5C5C5, 868229149])
def test_checksum_text_is_that_of_the_standard(total):
    hdu = fits.ImageHDU()
    assert checksum_text(total) == hdu._char_encode(~total & 0xFFFFFFFF)


@pytest.mark.parametrize("method", ["RICE_1", "GZIP_2"])
@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("tile", [None, (16, 16), (100, 100), (1, 10)])
def test_integers_are_lossless(rng, tmp_path, method, kind, tile):
    pixels = pixels_of(rng, kind)
    pixels[10:20] //= np.iinfo(kind).max // 50
    pixels[20:30, :30] = 3
    write_hdus(tmp_path / "c.fits", [Image("SCI", pixels)], Compression(method, tile=tile))
    with verified(tmp_path / "c.fits") as h:
        assert isinstance(h[1], fits.CompImageHDU) == (kind in SIZES)
        assert h[1].data.dtype.newbyteorder("=") == pixels.dtype
        np.testing.assert_array_equal(h[1].data, pixels)
    np.testing.assert_array_equal(read(tmp_path / "c.fits[1]", device="cpu", dtype="native").image, pixels)


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("tile", [None, (16, 16)])
def test_gzip_is_lossless_for_floats(rng, tmp_path, kind, tile):
    pixels = pixels_of(rng, kind)
    write_hdus(tmp_path / "c.fits", [Image("SCI", pixels)], Compression("GZIP_2", tile=tile))
    with verified(tmp_path / "c.fits") as h:
        assert h[1].compression_type == "GZIP_2"
        assert h[1].data.astype(kind).tobytes() == pixels.tobytes()


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("level", [4.0, 16.0])
@pytest.mark.parametrize("tile", [None, (64, 64), (300, 257)])
def test_quantised_floats(rng, tmp_path, figure, kind, level, tile):
    image = star_field(rng, kind=kind)
    image[-1], image[-2], image[-3] = 7, np.nan, 0  # no noise
    image[-4, 9] = np.inf
    write_hdus(tmp_path / "c.fits", [Image("SCI", image)], Compression("RICE_1", level, tile))
    with verified(tmp_path / "c.fits") as h:
        got = h[1].data
        assert got.dtype.newbyteorder("=") == image.dtype
    with fits.open(tmp_path / "c.fits", disable_image_compression=True) as h:
        assert h[1].header["ZQUANTIZ"] == "SUBTRACTIVE_DITHER_2"
        assert h[1].header["ZDITHER0"] == dither_seed("SCI")
        step, lossless = h[1].data["ZSCALE"], h[1].data["GZIP_COMPRESSED_DATA"]
        kept = np.array([len(d) > 0 for d in lossless])
    assert ((step == 0) == kept).all()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(image))
    np.testing.assert_array_equal(got == 0, image == 0)
    if tile is None:
        assert kept[-4:].all() and not kept[:-4].any()
        np.testing.assert_array_equal(got[-4:], image[-4:])
    elif tile == image.shape:  # the infinite pixel keeps the whole image
        np.testing.assert_array_equal(got, image)
        return
    sky = np.s_[:96, :128]
    error = got[sky].astype(float) - image[sky]
    steps = step[: error.shape[0]] if tile is None else step[[0, 1, 5, 6]]
    figure(f"noise measured over true, {kind} {tile}", np.median(steps) * level / 7, (0.97, 1.03))
    assert np.abs(error).max() <= 0.5 * steps.max() * (1 + 1e-6) + np.spacing(np.float32(300))
    figure(f"error rms sqrt(12) over step, {kind} {tile}", error.std() * 12**0.5 / steps.mean(), (0.98, 1.02))
    figure(f"mean error over its sigma, {kind} {tile}", abs(error.mean()) / error.std() * error.size**0.5, 4)


def test_the_noise_is_the_published_estimate(rng, tmp_path):
    image = rng.normal(0, 5, (1, 3001)).astype(np.float32) + 1000
    write_hdus(tmp_path / "c.fits", [Image("SCI", image)], Compression("RICE_1", 10))
    second = np.abs(2 * image[:, 2:-2] - image[:, :-4] - image[:, 4:])  # 2997 of them: one median
    with fits.open(tmp_path / "c.fits", disable_image_compression=True) as h:
        assert h[1].data["ZSCALE"][0] == pytest.approx(1.482602 / 6**0.5 * np.median(second) / 10, rel=1e-6)


def test_flux_of_faint_stars_is_not_biased(rng, tmp_path, figure):
    """Coarse steps, under half the noise, and a signal far below a step: only dithering keeps the mean."""
    truth = np.repeat(rng.uniform(0, 1, 40), 50)
    image = (rng.normal(0, 1, (400, 2000)) + 50 + truth).astype(np.float32)
    write_hdus(tmp_path / "c.fits", [Image("SCI", image)], Compression("RICE_1", 1.0))
    with fits.open(tmp_path / "c.fits") as h:
        error = (h[1].data.astype(float) - image).reshape(400, 40, 50).mean(axis=(0, 2))
    figure("bias of 20000 px over its sigma, worst of 40", np.abs(error).max() / (12 * 400 * 50) ** -0.5, 3.6)


@pytest.mark.parametrize("compression", ["RICE_1", "GZIP_2"])
def test_an_exposure_comes_back(rng, tmp_path, compression):
    exposure = make_exposure(rng)
    write(exposure, tmp_path / "e.fits", compression)
    again = read(tmp_path / "e.fits", device="cpu")
    np.testing.assert_array_equal(again.mask, exposure.mask)
    assert again.planes == exposure.planes
    assert again.unit == u.adu
    assert np.allclose(
        again.wcs.all_pix2world([[3, 4]], 0), exposure.wcs.all_pix2world([[3, 4]], 0), rtol=0, atol=1e-11
    )
    assert [(c.keyword, c.value) for c in again.header.cards] == [(c.keyword, c.value) for c in exposure.header.cards]
    assert np.array_equal(again.psf.coefficients, exposure.psf.coefficients)
    for name, sigma in (("image", 2.0), ("variance", 0.58)):
        got, want = getattr(again, name), getattr(exposure, name)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        limit = 0 if compression == "GZIP_2" else 0.5 * 1.6 * sigma / 16  # rows of 64 px: noise known to a third
        assert np.nanmax(np.abs(got - want)) <= limit
    with verified(tmp_path / "e.fits") as h:
        assert [x.name for x in h] == ["PRIMARY", "SCI", "VAR", "DQ", "PSF"]
        assert h["SCI"].header["BUNIT"] == "adu"
        assert {h[n].header["CTYPE1"] for n in ("SCI", "VAR", "DQ")} == {"RA---TAN"}
        assert h["DQ"].header["MP_SAT_TEMPLATE"] == exposure.planes["SAT_TEMPLATE"]


def test_names_and_cards_survive_in_a_compressed_header(rng, tmp_path):
    cards = fits.Header({"LONGTEXT": "y" * 150, "GAIN": 1.5})
    for text in ("one", "two"):
        cards["HISTORY"] = text
        cards["COMMENT"] = text
    cards["HIERARCH ESO DET READ"] = 3.5
    write_hdus(tmp_path / "c.fits", [Image("SCI", star_field(rng), cards)], Compression("RICE_1"))
    with verified(tmp_path / "c.fits") as h:
        assert list(h[1].header["HISTORY"]) == list(h[1].header["COMMENT"]) == ["one", "two"]
        for key in ("LONGTEXT", "GAIN", "ESO DET READ"):
            assert h[1].header[key] == cards[key]


@pytest.mark.parametrize("compression", ["RICE_1", "GZIP_2"])
def test_the_same_bytes_with_any_number_of_threads(rng, tmp_path, compression):
    exposure = Exposure(star_field(rng), star_field(rng), rng.integers(0, 4, (300, 257), np.int32), wcs=tan())
    digests = set()
    threads = numba.get_num_threads()
    try:
        for number in (1, 2):
            numba.set_num_threads(number)
            write(exposure, tmp_path / "t.fits", compression, tile=(32, 50))
            digests.add(hashlib.sha256((tmp_path / "t.fits").read_bytes()).hexdigest())
    finally:
        numba.set_num_threads(threads)
    assert len(digests) == 1


def test_long_heaps_have_long_descriptors(rng, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SHORT", 1000)
    image = star_field(rng)
    write_hdus(tmp_path / "q.fits", [Image("SCI", image)], Compression("GZIP_2"))
    with verified(tmp_path / "q.fits") as h:
        np.testing.assert_array_equal(h[1].data, image)
    with fits.open(tmp_path / "q.fits", disable_image_compression=True) as h:
        assert h[1].header["TFORM1"].startswith("1QB(")


def test_rice_files_are_small(rng, tmp_path, figure):
    """Against the entropy of a difference: log2(sigma sqrt(2 pi e)) bits, sigma = sqrt(2) 16 steps."""
    image = rng.normal(1000, 30, (512, 4096)).astype(np.float32)
    write_hdus(tmp_path / "c.fits", [Image("SCI", image)], Compression("RICE_1"))
    with fits.open(tmp_path / "c.fits", disable_image_compression=True) as h:
        bits = 8 * sum(len(d) for d in h[1].data["COMPRESSED_DATA"]) / image.size
    figure("bits of a pixel over the entropy", bits / np.log2(16 * 2**0.5 * (2 * np.pi * np.e) ** 0.5), (1, 1.05))


def test_what_is_not_allowed(rng, tmp_path):
    exposure = make_exposure(rng)
    for arguments, words in (
        (("LZW",), "compression 'LZW'; allowed are None, RICE_1, GZIP_2"),
        (("RICE_1", {"quantise_level": 0.5}), "quantise_level 0.5; 1 to 1000"),
        (("RICE_1", {"quantise_level": float("nan")}), "quantise_level nan"),
        (("RICE_1", {"tile": (0, 5)}), r"tile \(0, 5\)"),
        (("RICE_1", {"tile": (3,)}), r"tile \(3,\)"),
        (("RICE_1", {"tile": 5}), "tile 5; "),
    ):
        *positional, options = arguments if isinstance(arguments[-1], dict) else (*arguments, {})
        with pytest.raises(ConfigError, match=words):
            write(exposure, tmp_path / "x.fits", *positional, **options)
    with pytest.raises(InputError, match="SCI: pixels of float128 cannot be written"):
        write(Exposure(np.zeros((2, 2), np.longdouble)), tmp_path / "x.fits")
    assert not list(tmp_path.iterdir())


@pytest.mark.gpu
@pytest.mark.parametrize("compression", [None, "RICE_1", "GZIP_2"])
@pytest.mark.parametrize("kind", ["f4", "f8", "u2", "i4"])
def test_files_from_a_device_are_the_same_bytes(rng, tmp_path, compression, kind):
    from skydelta.kernels.backend import resolve

    image = star_field(rng, kind=kind) if kind in FLOATS else pixels_of(rng, kind, (300, 257))
    exposure = Exposure(image, star_field(rng), rng.integers(0, 4, (300, 257), np.int32))
    for tile in (None, (32, 50)) if compression else (None,):
        write(exposure, tmp_path / "host.fits", compression, tile=tile)
        write(exposure.to(resolve("cuda")), tmp_path / "device.fits", compression, tile=tile)
        assert (tmp_path / "host.fits").read_bytes() == (tmp_path / "device.fits").read_bytes()


@pytest.mark.parametrize("kind", [np.int16, np.int32, np.uint16])
def test_a_quantisation_without_effect_is_refused(tmp_path, rng, kind):
    whole = Exposure(rng.integers(0, 99, (40, 50)).astype(kind), mask=np.zeros((40, 50), np.int32))
    with pytest.raises(ConfigError, match=r"write: quantise_level has no effect on integers \(u?int\d\d"):
        write(whole, tmp_path / "a.fits", "RICE_1", quantise_level=4)
    assert not list(tmp_path.iterdir())
    write(whole, tmp_path / "a.fits", "RICE_1")
    write(whole.with_(variance=np.ones((40, 50), np.float32)), tmp_path / "b.fits", "RICE_1", quantise_level=4)
    long = Exposure(np.arange(2000).reshape(40, 50))
    with pytest.raises(ConfigError, match=r"write: compression 'GZIP_2' has no effect on 64-bit integers"):
        write(long, tmp_path / "c.fits", "GZIP_2")


def test_a_name_that_ends_in_fz_is_compressed_in_tiles(tmp_path, rng):
    exposure = Exposure(rng.normal(100, 3, (60, 70)).astype(np.float32), mask=np.zeros((60, 70), np.int32))
    write(exposure, tmp_path / "a.fits.fz")
    write(exposure, tmp_path / "b.fits", "GZIP_2")
    assert (tmp_path / "a.fits.fz").read_bytes() == (tmp_path / "b.fits").read_bytes()
    with fits.open(tmp_path / "a.fits.fz") as hdus:
        assert [h.name for h in hdus if isinstance(h, fits.CompImageHDU)] == ["SCI", "DQ"]
        np.testing.assert_array_equal(hdus["SCI"].data, exposure.image)
    write(exposure, tmp_path / "c.fits.fz", "RICE_1")
    with fits.open(tmp_path / "c.fits.fz", disable_image_compression=True) as hdus:
        assert hdus["SCI"].header["ZCMPTYPE"] == "RICE_1"
