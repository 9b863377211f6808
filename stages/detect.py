# SPDX-License-Identifier: BSD-3-Clause
"""Find what changed: significant peaks of both signs, their footprints, and pairs that are one moved source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from astropy import units as u
from pydantic import Field
from scipy.spatial import cKDTree

from skydelta.errors import InputError
from skydelta.io.catalog import Catalog, bits
from skydelta.io.exposure import Exposure
from skydelta.io.psf import fwhm
from skydelta.io.sky import icrs_positions
from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.kernels.cutouts import Windows, cutouts
from skydelta.kernels.detect import components, extrema
from skydelta.kernels.significance import matched_filter
from skydelta.stages.background import NOISE_RATIO, variance_words
from skydelta.stages.base import Context, Port, Stage, StageConfig
from skydelta.stages.noise import REACH, image_noise
from skydelta.stages.robust import levels

SADDLE = 2.0
"""Two peaks of one footprint are two objects when the S/N between them drops by this much below the fainter."""

LARGE = 40.0
"""A footprint of more than this many squared FWHM is flagged: no point source is that large."""

WINDOW = 16
"""Half-size of the windows in which footprints are looked at, px: most fit in; no result depends on it."""

HALO = 1.5
"""FWHM around an object in which saturated pixels are looked for."""

ROWS = 20_000
"""Objects whose surroundings are cut out at once."""

DOUBTFUL = ("EDGE", "MASKED", "SATURATED", "SATURATED_TEMPLATE", "LARGE")
"""Flags of candidates that do not count when the signs are compared."""

MANY, LOPSIDED = 200, 8.0
"""Candidates from which on, and standard deviations by which, one sign prevails so much that it is said: transients
rise more often than they fade, so a plain majority means nothing."""

SAMPLES = 2e5
"""Pixels from which the scatter of a signal-to-noise plane is taken, about, where it is not known."""

LOBE_SIGMA = 3.0
"""Opposite peaks closer than this many PSF sigma are lobes of one dipole; up to twice as far when footprints touch."""


class DetectConfig(StageConfig):
    """What counts as a detection."""

    threshold: float = Field(5.0, gt=0, description="Signal-to-noise of the faintest peak kept, of either sign.")
    dipole_ratio: float = Field(
        0.15,
        gt=0,
        le=1,
        description="Weaker over stronger peak from which on opposite neighbours are one dipole; below, the stronger "
        "stays a source and the weaker an object of its own.",
    )


class Detect(Stage[DetectConfig]):
    """Peaks of the signal-to-noise plane beyond the threshold, one row each, opposite neighbours paired as dipoles.

    Without ``score`` the plane is made here: the matched filter for white noise with the image's PSF and variance, over
    its own standard deviation where the noise turns out to be correlated.
    Ids count the rows in raster order of their peaks. Positions are sub-pixel: the extremum of a quadratic through the
    3 x 3 pixels around the peak.

    Raises
    ------
    InputError
        The score has another shape than the image, or there is none and the image has no variance or no PSF.
    """

    name = "detect"
    version = 7
    inputs = {
        "image": Port(Exposure, "the difference, or any sky-subtracted image"),
        "score": Port(Exposure, "its signal-to-noise plane", optional=True),
    }
    outputs = {"catalog": Port(Catalog, "one row for each object")}

    def halo(self) -> int:
        return 3

    def memory(self, shape: tuple[int, int], kind: str) -> int:
        return shape[0] * shape[1] * 4 * 6

    def run(  # type: ignore[override]
        self, ctx: Context, *, image: Exposure, score: Exposure | None = None
    ) -> dict[str, Any]:
        if score is not None and score.shape != image.shape:
            raise InputError(f"detect: the score is {score.shape}, the image {image.shape}")
        snr = score.image if score is not None else own_score(ctx, image)
        labels, area = components(snr, self.config.threshold)
        y, x, value = extrema(snr, self.config.threshold)
        width = fwhm(image.psf.at(*middle_of(image))) if image.psf is not None else 3.0
        patches, label, area = _looked_up(snr, labels, area, y, x)
        own = _significant(snr, y, x, value, label, self.config.threshold)
        y, x, value, label, patches = y[own], x[own], value[own], label[own], patches[own]
        dy, dx = subpixel(patches * np.sign(value)[:, None, None])
        footprints = Footprints(labels, area, label, y, x)
        objects = _pair(y + dy, x + dx, value, footprints, width, self.config.dipole_ratio)
        flags = self._flags(image, objects, area, label, width)
        catalog = _catalog(image, objects, flags)
        ctx.metric("candidates", len(catalog))
        ctx.metric("dipole_candidates", int(catalog.has("DIPOLE").sum()))
        ctx.metric("threshold", self.config.threshold)
        _report_noise(ctx, snr if score is None else score.notes.get("snr_std", snr), catalog, self.config.threshold)
        _report_signs(ctx, catalog)
        return {"catalog": catalog}

    def _flags(self, image: Exposure, o: Objects, area: np.ndarray, label: np.ndarray, width: float) -> np.ndarray:
        flags = np.where(o.snr < 0, bits("NEGATIVE"), 0)
        flags |= np.where(np.isfinite(o.x_neg), bits("DIPOLE"), 0)
        per_label = np.bincount(label, minlength=len(area))
        flags |= np.where(per_label[o.label] > 1, bits("BLENDED"), 0)
        flags |= np.where(area[o.label] > LARGE * width**2, bits("LARGE"), 0)
        return (flags | mask_flags(image, o.x, o.y, width)).astype(np.int32)


def mask_flags(image: Exposure, x: np.ndarray, y: np.ndarray, width: float) -> np.ndarray:
    """Flags of what the mask says around positions, and of the image's edge: int (n,).

    Within half of ``width`` px, the FWHM, of each; saturated pixels within `HALO` times that: a star that has them is
    far brighter than those that PSF and kernel were measured on, and what is left of its wings passes for sources.
    """
    flags = np.zeros(len(x), int)
    if not len(x) or image.mask is None:
        return flags
    reach = max(2, round(width / 2))
    near = to_host(cutouts(image.mask, np.rint(x), np.rint(y), reach, -1))
    beyond = near < 0
    found = np.bitwise_or.reduce(np.where(beyond, 0, near), axis=(1, 2))
    planes = image.planes
    edge = planes.bit("EDGE", "NO_DATA", "EDGE_TEMPLATE", "NO_DATA_TEMPLATE")
    halo, full = max(2, int(HALO * width)), {"SATURATED": "SAT", "SATURATED_TEMPLATE": "SAT_TEMPLATE"}
    for first in range(0, len(x), ROWS):
        part = np.s_[first : first + ROWS]
        around = cutouts(image.mask, np.rint(x[part]), np.rint(y[part]), halo, 0)
        for name, plane in full.items():
            hit = to_host(((around & planes.bit(plane)) != 0).any(axis=(1, 2)))
            flags[part] |= np.where(hit, bits(name), 0)
    for name, wanted in (("EDGE", edge), ("MASKED", planes.invalid & ~edge)):
        hit = (found & wanted) != 0
        if name == "EDGE":
            hit |= beyond.any(axis=(1, 2))
        flags |= np.where(hit, bits(name), 0)
    return flags


@dataclass(frozen=True)
class Footprints:
    """Connected pixels beyond the threshold, and the peaks in them.

    Attributes
    ----------
    labels : int32 (H, W)
        On any device.
    area : int (m,)
        Pixels of each label.
    label, y, x : int (n,)
        Of each peak, on the host.
    """

    labels: Array
    area: np.ndarray
    label: np.ndarray
    y: np.ndarray
    x: np.ndarray


@dataclass(frozen=True)
class Objects:
    """Objects in raster order of their peaks; lobe positions are NaN for single sources."""

    y: np.ndarray
    x: np.ndarray
    snr: np.ndarray
    label: np.ndarray
    x_pos: np.ndarray
    y_pos: np.ndarray
    x_neg: np.ndarray
    y_neg: np.ndarray


def _report_noise(ctx: Context, spread: Array | float, catalog: Catalog, threshold: float) -> None:
    """Say when signal-to-noise is no such thing, and what that makes of the candidates.

    ``spread`` is the standard deviation of the signal-to-noise plane, or the plane. Nothing is divided by it.
    """
    if not isinstance(spread, float):
        every = max(1, int(np.sqrt(spread.size / SAMPLES)))
        spread = float(levels(backend_of(spread).xp.ascontiguousarray(spread[::every, ::every]))[1])
    if not spread > 0 or 1 / NOISE_RATIO <= spread <= NOISE_RATIO:
        return
    own = f"the threshold of {threshold:g} is {threshold / spread:.2g} sigma of the noise that is there"
    cause = f"a variance {variance_words(spread)}"
    if spread > 1:
        weak = int((np.abs(np.asarray(catalog["snr"])) < threshold * spread).sum())
        ctx.metric("candidates_below_noise", weak)
        cause += " or of a field full of residuals"
        own += f", and {weak} of {len(catalog)} candidates do not reach {threshold:g} sigma of it"
    else:
        own += ": what is fainter is not found"
    ctx.flag("noise_scale", f"signal-to-noise scatters by {spread:.2f}, not by 1, as of {cause}; {own}")


def _report_signs(ctx: Context, catalog: Catalog) -> None:
    """Positive and negative candidates that are neither dipoles nor doubtful, and their asymmetry (p - n) / (p + n)."""
    clean = (np.asarray(catalog["flags"]) & bits("DIPOLE", *DOUBTFUL)) == 0
    negative = int((clean & catalog.has("NEGATIVE")).sum())
    positive = int(clean.sum()) - negative
    both = positive + negative
    ctx.metric("candidates_positive", positive)
    ctx.metric("candidates_negative", negative)
    ctx.metric("asymmetry", (positive - negative) / both if both else float("nan"))
    if both >= MANY and abs(positive - negative) > LOPSIDED * np.sqrt(both):
        more = "positive" if positive > negative else "negative"
        ctx.flag(
            "lopsided", f"{positive} positive and {negative} negative candidates: many {more} ones may be residuals"
        )


def middle_of(image: Exposure) -> tuple[float, float]:
    return (image.shape[1] - 1) / 2, (image.shape[0] - 1) / 2


def own_score(ctx: Context, image: Exposure, good: Array | None = None) -> Array:
    """Signal-to-noise plane of an image from its own variance, PSF and, where that is correlated, noise.

    ``good`` is `Exposure.good` of the image, where that is known already.
    """
    if image.variance is None or image.psf is None:
        missing = "variance" if image.variance is None else "PSF"
        raise InputError(f"detect: the image has no {missing} and no score was given")
    rho = image_noise(image)
    if rho is not None:
        next_to = float(max(rho[REACH, REACH + 1], rho[REACH + 1, REACH], key=abs))
        ctx.metric("noise_correlation", next_to)
        ctx.flag("correlated_noise", f"the noise is correlated ({next_to:.2f} from pixel to pixel): "
                 "signal-to-noise contains that, errors of fits and apertures do not")  # fmt: skip
    good = image.good() if good is None else good
    return matched_filter(image.image, image.variance, good, image.psf.render, correlation=rho)


def _looked_up(
    snr: Array, labels: Array, area: Array, y: np.ndarray, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """S/N (n, 3, 3) around and labels (n,) at whole pixels, and the area of every label: one copy to the host.

    The area is led by that of label 0, which is outside of all: nobody asks for it.
    """
    backend = backend_of(snr)
    windows, n = Windows(snr.shape, x, y, 1, backend), 9 * len(y)
    parts = [windows.cut(snr, np.nan).view(np.int32), windows.cut(labels), area]
    found = to_host(backend.xp.concatenate([part.ravel() for part in parts]))
    return found[:n].view(np.float32).reshape(-1, 3, 3), found[n + 4 : 2 * n : 9].astype(int), np.r_[0, found[2 * n :]]


def _at(plane: Array, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Values of a plane at whole pixels, on the host."""
    if not y.size:
        return np.zeros(y.shape, plane.dtype)
    return to_host(plane.ravel()[backend_of(plane).asarray(y * plane.shape[1] + x)])


