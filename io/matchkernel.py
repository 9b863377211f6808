# SPDX-License-Identifier: BSD-3-Clause
"""The spatially varying kernel that turns one image's PSF and flux scale into the other's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from astropy.table import Table

from skydelta.errors import InputError
from skydelta.io.convolved import LEAK, LOST_WEIGHT, apply
from skydelta.io.field import Domain, count_terms, polynomial_terms
from skydelta.io.pairnoise import PairNoise
from skydelta.kernels.backend import CPU, Array, Backend

if TYPE_CHECKING:
    from skydelta.io.exposure import Exposure
    from skydelta.io.fits.checksum import Checks
    from skydelta.io.fits.reader import Source

COVARIANCE = ("KIMAGES", "KTERMS", "KCOVAR")
"""Extensions behind KERNEL: the basis that was fitted, which of its images and spatial terms each free parameter is of
(`parameter_numbers`), and the lower triangle of their covariance, row by row."""


@dataclass(frozen=True)
class MatchKernel:
    """K(u; x) = sum_b sum_p a_bp phi_p(x) B_b(u) and the differential background (Alard & Lupton 1998; Alard 2000).

    Attributes
    ----------
    direction : {"reference", "science"}
        Which image is convolved.
    basis : float64 (n_b, kh, kw)
        Kernel basis images, odd sides, plain convolution (array flipped), centre at the middle pixel.
    coefficients : float64 (n_b, n_p)
        a_bp; zero where a term does not vary (constant photometric scale).
    order : int
        Total degree of the spatial polynomial (`polynomial_terms`).
    background : float64 (n_q,)
        Differential background in the unit of the image that is not convolved.
    background_order : int
        Its total degree.
    domain : Domain
        Maps pixel positions to [-1, 1].
    covariance : float64 (n, n) or None
        Of the free parameters, in the order ``parameters`` names, by the noise of both images; symmetric. Of free
        pixels that of the posterior, the penalty on roughness a prior, with pixels and stamps taken for independent.
    parameters : tuple of str
        Names of the free parameters: ``b0p0`` ... then ``g0`` ...
    condition : float
        Condition number of the scaled normal matrix.
    rank, size : int
        Effective rank and number of free parameters.
    stamps : astropy.table.Table
        One row per stamp: x, y (px), role (fit, held-out, clipped), chi2 (per pixel), kernel_sum, reason.
    quality : dict of str to float
        Figures of the fit: chi2 of fitted and held-out stamps, counts, widths.
    noise : PairNoise or None
        Covariances of the noise of the two images that were matched. The difference of the same two planes needs them
        again, from the same blocks of sky. It measures them itself where they are missing: with a kernel from a file,
        or one that is to be applied to other images (``dataclasses.replace(kernel, noise=None)``).
    corners : float64 (4, 2) or None
        ra, dec (degrees, ICRS) of the pixels (x, y) = (0, 0), (W - 1, 0), (0, H - 1), (W - 1, H - 1) of the field: by
        them a stored kernel knows its grid again, orientation included. None without a WCS.
    fitted : bool
        To the pair it is used for; False when it was stored by an earlier run.
    choice : {"gaussian", "delta"}
        Kind of basis that was fitted.
    fitted_basis : float64 (n_c, kh, kw) or None
        The basis that ``parameters`` number, where that is not ``basis``: of a kernel from a file.
    """

    direction: str
    basis: np.ndarray
    coefficients: np.ndarray
    order: int
    background: np.ndarray
    background_order: int
    domain: Domain
    covariance: np.ndarray | None = None
    parameters: tuple[str, ...] = ()
    condition: float = float("nan")
    rank: int = 0
    size: int = 0
    stamps: Table = field(default_factory=Table)
    quality: dict[str, float] = field(default_factory=dict)
    noise: PairNoise | None = None
    corners: np.ndarray | None = None
    fitted: bool = True
    choice: str = "gaussian"
    fitted_basis: np.ndarray | None = None

    @classmethod
    def load(cls, source: str | Path, checks: Checks | None = None) -> MatchKernel:
        """The kernel in a ``difference.fits``, or in a file of `save`.

        What a difference needs comes back to the last bit: images, polynomials, background, direction, grid and
        covariance. The basis is then the images themselves, ``fitted_basis`` that of the covariance; stamps and figures
        of the fit stay behind. Files of earlier versions have no covariance.

        Parameters
        ----------
        source : str or Path
            FILE, of which the extension KERNEL is read, or FILE[EXT].
        checks : Checks, optional
            What is done about checksums, and what they said; warnings when left out.

        Raises
        ------
        InputError
            No such file or extension, or it holds no kernel; the message names both.
        """
        from skydelta.io.fits.reader import open_file, split_extension

        path, extension = split_extension(str(source))
        with open_file(path) as file:
            return cls.of_source(file, extension or "KERNEL", checks)

    @classmethod
    def of_source(cls, file: Source, extension: str | int, checks: Checks | None = None) -> MatchKernel:
        """The kernel in an extension of an open file, with the covariance that is in others; see `load`."""
        hdu = file.find(extension)
        header, pixels, _ = file.read(hdu, checks=checks)
        try:
            kernel = cls.from_hdu(pixels, header)
        except InputError as e:
            raise file.error(hdu, str(e)) from None
        own = {h.name: h for h in file.hdus if h.name in COVARIANCE}
        if hdu.name != "KERNEL" or len(own) < len(COVARIANCE):
            return kernel
        planes = [file.read(own[name], checks=checks)[1] for name in COVARIANCE]
        try:
            return replace(kernel, **_covariance_of(kernel, *planes))
        except InputError as e:
            raise file.error(own[COVARIANCE[-1]], str(e)) from None

    def save(self, path: str | Path) -> None:
        """Write the kernel alone: the extension KERNEL of a FITS file, and its covariance behind; `load` reads it back.

        Raises
        ------
        InputError
            The folder is missing or cannot be written.
        """
        from skydelta.io.fits.writer import kernel_hdus, write_hdus

        write_hdus(path, kernel_hdus(self))

    @classmethod
    def from_hdu(cls, pixels: np.ndarray, header: Mapping[str, Any]) -> MatchKernel:
        """The kernel of a KERNEL extension: its images, polynomials and background; the fit's statistics stay behind.

        Parameters
        ----------
        pixels : (n_p, kh, kw)
            One image for each spatial term.
        header : mapping
            Cards KDIRECT, KORDER, BGORDER, BG0 ..., DOMNX, DOMNY, DOMX0, DOMY0; BG0LO ..., what a card could not hold
            of BG0 ..., and SKYRA0, SKYDE0 ... of the corners where there are any.

        Raises
        ------
        InputError
            A card is missing, or the cards do not fit the array.
        """
        try:
            order, background_order = header["KORDER"], header["BGORDER"]
            terms = range(count_terms(background_order))
            background = np.array([header[f"BG{i}"] + header.get(f"BG{i}LO", 0.0) for i in terms])
            domain = Domain((header["DOMNY"], header["DOMNX"]), (header["DOMY0"], header["DOMX0"]))
            direction = header["KDIRECT"]
        except KeyError as e:
            raise InputError(f"KERNEL: {e.args[0]}") from None
        if direction not in ("reference", "science"):
            raise InputError(f"KERNEL: KDIRECT = {direction!r}; allowed: reference, science")
        if pixels.ndim != 3 or len(pixels) != count_terms(order):
            raise InputError(
                f"KERNEL of shape {pixels.shape}; {count_terms(order)} images are needed for KORDER = {order}"
            )
        if not np.isfinite(pixels).all() or not np.isfinite(background).all():
            raise InputError("KERNEL: values that are not finite")
        corners = None
        if "SKYRA0" in header:
            corners = np.array([[header[f"SKYRA{i}"], header[f"SKYDE{i}"]] for i in range(4)])
        return cls(
            direction, np.asarray(pixels, float), np.eye(len(pixels)), order, background, background_order, domain,
            rank=header.get("KRANK", 0), size=header.get("KSIZE", 0), corners=corners, fitted=False,
            choice=header.get("KBASIS", "gaussian"),
        )  # fmt: skip

    @property
    def shape(self) -> tuple[int, int]:
        """(kh, kw) of the kernel, px."""
        return self.basis.shape[1], self.basis.shape[2]

    @property
    def own_basis(self) -> np.ndarray:
        """The basis that ``parameters`` number: float64 (n, kh, kw)."""
        return self.basis if self.fitted_basis is None else self.fitted_basis

    @property
    def images(self) -> np.ndarray:
        """K_p: float64 (n_p, kh, kw), the kernel image of each spatial term."""
        return np.tensordot(self.coefficients.T, self.basis, axes=(1, 0))

    def at(self, x: float, y: float) -> np.ndarray:
        """The kernel at (x, y): float64 (kh, kw)."""
        return self.render(np.atleast_1d(float(x)), np.atleast_1d(float(y)))[0]

    def render(self, x: np.ndarray, y: np.ndarray, backend: Backend = CPU) -> Array:
        """`at` for many positions: float64 (n, kh, kw), made on the backend."""
        terms, images = backend.asarray(self.spatial_terms(x, y)), backend.asarray(self.images)
        return backend.xp.tensordot(terms, images, axes=(0, 0))

    def sums(self, x: np.ndarray | float, y: np.ndarray | float) -> np.ndarray:
        """Sum of the kernel, the flux scale, at the positions: float64 (n,)."""
        terms = self.spatial_terms(np.atleast_1d(x), np.atleast_1d(y))
        return self.basis.sum(axis=(1, 2)) @ self.coefficients @ terms

    def sum_error(self, x: float, y: float) -> float:
        """Standard deviation of `sums` at one place, by the covariance of the fit; NaN without one."""
        if self.covariance is None:
            return float("nan")
        sums, terms = self.own_basis.sum(axis=(1, 2)), self.spatial_terms(np.atleast_1d(x), np.atleast_1d(y))[:, 0]
        row, b, p = basis_parameters(self.parameters)
        weight = np.zeros(len(self.parameters))
        weight[row] = sums[b] * terms[p]
        return float(np.sqrt(weight @ self.covariance @ weight))

    def spatial_terms(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """phi_p at the positions: float64 (n_p, n)."""
        return polynomial_terms(*self.domain.uv(x, y), self.order)

    def background_at(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Differential background at the positions, same shape as x."""
        return np.tensordot(
            self.background, polynomial_terms(*self.domain.uv(x, y), self.background_order), axes=(0, 0)
        )

    def reach(self, lost_weight: float = LOST_WEIGHT) -> int:
        """Half-size of the box outside which the kernel has less than this share of its absolute weight, px."""
        k = np.abs(self.at(*self.domain.centre))
        half = k.shape[0] // 2
        inside = [k[half - r : half + r + 1, half - r : half + r + 1].sum() for r in range(half + 1)]
        return int(np.argmax(np.array(inside) >= (1 - lost_weight) * k.sum()))

    def apply(
        self,
        exposure: Exposure,
        correlation: np.ndarray | None = None,
        *,
        lost_weight: float = LOST_WEIGHT,
        leak: float = LEAK,
    ) -> Exposure:
        """K (x) exposure + b: the exposure with the PSF, flux scale and background of the one it was matched to.

        Image, variance (K squared), mask (grown by the kernel's weight, not its box) and PSF, as `difference` makes
        them: pixels that bad ones reach too hard are NaN.

        Parameters
        ----------
        exposure : Exposure
            On the grid of the kernel, with variance; on any device.
        correlation : (2 l + 1, 2 l + 1), optional
            Correlation of its noise by lag, 1 in the middle; white if missing.
        lost_weight, leak : float
            As the settings of `difference`.

        Raises
        ------
        InputError
            No variance, or another shape than the kernel's field.
        """
        return apply(self, exposure, correlation, lost_weight, leak)


