# SPDX-License-Identifier: BSD-3-Clause
"""Damaged FITS files by the million: every one must be read or refused in one line, in time and inside the buffers.

python tests/support/support_fuzz.py [--files 200000] [--tables 1800000] [--seed 1]

Small files of every codec are damaged by flipped bits, overwritten, moved, cut or repeated bytes, and exchanged or wild
descriptors, then read from memory. The heap and the image lie against pages without access, so that one byte read or
written behind their ends kills the process; the seed and number of the last file say which it was. Most of the
mutations go past the headers, straight into heaps and tables of tiles, which takes a quarter of the time.
"""

import argparse
import ctypes
import io
import mmap
import sys
import time
import warnings

import numpy as np
from astropy.io import fits

from skydelta.errors import InputError
from skydelta.io.fits import pixels
from skydelta.io.fits.reader import FitsFile
from skydelta.io.storage import Memory
from skydelta.kernels import decode as front

SECONDS = 1.0
"""Most time that a damaged file may take (on a machine that does nothing else)."""


class Guarded:
    """A buffer whose last byte is the last of a page, with a page without access behind it."""

    def __init__(self, size):
        self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, self.size + mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(address + self.size), mmap.PAGESIZE, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
        self.bytes = np.frombuffer(self._map, np.uint8, self.size)

    def array(self, shape, dtype):
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self.bytes[self.size - nbytes :].view(dtype).reshape(shape)


_HEAP, _IMAGE = Guarded(1 << 20), Guarded(1 << 20)


def guarded_decode(out, heap, tiles, form, **options):
    """The front with heap and image against guard pages where they fit."""
    if heap.size > _HEAP.size or out.nbytes > _IMAGE.size:
        return front.decode(out, heap, tiles, form, **options)
    safe, image = _HEAP.array(heap.shape, np.uint8), _IMAGE.array(out.shape, out.dtype)
    safe[:] = heap
    done = front.decode(image, safe, tiles, form, **options)
    out[...] = image
    return done


def originals():
    """Small files, one of each codec and kind: {name: bytes}."""
    rng = np.random.default_rng(5)
    integers = rng.integers(0, 300, (24, 30)).astype(np.int16)
    mask = np.where(rng.random((24, 30)) < 0.1, integers, 0).astype(np.int32)
    floats = rng.normal(100, 5, (24, 30)).astype(np.float32)
    floats[3, 4:9], floats[7] = 0, np.nan
    out = {}
    for name, data, options in (
        ("raw", integers, None), ("raw float", floats, None), ("raw unsigned", integers.astype(np.uint16), None),
        ("rice", integers, {"compression_type": "RICE_1"}),
        ("rice tiles", integers.astype(np.int32), {"compression_type": "RICE_1", "tile_shape": (7, 11)}),
        ("rice dither", floats, {"compression_type": "RICE_1", "quantize_method": 2, "quantize_level": 4}),
        ("gzip 1", integers, {"compression_type": "GZIP_1", "tile_shape": (8, 30)}),
        ("gzip 2", floats, {"compression_type": "GZIP_2", "quantize_level": 0, "tile_shape": (8, 30)}),
        ("plio", mask, {"compression_type": "PLIO_1", "tile_shape": (4, 30)}),
        ("hcompress", integers, {"compression_type": "HCOMPRESS_1", "tile_shape": (12, 15)}),
        ("hcompress smooth", floats, {"compression_type": "HCOMPRESS_1", "tile_shape": (24, 30), "hcomp_scale": 4,
                                      "hcomp_smooth": 1}),
        ("nothing", integers, {"compression_type": "NOCOMPRESS", "tile_shape": (5, 30)}),
    ):  # fmt: skip
        hdu = fits.ImageHDU(data) if options is None else fits.CompImageHDU(data, **options)
        buffer = io.BytesIO()
        fits.HDUList([fits.PrimaryHDU(), hdu]).writeto(buffer)
        out[name] = buffer.getvalue()
    return out


def spans(raw):
    """First bytes of data and heap of HDU 1, and its end."""
    with FitsFile.of(Memory(raw), "file") as source:
        hdu = source.hdus[1]
        rows = hdu.header["NAXIS1"] * hdu.header["NAXIS2"] if hdu.kind == "compressed image" else 0
        return hdu.start, hdu.data, hdu.data + rows, hdu.data + hdu.size


