# SPDX-License-Identifier: BSD-3-Clause
"""Plain references: polygons clipped pixel by pixel (Sutherland & Hodgman 1974), and Gaussians by NumPy's SVD."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from skydelta.kernels.cpu.overlap import INNER, LIVE, REGION, SEAM, SLIVER, TAPER, TRACE
from skydelta.kernels.cpu.reference_resample import dense_map
from skydelta.kernels.cpu.resample import AT_PIXEL
from skydelta.kernels.resample import MaskBits

_Pixel = tuple[float, float, int, float]
"""Image, variance, mask and weight."""


def _by_corners(
    of_pixel: Callable[..., _Pixel],
    values: np.ndarray,
    variance: np.ndarray | None,
    work: np.ndarray,
    nodes: np.ndarray,
    cells: np.ndarray,
    exact: np.ndarray,
    *,
    shape: tuple[int, int],
    flux: bool,
    bits: MaskBits,
    **more: float,
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, np.ndarray]:
    """As the twin of the same name."""
    corners = _corners(nodes, cells, exact, shape)
    noise = np.zeros(values.shape) if variance is None else variance
    out = np.full((*shape, 4), [np.nan, np.nan, bits.no_data, 0.0])
    for y, x in np.ndindex(*shape):
        four = _around(corners, y, x)
        whole = area(four[:, :2])
        if 0 < whole <= SEAM * four[:, 2].max():
            out[y, x] = of_pixel(values, noise, work, four[:, :2], whole, flux, bits, **more)
    image, var, mask, weight = (plane.astype(kind) for plane, kind in zip(out.transpose(2, 0, 1), "ffif", strict=True))
    return image, None if variance is None else var, mask, weight


def _exact(
    values: np.ndarray,
    variance: np.ndarray,
    work: np.ndarray,
    four: np.ndarray,
    whole: float,
    flux: bool,
    bits: MaskBits,
) -> _Pixel:
    a = shared_areas(four + 0.5, values.shape)
    seen = sum(a.values())
    if seen <= SLIVER * whole:
        return np.nan, np.nan, bits.no_data, 0.0
    filled = {p: work[p] < 0 for p in a}
    lost = sum(v for p, v in a.items() if filled[p])
    kept2 = sum(v * v for p, v in a.items() if not filled[p])
    m = bits.edge if seen < (1 - AT_PIXEL) * whole else 0
    for p, v in a.items():
        if v > AT_PIXEL * min(1.0, whole):
            m |= int(work[p]) & 0x7FFFFFFF | (bits.interp if filled[p] else 0)
    weight = (seen - lost) / whole
    if lost > 0.5 * seen or kept2 == 0:
        return np.nan, np.nan, m | bits.no_data, weight
    scale = 1.0 if flux else 1 / seen
    good = sum(v * v * float(variance[p]) for p, v in a.items() if not filled[p])
    var = good * sum(v * v for v in a.values()) / kept2 * scale**2
    return sum(v * float(values[p]) for p, v in a.items()) * scale, var, m, weight


def _drizzle(
    values: np.ndarray,
    variance: np.ndarray,
    work: np.ndarray,
    four: np.ndarray,
    whole: float,
    flux: bool,
    bits: MaskBits,
    pixfrac: float,
) -> _Pixel:
    h, w = values.shape
    quad = four + 0.5
    every = shared_areas(quad, values.shape, (1 - pixfrac) / 2)
    touched = [p for p, v in every.items() if v > AT_PIXEL * min(pixfrac**2, whole)]
    a = {p: v for p, v in every.items() if work[p] >= 0}
    seen = sum(a.values())
    if seen <= TRACE * pixfrac**2 * whole:
        m = np.bitwise_or.reduce([bits.no_data, *(int(work[p]) & 0x7FFFFFFF for p in touched)])
        return np.nan, np.nan, m, 0.0
    cut = (quad < -AT_PIXEL).any() or (quad > np.array([w, h]) + AT_PIXEL).any()
    m = np.bitwise_or.reduce([bits.edge if cut else 0, *(int(work[p]) for p in touched if p in a)])
    scale = (whole if flux else 1.0) / seen
    var = sum(v * v * float(variance[p]) for p, v in a.items()) * scale**2
    return sum(v * float(values[p]) for p, v in a.items()) * scale, var, m, seen / (pixfrac**2 * whole)


def _adaptive(
    values: np.ndarray,
    variance: np.ndarray,
    work: np.ndarray,
    four: np.ndarray,
    whole: float,
    flux: bool,
    bits: MaskBits,
) -> _Pixel:
    h, w = values.shape
    px, py = four.mean(axis=0)
    if not (-0.5 <= px <= w - 0.5 and -0.5 <= py <= h - 0.5):
        return np.nan, np.nan, bits.no_data, 0.0
    jacobian = np.stack([four[[1, 2]].sum(0) - four[[0, 3]].sum(0), four[[2, 3]].sum(0) - four[[0, 1]].sum(0)], 1) / 2
    u, s, vt = np.linalg.svd(jacobian)
    padded = np.maximum(1.0, s)
    rx, ry = REGION * np.abs(u @ np.diag(padded) @ vt).sum(axis=1)
    yy, xx = np.mgrid[int(np.ceil(py - ry)) : int(np.floor(py + ry)) + 1,
                      int(np.ceil(px - rx)) : int(np.floor(px + rx)) + 1]  # fmt: skip
    back = vt.T @ np.diag(1 / padded) @ u.T @ np.stack([xx - px, yy - py]).reshape(2, -1)
    r2 = (back**2).sum(axis=0).reshape(yy.shape)
    g = np.exp(-TAPER * r2)
    inside = (yy >= 0) & (yy < h) & (xx >= 0) & (xx < w)
    at = yy[inside], xx[inside]
    gi, flags, near = g[inside], work[at], r2[inside]
    good, live = flags >= 0, near <= LIVE
    lost, kept2 = g[~inside].sum() + gi[~good].sum(), (gi[good] ** 2).sum()
    m = bits.edge if (r2[~inside] <= LIVE).any() else 0
    m |= bits.interp if (~good & live).any() else 0
    m |= int(np.bitwise_or.reduce(np.where(near <= INNER, flags, flags & bits.grow)[live], initial=0)) & 0x7FFFFFFF
    weight = 1 - lost / g.sum()
    if lost > 0.5 * g.sum() or kept2 == 0:
        return np.nan, np.nan, m | bits.no_data, weight
    scale = (whole if flux else 1.0) / gi.sum()
    var = (gi[good] ** 2 * variance[at][good]).sum() * (gi**2).sum() / kept2 * scale**2
    return (gi * values[at]).sum() * scale, var, m, weight


overlap, adaptive, drizzle = (functools.partial(_by_corners, of_pixel) for of_pixel in (_exact, _adaptive, _drizzle))


def _corners(nodes: np.ndarray, cells: np.ndarray, exact: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Source x, y and area per pixel (infinite where the map is smooth) of all corners: (3, H + 1, W + 1)."""
    height, width = shape
    corners = dense_map(nodes, cells, exact, (height + 1, width + 1))
    side = exact.shape[2]
    smooth = np.repeat(np.repeat(cells < 0, side, 0), side, 1)[: height + 1, : width + 1]
    corners[2][smooth & np.isfinite(corners[0])] = np.inf
    return corners


