# SPDX-License-Identifier: BSD-3-Clause
"""Scoring of a difference against the simulator's truth, and the perfect difference to compare it with.

The perfect difference knows the noise-free sky and the true kernel: what is left in it is noise and what changed. A
real difference of the same pixels contains the same noise, so figures are compared pairwise and their scatter cancels.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from scipy.fft import irfft2, next_fast_len, rfft2
from scipy.ndimage import binary_dilation, maximum_filter

from skydelta.pipeline.simulate import Scene

BLOCK = 64
"""Side of the background blocks, px."""


@dataclass(frozen=True)
class Planes:
    """A difference: image, its variance and its signal-to-noise plane, (H, W), NaN where unusable."""

    image: np.ndarray
    variance: np.ndarray
    score: np.ndarray


@dataclass(frozen=True)
class Figures:
    """The figures of one difference; 1 is perfect unless said otherwise.

    Attributes
    ----------
    noise_std
        Robust std of D over the true noise in blank sky.
    own_noise_std
        The same over the difference's own variance.
    background_rms
        Of the medians of `BLOCK` px blocks of blank sky, ADU; 0 is perfect.
    chi2_stars, chi2_bright
        Median of the mean (D / noise)^2 in 9 x 9 px on stars, and on the brightest tenth.
    found, expected
        Transients with S/N of 5 or more found as peaks of the score, and how many there are.
    false_positive, false_negative
        Peaks of the score beyond 5 that belong to no change; 0 is perfect.
    flux_ratio
        Forced PSF flux over the true flux, weighted by S/N squared.
    score_std
        Robust std of the score in blank sky.
    blank
        Fraction of the field the noise figures rest on.
    """

    noise_std: float
    own_noise_std: float
    background_rms: float
    chi2_stars: float
    chi2_bright: float
    found: int
    expected: int
    false_positive: int
    false_negative: int
    flux_ratio: float
    score_std: float
    blank: float


def robust_std(a: np.ndarray) -> float:
    return float(1.4826 * np.median(np.abs(a - np.median(a))))


def usable(scene: Scene) -> np.ndarray:
    """bool (H, W): pixels that neither file flags."""
    return (scene.science.mask == 0) & (scene.reference.mask == 0)


def matching_kernel(scene: Scene, x: float, y: float, half: int = 24) -> np.ndarray:
    """The true kernel of a scene on one grid at (x, y), flux ratio and registration error included."""
    wide, n = 40, 96
    (dx,), (dy,) = (a - b for a, b in zip(scene.transform(np.array([x]), np.array([y])), ([x], [y]), strict=True))
    f = np.fft.fftfreq(n)
    back = np.exp(2j * np.pi * (f[None, :] * dx + f[:, None] * dy))
    s, r = (np.fft.fft2(_at_corner(frame.psf.stamp(x, y, wide), n)) for frame in (scene.science, scene.reference))
    kernel = np.fft.ifft2(scene.config.flux_ratio * s / r * back).real
    return np.roll(kernel, (half, half), (0, 1))[: 2 * half + 1, : 2 * half + 1]


def perfect_difference(scene: Scene, tiles: int = 8, half: int = 24, reach: int = 24) -> Planes:
    """Science minus true kernel times reference, both without their static sky, tile by tile.

    The score is the optimal linear filter for this noise: D through conj(P) / (V_S + V_R |K|^2) with the levels of the
    tile, over the exact standard deviation of that sum given every pixel's own variance.
    """
    if not scene.config.same_grid:
        raise ValueError("the perfect difference needs a scene simulated with same_grid=True")
    ok = usable(scene)
    shape = ok.shape
    noise = [np.where(ok, f.image - f.static, 0.0) for f in (scene.science, scene.reference)]
    variance = [np.where(ok, f.variance, 0.0).astype(float) for f in (scene.science, scene.reference)]
    edges = [np.linspace(0, length, tiles + 1).astype(int) for length in shape]
    pad = half + 2 * reach
    size = next_fast_len(max(int(np.diff(e).max()) for e in edges) + 2 * pad, True)
    padded = [np.pad(a, ((pad, size), (pad, size))) for a in (*noise, *variance)]
    out = [np.full(shape, np.nan) for _ in range(3)]

    def forward(a: np.ndarray) -> np.ndarray:
        return rfft2(a, (size, size))

    def back(a: np.ndarray) -> np.ndarray:
        return irfft2(a, (size, size))

    for y0, y1 in zip(edges[0][:-1], edges[0][1:], strict=True):
        for x0, x1 in zip(edges[1][:-1], edges[1][1:], strict=True):
            window = np.s_[y0 : y0 + size, x0 : x0 + size]
            science, reference, v_science, v_reference = (forward(p[window]) for p in padded)
            x, y = (x0 + x1 - 1) / 2, (y0 + y1 - 1) / 2
            stamp = matching_kernel(scene, x, y, half)
            kernel = forward(_at_corner(stamp, size))
            psf = forward(_at_corner(scene.science.psf.stamp(x, y, reach), size))
            levels = [np.median(p[window][p[window] > 0]) for p in padded[2:]]
            d = science - kernel * reference
            weight = np.conj(psf) / (levels[0] + levels[1] * np.abs(kernel) ** 2)
            spread = back(forward(back(weight) ** 2) * v_science + forward(back(weight * kernel) ** 2) * v_reference)
            values = (
                back(d),
                back(v_science + forward(_at_corner(stamp**2, size)) * v_reference),
                back(d * weight) / np.sqrt(np.maximum(spread, 1e-30)),
            )
            core, here = np.s_[pad : pad + y1 - y0, pad : pad + x1 - x0], np.s_[y0:y1, x0:x1]
            for plane, value in zip(out, values, strict=True):
                plane[here] = np.where(ok[here], value[core], np.nan)
    return Planes(*out)


def measure(scene: Scene, planes: Planes, noise: np.ndarray | None = None, edge: int = 30) -> Figures:
    """The figures of a difference on the science grid, in science ADU.

    Parameters
    ----------
    planes : Planes
    noise : (H, W), optional
        True variance of D (that of the perfect difference); its own if missing.
    edge : int
        Border left out, px.
    """
    noise = planes.variance if noise is None else noise
    valid = usable(scene) & np.isfinite(planes.image) & np.isfinite(noise) & (noise > 0)
    valid[:edge] = valid[-edge:] = valid[:, :edge] = valid[:, -edge:] = False
    z = np.where(valid, planes.image / np.sqrt(np.where(valid, noise, 1)), 0)
    blank = valid & ~_sources(scene)
    own = blank & np.isfinite(planes.variance) & (planes.variance > 0)
    scored = blank & np.isfinite(planes.score)
    chi2, bright = _at_stars(scene, z, valid)
    found, expected, false = _peaks(scene, np.where(np.isfinite(planes.score) & valid, planes.score, 0), valid)
    return Figures(
        noise_std=robust_std(z[blank]),
        own_noise_std=robust_std(planes.image[own] / np.sqrt(planes.variance[own])),
        background_rms=_background(planes.image, blank),
        chi2_stars=chi2,
        chi2_bright=bright,
        found=found,
        expected=expected,
        false_positive=false[0],
        false_negative=false[1],
        flux_ratio=_flux_ratio(scene, planes.image, valid),
        score_std=robust_std(planes.score[scored]),
        blank=float(blank.mean()),
    )


def shortfalls(product: Figures, perfect: Figures) -> list[str]:
    """What a difference misses of the accuracy the package promises, in words; empty when it keeps it all."""
    p, q = product, perfect
    limits = {
        "noise_std within 0.01 of 1": abs(p.noise_std - 1) <= 0.01,
        "background_rms at most 1.08 x the perfect one": p.background_rms <= 1.08 * q.background_rms,
        "chi2_stars within 0.03 of the perfect one": abs(p.chi2_stars - q.chi2_stars) <= 0.03,
        "chi2_bright at most 0.08 above the perfect one": p.chi2_bright - q.chi2_bright <= 0.08,
        "found at most 1 fewer": p.found >= q.found - 1,
        "false_positive at most 1 more": p.false_positive <= q.false_positive + 1,
        "false_negative at most 1 more": p.false_negative <= q.false_negative + 1,
        "flux_ratio within 0.005 of the perfect one": abs(p.flux_ratio - q.flux_ratio) <= 0.005,
        "score_std within 0.02 of 1": abs(p.score_std - 1) <= 0.02,
    }
    values = {k: (v, asdict(q)[k]) for k, v in asdict(p).items()}
    return [f"{rule}: {values[rule.split()[0]]}" for rule, kept in limits.items() if not kept]


def _at_corner(stamp: np.ndarray, size: int) -> np.ndarray:
    """An odd stamp wrapped around pixel (0, 0) of a size x size array."""
    out = np.zeros((size, size))
    h, w = stamp.shape
    out[:h, :w] = stamp
    return np.roll(out, (-(h // 2), -(w // 2)), (0, 1))


def _sources(scene: Scene) -> np.ndarray:
    """bool (H, W): pixels whose expected light above the sky exceeds a tenth of the noise in either image."""
    out = np.zeros(scene.science.image.shape, bool)
    for frame in (scene.science, scene.reference):
        light = frame.model - frame.sky
        sky_noise = np.sqrt(np.nanmedian(frame.variance))
        out |= light > 0.1 * sky_noise
    return binary_dilation(out | ~usable(scene), iterations=8)


def _background(image: np.ndarray, blank: np.ndarray) -> float:
    h, w = image.shape
    medians = []
    for y in range(0, h - BLOCK + 1, BLOCK):
        for x in range(0, w - BLOCK + 1, BLOCK):
            box = np.s_[y : y + BLOCK, x : x + BLOCK]
            if blank[box].sum() > 300:
                medians.append(np.median(image[box][blank[box]]))
    return float(np.std(medians))


def _at_stars(scene: Scene, z: np.ndarray, valid: np.ndarray) -> tuple[float, float]:
    x, y, flux = (scene.stars[name].value for name in ("x", "y", "flux"))
    changed = np.column_stack([scene.changes["x"].value, scene.changes["y"].value])
    chi2, bright = [], []
    for xs, ys, f in zip(x, y, flux, strict=True):
        i, j = round(float(xs)), round(float(ys))
        box = np.s_[max(j - 4, 0) : j + 5, max(i - 4, 0) : i + 5]
        if f < 2500 or valid[box].shape != (9, 9) or not valid[box].all():
            continue
        if len(changed) and np.hypot(*(changed - (xs, ys)).T).min() < 20:
            continue
        chi2.append(np.mean(z[box] ** 2))
        bright.append(f)
    values = np.array(chi2)
    top = np.array(bright) >= np.quantile(bright, 0.9)
    return float(np.median(values)), float(np.median(values[top]))


def _peaks(scene: Scene, score: np.ndarray, valid: np.ndarray) -> tuple[int, int, tuple[int, int]]:
    where = valid & ~binary_dilation(~valid, iterations=6)
    truth = scene.changes
    at = np.column_stack([truth["x"].value, truth["y"].value])
    reach = np.where(truth["kind"] == "dipole", 8.0, 4.0)
    found = expected = 0
    false = []
    for sign in (1, -1):
        plane = sign * score
        peak = np.argwhere((maximum_filter(plane, 7) == plane) & (plane > 5) & where)[:, ::-1]
        distance = np.hypot(*(at[:, None] - peak[None, :]).transpose(2, 0, 1)) if len(at) else np.empty((0, len(peak)))
        false.append(int((~(distance < reach[:, None]).any(axis=0)).sum()))
        for k, row in enumerate(truth):
            usable_here = where[round(float(at[k, 1])), round(float(at[k, 0]))]
            if row["kind"] == "transient" and sign * row["flux"] > 0 and row["snr"] >= 5 and usable_here:
                expected += 1
                found += bool(len(peak)) and distance[k].min() < 2
    return int(found), expected, (false[0], false[1])


def _flux_ratio(scene: Scene, image: np.ndarray, valid: np.ndarray) -> float:
    weights = ratios = 0.0
    half = 8
    for row in scene.changes[scene.changes["kind"] == "transient"]:
        x, y, flux = (float(row[n].value) for n in ("x", "y", "flux"))
        i, j = round(x), round(y)
        box = np.s_[j - half : j + half + 1, i - half : i + half + 1]
        if valid[box].shape != (2 * half + 1, 2 * half + 1) or not valid[box].all():
            continue
        p = scene.science.psf.stamp(x, y, half, x - i, y - j)
        ratios += row["snr"] ** 2 * np.sum(image[box] * p) / np.sum(p * p) / flux
        weights += row["snr"] ** 2
    return float(ratios / weights) if weights else float("nan")
