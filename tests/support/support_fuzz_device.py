# SPDX-License-Identifier: BSD-3-Clause
"""Damaged tiles by the million on a CUDA device: the same faults, and the same pixels of sound tiles, as on the host.

python tests/support/support_fuzz_device.py [--tiles 2000000] [--rows 20000] [--seed 1] [--lanes 8] [--alone] [--gzip]

Run it under compute-sanitizer with fewer tiles and ``--alone``, which takes every buffer from the driver and none from
a pool, to see reads and writes outside of buffers.
"""

import argparse
import sys
from collections import Counter
from unittest import mock

import numpy as np
from support_tiles import damaged_members, damaged_rows

from skydelta.kernels import decode as front
from skydelta.kernels.backend import CPU, cupy, resolve, to_host
from skydelta.kernels.cuda import decode as launcher


def compare(seed, rows, backend, lanes=None):
    """Decode one batch on the host and on a device, there with ``lanes`` for each tile if given; Counter of faults.

    Raises
    ------
    AssertionError
        They differ, or the device's launcher has left the work to the host.
    """
    rng = np.random.default_rng((seed, 7))
    heap, tiles, form = damaged_rows(rng, rows, int(rng.integers(1, 500)))
    dtype = "float32" if rng.integers(2) else form.native(False)
    shape = (rows, int(tiles.extent[0, 1]))
    results = []
    shared = launcher.SHARED if lanes is None else ((0, lanes),)
    alone = mock.patch.object(launcher, "_on_host", side_effect=AssertionError("decoded on the host"))
    with alone, mock.patch.object(launcher, "SHARED", shared):
        for place in (CPU, backend):
            image, mask = place.asarray(np.full(shape, 3, dtype)), place.asarray(np.zeros(shape, np.int32))
            done = front.decode(image, place.asarray(heap), tiles, form, mask=mask, mask_bit=4)
            results.append((done, to_host(image), to_host(mask)))
    (want, image, mask), (got, other, flags) = results
    np.testing.assert_array_equal(got.status, want.status)
    sound = want.status == 0
    np.testing.assert_array_equal(other[sound], image[sound])
    np.testing.assert_array_equal(flags[sound], mask[sound])
    for name in ("nulls", "missing", "infinite"):
        np.testing.assert_array_equal(getattr(got, name)[sound], getattr(want, name)[sound], err_msg=name)
    return Counter(want.status.tolist())


def compare_members(seed, rows, backend):
    """The same for GZIP tiles."""
    rng = np.random.default_rng((seed, 8))
    width, pixels = int(rng.choice([1, 2, 4, 8])), int(rng.integers(1, 700))
    heap, tiles, form, original = damaged_members(rng, rows, pixels, width)
    results = []
    with mock.patch.object(launcher, "_on_host", side_effect=AssertionError("decoded on the host")):
        for place in (CPU, backend):
            image = place.asarray(np.full(original.shape, 3, form.stored))
            mask = place.asarray(np.zeros(original.shape, np.int32))
            done = front.decode(image, place.asarray(heap), tiles, form, mask=mask, mask_bit=4)
            results.append((done, to_host(image), to_host(mask)))
    (want, image, mask), (got, other, flags) = results
    np.testing.assert_array_equal(got.status, want.status)
    sound = want.status == 0
    assert other[sound].tobytes() == image[sound].tobytes()
    np.testing.assert_array_equal(flags[sound], mask[sound])
    return Counter(want.status.tolist())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiles", type=int, default=2_000_000)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lanes", type=int, choices=(4, 8, 16, 32))
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--gzip", action="store_true", help="GZIP tiles instead of Rice tiles")
    a = parser.parse_args()
    if a.alone:
        cupy().cuda.set_allocator(None)
    backend, total = resolve("cuda"), Counter()
    for i in range(-(-a.tiles // a.rows)):
        seed = (a.seed << 20) + i
        total += compare_members(seed, a.rows, backend) if a.gzip else compare(seed, a.rows, backend, a.lanes)
    said = {front.FAULTS.get(k, "sound"): n for k, n in sorted(total.items())}
    print(f"{sum(total.values())} tiles on {backend.name}, seed {a.seed}: {said}")


if __name__ == "__main__":
    sys.exit(main())
