# SPDX-License-Identifier: BSD-3-Clause
"""Reading FITS images onto a CUDA device: called by ``fits_read.py --device cuda``.

Three tables, from a warm page cache, in GB/s (1e9 bytes). Transfer: of the file, the rate at which KvikIO and page-
locked staging bring the bytes of a raw one into device memory, and that of reading its pixels (bytes, byte order,
scaling, mask). Kernel: of float32 pixels, the decoding of Rice tiles alone, by events, for parts of an image, one
image and a batch in one launch, by the number of lanes that share a tile; and its time over that of a device copy of
the least bytes (stored ones in, pixels out). Files: of float32 pixels, from opening to pixels and mask on the device,
by each route, by one thread and by several with a stream each. Gzip: of images in GZIP tiles, ms from opened file to
pixels and mask on the device with tiles inflated there and on the host, and the kernels that inflate and sum, alone,
over the time of a copy of the least bytes (streams in, bytes out; for sums, bytes in).
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from astropy.io import fits
from events import copy_rate, milliseconds

from skydelta.io import direct, staging
from skydelta.io.fits import pixels, tiled
from skydelta.io.fits.reader import open_file
from skydelta.io.routes import open_source
from skydelta.kernels import decode as front
from skydelta.kernels.backend import backend_of, cupy, to_host
from skydelta.kernels.core.devices import active, pinned, streams
from skydelta.kernels.cuda import crc, inflate
from skydelta.kernels.cuda import decode as launcher

BATCH = 16
LANES = (4, 8, 16, 32)
PARTS = (16, 4)
"""What part of an image's tiles is decoded alone too."""
THREADS = (1, 4, 8)


def seconds(run, repeat):
    """Median time of a run that ends with the device, after two that are not counted."""
    times = []
    for i in range(repeat + 2):
        cupy().cuda.Device().synchronize()
        begin = time.perf_counter()
        run()
        cupy().cuda.Device().synchronize()
        if i > 1:
            times.append(time.perf_counter() - begin)
    return float(np.median(times))


def flagged(file, backend):
    """Pixels and mask of HDU 1 on a device."""
    flags = pixels.Flags(16)
    return pixels.read(file.hdus[1], file.content, "float32", None, flags=flags, backend=backend)[0], flags.mask


def bus_rate():
    """GB/s of one copy of 256 MiB from page-locked memory: the ceiling of every way over the bus."""
    place = pinned(1 << 28)
    place[:] = 1
    target, stream = cupy().empty(place.size, np.uint8), cupy().cuda.get_current_stream()
    return 1e-6 * place.size / milliseconds(lambda: target.set(place, stream))


def routes(backend):
    """Names of the ways over the bus, each while it is switched on, and why it cannot be used."""
    for route, switch in (("page-locked", "off"), ("kvikio", "on")):
        os.environ[direct.SWITCH] = switch
        found = None if switch == "off" else direct.probe(backend.index)
        yield route, "" if found is None or found.usable else found.why
    os.environ[direct.SWITCH] = "auto"


def transfers(path, backend, repeat):
    """GB/s of a raw file by each route that there is: bytes alone, and pixels with their mask."""
    with open_file(path) as file:
        start, size = file.hdus[1].data, file.hdus[1].size
        want = file.pixels(1)
    out = {}
    for route, why in routes(backend):
        if why:
            out[route] = {"missing": why}
            continue
        content, counted, _ = open_source(path)
        with open_file(path) as file:
            np.testing.assert_array_equal(to_host(flagged(file, backend)[0]), want)
            row = {
                "bytes": size / seconds(lambda c=content: staging.to_device(c, start, size, backend), repeat) / 1e9,
                "pixels": size / seconds(lambda f=file: flagged(f, backend), repeat) / 1e9,
            }
        content.close()
        if route == "kvikio":
            assert counted.device_bytes
            row["carried_by"] = direct.probe(backend.index).why
        out[route] = row
    rates = [r["bytes"] for r in out.values() if "bytes" in r]
    for row in out.values():
        if "pixels" in row:
            row["pixels_over_best_bytes"] = row["pixels"] / max(rates)
    return out


def launches(run, module=launcher):
    """The kernels of a launcher's module that a run launches, as functions without arguments."""
    found, real = [], module.kernel

    def recording(*what):
        function = real(*what)

        def launch(*args, **more):
            found.append(lambda: function(*args, **more))
            function(*args, **more)

        return launch

    module.kernel = recording
    try:
        run()
    finally:
        module.kernel = real
    return found


