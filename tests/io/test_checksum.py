# SPDX-License-Identifier: BSD-3-Clause
"""DATASUM and CHECKSUM are verified as files are read: damage is told, sound files never are. The oracle is astropy."""

import json
import logging
import re
import warnings

import numpy as np
import pytest
import support_cli
import support_io
import support_kvikio
import support_standin
from astropy.io import fits
from astropy.table import Table

import skydelta
from skydelta.errors import ConfigError, ExitCode, InputError
from skydelta.io import direct, staging, tally
from skydelta.io.fits import tiled
from skydelta.io.fits.checksum import recorded, tally_of, verdict
from skydelta.kernels import checksum as kernel
from skydelta.kernels.backend import resolve
from skydelta.stages.base import Context
from skydelta.stages.load import Load, LoadKernel
from skydelta.stages.stack import Stack

SHAPE = (60, 90)


def oracle(data, phase=0):
    """Ones-complement sum, word by word, as appendix J writes it."""
    padded = bytes(phase) + bytes(data)
    padded += bytes(-len(padded) % 4)
    total = 0
    for k in range(0, len(padded), 4):
        total += int.from_bytes(padded[k : k + 4], "big")
        total = (total & 0xFFFFFFFF) + (total >> 32)
    return total


def coded(data, kind, **more):
    return fits.CompImageHDU(data, compression_type=kind, **more)


@pytest.fixture
def path(tmp_path, rng):
    """Every way that pixels are stored, a table between them, sums by astropy."""
    floats = rng.normal(100, 5, SHAPE).astype(np.float32)
    floats[3, 4] = np.nan
    short = rng.integers(-300, 300, SHAPE).astype(np.int16)
    blank = fits.ImageHDU(short)
    blank.header["BLANK"] = -7
    hdus = [
        fits.ImageHDU(floats), fits.ImageHDU(short.astype(np.uint16)), blank, fits.ImageHDU(short.astype(">f8")),
        coded(short, "RICE_1", tile_shape=(7, 30)), coded(floats, "RICE_1", quantize_method=2, quantize_level=4),
        fits.BinTableHDU(Table({"x": np.arange(5), "words": ["a", "bc", "d", "", "e"]})),
        coded(floats, "GZIP_1", quantize_level=0), coded(floats, "GZIP_2", quantize_level=0),
        coded(np.abs(short).astype(np.int32), "PLIO_1"), coded(short, "HCOMPRESS_1", tile_shape=(30, 45)),
        coded(short, "NOCOMPRESS", tile_shape=(9, 31)), fits.ImageHDU(np.stack([short] * 3)),
    ]  # fmt: skip
    for i, hdu in enumerate(hdus):
        hdu.name = f"H{i + 1}"
    fits.HDUList([fits.PrimaryHDU(), *hdus]).writeto(tmp_path / "a.fits", checksum=True)
    return tmp_path / "a.fits"


