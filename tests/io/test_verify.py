# SPDX-License-Identifier: BSD-3-Clause
"""`inspect --verify` reads everything: it names what is damaged, and nothing else."""

import numpy as np
import pytest
import support_cli
from astropy.io import fits
from astropy.table import Table

import skydelta
from skydelta.errors import InputError
from skydelta.io.fits import verify
from skydelta.io.fits.reader import inspect

SHAPE = (60, 90)
KINDS = {"RICE_1": (7, 30), "GZIP_1": (1, 90), "GZIP_2": (16, 90), "PLIO_1": (1, 90), "HCOMPRESS_1": (30, 45)}


@pytest.fixture
def image(rng):
    return rng.integers(0, 3000, SHAPE).astype(np.int16)


def write(path, image, kind, tile, **more):
    """The file, and the first byte and length of each tile's stream."""
    hdu = fits.CompImageHDU(image, compression_type=kind, tile_shape=tile, name="SCI")
    table = fits.BinTableHDU(Table({"x": np.arange(50)}))
    fits.HDUList([fits.PrimaryHDU(), hdu, table]).writeto(path, **more)
    with fits.open(path, disable_image_compression=True) as hdus:
        header = hdus[1].header
        rows, width, first = header["NAXIS2"], header["NAXIS1"], hdus[1].fileinfo()["datLoc"]
    raw = np.frombuffer(path.read_bytes(), np.uint8, rows * width, first)
    start = first + header.get("THEAP", rows * width)
    places = raw.reshape(rows, width)[:, :8].copy().view(">i4").astype(int)
    return [(start + offset, size) for size, offset in places]


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_undecodable_tiles_are_those_that_reading_refuses(tmp_path, image, monkeypatch, rng, kind, small):
    if small:
        monkeypatch.setattr(verify, "LIMIT", 800)
    path = tmp_path / "a.fits"
    tiles = write(path, image, kind, KINDS[kind])
    assert not any(inspect(path, verify=True)["problem"])
    raw = bytearray(path.read_bytes())
    hit = sorted(rng.choice(len(tiles), min(5, len(tiles) - 1), replace=False).tolist())
    for at, size in (tiles[k] for k in hit):
        raw[at : at + size] = rng.integers(0, 256, size, np.uint8).tobytes()
    path.write_bytes(raw)
    with pytest.raises(InputError) as told:
        skydelta.open(path).pixels("SCI")
    want = told.value.numbers["tiles"]
    assert set(want) <= set(hit)
    with skydelta.open(path) as file:
        assert sorted(verify.undecodable(file.hdus[1], file.content)) == want
    problem = inspect(path, verify=True)["problem"][1]
    assert problem.startswith(f"{len(want)} of {len(tiles)} tiles cannot be decoded ({kind}): tile {want[0]}: ")
    assert problem.count("tile ") == min(len(want), 3)
    assert problem.endswith("; ...") == (len(want) > 3)
    assert not any(inspect(path)["problem"]), "without --verify nothing is decoded"


@pytest.mark.parametrize("small", [False, True])
def test_tiles_without_data_do_not_hide_others(tmp_path, image, monkeypatch, small):
    if small:
        monkeypatch.setattr(verify, "LIMIT", 800)
    path = tmp_path / "a.fits"
    tiles = write(path, image, "RICE_1", (7, 30))
    raw = bytearray(path.read_bytes())
    at, size = tiles[20]
    raw[at : at + size] = bytes(size)
    table = skydelta.open(path).hdus[1].data
    for row in (4, 5):
        raw[table + 8 * row : table + 8 * row + 4] = bytes(4)
    path.write_bytes(raw)
    with skydelta.open(path) as file:
        found = verify.undecodable(file.hdus[1], file.content)
    assert sorted(found) == [4, 5, 20]
    assert "hold no data" in found[4]
    assert found[20].startswith("tile 20: ")
    raw[table + 8 * 4 : table + 8 * 4 + 4] = (1 << 30).to_bytes(4, "big")
    path.write_bytes(raw)
    problem = inspect(path, verify=True)["problem"][1]
    assert problem.startswith("1 of 27 tiles cannot be decoded (RICE_1): tile 4: COMPRESSED_DATA descriptor")


