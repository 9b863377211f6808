# SPDX-License-Identifier: BSD-3-Clause
"""Match the point-spread functions of two aligned images by a spatially varying kernel."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
from astropy.table import Table
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from skydelta.errors import AlgorithmError, InputError, MisalignedError
from skydelta.io.exposure import Exposure
from skydelta.io.field import Domain
from skydelta.io.matchkernel import MatchKernel
from skydelta.io.pairnoise import PairNoise
from skydelta.kernels.backend import to_host
from skydelta.kernels.normal_equations import budget
from skydelta.stages.base import Context, Port, Stage, StageConfig
from skydelta.stages.match.basis import DEGREES, gaussian_basis, kernel_half, matching_width, orthonormal
from skydelta.stages.match.choice import Choice, choose
from skydelta.stages.match.common import shared_light
from skydelta.stages.match.covariance import fit_covariance
from skydelta.stages.match.delta import LARGEST, most_bytes
from skydelta.stages.match.fit import PLAIN_ORDER, chosen_order, supported_order
from skydelta.stages.match.problem import Problem, names
from skydelta.stages.match.quality import field_quality
from skydelta.stages.match.registration import SEARCH, Registration, register_check
from skydelta.stages.match.residuals import residuals, stamp_chi2
from skydelta.stages.match.stamps import Selection, Stamps, model_weights, most_stamps, select, smoothed, weight_margin
from skydelta.stages.match.stored import check_grid, corners_of
from skydelta.stages.noise import pair_noise
from skydelta.stages.psf import field_fwhm
from skydelta.stages.stars import Stars, find_stars

SMALL_BASIS = (3, 1)
"""Degrees used when the field has fewer than `FEW` stamps."""

FEW = 5

OF_A_FIT = ("basis", "order", "background_order", "photometric", "kernel_half", "clip")
"""Settings that a stored kernel leaves nothing to do."""

SHARED = 0.2
"""Correlation of the noise of the two images above which one seems to be part of the other; of one smoothed by 2 px
with what it was made from it is 0.28."""

UNCERTAIN = 0.05
"""Relative error of the flux scale that is said."""


class MatchConfig(StageConfig):
    """How the matching kernel is fitted."""

    basis: Literal["gaussian", "delta", "auto"] = Field(
        "gaussian",
        description="gaussian: Gaussians times polynomials; delta: each pixel of the kernel is free, kept smooth by a "
        "penalty; auto: both are fitted, and stamps that neither was fitted to choose.",
    )
    order: int | None = Field(
        None,
        ge=0,
        le=4,
        description="Total degree of the kernel's polynomial over the field; unset: 2, or 3 with 20 stamps a term.",
    )
    background_order: int = Field(2, ge=0, le=4, description="Total degree of the differential background.")
    photometric: Literal["auto", "constant", "varying"] = Field(
        "auto",
        description="Is the flux ratio one number, or a polynomial of the kernel's order? auto: a polynomial when the "
        "stamps ask for it beyond chance.",
    )
    convolve: Literal["auto", "reference", "science"] = Field(
        "auto", description="Which image is convolved; auto takes the one with the smaller FWHM."
    )
    kernel_half: int | None = Field(
        None, ge=3, le=31, description="Half-size of the kernel, px, 12 at most of delta; from the PSFs if unset."
    )
    stamp_half: int | None = Field(None, ge=6, le=40, description="Half-size of a stamp, px; from the PSFs if unset.")
    clip: float = Field(3.0, gt=0, description="Stamps this many robust standard deviations worse than the rest go.")
    max_shift: float = Field(
        1.0, gt=0, description="Offset between the star lists, px, above which the images count as misaligned."
    )

    @model_validator(mode="after")
    def _as_large_as_asked(self) -> Self:
        if self.basis == "delta" and (self.kernel_half or 0) > LARGEST:
            said = f"kernel_half: {self.kernel_half} is above {LARGEST}, the largest where basis is delta"
            raise PydanticCustomError("no_effect", said)
        return self


class Match(Stage[MatchConfig]):
    """The kernel that turns the sharper image's PSF and flux scale into the other's, and the background between them.

    Gaussian-polynomial basis scaled to the measured widths, or free pixels with a penalty on roughness (Bramich 2008;
    Becker et al. 2012), polynomial over the field, Kronecker normal equations in float64 (Alard & Lupton 1998; Alard
    2000), weights from a noise model, stamps clipped by their chi2, every fifth stamp held out and its chi2 reported.

    A stored kernel is used as it is, not fitted: its grid is checked, and all stamps are held out.

    Raises
    ------
    InputError
        Different shapes, an image without variance, or a stored kernel for another grid.
    AlgorithmError
        No usable star, or none that both images show (the counts are in the message).
    """

    name = "match"
    version = 12
    inputs = {
        "science": Port(Exposure, "sky-subtracted science image with variance"),
        "reference": Port(Exposure, "reference on the same grid, sky-subtracted"),
        "science_stars": Port(Stars, "stars of the science image; found if missing", optional=True),
        "reference_stars": Port(Stars, "stars of the reference; found if missing", optional=True),
        "stored": Port(MatchKernel, "kernel of an earlier run, used instead of a fit", optional=True),
    }
    outputs = {"kernel": Port(MatchKernel, "the matching kernel")}

    def check_inputs(self, given: Collection[str]) -> None:
        if "stored" in given:
            self.refuse(OF_A_FIT, "where a stored kernel is used: nothing is fitted")

    def halo(self) -> int:
        return (self.config.kernel_half or 31) + (self.config.stamp_half or 40)

    def memory(self, shape: tuple[int, int], kind: str) -> int:
        planes = shape[0] * shape[1] * 16 + 3 * budget(kind, shape[0] * shape[1])
        return planes if self.config.basis == "gaussian" else planes + most_bytes(most_stamps(shape), self.config.order)

    def run(  # type: ignore[override]
        self,
        ctx: Context,
        *,
        science: Exposure,
        reference: Exposure,
        science_stars: Stars | None = None,
        reference_stars: Stars | None = None,
        stored: MatchKernel | None = None,
    ) -> dict[str, Any]:
        if science.shape != reference.shape:
            raise InputError(f"match: science is {science.shape}, reference {reference.shape}; align them first")
        for role, exposure in (("science", science), ("reference", reference)):
            if exposure.variance is None:
                raise InputError(f"match: the {role} image has no variance; `read` estimates one, or give variance=")
        if stored is not None:
            check_grid(ctx, stored, science, self.config.max_shift, self.config.convolve)
        stars = {
            "science": science_stars if science_stars is not None else find_stars(science),
            "reference": reference_stars if reference_stars is not None else find_stars(reference),
        }
        check = register_check(stars["science"], stars["reference"], science.shape, self.config.max_shift)
        self._report_registration(ctx, check)
        widths = {"science": field_fwhm(science), "reference": field_fwhm(reference)}
        direction = self.config.convolve if stored is None else stored.direction
        if direction == "auto":
            direction = "reference" if widths["reference"] <= widths["science"] else "science"
        sharp, broad = (reference, science) if direction == "reference" else (science, reference)
        ratio = check.flux_ratio if np.isfinite(check.flux_ratio) else 1.0
        scale = ratio if direction == "reference" else 1 / ratio
        other = "science" if direction == "reference" else "reference"
        noise = pair_noise(science, reference)
        if stored is None:
            kernel = self._fit(
                ctx, direction, sharp, broad, stars[direction], widths[other], widths[direction], scale, noise
            )
            kernel = replace(kernel, corners=corners_of(science))
        else:
            kernel = self._stored(ctx, stored, sharp, broad, stars[direction], widths[other], widths[direction])
        for name, value in widths.items():
            ctx.metric(f"fwhm_{name}_px", value)
        quality = {**kernel.quality, "registration_rms": check.rms}
        return {"kernel": replace(kernel, noise=noise, quality=quality)}

    def _stored(
        self,
        ctx: Context,
        kernel: MatchKernel,
        sharp: Exposure,
        broad: Exposure,
        stars: Stars,
        broad_fwhm: float,
        sharp_fwhm: float,
    ) -> MatchKernel:
        """The kernel as it is, with the chi2 of stamps none of which it was fitted to."""
        width, half = matching_width(broad_fwhm, sharp_fwhm), max(kernel.shape) // 2
        stamp = self._stamp_half(broad_fwhm, sharp_fwhm)
        chosen = select(stars, sharp.good(), broad.good(), stamp, half)
        chosen = replace(chosen, held_out=np.ones(len(chosen), bool))
        chi2, slope = np.zeros(0), float("nan")
        if len(chosen):
            stamps = Stamps.cut(sharp, broad, chosen, stamp, max(half, weight_margin(width)))
            weight, slope = model_weights(
                stamps, smoothed(stamps, width), float(kernel.sums(*kernel.domain.centre)[0]), width
            )
            left = residuals(kernel, stamps, chosen)
            chi2 = stamp_chi2(left, weight)
            field_quality(ctx, kernel, chosen, chosen.held_out, stamps.broad, left, weight)
        kernel = replace(kernel, **_judged(chosen, chi2, np.zeros(len(chosen), bool), kernel.sums(chosen.x, chosen.y)))
        _report(ctx, kernel, slope, width)
        return kernel

    def _stamp_half(self, broad_fwhm: float, sharp_fwhm: float) -> int:
        """Half-size of a stamp, px."""
        return self.config.stamp_half or int(np.clip(np.ceil(3.8 * max(broad_fwhm, sharp_fwhm)), 9, 30))

    def _report_registration(self, ctx: Context, check: Registration) -> None:
        ctx.metric("registration_pairs", check.pairs)
        ctx.metric("registration_dx_px", check.dx)
        ctx.metric("registration_dy_px", check.dy)
        ctx.metric("registration_rms_px", check.rms)
        if check.foreign:
            ctx.fail(
                "misaligned",
                MisalignedError(
                    f"match: {check.pairs} of {check.expected} stars have a partner at a common offset of at most "
                    f"{SEARCH:g} px; the images show different skies, or a WCS is wrong",
                    pairs=check.pairs,
                    stars=check.expected,
                ),
            )
        elif not check.judged:
            ctx.flag("registration_unchecked", f"{check.pairs} star pairs: too few to check the alignment")
        elif check.worst > self.config.max_shift:
            ctx.fail(
                "misaligned",
                MisalignedError(
                    f"match: the stars are offset by ({check.dx:.2f}, {check.dy:.2f}) px, up to {check.worst:.2f} px "
                    f"in parts of the field ({check.pairs} pairs); {self.config.max_shift} px is allowed",
                    dx=check.dx,
                    dy=check.dy,
                    worst=check.worst,
                    pairs=check.pairs,
                ),
            )

    def _fit(
        self,
        ctx: Context,
        direction: str,
        sharp: Exposure,
        broad: Exposure,
        stars: Stars,
        broad_fwhm: float,
        sharp_fwhm: float,
        scale: float,
        noise: PairNoise,
    ) -> MatchKernel:
        width = matching_width(broad_fwhm, sharp_fwhm)
        half = self.config.kernel_half or kernel_half(width)
        stamp = self._stamp_half(broad_fwhm, sharp_fwhm)
        chosen = select(stars, sharp.good(), broad.good(), stamp, half)
        if not len(chosen):
            raise _no_stamp(
                f"none of the {len(stars)} stars of the {direction} image can be a stamp", stars, chosen, sharp.shape
            )
        stamps = Stamps.cut(sharp, broad, chosen, stamp, max(half, weight_margin(width)))
        fitted, light = ~chosen.held_out, smoothed(stamps, width)
        if not ctx.failures:  # of images that are not aligned
            seen, like = shared_light(stamps, light, width, broad_fwhm)
            if not (seen & like & fitted).any():
                shown = f"{len(chosen)} of the {len(stars)} stars of the {direction} image can be stamps, none of"
                raise _no_stamp(
                    f"{shown} which has enough light in the other image, in its place", stars, chosen, sharp.shape
                )
            fitted &= like
        unlike = ~chosen.held_out & ~fitted
        count = int(fitted.sum())
        order = chosen_order(count) if self.config.order is None else supported_order(self.config.order, count)
        asked = PLAIN_ORDER if self.config.order is None else self.config.order
        if order < asked:
            ctx.flag("order_lowered", f"{_stamps(count)} support spatial order {order}, not {asked}")
        weight, slope = model_weights(stamps, light, scale, width)
        ratio = scale if direction == "reference" else 1 / scale
        rho_science, rho_reference = noise.correlations(ratio)
        problem = Problem(
            direction=direction,
            stamps=stamps,
            chosen=chosen,
            candidates=fitted,
            weight=weight,
            domain=Domain.of(sharp.shape),
            noise=noise,
            correlation=rho_science if direction == "science" else rho_reference,
            correlation_broad=rho_reference if direction == "science" else rho_science,
            order=order,
            background_order=self.config.background_order,
            photometric=self.config.photometric,
            clip=self.config.clip,
            fwhm=broad_fwhm,
            held=budget(sharp.backend.kind, sharp.shape[0] * sharp.shape[1]),
        )
        basis = orthonormal(gaussian_basis(width, half, DEGREES if count >= FEW else SMALL_BASIS), sharp_fwhm / 2.3548)
        solved = problem.solved(basis)
        choice = Choice("gaussian", "asked for", {})
        if self.config.basis != "gaussian":
            delta = problem.of_pixels(min(half, LARGEST), solved)
            choice = choose(self.config.basis, solved, delta, weight, chosen.held_out)
            solved = delta if choice.basis == "delta" else solved
        kernel, left, result = solved.kernel, solved.left, solved.result
        # of free pixels the posterior's: the penalty is a prior
        covariance = to_host(
            result.solution.covariance if choice.basis == "delta" else fit_covariance(problem, basis, solved)
        )
        kernel = replace(
            kernel,
            # a file holds one triangle: rounding leaves another in the other
            covariance=(covariance + covariance.T) / 2,
            condition=result.solution.condition,
            parameters=names(result.system.layout, len(kernel.basis)),
            choice=choice.basis,
            **_judged(chosen, result.chi2, result.used, kernel.sums(chosen.x, chosen.y)),
        )
        kernel.quality.update(choice.figures)
        if result.system.penalty is not None:
            kernel.quality["penalty_strength"] = result.system.penalty.strength
        ctx.metric("basis", choice.basis)
        ctx.metric("basis_why", choice.why)
        ctx.metric("flux_ratio_varies", solved.varies and kernel.order > 0)
        ctx.metric("stamps_changed", int((solved.varied & fitted | unlike).sum()))
        judges = chosen.held_out if chosen.held_out.any() else result.used
        field_quality(ctx, kernel, chosen, judges, stamps.broad, left, weight)
        _report(ctx, kernel, slope, width)
        _few(ctx, kernel, int(result.used.sum()))
        if result.quiet:
            _too_quiet(ctx, noise, float(np.median(result.plain[result.used])))
        if kernel.rank < kernel.size:
            ctx.flag("rank_deficient", f"the stamps determine {kernel.rank} of {kernel.size} kernel parameters")
        return kernel


def _no_stamp(what: str, stars: Stars, chosen: Selection, shape: tuple[int, int]) -> AlgorithmError:
    """No kernel: what is missing, what has become of the stars, and how much room one needs."""
    side = 2 * chosen.margin + 1
    why = {
        "edge": f"nearer than {chosen.margin} px to the edge of {shape[1]} x {shape[0]} px",
        "saturated": "saturated",
        "masked": f"with an unusable pixel in their {side} x {side} px",
        "fainter in cell": "fainter than others of their cell",
    }
    lost = ", ".join(f"{n} {why[reason]}" for reason, n in chosen.rejected.items() if n)
    numbers = {k.replace(" ", "_"): v for k, v in chosen.rejected.items()}
    return AlgorithmError(
        f"match: {what}: {lost or 'none was left out'}; smaller kernel_half and stamp_half need less room",
        stars=len(stars), stamps=len(chosen), room_px=side, **numbers,
    )  # fmt: skip


def _stamps(count: int) -> str:
    return f"{count} stamp{'s' if count != 1 else ''}"


def _too_quiet(ctx: Context, noise: PairNoise, chi2: float) -> None:
    """Say why the images agree better than their variance allows: as far as blank sky tells."""
    ctx.metric("noise_shared", noise.shared)
    what = f"the images agree better than their variance allows (chi2 {chi2:.2g} per pixel)"
    if noise.shared > SHARED:
        ctx.flag(
            "shared_noise",
            f"{what}, and their noise has a correlation of {noise.shared:.2f}: one seems to be part of the other",
        )
        return
    science, reference = noise.levels
    ctx.flag(
        "noise_overstated",
        f"{what}: the noise of blank sky is {science:.2f} times (science) and {reference:.2f} times (reference) what "
        "the variance says",
    )


def _few(ctx: Context, kernel: MatchKernel, count: int) -> None:
    """Say how well the flux scale is known where the stamps are few, or faint."""
    centre = kernel.domain.centre
    scale, error = float(kernel.sums(*centre)[0]), kernel.sum_error(*centre)
    ctx.metric("kernel_sum_err", error)
    known = f"the kernel rests on {_stamps(count)}: its flux scale is {scale:.3g} +- {error:.2g}"
    if count < FEW:
        ctx.flag("few_stamps", known)
    if not error <= UNCERTAIN * abs(scale):
        ctx.flag("flux_scale_uncertain", f"{known}; all that is left of constant sources follows it")


def _judged(chosen: Selection, chi2: np.ndarray, used: np.ndarray, sums: np.ndarray) -> dict[str, Any]:
    """Table and figures of the stamps, by their roles in the fit."""
    role = np.where(chosen.held_out, "held-out", np.where(used, "fit", "clipped"))
    columns = {"x": chosen.x.astype(float), "y": chosen.y.astype(float), "role": role, "chi2": chi2}
    of = {
        "fit": chi2[used & ~chosen.held_out],
        "held_out": chi2[chosen.held_out],
        "clipped": chi2[~used & ~chosen.held_out],
    }
    quality = {f"chi2_{k}": float(np.median(v)) if len(v) else float("nan") for k, v in of.items()}
    quality |= {f"stamps_{k}": float(len(v)) for k, v in of.items()}
    return {"stamps": Table({**columns, "kernel_sum": sums}, copy=False), "quality": quality}


def _report(ctx: Context, kernel: MatchKernel, slope: float, width: float) -> None:
    for name, value in kernel.quality.items():
        ctx.metric(name, int(value) if name.startswith("stamps") else value)
    ctx.metric("kernel_fitted", kernel.fitted)
    ctx.metric("direction", kernel.direction)
    ctx.metric("kernel_sum", float(kernel.sums(*kernel.domain.centre)[0]))
    ctx.metric("kernel_half_px", kernel.shape[0] // 2)
    ctx.metric("matching_width_px", width)
    ctx.metric("spatial_order", kernel.order)
    ctx.metric("background_order", kernel.background_order)
    ctx.metric("condition", kernel.condition)
    ctx.metric("rank", kernel.rank)
    ctx.metric("parameters", kernel.size)
    ctx.metric("variance_slope", slope)
