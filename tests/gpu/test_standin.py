# SPDX-License-Identifier: BSD-3-Clause
"""The device code of the stages, without a device: nothing mixes host and device, no plane crosses."""

import numpy as np
import pytest
import support_standin

from skydelta.io.exposure import Exposure
from skydelta.kernels.backend import CPU, resolve
from skydelta.pipeline.simulate import build
from skydelta.stages.align import Align
from skydelta.stages.background import Background
from skydelta.stages.base import Context
from skydelta.stages.detect import Detect
from skydelta.stages.difference import Difference
from skydelta.stages.fit import Fit
from skydelta.stages.match import Match
from skydelta.stages.psf import MeasurePsf

SIZE = 1024


def job(backend, frames):
    values = {role: frame.to(backend) for role, frame in frames.items()}

    def step(stage, **inputs):
        return stage.execute(Context(backend, id="test"), inputs)

    for role in values:
        values[role] = step(Background(), image=values[role])["image"]
    values["reference"] = step(Align(), image=values["reference"], onto=values["science"])["aligned"]
    for role in values:
        values[role] = step(MeasurePsf(), image=values[role])["image"]
    kernel = step(Match(), **values)["kernel"]
    made = step(Difference(), **values, kernel=kernel)
    catalog = step(Detect(), image=made["difference"], score=made["score"])["catalog"]
    return made, step(Fit(), image=made["whitened"], catalog=catalog)["catalog"]


@pytest.mark.parametrize("same_grid", [True, False])
def test_the_job_keeps_host_and_device_apart(monkeypatch, same_grid):
    scene = build(size=(SIZE, SIZE), seed=3, same_grid=same_grid)
    frames = {}
    for frame in (scene.science, scene.reference):
        mask = np.where(np.asarray(frame.mask) != 0, 1, 0).astype(np.int32)
        planes = frame.image.astype(np.float32), frame.variance.astype(np.float32), mask
        frames[frame.role] = Exposure(*planes, wcs=frame.wcs)
    want, expected = job(CPU, frames)
    copies = support_standin.install(monkeypatch)
    device = resolve("cuda")
    here = {role: frame.to(device) for role, frame in frames.items()}
    copies.clear()
    made, catalog = job(device, here)
    assert made["difference"].backend.is_gpu
    assert max(copies["up largest"], copies["down largest"]) < 4 * SIZE**2
    monkeypatch.undo()
    for name in ("difference", "score", "whitened"):
        a, b = (np.asarray(e[name].image) for e in (made, want))
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))
        scale = 1.0 if name == "score" else np.sqrt(want["difference"].variance)
        assert np.nanmax(np.abs(a - b) / scale) < 1e-2
    assert len(catalog) == len(expected) > 10
    np.testing.assert_allclose(np.asarray(catalog["x"]), np.asarray(expected["x"]), atol=1e-2)


def test_the_stand_in_refuses_what_a_device_refuses(monkeypatch):
    copies = support_standin.install(monkeypatch)
    device = resolve("cuda")
    xp, host = device.xp, np.ones(3)
    there = device.asarray(host)
    for mixed in (
        lambda: there + host,
        lambda: host * there,
        lambda: xp.where(there > 0, host, there),
        lambda: xp.concatenate([there, host]),
        lambda: np.maximum(there, host),
        lambda: there.take(np.arange(2)),
        lambda: there.__setitem__(slice(None), host),
        there.tolist,
    ):
        with pytest.raises(TypeError):
            mixed()
    assert isinstance((there * 2).sum(), support_standin.OnDevice)
    assert copies == {"up copies": 1, "up largest": 24}
