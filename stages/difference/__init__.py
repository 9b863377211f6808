# SPDX-License-Identifier: BSD-3-Clause
"""Subtract two matched images, with the variance, mask and significance of every pixel."""

from __future__ import annotations

from typing import Any

import numpy as np
from astropy import units as u
from pydantic import Field

from skydelta.errors import InputError
from skydelta.io.exposure import Exposure
from skydelta.io.field import polynomial_exponents
from skydelta.io.matchkernel import MatchKernel
from skydelta.io.planes import INVALID, MaskPlanes
from skydelta.kernels.backend import Array, Backend
from skydelta.kernels.convolve import bad_reach, convolve_field, convolve_tiles, fill_masked
from skydelta.kernels.polynomial import chebyshev
from skydelta.kernels.subtract import SUBTRACT
from skydelta.stages.base import Context, Port, Stage, StageConfig
from skydelta.stages.difference.score import Inputs, score
from skydelta.stages.noise import correlated_square, correlations

VARIANCE_TILE = 32
"""One squared kernel for each tile of this side, px: the variance then errs below 1 %."""


HIDDEN = 30.0
"""A saturated pixel may hide this many times its value: stars of a few 10^6 electrons at a level of 5 10^4."""


class DifferenceConfig(StageConfig):
    """How the difference is formed."""

    lost_weight: float = Field(
        0.005,
        gt=0,
        lt=1,
        description="Share of the kernel's absolute weight on bad pixels from which on a pixel is blanked.",
    )

    leak: float = Field(
        0.3,
        gt=0,
        description="Standard deviations that the filling of bad pixels may add to a pixel through the kernel before "
        "that pixel is blanked.",
    )


