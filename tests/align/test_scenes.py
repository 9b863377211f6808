# SPDX-License-Identifier: BSD-3-Clause
"""Accuracy on analytic skies: stars and fluxes against the truth and against an exact float64 spline."""

import json
import subprocess
import sys

import numpy as np
import pytest
from astropy.io import fits
from astropy.wcs import WCS
from support_align import exact_positions, exact_spline, scene, star_figures

from skydelta.io.exposure import Exposure
from skydelta.stages.align import Align

RMS_ON_STARS, FLUX_P99 = 5.2e-4, 1e-5


@pytest.mark.parametrize("case", ["tan", "sip", "tpv", "mirrored"])
def test_stars_and_fluxes(case, figure):
    s = scene(case)
    image = Align()(s.source, onto=s.target, device="cpu").image
    rms, flux = star_figures(image, s)
    oracle_rms, oracle_flux = star_figures(exact_spline(s), s)
    figure(f"align {case}: rms on stars", rms, RMS_ON_STARS)
    figure(f"align {case}: rms on stars, above 1.05 x exact spline", rms - 1.05 * oracle_rms, 1e-7)
    figure(f"align {case}: flux 99 %, above 1.05 x exact spline", flux - 1.05 * oracle_flux, 1e-7)
    if case in ("tan", "mirrored"):  # pixels of one size: the spline itself keeps fluxes
        figure(f"align {case}: flux 99 %", flux, FLUX_P99)


def test_image_is_the_exact_spline(figure):
    s = scene("sip", target_shape=(333, 421))
    image = Align()(s.source, onto=s.target, device="cpu").image
    exact = exact_spline(s)
    assert (np.isnan(image) == np.isnan(exact)).all()
    figure("align sip: largest difference to the exact spline", np.nanmax(np.abs(image - exact)), 3e-6)


@pytest.mark.parametrize(("method", "rms", "flux"), [("lanczos3", 2e-3, 1e-4), ("bilinear", 2e-2, 5e-5)])
def test_other_kernels(method, rms, flux, figure):
    s = scene("tan")
    got = star_figures(Align(method=method)(s.source, onto=s.target, device="cpu").image, s)
    figure(f"align tan {method}: rms on stars", got[0], rms)
    figure(f"align tan {method}: flux 99 %", got[1], flux)


def test_nearest_takes_the_nearest_pixel():
    s = scene("tan")
    image = Align(method="nearest")(s.source, onto=s.target, device="cpu").image
    x, y = np.rint(exact_positions(s.source.wcs, s.target.wcs, s.target.shape)).astype(int)
    inside = np.isfinite(image)
    assert inside.mean() > 0.9
    assert (image[inside] == s.source.image[y[inside], x[inside]]).all()


def test_flux_of_larger_pixels_is_kept():
    s = scene("coarse", target_shape=(250, 280))
    image = Align(conserve="flux")(s.source, onto=s.target, device="cpu").image
    assert np.nansum(image, dtype=float) == pytest.approx(s.source.image.sum(dtype=float), rel=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["tan", "sip", "tpv"])
def test_shared_scene(case, shared_tools, tmp_path, figure):
    """The 2048 px acceptance scenes, scored by their own tool; the same tool scores an exact spline."""
    tool = [sys.executable, str(shared_tools / "align_scene.py"), str(tmp_path)]
    subprocess.run([*tool, "--case", case, "--n", "2048"], check=True, capture_output=True)
    source, target = (fits.open(tmp_path / f"{name}.fits")[0] for name in ("src", "tgt"))
    image = Exposure(source.data.astype(np.float32), wcs=WCS(source.header))
    onto = Exposure(np.zeros(target.data.shape, np.float32), wcs=WCS(target.header))
    aligned = Align()(image, onto=onto, device="cpu").image
    got = _score(tool, tmp_path / "aligned.fits", aligned)
    figure(f"align_scene {case}: rms_star", got["rms_star"], RMS_ON_STARS)
    figure(f"align_scene {case}: flux_p99", got["flux_p99"], FLUX_P99)

    from scipy import ndimage

    q = exact_positions(image.wcs, onto.wcs, onto.shape)
    spline = ndimage.map_coordinates(image.image.astype(float), q[::-1], order=3, mode="mirror")
    spline[np.isnan(aligned)] = np.nan
    exact = _score(tool, tmp_path / "exact.fits", spline)
    for name in ("rms_star", "flux_p99"):
        figure(f"align_scene {case}: {name} above 1.05 x exact spline", got[name] - 1.05 * exact[name], 1e-7)


def _score(tool, path, image):
    fits.writeto(path, image)
    done = subprocess.run([*tool, "--score", str(path)], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)