@lru_cache(8)
def basis_parameters(names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places of the free parameters that belong to the basis, and the basis image and spatial term of each."""
    of_basis = [(k, *name[1:].split("p")) for k, name in enumerate(names) if name[0] == "b"]
    row, basis, term = np.array(of_basis, int).reshape(-1, 3).T
    return row, basis, term


def parameter_numbers(names: tuple[str, ...]) -> np.ndarray:
    """Basis image and spatial term of each free parameter, -1 and the term of the background: int16 (n, 2)."""
    pairs = [n[1:].split("p") if n[0] == "b" else (-1, n[1:].split("p")[0]) for n in names]
    return np.array(pairs, np.int16).reshape(-1, 2)


def _covariance_of(kernel: MatchKernel, basis: Array, numbers: Array, packed: Array) -> dict[str, Any]:
    """Attributes of the kernel that extensions `COVARIANCE` hold."""
    n = len(numbers)
    if basis.ndim != 3 or basis.shape[1:] != kernel.shape or numbers.shape[1:] != (2,):
        raise InputError(f"covariance of a basis {basis.shape} for a kernel of {kernel.shape} px")
    if packed.shape != (n * (n + 1) // 2,) or not np.isfinite(packed).all():
        raise InputError(f"{n} parameters need {n * (n + 1) // 2} finite numbers; there are {packed.shape}")
    last = (len(basis), count_terms(kernel.order))
    if (numbers[:, 0] >= last[0]).any() or (numbers[numbers[:, 0] >= 0, 1] >= last[1]).any():
        raise InputError(f"parameters beyond {last[0]} kernels and {last[1]} terms")
    covariance, (row, column) = np.empty((n, n)), np.tril_indices(n)
    covariance[row, column] = covariance[column, row] = packed
    names = tuple(f"b{b}p{p}" if b >= 0 else f"g{p}" for b, p in numbers.tolist())
    return {"fitted_basis": np.ascontiguousarray(basis, float), "parameters": names, "covariance": covariance}
