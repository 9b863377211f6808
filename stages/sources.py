# SPDX-License-Identifier: BSD-3-Clause
"""Sources of any image: found in the signal-to-noise map, split along their peaks, fitted and measured."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from astropy import units as u
from pydantic import Field

from skydelta.errors import InputError
from skydelta.io.catalog import Catalog, bits, column_of
from skydelta.io.exposure import Exposure
from skydelta.io.psf import fwhm
from skydelta.io.sky import icrs_pixels
from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.kernels.convolve import gaussian_taps
from skydelta.kernels.cutouts import cutouts
from skydelta.kernels.deblend import peak_tree
from skydelta.kernels.detect import components
from skydelta.kernels.fit import Status
from skydelta.kernels.stars import smooth_masked
from skydelta.stages.base import Context, Port, Stage, StageConfig
from skydelta.stages.detect import LARGE, mask_flags, middle_of, own_score, sky_positions, subpixel
from skydelta.stages.fit import BATCH, Cutter, Detections, Fit
from skydelta.stages.fluxerror import kernel_flux_errors, with_kernel
from skydelta.stages.lobes import Stamps, forced_fit, status_flags
from skydelta.stages.measure import Measurer, isophotal

SHARP = 0.47
"""Gaussian sigma that the light is smoothed by before it is split, in that of the PSF.

By simulation the least with which noise splits no source; under the PSF itself, as in the signal-to-noise map, pairs
closer than 1.2 FWHM run into one."""

SIGNIFICANCE = 1.0
"""A peak must stand this many times the noise of the smoothed light above the saddle to its neighbour.

By simulation (3e-4 sources a pixel of S/N 5 to 200, FWHM 3.5 px, 8 images) 1 finds 99.2 % of those above S/N 7, 2 finds
99.1 %; 99.9 % of what is found is real with either."""

SHARPENED = 6.0
"""The light is split a second time after this many times its difference from the light smoothed by the PSF's own sigma
was added: pairs closer than one FWHM have two peaks then."""

DISTINCT, LEAST_SHARE = 4.0, 0.01
"""`SIGNIFICANCE`, and the least ``contrast``, there.

