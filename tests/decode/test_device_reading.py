# SPDX-License-Identifier: BSD-3-Clause
"""Reading onto a device, on arrays that refuse to mix with the host's: the same pixels, masks, notes and errors."""

import numpy as np
import pytest
import support_kvikio
import support_standin
from astropy.io import fits

import skydelta
from skydelta.errors import InputError
from skydelta.io import direct, many, staging
from skydelta.io.fits import pixels, tiled
from skydelta.io.fits.reader import open_file
from skydelta.io.storage import Memory
from skydelta.kernels import decode
from skydelta.kernels.backend import CPU, Backend
from skydelta.kernels.core.devices import SHARE
from skydelta.kernels.cuda import decode as launcher
from skydelta.kernels.dither import dither_table

SHAPE = (70, 90)


def forms(rng):
    """{name: image HDU}"""
    floats = rng.normal(100, 5, SHAPE).astype(np.float32)
    floats[3, 4], floats[5, 6], floats[7, 8] = np.nan, np.inf, 0
    short = rng.integers(-300, 300, SHAPE).astype(np.int16)
    blank = fits.ImageHDU(short)
    blank.header["BLANK"], blank.header["BSCALE"], blank.header["BZERO"] = -7, 0.5, 3.0

    def coded(data, kind, **more):
        return fits.CompImageHDU(data, compression_type=kind, **more)

    return {
        "float": fits.ImageHDU(floats),
        "unsigned": fits.ImageHDU(short.astype(np.uint16)),
        "blank": blank,
        "rice": coded(short, "RICE_1", tile_shape=(7, 30)),
        "rice unsigned": coded(short.astype(np.uint16), "RICE_1"),
        "quantised": coded(np.where(np.isinf(floats), 1, floats), "RICE_1", quantize_method=2, quantize_level=4),
        "gzip": coded(floats, "GZIP_2", quantize_level=0),
        "plio": coded(np.abs(short).astype(np.int32), "PLIO_1"),
        "hcompress": coded(short, "HCOMPRESS_1", tile_shape=(35, 45)),
        "nocompress": coded(short, "NOCOMPRESS", tile_shape=(9, 31)),
    }


@pytest.fixture
def path(tmp_path, rng):
    path = tmp_path / "a.fits"
    made = forms(rng)
    for name, hdu in made.items():
        hdu.name = name.upper().replace(" ", "_")
    fits.HDUList([fits.PrimaryHDU(), *made.values()]).writeto(path)
    return path


def test_pixels_and_sections(monkeypatch, path):
    boxes = [None, (slice(10, 31), slice(5, 77)), (slice(0, 70), slice(60, 61))]
    with open_file(path) as file:
        asked = [(h, box, dtype) for h in file.hdus[1:] for box in boxes for dtype in ("native", "float32")]
        want = [file.pixels(h.index, box, dtype) for h, box, dtype in asked]
        support_standin.install(monkeypatch)
        monkeypatch.setattr(staging, "PIECE", 4096)
        for (h, box, dtype), pixels in zip(asked, want, strict=True):
            got = file.pixels(h.index, box, dtype, device="cuda")
            assert isinstance(got, support_standin.OnDevice)
            assert got.dtype == pixels.dtype
            np.testing.assert_array_equal(got.get(), pixels, err_msg=h.name)


@pytest.fixture
def late(monkeypatch):
    """A device and a KvikIO whose bytes come only when they are waited for."""
    support_standin.install(monkeypatch)
    support_kvikio.reset("late")
    monkeypatch.setenv(direct.SWITCH, "on")
    monkeypatch.setattr(direct, "_kvikio", lambda: support_kvikio)
    monkeypatch.setattr(direct, "probe", lambda index: direct.Probe(True, "stand-in"))


def test_bytes_that_come_late(path, late):
    with open_file(path) as file:
        for h in file.hdus[1:]:
            for box in (None, (slice(10, 31), slice(5, 77))):
                got = file.pixels(h.index, box, device="cuda")
                np.testing.assert_array_equal(got.get(), file.pixels(h.index, box), err_msg=h.name)
        assert file.counted.device_reads > 10


@pytest.mark.parametrize("name", ["FLOAT", "RICE"])
def test_memory_is_kept_until_nothing_is_written_into_it(monkeypatch, path, late, name):
    def fail(*_):
        assert not support_kvikio.READS
        raise InputError("something else is wrong")

    monkeypatch.setattr(pixels, "_typed", fail)
    with open_file(path) as file:
        with pytest.raises(InputError, match="something else is wrong"):
            file.pixels(name, device="cuda")
        assert len(support_kvikio.READS) == 1


