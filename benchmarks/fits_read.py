# SPDX-License-Identifier: BSD-3-Clause
"""Reading FITS images on the CPU against astropy and fitsio, in turn, from a warm page cache.

python benchmarks/fits_read.py [--size 4096] [--rounds 7] [--only rice] [--threads 2] [--device cpu] [--out FILE.json]

One star field in every form that surveys use, written by astropy. Each round reads with every reader once, and all must
return the same pixels. MB/s of decoded pixels (1 MB = 1e6 bytes) are those of the median round. The gain is the median
over the rounds of the time of the faster peer, which is astropy without a map or fitsio, over ours: other work on the
machine slows both. Since readers use one or more threads, the gain in processor time stands beside it. astropy's
default, which maps raw files, is a column of its own: a map cannot be used where a file may shrink meanwhile, and it
saves the copy. fitsio is compared with when it is installed. ``--device cuda`` measures reading onto a device instead
(`fits_device`), ``--tables`` only some of it.
"""

import argparse
import importlib.util
import json
import os
import platform
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import fits_device
import numba
import numpy as np
from astropy.io import fits
from record import record

from skydelta.io.fits import pixels
from skydelta.io.fits.reader import open_file
from skydelta.kernels.backend import cupy, resolve
from skydelta.kernels.core.devices import active

warnings.filterwarnings("ignore")


def scene(size):
    """Sky, noise and stars, float32."""
    rng = np.random.default_rng(1)
    image = 800 + rng.normal(0, 12, (size, size)).astype(np.float32)
    y, x = np.indices((25, 25)) - 12
    star = np.exp(-(x**2 + y**2) / 8)
    for _ in range(size * size // 5000):
        cy, cx = rng.integers(0, size - 25, 2)
        image[cy : cy + 25, cx : cx + 25] += (200 * rng.pareto(1.5) * star).astype(np.float32)
    return np.clip(image, 0, 60000)


def forms(image):
    """name: (array, options of CompImageHDU or None)."""
    u16, i32, row = image.astype(np.uint16), image.astype(np.int32), (1, image.shape[1])
    mask = np.where(image > 1500, 4, 0).astype(np.int32)
    small = np.minimum(i32, 32000).astype(np.int16)

    def tiles(method, shape=row, **more):
        return {"compression_type": method, "tile_shape": shape, **more}

    first = {"quantize_level": 4, "quantize_method": 1, "dither_seed": 1}
    second = {**first, "quantize_method": 2}
    return {
        "raw float32": (image, None),
        "raw uint16": (u16, None),
        "raw int32": (i32, None),
        "raw float64": (image.astype(np.float64), None),
        "RICE_1 uint16, rows": (u16, tiles("RICE_1")),
        "RICE_1 uint16, 128 x 128": (u16, tiles("RICE_1", (128, 128))),
        "RICE_1 int32, rows": (i32, tiles("RICE_1")),
        "RICE_1 float32 dither 1, rows": (image, tiles("RICE_1", **first)),
        "RICE_1 float32 dither 2, 128 x 128": (image, tiles("RICE_1", (128, 128), **second)),
        "GZIP_1 uint16, rows": (u16, tiles("GZIP_1")),
        "GZIP_2 uint16, rows": (u16, tiles("GZIP_2")),
        "GZIP_2 float32 lossless, rows": (image, tiles("GZIP_2", quantize_level=0)),
        "GZIP_2 float32 dither 2, rows": (image, tiles("GZIP_2", **second)),
        "PLIO_1 int32 mask, rows": (mask, tiles("PLIO_1")),
        "HCOMPRESS_1 int16, 16 rows": (small, tiles("HCOMPRESS_1", (16, image.shape[1]))),
    }


def ours(dtype, threads):
    def read(path, index):
        with open_file(path) as source:
            return pixels.read(source.hdus[index], source.content, dtype, None, threads)[0]

    return read


def with_astropy(memmap):
    def read(path, index):
        with fits.open(path, memmap=memmap) as opened:
            data = opened[index].data
            return data.astype(data.dtype.newbyteorder("="))  # pixels of a map are touched and swapped here

    return read


def with_fitsio(path, index):
    fitsio = importlib.import_module("fitsio")
    with fitsio.FITS(str(path)) as opened:
        return opened[index].read()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="")
    parser.add_argument("--threads", type=int, default=numba.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tables", nargs="+", choices=fits_device.TABLES, default=fits_device.TABLES)
    parser.add_argument("--folder", type=Path, help="where files are written")
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    if (backend := resolve(a.device)).is_gpu:
        on_device(a, backend)
        return
    readers = {
        "skydelta": ours("native", a.threads),
        "as float32": ours("float32", a.threads),
        "astropy": with_astropy(False),
        "by default": with_astropy(None),
    }
    if importlib.util.find_spec("fitsio"):
        readers["fitsio"] = with_fitsio
    print(f"{a.size} x {a.size}, {a.threads} threads, {a.rounds} rounds, MB/s of decoded pixels")
    print(f"{'':36s}{'ratio':>6s}" + "".join(f"{name:>12s}" for name in readers) + f"{'gain':>8s}{'cpu gain':>10s}")
    table, load = {}, os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=a.folder) as folder:
        path = Path(folder) / "image.fits"
        for name, (array, options) in forms(scene(a.size)).items():
            if a.only.lower() not in name.lower():
                continue
            hdu = fits.ImageHDU(array) if options is None else fits.CompImageHDU(array, **options)
            fits.HDUList([fits.PrimaryHDU(), hdu]).writeto(path, overwrite=True)
            row = compared(readers, path, a.rounds)
            row = {"stored ratio": array.nbytes / path.stat().st_size, **row}
            table[name] = {key: round(value, 3) for key, value in row.items()}
            print(
                f"{name:36s}{row['stored ratio']:6.2f}"
                + "".join(f"{row[reader]:12.0f}" for reader in readers)
                + f"{row['gain']:8.2f}{row['cpu gain']:10.2f}",
                flush=True,
            )
    if a.out:
        about = {
            "machine": platform.machine(), "cores": os.cpu_count(), "load before": round(load, 1),
            "load after": round(os.getloadavg()[0], 1), "size": a.size, "threads": a.threads,
            "state": "warm page cache", "rounds": a.rounds, "unit": "MB/s of decoded pixels, median round",
            "gain": "time of the faster of astropy (memmap=False) and fitsio over ours, median of rounds",
            "cpu gain": "the same in processor time of the process",
            "versions": {name: version(name) for name in ("numpy", "numba", "astropy")}
            | ({"fitsio": importlib.import_module("fitsio").__version__} if "fitsio" in readers else {}),
        }  # fmt: skip
        a.out.write_text(json.dumps({**about, "forms": table}, indent=1) + "\n")


