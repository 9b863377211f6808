# SPDX-License-Identifier: BSD-3-Clause
"""Plain references: polygons clipped pixel by pixel (Sutherland & Hodgman 1974), and Gaussians by NumPy's SVD."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.overlap import INNER, LIVE, REGION, SEAM, SLIVER, TAPER, TRACE
from skydelta.kernels.cpu.reference_resample import dense_map
from skydelta.kernels.cpu.resample import AT_PIXEL
from skydelta.kernels.resample import MaskBits


def overlap(
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
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, np.ndarray]:
    """As the twin of the same name."""
    corners = _corners(nodes, cells, exact, shape)
    image, var = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
    mask, weight = np.full(shape, bits.no_data, np.int32), np.zeros(shape, np.float32)
    for y, x in np.ndindex(*shape):
        four = _around(corners, y, x)
        quad = four[:, :2] + 0.5
        whole = area(quad)
        if not 0 < whole <= SEAM * four[:, 2].max():
            continue
        a = shared_areas(quad, values.shape)
        seen = sum(a.values())
        if seen <= SLIVER * whole:
            continue
        filled = {p: work[p] < 0 for p in a}
        lost = sum(v for p, v in a.items() if filled[p])
        kept2 = sum(v * v for p, v in a.items() if not filled[p])
        m = bits.edge if seen < (1 - AT_PIXEL) * whole else 0
        for p, v in a.items():
            if v > AT_PIXEL * min(1.0, whole):
                m |= int(work[p]) & 0x7FFFFFFF | (bits.interp if filled[p] else 0)
        weight[y, x] = (seen - lost) / whole
        gone = lost > 0.5 * seen or kept2 == 0
        mask[y, x] = m | bits.no_data if gone else m
        if not gone:
            scale = 1.0 if flux else 1 / seen
            image[y, x] = sum(v * float(values[p]) for p, v in a.items()) * scale
            if variance is not None:
                good = sum(v * v * float(variance[p]) for p, v in a.items() if not filled[p])
                var[y, x] = good * sum(v * v for v in a.values()) / kept2 * scale**2
    return image, None if variance is None else var, mask, weight


def drizzle(
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
    pixfrac: float,
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, np.ndarray]:
    """As the twin of the same name."""
    h, w = values.shape
    corners = _corners(nodes, cells, exact, shape)
    image, var = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
    mask, weight = np.full(shape, bits.no_data, np.int32), np.zeros(shape, np.float32)
    for y, x in np.ndindex(*shape):
        four = _around(corners, y, x)
        quad = four[:, :2] + 0.5
        whole = area(quad)
        if not 0 < whole <= SEAM * four[:, 2].max():
            continue
        every = shared_areas(quad, values.shape, (1 - pixfrac) / 2)
        touched = [p for p, v in every.items() if v > AT_PIXEL * min(pixfrac**2, whole)]
        a = {p: v for p, v in every.items() if work[p] >= 0}
        seen = sum(a.values())
        if seen <= TRACE * pixfrac**2 * whole:
            mask[y, x] |= np.bitwise_or.reduce([0, *(int(work[p]) & 0x7FFFFFFF for p in touched)])
            continue
        cut = (quad < -AT_PIXEL).any() or (quad > np.array([w, h]) + AT_PIXEL).any()
        mask[y, x] = np.bitwise_or.reduce([bits.edge if cut else 0, *(int(work[p]) for p in touched if p in a)])
        weight[y, x] = seen / (pixfrac**2 * whole)
        scale = (whole if flux else 1.0) / seen
        image[y, x] = sum(v * float(values[p]) for p, v in a.items()) * scale
        if variance is not None:
            var[y, x] = sum(v * v * float(variance[p]) for p, v in a.items()) * scale**2
    return image, None if variance is None else var, mask, weight


def adaptive(
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
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, np.ndarray]:
    """As the twin of the same name."""
    h, w = values.shape
    corners = _corners(nodes, cells, exact, shape)
    image, var = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
    mask, weight = np.full(shape, bits.no_data, np.int32), np.zeros(shape, np.float32)
    for y, x in np.ndindex(*shape):
        four = _around(corners, y, x)
        px, py = four[:, :2].mean(axis=0)
        whole = area(four[:, :2])
        if not (0 < whole <= SEAM * four[:, 2].max() and -0.5 <= px <= w - 0.5 and -0.5 <= py <= h - 0.5):
            continue
        jacobian = np.stack([four[[1, 2], :2].sum(0) - four[[0, 3], :2].sum(0),
                             four[[2, 3], :2].sum(0) - four[[0, 1], :2].sum(0)], 1) / 2  # fmt: skip
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
        weight[y, x] = 1 - lost / g.sum()
        gone = lost > 0.5 * g.sum() or kept2 == 0
        mask[y, x] = m | bits.no_data if gone else m
        if not gone:
            scale = (whole if flux else 1.0) / gi.sum()
            image[y, x] = (gi * values[at]).sum() * scale
            if variance is not None:
                var[y, x] = (gi[good] ** 2 * variance[at][good]).sum() * (gi**2).sum() / kept2 * scale**2
    return image, None if variance is None else var, mask, weight


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
