# SPDX-License-Identifier: BSD-3-Clause
"""Launchers with their whole kernels on the host, under the sanitizers, on odd sizes and buffers of the exact size."""

from importlib import import_module

import numpy as np
import pytest
import support_host_device
from support_conformance import KERNELS, arguments, assert_agree, case, run

from skydelta.kernels.core.source import Source
from skydelta.kernels.core.spec import resolve_target

# One pixel, one row, one column, sizes that divide nothing; of psf.cu (stars, side of the stamps).
SHAPES = {
    "big_endian": [(1, 1), (1301, 1), (602, 2), (5, 2), (1301, 4), (602, 8), (2, 8)],
    "blank_sky": [(37, 53), (1, 1), (3, 100), (5, 40)],
    "block_scores": [(37, 53), (1, 1), (3, 100), (5, 40)],
    "cell_statistics": [(37, 53), (101, 67), (33, 300), (1, 1), (1, 40)],
    "check_cells": [(33, 47), (1, 1), (7, 5), (3, 130), (2, 65)],
    "components": [(37, 53), (1, 1), (3, 100), (5, 1), (67, 129)],
    "crc32": [(1, 0), (9, 3), (10, 40), (3, 513), (2, 33_001)],
    "cut_tiles": [(37, 53), (3, 100)],
    "cutouts": [(37, 53), (1, 1), (3, 100), (5, 200), (90, 3)],
    "decode": [(40, 31), (37, 53), (23, 60), (50, 41), (33, 48), (29, 57), (61, 22), (1, 1), (7, 130), (5, 333)],
    "extrema": [(37, 53), (1, 1), (3, 100), (5, 1), (67, 129)],
    "gzip_encode": [(37, 53), (9, 33), (65, 31), (1, 1), (3, 100), (3, 17_000), (130, 257)],
    "inflate": [(1, 0), (9, 3), (12, 60), (9, 400), (5, 3000)],
    "join_tiles": [(37, 53), (3, 100)],
    "light_peaks": [(37, 53), (1, 1), (3, 100), (64, 3)],
    "merge_masks": [(37, 53), (3, 100)],
    "pixel_departure": [(40, 33), (7, 25), (9, 57)],
    "quantise_tiles": [(37, 53), (1, 1), (3, 100), (64, 64), (5, 4)],
    "rice_encode": [(37, 53), (9, 33), (65, 31), (1, 1), (3, 100)],
    "resample": [(39, 53), (1, 40), (7, 5), (9, 300)],
    "resample_adaptive": [(26, 41), (33, 25), (7, 5)],
    "resample_drizzle": [(26, 41), (33, 25), (1, 40), (7, 5), (2, 2)],
    "resample_exact": [(26, 41), (33, 25), (1, 40), (7, 5), (40, 70)],
    "resample_prepare": [(37, 53), (1, 40), (7, 5)],
    "ring_medians": [(37, 53), (9, 120), (7, 5)],
    "robust_levels": [(101, 7), (1, 3), (0, 5), (3, 1)],
    "sample_snr": [(37, 53), (1, 1), (3, 100), (64, 3)],
    "star_apertures": [(37, 53), (9, 120), (7, 5)],
    "star_shapes": [(37, 53), (9, 120), (7, 5)],
    "tangent_points": [(33, 47), (1, 1), (7, 5), (5, 300), (3, 2), (2, 65)],
    "usable_pixels": [(37, 53), (1, 1), (3, 100), (129, 257), (1, 3)],
}


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    return support_host_device.HostDevice(tmp_path_factory.mktemp("kernels"))


def launch(name, values, device, monkeypatch):
    """What the launcher returns for arrays on the host's device."""
    module, _, function = KERNELS[name].launch.partition(":")
    device.attach(monkeypatch, module)
    device.launched.clear()
    stay = getattr(case(name), "HOST", ())
    there = {
        k: v.copy().view(support_host_device.DeviceArray) if isinstance(v, np.ndarray) and k not in stay else v
        for k, v in values.items()
    }
    return run(name, getattr(import_module(module), function), there)


