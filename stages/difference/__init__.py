# SPDX-License-Identifier: BSD-3-Clause
"""Subtract two matched images, with the variance, mask and significance of every pixel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from astropy import units as u
from pydantic import Field

from skydelta.errors import InputError
from skydelta.io.convolved import LEAK, LOST_WEIGHT, convolve
from skydelta.io.exposure import Exposure
from skydelta.io.kernelerror import KernelError
from skydelta.io.matchkernel import MatchKernel
from skydelta.io.pairnoise import PairNoise
from skydelta.io.planes import INVALID, MaskPlanes
from skydelta.kernels.backend import Array, to_host
from skydelta.kernels.masks import merge_masks
from skydelta.kernels.significance import Planes
from skydelta.kernels.subtract import SUBTRACT
from skydelta.stages.base import Context, Port, Stage, StageConfig
from skydelta.stages.difference.proper import Proper, proper_difference
from skydelta.stages.difference.score import score
from skydelta.stages.noise import pair_noise
from skydelta.stages.robust import levels

SAMPLES = 2e5
"""Pixels of which the report takes medians, about."""

MUCH_LOST = 0.2
"""Part of the usable field that may be lost to the kernel, or the long filters of zogy, without a word."""


class DifferenceConfig(StageConfig):
    """How the difference is formed."""

    only_where: ClassVar = {"registration_error": {"method": ("zogy",)}}

    method: Literal["kernel", "zogy"] = Field(
        "kernel",
        description="kernel: the reference convolved to the science PSF; zogy: both filtered with each other's PSF "
        "(proper image subtraction).",
    )
    registration_error: float | None = Field(
        None, ge=0, description="zogy: registration error of an axis, px; unset: the scatter of the star lists."
    )
    lost_weight: float = Field(
        LOST_WEIGHT,
        gt=0,
        lt=1,
        description="Share of the kernel's absolute weight on bad pixels from which on a pixel is blanked.",
    )

    leak: float = Field(
        LEAK,
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

    ``method="zogy"`` is the proper image subtraction of Zackay, Ofek & Gal-Yam (2016) with the PSFs of both images, the
    flux scale and background of the kernel: D has white noise, the score is S_corr.

    Raises
    ------
    InputError
        Different shapes, an image without variance or PSF.
    """

    name = "difference"
    version = 5
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

    def memory(self, shape: tuple[int, int], kind: str) -> int:
        return shape[0] * shape[1] * 4 * 10

    def run(  # type: ignore[override]
        self, ctx: Context, *, science: Exposure, reference: Exposure, kernel: MatchKernel
    ) -> dict[str, Any]:
        if science.shape != reference.shape:
            raise InputError(f"difference: science is {science.shape}, reference {reference.shape}; align them first")
        for role, e in (("science", science), ("reference", reference)):
            if e.variance is None or e.psf is None:
                raise InputError(f"difference: the {role} image has no {'variance' if e.variance is None else 'PSF'}")
        if self.config.method == "zogy":
            return self._zogy(ctx, science, reference, kernel)
        forward = kernel.direction == "reference"
        moved, fixed = (reference, science) if forward else (science, reference)
        good_moved, good_fixed = moved.good(), fixed.good()
        both = good_fixed & good_moved
        total = float(kernel.at(*kernel.domain.centre).sum())
        noise = kernel.noise or pair_noise(science, reference)
        rho_science, rho_reference = noise.correlations(total if forward else 1 / total)
        _flag_undecided(ctx, noise, total if forward else 1 / total)
        rho_moved, rho_fixed = (rho_reference, rho_science) if forward else (rho_science, rho_reference)

        # everything below is in the fixed image's unit; a difference of science convolved is then turned over
        convolved = convolve(kernel, moved, good_moved, rho_moved)
        sign, scale = (1.0, 1.0) if forward else (-1.0, 1.0 / total)
        made = SUBTRACT(
            fixed=fixed.image,
            convolved=convolved.image,
            fixed_variance=fixed.variance,
            spread=convolved.variance,
            good=both,
            lost=convolved.lost,
            leak=convolved.leak,
            factor=sign * scale,
            factor2=scale**2,
            most=self.config.lost_weight,
            limit=self.config.leak**2,
        )
        image, variance, good = made["difference"], made["variance"], made["usable"]
        mask, planes = self._mask(science, reference, forward, made["reached"], good, kernel)
        assert fixed.psf is not None
        white, white_variance, snr, white_psf, filters = score(
            Planes(image, fixed.variance, moved.variance, good, good_fixed, good_moved, scale**2),
            kernel,
            fixed.psf,
            rho_fixed,
            rho_moved,
        )

        std = self._report(ctx, image, variance, snr, good, both, rho_fixed, rho_moved, forward)
        common = {"mask": mask, "planes": planes}
        error = None if kernel.covariance is None else KernelError(kernel, convolved.filled)
        ctx.metric("kernel_error_known", error is not None)
        if error is None:
            ctx.flag(
                "kernel_error_unknown",
                "the kernel has no covariance (a file of an earlier version): errors of fluxes are without its own",
            )
        difference = science.with_(image=image, variance=variance, psf=fixed.psf, kernel_error=error, **common)
        error = None if error is None else replace(error, whitening=filters)
        whitened = science.with_(image=white, variance=white_variance, psf=white_psf, kernel_error=error, **common)
        noted = {**science.notes, "snr_std": std}
        score_plane = science.with_(
            image=snr, variance=None, psf=None, unit=u.dimensionless_unscaled, notes=noted, **common
        )
        picture = convolved.image if forward else fixed.image * np.float32(scale)
        matched = reference.with_(image=picture, variance=None, psf=None, unit=science.unit, wcs=science.wcs)
        return {"difference": difference, "whitened": whitened, "score": score_plane, "matched": matched}

    def _zogy(self, ctx: Context, science: Exposure, reference: Exposure, kernel: MatchKernel) -> dict[str, Any]:
        total = float(kernel.at(*kernel.domain.centre).sum())
        ratio = total if kernel.direction == "reference" else 1 / total
        noise = kernel.noise or pair_noise(science, reference)
        rho = noise.correlations(ratio)
        _flag_undecided(ctx, noise, ratio)
        error = self.config.registration_error
        if error is None:
            error = float(np.nan_to_num(kernel.quality.get("registration_rms", 0.0)))
        made = proper_difference(
            science, reference, kernel, rho, self.config.lost_weight, self.config.leak, error
        )  # fmt: skip
        ctx.metric("method", "zogy")
        ctx.metric("kernel_error_known", False)
        ctx.metric("registration_error_px", error)
        mask, planes = self._proper_mask(science, reference, made)
        both = science.good() & reference.good()
        std = self._report(ctx, made.image, made.variance, made.score, made.usable, both, rho[0], rho[1], True)
        common = {"mask": mask, "planes": planes, "kernel_error": None}
        difference = science.with_(image=made.image, variance=made.variance, psf=made.psf, **common)
        noted = {**science.notes, "snr_std": std}
        score_plane = science.with_(
            image=made.score, variance=None, psf=None, unit=u.dimensionless_unscaled, notes=noted, **common
        )
        scaled = reference.image * np.float32(ratio)
        matched = reference.with_(image=scaled, variance=None, psf=None, unit=science.unit, wcs=science.wcs)
        return {"difference": difference, "whitened": difference, "score": score_plane, "matched": matched}

    def _proper_mask(self, science: Exposure, reference: Exposure, made: Proper) -> tuple[Array, MaskPlanes]:
        """Bits of both images by name, the reference's as ``*_TEMPLATE``, each carried to what its filter spoils."""
        xp = science.backend.xp
        template = {n: f"{n}_TEMPLATE" for n in reference.planes}
        planes = science.planes.union([*template.values(), "EDGE_TEMPLATE", "EDGE", "NO_DATA"])
        mask = xp.zeros(science.shape, np.int32)
        everywhere = xp.ones(science.shape, bool)
        for exposure, rename, reached, edge in (
            (science, {}, made.reached_science, "EDGE"),
            (reference, template, made.reached_reference, "EDGE_TEMPLATE"),
        ):
            own = xp.zeros(science.shape, np.int32) if exposure.mask is None else exposure.mask
            usable = made.usable if exposure is reference else everywhere
            mask = merge_masks(
                own, mask, exposure.planes.renumbered(planes, rename), planes.renumbered(planes),
                exposure.planes.bit(*INVALID), reached, usable, made.reach, planes.invalid, planes.bit(edge),
                planes.bit("NO_DATA"),
            )  # fmt: skip
        return mask, planes

    def _mask(
        self,
        science: Exposure,
        reference: Exposure,
        forward: bool,
        reached: Array,
        usable: Array,
        kernel: MatchKernel,
    ) -> tuple[Array, MaskPlanes]:
        """Bits of both images by name, the reference's as ``*_TEMPLATE``; those of the convolved image grown."""
        template = {n: f"{n}_TEMPLATE" for n in reference.planes}
        planes = science.planes.union(template.values() if reference.mask is not None else ("EDGE_TEMPLATE",))
        masks, bits, spreading = [], [], []
        for exposure, rename in ((science, {}), (reference, template)):
            missing = exposure.mask is None
            masks.append(exposure.backend.xp.zeros(science.shape, np.int32) if missing else exposure.mask)
            bits.append(
                exposure.planes.renumbered(exposure.planes if missing else planes, rename if not missing else {})
            )
            spreading.append(0 if missing else exposure.planes.bit(*INVALID))
        moved, fixed = (1, 0) if forward else (0, 1)
        out = merge_masks(
            masks[moved],
            masks[fixed],
            bits[moved],
            bits[fixed],
            spreading[moved],
            reached,
            usable,
            kernel.reach(self.config.lost_weight),
            planes.invalid,
            # what is reached and has no bit of its own yet was reached past the edge of the frame
            planes.bit("EDGE_TEMPLATE" if forward and "EDGE_TEMPLATE" in planes else "EDGE"),
            planes.bit("NO_DATA"),
        )
        return out, planes

    def _report(
        self,
        ctx: Context,
        image: Array,
        variance: Array,
        snr: Array,
        good: Array,
        both: Array,
        rho_fixed: np.ndarray | None,
        rho_moved: np.ndarray | None,
        forward: bool,
    ) -> float:
        """Figures and flags; the standard deviation of the signal-to-noise plane, 1 in noise.

        ``good`` are the pixels of the difference, ``both`` those that are usable in both images.
        """
        backend = ctx.backend
        xp = backend.xp
        every = max(1, int(np.sqrt(image.size / SAMPLES)))
        sample = np.s_[::every, ::every]
        ok = good[sample]
        z = xp.stack([image[sample] / xp.sqrt(variance[sample]), snr[sample]])
        # of the whole field, sources included: checks, never divisors
        spread = [levels(row)[1:2] for row in xp.where(ok & xp.isfinite(z), z, np.float32(np.nan))]
        counts = [xp.count_nonzero(plane).reshape(1).astype(np.float64) for plane in (good, both)]
        number, asked, noise, score_std = to_host(xp.concatenate([*counts, *spread])).tolist()
        share = number / good.size
        ctx.metric("usable_fraction", share)
        if not np.isfinite(noise):
            raise InputError("difference: no pixel is usable in both images")
        if number < (1 - MUCH_LOST) * asked:
            what = "the kernel reaches" if self.config.method == "kernel" else "the filters of zogy reach"
            ctx.flag("field_lost", f"{what} the edge or a bad pixel in {1 - number / asked:.0%} of the usable field")
        ctx.metric("noise_ratio", noise)
        ctx.metric("snr_std", score_std)
        for role, rho in (
            ("science", rho_fixed if forward else rho_moved),
            ("reference", rho_moved if forward else rho_fixed),
        ):
            if rho is not None:
                half = rho.shape[0] // 2
                ctx.metric(f"noise_correlation_{role}", float(max(rho[half, half + 1], rho[half + 1, half])))
                ctx.flag(f"correlated_noise_{role}", f"the {role} image's noise is correlated; its covariance is used")
        return float(score_std)


def _flag_undecided(ctx: Context, noise: PairNoise, ratio: float) -> None:
    for role, unsure in zip(("science", "reference"), noise.undecided(ratio), strict=True):
        if unsure:
            ctx.flag(
                f"noise_correlation_unknown_{role}",
                f"the {role} image's noise looks correlated, but too few pixels are blank to tell: taken as white",
            )
