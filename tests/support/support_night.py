# SPDX-License-Identifier: BSD-3-Clause
"""A small night of three visits with variable sources, and the products of its run."""

import numpy as np
from astropy.io import fits

import skydelta
from skydelta.io.exposure import Exposure
from skydelta.kernels.core.tiles import Box
from skydelta.pipeline.simulate import build
from skydelta.pipeline.skymodel import SkyField

SIDE, CUTS = 192, ((0, 0), (20, 8), (32, 30))
"""Visits are cut-outs of one scene whose first pixels are these (x, y): dithered by as much."""

PLACES = np.array([[70.0, 110.0], [150.4, 75.7], [120.2, 165.1], [10.5, 60.0]])
"""Variable sources, px of the scene; the last one is on the first visit alone."""

CURVES = np.array([[60, 0, 12], [40, 40, 40], [0, 0, 35], [50, 50, 50]])
"""Their signal-to-noise at each visit."""


def expose(rng, model, gain, read_noise):
    """Counts and the variance of a noise-free model, ADU."""
    electrons = np.maximum(model, 0) * gain
    image = (rng.poisson(electrons) + rng.normal(0, read_noise, model.shape)) / gain
    return image.astype(np.float32), ((electrons + read_noise**2) / gain**2).astype(np.float32)


def files(folder, seed=4):
    """Three visits and a reference; true fluxes (source, visit) and places on the sky."""
    options = {"stars": 90, "galaxies": 2, "transients": 0, "dipoles": 0, "saturated": 0, "defects": False}
    scene = build(size=SIDE + 32, seed=seed, **options)
    field, rng = SkyField(scene.config), np.random.default_rng(seed)
    psf = {role: field.psf[role].pixels() for role in ("science", "reference")}
    models = {"science": scene.science.model, "reference": scene.reference.model}
    unit = np.array([1 / field.unit_snr(models, x, y) for x, y in PLACES])
    fluxes = CURVES * unit[:, None]
    for k, (i, j) in enumerate(CUTS):
        model = models["science"] + field.draw("science", *PLACES.T, fluxes[:, k])
        image, variance = expose(rng, model, scene.config.gain[0], scene.config.read_noise[0])
        header = fits.Header({"MJD-OBS": 60700.0 + 0.1 * k})
        whole = Exposure(image, variance, wcs=scene.science.wcs, psf=psf["science"], header=header)
        skydelta.write(whole.section(Box(j, j + SIDE, i, i + SIDE)), folder / f"v{k}.fits")
    made = scene.reference
    skydelta.write(Exposure(made.image, made.variance, wcs=made.wcs, psf=psf["reference"]), folder / "ref.fits")
    return fluxes, np.stack(scene.science.wcs.all_pix2world(*PLACES.T, 0), 1)


def words(folder, out, *more):
    given = ("--science", f"{folder}/v*.fits", "--reference", f"{folder}/ref.fits")
    return ("run", "difference-night", *given, "-o", out, "--device", "cpu", *more)


def products(out):
    """All files of a run but receipts, which name times and workers, and those that the receipts are in."""
    paths = [p for place in ("items", "second_pass") for p in (out / place).rglob("*") if p.name != "receipt.json"]
    tables = [out / name for name in ("catalog.parquet", "objects.ecsv", "lightcurves.parquet")]
    return {str(p.relative_to(out)): p.read_bytes() for p in (*paths, *tables) if p.is_file()}
