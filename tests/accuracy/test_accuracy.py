# SPDX-License-Identifier: BSD-3-Clause
"""The accuracy the package promises, on its own simulator: from two files through the whole job, judged by the truth.

On one pixel grid the product is held against the perfect difference of the same pixels. With a dithered and rotated
reference, which align must resample, it is held against its own stated noise and the truth.
"""

import numpy as np
import pytest
from astropy.io import fits
from support_scoring import Planes, measure, perfect_difference

from skydelta.io.catalog import Catalog
from skydelta.pipeline.demo import recover
from skydelta.pipeline.runner import run
from skydelta.pipeline.simulate import build, simulate

pytestmark = pytest.mark.slow


def job(folder, **settings):
    """Files, run, the scene, and the planes that were written."""
    scene = build(**settings)
    with pytest.MonkeyPatch.context() as patch:  # drawn once: the same settings give the same scene
        patch.setattr("skydelta.pipeline.simulate.build", lambda **_: scene)
        truth = simulate(folder / "pair", **settings)
    inputs = {"science": truth.science, "reference": truth.reference}
    result = run("difference", inputs=inputs, out=folder / "run", id_="field", device="cpu")
    assert result.receipts[0]["error"] is None
    item = result.out / "items" / "field"
    with fits.open(item / "difference.fits") as hdus:
        planes = Planes(*(hdus[name].data.astype(float) for name in ("SCI", "VAR", "SNR")))
    return truth, scene, item, planes


@pytest.fixture(scope="module")
def one_grid(tmp_path_factory):
    settings = {"size": 2048, "seed": 1, "same_grid": True}
    _, scene, _, planes = job(tmp_path_factory.mktemp("one_grid"), **settings)
    perfect = perfect_difference(scene, tiles=12)
    return measure(scene, planes, perfect.variance), measure(scene, perfect)


def test_noise_and_score_have_unit_variance(one_grid, figure):
    product, _ = one_grid
    figure("std of D / sigma in blank sky", product.noise_std, (0.99, 1.01))
    figure("std of D / own sigma in blank sky", product.own_noise_std, (0.99, 1.01))
    figure("std of the score in blank sky", product.score_std, (0.98, 1.02))


def test_sky_and_stars_are_subtracted_like_the_perfect_difference(one_grid, figure):
    product, perfect = one_grid
    figure("background rms over the perfect one", product.background_rms / perfect.background_rms, 1.08)
    figure("chi2 at stars less the perfect one", product.chi2_stars - perfect.chi2_stars, (-0.03, 0.03))
    figure("chi2 at bright stars less the perfect one", product.chi2_bright - perfect.chi2_bright, 0.08)


def test_sources_are_found_like_in_the_perfect_difference(one_grid, figure):
    product, perfect = one_grid
    assert perfect.expected >= 60
    figure("sources fewer than in the perfect one", perfect.found - product.found, 1)
    figure("false positive peaks more", product.false_positive - perfect.false_positive, 1)
    figure("false negative peaks more", product.false_negative - perfect.false_negative, 1)
    figure("flux ratio less the perfect one", product.flux_ratio - perfect.flux_ratio, (-0.005, 0.005))


@pytest.fixture(scope="module")
def dithered(tmp_path_factory):
    settings = {"size": 1024, "seed": 12, "transients": 40, "saturated": 0, "distortion": True}
    truth, scene, item, planes = job(tmp_path_factory.mktemp("dithered"), **settings)
    catalog = Catalog.load(item / "catalog.ecsv")
    return measure(scene, planes), recover(truth.changes, catalog, item / "difference.fits")


def test_resampled_reference_keeps_the_noise_right(dithered, figure):
    figures, _ = dithered
    figure("std of D / own sigma, resampled", figures.own_noise_std, (0.98, 1.02))
    figure("std of the score, resampled", figures.score_std, (0.97, 1.03))


def test_resampled_reference_recovers_the_truth(dithered, figure):
    _, found = dithered
    clear = (found.kind == "transient") & (found.snr >= 7.5)
    assert clear.sum() >= 20
    figure("clear transients found", found.found[clear].mean(), (0.95, 1.0))
    ratio, error = found.flux
    figure("flux over true flux, in errors from 1", (ratio - 1) / error, (-3.5, 3.5))
    figure("error of that ratio", error, 0.01)
    figure("clean candidates that are no change", found.unexplained, 8)
    assert np.isfinite(found.flux_ratio[found.found & clear]).all()
