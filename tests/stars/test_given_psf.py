# SPDX-License-Identifier: BSD-3-Clause
"""A PSF that came with the image is kept, compared with the stars, and replaced on request."""

import numpy as np
import pytest
from support_pairs import context, gaussian, scene_exposures

from skydelta.io.psf import PixelPsf
from skydelta.pipeline.simulate import build
from skydelta.stages.psf import MeasurePsf


@pytest.fixture(scope="module")
def field():
    scene = build(size=(512, 512), seed=4, same_grid=True, stars=400, sky=(50.0, 20.0))
    science, _ = scene_exposures(scene)
    return scene, science.with_(image=science.image - np.float32(np.median(science.image)))


def run(image, **config):
    ctx = context()
    return ctx, MeasurePsf(**config).execute(ctx, {"image": image})["image"]


def test_the_measured_psf_agrees_with_its_own_stars(field):
    _, image = field
    _, measured = run(image)
    ctx, kept = run(measured)
    assert kept.psf is measured.psf
    assert "psf_disagrees" not in ctx.flags


def test_one_stamp_for_a_varying_field_is_reported(field):
    scene, image = field
    stamp = PixelPsf.constant(scene.science.psf.stamp(256.0, 256.0, 20), image.shape)
    ctx, kept = run(image.with_(psf=stamp))
    assert kept.psf is stamp
    assert ctx.metrics["psf_width_trend"] > 0.10
    assert "drifts by" in ctx.flags["psf_disagrees"]


def test_a_wrong_width_is_reported_and_stars_can_be_asked_for(field):
    _, image = field
    wrong = image.with_(psf=PixelPsf.constant(gaussian(0.8), image.shape))
    ctx, _ = run(wrong)
    assert "psf_disagrees" in ctx.flags
    ctx, measured = run(wrong, source="stars")
    assert measured.psf is not wrong.psf
    assert ctx.metrics["psf_source"] == "stars"
