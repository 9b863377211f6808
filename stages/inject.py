# SPDX-License-Identifier: BSD-3-Clause
"""Fake point sources in the science image: what the job finds of them says what it can find at all."""

from __future__ import annotations

from typing import Any

import numpy as np
from astropy import units as u
from pydantic import Field
from scipy.ndimage import shift

from skydelta.errors import InputError
from skydelta.io.catalog import Catalog
from skydelta.io.exposure import Exposure
from skydelta.io.psf import Psf, fwhm
from skydelta.kernels.backend import to_host
from skydelta.kernels.cutouts import Windows, cutouts
from skydelta.kernels.detect import extrema
from skydelta.kernels.significance import matched_filter
from skydelta.stages.base import Context, Port, Stage, StageConfig
from skydelta.stages.detect import sky_positions
from skydelta.stages.robust import median

HOST = 10.0
"""Least signal-to-noise of a star or galaxy that a source is put on."""

MOST_HOSTS = 0.1
"""Part of the stars and galaxies that may get a source: the kernel is fitted on them, and with changes on many of them
the fit, which leaves out a few, is no longer that of the image without sources."""

NEAR_HOST = 0.7
"""Largest distance from it along an axis, FWHM."""

APART = 4.0
"""Least distance from any object of the real catalogue, FWHM."""

TRIES = 30
"""Places tried for each source that is wanted."""

BRIGHT = 20.0
"""Pixels this many sky standard deviations above the sky tell how the variance grows with light."""

SAMPLES = 2e5
"""Pixels of which the sky's variance is the median, about."""


class InjectConfig(StageConfig):
    """How many sources, how bright and where."""

    count: int = Field(200, ge=1, description="Sources to add; fewer where they do not fit.")
    hosts: float = Field(
        0.3,
        ge=0,
        le=1,
        description="Share of them on stars and galaxies of the image, of which at most a tenth get one.",
    )
    snr: tuple[float, float] = Field(
        (2.0, 50.0), description="Faintest and brightest signal-to-noise in blank sky; logarithms are uniform."
    )
    seed: int = Field(0, ge=0, description="Changes the draw, which otherwise follows from the item's name alone.")


