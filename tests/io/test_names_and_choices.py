# SPDX-License-Identifier: BSD-3-Clause
"""What a name and the options ask of a file is what it becomes, or one line says why not."""

import bz2
import gzip
import lzma
import struct

import numpy as np
import pytest
from astropy import units as u
from astropy.io import fits
from click.testing import CliRunner
from support_io import make_exposure

import skydelta
from skydelta.errors import ConfigError, InputError
from skydelta.io.exposure import Exposure
from skydelta.io.storage import check_writable
from skydelta.pipeline.cli import cli

OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


@pytest.mark.parametrize("suffix", [*OPENERS, ".GZ"])
@pytest.mark.parametrize("compression", [None, "RICE_1"])
def test_a_compressed_name_is_a_compressed_file(rng, tmp_path, suffix, compression):
    exposure = make_exposure(rng)
    skydelta.write(exposure, tmp_path / "e.fits", compression)
    packed = tmp_path / f"e.fits{suffix}"
    skydelta.write(exposure, packed, compression)
    with OPENERS[suffix.lower()](packed) as file:
        assert file.read() == (tmp_path / "e.fits").read_bytes()
    if suffix.islower():
        with fits.open(packed) as theirs, fits.open(tmp_path / "e.fits") as plain:
            np.testing.assert_array_equal(theirs["SCI"].data, plain["SCI"].data)
    again, plain = (skydelta.read(path, device="cpu") for path in (packed, tmp_path / "e.fits"))
    np.testing.assert_array_equal(again.image, plain.image)
    np.testing.assert_array_equal(again.mask, plain.mask)
    first = packed.read_bytes()
    skydelta.write(exposure, tmp_path / f"other.fits{suffix}", compression)
    assert (tmp_path / f"other.fits{suffix}").read_bytes() == first
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["e.fits", packed.name, f"other.fits{suffix}"])
    if suffix.lower() == ".gz":
        flags, seconds = struct.unpack("<xxxBI", first[:8])
        assert (flags, seconds) == (0, 0)  # neither a name nor a time


@pytest.mark.parametrize("suffix", [".Z", ".zip", ".zst"])
def test_a_compression_that_cannot_be_written_is_refused(rng, tmp_path, suffix):
    path = tmp_path / f"e.fits{suffix}"
    for refused in (lambda: skydelta.write(make_exposure(rng), path), lambda: check_writable(path)):
        with pytest.raises(ConfigError, match=rf"e\.fits\{suffix}: .*allowed are .*\.gz, \.bz2, \.xz"):
            refused()
    assert not any(tmp_path.iterdir())


def test_commands_write_what_the_name_says(rng, tmp_path):
    skydelta.write(make_exposure(rng), tmp_path / "e.fits")
    command = ["align", str(tmp_path / "e.fits"), "--onto", str(tmp_path / "e.fits"), "--device", "cpu", "-o"]
    refused = CliRunner().invoke(cli, [*command, str(tmp_path / "a.fits.Z")])
    assert (refused.exit_code, refused.output.count("\n")) == (2, 1), refused.output
    done = CliRunner().invoke(cli, [*command, str(tmp_path / "a.fits.gz")])
    assert done.exit_code == 0, done.output
    assert gzip.decompress((tmp_path / "a.fits.gz").read_bytes()).startswith(b"SIMPLE  =")


@pytest.mark.parametrize(
    ("compression", "options", "said"),
    [
        (None, {"tile": (1, 8)}, "tile"),
        (None, {"quantise_level": 4.0}, "quantise_level"),
        ("GZIP_2", {"quantise_level": 4.0}, "quantise_level"),
        ("GZIP_2", {"quantise_level": 16.0, "tile": (1, 8)}, "quantise_level"),
    ],
)
def test_options_without_effect_are_refused(rng, tmp_path, compression, options, said):
    with pytest.raises(ConfigError, match=f"write: {said} .*compression"):
        skydelta.write(make_exposure(rng), tmp_path / "e.fits", compression, **options)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_images_without_pixels_are_neither_written_nor_read(tmp_path, shape):
    image = np.zeros(shape, np.float32)
    with pytest.raises(InputError, match=rf"{shape[0]}, {shape[1]}"):
        skydelta.read(image, device="cpu")
    with pytest.raises(InputError, match=rf"{shape[0]}, {shape[1]}\).*at least one pixel"):
        skydelta.write(Exposure(image), tmp_path / "e.fits")
    assert not any(tmp_path.iterdir())


def test_arrays_are_no_exposures(tmp_path):
    with pytest.raises(ConfigError, match="write: ndarray is given; an Exposure is needed"):
        skydelta.write(np.zeros((5, 6)), tmp_path / "e.fits")
    assert not any(tmp_path.iterdir())


def test_masks_and_units_of_arrays_are_kept(rng):
    image = rng.normal(100, 3, (60, 50))
    masked = np.ma.array(image, mask=image > 105)
    found = skydelta.read(masked, device="cpu")
    np.testing.assert_array_equal((found.mask & found.planes.bit("BAD")) != 0, image > 105)
    assert not skydelta.read(masked, mask=np.zeros(image.shape, bool), device="cpu").mask.any()
    assert skydelta.read(image * u.electron, device="cpu").unit == u.electron
    assert skydelta.read((image * u.electron, fits.Header({"BUNIT": "adu"})), device="cpu").unit == u.adu
