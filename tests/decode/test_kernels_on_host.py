# SPDX-License-Identifier: BSD-3-Clause
"""The Rice kernel whole on the host, under the sanitizers, with several tiles in a warp: sound and damaged rows."""

import numpy as np
import pytest
import support_host_device
from cases import decode as case
from support_tiles import damaged_rows

from skydelta.kernels.cpu import decode as twin
from skydelta.kernels.cuda import decode as launcher

LAUNCHER = "skydelta.kernels.cuda.decode"


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    return support_host_device.HostDevice(tmp_path_factory.mktemp("kernels"))


def there(array):
    return array.copy().view(support_host_device.DeviceArray)


@pytest.mark.parametrize("lanes", [4])  # the least; a warp for each: test_host_device.py; all: tests/gpu
def test_lanes_that_share_a_tile(device, monkeypatch, lanes):
    device.attach(monkeypatch, LAUNCHER)
    monkeypatch.setattr(launcher, "SHARED", ((0, lanes),))
    inputs = []
    for shape in ((37, 100), (2, 10500)):
        v = case.quantised_rows(np.random.default_rng(lanes), shape)
        inputs.append((v["heap"], v["tiles"], v["form"], shape, "float32"))
    for seed, pixels in ((1, 130), (11, 33), (10, 95)):
        heap, tiles, form = damaged_rows(np.random.default_rng(seed), 100, pixels)
        inputs.append((heap, tiles, form, (100, pixels), form.native(False)))
    faults, before = set(), len(device.launched)
    for heap, tiles, form, shape, dtype in inputs:
        out, mask = np.full(shape, 3, dtype), np.zeros(shape, np.int32)
        got, flags = there(out), there(mask)
        want = twin.decode(out, heap, tiles, form, (0, 0), mask, 4, 1)
        done = launcher.decode(got, there(heap), tiles, form, (0, 0), flags, 4, 1)
        np.testing.assert_array_equal(done.status, want.status)
        sound = want.status == 0
        np.testing.assert_array_equal(np.asarray(got)[sound], out[sound])
        np.testing.assert_array_equal(np.asarray(flags)[sound], mask[sound])
        np.testing.assert_array_equal(done.missing[sound], want.missing[sound])
        np.testing.assert_array_equal(done.nulls[sound], want.nulls[sound])
        faults |= set(want.status.tolist())
    assert len(faults) >= 5
    assert device.launched[before:].count(f"rice_tiles<{lanes}>") == len(inputs), "none is left to the host"
