# SPDX-License-Identifier: BSD-3-Clause
"""Stage ``background``: the sky, fitted and subtracted."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field
from scipy.interpolate import make_interp_spline
from scipy.ndimage import median_filter

from skydelta.errors import AlgorithmError
from skydelta.io.exposure import Exposure
from skydelta.io.field import Domain, count_terms, polynomial_exponents, polynomial_terms
from skydelta.kernels.backend import Array, Backend, backend_of, to_host
from skydelta.kernels.background import BLOCK, LARGEST, blank_sky, block_scores, cell_statistics
from skydelta.kernels.core.tiles import TileGrid
from skydelta.kernels.cpu.jit import inline, serial
from skydelta.kernels.polynomial import product_plane
from skydelta.stages.base import Context, Port, Stage, StageConfig
from skydelta.stages.robust import levels, median

SKIPPED = 64
"""Cells of this side, px, or more are first measured on every second pixel along both axes."""

ACROSS = 10
"""Cells along the shorter side of an image that is too small for cells of `LARGEST` px."""

SOURCE = 3.5
"""Blocks this many standard deviations off the sky belong to sources."""

UNLIKE = 100.0
"""Noise of a cell over the usual one, or the other way round, beyond which it is not believed: cells without noise (of
simulations, or of constants) would leave the others without weight, and a matrix that cannot be solved."""

CONDITION = 1e3
"""Of the terms at the cells, at most; 3 where cells cover the image, 20 where one half is masked."""

NOISE_RATIO = 1.5
"""The measured noise may differ from the variance plane's by this factor before it is flagged."""


class BackgroundConfig(StageConfig):
    """How the sky is modelled."""

    model: Literal["polynomial", "mesh"] = Field(
        "polynomial",
        description="polynomial: smooth, for differences; mesh: follows the sky from cell to cell",
    )
    order: int = Field(2, ge=0, le=4, description="Total degree of the polynomial.")
    cell: int | None = Field(
        None,
        ge=16,
        le=LARGEST,
        multiple_of=BLOCK,
        description="Side of a mesh cell, px; adapted to the image if unset.",
    )


