# SPDX-License-Identifier: BSD-3-Clause
"""A seeded simulator: two exposures of one field, with everything that changed between them known.

Stars, galaxies, transients and moved stars are placed on the sky, projected through the world coordinate system of each
exposure, drawn with an elliptical Moffat PSF that varies over the field, and observed with photon noise, read noise,
saturation and detector defects. The same settings give the same bytes.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from astropy.io import fits
from astropy.table import QTable
from astropy.wcs import WCS
from pydantic import ValidationError
from scipy.ndimage import binary_dilation

from skydelta.errors import ConfigError
from skydelta.io.fits.writer import psf_hdu
from skydelta.io.storage import check_folder, check_writable, write_bytes
from skydelta.kernels.backend import CPU
from skydelta.kernels.core.devices import DeviceSet
from skydelta.kernels.cpu.jit import serial
from skydelta.pipeline.skymodel import ROLES, PsfField, SimulationConfig, SkyField, make_changes, static_sources
from skydelta.stages.base import explain

PER_PIXEL, PER_OBJECT = 110, 400
"""Bytes that drawing a scene takes, with some room."""

SKY_TILT = ((0.05, -0.03, 0.02), (-0.02, 0.015, 0.01))
"""Relative change of the sky with u, v and u v, of science and reference."""


SMALL, BESIDE = 192, 10
"""Images of fewer px a side have defects within that of their edges alone: a star needs about 80 px around it without
any before the match can use it, and one defect spoils most of such an image."""

PLANES = {
    "science": {"BAD": 0, "SAT": 1, "CR": 3, "NO_DATA": 8},
    "reference": {"NO_DATA": 0, "BAD": 2, "SAT": 5, "CR": 6},
}
"""Mask bits of the two files: same names, different numbers, as in files of two origins."""


@serial
def _bleed(image, level):
    """Move the charge above ``level`` along its column in place; returns uint8 (H, W), 1 where a pixel is full."""
    h, w = image.shape
    full = np.zeros((h, w), np.uint8)
    for i in range(w):
        j = 0
        while j < h:
            if image[j, i] <= level:
                j += 1
                continue
            start, excess = j, 0.0
            while j < h and image[j, i] > level:
                excess += image[j, i] - level
                image[j, i] = level
                full[j, i] = 1
                j += 1
            low, high = start - 1, j
            while excess > 0 and (low >= 0 or high < h):
                for at in (low, high):
                    if 0 <= at < h and excess > 0:
                        room = max(level - image[at, i], 0.0)
                        moved = min(room, excess)
                        image[at, i] += moved
                        excess -= moved
                        if moved > 0:
                            full[at, i] = 1
                low -= 1
                high += 1
            j = max(j, high)
    return full


@dataclass
class Frame:
    """One simulated exposure; positions 0-based, arrays (y, x), ADU.

    Attributes
    ----------
    model, static : float64 (H, W)
        Noise-free counts with everything, and without what changed between the exposures; before saturation.
    sky : float64 (H, W)
        Noise-free sky.
    image : float32 (H, W)
        Observed counts.
    variance : float32 (H, W)
        Of the noise-free model, ADU^2.
    mask : int32 (H, W)
        Bits as in `PLANES`.
    wcs : WCS
        As written to the file (with ``wcs_error``, if any).
    """

    role: str
    psf: PsfField
    wcs: WCS
    model: np.ndarray
    static: np.ndarray
    sky: np.ndarray
    image: np.ndarray
    variance: np.ndarray
    mask: np.ndarray


@dataclass
class Scene:
    """Both exposures in memory, and the truth.

    Attributes
    ----------
    changes : QTable
        What changed: kind (transient, dipole), x, y, ra, dec, flux, snr, host, dx, dy; see `simulate`.
    stars : QTable
        Unsaturated stars that did not change: x, y, x_reference, y_reference, ra, dec, flux.
    transform : callable
        (x, y) of the science image to (x, y) of the same source in the reference, the registration error included.
    """

    config: SimulationConfig
    science: Frame
    reference: Frame
    transform: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
    changes: QTable
    stars: QTable


@dataclass(frozen=True)
class Truth:
    """Files of a simulated pair and the tables written beside them."""

    science: Path
    reference: Path
    table: Path
    changes: QTable
    stars: QTable


def simulate(out: Path | str, overwrite: bool = False, **settings: Any) -> Truth:
    """Write a simulated pair: ``science.fits``, ``reference.fits``, ``truth.ecsv`` and ``stars.ecsv``.

    The images hold HDUs SCI, VAR (variance of the noise-free model), DQ (bits named by ``MP_*`` cards, numbered
    differently in the two files) and, on request, PSF. ``truth.ecsv`` has one row per change: kind (transient or
    dipole), x, y (0-based px of the science image), ra, dec, flux (science ADU; negative: a source that vanished), snr
    (of the best possible fit in the difference, under the noise of the static sky), host (on a galaxy?), and dx, dy (a
    dipole's motion in px since the reference). ``stars.ecsv`` lists the constant stars.

    Parameters
    ----------
    out : Path or str
        Folder; made if missing.
    overwrite : bool
        Whether these four files may be there already.
    **settings
        Fields of `SimulationConfig`; ``size`` may be one integer.

    Returns
    -------
    Truth

    Raises
    ------
    ConfigError
        A setting that does not exist or is out of range; a file is there already; or the folder holds a run.
    InputError
        The images are too crowded for the changes asked for, or for any; or a file cannot be written.
    """
    folder = Path(out)
    paths = {name: folder / f"{name}.fits" for name in ROLES}
    tables = {name: folder / f"{name}.ecsv" for name in ("truth", "stars")}
    there = [p for p in (*paths.values(), *tables.values()) if p.exists()]
    if there and not overwrite:
        raise ConfigError(f"simulate: {there[0]} exists; choose another folder, or overwrite")
    if (folder / "run.json").exists() and not there:
        raise ConfigError(f"simulate: {folder} holds the outputs of a run; choose another folder")
    check_folder(folder)
    for path in (*paths.values(), *tables.values()) if folder.exists() else ():
        check_writable(path)
    scene = build(**settings)
    with made_folder(folder):
        for role, path in paths.items():
            file = io.BytesIO()
            _hdus(getattr(scene, role), scene.config).writeto(file)
            write_bytes(path, file.getvalue())
        for name, table in (("truth", scene.changes), ("stars", scene.stars)):
            text = io.StringIO()
            table.write(text, format="ascii.ecsv")
            write_bytes(tables[name], text.getvalue().encode())
    return Truth(paths["science"], paths["reference"], tables["truth"], scene.changes, scene.stars)


@contextlib.contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """A folder, and those above it, for what is written meanwhile; what was made and is empty goes where that fails."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for path in missing:
                path.rmdir()
        raise


def build(**settings: Any) -> Scene:
    """The scene of `simulate`, in memory."""
    try:
        config = SimulationConfig(**settings)
    except ValidationError as e:
        raise ConfigError(f"simulate.{explain(e)}") from None
    _fits_in_memory(config)
    field = SkyField(config)
    placing, changing = (np.random.default_rng([config.seed, k]) for k in (0, 1))
    static = static_sources(placing, config)
    sky = {role: _sky(level, tilt, config.size) for role, level, tilt in zip(ROLES, config.sky, SKY_TILT, strict=True)}
    models = {role: sky[role] + field.draw(role, static.x, static.y, static.flux) for role in ROLES}
    changes = make_changes(changing, field, static, models)
    frames = {}
    for k, role in enumerate(ROLES):
        full = models[role] + field.draw(role, *changes.sources(role))
        image, variance, mask = _observe(np.random.default_rng([config.seed, 2 + k]), config, role, full)
        frames[role] = Frame(
            role, field.psf[role], field.header_wcs(role), full, models[role], sky[role], image, variance, mask
        )
    return Scene(
        config, frames["science"], frames["reference"], field.transform, changes.table(field), static.table(field)
    )


def _fits_in_memory(config: SimulationConfig) -> None:
    """Refuse what this machine cannot hold, before the first array is made."""
    objects = sum(config.count(name) for name in ("stars", "galaxies", "transients", "dipoles", "saturated"))
    need = PER_PIXEL * config.size[0] * config.size[1] + PER_OBJECT * objects
    there = DeviceSet.of(CPU).memory_budget()
    if need > there:
        raise ConfigError(
            f"simulate: size {config.size[0]} x {config.size[1]} with {objects} objects takes {need / 1e9:.3g} GB; "
            f"at most {there / 1e9:.3g} GB of this machine's memory are used"
        )


def _sky(level: float, tilt: tuple[float, float, float], shape: tuple[int, int]) -> np.ndarray:
    v, a = ((2 * np.arange(n) + 1) / n - 1 for n in shape)
    return level * (1 + tilt[0] * a[None, :] + tilt[1] * v[:, None] + tilt[2] * v[:, None] * a[None, :])


def _observe(
    rng: np.random.Generator, config: SimulationConfig, role: str, model: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts (float32), their model variance (float32) and mask (int32) of a noise-free model (ADU)."""
    k = ROLES.index(role)
    gain, read_noise, level = config.gain[k], config.read_noise[k], config.saturation[k]
    electrons = np.maximum(model, 0) * gain
    image = (rng.poisson(electrons) + rng.normal(0, read_noise, model.shape)) / gain
    variance = ((electrons + read_noise**2) / gain**2).astype(np.float32)
    bits = {name: np.int32(1 << bit) for name, bit in PLANES[role].items()}
    mask = np.zeros(model.shape, np.int32)
    if config.defects:
        _damage(rng, role, image, mask, bits)
    full = _bleed(image, level)
    mask[binary_dilation(full, iterations=2)] |= bits["SAT"]
    image = image.astype(np.float32)
    no_data = (mask & bits["NO_DATA"]) != 0
    image[no_data] = variance[no_data] = np.nan
    return image, variance, mask


def _damage(
    rng: np.random.Generator, role: str, image: np.ndarray, mask: np.ndarray, bits: dict[str, np.int32]
) -> None:
    """Add detector defects in place; each is flagged. Small images have them beside their edges alone."""
    h, w = image.shape
    if min(h, w) >= SMALL:
        _scatter_defects(rng, role, image, mask, bits, max(h, w))
        return
    inner = np.s_[BESIDE : h - BESIDE, BESIDE : w - BESIDE]
    before = image[inner].copy(), mask[inner].copy()
    _scatter_defects(rng, role, image, mask, bits, BESIDE)
    image[inner], mask[inner] = before


def _scatter_defects(
    rng: np.random.Generator, role: str, image: np.ndarray, mask: np.ndarray, bits: dict[str, np.int32], within: int
) -> None:
    """Hot pixels in the first rows, and a column among the first, ``within`` this; the others anywhere."""
    h, w = image.shape
    megapixels = h * w / 1e6
    hot = rng.integers(0, h, max(3, round(40 * megapixels))), rng.integers(0, w, max(3, round(40 * megapixels)))
    hot = hot[0] % within, hot[1]
    image[hot] += rng.exponential(2000, len(hot[0]))
    mask[hot] |= bits["BAD"]
    column, start = rng.integers(0, w) % within, rng.integers(0, h // 2)
    image[start : start + h // 3, column] *= 0.4
    mask[start : start + h // 3, column] |= bits["BAD"]
    if role == "reference":
        y, x = rng.integers(0, h - 20), rng.integers(0, w - 20)
        mask[y : y + 12, x : x + 20] |= bits["NO_DATA"]
        return
    for _ in range(max(2, round(15 * megapixels))):
        length, angle = rng.uniform(2, 16), rng.uniform(0, np.pi)
        t = np.arange(0, length, 0.5)
        y = np.rint(rng.uniform(0, h) + t * np.sin(angle)).astype(int)
        x = np.rint(rng.uniform(0, w) + t * np.cos(angle)).astype(int)
        inside = (y >= 0) & (y < h) & (x >= 0) & (x < w)
        image[y[inside], x[inside]] += rng.uniform(300, 4000)
        mask[y[inside], x[inside]] |= bits["CR"]


def _hdus(frame: Frame, config: SimulationConfig) -> fits.HDUList:
    """The file of one exposure: empty primary, SCI, VAR, DQ, PSF."""
    k = ROLES.index(frame.role)
    base = frame.wcs.to_header(relax=True)
    cards = {
        "BUNIT": "adu",
        "GAIN": (config.gain[k], "[electron/adu]"),
        "RDNOISE": (config.read_noise[k], "[electron]"),
        "SATURATE": (config.saturation[k], "[adu]"),
        "EXPTIME": (60.0 if k == 0 else 300.0, "[s]"),
        "FILTER": "r",
        "MJD-OBS": 60700.25 if k == 0 else 60340.25,
    }
    primary = fits.PrimaryHDU()
    primary.header["OBJECT"] = f"simulated field {config.seed}"
    planes = [("SCI", frame.image, cards)]
    if config.variance:
        planes.append(("VAR", frame.variance, {"BUNIT": "adu2", "UTYPE": "VarianceUncertainty"}))
    planes.append(("DQ", frame.mask, {f"HIERARCH MP_{name}": bit for name, bit in PLANES[frame.role].items()}))
    hdus: list[Any] = [primary]
    for name, data, own in planes:
        header = base.copy()
        header.update(own)
        if config.compress:
            kind = "RICE_1" if name == "DQ" else "GZIP_2"
            hdus.append(fits.CompImageHDU(data, header, name=name, compression_type=kind, quantize_level=0))
        else:
            hdus.append(fits.ImageHDU(data, header, name=name))
    if config.psf:
        hdus.append(psf_hdu(frame.psf.pixels()))
    return fits.HDUList(hdus)