def complaints(path):
    """What astropy says of the sums of a file."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with fits.open(path, checksum=True, disable_image_compression=True) as hdus:
            len(hdus)
    return [str(w.message) for w in said if "verification failed" in str(w.message)]


def flipped(path, at, bit):
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1 << bit
    out = path.with_name("damaged.fits")
    out.write_bytes(raw)
    return out


@pytest.mark.parametrize("device", [False, True])
def test_sums_of_any_part(rng, monkeypatch, device):
    if device:
        support_standin.install(monkeypatch)
        monkeypatch.setattr(kernel, "CHUNK", 3000)
    data = np.concatenate([rng.integers(0, 256, 5000, np.uint8), np.full(5000, 255, np.uint8)])
    there = resolve("cuda").asarray(data) if device else data
    for start, size, phase in [(0, 10000, 0), (1, 0, 2), *rng.integers(0, [5000, 4000, 4], (60, 3)), (3, 2, 1)]:
        part = slice(int(start), int(start + size))
        assert kernel.word_sum(there[part], int(phase)) == oracle(data[part], int(phase))
    if not device:
        frozen = data.copy()
        frozen.flags.writeable = False
        assert kernel.word_sum(frozen[7:]) == oracle(data[7:])


def test_a_tally_counts_every_byte_once(rng, monkeypatch):
    from skydelta.io.storage import Memory

    monkeypatch.setattr(tally, "PIECE", 100)
    raw = rng.integers(0, 256, 4000, np.uint8).tobytes()
    for end in (3600, 4400):  # before and behind the end of the content
        counted = tally.Tally(Memory(raw), 400, end)
        for start, size in rng.integers(0, [3000, 900], (8, 2)).tolist():
            out = np.empty(size, np.uint8)
            assert counted.read_into(start, out) == size
            assert out.tobytes() == raw[start : start + size] == counted.read(start, size)
        assert counted.total() == oracle(raw[400:end])


def test_sound_files_are_never_doubted(path, caplog):
    assert not complaints(path)
    with skydelta.open(path) as file:
        for hdu in file.hdus:
            assert recorded(hdu) == ["DATASUM", "CHECKSUM"]
            assert not verdict(hdu, tally_of(hdu, file.content))[0]
            if hdu.is_image and hdu.shape:
                file.pixels(hdu.index, checksum="error")
                file.pixels(hdu.index, dtype="float32")
    assert not caplog.records


@pytest.mark.filterwarnings("ignore::astropy.utils.exceptions.AstropyWarning")
def test_every_flipped_bit_is_told(path, rng):
    with skydelta.open(path) as file:
        hdus = [h for h in file.hdus if h.is_image and h.shape]
    for hdu in hdus:
        padded = -(-hdu.size // 2880) * 2880
        data = rng.integers(hdu.data, hdu.data + hdu.size, 12)
        padding = [hdu.data + padded - 1]
        header = rng.integers(hdu.start, hdu.data, 12)
        for at in [*data, *padding, *header]:
            damaged = flipped(path, int(at), int(rng.integers(8)))
            if damaged.read_bytes()[hdu.start : hdu.data].count(b"CHECKSUM=") == 0:
                continue  # its own name is hit: nobody can know
            with pytest.raises(InputError, match=r"damaged\.fits: "):
                skydelta.open(damaged).pixels(hdu.index, checksum="error")
        damaged = flipped(path, int(data[0]), 3)
        assert complaints(damaged)
        with pytest.raises(InputError, match=rf"damaged\.fits: HDU {hdu.index} \({hdu.name}\): "):
            skydelta.open(damaged).pixels(hdu.index, checksum="error")
        for other in hdus[:2]:
            if other is not hdu:
                skydelta.open(damaged).pixels(other.index, checksum="error")


def test_parts_are_not_verified_and_take_no_more_bytes(path):
    with skydelta.open(path) as file:
        at = file.find("H1").data + 4 * 90 * 2
    damaged = flipped(path, at, 1)
    box = (slice(0, 10), slice(5, 20))
    sizes = {}
    for policy in ("error", "ignore"):
        with skydelta.open(damaged) as file:
            before = file.counted.bytes
            for name in ("H1", "H5", "H8"):
                file.pixels(name, box, checksum=policy)
            sizes[policy] = file.counted.bytes - before
    assert sizes["error"] == sizes["ignore"]
    found = skydelta.read(f"{damaged}[H1][1:20,1:10]", checksum="error", device="cpu")
    assert found.notes["checksum"] == {"policy": "error", "section": 1}


@pytest.mark.parametrize("name", ["H1", "H2", "H5"])
def test_a_section_that_is_the_whole_image_is_verified(path, name):
    with skydelta.open(path) as file:
        at = file.find(name).data + file.find(name).size // 2
    damaged, (ny, nx) = flipped(path, at, 1), SHAPE
    for whole in (f"{damaged}[{name}][1:{nx},1:{ny}]", f"{damaged}[{name}]"):
        with pytest.raises(InputError, match="DATASUM"):
            skydelta.read(whole, checksum="error", device="cpu")
    with skydelta.open(damaged) as file, pytest.raises(InputError, match="DATASUM"):
        file.pixels(name, (slice(None), slice(0, nx)), checksum="error")
    found = skydelta.read(f"{path}[{name}][1:{nx},1:{ny}]", checksum="error", device="cpu")
    assert found.notes["checksum"] == {"policy": "error", "right": 1}
    assert found.notes["image"]["section"] == f"[1:{nx},1:{ny}]"


@pytest.mark.parametrize("name", ["H1", "H3", "H5", "H6", "H8", "H11"])
def test_no_byte_is_read_twice(path, monkeypatch, name):
    monkeypatch.setattr(tiled, "GAP", -1)  # each tile by a read of its own
    with skydelta.open(path) as file:
        hdu = file.find(name)
        before = file.counted.bytes
        file.pixels(name, checksum="ignore")
        plain = file.counted.bytes - before
        before = file.counted.bytes
        file.pixels(name, checksum="error")
        more = file.counted.bytes - before - plain
    assert more == -hdu.size % 2880, "the header was read when the file was opened"


def restated(path, index, changes, out):
    """The file with other cards in an HDU, each over a card of its keyword; nothing else is touched."""
    raw = bytearray(path.read_bytes())
    with skydelta.open(path) as file:
        hdu = file.hdus[index]
    for keyword, value in changes.items():
        at = raw.index(f"{keyword:8}=".encode(), hdu.start, hdu.data)
        raw[at : at + 80] = f"{keyword:8}= {value}".ljust(80).encode()
    out.write_bytes(raw)
    return out


def test_what_sums_may_look_like(path, tmp_path):
    with fits.open(path) as hdus:
        right = int(hdus[1].header["DATASUM"])
    unknown = {"CHECKSUM": "'                '"}

    def said(datasum, **more):
        other = restated(path, 1, {"DATASUM": datasum, **unknown, **more}, tmp_path / "b.fits")
        with skydelta.open(other) as file:
            return verdict(file.hdus[1], tally_of(file.hdus[1], file.content))[0]

    for good in (f"'{right}'", f"'  000{right}  '", f"{right}", f"{right}.0", "'        '", "'0       '", "0", ""):
        assert not said(good), good
        assert not said(good, CHECKSUM="'0000000000000000'"), good
    assert f"DATASUM = {right - 1}, the data sum to {right}: the data have changed" in said(f"'{right - 1}'")
    for bad in ("'12a'", "'-1'", "-5", "T", f"'{1 << 32}'", "1.5"):
        assert "no sum of 32 bits" in said(bad), bad
    # what keeps the place of a sum says nothing; a CHECKSUM beside it does
    for kept, counted in (("'0'", "absent"), (f"'{right}'", "right")):
        other = restated(path, 1, {"DATASUM": kept, **unknown, "CHECKSUM": "'0000000000000000'"}, tmp_path / "c.fits")
        assert skydelta.read(other, image=1, checksum="error").notes["checksum"] == {"policy": "error", counted: 1}
    assert "DATASUM = 0, the data sum to" in said("'0'", CHECKSUM="'abcdefghijklmnop'")
    assert "header or data have changed" in said("''", CHECKSUM="'abcdefghijklmnop'")


def test_data_without_bytes_and_without_padding(tmp_path, rng):
    image = rng.integers(0, 99, (7, 11), np.int32)
    fits.HDUList([fits.PrimaryHDU(), fits.ImageHDU(image)]).writeto(tmp_path / "a.fits", checksum=True)
    raw = (tmp_path / "a.fits").read_bytes()
    (tmp_path / "b.fits").write_bytes(raw[: -2880 + image.nbytes])
    for name in ("a.fits", "b.fits"):
        with skydelta.open(tmp_path / name) as file:
            for hdu in file.hdus:
                assert not verdict(hdu, tally_of(hdu, file.content))[0]
            file.pixels(1, checksum="error")


def test_header_and_data_are_told_apart(path, tmp_path):
    raw = path.read_bytes()
    with skydelta.open(path) as file:
        hdu = file.hdus[1]
    edited = tmp_path / "edited.fits"
    edited.write_bytes(raw[: hdu.start] + raw[hdu.start :].replace(b"'H1      '", b"'G1      '", 1))
    assert len(complaints(edited)) == 1
    with pytest.raises(
        InputError, match=r"CHECKSUM = .*DATASUM holds: the header has changed since, the data have not"
    ):
        skydelta.open(edited).pixels(1, checksum="error")
    with pytest.raises(InputError, match=r"DATASUM = \d+, the data sum to \d+: the data have changed") as told:
        skydelta.open(flipped(path, hdu.data + 5, 0)).pixels(1, checksum="error")
    assert told.value.numbers["datasum"] != told.value.numbers["found"]
    # a sum that was wrong from the beginning, under a CHECKSUM that holds
    with fits.open(path) as hdus:
        hdus[1].header["DATASUM"] = "17"
        hdus[1].header["CHECKSUM"] = "0" * 16
        total = hdus[1]._calculate_checksum(int(fits.getheader(path, 1)["DATASUM"]))
    wrong = restated(path, 1, {"DATASUM": "'17'", "CHECKSUM": f"'{total}'"}, tmp_path / "wrong.fits")
    with skydelta.open(wrong) as file:
        assert "DATASUM = 17" in verdict(file.hdus[1], tally_of(file.hdus[1], file.content))[0]


def test_holes_between_tiles_are_summed(tmp_path, rng):
    """A heap with bytes that no tile uses, further apart than what is read over."""
    image = rng.integers(0, 999, (4, 50)).astype(np.int16)
    coded(image, "RICE_1").writeto(tmp_path / "a.fits")
    with fits.open(tmp_path / "a.fits", disable_image_compression=True) as hdus:
        header, row_bytes = hdus[1].header, hdus[1].header["NAXIS1"]
    with skydelta.open(tmp_path / "a.fits") as file:
        raw, hdu = file.content.read(0, file.content.size), file.hdus[1]
    data = bytearray(raw[hdu.data : hdu.data + hdu.size])
    hole = rng.integers(0, 256, 2 * tiled.GAP, np.uint8).tobytes()
    last = 3 * row_bytes + 4  # offset of the last tile
    start = int.from_bytes(data[last : last + 4], "big")
    data[last : last + 4] = (start + len(hole)).to_bytes(4, "big")
    data[4 * row_bytes + start : 4 * row_bytes + start] = hole
    data += bytes(-len(data) % 2880)
    header["PCOUNT"] += len(hole)
    header["DATASUM"] = str(oracle(data))
    path = tmp_path / "b.fits"
    path.write_bytes(raw[: hdu.start] + header.tostring().encode() + data)
    assert not complaints(path)
    with skydelta.open(path) as file:
        np.testing.assert_array_equal(file.pixels(1, checksum="error"), image)
        at = file.hdus[1].data + 4 * row_bytes + start + 70000
    with pytest.raises(InputError, match="the data have changed"):
        skydelta.open(flipped(path, at, 0)).pixels(1, checksum="error")


@pytest.mark.parametrize("route", ["page-locked", "kvikio", "kvikio short"])
def test_bytes_that_go_to_a_device_are_summed_there(path, monkeypatch, route):
    with skydelta.open(path) as file:
        hdus = [h for h in file.hdus if h.is_image and h.shape]
    support_standin.install(monkeypatch)
    monkeypatch.setattr(staging, "PIECE", 4096)
    monkeypatch.setattr(kernel, "CHUNK", 5000)
    if route != "page-locked":
        support_kvikio.reset(*route.split()[1:])
        monkeypatch.setenv(direct.SWITCH, "on")
        monkeypatch.setattr(direct, "_kvikio", lambda: support_kvikio)
        monkeypatch.setattr(direct, "probe", lambda index: direct.Probe(True, "stand-in"))
    summed = []
    launch = kernel._lanes
    monkeypatch.setattr(kernel, "_lanes", lambda data, phase: summed.append(len(data)) or launch(data, phase))
    for hdu in hdus:
        with skydelta.open(path) as file:
            file.pixels(hdu.index, device="cuda", checksum="error")
            if hdu.compression in ("", "RICE_1"):
                assert sum(summed) > 0.9 * (hdu.size - 2880), "not the host's work"
            before = file.counted.bytes
            if route == "kvikio" and not hdu.compression:
                file.pixels(hdu.index, device="cuda")
                assert file.counted.bytes - before < 2880 + hdu.data - hdu.start, "pixels do not pass the host"
        summed.clear()
        for at in (hdu.data + hdu.size // 2, hdu.data + hdu.size - 1):
            with pytest.raises(InputError, match=r"damaged\.fits: HDU"):
                skydelta.open(flipped(path, at, 2)).pixels(hdu.index, device="cuda", checksum="error")


@pytest.fixture
def visit(tmp_path, rng):
    """SCI, VAR and DQ, and the same with a pixel of VAR changed."""
    image = rng.normal(100, 1, SHAPE).astype(np.float32)
    planes = {"SCI": image, "VAR": np.ones_like(image), "DQ": np.zeros(SHAPE, np.int32)}
    hdus = [fits.ImageHDU(plane, name=name) for name, plane in planes.items()]
    fits.HDUList([fits.PrimaryHDU(), *hdus]).writeto(tmp_path / "visit.fits", checksum=True)
    with skydelta.open(tmp_path / "visit.fits") as file:
        at = file.find("VAR").data + 4 * 90 * 7 + 2
    return tmp_path / "visit.fits", flipped(tmp_path / "visit.fits", at, 4)


def test_what_a_read_says(visit, caplog):
    sound, damaged = visit
    assert skydelta.read(sound, device="cpu").notes["checksum"] == {"policy": "warn", "right": 3}
    with caplog.at_level(logging.WARNING):
        found = skydelta.read(damaged, device="cpu")
    (line,) = found.notes["checksum"]["wrong"]
    assert line.startswith("damaged.fits HDU 2 (VAR): DATASUM = ")
    assert found.notes["warnings"] == [line]
    assert found.notes["checksum"]["right"] == 2
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{damaged}: HDU 2 (VAR): DATASUM = ")
    caplog.clear()
    quiet = skydelta.read(damaged, device="cpu", checksum="ignore")
    assert quiet.notes["checksum"] == {"policy": "ignore"}
    assert "warnings" not in quiet.notes
    assert not caplog.records
    with pytest.raises(InputError, match=r"HDU 2 \(VAR\): DATASUM"):
        skydelta.read(damaged, device="cpu", checksum="error")
    with pytest.raises(InputError, match=r"HDU 2 \(VAR\): DATASUM"):
        skydelta.read(sound, variance=f"{damaged}[VAR]", device="cpu", checksum="error")
    for call in (skydelta.read, lambda path, **named: skydelta.open(path).pixels("SCI", **named)):
        with pytest.raises(ConfigError, match="checksum 'strict'; allowed are warn, error, ignore"):
            call(sound, checksum="strict")


def bit_of(path, name, card, after, bit):
    """The file with a bit of a card flipped, so many bytes behind its beginning."""
    with skydelta.open(path) as file:
        hdu = file.find(name)
        raw = file.content.read(0, file.content.size)
    return flipped(path, raw.index(f"{card:8}=".encode(), hdu.start, hdu.data) + after, bit)


@pytest.mark.filterwarnings("ignore::astropy.utils.exceptions.AstropyWarning")
@pytest.mark.parametrize(
    ("name", "kind", "after"),
    [("VAR", "variance", 11), ("VAR", "variance", 0), ("VAR", "variance", 8), ("DQ", "mask", 11)],
)
def test_a_plane_whose_name_is_damaged_is_not_hidden_in_silence(visit, name, kind, after):
    damaged = bit_of(visit[0], name, "EXTNAME", after, 0)
    assert len(complaints(damaged)) == 1
    index = {"VAR": 2, "DQ": 3}[name]
    calls = {
        "whole": lambda **named: skydelta.read(damaged, device="cpu", **named),
        "part": lambda **named: skydelta.read(f"{damaged}[1:20,1:30]", device="cpu", **named),
        "given": lambda **named: skydelta.read(visit[0], mask=damaged, device="cpu", **named),
        "many": lambda **named: next(iter(skydelta.read_many([damaged], device="cpu", **named))),
        "pixels": lambda **named: skydelta.open(damaged).pixels(**named),
    }
    for call in calls.values():
        with pytest.raises(InputError, match=rf"damaged\.fits: HDU {index}.*: .*the header has changed since"):
            call(checksum="error")
    for how in ("whole", "part", "many"):
        found = calls[how]()
        assert found.notes[kind]["source"] in ("measured", "none")
        (line,) = found.notes["checksum"]["wrong"]
        assert re.match(rf"damaged\.fits HDU {index}.*: CHECKSUM does not hold", line)
        assert line in found.notes["warnings"]
    assert "wrong" not in skydelta.read(damaged, device="cpu", checksum="ignore").notes["checksum"]
    assert skydelta.open(damaged).pixels("SCI", checksum="error").shape == SHAPE, "asked for by name"


def test_headers_of_other_hdus_are_judged_in_one_line_without_their_data(tmp_path, rng):
    """Twelve detectors of which ten have cards that a program changed; an HDU without DATASUM is read on demand."""
    image = rng.normal(100, 1, SHAPE).astype(np.float32)
    hdus = [fits.ImageHDU(image, name=f"CCD{i}") for i in range(12)]
    fits.HDUList([fits.PrimaryHDU(), *hdus]).writeto(tmp_path / "a.fits", checksum=True)
    raw = (tmp_path / "a.fits").read_bytes()
    for i in range(2, 12):
        raw = raw.replace(f"'CCD{i}".encode(), f"'DET{i}".encode())
    (tmp_path / "b.fits").write_bytes(raw)
    sizes = {}
    for name in ("a.fits", "b.fits"):
        with skydelta.open(tmp_path / name) as file:
            found = skydelta.read(file, image="CCD0", device="cpu")
            sizes[name] = file.counted.bytes
    assert sizes["a.fits"] == sizes["b.fits"]
    (line,) = found.notes["checksum"]["wrong"]
    assert line.startswith("b.fits HDU 3 (DET2), HDU 4 (DET3), ")
    assert " and 2 more: " in line
    for kept in ("'0'", ""):
        bare = restated(tmp_path / "a.fits", 5, {"DATASUM": kept}, tmp_path / "c.fits")
        restated(bare, 5, {"CHECKSUM": f"'{'0' * 16}'"}, tmp_path / "d.fits")
        with skydelta.open(tmp_path / "d.fits") as file:
            hdu = file.hdus[5]
            total = oracle(file.content.read(hdu.start, hdu.data + -(-hdu.size // 2880) * 2880 - hdu.start))
        made = fits.ImageHDU()._char_encode(~total & 0xFFFFFFFF)
        sound = restated(tmp_path / "d.fits", 5, {"CHECKSUM": f"'{made}'"}, tmp_path / "c.fits")
        with skydelta.open(sound) as file:
            assert not verdict(file.hdus[5], tally_of(file.hdus[5], file.content))[0]
        assert skydelta.read(sound, image="CCD0", device="cpu", checksum="error").notes["checksum"]["right"] == 1
        damaged = bit_of(sound, "CCD4", "EXTNAME", 12, 1)
        assert ("wrong" in skydelta.read(damaged, image="CCD0", device="cpu").notes["checksum"]) == bool(kept)
        with pytest.raises(InputError, match=r"HDU 5 \(CAD4\): CHECKSUM does not hold"):
            skydelta.read(damaged, image="CCD0", device="cpu", checksum="error")


@pytest.mark.filterwarnings("ignore::astropy.utils.exceptions.AstropyWarning")
def test_a_damaged_wcs_is_said_to_be_that(tmp_path, rng):
    header = support_io.tan().to_header()
    image = fits.ImageHDU(rng.normal(100, 1, SHAPE).astype(np.float32), header, name="SCI")
    fits.HDUList([fits.PrimaryHDU(), image]).writeto(tmp_path / "a.fits", checksum=True)
    for after, said in ((2, "CRVAL1 is missing"), (15, "no number, and taken as 0"), (29, None)):
        damaged = bit_of(tmp_path / "a.fits", "SCI", "CRVAL1", after, 2)
        for source in (damaged, f"{damaged}[1:20,1:30]"):
            found = skydelta.read(source, device="cpu")
            (line,) = found.notes["checksum"]["wrong"]
            assert re.match(r"damaged\.fits HDU 1 \(SCI\): CHECKSUM .* the WCS among them, cannot be trusted", line)
            assert said is None or any(said in other for other in found.notes["warnings"][1:])
            with pytest.raises(InputError, match=r"HDU 1 \(SCI\): CHECKSUM .* the WCS among them, cannot be trusted"):
                skydelta.read(source, device="cpu", checksum="error")
    # cards of a primary without pixels go for the image too
    damaged = flipped(tmp_path / "a.fits", 80 + 60, 0)
    with pytest.raises(InputError, match=r"HDU 0: CHECKSUM does not hold: the header has changed"):
        skydelta.read(damaged, device="cpu", checksum="error")


def test_many_files(visit):
    sound, damaged = visit
    found = list(skydelta.read_many([sound, damaged, sound], device="cpu", checksum="error", on_error="yield"))
    assert [isinstance(f, InputError) for f in found] == [False, True, False]
    with pytest.raises(InputError, match=r"damaged\.fits: HDU 2 \(VAR\): DATASUM"):
        list(skydelta.read_many([sound, damaged], device="cpu", checksum="error"))
    assert [len(f.notes["checksum"].get("wrong", [])) for f in skydelta.read_many(visit, device="cpu")] == [0, 1]


def test_the_stage_flags(visit):
    damaged, flags = visit[1], []
    for path in visit:
        ctx = Context(resolve("cpu"), id="test")
        Load().execute(ctx, {"path": str(path)})
        flags.append(ctx.flags)
        assert ctx.metrics["checksum"]["policy"] == "warn"
    assert not flags[0]
    assert list(flags[1]) == ["checksum"]
    assert flags[1]["checksum"].startswith("damaged.fits HDU 2 (VAR): DATASUM")
    with pytest.raises(InputError, match="DATASUM"):
        Load(checksum="error").execute(Context(resolve("cpu"), id="test"), {"path": str(damaged)})


def test_real_files_are_doubted_where_astropy_doubts_them(shared_data):
    verified = 0
    for path in sorted((shared_data / "fits").rglob("*.f*")):
        try:
            file = skydelta.open(path)
        except InputError:
            continue
        with file:
            said = [verdict(h, tally_of(h, file.content))[0] for h in file.hdus if not h.fault and recorded(h)]
        if said and path.suffix != ".Z":
            verified += len(said)
            assert bool([s for s in said if s]) == bool(complaints(path)), path.name
    assert verified > 10


FLOW = """
version = 1
name = "copy"
[inputs]
science = "damaged.fits"
[[steps]]
stage = "load"
inputs = { path = "science" }
[[steps]]
stage = "write_image"
inputs = { image = "science" }
file = "copy.fits"
"""


def test_a_run_records_it_or_fails(visit, tmp_path):
    (tmp_path / "copy.toml").write_text(FLOW)
    codes = {}
    for policy in ("warn", "error", "ignore"):
        out = tmp_path / policy
        words = ["--set", f"steps.load.checksum={policy}", "--device", "cpu", "-o", out]
        done = support_cli.call("run", tmp_path / "copy.toml", *words)
        codes[policy] = done.exit_code
        (receipt,) = [json.loads(p.read_text()) for p in out.glob("items/*/receipt.json")]
        flags = {name: text for step in receipt["steps"] for name, text in step["flags"].items()}
        if policy == "error":
            assert done.stderr == f"skydelta: load: {receipt['error']['message'].removeprefix('load: ')}\n"
            assert f"{visit[1]}: HDU 2 (VAR): DATASUM = " in done.stderr
            continue
        assert list(flags) == (["checksum"] if policy == "warn" else [])
        page = (out / "report.html").read_text()
        assert ("damaged.fits HDU 2 (VAR): DATASUM" in page) == (policy == "warn")
        assert ("flag checksum: damaged.fits HDU 2 (VAR)" in done.stdout) == (policy == "warn")
    # as a file that is damaged in another way
    visit[1].write_bytes(visit[1].read_bytes()[:-2880])
    cut = support_cli.call("run", tmp_path / "copy.toml", "--device", "cpu", "-o", tmp_path / "cut")
    assert "data are truncated" in cut.stderr
    assert codes == {"warn": 0, "error": cut.exit_code, "ignore": 0}
    assert cut.exit_code == ExitCode.NOTHING_USABLE


def test_stacks_and_stored_kernels_are_flagged(visit, tmp_path, rng):
    sound, damaged = visit
    ctx = Context(resolve("cpu"))
    images = [str(sound), str(damaged), str(sound)]
    Stack(aligned=True, scaling="none", background="none", method="mean").run(ctx, images=images)
    assert [text.partition(": ")[0] for name, text in ctx.flags.items() if "checksum" in name] == [
        "damaged.fits HDU 2 (VAR)"
    ]
    support_io.make_kernel(rng).save(tmp_path / "k.fits")
    with skydelta.open(tmp_path / "k.fits") as file:
        at = file.find("KERNEL").data + 100
    for path, flags in ((tmp_path / "k.fits", []), (flipped(tmp_path / "k.fits", at, 0), ["checksum"])):
        ctx = Context(resolve("cpu"))
        LoadKernel(file=str(path)).run(ctx)
        assert list(ctx.flags) == flags


@pytest.mark.parametrize("compression", [None, "RICE_1"])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("behind", [2, 3])
def test_a_header_that_cannot_be_read_does_not_hide_planes_in_silence(tmp_path, rng, compression, behind, first):
    """A flipped bit in the first keyword or the blanks behind END: nothing of the HDU, or behind it, can be found."""
    exposure = support_io.make_exposure(rng)
    path = tmp_path / "p.fits"
    skydelta.write(exposure, path, compression)
    data = bytearray(path.read_bytes())
    with skydelta.open(path) as file:
        at = file.hdus[behind].start if first else file.hdus[behind].data - 1
    data[at] ^= 1
    path.write_bytes(data)
    why = "header begins with b'YTENSION'" if first else "header is not filled with blanks"
    words = rf"p.fits.* HDU {behind}.*cannot be read, and what follows it.* is lost: {why}"
    with pytest.raises(InputError, match=words.replace(".* HDU", ": HDU")):
        skydelta.read(path, device="cpu", checksum="error")
    for policy in ("warn", "ignore"):
        found = skydelta.read(path, device="cpu", checksum=policy)
        assert any(re.search(words, line) for line in found.notes["checksum"]["wrong"])
        assert any(re.search(words, line) for line in found.notes["warnings"])