class Background(Stage[BackgroundConfig]):
    """Subtract the sky.

    Cells of a mesh give clipped medians; a robust polynomial goes through them; sources that stand out of it are masked
    and the cells are measured again. The polynomial is the default because the kernel match fits the differential
    background anyway, and because a mesh carries the noise of its cells, and some light of large sources, into the
    difference.

    Raises
    ------
    AlgorithmError
        No cell has enough usable pixels (the numbers are in the message).
    """

    name = "background"
    version = 4
    inputs = {"image": Port(Exposure, "image with its sky")}
    outputs = {"image": Port(Exposure, "sky-subtracted image", replaces="image")}

    def halo(self) -> int:
        return LARGEST

    def memory(self, shape: tuple[int, int], kind: str) -> int:
        return shape[0] * shape[1] * 16

    def run(self, ctx: Context, *, image: Exposure) -> dict[str, Any]:  # type: ignore[override]
        size = self.config.cell or _cell(image.shape)
        good = image.good()
        step = 2 if size >= SKIPPED else 1
        first = _Cells.measure(image.image[::step, ::step], good[::step, ::step], size // step)
        if not first.valid.any():
            usable = float(good.mean())
            why = (
                f"none of {first.valid.size} cells of {size} px has enough usable pixels ({usable:.2%} of "
                "all are usable, 10 % of a cell are needed)"
            )
            if not usable:  # what the reader said of it, if it did
                said = [w for w in image.notes.get("warnings", ()) if w.startswith("no usable pixel")]
                why = said[0] if said else "no usable pixel"
            raise AlgorithmError(
                f"background {image.id}".rstrip() + f": {why}",
                usable_fraction=usable,
                cells=first.valid.size,
            )
        rough, level = self._sky(image, first)
        xp = image.backend.xp
        residual = xp.subtract(image.image, rough, out=rough)
        blank = _blank(image.backend, residual, good, first)
        second = _Cells.measure(residual, blank, size)
        if second.valid.sum() < first.valid.sum() / 2:
            filled = 1 - _number(blank) / _number(good)
            ctx.flag("crowded_sky", f"sources fill {filled:.0%} of the image: the sky is measured between them")
            blank, second = good, _Cells.measure(residual, good, size)
        fine, correction = self._sky(image, second)
        subtracted = xp.subtract(residual, fine, out=fine)
        ratio = self._report(ctx, image, subtracted, blank, second, level + correction)
        found = {"sky_level": level + correction, "sky_sigma_over_predicted": ratio}
        return {"image": image.with_(image=subtracted, notes={**image.notes, **found})}

    def _sky(self, image: Exposure, cells: _Cells) -> tuple[Array, float]:
        """The sky (H, W) through the medians of the cells, and its mean level."""
        order, domain = self.config.order, Domain.of(image.shape)
        c = fit_cells(cells.median, cells.count, cells.sigma, _terms(cells.grid, cells.domain, order))
        level = float(_mean_terms(order) @ c)
        if self.config.model == "polynomial":
            return domain.plane(image.backend, image.shape, c, order), level
        return _mesh(image.backend, cells, c, order, domain), level

    def _report(
        self, ctx: Context, image: Exposure, subtracted: Array, blank: Array, cells: _Cells, level: float
    ) -> float:
        """Figures and flags; the noise of the sky over what the variance plane predicts, NaN where that is unknown."""
        ctx.metric("sky_level", level)
        ctx.metric("sky_sigma", float(median(cells.sigma[cells.valid])))
        ctx.metric("sky_cells", int(cells.valid.sum()))
        xp = image.backend.xp
        every = max(1, int(np.sqrt(blank.size / 2e5)))
        part = np.s_[::every, ::every]
        sample = xp.ascontiguousarray(blank[part])
        ctx.metric("sky_fraction", _number(blank) / blank.size)
        if image.variance is None:
            return float("nan")
        z = xp.where(sample, subtracted[part] / xp.sqrt(image.variance[part]), np.float32(np.nan))
        ratio = float(levels(z)[1])
        if not np.isfinite(ratio):
            return ratio
        ctx.metric("sky_sigma_over_predicted", ratio)
        if not 1 / NOISE_RATIO <= ratio <= NOISE_RATIO:
            ctx.flag(
                "variance_scale",
                f"the sky's noise is {ratio:.2f} times what the variance plane predicts: the variance is "
                f"{variance_words(ratio)}, every error and signal-to-noise is off by {_factor(ratio)}",
            )
        return ratio


def _factor(ratio: float) -> str:
    return f"a factor of {max(ratio, 1 / ratio):.3g}" if ratio else "any factor"


def variance_words(ratio: float) -> str:
    """How wrong a variance is where the noise is ``ratio`` times what it says: 10 times too small."""
    if ratio == 0:
        return "too large where there is no noise"
    factor, word = (ratio**2, "small") if ratio > 1 else (ratio**-2, "large")
    return f"{factor:.3g} times too {word}"


@dataclass(frozen=True)
class _Cells:
    """Statistics of mesh cells on the host: float64 and int64 (ny, nx)."""

    grid: TileGrid
    median: np.ndarray
    sigma: np.ndarray
    count: np.ndarray

    @classmethod
    def measure(cls, image: Array, good: Array, size: int) -> _Cells:
        xp = backend_of(image).xp
        median, sigma, count = cell_statistics(xp.ascontiguousarray(image), xp.ascontiguousarray(good), size)
        # the three tables come to the host in one copy: two of them as the bits of their floats
        table = to_host(xp.stack([median.view(np.int32), sigma.view(np.int32), count]))
        floats, counts = table[:2].view(np.float32).astype(float), table[2].astype(int)
        return cls(TileGrid(image.shape, size), floats[0], floats[1], counts)

    @property
    def domain(self) -> Domain:
        return Domain.of(self.grid.shape)

    @property
    def valid(self) -> np.ndarray:
        return self.count > 0

    @property
    def noise(self) -> np.ndarray:
        """Sigma; the usual one where a cell has none."""
        some = self.valid & (self.sigma > 0)
        return np.where(some, self.sigma, median(self.sigma[some]) if some.any() else 1.0)


def fit_cells(medians: np.ndarray, count: np.ndarray, sigma: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """Robust polynomial through the levels of cells.

    Weights are those of independent pixels; cells more than 3 robust standard deviations off leave. The degree is
    lowered where there are fewer than 2 cells for each term, or the cells do not tell the terms apart.

    Parameters
    ----------
    medians, sigma : float (n,) or (ny, nx)
        As of `cell_statistics`; cells without a median do not take part.
    count : int
        Pixels of each.
    terms : float64 (n, n_p)
        `polynomial_terms` at the middles of the cells.

    Returns
    -------
    float64 (n_p,)
        Coefficients of `polynomial_terms`; those above a lowered degree are 0.

    Raises
    ------
    AlgorithmError
        No cell has a median.
    """
    values, weight = np.ravel(medians).astype(float), np.ravel(count).astype(float)
    s = np.ravel(sigma).astype(float)
    use = np.isfinite(values) & (weight > 0)
    if not use.any():
        raise AlgorithmError(f"sky: none of {use.size} cells has usable pixels", cells=use.size)
    known = s[use & (s > 0)]
    usual = median(known) if known.size else 1.0
    weight = weight / np.clip(np.where(s > 0, s, usual), usual / UNLIKE, usual * UNLIKE) ** 2
    level = median(values[use])
    values = np.where(use, values - level, 0.0)
    order = next(k for k in itertools.count() if count_terms(k) >= terms.shape[1])
    counts = np.array([count_terms(k) for k in range(order + 1)])
    coefficients = _robust(values, weight, use, np.ascontiguousarray(terms), counts, CONDITION)
    coefficients[0] += level
    return coefficients


@inline
def _normal(terms, weight, kept, n_p):
    """sum w t t^T over the kept ones of places with terms (n, at least n_p)."""
    matrix = np.zeros((n_p, n_p))
    for i in range(len(terms)):
        if kept[i]:
            for p in range(n_p):
                for q in range(p + 1):
                    matrix[p, q] += weight[i] * terms[i, p] * terms[i, q]
    for p in range(n_p):
        for q in range(p):
            matrix[q, p] = matrix[p, q]
    return matrix


@serial
def _robust(values, weight, use, terms, counts, condition):
    """Coefficients (n_p,) of values (n,) less their level on terms (n, n_p); ``counts`` terms has each degree."""
    n, found, kept, off = len(values), np.zeros(terms.shape[1]), use.copy(), values.copy()
    for _ in range(10):
        degree = len(counts) - 1
        while degree:
            # two rows of cells say nothing of a curvature
            squared = np.linalg.eigvalsh(_normal(terms, np.ones(n), kept, counts[degree]))
            if kept.sum() >= 2 * counts[degree] and squared[-1] < condition**2 * squared[0]:
                break
            degree -= 1
        n_p = counts[degree]
        matrix = _normal(terms, weight, kept, n_p)
        found[:] = 0
        for _ in range(2):  # once more for what is left: normal equations alone lose digits
            right = np.zeros(n_p)
            for i in range(n):
                off[i] = values[i]
                for p in range(n_p):
                    off[i] -= found[p] * terms[i, p]
                if kept[i]:
                    for p in range(n_p):
                        right[p] += weight[i] * off[i] * terms[i, p]
            right = np.linalg.solve(matrix, right)
            for p in range(n_p):
                found[p] += right[p]
        left, count, changed = np.empty(n), 0, False
        for i in range(n):
            off[i] = values[i]
            for p in range(n_p):
                off[i] -= found[p] * terms[i, p]
            off[i] = abs(off[i]) * np.sqrt(weight[i])
            if kept[i]:
                left[count] = off[i]
                count += 1
        limit = 3 * max(1.4826 * np.median(left[:count]), 1.0)
        for i in range(n):
            keep = use[i] and off[i] <= limit
            changed |= keep != kept[i]
            kept[i] = keep
        if not changed:
            break
    return found


@functools.lru_cache(16)
def _terms(grid: TileGrid, domain: Domain, order: int) -> np.ndarray:
    """Polynomial terms at the centres of cells: float64 (n, n_p)."""
    return np.ascontiguousarray(polynomial_terms(*domain.uv(*grid.centres()), order).T)


def _cell(shape: tuple[int, int]) -> int:
    """Largest side of a cell, px."""
    return int(np.clip(min(shape) // ACROSS, 16, LARGEST))


def _mean_terms(order: int) -> np.ndarray:
    """Mean of each term over the field: that of T_n is 1 / (1 - n^2) for even n, else 0."""
    mean = [0.0 if n % 2 else 1 / (1 - n * n) for n in range(order + 1)]
    return np.array([mean[i] * mean[j] for i, j in polynomial_exponents(order)])


def _mesh(backend: Backend, cells: _Cells, coefficients: np.ndarray, order: int, domain: Domain) -> Array:
    """Cell medians, smoothed by a 3 x 3 median, as a bicubic spline; empty cells take the polynomial's value."""
    x, y = (a.reshape(cells.median.shape) for a in cells.grid.centres())
    u, v = cells.domain.uv(x, y)
    filled = np.tensordot(coefficients, polynomial_terms(u, v, order), axes=(0, 0))
    table = median_filter(np.where(cells.valid, cells.median, filled), 3, mode="nearest")
    rows, columns = (_spline(at, n) for at, n in zip((v[:, 0], u[0]), domain.shape, strict=True))
    return product_plane(backend, rows @ table, columns.T)


def _spline(nodes: np.ndarray, n: int) -> np.ndarray:
    """Weights (n, nodes) of a cubic spline through nodes in [-1, 1] at n pixels, constant beyond the outer nodes."""
    if len(nodes) == 1:
        return np.ones((n, 1))
    at = np.clip((2 * np.arange(n) + 1) / n - 1, nodes[0], nodes[-1])
    return make_interp_spline(nodes, np.eye(len(nodes)), k=min(3, len(nodes) - 1))(at)


def _blank(backend: Backend, residual: Array, good: Array, cells: _Cells) -> Array:
    """bool (H, W): usable pixels away from blocks whose mean stands out of the noise of such blocks.

    Both signs count, so that what is left is not skewed.
    """
    score = block_scores(residual, good, backend.asarray(cells.noise, np.float32))
    spread = float(levels(score)[1])
    return blank_sky(good, score, SOURCE * max(1.0, spread)) if np.isfinite(spread) else good


def _number(plane: Array) -> int:
    """How many are True."""
    return int(backend_of(plane).xp.count_nonzero(plane))
