# SPDX-License-Identifier: BSD-3-Clause
"""The correlation that resampling gives to white noise, from the weights of source pixels alone.

A source pixel of value 1 among zeros leaves its weights w(p) on the target pixels p around it. The noise of independent
source pixels adds up, so the covariance of target pixels p and p' is the sum over source pixels of w(p) w(p'), and
every moment of the correlation is that of such patterns: a sample of source pixels in each tile, laid side by side, is
resampled by the kernel itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from skydelta.errors import ConfigError
from skydelta.io.correlation import NoiseCorrelation
from skydelta.io.exposure import Exposure
from skydelta.kernels.resample import METHODS, MaskBits, Method, PixelMap, resample
from skydelta.stages.align.mapping import Evaluate

SIDE = 128
"""Of a tile, px; a multiple of it where there would be more than `MOST` tiles along an axis."""

MOST = 16

SAMPLE = 100
"""Source pixels of a tile, about; as many more as target pixels are larger, of which some meet none."""

FEWEST, PIXELS = 9, 1 << 15
"""Least source pixels of a tile, and target pixels around all of them that they are reduced for."""

LARGEST = 64
"""Half side of the target pixels around a source pixel, at most."""

BATCH = 1 << 19
"""Target pixels resampled at once."""

REACH: dict[str, float] = {"nearest": 0.8, "bilinear": 1.5, "bspline3": 6.0, "lanczos3": 3.5, "bspline5": 9.0,
                           "lanczos4": 4.5, "lanczos5": 5.5}  # fmt: skip
"""Distance in source px up to which a source pixel has weight; beyond, cardinal splines have less than 5e-4."""

_BITS = MaskBits(0, 0, 1, 2, 4, 8)


def tile_side(shape: tuple[int, int]) -> int:
    """Side of the tiles of an image of this shape, px."""
    return SIDE * max(1, -(-max(shape) // (SIDE * MOST)))


def noise_correlation(
    image: Any,
    onto: Any,
    *,
    method: Method | None = None,
    pixfrac: float | None = None,
    tolerance: float | None = None,
    aligned: bool | None = None,
) -> NoiseCorrelation:
    """How `skydelta.align` with these settings correlates the noise of an image; its own noise is taken as white.

    Parameters
    ----------
    image, onto : Exposure, array, NDData, WCS, Header, HDU, path, or (WCS or Header, shape)
        What matters are their WCS and sizes.
    method, pixfrac, tolerance, aligned
        As of `skydelta.align`; its defaults when not given.

    Raises
    ------
    InputError
        As `skydelta.align`.
    ConfigError
        A setting without effect, or something that is no image or grid.
    """
    from skydelta.stages.align import Align
    from skydelta.stages.align.inputs import as_target

    settings: dict[str, Any] = {"method": method, "pixfrac": pixfrac, "tolerance": tolerance, "aligned": aligned}
    stage = Align(**{name: value for name, value in settings.items() if value is not None})
    ready = as_target(image), as_target(onto)
    for value in ready:
        if not isinstance(value, Exposure):
            raise ConfigError(
                f"noise_correlation: {type(value).__name__} is no image or grid; an Exposure, array, NDData, HDU, WCS, "
                "header or path is needed"
            )
    return stage.correlation(*ready)


def correlation(
    evaluate: Evaluate,
    target_shape: tuple[int, int],
    source_shape: tuple[int, int],
    method: Method,
    pixfrac: float = 1.0,
    *,
    of_many: int = 1,
) -> NoiseCorrelation:
    """Moments of the correlation in each tile of a target, for white noise in the source.

    Parameters
    ----------
    evaluate : callable
        Target x, y to source x, y, px.
    target_shape, source_shape : (int, int)
        (H, W), px.
    method, pixfrac
        As of `resample`.
    of_many : int
        Number of exposures whose correlations will be joined by `joined`: of several a smaller sample does for each,
        and values count with their drizzle weights, as in the mean of exposures whose weights are even together.
    """
    h, w = target_shape
    side = tile_side(target_shape)
    ny, nx = -(-h // side), -(-w // side)
    tops, lefts = (g.ravel() * side for g in np.indices((ny, nx)))
    sizes = np.minimum(side, w - lefts), np.minimum(side, h - tops)
    moments = np.full((4, ny * nx), np.nan)
    slope = _slopes(evaluate, lefts + (sizes[0] - 1) / 2, tops + (sizes[1] - 1) / 2)
    slope = slope[np.isfinite(slope).all(axis=(1, 2))]
    scales = np.linalg.svd(slope, compute_uv=False)
    scales = scales[scales[:, 1] > 0]
    if not len(scales):
        return NoiseCorrelation(moments.reshape(4, ny, nx), side)
    large, small, area = scales[:, 0].max(), scales[:, 1].min(), np.median(scales.prod(axis=1))
    reach = REACH.get(method, 3 * max(1.0, large) if method == "adaptive" else 0.75 * (1 + large))
    half = int(min(np.ceil((reach + 0.8 * (1 + large)) / small), LARGEST))
    patch = (2 * half + 1) ** 2
    count = np.clip(SAMPLE * max(1.0, area) / of_many, FEWEST, max(PIXELS / patch, FEWEST))
    along = int(np.ceil(np.sqrt(count)))
    # the same places in every tile would meet the same phases of a map that repeats itself; these do not
    cell = np.indices((along, along)).reshape(2, -1)
    place = (cell[:, None] + np.random.default_rng(0).random((2, ny * nx, cell.shape[1]))) / along
    x = lefts[:, None] - 0.5 + place[1] * sizes[0][:, None]
    y = tops[:, None] - 0.5 + place[0] * sizes[1][:, None]
    sums = np.zeros((5, x.size))
    step = max(1, BATCH // patch)
    for start in range(0, x.size, step):
        part = slice(start, start + step)
        sums[:, part] = _sums(
            evaluate, x.ravel()[part], y.ravel()[part], source_shape, method, pixfrac, half, reach, of_many > 1
        )
    power, *rest = sums.reshape(5, ny * nx, -1).sum(axis=2)
    np.divide(rest, power, out=moments, where=power > 0)
    return NoiseCorrelation(moments.reshape(4, ny, nx), side)


def _slopes(evaluate: Evaluate, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Derivatives d(source x, y) / d(target x, y) at points: float64 (n, 2, 2)."""
    dx = np.subtract(evaluate(x + 0.5, y), evaluate(x - 0.5, y))
    dy = np.subtract(evaluate(x, y + 0.5), evaluate(x, y - 0.5))
    return np.stack([dx, dy], axis=1).transpose(2, 0, 1)


