# SPDX-License-Identifier: BSD-3-Clause
"""Decoding on a CUDA device is what decoding on the host is: shared files, random tables, damaged tiles, streams."""

import os

import numpy as np
import pytest
import support_fuzz_device
from astropy.io import fits
from cases import decode as case

import skydelta
from skydelta.errors import InputError
from skydelta.io import direct, staging
from skydelta.io.fits.reader import open_file
from skydelta.io.routes import open_source
from skydelta.kernels import decode as front
from skydelta.kernels.backend import resolve, to_host
from skydelta.kernels.core.devices import active, streams
from skydelta.kernels.cpu import reference_decode
from skydelta.kernels.cuda import decode as launcher
from skydelta.kernels.dither import dither_table

pytestmark = pytest.mark.gpu

LANES = [4, 8, 16, 32]
RANGES = [(0, 4096), (2880, 40_000_001), (17, 100), (50_000_000, 10_000_000)]


def outcome(file, hdu, dtype, section, device):
    try:
        return to_host(file.read(hdu, dtype, section, backend=resolve(device))[1])
    except InputError as e:
        return str(e)


@pytest.mark.parametrize("part", range(4))
def test_every_shared_file(shared_data, part):
    """Pixels of every HDU, whole and in part, in both types; or the same words of what is wrong with it."""
    images = 0
    paths = sorted(p for kind in ("real", "synthetic") for p in (shared_data / "fits" / kind).iterdir())
    for path in paths[part::4]:
        try:
            file = open_file(path)
        except InputError:
            continue
        with file:
            for hdu in file.hdus:
                part = tuple(slice(n // 3, max(n // 3 + 1, n - n // 4)) for n in hdu.shape)
                for dtype in ("native", "float32"):
                    for section in (None, part if hdu.shape and 0 not in hdu.shape else None):
                        want, got = (outcome(file, hdu, dtype, section, d) for d in ("cpu", "cuda"))
                        if isinstance(want, str):
                            assert got == want
                            continue
                        images += 1
                        assert got.dtype == want.dtype
                        np.testing.assert_array_equal(got, want, err_msg=f"{path.name} {hdu.label}")
    assert images > 20


@pytest.mark.parametrize("seed", range(60))
def test_random_tables_of_tiles(seed):
    """Every type, codec, dither, window; more than the conformance test has."""
    cuda, rng = resolve("cuda"), np.random.default_rng((seed, 3))
    shape = case.SHAPES[1 + seed % 7]
    results = []
    values = case.make(rng, shape)
    for backend, function in ((None, reference_decode.decode), (cuda, front.decode)):
        image, mask, heap = (values[n].copy() for n in ("out", "mask", "heap"))
        if backend is not None:
            image, mask = backend.asarray(image), backend.asarray(mask)
            heap = backend.asarray(heap) if seed % 2 else heap
            more = {"corner": values["corner"], "mask": mask, "mask_bit": 4}
            done = function(image, heap, values["tiles"], values["form"], **more)
        else:
            done = function(image, heap, values["tiles"], values["form"], values["corner"], mask, 4, None)
        results.append([to_host(image), to_host(mask), done.status, done.nulls, done.missing, done.infinite])
    for got, want in zip(results[1], results[0], strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("shape", [(64, 100), (3, 20000), (4096, 1), (1000, 333)])
def test_any_number_of_lanes(monkeypatch, lanes, shape):
    monkeypatch.setattr(launcher, "SHARED", ((0, lanes),))
    cuda, values = resolve("cuda"), case.quantised_rows(np.random.default_rng(lanes), shape)
    want, flags = values["out"].copy(), values["mask"].copy()
    front.decode(want, values["heap"], values["tiles"], values["form"], mask=flags, mask_bit=4)
    got, mask = cuda.asarray(values["out"]), cuda.asarray(values["mask"])
    done = front.decode(got, cuda.asarray(values["heap"]), values["tiles"], values["form"], mask=mask, mask_bit=4)
    assert not done.status.any()
    assert to_host(got).tobytes() == want.tobytes()
    np.testing.assert_array_equal(to_host(mask), flags)


@pytest.mark.parametrize("seed", range(20))
def test_damaged_tiles(seed):
    assert len(support_fuzz_device.compare(seed, 3000, resolve("cuda"), LANES[seed % 4])) > 2


def test_a_heap_that_begins_anywhere():
    cuda, values = resolve("cuda"), case.quantised_rows(np.random.default_rng(1), (64, 100))
    want = values["out"].copy()
    front.decode(want, values["heap"], values["tiles"], values["form"])
    for shift in range(1, 8):
        heap = cuda.asarray(np.concatenate([np.full(shift, 255, np.uint8), values["heap"]]))[shift:]
        got = cuda.asarray(values["out"])
        front.decode(got, heap, values["tiles"], values["form"])
        np.testing.assert_array_equal(to_host(got), want)


@pytest.mark.parametrize("switch", ["off", "on"])
def test_bytes_come_back_whole(tmp_path, monkeypatch, switch):
    monkeypatch.setenv(direct.SWITCH, switch)
    direct.probe.cache_clear()
    cuda = resolve("cuda")
    if switch == "on" and not direct.probe(cuda.index).usable:
        pytest.skip(f"KvikIO: {direct.probe(cuda.index).why}")
    data = np.random.default_rng(0).integers(0, 256, 55_000_000, np.uint8)
    (tmp_path / "a").write_bytes(data.tobytes())
    content, counted, _ = open_source(tmp_path / "a")
    for start, size in RANGES:
        got = to_host(staging.to_device(content, start, size, cuda))
        np.testing.assert_array_equal(got, data[start : start + size])
    content.close()
    assert (counted.device_reads == len(RANGES)) == (switch == "on")


def test_staging_behind_work_on_a_stream(tmp_path, monkeypatch):
    """Copies queue behind work of milliseconds, from page-locked places that are used again and again."""
    monkeypatch.setenv(direct.SWITCH, "off")
    monkeypatch.setattr(staging, "PIECE", 1 << 16)
    monkeypatch.setattr(staging, "SHARE", 1 << 16)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr("skydelta.io.storage._File.span", 1)
    cuda = resolve("cuda")
    data = np.random.default_rng(0).integers(0, 256, 20_000_000, np.uint8)
    (tmp_path / "a").write_bytes(data.tobytes())
    content, _, _ = open_source(tmp_path / "a")
    for stream in [None, *streams(cuda, 2)]:
        with active(cuda, stream):
            work = cuda.xp.ones(1 << 27, np.float32)
            for _ in range(30):
                work *= 1.0
                left = cuda.xp.full(data.size, 7, np.uint8)  # its memory is taken again, still being written to
                del left
            got = staging.to_device(content, 0, data.size, cuda)
            np.testing.assert_array_equal(to_host(got), data)
    content.close()


def test_tiles_and_rows_far_apart_in_a_file(tmp_path):
    """Pieces of a file that are read one by one and put together on the device."""
    image = np.random.default_rng(0).normal(0, 1, (40, 60_000)).astype(np.float32)
    hdus = [fits.ImageHDU(image), fits.CompImageHDU(image, compression_type="RICE_1", tile_shape=(1, 20_000))]
    fits.HDUList([fits.PrimaryHDU(), *hdus]).writeto(tmp_path / "a.fits")
    with open_file(tmp_path / "a.fits") as file:
        for hdu in (1, 2):
            for box in ((slice(3, 33), slice(40_100, 40_200)), (slice(0, 40), slice(59_999, 60_000))):
                got = to_host(file.pixels(hdu, box, device="cuda"))
                np.testing.assert_array_equal(got, file.pixels(hdu, box))


def test_a_stream_of_exposures(tmp_path):
    """Twelve files of different kinds, read by four threads while the device works on the last."""
    dither_table.cache_clear()  # the first of the threads makes it
    rng, paths = np.random.default_rng(2), []
    for i in range(12):
        image = rng.normal(100, 5, (700 + 13 * i, 900)).astype(np.float32)
        kind = [None, "RICE_1", "GZIP_2", "RICE_1"][i % 4]
        data = image.astype(np.int16) if i % 4 == 3 else image
        more = {} if kind is None else {"compression_type": kind, "quantize_method": 2, "dither_seed": i + 1}
        hdu = fits.ImageHDU(data) if kind is None else fits.CompImageHDU(data, **more)
        hdu.header["GAIN"] = 2.0
        paths.append(tmp_path / f"{i}.fits")
        fits.HDUList([fits.PrimaryHDU(), hdu]).writeto(paths[-1])
    want = [skydelta.read(p, device="cpu") for p in paths]
    kept = []
    for exposure in skydelta.read_many(paths * 2, device="cuda", depth=4):
        busy = exposure.image
        for _ in range(20):  # work that is still under way when the next one is asked for
            busy = busy * 1.0
        kept.append((exposure, busy))
    for (exposure, busy), expected in zip(kept, want * 2, strict=True):
        for name in ("image", "mask"):
            np.testing.assert_array_equal(to_host(getattr(exposure, name)), getattr(expected, name), err_msg=name)
        # estimated from a sky that is summed in float32, by each in its own order
        np.testing.assert_allclose(to_host(exposure.variance), expected.variance, rtol=3e-7)
        np.testing.assert_array_equal(to_host(busy), expected.image)
