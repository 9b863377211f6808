# SPDX-License-Identifier: BSD-3-Clause
"""A pair that is on the device stays there: no plane crosses between reading and writing."""

import sys

import numpy as np
import pytest

from skydelta.io.exposure import Exposure
from skydelta.kernels import backend as backends
from skydelta.kernels.backend import Backend, resolve
from skydelta.pipeline.simulate import build
from skydelta.stages.align import Align
from skydelta.stages.background import Background
from skydelta.stages.base import Context
from skydelta.stages.detect import Detect
from skydelta.stages.difference import Difference
from skydelta.stages.fit import Fit
from skydelta.stages.match import Match
from skydelta.stages.psf import MeasurePsf

pytestmark = pytest.mark.gpu

SIZE = 2048


def test_no_plane_crosses_between_the_stages(monkeypatch):
    backend = resolve("cuda")
    scene = build(size=(SIZE, SIZE), seed=3, same_grid=True)
    values = {}
    for frame in (scene.science, scene.reference):
        mask = np.where(np.asarray(frame.mask) != 0, 1, 0).astype(np.int32)
        values[frame.role] = Exposure(frame.image.astype(np.float32), frame.variance.astype(np.float32), mask).to(
            backend
        )
    moved = []
    to_host, asarray = backends.to_host, Backend.asarray

    def counted_to_host(a):
        moved.append(getattr(a, "nbytes", 0) if not isinstance(a, np.ndarray) else 0)
        return to_host(a)

    def counted_asarray(self, a, dtype=None):
        moved.append(a.nbytes if isinstance(a, np.ndarray) else 0)
        return asarray(self, a, dtype)

    for module in [m for name, m in sys.modules.items() if name.startswith("skydelta.")]:
        if getattr(module, "to_host", None) is to_host:
            monkeypatch.setattr(module, "to_host", counted_to_host)
    monkeypatch.setattr(Backend, "asarray", counted_asarray)

    def step(stage, **inputs):
        return stage.execute(Context(backend, id="test"), inputs)

    for role in values:
        values[role] = step(Background(), image=values[role])["image"]
    values["reference"] = step(Align(aligned=True), image=values["reference"], onto=values["science"])["aligned"]
    for role in values:
        values[role] = step(MeasurePsf(), image=values[role])["image"]
    kernel = step(Match(), **values)["kernel"]
    made = step(Difference(), **values, kernel=kernel)
    catalog = step(Detect(), image=made["difference"], score=made["score"])["catalog"]
    catalog = step(Fit(), image=made["whitened"], catalog=catalog)["catalog"]
    assert len(catalog) > 10
    assert made["difference"].backend.is_gpu
    assert max(moved) < 4 * SIZE**2
