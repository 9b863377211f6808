# SPDX-License-Identifier: BSD-3-Clause
"""Alignment against other tools on one distorted pair, accuracy beside time: ``python benchmarks/align.py``.

CPU seconds of this process for all threads, best of two after a first call (peers: one call); on a CUDA device the time
of each kernel by events, next to the time its least memory traffic takes at the measured speed of a device copy.
``--scenes`` scores the cases of a scene generator too, next to an exact float64 spline.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
from astropy.io import fits
from astropy.wcs import WCS, Sip
from events import copy_rate, milliseconds
from scipy import ndimage

from skydelta.io.exposure import Exposure
from skydelta.kernels.backend import CPU, cuda_device_count, resolve
from skydelta.kernels.core.spec import implementation
from skydelta.kernels.maps import CHECK, TANGENT
from skydelta.kernels.resample import ADAPTIVE, DEGREES, DRIZZLE, EXACT, METHODS, PREPARE, RESAMPLE, MaskBits, Method
from skydelta.stages.align import FILL, GROW, Align
from skydelta.stages.align.cache import MAPS
from skydelta.stages.align.chain import SkyChain
from skydelta.stages.align.inputs import bare_image
from skydelta.stages.align.mapping import control_grid, pixel_map
from skydelta.stages.align.tangent import tangent_chain
from skydelta.stages.base import Context

PIXEL = 0.3 / 3600
FWHM = 3.5
"""Side of a pixel in degrees, width of the stars in px."""


def pair(n: int) -> tuple[Exposure, Exposure, np.ndarray]:
    """A field of stars with cubic distortion of 10 px, the tangent plane it goes onto (turned by 0.3 degrees), x and y.

    Stars are drawn analytically on both grids (FWHM 3.5 px, values at pixel centres, no noise): what an ideal
    interpolator would make of the first is the second. One pixel in a thousand is masked as bad.
    """
    rng = np.random.default_rng(1)
    source, target = bent(plane(n, 0.0), n), plane(n, 0.3)
    at = np.stack(np.meshgrid(np.arange(40, n - 40, 40), np.arange(40, n - 40, 40)), -1).reshape(-1, 2)
    sky = source.all_pix2world(at + rng.uniform(-4, 4, at.shape), 0)
    peak = rng.uniform(0.1, 1.0, len(sky))
    images = [stars(w, n, sky, peak) for w in (source, target)]
    mask = np.where(rng.random((n, n)) < 1e-3, 1, 0).astype(np.int32)
    image = Exposure(images[0].astype(np.float32), np.full((n, n), 25.0, np.float32), mask, wcs=source)
    return image, Exposure(images[1], wcs=target), target.all_world2pix(sky, 0)


def bent(w: WCS, n: int) -> WCS:
    """With a cubic distortion of 10 px as SIP."""
    a, b = np.zeros((4, 4)), np.zeros((4, 4))
    a[2, 0], a[1, 2], b[0, 2], b[2, 1] = 8 / (n / 2) ** 2, 2 / (n / 2) ** 3, -6 / (n / 2) ** 2, 2 / (n / 2) ** 3
    w.sip = Sip(a, b, None, None, w.wcs.crpix)
    w.wcs.ctype = "RA---TAN-SIP", "DEC--TAN-SIP"
    return w


def stars(w: WCS, n: int, sky: np.ndarray, peak: np.ndarray) -> np.ndarray:
    """float64 (n, n): Gaussian stars of the angular distance on the sphere, out to 15 px."""
    sigma = FWHM / np.sqrt(8 * np.log(2)) * np.radians(PIXEL)
    image = np.zeros((n, n))
    offset = np.arange(-15, 16)
    for part in np.array_split(np.arange(len(sky)), -(-len(sky) // 500)):
        x, y = np.rint(w.all_world2pix(sky[part], 0)).astype(int).T
        gx, gy = np.broadcast_arrays(x[:, None, None] + offset, y[:, None, None] + offset[:, None])
        there = directions(*w.all_pix2world(gx.ravel(), gy.ravel(), 0)).reshape(3, *gx.shape)
        away = ((there - directions(*sky[part].T)[:, :, None, None]) ** 2).sum(axis=0)
        inside = (gx >= 0) & (gx < n) & (gy >= 0) & (gy < n)
        np.add.at(image, (gy[inside], gx[inside]), (peak[part, None, None] * np.exp(-0.5 * away / sigma**2))[inside])
    return image


def directions(lon: np.ndarray, lat: np.ndarray) -> np.ndarray:
    a, d = np.radians(lon), np.radians(lat)
    return np.array([np.cos(d) * np.cos(a), np.cos(d) * np.sin(a), np.sin(d)])


def accuracy(image: np.ndarray, truth: np.ndarray, at: np.ndarray) -> dict[str, float]:
    """rms on pixels above 1 % of the brightest peak, and 99th percentile of relative errors of star sums (33 px)."""
    n = truth.shape[0]
    error = np.asarray(image, float) - truth
    inner = np.s_[20 : n - 20, 20 : n - 20]
    on = (truth[inner] > 0.01) & np.isfinite(error[inner])
    x, y = np.rint(at).astype(int).T
    ok = (np.minimum(x, y) > 60) & (np.maximum(x, y) < n - 60)
    offset = np.arange(-16, 17)
    boxes = y[ok, None, None] + offset[:, None], x[ok, None, None] + offset
    ratio = error[boxes].sum(axis=(1, 2)) / truth[boxes].sum(axis=(1, 2))
    return {
        "rms_star": float(np.sqrt((error[inner][on] ** 2).mean())),
        "flux_p99": float(np.percentile(np.abs(ratio[np.isfinite(ratio)]), 99)),
    }


def plane(n: int, turn: float) -> WCS:
    w = WCS(naxis=2)
    w.wcs.ctype, w.wcs.crval, w.wcs.cunit = ("RA---TAN", "DEC--TAN"), (150.1, 2.2), ("deg", "deg")
    w.wcs.crpix = n / 2, n / 2
    c, s = np.cos(np.radians(turn)), np.sin(np.radians(turn))
    w.wcs.cd = PIXEL * np.array([[-c, s], [s, c]])
    return w


def cpu_seconds(work: Callable[[], Any], repeats: int = 2) -> tuple[float, Any]:
    """Least CPU seconds of all threads after a first call, and the last result."""
    if repeats > 1:
        work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        result = work()
        times.append(time.process_time() - start)
    return min(times), result


def on_cpu(n: int, peers: bool) -> dict[str, Any]:
    """The table: each row with its size, CPU seconds, ns a pixel and accuracy."""
    image, onto, at = pair(n)
    bare = image.with_(variance=None, mask=None)
    context = Context(resolve("cpu"))
    rows: list[dict[str, Any]] = []

    def row(
        name: str,
        planes: str,
        side: int,
        work: Callable[[], Any],
        repeats: int = 2,
        score: Callable[[Any], dict[str, float]] = lambda made: {},
    ) -> None:
        seconds, made = cpu_seconds(work, repeats)
        rows.append({"what": name, "planes": planes, "size": side, "cpu_s": round(seconds, 3),
                     "ns_per_px": round(1e9 * seconds / side**2, 1), **score(made)})  # fmt: skip

    def fresh() -> Any:
        MAPS.clear()
        return pixel_map(image.wcs, onto.wcs, onto.shape, image.shape)

    def ours(given: Exposure, method: str) -> Exposure:
        MAPS.clear()  # the map is part of the work
        return Align(method=method).run(context, image=given, onto=onto)["aligned"]

    row("map alone", "", n, fresh)
    row("map alone, seen before", "", n, lambda: pixel_map(image.wcs, onto.wcs, onto.shape, image.shape))
    for method in get_args(Method):
        row(
            f"skydelta {method}",
            "image",
            n,
            lambda method=method: ours(bare, method),
            score=lambda made: accuracy(made.image, onto.image, at),
        )
        row(f"skydelta {method}", "image, variance, mask, footprint", n, lambda method=method: ours(image, method))
    same = onto.with_(wcs=image.wcs)
    row("skydelta, same grid: copy", "all", n, lambda: Align().run(context, image=image, onto=same))
    if peers:
        theirs(row, image, onto, at)
    print(f"\nCPU, load {os.getloadavg()[0]:.1f}: {'':<24} px      CPU s    ns/px   rms_star  flux p99")
    for r in rows:
        figures = f"{r['rms_star']:10.2e} {r['flux_p99']:9.1e}" if "rms_star" in r else ""
        print(f"  {r['what'] + ': ' + r['planes']:<56} {r['size']:5} {r['cpu_s']:9.3f} {r['ns_per_px']:8.1f} {figures}")
    return {"rows": rows, "absent": absent(), "load": round(os.getloadavg()[0], 1)}


def theirs(row: Callable[..., Any], image: Exposure, onto: Exposure, at: np.ndarray) -> None:
    """Rows of reproject, where it is installed; the slow two on a 1024 px field."""
    try:
        import reproject
    except ImportError:
        return
    n = onto.shape[0]
    for order in ("nearest-neighbor", "bilinear", "bicubic"):

        def interp(order: str = order) -> np.ndarray:
            return reproject.reproject_interp((image.image, image.wcs), onto.wcs, onto.shape, order=order)[0]

        row(f"reproject_interp {order}", "image", n, interp, 1, score=lambda made: accuracy(made, onto.image, at))
    small, target, where = pair(min(n, 1024))
    side = target.shape[0]
    for name in ("reproject_adaptive", "reproject_exact"):

        def slow(name: str = name) -> np.ndarray:
            return getattr(reproject, name)((small.image, small.wcs), target.wcs, target.shape)[0]

        row(name, "image", side, slow, 1, score=lambda made: accuracy(made, target.image, where))


def absent() -> list[str]:
    """Peers that are not installed and therefore have no row."""
    found = {
        "reproject": importlib.util.find_spec("reproject") is not None,
        "dfreproject": importlib.util.find_spec("dfreproject") is not None,
        "SWarp": any(shutil.which(n) for n in ("swarp", "SWarp")),
    }
    return [name for name, there in found.items() if not there]


def scenes(tool: Path, n: int) -> dict[str, Any]:
    """Every case of the scene generator ``align_scene.py``, scored by it; and an exact float64 spline of each."""
    out: dict[str, Any] = {}
    for case in ("tan", "sip", "sipi", "tpv", "scale06", "scale17", "parity", "wrap", "pole", "ait"):
        with tempfile.TemporaryDirectory() as folder:
            call = [sys.executable, str(tool), folder]
            subprocess.run([*call, "--case", case, "--n", str(n)], check=True, capture_output=True)
            bare, target = (bare_image(f"{folder}/{name}.fits") for name in ("src", "tgt"))
            ours = Align().run(Context(resolve("cpu")), image=bare, onto=target)["aligned"].image
            y, x = np.indices(target.shape, float)
            q = np.stack(SkyChain(bare.wcs, target.wcs)(x, y))
            exact = ndimage.map_coordinates(bare.image.astype(float), q[::-1], order=3, mode="mirror", cval=np.nan)
            exact[np.isnan(ours)] = np.nan
            scored = {}
            for name, plane_ in (("skydelta", ours), ("exact spline", exact)):
                fits.writeto(f"{folder}/{name}.fits", plane_)
                done = subprocess.run(
                    [*call, "--score", f"{folder}/{name}.fits"], check=True, capture_output=True, text=True
                )
                scored[name] = json.loads(done.stdout)
            out[case] = scored
            print(f"  {case:<8}", {k: f"{v:.3g}" for k, v in scored["skydelta"].items()}, flush=True)
    return out


def maps(n: int) -> dict[str, Any]:
    """Cold maps of pairs of headers: of polynomials and by astropy on the CPU; on a device its kernels by events."""
    pairs = {
        "TAN onto TAN": (plane(n, 0.0), plane(n, 0.3)),
        "TAN-SIP onto TAN": (bent(plane(n, 0.0), n), plane(n, 0.3)),
        "TAN-SIP onto TAN-SIP": (bent(plane(n, 0.0), n), bent(plane(n, 0.3), n)),
    }
    there = resolve("cuda") if cuda_device_count()[0] else None
    rows = []
    for name, (source, target) in pairs.items():
        chain = SkyChain(source, target)

        def fresh(backend: Any = CPU, ends: Any = (source, target)) -> Any:
            MAPS.clear()
            made = pixel_map(*ends, (n, n), (n, n), backend=backend)
            backend.synchronize()
            return made

        seconds, grid = cpu_seconds(fresh, 5)
        before, exact = cpu_seconds(lambda chain=chain: control_grid(chain, (n, n), (n, n), 1e-4), 3)
        gap = float(np.nanmax(np.abs(grid.nodes - exact.nodes)))
        row = {"pair": name, "way": grid.way, "cpu_s": round(seconds, 4), "astropy_cpu_s": round(before, 4),
               "difference_px": gap, "cpu_wall_ms": round(wall_ms(fresh), 1)}  # fmt: skip
        if there is not None:
            row |= map_kernels(there, chain, grid, n) | {"wall_ms": round(wall_ms(lambda: fresh(there)), 2)}
        row["astropy_wall_ms"] = round(wall_ms(lambda chain=chain: control_grid(chain, (n, n), (n, n), 1e-4)), 1)
        rows.append(row)
        print(f"  {row}")
    result = {"size": n, "load": round(os.getloadavg()[0], 1), "rows": rows}
    if there is not None:
        result |= {"device": device_name(there), "copy_TB_per_s": round(copy_rate() / 1e3, 3)}
    return result


def wall_ms(work: Callable[[], Any], repeats: int = 7) -> float:
    """Median after a first call."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e3


