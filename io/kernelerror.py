# SPDX-License-Identifier: BSD-3-Clause
"""What the error of a fitted matching kernel does to fluxes that are measured in the difference made with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from skydelta.errors import InputError
from skydelta.io.matchkernel import MatchKernel, basis_parameters
from skydelta.io.psf import GridPsf, on_device, psf_from_hdu
from skydelta.kernels.backend import Array, Backend, backend_of, to_host
from skydelta.kernels.core.tiles import Box
from skydelta.kernels.cutouts import Windows
from skydelta.kernels.response import flux_weights, kernel_response

if TYPE_CHECKING:
    from skydelta.io.fits.checksum import Checks
    from skydelta.io.fits.pixels import Section
    from skydelta.io.fits.reader import Source

TOGETHER = {"cpu": 256, "cuda": 2048}
"""Sources looked at together: 0.2 MB each bounds the memory; no result depends on it."""

LIGHT, WHITENER = "UNMATCHED", "WHITENER"
"""Extensions with `KernelError.light` and `KernelError.whitening`."""


@dataclass(frozen=True)
class KernelError:
    """The covariance of a matching kernel, and the light that it acts on.

    The kernel is K = sum_j a_j phi_p(j) B_b(j), and C the covariance of a. A flux F = sum_x w(x) D(x) changes by
    h_j = dF / da_j = -sum_x w(x) phi_p(x) (f (x) B_b (x) R)(x) with it, where f is the whitening filter of the
    difference, so that the kernel's part of the variance of F is h^T C h.

    Attributes
    ----------
    kernel : MatchKernel
        With its covariance.
    light : float32 (H, W)
        R, the image that was convolved, bad pixels filled; where the difference is.
    whitening : GridPsf or None
        f at the middle of each tile, float64 (ny, nx, k, k); None where nothing was filtered.
    """

    kernel: MatchKernel
    light: Array
    whitening: GridPsf | None = None

    def to(self, backend: Backend) -> KernelError:
        """The same with its planes on another backend."""
        filters = None if self.whitening is None else on_device(self.whitening, backend)
        return replace(self, light=backend.asarray(self.light), whitening=filters)  # type: ignore[arg-type]

    def copy(self) -> KernelError:
        """The same in memory of its own."""
        grid = self.whitening
        return replace(
            self,
            light=self.light.copy(),
            whitening=None if grid is None else replace(grid, stamps=grid.stamps.copy()),
        )

    def moved(self, y0: int, x0: int, light: Array) -> KernelError:
        """That of a part of the difference whose pixel (0, 0) is pixel (y0, x0) of this one's, with its light."""
        y, x = self.kernel.domain.origin
        kernel = replace(self.kernel, domain=replace(self.kernel.domain, origin=(y + y0, x + x0)))
        return KernelError(kernel, light, None if self.whitening is None else self.whitening.moved(y0, x0))

    def section(self, box: Box) -> KernelError:
        """That of the part of the difference inside ``box``."""
        return self.moved(box.y0, box.x0, self.light[box.slices])

    def flux_errors(
        self,
        x: np.ndarray,
        y: np.ndarray,
        middle: np.ndarray,
        psf: Array,
        weight: Array,
        flux: np.ndarray,
        terms: int,
    ) -> np.ndarray:
        """sqrt(h^T C h) of fitted fluxes of point sources: float64 (n,), unit of the difference.

        Parameters
        ----------
        x, y : float64 (n,)
            Where the sources are, px.
        middle : (n, 2)
            x, y of the middle pixel of their stamps.
        psf, weight : float32 (n, s, s)
            PSF and inverse variance in the stamps, as the fit has them.
        flux : float64 (n,)
            What was fitted.
        terms : {0, 1, 3}
            Of the background that was fitted with them.

        Returns
        -------
        float64 (n,); NaN where the stamp does not determine a flux.
        """
        kernel, backend = self.kernel, backend_of(self.light)
        basis = kernel.own_basis
        row, b, p = basis_parameters(kernel.parameters)
        assert kernel.covariance is not None
        own = kernel.covariance
        # those of the background come last: a part of the array, which is not sought out one by one
        ordered = bool((row == np.arange(len(row))).all())
        own = own[: len(row), : len(row)] if ordered else own[np.ix_(row, row)]
        covariance = backend.asarray(np.ascontiguousarray(own, float))
        images = backend.asarray(basis.reshape(len(basis), -1).T)
        b_at, p_at = backend.asarray(b), backend.asarray(p)
        local = backend.asarray(np.ascontiguousarray(kernel.spatial_terms(x, y).T))
        scale, sums, fluxes = 1.0, None, None
        if kernel.direction == "science":
            # the difference was divided by the kernel's sum in the middle of the field, which has an error too
            centre = kernel.domain.centre
            scale = float(kernel.sums(*centre)[0])
            middle_terms = kernel.spatial_terms(*(np.atleast_1d(c) for c in centre))[:, 0]
            sums = backend.asarray(basis.sum(axis=(1, 2))[b] * middle_terms[p])
            fluxes = backend.asarray(np.nan_to_num(flux))
        half, out = kernel.shape[0] // 2, []
        shape, step = (self.light.shape[0], self.light.shape[1]), TOGETHER[backend.kind]
        for first in range(0, len(x), step):
            part = slice(first, first + step)
            filters = self._filters(x[part], y[part])
            reach = 0 if filters is None else filters.shape[1] // 2
            windows = Windows(shape, middle[part, 0], middle[part, 1], psf.shape[1] // 2 + half + reach, backend)
            weights = flux_weights(psf[part], weight[part], terms)
            grown = kernel_response(weights, windows.cut(self.light), half, filters)
            h = (grown.reshape(len(grown), -1) @ images).take(b_at, axis=1) * local[part].take(p_at, axis=1)
            if sums is not None and fluxes is not None:
                h = (h - fluxes[part, None] * sums) / scale
            out.append(((h @ covariance) * h).sum(axis=1))
        variance = to_host(backend.xp.concatenate(out)) if out else np.zeros(0)
        return np.sqrt(np.maximum(variance, 0))

    def _filters(self, x: np.ndarray, y: np.ndarray) -> Array | None:
        """The whitening filter of the tile that each place is in: (n, k, k)."""
        if self.whitening is None:
            return None
        grid = self.whitening
        i, j = (np.abs(np.nan_to_num(at)[:, None] - nodes).argmin(axis=1) for at, nodes in ((x, grid.x), (y, grid.y)))
        return grid.stamps.reshape(-1, *grid.shape).take(backend_of(grid.stamps).asarray(j * len(grid.x) + i), axis=0)


def stored_error(
    source: Source, shape: tuple[int, int], section: Section | None, place: Backend, checks: Checks
) -> KernelError | None:
    """What `skydelta.io.fits.writer.exposure_hdus` has written of the kernel of a difference; None where it has not.

    Parameters
    ----------
    source : Source
        An open file.
    shape : (int, int)
        Of its image.
    section : tuple of slice, optional
        The part of the image that is read.
    place : Backend
        Where that is.

    Raises
    ------
    InputError
        The extensions are damaged, or do not go with the image.
    """
    named = {hdu.name: hdu for hdu in source.hdus}
    if LIGHT not in named:
        return None
    if named[LIGHT].shape != shape:
        raise source.error(named[LIGHT], f"shape {named[LIGHT].shape}, the image has {shape}")
    kernel = MatchKernel.of_source(source, "KERNEL", checks)
    if kernel.covariance is None:
        raise InputError(f"{source.label}: {LIGHT} without the covariance of the kernel")
    light = source.read(named[LIGHT], "float32", section, backend=place, checks=checks)[1]
    filters = None
    if WHITENER in named:
        header, pixels, _ = source.read(named[WHITENER], checks=checks)
        made, _ = psf_from_hdu(pixels, header, shape)
        if not isinstance(made, GridPsf):
            raise source.error(named[WHITENER], "is no grid of filters")
        filters = made
    found = KernelError(kernel, light, filters)
    if section is not None:
        y0, x0 = (s.start or 0 for s in section)
        found = found.moved(y0, x0, light)
    return found.to(place)