def assert_reference(name, values, device, monkeypatch):
    got = launch(name, values, device, monkeypatch)
    want = run(name, resolve_target(KERNELS[name].reference), values)
    assert_agree(name, got, want)


@pytest.mark.parametrize(
    ("name", "shape"), [pytest.param(n, s, id=f"{n}-{s[0]}x{s[1]}") for n, shapes in SHAPES.items() for s in shapes]
)
def test_kernel_on_the_host_agrees_with_reference(device, monkeypatch, name, shape):
    assert_reference(name, arguments(name, shape), device, monkeypatch)
    assert device.launched or (name == "block_scores" and min(shape) < 4)  # no whole block of 4 x 4 px


def test_cells_whose_keys_do_not_fit_into_shared_memory(device, monkeypatch):
    monkeypatch.setattr(device, "shared_memory", 1024)
    assert_reference("cell_statistics", arguments("cell_statistics", (101, 67)), device, monkeypatch)
    assert device.launched == ["cell_statistics<false>"]


def test_buckets_that_a_block_sorts(device, monkeypatch, rng):
    shape = 128, 127
    image = np.where(rng.random(shape) < 0.6, rng.normal(0, 1e6, shape), rng.normal(0, 1, shape)).astype(np.float32)
    values = {"image": image, "good": np.ones(shape, bool), "size": 128}
    assert_reference("cell_statistics", values, device, monkeypatch)


def test_more_peaks_than_there_is_room_for(device, monkeypatch):
    monkeypatch.setattr("skydelta.kernels.cuda.stars.USUAL_PEAKS", 2)
    assert_reference("light_peaks", arguments("light_peaks", (37, 53)), device, monkeypatch)
    assert device.launched == ["light_peaks", "light_peaks"]


# What a kernel does, and what is said of it.
FAULTS = [
    ("out[threadIdx.x + 1] = 0;", "heap-buffer-overflow"),
    ("memory[threadIdx.x + 1] = 0;", "heap-buffer-overflow"),
    ("few[0] = few[n];", "global-buffer-overflow|out of bounds"),
    ("if (threadIdx.x < 16) __syncwarp();", "wait for others that never come"),
    ("if (threadIdx.x) __syncthreads(); else __syncthreads_or(1);", "different places"),
    ("if (threadIdx.x) __shfl_sync(~0u, n, 0);", "wait for others that never come"),
    ("((int4*)(out + 1))->x = 0;", "misaligned"),
]
TEXT = """
__global__ void bad(int* out, int n, int what) {
  extern __shared__ int memory[];
  __shared__ int few[31];
  memory[threadIdx.x] = threadIdx.x;
  few[0] = 0;
  switch (what) {
    CASES
    case 100: __syncthreads();
    case 101: out[threadIdx.x] = memory[blockDim.x - 1 - threadIdx.x];
  }
}
""".replace("CASES", " ".join(f"case {i}: {body} break;" for i, (body, _) in enumerate(FAULTS)))


@pytest.fixture
def bad(device, monkeypatch):
    """Launch of a kernel by the number of its fault."""
    monkeypatch.setattr(support_host_device, "load", lambda file: Source(file, TEXT, ""))
    return lambda *args: device.kernel("bad.cu", "bad")((1,), (32,), args, shared_mem=128)


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_faults_are_caught(bad, number):
    with pytest.raises(AssertionError, match=FAULTS[number][1]):
        bad(np.zeros(32, np.int32), np.int32(31), np.int32(number))


@pytest.mark.parametrize(("number", "right"), [(100, True), (101, False)])
def test_a_missing_barrier_shows(bad, number, right):
    out = np.zeros(32, np.int32)
    bad(out, np.int32(31), np.int32(number))
    assert (out == np.arange(32)[::-1]).all() == right


@pytest.mark.parametrize("args", [(np.int64(3), np.int32(0)), (np.int32(3),)])
def test_arguments_are_those_of_the_kernel(bad, args):
    with pytest.raises(AssertionError, match="argument"):
        bad(np.zeros(32, np.int32), *args)
