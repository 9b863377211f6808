# SPDX-License-Identifier: BSD-3-Clause
"""Accuracy on analytic skies: stars and fluxes against the truth and against an exact float64 spline."""

import importlib.util
import json

import numpy as np
import pytest
from astropy.io import fits
from astropy.wcs import WCS
from scipy import ndimage
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


@pytest.mark.parametrize(
    ("method", "rms", "flux"),
    [
        ("lanczos3", 2e-3, 1e-4),
        ("lanczos4", 1e-3, 1e-4),
        ("lanczos5", 6e-4, 1e-4),
        ("bspline5", 1.2e-4, FLUX_P99),
        ("bilinear", 2e-2, 5e-5),
    ],
)
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


@pytest.fixture
def scenes(shared_tools):
    spec = importlib.util.spec_from_file_location("align_scene", shared_tools / "align_scene.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made(scenes, folder, case, n):
    """Source and an empty target of a scene of the shared generator."""
    scenes.make(str(folder), case, n, 3.5, 7)
    with fits.open(folder / "src.fits") as source, fits.open(folder / "tgt.fits") as target:
        image = Exposure(source[0].data.astype(np.float32), wcs=WCS(source[0].header))
        return image, Exposure(np.zeros(target[0].data.shape, np.float32), wcs=WCS(target[0].header))


def scored(scenes, folder, name, image, capsys):
    """The figures that the generator's own scoring prints."""
    fits.writeto(folder / name, image)
    capsys.readouterr()
    scenes.score(str(folder), str(folder / name), "0", False)
    return json.loads(capsys.readouterr().out)


def both(scenes, folder, case, n, capsys, degree=3):
    """Figures of ours and of the exact float64 spline."""
    image, onto = made(scenes, folder, case, n)
    aligned = Align(method=f"bspline{degree}")(image, onto=onto, device="cpu").image
    q = exact_positions(image.wcs, onto.wcs, onto.shape)
    spline = ndimage.map_coordinates(image.image.astype(float), q[::-1], order=degree, mode="mirror")
    spline[np.isnan(aligned)] = np.nan
    return (scored(scenes, folder, f"{k}.fits", v, capsys) for k, v in (("ours", aligned), ("exact", spline)))


@pytest.mark.parametrize(
    "case",
    ["tpv", "scale06", "parity"]
    + [pytest.param(case, marks=pytest.mark.slow) for case in ("tan", "sip", "sipi", "scale17", "wrap", "pole")],
)
def test_shared_scenes_against_the_exact_spline(case, scenes, tmp_path, capsys, figure):
    """Small ones of every case; ``benchmarks/align.py --scenes`` has them at 2048 px."""
    got, exact = both(scenes, tmp_path, case, 512, capsys)
    for name in ("rms_star", "flux_p99"):
        figure(f"align_scene {case} 512: {name} above 1.05 x exact spline", got[name] - 1.05 * exact[name], 1e-7)
    assert got["n_star"] > 20  # the absolute limits are those of 2048 px: the same distortion bends a small field more


@pytest.mark.parametrize("case", ["sip", "scale17"])
def test_quintic_on_shared_scenes(case, scenes, tmp_path, capsys, figure):
    got, exact = both(scenes, tmp_path, case, 512, capsys, degree=5)
    figure(f"align_scene {case} 512 bspline5: rms_star", got["rms_star"], 1.2e-4)
    for name in ("rms_star", "flux_p99"):
        figure(f"align_scene {case} 512 bspline5: {name} above 1.05 x exact", got[name] - 1.05 * exact[name], 1e-7)


def test_shared_all_sky_scene(scenes, tmp_path):
    """A small tangent plane on an all-sky grid, cut in two by its limb: the valid pixels are those of the exact map."""
    image, onto = made(scenes, tmp_path, "ait", 512)
    aligned = Align()(image, onto=onto, device="cpu").image
    q = scenes.source_grid(image.wcs, onto.wcs, onto.shape)
    inside = scenes.within(q, image.shape)
    assert inside.sum() > 1000
    assert inside[:, :256].any() and inside[:, -256:].any(), "the limb does not cut the image"
    assert not np.isfinite(aligned[~inside]).any()
    # on the outer half of a border pixel most of the weight is lost
    assert np.isfinite(aligned[scenes.within(q, image.shape, 0.5)]).all()


@pytest.mark.slow
@pytest.mark.parametrize("case", ["tan", "sip", "tpv"])
def test_shared_scene(case, scenes, tmp_path, capsys, figure):
    """The 2048 px acceptance scenes, scored by their own tool; the same tool scores an exact spline."""
    got, exact = both(scenes, tmp_path, case, 2048, capsys)
    figure(f"align_scene {case}: rms_star", got["rms_star"], RMS_ON_STARS)
    figure(f"align_scene {case}: flux_p99", got["flux_p99"], FLUX_P99)
    for name in ("rms_star", "flux_p99"):
        figure(f"align_scene {case}: {name} above 1.05 x exact spline", got[name] - 1.05 * exact[name], 1e-7)