class Inject(Stage[InjectConfig]):
    """Add point sources with the local PSF to the science image, with the photon noise of their own.

    Each has a stamp of the PSF to itself: no two overlap. Photon noise is drawn with the gain that the variance plane
    shows, and added to the variance too.

    Raises
    ------
    InputError
        No variance or PSF, or no room for a single source.
    """

    name = "inject"
    version = 2
    inputs = {
        "image": Port(Exposure, "sky-subtracted science image with variance and PSF"),
        "whitened": Port(Exposure, "the whitened difference without them: where it is usable, and how noisy"),
        "catalog": Port(Catalog, "what was found without them; such places are avoided"),
    }
    outputs = {
        "injected": Port(Exposure, "the science image with the sources"),
        "sources": Port(Catalog, "id, x, y, ra, dec, flux, snr and host of each"),
    }

    def halo(self) -> int:
        return 31

    def memory(self, shape: tuple[int, int], kind: str) -> int:
        return shape[0] * shape[1] * 4 * 8

    def run(  # type: ignore[override]
        self, ctx: Context, *, image: Exposure, whitened: Exposure, catalog: Catalog
    ) -> dict[str, Any]:
        if image.variance is None or image.psf is None or whitened.variance is None or whitened.psf is None:
            raise InputError("inject: image and whitened difference need variance and PSF")
        rng = np.random.default_rng([self.config.seed, *ctx.id.encode()])
        x, y, host = self._places(rng, image, image.psf, whitened, catalog)
        if not len(x):
            raise InputError("inject: no place for a source: nothing usable away from what was found")
        if len(x) < self.config.count:
            ctx.flag("fewer_injections", f"{len(x)} of {self.config.count} sources fit into the image")
        error = _sky_errors(whitened, x, y)
        low, high = np.log(self.config.snr)
        flux = error * np.exp(rng.uniform(min(low, high), max(low, high), len(x)))
        per_light = _variance_slope(image)
        if not per_light:
            ctx.flag("no_photon_noise", "the variance does not grow with light: sources are added without noise")
        injected = _with_light(rng, image, x, y, flux, per_light)
        ctx.metric("injected", len(x))
        ctx.metric("injected_on_hosts", int(host.sum()))
        ctx.metric("electrons_per_unit", 1 / per_light if per_light else float("nan"))
        return {"injected": injected, "sources": _table(image, x, y, flux, flux / error, host)}

    def _places(
        self, rng: np.random.Generator, image: Exposure, psf: Psf, whitened: Exposure, catalog: Catalog
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """x, y and whether on a host, in the order of their drawing."""
        (h, w), side = image.shape, max(psf.shape)
        width, margin = fwhm(psf.at((w - 1) / 2, (h - 1) / 2)), side / 2
        found = np.stack([np.asarray(catalog[n].value, float) for n in "xy"], axis=1).reshape(-1, 2)
        wanted, tries = self.config.count, TRIES * self.config.count
        # hosts, each once, then the open field
        snr = matched_filter(image.image, image.variance, image.good(), psf.render)
        py, px, _ = extrema(snr, HOST)
        at = np.stack([px, py], axis=1)[rng.permutation(len(px))]
        near = at + rng.uniform(-NEAR_HOST * width, NEAR_HOST * width, at.shape)
        field = rng.uniform([0, 0], [w - 1, h - 1], (tries, 2))
        taken = np.zeros((0, 2))
        host = np.zeros(0, bool)
        for drawn, limit, is_host in (
            (near, min(round(self.config.hosts * wanted), int(np.ceil(MOST_HOSTS * len(px)))), True),
            (field, wanted, False),
        ):
            inside = drawn[((drawn >= margin) & (drawn <= [w - 1 - margin, h - 1 - margin])).all(axis=1)]
            for place in inside[_usable(whitened, image, inside)]:
                if len(taken) >= limit:
                    break
                free = not len(found) or ((found - place) ** 2).sum(axis=1).min() > (APART * width) ** 2
                # squares of a stamp each: they may touch
                if free and (not len(taken) or np.abs(taken - place).max(axis=1).min() > side + 1):
                    taken, host = np.append(taken, place[None], axis=0), np.append(host, is_host)
        return taken[:, 0], taken[:, 1], host


def _usable(whitened: Exposure, image: Exposure, places: np.ndarray) -> np.ndarray:
    """bool (n,): the middle 5 x 5 pixels hold a difference, and science pixels that are good."""
    if not len(places):
        return np.zeros(0, bool)
    x, y = np.rint(places).astype(int).T
    backend = image.backend
    windows = Windows(image.shape, x, y, 2, backend)
    xp = backend.xp
    good = xp.isfinite(windows.cut(whitened.image, np.nan)) & windows.cut(image.good())
    return to_host(good.all(axis=(1, 2)))


def _sky_errors(whitened: Exposure, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Error of a point source's flux at each place as the whitened difference has it: float64 (n,)."""
    assert whitened.psf is not None
    variance = to_host(cutouts(whitened.variance, np.rint(x), np.rint(y), 0, np.nan)).reshape(-1)
    return np.sqrt(variance.astype(float) / (whitened.psf.render(x, y) ** 2).sum(axis=(1, 2)))


def _variance_slope(image: Exposure) -> float:
    """Growth of the variance with light, 1 / gain in electrons per unit; 0 where it does not grow."""
    assert image.variance is not None
    xp, good = image.backend.xp, image.good()
    every = max(1, int(np.sqrt(image.image.size / SAMPLES)))
    part = np.s_[::every, ::every]
    sky = float(median(to_host(image.variance[part][good[part]])))
    light = xp.where(good & (image.image > np.float32(BRIGHT * np.sqrt(sky))), image.image, 0).astype(np.float64)
    excess = light * xp.where(good, image.variance - np.float32(sky), 0)
    above, norm = (float(to_host(a.sum())) for a in (excess, light * light))
    return max(above / norm, 0.0) if norm > 0 else 0.0


def stamps_at(psf: Psf, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """PSF stamps (n, height, width) about the nearest whole pixels, moved to the places by quintic splines."""
    stamps = psf.render(x, y)
    return np.stack(
        [
            shift(s, (b - np.rint(b), a - np.rint(a)), order=5, mode="grid-constant")
            for s, a, b in zip(stamps, x, y, strict=True)
        ]
    )


def _with_light(
    rng: np.random.Generator, image: Exposure, x: np.ndarray, y: np.ndarray, flux: np.ndarray, per_light: float
) -> Exposure:
    """The image and its variance with sources; ``per_light`` is the growth of the variance."""
    assert image.psf is not None and image.variance is not None
    backend, (ny, nx) = image.backend, image.psf.shape
    light = flux[:, None, None] * stamps_at(image.psf, x, y)
    drawn, spread = light, np.zeros_like(light)
    if per_light:
        # what a measured PSF has below zero has no photons
        spread = np.maximum(light, 0) * per_light
        drawn = light + (rng.poisson(spread / per_light**2) * per_light - np.maximum(light, 0))
    rows = np.rint(y).astype(int)[:, None, None] + np.arange(ny)[:, None] - ny // 2
    columns = np.rint(x).astype(int)[:, None, None] + np.arange(nx) - nx // 2
    index = backend.asarray((rows * image.shape[1] + columns).ravel())
    planes = []
    for plane, added in ((image.image, drawn), (image.variance, spread)):
        new = plane.copy().ravel()
        new[index] += backend.asarray(added.ravel(), np.float32)
        planes.append(new.reshape(image.shape))
    return image.with_(image=planes[0], variance=planes[1])


def _table(
    image: Exposure, x: np.ndarray, y: np.ndarray, flux: np.ndarray, snr: np.ndarray, host: np.ndarray
) -> Catalog:
    n, unit = len(x), image.unit or u.dimensionless_unscaled
    ra, dec = (np.full(n, np.nan),) * 2 if image.wcs is None else sky_positions(image, x, y)
    columns = {"id": np.arange(1, n + 1), "x": x, "y": y, "ra": ra, "dec": dec, "flux": flux, "snr": snr, "host": host}
    return Catalog.of(columns, {"x": u.pix, "y": u.pix, "ra": u.deg, "dec": u.deg, "flux": unit})
