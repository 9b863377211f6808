# SPDX-License-Identifier: BSD-3-Clause
"""Stage ``psf``: the point-spread function of an exposure, from its file or measured from its stars."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field

from skydelta.errors import AlgorithmError, InputError
from skydelta.io.exposure import Exposure
from skydelta.io.field import Domain, polynomial_terms
from skydelta.io.psf import PixelPsf, Psf, fwhms
from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.kernels.psf import star_stamps
from skydelta.stages.base import Context, Port, Stage, StageConfig
from skydelta.stages.psfmodel import PsfFit, Samples, radius, supported_order
from skydelta.stages.stars import Stars, find_stars, median

LEAST_HALF = 12
"""Smallest half-size of a measured PSF, px."""

REACH = 4.0
"""Half-size of a measured PSF in FWHM."""

MOST = 300
"""Stars used, the best by signal-to-noise."""

HELD_OUT = 5
"""Every fifth star takes no part in a second fit, whose departure from it is reported."""

COMPARED = 20
"""Stars needed to compare a PSF that came with the image."""

BRIGHTEST = 200
"""At most this many take part."""

WIDTH_TREND = 0.10
"""Change of the stars' widths over the field, in units of the PSF's own, that is reported."""

WIDTH_FACTOR = 1.3
"""Factor between the stars' widths and the PSF's that is reported: the two are not measured alike."""

FEW = 3
"""Fewer stars than this are fitted by a profile, not pixel by pixel."""


class PsfConfig(StageConfig):
    """Which PSF is used, and how it is measured."""

    source: Literal["file", "stars"] = Field(
        "file", description="Keep a PSF that came with the image, or measure it from the stars in any case."
    )
    order: int = Field(2, ge=0, le=2, description="Total degree of the polynomial over the field.")
    snr: float = Field(20.0, ge=8, description="Least signal-to-noise of a star, where enough are brighter.")


class MeasurePsf(Stage[PsfConfig]):
    """Set the PSF of an exposure.

    A PSF that came with the file is kept. Otherwise isolated, unsaturated stars are moved to pixel centres and each
    pixel becomes a polynomial over the field, weighted, clipped, and smooth in the wings. A second fit without every
    fifth star is compared with these. One or two stars give a Moffat profile, flagged.

    Raises
    ------
    AlgorithmError
        No usable star and no PSF in the file (the counts are in the message).
    """

    name = "psf"
    version = 3
    inputs = {"image": Port(Exposure, "sky-subtracted image")}
    outputs = {
        "image": Port(Exposure, "the image with its PSF", replaces="image"),
        "stars": Port(Stars, "the stars that were found"),
    }

    def halo(self) -> int:
        return 66

    def memory(self, shape: tuple[int, int], kind: str) -> int:
        return shape[0] * shape[1] * 16

    def run(self, ctx: Context, *, image: Exposure) -> dict[str, Any]:  # type: ignore[override]
        stars = find_stars(image)
        ctx.metric("stars_found", len(stars))
        ctx.metric("psf_source", "stars" if image.psf is None else self.config.source)
        if image.psf is None or self.config.source == "stars":
            image = image.with_(psf=self._measure(ctx, image, stars))
        else:
            _compare(ctx, image, stars)
        ctx.metric("fwhm_px", field_fwhm(image))
        return {"image": image, "stars": stars}

    def _measure(self, ctx: Context, image: Exposure, stars: Stars) -> PixelPsf:
        chosen = self._choose(ctx, image, stars)
        width = median(chosen.fwhm)
        half = max(LEAST_HALF, int(np.ceil(REACH * width)))
        samples = _samples(image, chosen, half)
        domain = Domain.of(image.shape)
        polynomial = polynomial_terms(*domain.uv(samples.x, samples.y), self.config.order).T
        ctx.metric("psf_stars", len(samples))
        if len(samples) < FEW:
            ctx.flag("psf_profile", f"{len(samples)} usable stars: the PSF is a constant Moffat profile")
            ctx.metric("psf_order", 0)
            return PsfFit(samples, domain, polynomial, 0, width, pixels=False).psf()
        order = supported_order(self.config.order, polynomial)
        if order < self.config.order:
            ctx.flag("psf_order_lowered", f"{len(samples)} stars, where they are, support PSF order {order}")
        fit = PsfFit(samples, domain, polynomial, order, width)
        used = fit.used
        held_out = used & (np.arange(len(samples)) % HELD_OUT == HELD_OUT // 2)
        if len(samples) >= 2 * HELD_OUT and held_out.any():
            left = used & ~held_out
            trial = fit.without(held_out, supported_order(order, polynomial[left]))
            ctx.metric("psf_held_out", int(held_out.sum()))
            ctx.metric("psf_held_out_chi2", median(trial.chi2[held_out]))
            ctx.metric("psf_held_out_residual", trial.residual(held_out))
        ctx.metric("psf_order", order)
        ctx.metric("psf_stars_clipped", int((~used).sum()))
        ctx.metric("psf_chi2", float(np.median(fit.agreement.chi2[used])))
        return fit.psf()

    def _choose(self, ctx: Context, image: Exposure, stars: Stars) -> Stars:
        """The stars that the PSF is measured from, best first."""
        clean = ~stars.saturated & stars.compact & (stars.flux > 0)
        use = clean & stars.isolated
        if not use.any() and clean.any():
            use = clean
            ctx.flag(
                "psf_blended", f"none of the {int(clean.sum())} unsaturated stars is isolated; blended ones are used"
            )
        if not use.any():
            lost = ", ".join(f"{v} {k}" for k, v in stars.rejected.items() if v)
            raise AlgorithmError(
                f"psf {image.id}".rstrip() + f": no usable star ({len(stars)} found, {int(stars.saturated.sum())} of "
                f"them saturated or cut{'; rejected: ' + lost if lost else ''}); give a PSF with the image",
                found=len(stars),
                saturated=int(stars.saturated.sum()),
                rejected=dict(stars.rejected),
            )
        index = np.flatnonzero(use)
        index = index[np.argsort(-stars.snr[index], kind="stable")]
        # fainter ones only where there are not enough to carry the polynomial
        enough = max(int((stars.snr[index] >= self.config.snr).sum()), 30)
        return stars.take(index[: min(enough, MOST)])


def _compare(ctx: Context, image: Exposure, stars: Stars) -> None:
    """Do the stars have the widths of the PSF that came with the image, all over the field?

    Widths are compared up to the one factor between the two ways they are measured, which the stars in the middle of
    the field give; beyond `WIDTH_FACTOR` that factor itself is a disagreement.
    """
    use = np.flatnonzero(~stars.saturated & stars.compact & stars.isolated & (stars.flux > 0))
    use = use[np.argsort(-stars.snr[use], kind="stable")][:BRIGHTEST]
    if len(use) < COMPARED:
        return
    domain = Domain.of(image.shape)
    terms = polynomial_terms(*domain.uv(stars.x[use], stars.y[use]), 2).T
    psf: Psf = image.psf  # type: ignore[assignment]
    own = fwhms(to_host(psf.render(stars.x[use], stars.y[use])))
    ratio = np.log(stars.fwhm[use] / own)
    keep = np.abs(ratio - np.median(ratio)) < 4 * 1.4826 * np.median(np.abs(ratio - np.median(ratio))) + 0.05
    trend = terms[keep] @ np.linalg.lstsq(terms[keep], ratio[keep], rcond=None)[0]
    low, high = np.percentile(trend, [10, 90])
    spread, factor = float(np.exp(high - low) - 1), float(np.exp(np.median(ratio)))
    ctx.metric("psf_width_trend", spread)
    ctx.metric("psf_width_factor", factor)
    if spread > WIDTH_TREND or not 1 / WIDTH_FACTOR < factor < WIDTH_FACTOR:
        ctx.flag(
            "psf_disagrees",
            f"the PSF that came with the image is not that of its stars: they are {factor:.2f} times as wide, and that "
            f'drifts by {100 * spread:.0f} % over the field, so fluxes will be off; source = "stars" measures the PSF',
        )


def field_fwhm(exposure: Exposure) -> float:
    """Median FWHM (px) of the exposure's PSF on a 3 x 3 grid over the field.

    Raises
    ------
    InputError
        The exposure has no PSF.
    """
    if exposure.psf is None:
        raise InputError(f"{exposure.id or 'image'} has no PSF; run the psf stage first")
    y, x = (np.repeat((np.arange(3) + 0.5) * n / 3 - 0.5, 3) for n in exposure.shape)
    x = np.tile(x[::3], 3)
    return median(fwhms(to_host(exposure.psf.render(x, y))))


def _samples(image: Exposure, stars: Stars, half: int) -> Samples:
    """Stamps of the stars, centred, with their variance, where the image is."""
    xp = image.backend.xp
    planes = (image.image, image.variance, image.mask)
    values, variance, usable, typical = star_stamps(*planes, image.planes.invalid, stars.x, stars.y, half)
    if image.variance is None:
        typical = _sky_variance(values)
        variance = xp.ascontiguousarray(xp.broadcast_to(typical[:, None, None], values.shape))
    return Samples(values, variance, usable, xp.sqrt(typical), stars.flux, stars.x, stars.y)


def _sky_variance(values: Array) -> Array:
    """Variance (n,) of the sky around each star of stamps (n, m, m)."""
    xp, m = backend_of(values).xp, values.shape[1]
    sky = values.reshape(len(values), -1)[:, np.flatnonzero(radius(m) > m // 2)]
    spread = 1.4826 * xp.median(xp.abs(sky - xp.median(sky, axis=1)[:, None]), axis=1)
    known = spread > 0
    usual = float(xp.median(spread[known])) if known.any() else 1.0
    return xp.where(known, spread, usual) ** 2
