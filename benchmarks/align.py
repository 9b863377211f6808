# SPDX-License-Identifier: BSD-3-Clause
"""Alignment against other tools on one distorted pair: ``python benchmarks/align.py [--size 4096]``.

CPU seconds of this process for all threads, best of three after a first call; on a CUDA device the time of each kernel
by events, next to the time its least memory traffic takes at the measured speed of a device copy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from astropy.wcs import WCS, Sip
from events import copy_rate, milliseconds
from scipy import ndimage

from skydelta.io.exposure import Exposure
from skydelta.kernels.backend import cuda_device_count, resolve
from skydelta.kernels.core.spec import implementation
from skydelta.kernels.resample import METHODS, PREPARE, RESAMPLE, MaskBits
from skydelta.stages.align import FILL, GROW, Align
from skydelta.stages.align.mapping import pixel_map
from skydelta.stages.base import Context


def pair(n: int) -> tuple[Exposure, Exposure]:
    """A noisy star field with cubic distortion of 10 px and the tangent plane, turned by 0.3 degrees, it goes onto."""
    rng = np.random.default_rng(1)
    image = rng.normal(100, 5, (n, n)).astype(np.float32)
    y, x = rng.integers(0, n, (2, n * n // 2000))
    stars = np.zeros((n, n), np.float32)
    stars[y, x] = rng.exponential(2e4, y.size)
    image += ndimage.gaussian_filter(stars, 1.5)
    mask = np.where(rng.random((n, n)) < 1e-3, 1, 0).astype(np.int32)
    source, target = plane(n, 0.0), plane(n, 0.3)
    a, b = np.zeros((4, 4)), np.zeros((4, 4))
    a[2, 0], a[1, 2], b[0, 2], b[2, 1] = 8 / (n / 2) ** 2, 2 / (n / 2) ** 3, -6 / (n / 2) ** 2, 2 / (n / 2) ** 3
    source.sip = Sip(a, b, None, None, source.wcs.crpix)
    source.wcs.ctype = "RA---TAN-SIP", "DEC--TAN-SIP"
    science = Exposure(np.zeros((n, n), np.float32), wcs=target)
    return Exposure(image, np.full((n, n), 25.0, np.float32), mask, wcs=source), science


def plane(n: int, turn: float) -> WCS:
    w = WCS(naxis=2)
    w.wcs.ctype, w.wcs.crval, w.wcs.cunit = ("RA---TAN", "DEC--TAN"), (150.1, 2.2), ("deg", "deg")
    w.wcs.crpix = n / 2, n / 2
    c, s = np.cos(np.radians(turn)), np.sin(np.radians(turn))
    w.wcs.cd = 0.3 / 3600 * np.array([[-c, s], [s, c]])
    return w


def cpu_seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def on_cpu(image: Exposure, onto: Exposure) -> None:
    backend, n = resolve("cpu"), onto.shape[0]

    def ours(**config: Any) -> Callable[[], Any]:
        return lambda: Align(**config).run(Context(backend), image=image, onto=onto)

    bare = image.with_(variance=None, mask=None)
    rows = [("map alone", cpu_seconds(lambda: pixel_map(image.wcs, onto.wcs, onto.shape, image.shape)))]
    rows += [(f"{m}: image, variance, mask, footprint", cpu_seconds(ours(method=m))) for m in reversed(METHODS)]
    rows.append(("bspline3: image alone", cpu_seconds(lambda: Align().run(Context(backend), image=bare, onto=onto))))
    same = onto.with_(wcs=image.wcs)
    rows.append(("same grid: copy", cpu_seconds(lambda: Align().run(Context(backend), image=image, onto=same))))

    y, x = np.indices(onto.shape, float)
    q = np.stack(image.wcs.all_world2pix(*onto.wcs.all_pix2world(x, y, 0), 0))[::-1]
    data = image.image
    rows.append(
        (
            "scipy map_coordinates, order 3: image, positions given",
            cpu_seconds(lambda: ndimage.map_coordinates(data, q), 1),
        )
    )
    try:
        from reproject import reproject_interp
    except ImportError:
        print("reproject is not installed: its row is missing")
    else:
        for order in ("bicubic", "bilinear"):
            work = lambda order=order: reproject_interp((data, image.wcs), onto.wcs, onto.shape, order=order)  # noqa: E731
            rows.append((f"reproject_interp {order}: image", cpu_seconds(work, 1)))
    print(f"\nCPU, {n} x {n} px")
    for name, seconds in rows:
        print(f"  {name:<56} {seconds:8.3f} s {1e9 * seconds / n**2:8.1f} ns/px")


def on_device(image: Exposure, onto: Exposure) -> None:
    device = resolve("cuda")
    xp, n = device.xp, onto.shape[0]
    there = image.to(device)
    grid = pixel_map(image.wcs, onto.wcs, onto.shape, image.shape)
    tables = [device.asarray(t) for t in (grid.nodes, grid.cells, grid.exact)]
    p = image.planes
    bits = MaskBits(p.bit(*FILL), p.bit(*GROW), *(p.bit(name) for name in ("BAD", "NO_DATA", "EDGE", "INTERP")))
    speed = copy_rate()
    print(f"\n{xp.cuda.runtime.getDeviceProperties(0)['name'].decode()}, {n} x {n} px, copy {speed / 1e3:.2f} TB/s")

    def show(name: str, ms: float, bytes_per_pixel: float) -> None:
        floor = bytes_per_pixel * n**2 / speed / 1e6
        print(f"  {name:<40} {ms:8.3f} ms, {ms / floor:5.2f} x the floor of {floor:.3f} ms")

    prepare, gather = implementation(PREPARE, device), implementation(RESAMPLE, device)
    for number, method in enumerate(METHODS):
        spline = method == "bspline3"

        def fill(spline: bool = spline) -> Any:
            return prepare(there.image, there.variance, there.mask, spline=spline, fill=bits.fill, bad=bits.bad,
                           no_data=bits.no_data)  # fmt: skip

        values, work = fill()

        def move(values: Any = values, work: Any = work, number: int = number) -> Any:
            return gather(values, there.variance, work, *tables, shape=grid.shape, method=number, flux=False, bits=bits)

        if method in ("nearest", "bspline3"):
            show(f"{PREPARE.name} ({'spline' if spline else 'fill'})", milliseconds(fill), PREPARE.bytes_per_pixel)
        show(f"{RESAMPLE.name} {method}", milliseconds(move), RESAMPLE.bytes_per_pixel)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=4096, help="side of both images, px")
    image, onto = pair(parser.parse_args().size)
    on_cpu(image, onto)
    count, why = cuda_device_count()
    if count:
        on_device(image, onto)
    else:
        print(f"\nno GPU section: {why}")


if __name__ == "__main__":
    main()