def _around(corners: np.ndarray, y: int, x: int) -> np.ndarray:
    """The four corners (4, 3) of a target pixel, in turn around it."""
    return np.array([corners[:, y + j, x + i] for j, i in ((0, 0), (0, 1), (1, 1), (1, 0))])


def shared_areas(quad: np.ndarray, shape: tuple[int, int], margin: float = 0.0) -> dict[tuple[int, int], float]:
    """Area that a polygon (n, 2) shares with each pixel (y, x) of an image; pixel i covers i to i + 1, less a margin on
    all sides."""
    (x0, y0), (x1, y1) = np.floor(quad.min(axis=0)).astype(int), np.ceil(quad.max(axis=0)).astype(int)
    found = {}
    for y in range(max(y0, 0), min(y1, shape[0])):
        row = clip(clip(quad, 1, y + margin, 1), 1, y + 1 - margin, -1)
        for x in range(max(x0, 0), min(x1, shape[1])):
            a = area(clip(clip(row, 0, x + margin, 1), 0, x + 1 - margin, -1))
            if a > 0:
                found[y, x] = a
    return found


def clip(polygon: np.ndarray, axis: int, at: float, side: int) -> np.ndarray:
    """What of a polygon lies above (side 1) or below (-1) a value of one coordinate."""
    out: list[np.ndarray] = []
    for a, b in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        da, db = side * (a[axis] - at), side * (b[axis] - at)
        if da >= 0:
            out.append(a)
        if da * db < 0:
            out.append(a + (b - a) * (da / (da - db)))
    return np.array(out).reshape(-1, 2)


def area(polygon: np.ndarray) -> float:
    if len(polygon) < 3:
        return 0.0
    x, y = (polygon - polygon[0]).T
    return 0.5 * abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1)))
