# SPDX-License-Identifier: BSD-3-Clause
"""`skydelta.detect`: what changed in a difference, and the sources of any image."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from astropy.table import Table

from skydelta.errors import AlgorithmError, ConfigError
from skydelta.io.catalog import Catalog
from skydelta.io.exposure import Exposure
from skydelta.io.psf import PixelPsf
from skydelta.io.read import read
from skydelta.kernels.backend import resolve
from skydelta.stages.background import Background
from skydelta.stages.base import Context
from skydelta.stages.detect import Detect
from skydelta.stages.load import flag_lost, flag_reading
from skydelta.stages.psf import MeasurePsf
from skydelta.stages.sources import Sources

SETTINGS = ("threshold", "contrast", "negative", "apertures")
"""Settings of `sources`."""

ASSUMED = 3.0
"""FWHM, px, of the PSF of an image without a star to measure it from."""


def detect(
    image: Any,
    score: Exposure | None = None,
    *,
    variance: Any = None,
    mask: Any = None,
    psf: Any = None,
    fwhm: float | None = None,
    background: Literal["mesh", "polynomial", "none"] | None = None,
    cell: int | None = None,
    positions: Any = None,
    device: str = "auto",
    **settings: Any,
) -> Catalog:
    """Find what changed in a difference, or find and measure the sources of any image.

    An exposure with variance and PSF, and nothing else but a score or settings of the stage `detect`, is a difference:
    this is that stage. Anything else is an image: what it lacks is measured (sky, variance, PSF), and the stage
    `sources` finds, deblends, fits and measures.

    Parameters
    ----------
    image : Exposure, array (H, W), path, CCDData, or what else `skydelta.read` takes
    score : Exposure, optional
        Of a difference: its signal-to-noise plane.
    variance, mask, psf : optional
        As `skydelta.read` takes them.
    fwhm : float, optional
        Of a round Gaussian that is taken for the PSF, px.
    background : {"mesh", "polynomial", "none"}, optional
        How the sky is subtracted; mesh if not given. none: it is already.
    cell : int, optional
        Side of a mesh cell, px.
    positions : Table, optional
        Measure at these x, y (0-based px) or ra, dec (degrees) instead of finding.
    device : str
        auto, cpu, cuda or cuda:N.
    **settings
        Of the stage: threshold, dipole_ratio of `detect`; threshold, contrast, negative, apertures of `sources`.

    Returns
    -------
    Catalog
        Of an image, ``meta`` holds under ``detect`` what was measured on the way, and its flags.

    Raises
    ------
    ConfigError
        Unknown settings, or some without effect.
    InputError
        Not an image, or planes that do not fit.
    AlgorithmError
        No sky can be found.
    """
    own = {"variance": variance, "mask": mask, "psf": psf, "fwhm": fwhm, "background": background, "cell": cell}
    asked = [name for name, value in own.items() if value is not None]
    asked += [name for name in settings if name in SETTINGS and name != "threshold"]
    whole = isinstance(image, Exposure) and image.variance is not None and image.psf is not None
    if score is not None or (whole and not asked and positions is None):
        if asked or positions is not None:
            raise ConfigError(f"detect: {', '.join([*asked, *(['positions'] if positions is not None else [])])} "
                              "belong to an image, not to a difference with its score")  # fmt: skip
        return Detect(**settings)(image, score, device=device)
    check_used(settings, positions is not None, psf is not None, fwhm is not None)
    stage = Sources(**settings)
    ctx = Context(resolve(device), id="detect")
    given = {name: value for name, value in (("variance", variance), ("mask", mask), ("psf", psf)) if value is not None}
    if not isinstance(image, Exposure) or given or image.variance is None:
        image = read(image, **given, device=device)
    flag_reading(ctx, image)
    if fwhm is not None:
        image = image.with_(psf=gaussian_psf(fwhm, image.shape))
    return find_sources(ctx, image, stage, background or "mesh", cell, _table(positions))


def check_used(settings: Iterable[str], forced: bool, psf: bool, fwhm: bool) -> None:
    """Refuse what is given and has no effect: how to find where positions are given, a second PSF.

    Raises
    ------
    ConfigError
        There is something.
    """
    idle = [name for name in settings if forced and name in ("threshold", "contrast", "negative")]
    if idle or (psf and fwhm):
        name, of = (idle[0], "positions") if idle else ("fwhm", "psf")
        raise ConfigError(f"detect: {name} has no effect where {of} {'are' if idle else 'is'} given")


def find_sources(
    ctx: Context,
    image: Exposure,
    stage: Sources,
    background: str = "mesh",
    cell: int | None = None,
    positions: Catalog | None = None,
) -> Catalog:
    """Sky, PSF and sources of an exposure with variance; what was found out is in the catalogue's meta and ``ctx``."""
    flag_lost(ctx, image)
    if background != "none":
        sky = Background(model=background, cell=cell)
        image = sky.execute(ctx, {"image": image})["image"]
    elif cell is not None:
        raise ConfigError("detect: cell is of a background, which is none")
    if image.psf is None:
        try:
            image = MeasurePsf().execute(ctx, {"image": image})["image"]
        except AlgorithmError as e:
            ctx.flag("psf_assumed", f"the PSF is taken for a Gaussian of FWHM {ASSUMED:g} px: {e}")
            image = image.with_(psf=gaussian_psf(ASSUMED, image.shape))
    catalog = stage.execute(ctx, {"image": image, "positions": positions})["catalog"]
    noted = {name: value for name, value in ctx.metrics.items() if isinstance(value, int | float | str)}
    noted = {name: value.item() if hasattr(value, "item") else value for name, value in noted.items()}
    catalog.meta["detect"] = {"settings": stage.config.model_dump(mode="json"), **noted, "flags": dict(ctx.flags)}
    return catalog


def gaussian_psf(fwhm: float, shape: tuple[int, int]) -> PixelPsf:
    """A round Gaussian for the whole field of an image of this shape.

    Raises
    ------
    ConfigError
        The FWHM is not between 0.5 and 60 px.
    """
    if not 0.5 <= fwhm <= 60:
        raise ConfigError(f"detect: fwhm is {fwhm:g} px; 0.5 to 60 are allowed")
    o = np.arange(-max(4, int(np.ceil(2.5 * fwhm))), max(4, int(np.ceil(2.5 * fwhm))) + 1)
    line = np.exp(-0.5 * (2.3548 * o / fwhm) ** 2)
    return PixelPsf.constant(line[:, None] * line, shape)


def _table(positions: Any) -> Catalog | None:
    if positions is None or isinstance(positions, Catalog):
        return positions
    try:
        return Catalog(positions if isinstance(positions, Table) else Table(positions))
    except (TypeError, ValueError) as e:
        raise ConfigError(f"detect: positions cannot be made a table ({e})") from None
