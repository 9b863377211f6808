# SPDX-License-Identifier: BSD-3-Clause
"""What the simulator puts on the sky, where each exposure sees it, and what changed in between."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from astropy import units as u
from astropy.table import QTable
from astropy.wcs import WCS, Sip
from pydantic import ConfigDict, Field, field_validator
from scipy.spatial import KDTree

from skydelta.errors import InputError
from skydelta.io.field import Domain, polynomial_terms
from skydelta.io.psf import PixelPsf
from skydelta.kernels.cpu.jit import serial
from skydelta.stages.base import StageConfig

log = logging.getLogger(__name__)

ROLES = ("science", "reference")

BETA = 3.5
"""Moffat index; a half-integer needs only multiplications and a square root, which are the same on every machine."""

PIXEL_SCALE = 0.3 / 3600
"""Degrees per pixel of both exposures."""

POINTING = (150.1, 2.2)
"""Right ascension and declination of the middle of the science image, degrees."""

STAR_FLUX = (350.0, 2.5e5)
"""Faintest and brightest unsaturated star, science ADU."""

STAR_SLOPE = 0.85
"""Cumulative star counts fall as flux to this negative power."""

TRANSIENT_SNR = (4.0, 60.0)
"""Range of the transients' signal-to-noise in the difference, logarithmically uniform."""

NODES = np.array([-np.sqrt(0.15), 0.0, np.sqrt(0.15)])
"""Three-point Gauss-Legendre nodes over one pixel; their weights are 5, 8, 5 over 18."""

NODE_WEIGHTS = np.array([5.0, 8.0, 5.0]) / 18.0


Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Side = Annotated[int, Field(ge=128)]  # smaller ones have no place away from the edges
Seeing = Annotated[float, Field(gt=0, le=100)]  # wider ones would be cut where drawing stops


class SimulationConfig(StageConfig):
    """What is simulated; pairs are (science, reference)."""

    model_config = ConfigDict(allow_inf_nan=False)
    only_where: ClassVar = {"offset": {"same_grid": (False,)}, "rotation": {"same_grid": (False,)}}

    size: tuple[Side, Side] = Field(
        (1024, 1024), description="Height and width of both images, px; one number: square."
    )
    seed: int = Field(1, ge=0, description="Seed of everything random.")
    stars: int | None = Field(None, ge=0, description="Number of stars; 600 per megapixel if unset.")
    galaxies: int | None = Field(None, ge=0, description="Number of galaxies; 30 per megapixel if unset.")
    transients: int | None = Field(
        None,
        ge=0,
        description="New and vanished point sources; if unset 25 per megapixel, at least 6 where they find room.",
    )
    dipoles: int | None = Field(None, ge=0, description="Stars that moved by 0.4 to 2 px; 4 per megapixel if unset.")
    saturated: int | None = Field(None, ge=0, description="Number of saturated stars; 5 per megapixel if unset.")
    same_grid: bool = Field(False, description="Are both images on one pixel grid? Then offset and rotation are zero.")
    offset: tuple[float, float] = Field((4.3, -2.7), description="Dither of the reference along x and y, px.")
    rotation: float = Field(0.05, description="Rotation of the reference about its middle, degrees.")
    distortion: bool = Field(False, description="Do both images carry a (different) SIP distortion of about 2 px?")
    wcs_error: tuple[float, float] = Field(
        (0.0, 0.0), description="Error of the reference's WCS along x and y, px: the header lies, the pixels do not."
    )
    registration_rms: float = Field(
        0.02, ge=0, description="Smooth registration error that no WCS knows, px root mean square."
    )
    flux_ratio: float = Field(
        0.8, gt=0, description="Counts of a constant source in the science image over those in the reference."
    )
    seeing: tuple[Seeing, Seeing] = Field(
        (3.8, 2.9), description="FWHM of the two PSFs in the middle of the field, px."
    )
    sky: tuple[NotNegative, NotNegative] = Field((400.0, 120.0), description="Sky levels, ADU.")
    gain: tuple[Positive, Positive] = Field((1.5, 1.5), description="Gains, electrons per ADU.")
    read_noise: tuple[NotNegative, NotNegative] = Field((6.0, 3.0), description="Read noises, electrons.")
    saturation: tuple[Positive, Positive] = Field((50000.0, 50000.0), description="Saturation levels, ADU.")
    defects: bool = Field(True, description="Bad pixels, cosmic rays and a patch without data, all flagged in DQ?")
    variance: bool = Field(True, description="Write the model variance (VAR)? Otherwise only gain and read noise.")
    psf: bool = Field(False, description="Write the PSF of each image (PSF), a polynomial over the field?")
    compress: bool = Field(False, description="Tile-compress the planes without loss?")

    @field_validator("size", mode="before")
    @classmethod
    def _square(cls, size: Any) -> Any:
        """One number means a square image."""
        if isinstance(size, int):
            return size, size
        if not isinstance(size, tuple | list) or len(size) != 2:
            raise ValueError("one integer, or two, height and width, are needed")
        return size

    def count(self, name: str) -> int:
        """The number of objects of a kind: as given, or by area."""
        per_megapixel, least = {
            "stars": (600, 40),
            "galaxies": (30, 2),
            "transients": (25, 6),
            "dipoles": (4, 0),
            "saturated": (5, 0),
        }[name]
        given = getattr(self, name)
        return given if given is not None else max(least, round(per_megapixel * self.size[0] * self.size[1] / 1e6))