By simulation as above 99.34 % instead of 99.19 % of the sources are found, and no less of the rows are real; of 400
exponential discs, 400 de Vaucouleurs galaxies (half-light radii 2 to 10 px, photon noise) and 400 stars with the wings
of a Moffat profile one more is split, where a significance of 3 would split tens."""

FITTED = (
    "flux", "flux_err", "x_err", "y_err", "background", "chi2", "dof", "sharpness",
)  # fmt: skip
"""Columns that the fit of the PSF gives."""

KERNEL = "flux_err_kernel"
"""And this one, of a difference that brings the error of its kernel."""


PLACES = (("x", "y"), ("ra", "dec"))
"""Columns of positions, in any letter case; the first pair counts where a table has both."""

ON_SKY = {"ra": (-180.0, 360.0), "dec": (-90.0, 90.0)}
"""Values that are allowed, degrees."""

OF_ANY = ("TRUNCATED", "APER_MASKED")
"""Flags of apertures, the window or the footprint that the source has too; neighbours of sources are `BLENDED`."""


class SourcesConfig(StageConfig):
    """What counts as a source, and how it is measured."""

    threshold: float = Field(5.0, gt=0, description="Signal-to-noise of the faintest pixel of a footprint.")
    contrast: float = Field(
        0.002,
        ge=0,
        le=1,
        description="Light of a peak above the saddle to its neighbour, over that of the neighbour there, from which "
        "on it is a source of its own.",
    )
    negative: bool = Field(False, description="Find sources below the sky too.")
    only_inside: bool = Field(False, description="Of the positions that are given, leave out those beyond the image.")
    apertures: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = Field(
        (), description="Radii of circular apertures, px; 1, 1.5 and 2 times the FWHM of the PSF if none."
    )


class Sources(Stage[SourcesConfig]):
    """Every source of a sky-subtracted image with its flux, place and shape, or the fluxes at given positions.

    Pixels whose matched filter is above the threshold form footprints; these are split along the tree of the peaks of
    their light. Each source is fitted with the local PSF and a constant, the light of its neighbours taken away, and
    measured in circular and Kron apertures, without the pixels of its neighbours.

    Raises
    ------
    InputError
        The image has no variance or no PSF, or positions are no positions.
    """

    name = "sources"
    version = 8
    inputs = {
        "image": Port(Exposure, "sky-subtracted image with its variance and PSF"),
        "positions": Port(Catalog, "where to measure instead: columns x and y, or ra and dec", optional=True),
    }
    outputs = {"catalog": Port(Catalog, "one row for each source")}

    def halo(self) -> int:
        return 64

    def memory(self, shape: tuple[int, int], kind: str) -> int:
        return shape[0] * shape[1] * 4 * 8

    def check_inputs(self, given: Collection[str]) -> None:
        if "positions" in given:
            self.refuse(["threshold", "contrast", "negative"], "where positions are given")
        else:
            self.refuse(["only_inside"], "where no positions are given")

    def run(  # type: ignore[override]
        self, ctx: Context, *, image: Exposure, positions: Catalog | None = None
    ) -> dict[str, Any]:
        if image.variance is None or image.psf is None:
            raise InputError(f"sources: the image has no {'variance' if image.variance is None else 'PSF'}")
        width = fwhm(to_host(image.psf.at(*middle_of(image))))
        if image.wcs is not None:
            try:
                sky_positions(image, np.zeros(1), np.zeros(1))
            except InputError as e:
                ctx.flag("no_sky_positions", f"ra and dec are unknown: {e}")
                image = image.with_(wcs=None)
        if image.mask is None:
            image = image.with_(mask=image.backend.xp.zeros(image.shape, np.int32))
        radii = self.config.apertures or tuple(round(k * width, 2) for k in (1.0, 1.5, 2.0))
        if positions is None:
            catalog = self._found(ctx, image, width, radii)
        else:
            catalog = self._forced(ctx, image, width, radii, positions)
        ctx.metric("sources", len(catalog))
        ctx.metric("threshold", self.config.threshold)
        ctx.metric("fwhm_px", width)
        ctx.metric("apertures_px", list(radii))
        return {"catalog": catalog}

    def _found(self, ctx: Context, image: Exposure, width: float, radii: tuple[float, ...]) -> Catalog:
        found = find(ctx, image, width, self.config.threshold, self.config.contrast, self.config.negative)
        n, sign = len(found.x), np.sign(found.snr)
        flags = np.where(sign < 0, bits("NEGATIVE"), 0)
        flags |= np.where(np.bincount(found.label, minlength=1)[found.label] > 1, bits("BLENDED"), 0)
        flags |= np.where(found.shape["npix"] > LARGE * width**2, bits("LARGE"), 0)
        flags |= mask_flags(image, found.x, found.y, width)
        columns: dict[str, np.ndarray] = {"id": np.arange(1, n + 1), "x": found.x, "y": found.y}
        columns |= {"ra": np.full(n, np.nan), "dec": np.full(n, np.nan), "snr": found.snr, "flags": flags}
        columns |= dict.fromkeys(("x_pos", "y_pos", "x_neg", "y_neg"), np.full(n, np.nan))
        fitted = Fit(dipoles=False).run(Context(image.backend), image=image, catalog=Catalog.of(columns, {}))["catalog"]
        fit = {
            name: np.asarray(getattr(c, "value", c)) for name, c in zip(fitted.colnames, fitted.values(), strict=True)
        }
        # a fit that left its source is no measurement of it
        stays = np.hypot(fit["x"] - found.x, fit["y"] - found.y) < max(2.0, width)
        x, y = (np.where(stays, fit[a], getattr(found, a)) for a in "xy")
        known = () if image.kernel_error is None else (KERNEL,)
        out = {name: np.where(stays, fit[name], np.nan) for name in (*FITTED, *known)}
        lost = np.where(stays, fit["flags"], flags | bits("NO_FIT"))
        measurer = Measurer(image, image.good(), found.segments)
        shape = found.shape
        out |= _measured(measurer, x, y, width, radii, sign)
        out |= {name: sign * v if name in ("flux_iso", "peak") else v for name, v in shape.items()}
        out |= measurer.krons(x, y, shape["a"], shape["b"], shape["theta"], sign)
        out["flags_iso"] = measurer.footprint_flags(found.pixel, found.segment, n)
        out["roundness"] = (shape["x2"] - shape["y2"]) / (shape["x2"] + shape["y2"])
        out["theta"] = np.degrees(shape["theta"])
        start = {"id": columns["id"], "x": x, "y": y, "snr": found.snr, "flags": lost}
        model = np.where(np.isfinite(out["flux"]), "psf", "none")
        return _table(image, {**start, **out}, model, radii)

    def _forced(
        self, ctx: Context, image: Exposure, width: float, radii: tuple[float, ...], positions: Catalog
    ) -> Catalog:
        x, y = pixel_positions(image, positions)
        if len(places_of(positions)) > 1:
            ctx.flag(
                "positions_twofold", f"the positions have x, y and ra, dec: x, y count{_apart(image, positions, x, y)}"
            )
        if self.config.only_inside:
            inside = _lies_on(image, x, y)
            positions, x, y = positions[inside], x[inside], y[inside]
            inside = inside[inside]
        else:
            inside = _on_image(ctx, image, x, y)
        n = len(x)
        # far positions are moved to where nothing is either
        far = np.where(inside, 1.0, np.nan)
        at = np.stack([np.where(inside, x, -1e6), np.where(inside, y, -1e6)], 1)
        detections = Detections(at, np.full((n, 2, 2), np.nan), np.zeros(n))
        cutter = Cutter(image, detections, min(max(2 * int(np.ceil(2.5 * width)) + 1, 15), 31))
        parts = []
        for first in range(0, n, BATCH):
            stamps, counted = _around(cutter(first, None))
            fit, free = forced_fit(stamps, stamps.start[:, None])
            usable = fit.usable & (fit.status == Status.CONVERGED)
            values = np.where(usable[:, None], fit.parameters, np.nan)
            of_kernel = kernel_flux_errors(image, stamps, stamps.start, values[:, 0])
            parts.append({
                "flux": values[:, 0], KERNEL: of_kernel,
                "flux_err": np.where(usable, with_kernel(fit.errors[:, 0], of_kernel), np.nan),
                "background": values[:, 3], "chi2": np.where(usable, fit.chi2, np.nan),
                "dof": np.maximum(counted - free, 0), "sharpness": fit.sharpness,
                "flags": status_flags(fit.status) | np.where(usable, 0, bits("NO_FIT")),
            })  # fmt: skip
        names = ["flux", "flux_err", "background", "chi2", "dof", "sharpness", "flags"]
        names += [] if image.kernel_error is None else [KERNEL]
        out = {name: np.concatenate([p[name] for p in parts] or [np.zeros(0)]) for name in names}
        out["flags"] = out["flags"].astype(int) | np.where(inside, 0, bits("EDGE"))
        out["flags"] |= mask_flags(image, at[:, 0], at[:, 1], width)
        # a position that is held has no error where something is measured at it
        held = np.where(np.isfinite(out["flux"]), 0.0, np.nan)
        out |= {"x": x, "y": y, "x_err": held, "y_err": held, "snr": out["flux"] / out["flux_err"]}
        named = next(filter(None, (column_of(positions, c) for c in ("id", "object"))), None)
        out["id"] = np.arange(1, n + 1) if named is None else np.asarray(positions[named])
        out |= _measured(Measurer(image, image.good()), x * far, y * far, width, radii, np.sign(out["flux"]))
        return _table(image, out, np.where(np.isfinite(out["flux"]), "forced", "none"), radii)


def _around(stamps: Stamps) -> tuple[Stamps, np.ndarray]:
    """Stamps whose pixels count by their area within a square about the start, not about the nearest pixel; that area.

    Else a border of pixels enters and another leaves, and what is fitted jumps, where the nearest pixel changes.
    """
    backend, half = backend_of(stamps.weight), stamps.weight.shape[1] // 2
    pixel = np.arange(-half, half + 1)[:, None, None]
    part = np.clip(half + 0.5 - np.abs(pixel - stamps.start), 0, 1).astype(np.float32)
    across, down = (backend.asarray(np.ascontiguousarray(part[:, :, k].T)) for k in range(2))
    area = down[:, :, None] * across[:, None, :]
    counted = to_host((area * (stamps.weight > 0)).sum(axis=(1, 2), dtype=np.float64))
    return replace(stamps, weight=stamps.weight * area), counted


@dataclass(frozen=True)
class Found:
    """Sources in raster order of their peaks.

    Attributes
    ----------
    x, y : float64 (n,)
        Sub-pixel maximum of the smoothed light, px.
    snr : float64 (n,)
        Highest of the matched filter at the peak, with the sign of the source.
    label : int (n,)
        Number of the footprint.
    shape : dict of (n,)
        As `isophotal` gives it.
    pixel, segment : int (m,)
        y W + x of every pixel of a source, and the source, from 0.
    segments : int32 (H, W)
        Number of the source from 1, 0 outside; where the image is.
    """

    x: np.ndarray
    y: np.ndarray
    snr: np.ndarray
    label: np.ndarray
    shape: dict[str, np.ndarray]
    pixel: np.ndarray
    segment: np.ndarray
    segments: Array


def find(ctx: Context, image: Exposure, width: float, threshold: float, contrast: float, negative: bool) -> Found:
    """Sources of a sky-subtracted image with variance and PSF, whose FWHM is ``width`` px."""
    backend, xp = image.backend, image.backend.xp
    good, (h, w) = image.good(), image.shape
    snr, variances = own_score(ctx, image, good), image.variance
    assert variances is not None
    labels, _ = components(snr, threshold)
    index = xp.flatnonzero(labels)
    if not negative:
        index = index[snr.ravel()[index] > 0]
    sigma = width / 2.3548
    taps, wide = (gaussian_taps(max(k * sigma, 0.2)) for k in (SHARP, 1.0))
    light, blurred = (_smoothed(image.image, good, t) for t in (taps, wide))
    # what is looked at from here on are the pixels of footprints, on the host
    flat = (labels, snr, light, blurred, image.image, variances)
    label, score, smooth, beneath, value, variance = (to_host(p.ravel()[index]) for p in flat)
    pixel, sign = to_host(index), np.sign(score).astype(float)
    noise, (plain, sharp) = np.sqrt(variance.astype(float)), _filters(taps, wide)
    peak, segment = peak_tree(pixel, image.shape, label, smooth * sign, noise * plain, SIGNIFICANCE, contrast)
    sharpened = np.maximum(_sharpened(smooth.astype(float), beneath) * sign, 0)
    tree = (sharpened, noise * sharp, DISTINCT, max(contrast, LEAST_SHARE))
    peak, segment, split = _split(peak, segment, peak_tree(pixel, image.shape, segment + 1, *tree))
    n = len(peak)
    y, x = np.divmod(pixel, w)
    shape = isophotal(x, y, value * sign, variance, segment, n)
    segments = xp.zeros(h * w, np.int32)
    segments[index] = backend.asarray((segment + 1).astype(np.int32))
    near = [to_host(cutouts(p, x[peak], y[peak], 1, np.nan)) * sign[peak, None, None] for p in (light, snr, blurred)]
    dy, dx = subpixel(np.where(split[:, None, None], _sharpened(near[0], near[2]), near[0]))
    highest = np.nanmax(near[1], axis=(1, 2)) if n else np.zeros(0)
    at, height = (x[peak] + dx, y[peak] + dy), highest * sign[peak]
    return Found(*at, height, label[peak], shape, pixel, segment, segments.reshape(h, w))


def _filters(taps: np.ndarray, wide: np.ndarray) -> tuple[float, float]:
    """Noise of the smoothed light and of the sharpened one, over that of a pixel."""
    size = max(len(taps), len(wide))
    small, large = (np.pad(np.r_[t[:0:-1], t], size - len(t)) for t in (taps, wide))
    small, large = (np.outer(line, line) for line in (small, large))
    plain, sharp = (float(np.sqrt((k**2).sum())) for k in (small, _sharpened(small, large)))
    return plain, sharp


def _sharpened(smooth: np.ndarray, blurred: np.ndarray) -> np.ndarray:
    return smooth + SHARPENED * (smooth - blurred)


def _split(
    peak: np.ndarray, segment: np.ndarray, parts: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Objects, as `peak_tree` gives them, of which some are several; the others keep their peaks.

    Returns
    -------
    peak, segment
        As of `peak_tree`.
    split : bool (m,)
        Which objects are parts of one.
    """
    top, part = parts
    whole = segment[top]
    split = np.bincount(whole, minlength=len(peak))[whole] > 1
    lead = np.where(split, top, peak[whole])
    order = np.argsort(lead)
    place = np.empty(len(order), int)
    place[order] = np.arange(len(order))
    return lead[order], place[part], split[order]