def kernels(path, backend, rate):
    """Of so many tiles of an image, or copies of it, in one launch: ms, GB/s of pixels, multiple of the copy's time."""
    with open_file(path) as file:
        hdu = file.hdus[1]
        form = pixels.scaling(hdu)[0]
        plan = tiled.plan(hdu, file.content, form.stored, tuple(slice(0, n) for n in hdu.shape), backend)
        plan.heap.wait()
        want = file.pixels(1, dtype="float32")
    form = replace(plan.form, scale=form.scale, zero=form.zero, flip=form.flip, blank=form.blank)
    n = len(plan.tiles)
    counts = sorted({*(max(n // part, 1) for part in PARTS), n, BATCH * n})
    return {f"{count} tiles": launched(plan, form, count, want, rate) for count in counts}


def launched(plan, form, count, want, rate):
    """The row of `kernels` for ``count`` tiles, by the number of lanes, and the whole call."""
    n, (h, w), backend = len(plan.tiles), want.shape, backend_of(plan.heap.bytes)
    tiles = plan.tiles.take(np.arange(count) % n)
    number = np.arange(count) // n
    tiles.origin[:, 0] += h * number
    tiles.offset[:] += len(plan.heap.bytes) * number
    heap = backend.xp.concatenate([plan.heap.bytes] * -(-count // n))
    shape = (int((tiles.origin + tiles.extent)[:, 0].max()), w)
    out, mask = backend.xp.full(shape, 7, np.float32), backend.xp.zeros(shape, np.int32)
    decoded = 4 * int(tiles.pixels().sum())
    floor = (int(tiles.length.sum()) + decoded) / rate / 1e6
    rows, usual = {}, launcher.SHARED

    def whole():
        front.decode(out, heap, tiles, form, mask=mask, mask_bit=16)

    for lanes in LANES:
        launcher.SHARED = ((0, lanes),)
        try:
            found = launches(whole)
        finally:
            launcher.SHARED = usual
        last = tiles.origin[-1] + tiles.extent[-1]
        if last[1] == w:  # the last rows are whole
            np.testing.assert_array_equal(to_host(out[-h:]), want[: min(h, len(out))])
        ms = sum(milliseconds(launch) for launch in found)
        rows[f"{lanes} lanes"] = {"ms": ms, "GB_per_s": decoded / ms / 1e6, "times_copy_floor": ms / floor}
    ms = 1e3 * seconds(whole, 10)
    rows["whole call"] = {"ms": ms, "GB_per_s": decoded / ms / 1e6, "lanes": launcher._lanes(count)}
    return rows


def files(path, backend, repeat):
    """By route, GB/s of float32 pixels from opening `BATCH` files to their pixels and masks on the device."""
    return {route: {"missing": why} if why else batch(path, backend, repeat) for route, why in routes(backend)}


def batch(path, backend, repeat):
    """The row of `files` of the route that is switched on."""
    out = {}
    for threads in THREADS:
        own = streams(backend, threads)

        def some(k, own=own, threads=threads):
            with active(backend, own[k]):
                for _ in range(k, BATCH, threads):
                    with open_file(path) as file:
                        size = flagged(file, backend)[0].nbytes
                own[k].synchronize()
            return size

        with ThreadPoolExecutor(threads) as pool:
            took = seconds(lambda p=pool, s=some, t=threads: list(p.map(s, range(t))), max(2, repeat // 2))
            out[f"{threads} threads"] = BATCH * some(0) / took / 1e9
    return out


def gzip(path, backend, repeat, rate):
    """ms of a read with tiles inflated on either side, and of the two kernels."""
    out, there = {}, launcher._is_there
    with open_file(path) as file:
        want = file.pixels(1, dtype="float32")
        for where in ("host", "device"):
            launcher._is_there = there if where == "device" else lambda heap: False
            try:
                np.testing.assert_array_equal(to_host(flagged(file, backend)[0]), want)
                ms = 1e3 * seconds(lambda: flagged(file, backend), repeat)
            finally:
                launcher._is_there = there
            out[f"read, inflated on the {where}"] = {"ms": ms, "GB_per_s": want.nbytes / ms / 1e6}
        hdu = file.hdus[1]
        plan = tiled.plan(hdu, file.content, pixels.scaling(hdu)[0].stored, tuple(slice(0, n) for n in hdu.shape))
        coded = int(plan.tiles.length.sum())
        raw = np.frombuffer(np.asarray(plan.heap.bytes), np.uint8)
        ends = plan.tiles.offset + plan.tiles.length
        size = sum(int.from_bytes(raw[end - 4 : end].tobytes(), "little") for end in ends.tolist())  # RFC 1952, ISIZE
        for name, module, least in (("inflate", inflate, coded + size), ("crc32", crc, size)):
            ms = sum(milliseconds(launch) for launch in launches(lambda: flagged(file, backend), module))
            floor = least / rate / 1e6
            out[name] = {"ms": ms, "GB_per_s": size / ms / 1e6, "times_copy_floor": ms / floor}
    return out


TABLES = ("transfer", "kernel", "files", "gzip")


def run(forms, folder, backend, repeat, tables=TABLES):
    """The tables asked for; ``forms`` as in ``fits_read.py``."""
    rate = copy_rate()
    result = {"copy_GB_per_s": rate, "bus_GB_per_s": bus_rate(), **{table: {} for table in tables}}
    for name, (array, options) in forms.items():
        if not name.startswith(("raw", "RICE_1", "GZIP")):
            continue
        path = Path(folder) / "image.fits"
        hdu = fits.ImageHDU(array) if options is None else fits.CompImageHDU(array, **options)
        fits.HDUList([fits.PrimaryHDU(), hdu]).writeto(path, overwrite=True)
        if options is None and "transfer" in tables:
            result["transfer"][name] = transfers(path, backend, repeat)
        if name.startswith("RICE_1") and "kernel" in tables:
            result["kernel"][name] = kernels(path, backend, rate)
        if name.startswith("GZIP") and "gzip" in tables:
            result["gzip"][name] = gzip(path, backend, repeat, rate)
        if "files" in tables and not name.startswith("GZIP_1"):
            result["files"][name] = files(path, backend, repeat)
        print(name, {table: result[table].get(name) for table in tables}, flush=True)
        with suppress(OSError):
            path.unlink()
    return rounded(result)


def rounded(value):
    """Numbers of a nested result to four digits behind the point."""
    if isinstance(value, dict):
        return {key: rounded(v) for key, v in value.items()}
    return round(value, 4) if isinstance(value, float) else value