def _significant(
    snr: Array, y: np.ndarray, x: np.ndarray, value: np.ndarray, label: np.ndarray, threshold: float
) -> np.ndarray:
    """Which peaks stand on their own: alone in their footprint, its highest, or behind a real saddle.

    The saddle is the lowest S/N on the straight line to the nearest higher peak of the same footprint. A dip as deep
    as the threshold is always real; a shallower one must be a tenth of the peak, or ripples of bright sources count.
    """
    height = np.abs(value)
    nearest = _nearest_higher(y, x, height, label)
    rival = np.flatnonzero(nearest >= 0)
    keep = nearest < 0
    if len(rival):
        t = np.linspace(0, 1, 33)[1:-1]
        to = nearest[rival]
        j = np.rint(y[rival, None] + t * (y[to] - y[rival])[:, None]).astype(int)
        i = np.rint(x[rival, None] + t * (x[to] - x[rival])[:, None]).astype(int)
        line = _at(snr, j, i) * np.sign(value[rival])[:, None]
        drop = height[rival] - np.where(np.isfinite(line), line, -np.inf).min(axis=1)
        keep[rival] = drop > np.clip(0.1 * height[rival], SADDLE, max(threshold, SADDLE))
    return keep


def _nearest_higher(y: np.ndarray, x: np.ndarray, height: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Index of the nearest higher peak of the same footprint, -1 for the highest.

    The earlier of peaks of one height is the higher; of higher peaks at one distance the highest is taken.
    """
    nearest = np.full(len(y), -1)
    order = np.lexsort((np.arange(len(y)), -height, label))
    _, first, which, size = np.unique(label[order], return_index=True, return_inverse=True, return_counts=True)
    size, highest = size[which], np.arange(len(y)) == first[which]
    order, size, highest = (a[size > 1] for a in (order, size, highest))
    if not len(order):
        return nearest
    # a third coordinate keeps footprints further apart than any two peaks of one: a single tree does for all
    far = float(2 * (np.ptp(y) + np.ptp(x) + 1))
    own = label[order]
    at = np.c_[y[order], x[order], far * own]
    tree, pending, k = cKDTree(at), np.flatnonzero(~highest), 8
    while len(pending):
        # of a footprint's peaks the higher has the smaller rank; most peaks have one among their first neighbours
        k = min(k, int(size[pending].max()))
        distance, rank = tree.query(at[pending], k)
        higher = (rank < pending[:, None]) & (own[rank] == own[pending, None])
        distance_to = np.where(higher, distance, np.inf)
        best = distance_to.min(axis=1)
        # as far as the last neighbour there may be others that were not returned
        found = (best < distance[:, -1]) | (k >= size[pending])
        chosen = np.where(distance_to == best[:, None], rank, len(order)).min(axis=1)
        nearest[order[pending[found]]] = order[chosen[found]]
        pending, k = pending[~found], 4 * k
    return nearest


def subpixel(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Offset of the maximum of the least-squares quadratic through 3 x 3 pixels, at most 0.7 px an axis."""
    p = np.where(np.isfinite(p), p, np.nanmin(p, axis=(1, 2), keepdims=True)) if len(p) else p
    gx = (p[:, :, 2] - p[:, :, 0]).sum(1) / 6
    gy = (p[:, 2, :] - p[:, 0, :]).sum(1) / 6
    hxx = (p[:, :, 2] - 2 * p[:, :, 1] + p[:, :, 0]).sum(1) / 3
    hyy = (p[:, 2, :] - 2 * p[:, 1, :] + p[:, 0, :]).sum(1) / 3
    hxy = (p[:, 2, 2] - p[:, 2, 0] - p[:, 0, 2] + p[:, 0, 0]) / 4
    det = hxx * hyy - hxy**2
    ok = (det > 0) & (hxx < 0)
    safe = np.where(ok, det, 1.0)
    dx = np.where(ok, -(hyy * gx - hxy * gy) / safe, 0.0)
    dy = np.where(ok, -(hxx * gy - hxy * gx) / safe, 0.0)
    return np.clip(dy, -0.7, 0.7), np.clip(dx, -0.7, 0.7)


def _pair(
    y: np.ndarray,
    x: np.ndarray,
    value: np.ndarray,
    footprints: Footprints,
    width: float,
    ratio: float,
) -> Objects:
    """Join each strongest pair of opposite neighbours into one dipole; every other peak stays an object."""
    label = footprints.label
    lobes: list[tuple[int, int]] = []
    positive, negative = np.flatnonzero(value > 0), np.flatnonzero(value < 0)
    if len(positive) and len(negative):
        reach = LOBE_SIGMA * width / 2.3548
        trees = [cKDTree(np.c_[y[k], x[k]]) for k in (positive, negative)]
        near = trees[0].sparse_distance_matrix(trees[1], 2 * reach, output_type="ndarray")
        up, down = positive[near["i"]], negative[near["j"]]
        distance = np.hypot(y[up] - y[down], x[up] - x[down])
        height = np.abs([value[up], value[down]])
        weak = height.min(axis=0)
        like = weak >= ratio * height.max(axis=0)
        close = like & (distance <= reach)
        asked = like & ~close
        close[asked] = _touching(footprints, up[asked], down[asked])
        best = np.lexsort((down, up, distance, -weak))
        taken: set[int] = set()
        for p, n in np.c_[up, down][best[close[best]]].tolist():
            if not taken & {p, n}:
                taken |= {p, n}
                lobes.append((p, n))
    single = np.ones(len(y), bool)
    for p, n in lobes:
        single[[p, n]] = False
    nan = np.full(int(single.sum()), np.nan)
    rows = [y[single], x[single], value[single], label[single].astype(float), nan, nan, nan, nan]
    if lobes:
        p, n = np.array(lobes).T
        high, low = np.abs(value[p]), np.abs(value[n])
        strong = np.where(high >= low, p, n)
        pairs = [
            (high * y[p] + low * y[n]) / (high + low),
            (high * x[p] + low * x[n]) / (high + low),
            value[strong],
            label[strong].astype(float),
            x[p],
            y[p],
            x[n],
            y[n],
        ]
        rows = [np.r_[a, b] for a, b in zip(rows, pairs, strict=True)]
    order = np.lexsort((rows[1], rows[0]))
    yy, xx, vv, ll, *four = (r[order] for r in rows)
    return Objects(yy, xx, vv, ll.astype(int), *four)


def _touching(f: Footprints, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether the footprints of pairs of peaks (n,) touch when each is grown by one pixel.

    A window around the peak of the smaller footprint tells, unless that reaches out of it.
    """
    if not len(one):
        return np.zeros(0, bool)
    area = f.area[f.label]
    small, large = np.where(area[one] <= area[other], (one, other), (other, one))
    windows = to_host(cutouts(f.labels, f.x[small], f.y[small], WINDOW))
    own = windows == f.label[small, None, None]
    grown = own.copy()
    for axis in (1, 2):
        line, grown = np.moveaxis(grown, axis, 2), grown.copy()
        wide = np.moveaxis(grown, axis, 2)
        for step in (1, 2):
            wide[..., step:] |= line[..., :-step]
            wide[..., :-step] |= line[..., step:]
    touch = (grown & (windows == f.label[large, None, None])).any(axis=(1, 2))
    whole = np.count_nonzero(own[:, 2:-2, 2:-2], axis=(1, 2)) == area[small]
    asked = ~touch & ~whole
    touch[asked] = _touching_anywhere(f.labels, len(f.area), f.label[one[asked]], f.label[other[asked]])
    return touch


def _touching_anywhere(labels: Array, count: int, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """`_touching` of pairs of components (n,) with labels below ``count``, by all pixels of the plane."""
    if not len(one):
        return np.zeros(0, bool)
    backend, (h, w) = backend_of(labels), labels.shape
    xp, flat = backend.xp, labels.ravel()
    member = np.zeros(count, bool)
    member[one] = member[other] = True
    index = xp.flatnonzero(backend.asarray(member)[flat])
    steps = np.array([(0, 1), (0, 2), *((dy, dx) for dy in (1, 2) for dx in range(-2, 3))])
    dy, dx = (backend.asarray(a[:, None]) for a in steps.T)
    row, column = index // w + dy, index % w + dx
    inside = (row < h) & (column >= 0) & (column < w)
    a, b = flat[index], flat[xp.where(inside, row * w + column, index)]
    a = xp.broadcast_to(a, b.shape)
    differ = (b > 0) & (b != a)
    # the few pixels of contact come to the host
    a, b = (to_host(v[differ]).astype(np.int64) for v in (a, b))
    met = np.unique(np.minimum(a, b) << 32 | np.maximum(a, b))
    return np.isin(np.minimum(one, other).astype(np.int64) << 32 | np.maximum(one, other), met)


def _catalog(image: Exposure, o: Objects, flags: np.ndarray) -> Catalog:
    """The columns every catalogue starts with; flux and model are filled by `fit`."""
    n = len(o.x)
    unit = image.unit or u.dimensionless_unscaled
    ra, dec = np.full(n, np.nan), np.full(n, np.nan)
    if image.wcs is not None and n:
        ra, dec = sky_positions(image, o.x, o.y)
    columns = {
        "id": np.arange(1, n + 1, dtype=np.int64),
        "x": o.x,
        "y": o.y,
        "ra": ra,
        "dec": dec,
        "flux": np.full(n, np.nan),
        "flux_err": np.full(n, np.nan),
        "snr": o.snr.astype(np.float64),
        "model": np.full(n, "peak", dtype="U8"),
        "flags": flags,
        "x_pos": o.x_pos,
        "y_pos": o.y_pos,
        "x_neg": o.x_neg,
        "y_neg": o.y_neg,
    }
    units = dict.fromkeys(("x", "y", "x_pos", "y_pos", "x_neg", "y_neg"), u.pix)
    units |= {"ra": u.deg, "dec": u.deg, "flux": unit, "flux_err": unit}
    return Catalog.of(columns, units)


def sky_positions(image: Exposure, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ra, dec (degrees, ICRS) of 0-based pixel positions."""
    return icrs_positions(image.wcs, x, y)
