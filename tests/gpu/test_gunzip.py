# SPDX-License-Identifier: BSD-3-Clause
"""GZIP tiles inflated on a CUDA device: the host's pixels, and the host's judgement of damaged ones."""

import time

import numpy as np
import pytest
import support_fuzz_device
from astropy.io import fits

from skydelta.errors import InputError
from skydelta.io.fits.reader import open_file
from skydelta.kernels.backend import resolve, to_host
from skydelta.kernels.core.devices import active, streams
from skydelta.kernels.cuda import decode as launcher
from skydelta.kernels.cuda import gunzip

pytestmark = pytest.mark.gpu

FORMS = {
    "rows": ("float32", {"compression_type": "GZIP_2", "quantize_level": 0}),
    "gzip 1": ("float32", {"compression_type": "GZIP_1", "quantize_level": 0}),
    "quantised": ("float32", {"compression_type": "GZIP_2", "quantize_level": 4, "quantize_method": 2}),
    "unsigned": ("uint16", {"compression_type": "GZIP_2"}),
    "bytes": ("uint8", {"compression_type": "GZIP_1"}),
    "doubles": ("float64", {"compression_type": "GZIP_2", "quantize_level": 0}),
    "squares": ("float32", {"compression_type": "GZIP_2", "quantize_level": 0, "tile_shape": (100, 128)}),
    "long": ("float32", {"compression_type": "GZIP_2", "quantize_level": 0, "tile_shape": (400, 601)}),
}


@pytest.fixture
def made(monkeypatch):
    """Tiles given and tiles inflated on the device, call by call."""
    calls, inflate = [], gunzip.inflate

    def counted(heap, tiles, rows):
        done = inflate(heap, tiles, rows)
        calls.append((len(rows), 0 if done is None else len(done.rows)))
        return done

    monkeypatch.setattr(gunzip, "inflate", counted)
    return calls


def write(path, kind, options, shape=(407, 601)):
    image = np.random.default_rng(1).normal(120, 20, shape)
    if kind.startswith("float"):
        image[3, 5], image[10] = np.nan, np.nan
    hdu = fits.CompImageHDU(image.astype(kind), **options)
    fits.HDUList([fits.PrimaryHDU(), hdu]).writeto(path, overwrite=True)


@pytest.mark.parametrize("name", FORMS)
def test_every_form(tmp_path, made, name):
    write(tmp_path / "a.fits", *FORMS[name])
    with open_file(tmp_path / "a.fits") as file:
        for box in (None, (slice(9, 333), slice(77, 300))):
            for dtype in ("native", "float32"):
                want = file.pixels(1, box, dtype)
                with active(resolve("cuda"), streams(resolve("cuda"), 1)[0] if dtype == "native" else None):
                    got = to_host(file.pixels(1, box, dtype, device="cuda"))
                assert got.dtype == want.dtype
                np.testing.assert_array_equal(got, want)
    if name == "long":
        assert made == [] or all(done == 0 for _, done in made)
    else:
        assert len(made) >= 4
        assert all(done == given for given, done in made)


@pytest.mark.parametrize("seed", range(16))
def test_damaged_tiles(seed, made):
    found = support_fuzz_device.compare_members(seed, 1500, resolve("cuda"))
    assert len(found) > 4
    assert made[0][1] > 100


def test_a_damaged_file_is_named_as_on_the_host(tmp_path, made):
    write(tmp_path / "a.fits", *FORMS["rows"])
    with open_file(tmp_path / "a.fits") as file:
        start = file.hdus[1].data + file.hdus[1].header["NAXIS1"] * 407
    raw = bytearray((tmp_path / "a.fits").read_bytes())
    for at in (4000, 90_000):
        raw[start + at] ^= 4
    (tmp_path / "a.fits").write_bytes(raw)
    said = []
    with open_file(tmp_path / "a.fits") as file:
        for device in ("cpu", "cuda"):
            with pytest.raises(InputError) as e:
                file.pixels(1, device=device)
            said.append(str(e.value))
    assert said[0] == said[1]
    assert made == [(407, 405)]


def test_it_is_faster_than_the_host(tmp_path, monkeypatch):
    write(tmp_path / "a.fits", *FORMS["rows"], shape=(2048, 2048))
    best = {}
    with open_file(tmp_path / "a.fits") as file:
        for where in ("host", "device"):
            if where == "host":
                monkeypatch.setattr(launcher, "_is_there", lambda heap: False)
            else:
                monkeypatch.undo()
            took = []
            for _ in range(5):
                begin = time.perf_counter()
                file.pixels(1, device="cuda")
                resolve("cuda").synchronize()
                took.append(time.perf_counter() - begin)
            best[where] = min(took)
    assert best["device"] < best["host"]