def map_kernels(device: Any, chain: SkyChain, grid: Any, n: int) -> dict[str, float]:
    """Time of the kernels of a cold map, ms; the floor is their least traffic at the speed of a device copy."""
    numbers, h = device.asarray(tangent_chain(chain, (n, n))), grid.spacing
    origin, cells = device.asarray(np.full((1, 2), -float(h))), -(-n // h)
    side = 2 * cells + 5
    points = implementation(TANGENT, device)(numbers, origin, h / 2, (side, side))[:, 0]

    def evaluate() -> Any:
        return implementation(TANGENT, device)(numbers, origin, h / 2, (side, side))

    def check() -> Any:
        return implementation(CHECK, device)(points, h, (n, n), 1e-4, 1e-6, True)

    def both() -> Any:
        return evaluate(), check()

    bytes_moved = side**2 * TANGENT.bytes_per_pixel + cells**2 * CHECK.bytes_per_pixel
    return {"points": side**2, "tangent_points_ms": round(milliseconds(evaluate), 4),
            "check_cells_ms": round(milliseconds(check), 4), "both_ms": round(milliseconds(both), 4),
            "both_queued_ms": round(milliseconds(both, queued=True), 4),
            "floor_ms": round(bytes_moved / copy_rate() / 1e6, 5)}  # fmt: skip


def device_name(device: Any) -> str:
    return str(device.xp.cuda.runtime.getDeviceProperties(device.index)["name"].decode())


def on_device(image: Exposure, onto: Exposure) -> dict[str, Any]:
    """Each kernel with all planes, and the image alone, against the floor of a copy."""
    device = resolve("cuda")
    n = onto.shape[0]
    there = image.to(device)
    grid = pixel_map(image.wcs, onto.wcs, onto.shape, image.shape)
    tables = [device.asarray(t) for t in (grid.nodes, grid.cells, grid.exact)]
    p = image.planes
    bits = MaskBits(p.bit(*FILL), p.bit(*GROW), *(p.bit(name) for name in ("BAD", "NO_DATA", "EDGE", "INTERP")))
    speed = copy_rate()
    rows: list[dict[str, Any]] = []
    print(f"\n{device_name(device)}, {n} x {n} px, copy {speed / 1e3:.2f} TB/s")

    def show(name: str, work: Callable[[], Any], bytes_per_pixel: float) -> None:
        floor, ms = bytes_per_pixel * n**2 / speed / 1e6, milliseconds(work)
        queued = milliseconds(work, queued=True)
        rows.append({"kernel": name, "ms": round(ms, 4), "queued_ms": round(queued, 4), "floor_ms": round(floor, 4),
                     "ratio": round(ms / floor, 2), "of_bandwidth": round(floor / ms, 3)})  # fmt: skip
        print(f"  {name:<40} {ms:8.3f} ms ({queued:.3f} queued), {floor / ms:.0%} of the bandwidth of a copy")

    prepare, gather = implementation(PREPARE, device), implementation(RESAMPLE, device)
    for number, method in enumerate(METHODS):
        degree = DEGREES[number]

        def fill(degree: int = degree) -> Any:
            return prepare(there.image, there.variance, there.mask, degree=degree, fill=bits.fill, bad=bits.bad,
                           no_data=bits.no_data)  # fmt: skip

        values, work = fill()

        def move(variance: Any, values: Any = values, work: Any = work, number: int = number) -> Any:
            return gather(values, variance, work, *tables, shape=grid.shape, method=number, flux=False, bits=bits)

        if method in ("nearest", "bspline3", "bspline5"):
            show(f"{PREPARE.name} (degree {degree})", fill, PREPARE.bytes_per_pixel)
        show(f"{RESAMPLE.name} {method}", lambda move=move: move(there.variance), RESAMPLE.bytes_per_pixel)
        show(f"{RESAMPLE.name} {method}, no variance", lambda move=move: move(None), 20.0)
    points = pixel_map(image.wcs, onto.wcs, onto.shape, image.shape, corners=True)
    tables = [device.asarray(t) for t in (points.nodes, points.cells, points.exact)]
    values, work = prepare(
        there.image, there.variance, there.mask, degree=0, fill=bits.fill, bad=bits.bad, no_data=bits.no_data
    )
    drops = {"pixfrac": 0.6}
    for spec, more in ((EXACT, {}), (DRIZZLE, drops), (ADAPTIVE, {})):
        by_corners = implementation(spec, device)

        def share(by_corners: Any = by_corners, more: Any = more) -> Any:
            return by_corners(values, there.variance, work, *tables, shape=onto.shape, flux=True, bits=bits, **more)

        show(spec.name, share, spec.bytes_per_pixel)
    return {"device": device_name(device), "copy_TB_per_s": round(speed / 1e3, 3),
            "size": n, "dtype": "float32", "state": "warm, arrays on the device", "kernels": rows}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=4096, help="side of both images, px")
    parser.add_argument("--no-peers", action="store_true", help="leave the rows of other packages out")
    parser.add_argument("--scenes", type=Path, metavar="ALIGN_SCENE", help="also score the cases of this generator")
    parser.add_argument("--scene-size", type=int, default=2048)
    parser.add_argument("--device", action="store_true", help="the section of the CUDA device alone")
    parser.add_argument("--maps", action="store_true", help="the time of cold maps alone")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    a = parser.parse_args()
    result: dict[str, Any] = {"machine": platform.machine(), "cpus": os.cpu_count(), "dtype": "float32",
                              "state": "warm; CPU seconds of all threads, map included"}  # fmt: skip
    if a.maps:
        result |= {"state": "warm process, cold maps", "maps": maps(a.size)}
    elif not a.device:
        result |= on_cpu(a.size, not a.no_peers)
    if a.scenes:
        result["scenes"] = {"size": a.scene_size, **scenes(a.scenes, a.scene_size)}
    count, why = cuda_device_count()
    if count and not a.maps:
        image, onto, _ = pair(a.size)
        result["cuda"] = on_device(image, onto)
    elif not count:
        print(f"\nno GPU section: {why}")
    print(f"not installed: {', '.join(absent()) or 'nothing'}")
    if a.out:
        a.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
