# SPDX-License-Identifier: BSD-3-Clause
"""Plain references of the resampling kernels: SciPy splines and NumPy sums over taps, all in float64."""

from __future__ import annotations

import numpy as np
from scipy import ndimage
from scipy.interpolate import BSpline, lagrange

from skydelta.kernels.cpu.resample import AT_PIXEL, FILL_RADIUS, FILLED
from skydelta.kernels.resample import CELL_INTERPOLATED, DEGREES, METHODS, TAPS, MaskBits

CARDINAL_REACH = 24
"""Half width to which the cardinal spline is tabulated, px (1e-9 of its peak)."""


def prepare(
    image: np.ndarray,
    variance: np.ndarray | None,
    mask: np.ndarray | None,
    *,
    degree: int,
    fill: int,
    bad: int,
    no_data: int,
) -> tuple[np.ndarray, np.ndarray]:
    """As the twin of the same name."""
    work = np.zeros(image.shape, np.int32) if mask is None else mask.copy()
    unusable = (work & fill) != 0
    unusable |= ~np.isfinite(image)
    work[~np.isfinite(image)] |= no_data
    if variance is not None:
        invalid = ~((variance > 0) & np.isfinite(variance))
        unusable |= invalid
        work[invalid] |= bad
    work[unusable] |= FILLED
    values = np.where(unusable, 0.0, image).astype(float)
    usable = np.pad(~unusable, FILL_RADIUS).astype(float)
    padded = np.pad(values, FILL_RADIUS)
    d = np.arange(-FILL_RADIUS, FILL_RADIUS + 1)
    gauss = np.exp(-0.5 * (d**2 + d[:, None] ** 2))
    for y, x in zip(*np.nonzero(unusable), strict=True):
        box = np.s_[y : y + d.size, x : x + d.size]
        weight = gauss * usable[box]
        values[y, x] = (weight * padded[box]).sum() / weight.sum() if weight.any() else _far(image, ~unusable, y, x)
    if degree:
        values = ndimage.spline_filter(values, degree, mode="mirror")
    return values.astype(np.float32), work


def _far(image: np.ndarray, usable: np.ndarray, y: int, x: int) -> float:
    """Mean of usable pixels in 8 directions at the shortest distance 4, 8, 16, ... that has any."""
    d = FILL_RADIUS + 1
    while d < max(image.shape):
        at = [(y + j * d, x + i * d) for j in (-1, 0, 1) for i in (-1, 0, 1)]
        found = [float(image[p]) for p in at if 0 <= p[0] < image.shape[0] and 0 <= p[1] < image.shape[1] and usable[p]]
        if found:
            return sum(found) / len(found)
        d *= 2
    return 0.0


def gather(
    values: np.ndarray,
    variance: np.ndarray | None,
    work: np.ndarray,
    nodes: np.ndarray,
    cells: np.ndarray,
    exact: np.ndarray,
    *,
    shape: tuple[int, int],
    method: int,
    flux: bool,
    bits: MaskBits,
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, np.ndarray]:
    """As the twin of the same name."""
    qx, qy, area = dense_map(nodes, cells, exact, shape)
    h, w = values.shape
    inside = (qx >= -0.5) & (qx <= w - 0.5) & (qy >= -0.5) & (qy <= h - 0.5)
    if flux:
        inside &= np.isfinite(area)
    px, py = np.where(inside, qx, 0.0), np.where(inside, qy, 0.0)
    if METHODS[method] == "nearest":
        px, py = (np.minimum(np.floor(p + 0.5), n - 1.0) for p, n in ((px, w), (py, h)))
    ix, iy = np.floor(px).astype(int), np.floor(py).astype(int)
    fx, fy = px - ix, py - iy
    taps, before = TAPS[method], (TAPS[method] - 1) // 2
    wx, wy = pixel_weights(method, fx), pixel_weights(method, fy)

    total, total2, lost, kept2, value, var = (np.zeros(shape) for _ in range(6))
    m = np.zeros(shape, np.int32)
    for n in range(taps):
        for k in range(taps):
            y, x = iy - before + n, ix - before + k
            yy, xx = _mirror(y, h), _mirror(x, w)
            cut = (yy != y) | (xx != x)
            weight, flags = wy[n] * wx[k], work[yy, xx]
            filled = flags < 0
            live = _live(n - before, fy) & _live(k - before, fx)
            total += np.abs(weight)
            total2 += weight**2
            lost += np.where(filled | cut, np.abs(weight), 0)
            kept2 += np.where(filled, 0, weight**2)
            value += weight * values[yy, xx]
            if variance is not None:
                var += np.where(filled, 0, weight**2 * np.where(filled, 0, variance[yy, xx]))
            core = 0 <= n - before <= 1 and 0 <= k - before <= 1
            m |= np.where(live & cut, bits.edge, 0).astype(np.int32)
            m |= np.where(live & ~cut & filled, bits.interp, 0).astype(np.int32)
            m |= np.where(live & ~cut, flags if core else flags & bits.grow, 0).astype(np.int32)
    m &= 0x7FFFFFFF
    degree = DEGREES[method]
    if degree:
        value = ndimage.map_coordinates(values.astype(float), [py, px], order=degree, mode="mirror", prefilter=False)
    with np.errstate(invalid="ignore", divide="ignore"):
        var = var * total2 / kept2
    gone = ~inside | (lost > 0.5 * total) | (kept2 == 0)
    scale = area if flux else np.ones(shape)
    image = np.where(gone, np.nan, value * scale)
    m = np.where(inside, np.where(gone, m | bits.no_data, m), bits.no_data)
    weight = np.where(inside, 1 - lost / total, 0)
    variance_out = None if variance is None else np.where(gone, np.nan, var * scale**2).astype(np.float32)
    return image.astype(np.float32), variance_out, m.astype(np.int32), weight.astype(np.float32)