def test_tiles_are_on_their_way_while_cards_are_read(path, late):
    raw = path.read_bytes().replace(b"ZQUANTIZ= 'SUBTRACTIVE_DITHER_2'", b"ZQUANTIZ= 'SUBTRACTIVE_DITHER_9'")
    path.write_bytes(raw)
    with open_file(path) as file:
        with pytest.raises(InputError, match="ZQUANTIZ = 'SUBTRACTIVE_DITHER_9'; allowed"):
            file.pixels("QUANTISED", device="cuda")
        assert len(support_kvikio.READS) == 1, "what had begun was waited for"


@pytest.mark.parametrize("codec", [decode.RAW, decode.RICE, decode.GZIP1])
def test_a_launch_waits_for_bytes_and_nothing_else_does(monkeypatch, codec):
    support_standin.install(monkeypatch)
    done, device = [], Backend("cuda", 0, "cuda")
    monkeypatch.setattr(launcher, "send", lambda tables, _: done.append("tables") or device.asarray(tables))
    monkeypatch.setattr(launcher, "kernel", lambda *_: lambda *_: done.append("launch"))
    monkeypatch.setattr(launcher, "_unpacked", lambda *_: done.append("unpacked") or np.zeros(1, np.uint8))
    tiles = decode.lossless_tiles(np.zeros(1), np.full(1, 80), codec, np.zeros((1, 2)), np.array([[4, 5]]))
    out, heap = device.xp.empty((4, 5), np.float32), device.xp.zeros(80, np.uint8)
    decoded = launcher.decode(out, heap, tiles, decode.Form("float32"), (0, 0), None, 0, 1, lambda: done.append("wait"))
    assert not decoded.status.any()
    unpacking = ["wait", "unpacked"] if codec == decode.GZIP1 else []
    assert done == [*unpacking, "tables", "wait", "launch"]


def test_narrow_sections_take_their_own_bytes(monkeypatch, tmp_path, rng):
    image = rng.normal(0, 1, (5, 20, 9000)).astype(np.float32)
    fits.PrimaryHDU(image).writeto(tmp_path / "wide.fits")
    box = (slice(1, 4), slice(3, 20), slice(8000, 8010))
    support_standin.install(monkeypatch)
    with open_file(tmp_path / "wide.fits") as file:
        before = file.counted.bytes
        np.testing.assert_array_equal(file.pixels(0, box, device="cuda").get(), image[box])
        assert file.counted.bytes - before < image.nbytes


def assert_same(a, b):
    for name in ("image", "variance", "mask"):
        x, y = (np.asarray(getattr(e, name)) for e in (a, b))
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y, err_msg=name)
    assert {**a.notes, "read": 0} == {**b.notes, "read": 0}


@pytest.mark.parametrize("dtype", ["float32", "native"])
def test_exposures(monkeypatch, path, dtype):
    with open_file(path) as file:
        names = [h.name for h in file.hdus[1:]]
    want = [skydelta.read(path, image=name, dtype=dtype, device="cpu") for name in names]
    support_standin.install(monkeypatch)
    one = [skydelta.read(path, image=name, dtype=dtype, device="cuda") for name in names]
    many = list(skydelta.read_many([path], names, dtype=dtype, device="cuda", depth=3))
    for found in (one, many):
        assert all(isinstance(e.image, support_standin.OnDevice) and e.backend.is_gpu for e in found)
        for a, b in zip(found, want, strict=True):
            assert_same(a, b)


def test_planes_beside_the_image(monkeypatch, tmp_path, rng):
    image = rng.normal(100, 3, SHAPE).astype(np.float32)
    hdus = [
        fits.CompImageHDU(image, name="SCI", quantize_level=16),
        fits.CompImageHDU(0 * image + 9, name="VAR", compression_type="GZIP_2", quantize_level=0),
        fits.ImageHDU((image > 105).astype(np.int32), name="DQ"),
    ]
    fits.HDUList([fits.PrimaryHDU(), *hdus]).writeto(tmp_path / "a.fits")
    want = skydelta.read(tmp_path / "a.fits", device="cpu")
    support_standin.install(monkeypatch)
    assert_same(skydelta.read(tmp_path / "a.fits", device="cuda"), want)


PLANES = {
    "VAR, MP_* cards": ("VAR", np.int32, [1, 4, 1 << 20], {"MP_BAD": 0, "MP_CR": 2, "MP_SAT": 20}),
    "ERR, JWST": ("ERR", np.uint32, [1, 1 << 4, 1 << 31], {"TELESCOP": "JWST"}),
    "WHT, codes": ("WHT", np.int16, [1, 7, 90], {"INSTRUME": "DECam", "PROCTYPE": "InstCal", "PLVER": "V4.8"}),
    "VAR_POISSON, any": ("VAR_POISSON", np.float32, [1, 2, np.nan], {}),
}