def _smoothed(image: Array, good: Array, taps: np.ndarray) -> Array:
    """Light smoothed over the usable pixels, 0 at the others."""
    light = smooth_masked(image, good, taps)
    if bool(good.all()):
        return light
    weight = smooth_masked(good.astype(np.float32), good, taps)
    return light / (weight + (weight == 0))


def places_of(positions: Catalog) -> list[tuple[str, str]]:
    """The pairs of `PLACES` that a table has; the first one counts."""
    return [pair for pair in PLACES if all(column_of(positions, of) for of in pair)]


def check_positions(positions: Catalog, name: str = "positions") -> dict[str, np.ndarray]:
    """The columns of a table that say where, float64: x and y, px, or, where it has not both, ra and dec, degrees.

    Names may be in any letter case.

    Parameters
    ----------
    positions : Catalog
    name : str
        What errors call it.

    Raises
    ------
    InputError
        Neither pair of columns; a value that is no number or lies beyond the sky, which has ra of -180 to 360 and dec
        of -90 to 90 degrees.
    """

    def column(of: str, unit: u.UnitBase) -> np.ndarray:
        values = positions[column_of(positions, of)]
        own = getattr(values, "unit", None)
        try:
            numbers = u.Quantity(values).to_value(unit) if own is not None else values
            return np.asarray(np.ma.filled(np.ma.asarray(numbers, float), np.nan), float)
        except (ValueError, TypeError, u.UnitConversionError):
            raise InputError(f"{name}: column {of} holds no {unit} numbers") from None

    pairs = places_of(positions)
    if not pairs:
        raise InputError(f"{name}: columns {', '.join(positions.colnames) or 'none'}; x and y or ra and dec are needed")
    out = {of: column(of, u.deg if of in ON_SKY else u.pix) for of in pairs[0]}
    for of, values in out.items():
        low, high = ON_SKY.get(of, (-np.inf, np.inf))
        finite = np.isfinite(values)
        for wrong, words in (
            (~finite, "is no finite number"),
            (finite & ~((values >= low) & (values <= high)), f"is outside {low:g} to {high:g}"),
        ):
            rows = np.flatnonzero(wrong)
            if len(rows):
                more = f" ({len(rows) - 1} more row{'s' * (len(rows) > 2)} like it)" if len(rows) > 1 else ""
                raise InputError(f"{name}: row {rows[0] + 1}, column {of}: {values[rows[0]]:.10g} {words}{more}")
    return out