@dataclass(frozen=True)
class PsfField:
    """Elliptical Moffat PSF whose width and shape are quadratic in the field position.

    Attributes
    ----------
    fwhm : float
        In the middle of the field, px.
    width : (float, float, float, float)
        Relative change of the FWHM with u, v, u^2 + v^2 and u v.
    e1, e2 : (float, float, float)
        Ellipticity components: constant, u, v.
    shape : (int, int)
        Image (height, width) that u, v in [-1, 1] refer to.
    """

    fwhm: float
    width: tuple[float, float, float, float]
    e1: tuple[float, float, float]
    e2: tuple[float, float, float]
    shape: tuple[int, int]

    def parameters(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Moffat radius squared and the unit-determinant matrix (m_xx, m_xy, m_yy) of r^2: float64 (n, 4)."""
        h, w = self.shape
        a, b = (2 * np.asarray(x, float) + 1) / w - 1, (2 * np.asarray(y, float) + 1) / h - 1
        fwhm = self.fwhm * (
            1 + self.width[0] * a + self.width[1] * b + self.width[2] * (a * a + b * b) + self.width[3] * a * b
        )
        e1 = self.e1[0] + self.e1[1] * a + self.e1[2] * b
        e2 = self.e2[0] + self.e2[1] * a + self.e2[2] * b
        unit = 1 / np.sqrt(1 - e1 * e1 - e2 * e2)
        alpha2 = fwhm**2 / (4 * (2 ** (1 / BETA) - 1))
        return np.stack([alpha2, unit * (1 - e1), -unit * e2, unit * (1 + e1)], axis=-1)

    def stamp(self, x: float, y: float, half: int, dx: float = 0.0, dy: float = 0.0) -> np.ndarray:
        """PSF at (x, y) centred on the middle pixel + (dx, dy): float64 (2 half + 1, 2 half + 1), sum just below 1."""
        out = np.zeros((2 * half + 1, 2 * half + 1))
        one = np.ones(1)
        _draw(
            out, half + dx * one, half + dy * one, one, np.array([half]), self.parameters(np.array([x]), np.array([y]))
        )
        return out

    def pixels(self, half: int = 20, order: int = 4, nodes: int = 9) -> PixelPsf:
        """The PSF as pixels that are polynomials over the field, fitted on a grid of ``nodes`` x ``nodes`` stamps."""
        y, x = (
            g.ravel()
            for g in np.meshgrid(*((np.arange(nodes) + 0.5) * n / nodes - 0.5 for n in self.shape), indexing="ij")
        )
        stamps = np.array([self.stamp(*at, half) for at in zip(x, y, strict=True)])
        domain = Domain.of(self.shape)
        terms = polynomial_terms(*domain.uv(x, y), order)
        coefficients = np.linalg.lstsq(terms.T, stamps.reshape(len(x), -1), rcond=None)[0]
        return PixelPsf(coefficients.reshape(-1, *stamps.shape[1:]), order, domain)


@serial
def _draw(image, x, y, flux, half, psf):
    """Add pixel-integrated Moffat sources to float64 (H, W) in place; psf rows as `PsfField.parameters`."""
    h, w = image.shape
    for k in range(x.size):
        alpha2, mxx, mxy, myy = psf[k]
        peak = flux[k] * (BETA - 1) / (np.pi * alpha2)
        ix, iy = int(np.floor(x[k] + 0.5)), int(np.floor(y[k] + 0.5))
        for j in range(max(iy - half[k], 0), min(iy + half[k] + 1, h)):
            for i in range(max(ix - half[k], 0), min(ix + half[k] + 1, w)):
                total = 0.0
                for b in range(3):
                    dy = j + NODES[b] - y[k]
                    for a in range(3):
                        dx = i + NODES[a] - x[k]
                        t = 1 + (mxx * dx * dx + 2 * mxy * dx * dy + myy * dy * dy) / alpha2
                        total += NODE_WEIGHTS[a] * NODE_WEIGHTS[b] / (t * t * t * np.sqrt(t))
                image[j, i] += peak * total


def _grid(config: SimulationConfig, role: str) -> WCS:
    """The true world coordinate system of an exposure: TAN, or TAN-SIP with ``distortion``."""
    h, w = config.size
    moved = role == "reference" and not config.same_grid
    angle = np.deg2rad(1.3 + (config.rotation if moved else 0.0))
    dx, dy = config.offset if moved else (0.0, 0.0)
    wcs = WCS(naxis=2)
    wcs.wcs.ctype = ["RA---TAN", "DEC--TAN"]
    wcs.wcs.crval = POINTING
    wcs.wcs.crpix = [(w + 1) / 2 + dx, (h + 1) / 2 + dy]
    wcs.wcs.cd = PIXEL_SCALE * np.array([[-np.cos(angle), np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    wcs.wcs.radesys = "ICRS"
    if config.distortion:
        sign = -1.0 if moved else 1.0
        scale = 2.0 / (max(h, w) / 2) ** 2
        a, b = np.zeros((4, 4)), np.zeros((4, 4))
        a[2, 0], a[1, 1], a[0, 3] = scale, sign * 0.4 * scale, 0.3 * scale / max(h, w)
        b[0, 2], b[1, 1], b[3, 0] = -sign * 0.8 * scale, 0.5 * scale, -0.4 * scale / max(h, w)
        wcs.wcs.ctype = ["RA---TAN-SIP", "DEC--TAN-SIP"]
        wcs.sip = Sip(a, b, None, None, wcs.wcs.crpix)
    wcs.wcs.set()
    return wcs


class SkyField:
    """Where sources land in each exposure and how they look there."""

    def __init__(self, config: SimulationConfig) -> None:
        self.config = config
        self.wcs = {role: _grid(config, role) for role in ROLES}
        shape = config.size
        self.psf = {
            "science": PsfField(
                config.seeing[0], (0.06, -0.04, 0.07, -0.03), (0.03, 0.05, 0.01), (-0.02, 0.01, 0.05), shape
            ),
            "reference": PsfField(
                config.seeing[1], (-0.04, 0.03, 0.05, 0.02), (-0.02, 0.01, 0.03), (0.02, -0.03, 0.0), shape
            ),
        }
        self._phase = np.random.default_rng([config.seed, 9]).uniform(0, 2 * np.pi, 4)

    def transform(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Reference position (px) of sources at science positions (x, y)."""
        x, y = np.asarray(x, float), np.asarray(y, float)
        rx, ry = x, y
        if not self.config.same_grid and x.size:
            rx, ry = self.wcs["reference"].all_world2pix(*self.wcs["science"].all_pix2world(x, y, 0), 0, tolerance=1e-8)
        h, w = self.config.size
        a, b = (2 * x + 1) / w - 1, (2 * y + 1) / h - 1
        p, rms = self._phase, self.config.registration_rms
        return (
            rx + rms * (np.sin(2.1 * a + b + p[0]) + np.cos(a - 1.9 * b + p[1])),
            ry + rms * (np.sin(1.2 * a - 2 * b + p[2]) + np.cos(2 * a + 0.8 * b + p[3])),
        )

    def header_wcs(self, role: str) -> WCS:
        """The WCS as the file states it."""
        wcs = self.wcs[role].deepcopy()
        if role == "reference" and any(self.config.wcs_error):
            wcs.wcs.crpix = wcs.wcs.crpix + np.array(self.config.wcs_error)
            if wcs.sip is not None:
                wcs.sip = Sip(wcs.sip.a, wcs.sip.b, None, None, wcs.wcs.crpix)
            wcs.wcs.set()
        return wcs

    def noise(self, role: str) -> float:
        """Standard deviation of blank sky, ADU."""
        k = ROLES.index(role)
        gain = self.config.gain[k]
        return float(np.sqrt(self.config.sky[k] * gain + self.config.read_noise[k] ** 2) / gain)

    def draw(self, role: str, x: np.ndarray, y: np.ndarray, flux: np.ndarray) -> np.ndarray:
        """Sources at science positions with science fluxes (ADU) as this exposure sees them: float64 (H, W)."""
        out = np.zeros(self.config.size)
        if not len(x):
            return out
        if role == "reference":
            x, y = self.transform(x, y)
            flux = flux / self.config.flux_ratio
        psf = self.psf[role].parameters(x, y)
        # far wings fall as r^-7: draw until they are below a five-hundredth of the noise
        excess = np.abs(flux) * (BETA - 1) / (np.pi * psf[:, 0]) / (0.002 * max(self.noise(role), 1e-3))
        half = np.clip(np.ceil(np.sqrt(psf[:, 0]) * excess ** (1 / 7)), 20, 250).astype(np.int64)
        _draw(out, np.asarray(x, float), np.asarray(y, float), np.asarray(flux, float), half, psf)
        return out

    def unit_snr(self, models: dict[str, np.ndarray], x: float, y: float, dx: float = 0.0, dy: float = 0.0) -> float:
        """Best possible signal-to-noise, in the difference, of a source of 1 ADU at science position (x, y).

        With dx, dy it is a dipole: the same source that was at (x - dx, y - dy) in the reference. The noise is that of
        the local static sky: for white noise of variance V_S and V_R in the two images the matched filter reaches
        S/N^2 = mean over frequencies of |P|^2 / (V_S + V_R |K|^2) times the number of pixels, K the matching kernel.
        """
        half, size = 24, 50
        rx, ry = (float(a[0]) for a in self.transform(np.array([x]), np.array([y])))
        at = {"science": (x, y), "reference": (rx, ry)}
        transfer, level = {}, {}
        for k, role in enumerate(ROLES):
            stamp = self.psf[role].stamp(*at[role], half)
            full = np.zeros((size, size))
            full[: 2 * half + 1, : 2 * half + 1] = stamp
            transfer[role] = np.abs(np.fft.fft2(full)) ** 2
            j, i = round(at[role][1]), round(at[role][0])
            counts = np.median(models[role][max(j - 2, 0) : j + 3, max(i - 2, 0) : i + 3])
            gain = self.config.gain[k]
            level[role] = (max(counts, 0.0) * gain + self.config.read_noise[k] ** 2) / gain**2
        level["reference"] *= self.config.flux_ratio**2
        signal = transfer["science"]
        if dx or dy:
            f = np.fft.fftfreq(size)
            signal = signal * 4 * np.sin(np.pi * (f[None, :] * dx + f[:, None] * dy)) ** 2
        p, r = transfer["science"], transfer["reference"]
        return float(np.sqrt(np.mean(signal * r / (level["science"] * r + level["reference"] * p))))


@dataclass(frozen=True)
class Static:
    """Constant sources: first the ``stars``, then the ``saturated`` ones, then the points that galaxies are made of."""

    x: np.ndarray
    y: np.ndarray
    flux: np.ndarray
    stars: int
    saturated: int
    galaxies: np.ndarray

    def table(self, field: SkyField) -> QTable:
        x, y = self.x[: self.stars], self.y[: self.stars]
        rx, ry = field.transform(x, y)
        ra, dec = _sky_position(field, x, y)
        pixel, flux = u.pix, self.flux[: self.stars] * u.adu
        return QTable(
            {
                "x": x * pixel,
                "y": y * pixel,
                "x_reference": rx * pixel,
                "y_reference": ry * pixel,
                "ra": ra * u.deg,
                "dec": dec * u.deg,
                "flux": flux,
            }
        )


def static_sources(rng: np.random.Generator, config: SimulationConfig) -> Static:
    """Stars and galaxies over the science field and the margin that the reference sees beyond it."""
    h, w = config.size
    reach = (
        0
        if config.same_grid
        else float(np.ceil(np.hypot(*config.offset) + abs(np.sin(np.deg2rad(config.rotation))) * max(h, w)))
    )
    margin = 20 + reach
    crowd = (h + 2 * margin) * (w + 2 * margin) / (h * w)

    def scatter(count: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.uniform(-margin, w - 1 + margin, count), rng.uniform(-margin, h - 1 + margin, count)

    # unit densities refer to the science image: the margin gets its share on top
    n_star = round(config.count("stars") * crowd)
    low, high = STAR_FLUX
    fraction = rng.uniform(0, 1, n_star)
    star_flux = low * (1 - fraction * (1 - (low / high) ** STAR_SLOPE)) ** (-1 / STAR_SLOPE)
    parts = [(*scatter(n_star), star_flux)]
    n_saturated = config.count("saturated")
    if n_saturated:
        bright = 10 ** rng.uniform(6.1, 6.9, n_saturated)
        parts.append((rng.uniform(0, w - 1, n_saturated), rng.uniform(0, h - 1, n_saturated), bright))
    centres = np.empty((0, 2))
    if n_galaxy := round(config.count("galaxies") * crowd):
        centres = np.column_stack(scatter(n_galaxy))
        parts.extend(_galaxy(rng, x, y) for x, y in centres)
    x, y, flux = (np.concatenate(c) for c in zip(*parts, strict=True))
    return Static(x, y, flux, n_star, n_saturated, centres)


def _galaxy(rng: np.random.Generator, x: float, y: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An inclined exponential disc as equal points at its radial quantiles along a golden spiral."""
    n = 90
    scale, flux = rng.uniform(1.2, 3.2), 10 ** rng.uniform(3.2, 4.8)
    axis_ratio, angle, start = rng.uniform(0.3, 1.0), rng.uniform(0, np.pi), rng.uniform(0, 2 * np.pi)
    radius = np.linspace(0.02, 8.0, 400)
    inside = 1 - np.exp(-radius) * (1 + radius)
    r = scale * np.interp((np.arange(n) + 0.5) / n, inside, radius)
    t = start + np.arange(n) * np.pi * (3 - np.sqrt(5))
    a, b = r * np.cos(t), axis_ratio * r * np.sin(t)
    return (
        x + a * np.cos(angle) - b * np.sin(angle),
        y + a * np.sin(angle) + b * np.cos(angle),
        np.full(n, flux / n),
    )


@dataclass(frozen=True)
class Changes:
    """Rows of the truth table; flux is negative for what vanished, dx and dy belong to dipoles."""

    kind: np.ndarray
    x: np.ndarray
    y: np.ndarray
    flux: np.ndarray
    snr: np.ndarray
    host: np.ndarray
    dx: np.ndarray
    dy: np.ndarray

    def sources(self, role: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Positions in the science frame and science fluxes of what this exposure sees."""
        dipole = self.kind == "dipole"
        seen = dipole | ((self.flux > 0) == (role == "science"))
        back = role == "reference"
        return (self.x - back * self.dx)[seen], (self.y - back * self.dy)[seen], np.abs(self.flux[seen])

    def table(self, field: SkyField) -> QTable:
        ra, dec = _sky_position(field, self.x, self.y)
        return QTable(
            {
                "kind": self.kind,
                "x": self.x * u.pix,
                "y": self.y * u.pix,
                "ra": ra * u.deg,
                "dec": dec * u.deg,
                "flux": self.flux * u.adu,
                "snr": self.snr,
                "host": self.host,
                "dx": self.dx * u.pix,
                "dy": self.dy * u.pix,
            }
        )


def make_changes(rng: np.random.Generator, field: SkyField, static: Static, models: dict[str, np.ndarray]) -> Changes:
    """Every fourth transient sits on a galaxy, every fifth is a source that vanished; none near what saturates."""
    config = field.config
    h, w = config.size
    n_star, n_saturated = static.stars, static.saturated
    star = np.column_stack([static.x[:n_star], static.y[:n_star]])
    bright = star[static.flux[:n_star] > 2e4]
    saturated = np.column_stack([static.x, static.y])[n_star : n_star + n_saturated]
    inside = (static.galaxies > 40).all(axis=1) & (static.galaxies < (w - 40, h - 40)).all(axis=1)
    hosts = static.galaxies[inside]
    clear = min(90.0, min(h, w) / 6)
    limits = tuple((KDTree(points), least) for points, least in ((star, 4.0), (bright, 15.0), (saturated, clear)))
    rows: list[tuple[object, ...]] = []
    taken = np.empty((0, 2))

    def free(p: np.ndarray) -> bool:
        if not ((p > 25).all() and p[0] < w - 26 and p[1] < h - 26):
            return False
        if np.hypot(*(taken - p).T).min(initial=np.inf) <= 30 or any(
            tree.query(p)[0] <= least for tree, least in limits
        ):
            return False
        rx, ry = field.transform(p[:1], p[1:])
        return bool(25 < rx[0] < w - 26 and 25 < ry[0] < h - 26)

    asked = {"transient": config.transients is not None, "dipole": config.dipoles is not None}
    kinds = ["transient"] * config.count("transients") + ["dipole"] * config.count("dipoles")
    for k, kind in enumerate(kinds):
        on_host = kind == "transient" and k % 4 == 3 and len(hosts) > 0
        for _ in range(2000):
            p = np.array([rng.uniform(25, w - 26), rng.uniform(25, h - 26)])
            if on_host:
                p = hosts[rng.integers(len(hosts))] + rng.normal(0, 2.5, 2)
            if free(p):
                break
        else:
            if not asked[kind]:
                continue  # small images have as many as find room, unless a number was asked for
            raise InputError(
                f"simulate: no room for change {k + 1} of {len(kinds)} in {h} x {w} px; give fewer transients, "
                "dipoles or stars, or a larger size"
            )
        taken = np.vstack([taken, p])
        x, y = (float(c) for c in p)
        if kind == "dipole":
            r, t = rng.uniform(0.4, 2.0), rng.uniform(0, 2 * np.pi)
            dx, dy = float(r * np.cos(t)), float(r * np.sin(t))
            flux = float(10 ** rng.uniform(3.5, 4.7))
            rows.append((kind, x, y, flux, flux * field.unit_snr(models, x, y, dx, dy), False, dx, dy))
        else:
            snr = float(np.exp(rng.uniform(*np.log(TRANSIENT_SNR))))
            flux = snr / field.unit_snr(models, x, y) * (-1 if k % 5 == 2 else 1)
            rows.append((kind, x, y, flux, snr, on_host, 0.0, 0.0))
    if kinds and not rows:
        raise InputError(
            f"simulate: no room for any change in {h} x {w} px; give fewer stars, a larger size, or transients = 0 and "
            "dipoles = 0"
        )
    if len(rows) < len(kinds):
        log.warning(
            "simulate: room for %d of %d changes in %d x %d px; fewer stars or a larger size make more",
            len(rows), len(kinds), h, w,
        )  # fmt: skip
    columns = list(zip(*rows, strict=True)) if rows else [()] * 8
    types: tuple[Any, ...] = ("U9", float, float, float, float, bool, float, float)
    return Changes(*(np.array(c, t) for c, t in zip(columns, types, strict=True)))


def _sky_position(field: SkyField, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if not len(x):
        return np.empty(0), np.empty(0)
    ra, dec = field.wcs["science"].all_pix2world(x, y, 0)
    return ra, dec