def _sums(
    evaluate: Evaluate,
    x: np.ndarray,
    y: np.ndarray,
    source_shape: tuple[int, int],
    method: Method,
    pixfrac: float,
    half: int,
    reach: float,
    weighted: bool,
) -> np.ndarray:
    """Of the weights of the source pixels at these places of the target: sums of their squares, and of the products of
    all pairs times 1, |dx|, |dy| and |dx dy|: float64 (5, n), 0 for places outside the source."""
    out = np.zeros((5, x.size))
    px, py = np.rint(x), np.rint(y)
    pixel, at, slope = np.rint(evaluate(x, y)), np.stack(evaluate(px, py)), _slopes(evaluate, px, py)
    size = np.array(source_shape[::-1])[:, None]
    known = np.isfinite(at).all(axis=0) & np.isfinite(slope).all(axis=(1, 2)) & (pixel >= 0).all(axis=0)
    known &= (pixel < size).all(axis=0)
    if not known.any():
        return out
    weights = _patterns((at - pixel)[:, known].T, slope[known], method, pixfrac, half, reach, weighted)
    apart = np.abs(np.subtract.outer(np.arange(2 * half + 1), np.arange(2 * half + 1))).astype(float)
    columns, rows = weights.sum(axis=1), weights.sum(axis=2)
    out[:, known] = [
        (weights**2).sum(axis=(1, 2)),
        columns.sum(axis=1) ** 2,
        ((columns @ apart) * columns).sum(axis=1),
        ((rows @ apart) * rows).sum(axis=1),
        ((apart @ weights @ apart) * weights).sum(axis=(1, 2)),
    ]
    return out


def _patterns(
    offset: np.ndarray, slope: np.ndarray, method: Method, pixfrac: float, half: int, reach: float, weighted: bool
) -> np.ndarray:
    """Weights of source pixels on the (2 half + 1)^2 target pixels around one that lies ``offset`` (n, 2) px from each,
    where the derivatives of the map are ``slope``: float64 (n, side, side)."""
    n, corners = len(offset), method not in METHODS
    side = 2 * half + 1 + corners
    across = int(np.ceil(np.sqrt(n)))
    down = -(-n // across)
    distance = np.sqrt(2) * (half + 1) * np.linalg.norm(slope, axis=(1, 2)).max()
    apart = int(np.ceil(distance + reach)) + 2  # no pattern sees the source pixel of another
    source = np.zeros(((down + 1) * apart, (across + 1) * apart), np.float32)
    row, column = np.divmod(np.arange(n), across)
    middle = np.stack([column * apart + apart, row * apart + apart])
    source[middle[1], middle[0]] = 1
    steps = np.arange(side) - half - 0.5 * corners
    grid = np.stack(np.meshgrid(steps, steps))
    exact = np.full((down * across, 3, side, side), np.nan)
    exact[:n, :2] = np.einsum("nij,jyx->niyx", slope, grid) + (middle.T + offset)[:, :, None, None]
    exact[:n, 2] = np.abs(np.linalg.det(slope))[:, None, None]
    cells = np.arange(down * across, dtype=np.int32).reshape(down, across)
    shape = down * side, across * side
    grid_map = PixelMap(shape, source.shape, side, np.zeros((2, down + 3, across + 3)), cells, exact)
    made = resample(source, None, None, grid_map, method=method, pixfrac=pixfrac, bits=_BITS)
    found = np.nan_to_num(made.image).astype(np.float64)
    if weighted:
        found *= made.weight
    found = np.pad(found, [(0, shape[0] - found.shape[0]), (0, shape[1] - found.shape[1])])
    found = found.reshape(down, side, across, side).swapaxes(1, 2).reshape(-1, side, side)
    return found[:n, : 2 * half + 1, : 2 * half + 1]