def damaged(raw, places, rng):
    """One mutation of a file, mostly of its data, and whether it is one of the header."""
    start, data, heap, end = places
    out = bytearray(raw)
    kind = rng.integers(12)
    low, high = (start, data) if kind == 0 else (data, max(heap, data + 1)) if kind in (1, 2) else (heap, end)
    if kind == 3:
        return bytes(out[: rng.integers(0, len(out))]), False
    if kind == 4:
        at, n = rng.integers(low, high), rng.integers(1, 40)
        del out[at : at + n]
    elif kind == 5:
        at, to, n = rng.integers(low, high), rng.integers(low, high), rng.integers(1, 64)
        out[to : to + n] = out[at : at + n]
    elif kind == 6:
        at, n = rng.integers(low, high), rng.integers(1, 200)
        out[at : at + n] = bytes([rng.integers(2) * 255]) * len(out[at : at + n])
    elif kind == 1 and heap - data >= 16:
        a, b = (data + 8 * rng.integers(0, (heap - data) // 8) for _ in range(2))
        out[a : a + 8], out[b : b + 8] = out[b : b + 8], out[a : a + 8]
    elif kind == 2:
        at = data + 4 * rng.integers(0, max((heap - data) // 4, 1))
        out[at : at + 4] = int(rng.choice([-1, 0, 1, 2**31 - 1, -(2**31), rng.integers(0, 5000)])).to_bytes(
            4, "big", signed=True
        )
    elif kind < 10:
        for at in rng.integers(low, high, rng.integers(1, 6)):
            out[at] ^= 1 << rng.integers(8)
    else:
        for at in rng.integers(low, high, rng.integers(1, 12)):
            out[at] = rng.integers(256)
    return bytes(out), kind == 0


def run(count, seed, progress=None):
    """Read ``count`` damaged files; {outcome: number} and the longest time."""
    pixels.decode, kept, image_header = guarded_decode, pixels.decode, pixels.tiled.image_header
    files = originals()
    places = {name: spans(raw) for name, raw in files.items()}
    names = list(files)
    outcomes, longest = {"read": 0, "refused": 0}, 0.0
    try:
        for i in range(count):
            rng = np.random.default_rng((seed, i))
            name = names[i % len(names)]
            raw, header = damaged(files[name], places[name], rng)
            # a header that is whole is not parsed a million times
            pixels.tiled.image_header = image_header if header else lambda hdu: None
            begin = time.perf_counter()
            try:
                with FitsFile.of(Memory(raw), name) as source:
                    hdu = source.image(1 if len(source.hdus) > 1 else None)
                    box = None
                    if hdu.shape and len(hdu.shape) == 2 and min(hdu.shape) > 8 and rng.integers(3) == 0:
                        box = (slice(2, 7), slice(3, 8))
                    source.read(hdu, "float32" if rng.integers(2) else "native", box)
                outcomes["read"] += 1
            except InputError as e:
                if "\n" in str(e) or name not in str(e):
                    raise AssertionError(f"{name}, seed ({seed}, {i}): {e}") from None
                outcomes["refused"] += 1
            except Exception as e:
                raise AssertionError(f"{name}, seed ({seed}, {i}): {type(e).__name__}: {e}") from e
            took = time.perf_counter() - begin
            if i >= 2 * len(names):  # kernels are compiled in the first ones
                longest = max(longest, took)
            if progress and i % 10000 == 0:
                progress(i, outcomes, longest)
    finally:
        pixels.decode, pixels.tiled.image_header = kept, image_header
    return outcomes, longest


def tables(count, seed, progress=None):
    """Decode ``count`` damaged heaps and tables of tiles; {outcome: number} and the longest time."""
    sound = []
    for name, raw in originals().items():
        with FitsFile.of(Memory(raw), name) as source:
            hdu = source.hdus[1]
            if hdu.kind == "compressed image":
                stored = pixels.scaling(hdu)[0].stored
                whole = tuple(slice(0, n) for n in hdu.shape)
                sound.append((hdu.shape, pixels.tiled.plan(hdu, source.content, stored, whole)))
    outcomes, longest = {"sound": 0, "faulty": 0}, 0.0
    rng = np.random.default_rng((seed, 1 << 20))
    for i in range(count):
        shape, plan = sound[i % len(sound)]
        tiles, size = plan.tiles, plan.heap.bytes.size
        kind, cut = int(rng.integers(8)), size
        if kind == 0:
            cut = int(rng.integers(0, size))
        heap = _HEAP.array((cut,), np.uint8)
        heap[:] = plan.heap.bytes[:cut]
        if kind in (1, 2):
            tiles = tiles.take(np.arange(len(tiles)))
            where = int(rng.integers(len(tiles)))
            column = tiles.offset if rng.integers(2) else tiles.length
            column[where] = (
                column[int(rng.integers(len(tiles)))]
                if kind == 1
                else rng.choice([-1, 0, 1, 2**31, 2**62, -(2**63), size])
            )
        elif kind == 3:
            at, to, n = (int(v) for v in rng.integers(0, size, 3))
            n = min(n % 64, size - at, size - to)
            heap[to : to + n] = heap[at : at + n].copy()
        elif kind == 4:
            at = int(rng.integers(0, size))
            heap[at : at + int(rng.integers(1, 200))] = rng.integers(2) * 255
        elif 0 < kind < 7:
            where = rng.integers(0, size, int(rng.integers(1, 6)))
            heap[where] ^= (1 << rng.integers(0, 8, len(where))).astype(np.uint8)
        elif kind == 7:
            where = rng.integers(0, size, int(rng.integers(1, 12)))
            heap[where] = rng.integers(0, 256, len(where))
        window, corner = (
            ((5, 7), (int(rng.integers(20)), int(rng.integers(24)))) if rng.integers(4) == 0 else (shape, (0, 0))
        )
        image = _IMAGE.array(window, "float32" if rng.integers(2) else plan.form.native(False))
        begin = time.perf_counter()
        status = front.decode(image, heap, tiles, plan.form, corner=corner, threads=1).status
        took = time.perf_counter() - begin
        if i >= 20 * len(sound):
            longest = max(longest, took)
        outcomes["faulty" if status.any() else "sound"] += 1
        if progress and i % 100000 == 0:
            progress(i, outcomes, longest)
    return outcomes, longest


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=200_000)
    parser.add_argument("--tables", type=int, default=1_800_000)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    warnings.simplefilter("ignore")
    worst = 0.0
    for what, work, count in (("tables", tables, a.tables), ("files", run, a.files)):
        outcomes, longest = work(count, a.seed, lambda i, o, t: print(i, o, f"{t:.3f} s", flush=True))
        print(f"{count} {what}, seed {a.seed}: {outcomes}, longest {longest:.3f} s", flush=True)
        worst = max(worst, longest)
    return 0 if worst < SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