class Difference(Stage[DifferenceConfig]):
    """Science minus kernel-matched reference, in science units, whichever of the two was convolved.

    D = S - K (x) R - b, or (R - K (x) S - b) / -sum(K) when the science image is the sharper one. The variance is that
    of D, exactly: V_S + K^2 (x) V_R (with the measured noise correlation of an input that is not white). Masks grow by
    the kernel's weight, not by its box. The score is D whitened with the local kernel and filtered with its own PSF:
    unit variance in noise by construction, nothing is divided by a factor measured on the difference.

    Raises
    ------
    InputError
        Different shapes, an image without variance or PSF.
    """

    name = "difference"
    version = 1
    inputs = {
        "science": Port(Exposure, "sky-subtracted science image with variance and PSF"),
        "reference": Port(Exposure, "aligned, sky-subtracted reference with variance and PSF"),
        "kernel": Port(MatchKernel, "matching kernel of the two"),
    }
    outputs = {
        "difference": Port(Exposure, "science - matched reference"),
        "whitened": Port(Exposure, "the difference with a flat noise spectrum"),
        "score": Port(Exposure, "signal-to-noise plane"),
        "matched": Port(Exposure, "matched reference in science units"),
    }

    def halo(self) -> int:
        return 31

    def memory(self, shape: tuple[int, int]) -> int:
        return shape[0] * shape[1] * 4 * 16

    def run(  # type: ignore[override]
        self, ctx: Context, *, science: Exposure, reference: Exposure, kernel: MatchKernel
    ) -> dict[str, Any]:
        if science.shape != reference.shape:
            raise InputError(f"difference: science is {science.shape}, reference {reference.shape}; align them first")
        for role, e in (("science", science), ("reference", reference)):
            if e.variance is None or e.psf is None:
                raise InputError(f"difference: the {role} image has no {'variance' if e.variance is None else 'PSF'}")
        forward = kernel.direction == "reference"
        moved, fixed = (reference, science) if forward else (science, reference)
        backend = science.backend
        xp = backend.xp
        good_moved, good_fixed = moved.good(), fixed.good()
        total = float(kernel.at(*kernel.domain.centre).sum())
        rho_science, rho_reference = correlations(science, reference, total if forward else 1 / total)
        rho_moved, rho_fixed = (rho_reference, rho_science) if forward else (rho_science, rho_reference)

        # everything below is in the fixed image's unit; a difference of science convolved is then turned over
        filled, filled_variance = fill_masked(moved.image, moved.variance, good_moved)
        u_, v = kernel.domain.uv(np.arange(moved.shape[1]), np.arange(moved.shape[0]))
        convolved = convolve_field(filled, kernel.images, u_, v, kernel.order)
        convolved += _background(backend, kernel, u_, v)
        local = _tile_kernels(backend, kernel, moved.shape)
        spread = convolve_tiles(filled_variance, correlated_square(local, rho_moved), VARIANCE_TILE)
        leak, lost = bad_reach(_doubt(moved, filled, good_moved), good_moved, local, VARIANCE_TILE)
        sign, scale = (1.0, 1.0) if forward else (-1.0, 1.0 / total)
        made = SUBTRACT(
            fixed=fixed.image,
            convolved=convolved,
            fixed_variance=fixed.variance,
            spread=spread,
            good=(good_fixed & good_moved).astype(np.int32),
            lost=lost,
            leak=leak,
            factor=sign * scale,
            factor2=scale**2,
            most=self.config.lost_weight,
            limit=self.config.leak**2,
        )
        image, variance, good = made["difference"], made["variance"], made["usable"] > 0
        reached = made["reached"] > 0
        mask, planes = self._mask(science, reference, forward, reached, kernel)
        mask = xp.where(good | ((mask & planes.invalid) != 0), mask, mask | planes.bit("NO_DATA"))

        zero = np.float32(0)
        assert fixed.psf is not None
        planes_in = Inputs(
            difference=xp.where(good, image, zero),
            fixed=xp.where(good_fixed, fixed.variance, zero) * np.float32(scale**2),
            moved=xp.where(good_moved, moved.variance, zero) * np.float32(scale**2),
            good=good,
            kernel=kernel,
            psf=fixed.psf,
            correlation_fixed=rho_fixed,
            correlation_moved=rho_moved,
        )
        white, white_variance, snr, white_psf = score(planes_in)

        self._report(ctx, image, variance, snr, good, rho_fixed, rho_moved, forward)
        common = {"mask": mask, "planes": planes}
        difference = science.with_(image=image, variance=variance, psf=fixed.psf, **common)
        whitened = science.with_(image=white, variance=white_variance, psf=white_psf, **common)
        score_plane = science.with_(image=snr, variance=None, psf=None, unit=u.dimensionless_unscaled, **common)
        picture = convolved if forward else fixed.image * np.float32(scale)
        matched = reference.with_(image=picture, variance=None, psf=None, unit=science.unit, wcs=science.wcs)
        return {"difference": difference, "whitened": whitened, "score": score_plane, "matched": matched}

    def _mask(
        self, science: Exposure, reference: Exposure, forward: bool, reached: Array, kernel: MatchKernel
    ) -> tuple[Array, MaskPlanes]:
        """Bits of both images by name, the reference's as ``*_TEMPLATE``; those of the convolved image grown."""
        xp = science.backend.xp
        template = {n: f"{n}_TEMPLATE" for n in reference.planes}
        planes = science.planes.union(template.values() if reference.mask is not None else ("EDGE_TEMPLATE",))
        out = xp.zeros(science.shape, np.int32)
        reach = _reach(kernel, self.config.lost_weight)
        for exposure, rename, grow in ((science, {}, not forward), (reference, template, forward)):
            if exposure.mask is None:
                continue
            out |= exposure.planes.translate(exposure.mask, planes, rename)
            if not grow:
                continue
            for name in INVALID:
                bit = exposure.planes.bit(name)
                here = (exposure.mask & bit) != 0
                if bit and bool(here.any()):
                    box = exposure.backend.ndimage.maximum_filter(here.astype(np.uint8), 2 * reach + 1) > 0
                    out |= xp.where(box & reached, np.int32(planes.bit(rename.get(name, name))), np.int32(0))
        # what is reached and has no bit of its own yet was reached past the edge of the frame
        edge = planes.bit("EDGE_TEMPLATE" if forward and "EDGE_TEMPLATE" in planes else "EDGE")
        out |= xp.where(reached & ((out & planes.invalid) == 0), np.int32(edge), np.int32(0))
        return out, planes

    def _report(
        self,
        ctx: Context,
        image: Array,
        variance: Array,
        snr: Array,
        good: Array,
        rho_fixed: np.ndarray | None,
        rho_moved: np.ndarray | None,
        forward: bool,
    ) -> None:
        backend = ctx.backend
        xp = backend.xp
        every = max(1, int(np.sqrt(image.size / 1e6)))
        ok = good[::every, ::every]
        share = float(good.mean())
        ctx.metric("usable_fraction", share)
        if not bool(ok.any()):
            raise InputError("difference: no pixel is usable in both images")
        z = (image[::every, ::every] / xp.sqrt(variance[::every, ::every]))[ok]
        ctx.metric("noise_ratio", _robust_std(xp, z))
        s = snr[::every, ::every][ok]
        ctx.metric("snr_std", _robust_std(xp, s[xp.isfinite(s)]))
        for role, rho in (
            ("science", rho_fixed if forward else rho_moved),
            ("reference", rho_moved if forward else rho_fixed),
        ):
            if rho is not None:
                half = rho.shape[0] // 2
                ctx.metric(f"noise_correlation_{role}", float(max(rho[half, half + 1], rho[half + 1, half])))
                ctx.flag(f"correlated_noise_{role}", f"the {role} image's noise is correlated; its covariance is used")


