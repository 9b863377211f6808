# SPDX-License-Identifier: BSD-3-Clause
"""Writing FITS: this package, astropy and fitsio where it is installed, on the CPU and from a CUDA device.

python benchmarks/fits_write.py [--size 4096] [--repeat 5] [--folder DIR] [--device auto] [--out FILE.json]

MB/s of pixels (1 MB = 1e6 bytes) from arrays in memory to a whole file, with checksums, which fitsio does not write;
median of the passes after a first that compiles. The default folder is in memory: a disk would be
measured otherwise. Only this package flushes what it writes. On CUDA the encoders are timed by events too, and held
against a device copy of the bytes that they must move.
"""

import argparse
import importlib.util
import json
import os
import platform
import tempfile
import time
from pathlib import Path

import numba
import numpy as np
from astropy.io import fits
from events import copy_rate, milliseconds

from skydelta.io.exposure import Exposure
from skydelta.io.fits.writer import write
from skydelta.kernels import encode
from skydelta.kernels.backend import cuda_device_count, cupy, resolve
from skydelta.kernels.deflate import gzip_encode

LEVEL = 16
FORMATS = {
    "raw float32": ("float32", None),
    "raw uint16": ("uint16", None),
    "RICE_1 float32, 16 steps": ("float32", "RICE_1"),
    "RICE_1 uint16": ("uint16", "RICE_1"),
    "RICE_1 int32 mask": ("int32", "RICE_1"),
    "GZIP_2 float32": ("float32", "GZIP_2"),
    "GZIP_2 uint16": ("uint16", "GZIP_2"),
}


def images(size):
    """Sky of noise with stars, as float32 and uint16, and a mask."""
    rng = np.random.default_rng(1)
    sky = rng.normal(1000, 30, (size, size)).astype(np.float32)
    y, x = rng.integers(0, size, (2, size))
    sky[y, x] += rng.exponential(5000, size).astype(np.float32)
    mask = np.zeros((size, size), np.int32)
    mask[y, x], mask[size // 3 : size // 3 + 20] = 2, 8
    return {"float32": sky, "uint16": np.clip(sky, 0, 65535).astype(np.uint16), "int32": mask}


def ours(pixels, path, compression):
    write(Exposure(pixels), path, compression, quantise_level=LEVEL)


def with_astropy(pixels, path, compression):
    options = {"quantize_level": LEVEL, "quantize_method": 2, "dither_seed": 1}
    if compression is None:
        hdu = fits.ImageHDU(pixels)
    elif compression == "GZIP_2" and pixels.dtype.kind == "f":
        hdu = fits.CompImageHDU(pixels, compression_type=compression, quantize_level=0)
    else:
        hdu = fits.CompImageHDU(pixels, compression_type=compression, **options)
    fits.HDUList([fits.PrimaryHDU(), hdu]).writeto(path, overwrite=True, checksum=True)


def with_fitsio(pixels, path, compression):
    import fitsio

    options = {}
    if compression is not None:
        level = 0 if compression == "GZIP_2" else LEVEL
        options = {
            "compress": compression.replace("RICE_1", "RICE"),
            "qlevel": level,
            "qmethod": "SUBTRACTIVE_DITHER_2",
        }
    fitsio.write(str(path), pixels, clobber=True, **options)


def seconds(run, repeat, synchronize=lambda: None):
    run()
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        run()
        synchronize()
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


def kernel_times(arrays, backend):
    """The encoders alone: ms, GB/s of pixels, and times the device's copy of the least bytes to move."""
    copy = copy_rate()
    image = backend.asarray(arrays["float32"])
    short = backend.asarray(arrays["uint16"]).view(np.int16)
    tile = (1, image.shape[1])
    steps, _, _, good = encode.quantise_tiles(image, tile, LEVEL, 1)
    runs = {
        "byte swap and sum, float32": (lambda: encode.big_endian(image), image, 2 * image.nbytes),
        "quantise, float32": (lambda: encode.quantise_tiles(image, tile, LEVEL, 1), image, 2 * image.nbytes),
        "Rice, float32 in steps": (
            lambda: encode.rice_encode(steps, tile, good),
            image,
            image.nbytes + len(encode.rice_encode(steps, tile, good)[0]),
        ),
        "Rice, 16 bits": (
            lambda: encode.rice_encode(short, tile, good),
            short,
            short.nbytes + len(encode.rice_encode(short, tile, good)[0]),
        ),
        "deflate of byte planes, float32": (
            lambda: gzip_encode(image, tile, good, True),
            image,
            image.nbytes + len(gzip_encode(image, tile, good, True)[0]),
        ),
        "deflate of byte planes, 16 bits": (
            lambda: gzip_encode(short, tile, good, True),
            short,
            short.nbytes + len(gzip_encode(short, tile, good, True)[0]),
        ),
    }
    out = {"copy_GB_per_s": round(copy, 1)}
    for name, (run, pixels, moved) in runs.items():
        ms = milliseconds(run)
        out[name] = {
            "ms": round(ms, 4),
            "GB_per_s_of_pixels": round(pixels.nbytes / ms / 1e6, 1),
            "times_copy_floor": round(ms / (moved / copy / 1e6), 1),
        }
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    in_memory = Path("/dev/shm")
    parent = a.folder or (in_memory if in_memory.is_dir() else None)
    backend = resolve(a.device) if a.device != "auto" or cuda_device_count()[0] else resolve("cpu")
    writers = {"skydelta": ours, "astropy": with_astropy}
    if importlib.util.find_spec("fitsio"):
        writers["fitsio"] = with_fitsio
    arrays = images(a.size)
    rows = {}
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        path = Path(folder) / "image.fits"
        for name, (kind, compression) in FORMATS.items():
            rows[name] = row = {}
            for writer, function in writers.items():
                pixels = arrays[kind]
                took = seconds(lambda f=function, p=pixels, c=compression: f(p, path, c), a.repeat)
                row[writer] = {
                    "MB_per_s": round(pixels.nbytes / took / 1e6),
                    "ratio": pixels.nbytes / os.path.getsize(path),
                }
            if backend.is_gpu:
                pixels = backend.asarray(arrays[kind])
                took = seconds(lambda p=pixels, c=compression: ours(p, path, c), a.repeat, backend.synchronize)
                row[backend.name] = {
                    "MB_per_s": round(pixels.nbytes / took / 1e6),
                    "ratio": pixels.nbytes / os.path.getsize(path),
                }
    columns = [*writers, *([backend.name] if backend.is_gpu else [])]
    print(f"{'MB/s of pixels (ratio)':<26}" + "".join(f"{c:>18}" for c in columns))
    for name, row in rows.items():
        print(f"{name:<26}" + "".join(f"{row[c]['MB_per_s']:>10} ({row[c]['ratio']:5.2f})" for c in columns))
    result = {
        "size": a.size,
        "state": "warm",
        "cpu": platform.processor() or platform.machine(),
        "threads": numba.get_num_threads(),
        "files": {n: {w: {**v, "ratio": round(v["ratio"], 2)} for w, v in row.items()} for n, row in rows.items()},
    }
    if backend.is_gpu:
        result["device"] = cupy().cuda.runtime.getDeviceProperties(backend.index)["name"].decode()
        result["kernels"] = kernel_times(arrays, backend)
        print(json.dumps(result["kernels"], indent=1))
    if a.out:
        a.out.parent.mkdir(parents=True, exist_ok=True)
        a.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