def pixel_positions(image: Exposure, positions: Catalog) -> tuple[np.ndarray, np.ndarray]:
    """0-based x, y of the rows of a table that has them, or ra and dec (degrees, ICRS) instead.

    NaN where the WCS has no place for a position of the sky.

    Raises
    ------
    InputError
        As `check_positions`; ra and dec for an image without WCS.
    """
    where = check_positions(positions)
    if "x" in where:
        return where["x"], where["y"]
    if image.wcs is None:
        raise InputError("positions: ra and dec are given, but the image has no WCS; give x and y")
    return icrs_pixels(image.wcs, where["ra"], where["dec"])


def _apart(image: Exposure, positions: Catalog, x: np.ndarray, y: np.ndarray) -> str:
    """How far from x, y the ra, dec of the same rows lie on this image, in words; nothing where that is unknown."""
    if image.wcs is None:
        return ""
    try:
        sky = Catalog(positions[[name for of in ON_SKY if (name := column_of(positions, of))]])
        other_x, other_y = pixel_positions(image, sky)
    except InputError:
        return ""
    apart = np.hypot(other_x - x, other_y - y)
    apart = apart[np.isfinite(apart)]
    return f"; on this image ra, dec are {np.median(apart):.2f} px away (median)" if len(apart) else ""


