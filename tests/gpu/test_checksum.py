# SPDX-License-Identifier: BSD-3-Clause
"""Checksums of bytes that a CUDA device holds are those of the host, by both ways there."""

import numpy as np
import pytest
from astropy.io import fits

import skydelta
from skydelta.errors import InputError
from skydelta.io import direct
from skydelta.kernels import checksum
from skydelta.kernels.backend import resolve

pytestmark = pytest.mark.gpu


def test_sums_of_any_part(rng, monkeypatch):
    monkeypatch.setattr(checksum, "CHUNK", 1 << 20)
    data = rng.integers(0, 256, 5_000_000, np.uint8)
    data[1_000_000:2_000_000] = 255
    there = resolve("cuda").asarray(data)
    for start, size, phase in [(0, len(data), 0), (1, 0, 2), (3, 2, 1), *rng.integers(0, [9, 4_000_000, 4], (40, 3))]:
        part = slice(int(start), int(start + size))
        assert checksum.word_sum(there[part], int(phase)) == checksum.word_sum(data[part], int(phase))


@pytest.mark.parametrize("switch", ["off", "on"])
def test_damage_is_told_and_nothing_else(tmp_path, rng, monkeypatch, switch):
    monkeypatch.setenv(direct.SWITCH, switch)
    direct.probe.cache_clear()
    found = direct.probe(resolve("cuda").index)
    if switch == "on" and not found.usable:
        pytest.skip(f"KvikIO: {found.why}")
    short = rng.integers(0, 3000, (700, 900)).astype(np.int16)
    hdus = [fits.ImageHDU(short.astype(np.float32)), fits.ImageHDU(short.astype(np.uint16))]
    hdus += [fits.CompImageHDU(short, compression_type=k) for k in ("RICE_1", "GZIP_2", "NOCOMPRESS")]
    path, damaged = tmp_path / "a.fits", tmp_path / "b.fits"
    fits.HDUList([fits.PrimaryHDU(), *hdus]).writeto(path, checksum=True)
    with skydelta.open(path) as file:
        for hdu in file.hdus[1:]:
            file.pixels(hdu.index, device="cuda", checksum="error")
            raw = bytearray(path.read_bytes())
            raw[int(rng.integers(hdu.data, hdu.data + hdu.size))] ^= 1
            damaged.write_bytes(raw)
            with skydelta.open(damaged) as other, pytest.raises(InputError, match=r"b\.fits: HDU"):
                other.pixels(hdu.index, device="cuda", checksum="error")