def _doubt(moved: Exposure, filled: Array, good: Array) -> Array:
    """How wrong the filling of a bad pixel may be: as the light around it, or, saturated, as what it may hide."""
    xp = moved.backend.xp
    doubt = xp.abs(filled)
    if moved.mask is not None:
        saturated = (moved.mask & moved.planes.bit("SAT")) != 0
        light = xp.where(xp.isfinite(moved.image), xp.abs(moved.image), np.float32(0))
        doubt = xp.where(saturated, np.float32(HIDDEN) * xp.maximum(doubt, light), doubt)
    return xp.where(good, np.float32(0), doubt)


def _robust_std(xp: Any, values: Array) -> float:
    """1.4826 MAD: of the whole field, sources included, a check and never a divisor."""
    return float(1.4826 * xp.median(xp.abs(values - xp.median(values))))


def _background(backend: Backend, kernel: MatchKernel, u_: np.ndarray, v: np.ndarray) -> Array:
    """The differential background as a float32 plane, from its one-dimensional factors."""
    order = kernel.background_order
    table = np.zeros((order + 1, order + 1))
    for (i, j), g in zip(polynomial_exponents(order), kernel.background, strict=True):
        table[j, i] = g
    rows = backend.asarray(np.stack(chebyshev(v, order), axis=1) @ table)
    return (rows @ backend.asarray(np.stack(chebyshev(u_, order)))).astype(np.float32)


def _tile_kernels(backend: Backend, kernel: MatchKernel, shape: tuple[int, int]) -> Array:
    """The kernel at the centre of each tile of `VARIANCE_TILE` px, made on the device: float32 (n_y, n_x, kh, kw)."""
    y, x = ((np.arange(-(-n // VARIANCE_TILE)) + 0.5) * VARIANCE_TILE - 0.5 for n in shape)
    at_x, at_y = np.meshgrid(x, y)
    phi = backend.asarray(kernel.spatial_terms(at_x.ravel(), at_y.ravel()).T)
    images = backend.asarray(kernel.images.reshape(phi.shape[1], -1))
    return (phi @ images).astype(np.float32).reshape(*at_x.shape, *kernel.shape)


def _reach(kernel: MatchKernel, lost_weight: float) -> int:
    """Half-size of the box outside which the kernel has less than this share of its absolute weight, px."""
    k = np.abs(kernel.at(*kernel.domain.centre))
    half = k.shape[0] // 2
    inside = [k[half - r : half + r + 1, half - r : half + r + 1].sum() for r in range(half + 1)]
    return int(np.argmax(np.array(inside) >= (1 - lost_weight) * k.sum()))
