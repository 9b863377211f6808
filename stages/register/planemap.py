# SPDX-License-Identifier: BSD-3-Clause
"""Smooth maps from one pixel plane to another, fitted to pairs of stars."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from skydelta.kernels.polynomial import count_terms, polynomial_terms
from skydelta.stages.robust import median

TUKEY = 4.685
"""Constant of the biweight, robust standard deviations: 95 % of the efficiency of least squares."""

RECORDED = 1e-4
"""Least scatter that residuals are weighed by, px: exact pairs (an image with itself) have none."""

PAIRS_PER_TERM = 2.5
"""An order takes part when there are so many pairs for each of its terms."""

DETERMINED = 0.5
"""Largest predicted error, px, anywhere in the overlap of an order above 1."""

AREA_RANGE = 2.0
"""The area of a pixel may differ by this factor from the usual one: beyond, a polynomial folds."""

SAME = 0.01
"""Relative decrease of the squared residual that is worth a higher order."""


@dataclass(frozen=True)
class PlaneMap:
    """x, y of one plane to x, y of another: Chebyshev products of coordinates scaled to [-1, 1].

    Attributes
    ----------
    order : int
        Total degree; 0 is a similarity (kept as degree 1, with equal scales and no shear).
    coefficients : float64 (2, n_p)
        Of x and of y, px.
    middle, half : float64 (2,)
        Origin and unit of the scaled coordinates, px.
    factor : float64 (n_p, n_p)
        Inverse root of the normal matrix: the variance at a position is the sum of squares of ``factor.T @ terms``.
    """

    order: int
    coefficients: np.ndarray
    middle: np.ndarray
    half: np.ndarray
    factor: np.ndarray = field(repr=False)

    @property
    def degree(self) -> int:
        return max(1, self.order)

    def terms(self, a: np.ndarray) -> np.ndarray:
        """float64 (n_p, n) at positions (2, n)."""
        u, v = (np.asarray(a, float) - self.middle[:, None]) / self.half[:, None]
        return polynomial_terms(u, v, self.degree)

    def __call__(self, a: np.ndarray) -> np.ndarray:
        """Positions (2, n) of the other plane."""
        return self.coefficients @ self.terms(a)

    def error(self, a: np.ndarray) -> np.ndarray:
        """Predicted standard deviation of a coordinate at positions (2, n), px, from the scatter of the pairs."""
        return np.sqrt(((self.factor.T @ self.terms(a)) ** 2).sum(axis=0))

    def matrix(self, a: np.ndarray) -> np.ndarray:
        """Derivatives (2, 2, n) at positions (2, n), by central differences of a hundredth of the unit."""
        step = 0.01 * self.half
        columns = []
        for axis in (0, 1):
            d = np.zeros((2, 1))
            d[axis] = step[axis]
            columns.append((self(a + d) - self(a - d)) / (2 * step[axis]))
        return np.stack(columns, axis=1)


def similarity(alpha: complex, beta: complex, mirrored: bool) -> PlaneMap:
    """b = alpha a + beta in complex numbers, with the conjugate of a where mirrored."""
    s = -1 if mirrored else 1
    columns = [beta, alpha, 1j * s * alpha]
    table = np.array([[c.real for c in columns], [c.imag for c in columns]])
    return PlaneMap(0, table, np.zeros(2), np.ones(2), np.zeros((3, 3)))


@dataclass(frozen=True)
class Fit:
    """A map and what its pairs say of it.

    Attributes
    ----------
    map : PlaneMap
    residual : float64 (2, n)
        b minus mapped a, px.
    sigma : float
        Robust standard deviation of one coordinate, px.
    held_out : float
        Mean square of the residuals of pairs predicted without themselves, the largest tenth left out, px^2.
    """

    map: PlaneMap
    residual: np.ndarray
    sigma: float
    held_out: float


def fit_map(a: np.ndarray, b: np.ndarray, order: int, weight: np.ndarray | None = None, iterations: int = 8) -> Fit:
    """Fit a map to pairs, robustly.

    Iteratively reweighted by Tukey's biweight. The residual of a pair without itself follows from its leverage h as
    e / (1 - h) (Allen 1974, PRESS).

    Parameters
    ----------
    a, b : float64 (2, n)
        Pairs, px.
    order : int
        0 for a similarity (either parity), else the total degree.
    weight : float64 (n,), optional
        Inverse variances up to a factor.
    iterations : int
        At most.
    """
    # scaled to the pairs, wherever in the frame they are, the terms stay far from dependent
    low, high = a.min(axis=1), a.max(axis=1)
    middle, half = (low + high) / 2, np.maximum((high - low) / 2, 1.0)
    given = np.ones(a.shape[1]) if weight is None else weight / weight.mean()
    u, v = (a - middle[:, None]) / half[:, None]
    terms = polynomial_terms(u, v, max(1, order))
    solve = _similar if order == 0 else _polynomial
    w = given
    for step in range(iterations):
        coefficients, factor, leverage = solve(terms, a, b, w, middle, half)
        residual = b - coefficients @ terms
        sigma = _sigma(residual, coefficients, order)
        if step == iterations - 1:
            break
        z = np.hypot(*residual) * np.sqrt(given) / (TUKEY * max(sigma, RECORDED))
        new = given * np.where(z < 1, (1 - z * z) ** 2, 0.0)
        if (new > 0).sum() < coefficients.shape[1] or np.abs(new - w).max() < 1e-3 * given.max():
            break
        w = new
    alone = (np.hypot(*residual) / np.maximum(1 - leverage, 1e-3)) ** 2 * given
    kept = np.sort(alone)[: max(1, int(np.ceil(0.9 * len(alone))))]
    fitted = PlaneMap(order, coefficients, middle, half, factor * sigma)
    return Fit(fitted, residual, sigma, float(kept.mean()))


def _sigma(residual: np.ndarray, coefficients: np.ndarray, order: int) -> float:
    """Robust standard deviation of a coordinate; the pairs that the terms absorb are allowed for."""
    n = residual.shape[1]
    free = max(n - (2 if order == 0 else coefficients.shape[1]), 1)
    # the median length of a two-dimensional normal vector is sqrt(2 ln 2) standard deviations
    return float(median(np.hypot(*residual)) / np.sqrt(2 * np.log(2)) * np.sqrt(n / free))


def _polynomial(terms, a, b, w, middle, half):
    """Coefficients (2, n_p), the inverse root of the normal matrix, and leverages."""
    weighted = terms * w
    values, vectors = np.linalg.eigh(weighted @ terms.T)
    # least norm where the pairs do not tell terms apart
    root = np.where(values > 1e-12 * values[-1], 1 / np.sqrt(np.maximum(values, 1e-300)), 0.0)
    factor = vectors * root
    inverse = factor @ factor.T
    coefficients = (inverse @ (weighted @ b.T)).T
    # once more for what is left: normal equations alone lose digits
    coefficients = coefficients + (inverse @ (weighted @ (b - coefficients @ terms).T)).T
    return coefficients, factor, w * ((factor.T @ terms) ** 2).sum(axis=0)


def _similar(terms, a, b, w, middle, half):
    """The same for a similarity, of the parity that fits better."""
    za, zb = (a[0] - middle[0]) + 1j * (a[1] - middle[1]), b[0] + 1j * b[1]
    total = w.sum()
    ma, mb = (w * za).sum() / total, (w * zb).sum() / total
    da, db = za - ma, zb - mb
    size = max(float((w * np.abs(da) ** 2).sum()), 1e-300)
    straight, turned = (w * np.conj(da) * db).sum() / size, (w * da * db).sum() / size
    mirrored = abs(turned) > abs(straight)
    alpha, shift = (turned, np.conj(ma)) if mirrored else (straight, ma)
    s = -1 if mirrored else 1
    columns = [mb - alpha * shift, alpha * half[0], 1j * s * alpha * half[1]]
    coefficients = np.array([[c.real for c in columns], [c.imag for c in columns]])
    leverage = w / total + w * np.abs(da) ** 2 / size
    # the variance grows with the distance from the mean position
    unit = half / np.sqrt(size)
    factor = np.zeros((3, 3))
    factor[0] = 1 / np.sqrt(total), -ma.real / np.sqrt(size), -ma.imag / np.sqrt(size)
    factor[1, 1], factor[2, 2] = unit
    return coefficients, factor, leverage


def best_order(
    a: np.ndarray, b: np.ndarray, grid: np.ndarray, highest: int, weight: np.ndarray | None = None
) -> tuple[Fit, dict[int, float]]:
    """The lowest order whose held-out residual is as good as the best one's.

    An order above 1 takes part when there are `PAIRS_PER_TERM` pairs for each of its terms, the pairs determine it to
    `DETERMINED` at all positions (2, m) of ``grid``, and it does not fold there.

    Returns
    -------
    Fit
    dict
        Root of the held-out mean square of every order that took part, px.
    """
    n = a.shape[1]
    fits = {0: fit_map(a, b, 0, weight)}
    for order in range(1, highest + 1):
        if n < (2 if order == 1 else PAIRS_PER_TERM) * count_terms(order):
            break
        fit = fit_map(a, b, order, weight)
        if order == 1 or (fit.map.error(grid).max() <= DETERMINED and unfolded(fit.map, grid)):
            fits[order] = fit
    least = min(f.held_out for f in fits.values())
    margin = 1 + SAME + 4 / n
    chosen = min(k for k, f in fits.items() if f.held_out <= least * margin + RECORDED**2)
    return fits[chosen], {k: float(np.sqrt(f.held_out)) for k, f in fits.items()}


def frame_grid(box: np.ndarray, n: int = 17) -> np.ndarray:
    """n x n positions (2, n^2) all over a frame, its rim among them."""
    x, y = np.meshgrid(*(np.linspace(low, high, n) for low, high in box))
    return np.stack([x.ravel(), y.ravel()])


def unfolded(map_: PlaneMap, grid: np.ndarray) -> bool:
    """Whether the area of a pixel stays alike, with one sign, at all these positions."""
    area = _areas(map_, grid)
    usual = float(median(area)) if area.size else 0.0
    if usual == 0:
        return False
    return bool((area / usual > 1 / AREA_RANGE).all() and (area / usual < AREA_RANGE).all())


def _areas(map_: PlaneMap, at: np.ndarray) -> np.ndarray:
    m = map_.matrix(at)
    return m[0, 0] * m[1, 1] - m[0, 1] * m[1, 0]