@pytest.mark.parametrize("kind", PLANES)
def test_planes_are_judged_where_they_are(monkeypatch, tmp_path, rng, kind):
    name, dtype, values, cards = PLANES[kind]
    image = rng.normal(500, 3, (970, 1000))
    stated = np.full(image.shape, {"ERR": 3, "WHT": 1 / 9}.get(name, 9), np.float32)
    stated.flat[:5] = np.nan, np.inf, 0, -1, 1e30
    mask = np.zeros(image.shape, dtype)
    mask[5, 1:4] = values
    planes = fits.ImageHDU(mask, name="DQ")
    planes.header.update(cards)
    header = fits.Header({"SATURATE": 509.0, **cards})
    hdus = [fits.ImageHDU(image.astype(np.float32), header, "SCI"), fits.ImageHDU(stated, name=name), planes]
    fits.HDUList([fits.PrimaryHDU(), *hdus]).writeto(tmp_path / "a.fits")
    want = skydelta.read(tmp_path / "a.fits", device="cpu")
    copies = support_standin.install(monkeypatch)
    got = skydelta.read(tmp_path / "a.fits", device="cuda")
    assert max(copies["up largest"], copies["down largest"]) < 4 * image.size
    assert all(isinstance(p, support_standin.OnDevice) for p in (got.image, got.variance, got.mask))
    assert_same(got, want)
    assert got.planes == want.planes


@pytest.mark.parametrize("cards", [{}, {"GAIN": 2.0, "RDNOISE": 5.0}, {"GAIN": 2.0, "RDNOISE": 500.0}])
def test_a_variance_is_estimated_where_the_image_is(monkeypatch, tmp_path, rng, cards):
    image = rng.normal(400, np.sqrt(200 + 6.25), (970, 1000)).astype(np.float32)
    image[200:210, 300:310] += 5000
    image[100:240, 100:240] = np.nan
    fits.PrimaryHDU(image, fits.Header(cards)).writeto(tmp_path / "a.fits")
    want = skydelta.read(tmp_path / "a.fits", device="cpu")
    copies = support_standin.install(monkeypatch)
    got = skydelta.read(tmp_path / "a.fits", device="cuda")
    assert max(copies["up largest"], copies["down largest"]) < image.nbytes
    assert isinstance(got.variance, support_standin.OnDevice)
    assert_same(got, want)


def test_given_planes_are_judged_on_the_device(monkeypatch, tmp_path, rng):
    image = rng.normal(500, 3, SHAPE).astype(np.float32)
    fits.PrimaryHDU(image).writeto(tmp_path / "a.fits")
    given = {"sigma": np.full(SHAPE, 3.0, ">f8"), "mask": image > 505}
    want = skydelta.read(tmp_path / "a.fits", **given, device="cpu")
    support_standin.install(monkeypatch)
    assert_same(skydelta.read(tmp_path / "a.fits", **given, device="cuda"), want)


@pytest.mark.parametrize("name", ["RICE", "QUANTISED", "GZIP", "FLOAT"])
def test_damage_is_told_in_the_same_words(monkeypatch, path, name):
    with open_file(path) as file:
        hdu = file.find(name)
        place = hdu.data + hdu.size - 40
    raw = bytearray(path.read_bytes())
    raw[place : place + 40] = b"\xff" * 40
    if name == "FLOAT":
        del raw[hdu.data + 100 :]
    said = []
    for device in ("cpu", "cuda"):
        with monkeypatch.context() as patch:
            if device == "cuda":
                support_standin.install(patch)
            with pytest.raises(InputError) as caught:
                skydelta.read(bytes(raw), image=name, device=device)
            said.append(str(caught.value))
    assert said[0] == said[1]


def test_pieces_behind_the_end_of_a_file_are_told_in_the_same_words(monkeypatch):
    support_standin.install(monkeypatch)
    content, said = Memory(bytes(400_000)), []
    for backend in (CPU, Backend("cuda", 0, "cuda")):
        with pytest.raises(InputError, match="100 bytes expected from byte 399950, 50 present") as caught:
            tiled.gather(content, 0, np.array([0, 399_950]), np.array([10, 100]), backend)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_what_is_read_ahead_fits_the_device(monkeypatch, path):
    budgets = []
    real = many._Budget
    monkeypatch.setattr(many, "_Budget", lambda limit: budgets.append(limit) or real(limit))
    monkeypatch.setattr(many, "free_memory", lambda: 1 << 40)
    support_standin.install(monkeypatch)
    assert len(list(skydelta.read_many([path], ["RICE", "FLOAT"], device="cuda"))) == 2
    assert budgets == [int(SHARE * (1 << 30)) // many.SHARE]


def test_numbers_of_the_dither_are_there_for_every_stream(monkeypatch):
    """They are sent once, on the stream of whoever comes first, and used on others."""
    waited = []
    support_standin.install(monkeypatch)
    monkeypatch.setattr(support_standin._Stream, "synchronize", lambda _: waited.append(1))
    make = dither_table.__wrapped__
    assert make(Backend("cuda", 0, "cuda")).get().tobytes() == make(CPU).tobytes()
    assert waited == [1]
