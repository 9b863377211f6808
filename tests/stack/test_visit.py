# SPDX-License-Identifier: BSD-3-Clause
"""Two exposures of a simulated visit: SIP, other sizes, PSF, flux scale, sky, bad pixels and bit numbers."""

import subprocess
import sys

import numpy as np
import pytest
from astropy.table import Table

import skydelta


@pytest.fixture(scope="module")
def visit(shared_tools, tmp_path_factory):
    folder = tmp_path_factory.mktemp("visit")
    command = [sys.executable, str(shared_tools / "make_visit.py"), str(folder), "--detectors", "1", "--seed", "5"]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def test_flux_scale_is_that_of_the_truth(visit, figure):
    stars = Table.read(visit / "stars.csv")
    truth = np.median(np.asarray(stars["flux_sci"], float) / np.asarray(stars["flux_ref"], float))
    paths = [visit / "sci_d00.fits", visit / "ref_d00.fits"]
    out = skydelta.stack(paths, device="cpu", method="clipped")
    table, stacked = out["table"], out["stacked"]
    pull = (table["scale"][1] / truth - 1) / table["scale_error"][1]
    figure("scale from the stars of a sparse field, standard errors from truth", abs(pull), 3)
    figure("standard error of that scale", table["scale_error"][1], 2e-2)
    bad = (stacked.mask & stacked.planes.invalid) != 0
    assert (out["coverage"].image[~bad] > 0).all()
    assert np.isfinite(stacked.image[~bad]).all() and (stacked.variance[~bad] > 0).all()
    science = skydelta.read(paths[0], device="cpu")
    kept = skydelta.stack(paths, onto=science, device="cpu", method="weighted")["stacked"]
    assert (kept.good() & ~science.good()).sum() > 0.5 * (~science.good()).sum()  # filled by the other exposure
    assert np.nanmedian(kept.variance) < 0.8 * np.nanmedian(science.variance)