def on_device(a, backend):
    """The tables of `fits_device`."""
    wanted = {name: form for name, form in forms(scene(a.size)).items() if a.only.lower() in name.lower()}
    with tempfile.TemporaryDirectory(dir=a.folder) as folder, active(backend):
        result = fits_device.run(wanted, folder, backend, a.rounds, a.tables)
    name = cupy().cuda.runtime.getDeviceProperties(backend.index)["name"].decode()
    record({"device": name, "size": a.size, "state": "warm page cache", **result}, a.out)


def compared(readers, path, rounds):
    """MB/s of each reader, and the gain over the faster peer in time and in processor time."""
    found = {reader: read(path, 1) for reader, read in readers.items()}
    expected = found["astropy"]
    for reader, data in found.items():
        same = np.array_equal(data, expected.astype(data.dtype), equal_nan=data.dtype.kind == "f")
        assert same, f"{reader} gives other pixels"
    size = expected.nbytes
    del found, expected, data
    wall, cpu = ({reader: np.empty(rounds) for reader in readers} for _ in range(2))
    for i in range(rounds):
        for reader, read in readers.items():
            start = time.perf_counter(), time.process_time()
            read(path, 1)
            wall[reader][i], cpu[reader][i] = time.perf_counter() - start[0], time.process_time() - start[1]
    peers = [peer for peer in ("astropy", "fitsio") if peer in readers]
    out = {reader: size / np.median(seconds) / 1e6 for reader, seconds in wall.items()}
    for name, times in (("gain", wall), ("cpu gain", cpu)):
        out[name] = float(np.median(np.min([times[peer] for peer in peers], axis=0) / times["skydelta"]))
    return out


if __name__ == "__main__":
    main()