def _lies_on(image: Exposure, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Which positions lie on a pixel of the image, bool (n,)."""
    h, w = image.shape
    return (x > -0.5) & (y > -0.5) & (x < w - 0.5) & (y < h - 0.5)


def _on_image(ctx: Context, image: Exposure, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The same; that some do not is flagged.

    Raises
    ------
    InputError
        None does.
    """
    (h, w), inside = image.shape, _lies_on(image, x, y)
    n, out = len(x), int((~inside).sum())
    if n and out == n:
        known = np.isfinite(x + y)
        seen = "the WCS has no place for any of them"
        if known.any():
            x, y = x[known], y[known]
            seen = f"they span x {x.min():.6g} to {x.max():.6g}, y {y.min():.6g} to {y.max():.6g}"
        raise InputError(f"positions: all {n} lie outside the image of {w} x {h} px: {seen}")
    ctx.metric("positions_outside", out)
    if out:
        ctx.flag("positions_outside", f"{out} of {n} positions lie outside the image of {w} x {h} px: not measured")
    return inside


def _measured(
    measurer: Measurer, x: np.ndarray, y: np.ndarray, width: float, radii: tuple[float, ...], sign: np.ndarray
) -> dict[str, np.ndarray]:
    """What is measured at any position."""
    out = measurer.windowed(x, y, width, sign)
    for k, radius in enumerate(radii, 1):
        sums = measurer.circles(x, y, radius)
        names = (f"flux_aper_{k}", f"flux_aper_{k}_err", f"lost_aper_{k}", f"flags_aper_{k}")
        out |= dict(zip(names, sums, strict=True))
    # the core alone, neighbours not counted as missing
    out["masked_fraction"] = Measurer(measurer.image, measurer.good).circles(x, y, width).lost
    return out


def sky_errors(image: Exposure, x: np.ndarray, y: np.ndarray, x_err: np.ndarray, y_err: np.ndarray) -> np.ndarray:
    """Errors on the sky along ra and dec (2, n), degrees, of errors along x and y, px, by the local scale."""
    out = np.full((2, len(x)), np.nan)
    if image.wcs is None or not len(x):
        return out
    h = 0.5
    steps = [sky_positions(image, x + dx, y + dy) for dx, dy in ((h, 0), (-h, 0), (0, h), (0, -h))]
    slopes = []
    for plus, minus in (steps[:2], steps[2:]):
        turn = (plus[0] - minus[0] + 180) % 360 - 180
        slopes.append((turn * np.cos(np.radians(plus[1])), plus[1] - minus[1]))
    return np.stack([np.hypot(slopes[0][k] * x_err, slopes[1][k] * y_err) for k in range(2)])


def _table(image: Exposure, columns: dict[str, np.ndarray], model: np.ndarray, radii: tuple[float, ...]) -> Catalog:
    """The catalogue, with units."""
    n, unit = len(columns["x"]), image.unit or u.dimensionless_unscaled
    sky = np.full((2, n), np.nan)
    known = np.isfinite(columns["x"] + columns["y"])
    if image.wcs is not None and known.any():
        sky[:, known] = sky_positions(image, columns["x"][known], columns["y"][known])
    ra_err, dec_err = sky_errors(image, *(columns[c] for c in ("x", "y", "x_err", "y_err")))
    named = {**columns, "ra": sky[0], "dec": sky[1], "ra_err": ra_err, "dec_err": dec_err, "model": model}
    flags = np.asarray(columns["flags"]).astype(np.int32)
    for name, values in columns.items():
        if name.startswith("flags_"):
            flags |= values & bits(*OF_ANY)
    named["flags"] = flags
    first = ("id", "x", "y", "ra", "dec", "flux", "flux_err", "snr", "model", "flags", "x_err", "y_err", "ra_err",
             "dec_err")  # fmt: skip
    ordered = {name: named[name] for name in first}
    ordered |= {name: values for name, values in named.items() if name not in ordered}
    units: dict[str, Any] = {}
    for name, values in ordered.items():
        if name.startswith(("flux", "peak", "background")) and values.dtype.kind == "f":
            units[name] = unit
        elif name in ("x2", "y2", "xy"):
            units[name] = u.pix**2
        elif name in ("a", "b", "fwhm") or (name[0] in "xy" and name[1:2] in ("", "_")):
            units[name] = u.pix
        elif name in ("ra", "dec", "ra_err", "dec_err", "theta"):
            units[name] = u.deg
    return Catalog.of(ordered, units, meta={"apertures_px": [float(r) for r in radii]})
