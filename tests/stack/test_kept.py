# SPDX-License-Identifier: BSD-3-Clause
"""A median and clipping lower the flux of stars where seeing or sampling differ: measured on the stars, and said."""

import numpy as np
import pytest
from support_stack import grid_field, visit

import skydelta
from skydelta.kernels.backend import resolve
from skydelta.stages.base import Context
from skydelta.stages.stack import Stack

NEAREST = {"resampling": "nearest"}
DROPS = {"resampling": "drizzle", "pixfrac": 0.6}
SEEING = (2.5, 3.5, 4.9)


def made(rng, method, widths, n=6, **settings):
    """Box sums over those of a mean of the same exposures, at the truth's positions; the stack; the context."""
    field = grid_field(rng, fluxes=(4.5, 5.7))
    images = [visit(field, rng, k, fwhm=widths[k % len(widths)]) for k in range(n)]
    fluxes = []
    for name in (method, "mean"):
        ctx = Context(resolve("cpu"), id="t")
        out = Stack(method=name, scaling="none", **settings).execute(ctx, {"images": images})["stacked"]
        fluxes.append(field.boxes(out.image - np.nanmedian(out.image), out.wcs))
        if name == method:
            found, context = out, ctx
    return float(np.nanmedian(fluxes[0] / fluxes[1])), found, context


@pytest.mark.parametrize(
    ("widths", "settings", "low", "high"),
    [
        ((3.5,), {}, 0.998, 1.002), ((3.5,), {"resampling": "drizzle"}, 0.998, 1.002),
        ((2.8, 3.5, 4.2), {}, 0.99, 0.997), (SEEING, {}, 0.95, 0.985), ((1.2,), {}, 0.96, 0.992),
        ((2.5,), NEAREST, 0.95, 0.985), ((1.5,), DROPS, 0.97, 0.995),
    ],
)  # fmt: skip
def test_the_median_says_how_much_flux_it_keeps(rng, widths, settings, low, high, figure):
    truth, stacked, ctx = made(rng, "median", widths, **settings)
    assert low < truth < high, "the scene does what it should"
    kept, error = ctx.metrics["flux_kept"], ctx.metrics["flux_kept_err"]
    assert (stacked.header["FLUXKEPT"], stacked.header["FLUXKERR"]) == (kept, error)
    figure(f"flux that a median keeps, FWHM {widths}, {settings}: measured - truth", abs(kept - truth), 0.01)
    assert ("flux_not_kept" in ctx.flags) == (high < 1)
    if ctx.flags:
        assert f"stars have {kept:.4f} +- {error:.4f} of their flux" in ctx.flags["flux_not_kept"]
        assert ctx.flags["flux_not_kept"].endswith("mean and weighted keep it, clipped where seeing differs by 20 %")


def test_clipping_is_judged_where_stars_are_measured_anyway(rng):
    field = grid_field(rng, fluxes=(4.5, 5.7))
    for widths, said in (((2.8, 3.5, 4.2), False), (SEEING, True)):
        images = [visit(field, rng, k, fwhm=widths[k % 3]) for k in range(6)]
        ctx = Context(resolve("cpu"), id="t")
        Stack(method="clipped", scaling="stars").execute(ctx, {"images": images})
        assert ("flux_not_kept" in ctx.flags) == said, ctx.metrics
        ctx = Context(resolve("cpu"), id="t")
        Stack(method="clipped", scaling="none").execute(ctx, {"images": images})
        assert "flux_kept" not in ctx.metrics, "stars were not measured"


def test_a_median_without_stars_says_that_nobody_knows(rng):
    field = grid_field(rng, spacing=400)
    images = [visit(field, rng, k) for k in range(4)]
    ctx = Context(resolve("cpu"), id="t")
    out = Stack(method="median", scaling="none").execute(ctx, {"images": images})["stacked"]
    assert ctx.flags["flux_unchecked"].startswith("too few stars tell whether the median keeps their flux")
    assert "FLUXKEPT" not in out.header
    same = [skydelta.Exposure(e.image, e.variance, wcs=images[0].wcs) for e in images]
    for method, of in (("median", same), ("mean", images), ("weighted", images), ("median", images[:2])):
        ctx = Context(resolve("cpu"), id="t")
        Stack(method=method, scaling="none").execute(ctx, {"images": of})
        assert not {"flux_unchecked", "flux_not_kept"} & set(ctx.flags), method