def test_the_column_of_sums(tmp_path, image):
    path = tmp_path / "a.fits"
    tiles = write(path, image, "GZIP_2", (1, 90), checksum=True)
    both = "DATASUM CHECKSUM"
    assert list(inspect(path)["checksum"]) == [both, both, both]
    assert list(inspect(path, verify=True)["checksum"]) == ["right", "right", "right"]
    raw = bytearray(path.read_bytes())
    raw[skydelta.open(path).hdus[2].data + 4] ^= 1  # of the table
    raw[tiles[3][0] + 30] ^= 255
    path.write_bytes(raw)
    table = inspect(path, verify=True)
    assert list(table["checksum"]) == ["right", "wrong", "wrong"]
    assert "tile 3: " in table["problem"][1]
    assert "; DATASUM = " in table["problem"][1]
    fits.PrimaryHDU(image).writeto(tmp_path / "plain.fits")
    assert list(inspect(tmp_path / "plain.fits", verify=True)["checksum"]) == [""]


def test_the_command(tmp_path, image):
    path = tmp_path / "a.fits"
    tiles = write(path, image, "RICE_1", (1, 90), checksum=True)
    sound = support_cli.call("inspect", "--verify", path)
    assert (sound.exit_code, sound.stderr) == (0, "")
    assert sound.stdout.count("right") == 3
    raw = bytearray(path.read_bytes())
    raw[tiles[7][0] + 1] ^= 1
    hurt = tmp_path / "hurt.fits"
    hurt.write_bytes(raw)
    assert support_cli.call("inspect", hurt).exit_code == 0
    told = support_cli.call("inspect", "--verify", path, hurt)
    assert told.exit_code == 3
    assert told.stderr.startswith(f"skydelta: {hurt}: HDU 1 (SCI): DATASUM = ")
    assert told.stderr.count("\n") == 1
    # HDUs that are lost behind a damaged first card are no silent loss
    raw = path.read_bytes()
    hurt.write_bytes(raw[::-1].replace(b"XTENSION"[::-1], b"YTENSION"[::-1], 1)[::-1])
    told = support_cli.call("inspect", "--verify", hurt)
    assert told.exit_code == 3
    assert "HDU 2: header begins with b'YTENSION', XTENSION is needed" in told.stderr
    assert "header begins with b'YTENSION'" in support_cli.call("inspect", hurt).stdout
    hurt.write_bytes(raw + b"no header" * 320)
    told = support_cli.call("inspect", "--verify", hurt)
    assert told.exit_code == 3
    assert "2880 bytes after HDU 2 are not an HDU and are ignored" in told.stderr
    assert "are not an HDU" in support_cli.call("inspect", hurt).stdout
    hurt.write_bytes(raw[:-2880])
    told = support_cli.call("inspect", "--verify", hurt)
    assert told.exit_code == 3
    assert f"{hurt}: HDU 2: data are truncated" in told.stderr


def test_every_shared_file_is_verified(shared_data):
    """A tiled image has a problem exactly where it cannot be read."""
    checked = 0
    for path in sorted((shared_data / "fits").rglob("*.f*")):
        try:
            table = inspect(path, verify=True)
        except InputError:
            continue
        with skydelta.open(path) as file:
            for hdu, problem in zip(file.hdus, table["problem"], strict=True):
                if not hdu.compression or 0 in hdu.shape:
                    continue
                try:
                    file.pixels(hdu.index, checksum="ignore")
                    readable = True
                except InputError:
                    readable = False
                assert readable == (not problem), path.name
                checked += 1
    assert checked > 25
