# SPDX-License-Identifier: BSD-3-Clause
"""Exposures, kernels and catalogues to write and read."""

import numpy as np
from astropy import units as u
from astropy.io import fits
from astropy.table import Table
from astropy.wcs import WCS

from skydelta.io.catalog import Catalog, bits
from skydelta.io.exposure import Exposure
from skydelta.io.field import Domain, count_terms
from skydelta.io.matchkernel import MatchKernel
from skydelta.io.planes import MaskPlanes
from skydelta.io.psf import GridPsf, PixelPsf

SHAPE = (50, 64)


def tan():
    wcs = WCS(naxis=2)
    wcs.wcs.ctype = "RA---TAN", "DEC--TAN"
    wcs.wcs.crpix, wcs.wcs.crval = (30, 25), (150.0, 2.0)
    wcs.wcs.cd = np.array([[-1e-4, 2e-5], [2e-5, 1e-4]])
    return wcs


def stamp(size=11, sigma=1.5):
    o = np.arange(size) - size // 2
    g = np.exp(-0.5 * (o / sigma) ** 2)
    return np.outer(g, g) / g.sum() ** 2


def make_exposure(rng, psf="pixel", wcs=None):
    image = rng.normal(10, 2, SHAPE).astype(np.float32)
    variance = rng.uniform(3, 5, SHAPE).astype(np.float32)
    planes = MaskPlanes().union(["SAT_TEMPLATE", "BAD_TEMPLATE", "DETECTED_NEGATIVE_TEMPLATE"])
    mask = np.zeros(SHAPE, np.int32)
    mask[3, 4], mask[5, 6] = planes.bit("SAT", "SAT_TEMPLATE"), planes.bit("CR")
    mask[7, 8] = planes.bit("NO_DATA")
    image[7, 8] = variance[7, 8] = np.nan
    header = fits.Header({"OBJECT": "M 31", "EXPTIME": 30.0, "LONGTEXT": "x" * 100})
    header["HISTORY"] = "subtracted"
    header["HIERARCH ESO DET GAIN"] = 1.5
    coefficients = np.stack([stamp()] + [1e-3 * rng.normal(size=(11, 11)) for _ in range(count_terms(2) - 1)])
    grid = np.stack([[stamp(), 0.9 * stamp()], [stamp(), stamp()]])
    made = {
        "pixel": PixelPsf(coefficients, 2, Domain(SHAPE, (3.0, 4.0))),
        "grid": GridPsf(grid, np.array([8.25, 56.5]), np.array([5.0, 40.0])),
        None: None,
    }[psf]  # fmt: skip
    return Exposure(image, variance, mask, planes, wcs or tan(), made, u.adu, header, id="e")


def make_kernel(rng):
    basis = rng.normal(size=(4, 9, 9))
    return MatchKernel(
        "reference", basis, rng.normal(size=(4, count_terms(2))), 2, rng.normal(size=count_terms(1)), 1, Domain(SHAPE),
        rank=20, size=27, stamps=Table({"x": [1.0]}),
    )  # fmt: skip


def make_catalog(n):
    i = np.arange(n)
    table = Catalog(
        {"id": i + 1, "x": (i * 1.5) * u.pix, "y": (i / 3) * u.pix, "ra": (10 + i / 7) * u.deg,
         "dec": np.where(i == 1, np.nan, -0.1 * i) * u.deg, "flux": (100.0 - 90 * i) * u.adu,
         "flux_err": np.full(n, 3.25) * u.adu, "snr": 5.0 + i, "model": np.array(["psf", "dipole", ""])[i % 3],
         "flags": np.array([bits("NEGATIVE", "EDGE"), bits("DIPOLE"), 0], np.int32)[i % 3], "good": i % 2 == 0}
    )  # fmt: skip
    table.meta["note"] = "kept"
    return table