def dense_map(nodes: np.ndarray, cells: np.ndarray, exact: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Source x, y and pixel area at every target pixel: float64 (3, H, W), NaN where there is none."""
    h = exact.shape[2]
    t = np.arange(h) / h
    basis = [lagrange([-1, 0, 1, 2], np.eye(4)[k]) for k in range(4)]
    at, slope = np.array([p(t) for p in basis]), np.array([p.deriv()(t) for p in basis]) / h
    out = np.full((3, cells.shape[0] * h, cells.shape[1] * h), np.nan)
    for (i, j), cell in np.ndenumerate(cells):
        box = np.s_[:, i * h : i * h + h, j * h : j * h + h]
        if cell >= 0:
            out[box] = exact[cell]
        elif cell == CELL_INTERPOLATED:
            around = nodes[:, i : i + 4, j : j + 4]
            q, qx, qy = (np.einsum("ny,kx,cnk->cyx", a, b, around) for a, b in ((at, at), (at, slope), (slope, at)))
            out[box] = [*q, np.abs(qx[0] * qy[1] - qx[1] * qy[0])]
    return out[:, : shape[0], : shape[1]]


def pixel_weights(method: int, f: np.ndarray) -> list[np.ndarray]:
    """Weights of the source pixels along an axis at fraction f, lowest pixel first."""
    name = METHODS[method]
    if name == "nearest":
        return [np.ones_like(f)]
    if name == "bilinear":
        return [1 - f, f]
    reach = TAPS[method] // 2
    if name.startswith("lanczos"):
        taps = [np.sinc(f - k) * np.sinc((f - k) / reach) for k in range(1 - reach, reach + 1)]
        total = sum(taps)
        return [t / total for t in taps]
    degree = DEGREES[method]
    left = np.sqrt(sum(cardinal_spline(f - k, degree) ** 2 for k in range(-CARDINAL_REACH, 2 - reach)))
    right = np.sqrt(sum(cardinal_spline(f - k, degree) ** 2 for k in range(reach, CARDINAL_REACH)))
    return [left, *(cardinal_spline(f - k, degree) for k in range(2 - reach, reach)), right]


def cardinal_spline(t: np.ndarray, degree: int) -> np.ndarray:
    """Impulse response of spline interpolation at distance t, px."""
    delta = np.zeros(2 * CARDINAL_REACH + 17)
    delta[CARDINAL_REACH + 8] = 1.0
    coefficients = ndimage.spline_filter1d(delta, degree, mode="mirror")
    knots = np.arange(delta.size + degree + 1) - CARDINAL_REACH - 8.0 - (degree + 1) / 2
    return BSpline(knots, coefficients, degree)(t)


def _mirror(i: np.ndarray, n: int) -> np.ndarray:
    if n == 1:
        return np.zeros_like(i)
    i = np.abs(i) % (2 * n - 2)
    return np.where(i >= n, 2 * n - 2 - i, i)


def _live(k: int, f: np.ndarray) -> np.ndarray:
    return np.where(f <= AT_PIXEL, k == 0, np.where(f >= 1 - AT_PIXEL, k == 1, True))
