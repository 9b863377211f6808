# SPDX-License-Identifier: BSD-3-Clause
"""One fit of the kernel: from stamps and a basis to the kernel, what it leaves, and which stamps took part."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from skydelta.io.field import Domain, count_terms, polynomial_terms
from skydelta.io.matchkernel import MatchKernel
from skydelta.io.pairnoise import PairNoise
from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.kernels.convolve import smeared
from skydelta.kernels.normal_equations import Layout, Penalty, System, stamp_sums
from skydelta.kernels.polynomial import chebyshev_table
from skydelta.stages.match.basis import GaussianBasis
from skydelta.stages.match.delta import DeltaBasis, chosen_strength, penalty
from skydelta.stages.match.fit import (
    JUDGES,
    Fit,
    Trial,
    clipped,
    fit,
    layout,
    scale_varies,
    supported_order,
)
from skydelta.stages.match.residuals import changed, residuals, stamp_coordinates
from skydelta.stages.match.skylevel import with_sky
from skydelta.stages.match.stamps import Selection, Stamps

MOST_VARIED = 0.25
"""Largest share of the stamps that may hold a change; where more seem to, it is the kernel that does not fit."""


@dataclass(frozen=True)
class Solved:
    """A kernel and the fit it comes from.

    Attributes
    ----------
    left : float32 (n, m, m)
        What the kernel leaves of each stamp, where the stamps are.
    varied : bool (n,)
        Stamps with a change in what the first kernel left, whether they took part or not.
    varies : bool
        Is the flux ratio a polynomial?
    """

    kernel: MatchKernel
    left: Array
    result: Fit
    varied: np.ndarray
    varies: bool


@dataclass(frozen=True)
class Problem:
    """All that a fit needs, but the basis.

    Attributes
    ----------
    direction : {"reference", "science"}
    stamps : Stamps
        With a margin of half the largest kernel at least.
    chosen : Selection
    candidates : bool (n,)
        Stamps that may take part.
    weight : float32 (n, m, m)
        Inverse variance of the difference.
    domain : Domain
    noise : PairNoise
    correlation, correlation_broad : (2 l + 1, 2 l + 1) or None
        Of the noise of the image to convolve and of the other one, by lag.
    order, background_order : int
        Spatial order, and that of the background where the stamps support it.
    photometric : {"auto", "constant", "varying"}
    clip : float
        As of `clipped`.
    fwhm : float
        Of a source in the other image, px.
    held : int
        Bytes, as of `stamp_sums`.
    """

    direction: str
    stamps: Stamps
    chosen: Selection
    candidates: np.ndarray
    weight: Array
    domain: Domain
    noise: PairNoise
    correlation: np.ndarray | None
    correlation_broad: np.ndarray | None
    order: int
    background_order: int
    photometric: str
    clip: float
    fwhm: float
    held: int

    @cached_property
    def fitted_background_order(self) -> int:
        return supported_order(self.background_order, int(self.candidates.sum()))

    @cached_property
    def _coordinates(self) -> Array:
        """As `stamp_coordinates`: float64 (2, n, m)."""
        stamps = self.stamps.broad
        return stamp_coordinates(backend_of(stamps), self.domain, self.chosen, stamps.shape[1])

    @cached_property
    def along(self) -> Array:
        """`chebyshev_table` of these: float64 (2, n, m, k)."""
        return chebyshev_table(self._coordinates, self.background_order)

    def of_pixels(self, half: int, start: Solved) -> Solved:
        """With free pixels within ``half`` px, beginning with the stamps of another fit and its kind of flux ratio.

        The basis of that fit costs nothing, so that with a strong penalty the kernel is the other one.
        """
        basis = DeltaBasis(half)
        cost = penalty(basis, start.kernel.basis, count_terms(self.fitted_background_order), self.order)
        return self.solved(basis, cost, start)

    def solved(
        self, basis: GaussianBasis | DeltaBasis, cost: Penalty | None = None, start: Solved | None = None
    ) -> Solved:
        """Fit, clip, and leave out what has changed.

        Parameters
        ----------
        cost : Penalty, optional
            On roughness; its strength is chosen here.
        start : Solved, optional
            With another basis: its stamps are the first, and its flux ratio varies or does not.
        """
        images = basis.images()
        half, background_order = images.shape[1] // 2, self.fitted_background_order
        sums = stamp_sums(
            self.stamps.within(half),
            self.stamps.broad,
            self.weight,
            self.stamps.sharp_variance,
            noise_gram(images, self.correlation),
            self._coordinates,
            background_order,
            basis,
            self.held,
        )
        phi = polynomial_terms(*self.domain.uv(self.chosen.x, self.chosen.y), self.order).T

        def free(varying: bool) -> Layout:
            return layout(basis.size, count_terms(background_order), self.order, varying)

        fitted, varies = self.candidates, self.photometric == "varying" if start is None else start.varies
        system = System(sums, phi, free(varies), cost)
        trial = clipped(Trial.of(system, fitted if start is None else start.result.used), fitted, self.clip)
        if cost is not None:
            system = system.penalised(chosen_strength(system, trial.used))
            trial = clipped(Trial.of(system, trial.used), fitted, self.clip)
        elif self.photometric == "auto" and self.order and trial.used.sum() >= JUDGES * phi.shape[1]:
            other = Trial.of(trial.system.relaid(free(True)), trial.used)
            if scale_varies(trial, other):
                varies, trial = True, clipped(other, fitted, self.clip)
        result = fit(trial)
        kernel, left = self._kernel(images, result)
        varied = changed(left, self.weight, self.fwhm, result.used)
        if 0 < (varied & result.used).sum() <= MOST_VARIED * result.used.sum():
            # what has changed on a star is no business of the kernel's; which others it led to drop is open again
            fitted = fitted & ~varied
            result = fit(clipped(Trial.of(result.system, fitted), fitted, self.clip))
            kernel, left = self._kernel(images, result)
        return Solved(kernel, left, result, varied, varies)

    def _kernel(self, images: np.ndarray, result: Fit) -> tuple[MatchKernel, Array]:
        """The kernel alone, and what it leaves; what tells how good it is comes with the last one."""
        n_b = len(images)
        kernel = MatchKernel(
            direction=self.direction,
            basis=images,
            coefficients=result.table[:n_b],
            order=self.order,
            background=result.table[n_b:, 0],
            background_order=self.fitted_background_order,
            domain=self.domain,
            rank=result.solution.rank,
            size=result.system.layout.size,
        )
        pixels = int(to_host(result.system.sums.pixels)[result.used].sum())
        kernel = with_sky(kernel, self.noise, self.background_order, pixels)
        return kernel, residuals(kernel, self.stamps, self.chosen, self.along)


def noise_gram(images: np.ndarray, correlation: np.ndarray | None) -> np.ndarray:
    """Covariance of the basis planes (n_b, k, k) for unit noise in the image to convolve: float64 (n_b, n_b)."""
    return images.reshape(len(images), -1) @ smeared(images, correlation).reshape(len(images), -1).T


def names(free: Layout, n_b: int) -> tuple[str, ...]:
    """Of the free parameters, n_b of whose local terms are of the basis."""
    pairs = zip(*(i.tolist() for i in np.nonzero(free.free)), strict=True)
    return tuple(f"b{i}p{p}" if i < n_b else f"g{i - n_b}" for i, p in pairs)
