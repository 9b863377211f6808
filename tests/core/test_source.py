# SPDX-License-Identifier: BSD-3-Clause
"""CUDA sources: includes once each, compiler errors at the real line, and the options a function is compiled with."""

import hashlib
from types import SimpleNamespace

import numpy as np
import pytest
import support_nvrtc

from skydelta.errors import DeviceError
from skydelta.kernels import backend
from skydelta.kernels.core import module, source

FILES = {
    "leaf.cuh": "#pragma once\nHD int leaf() { return 1; }\n",
    "twig.cuh": '#pragma once\n#include "common.cuh"\n#include "leaf.cuh"\n',
    "tree.cu": '#include "twig.cuh"\n  #  include "leaf.cuh"\n\n'
    "template <int N> __global__ void grow(int* out) { *out = N * leaf(); }\n"
    "__global__ void cut(int* out) { *out = 0; }\n",
    "broken.cu": '#include "twig.cuh"\n\n__global__ void bad() { undeclared = 1; }\n',
    "lost.cu": '#include "nowhere.cuh"\n',
}


@pytest.fixture(autouse=True)
def files(monkeypatch):
    read = source.read
    monkeypatch.setattr(source, "read", lambda file: FILES[file] if file in FILES else read(file))
    source.load.cache_clear()
    yield
    source.load.cache_clear()


def test_each_file_is_inlined_once():
    made = source.load("tree.cu")
    assert made.text.count("int leaf()") == 1
    assert made.text.count("#define HD") == 2  # the two branches of common.cuh
    assert '#include "' not in made.text
    assert "pragma once" not in made.text
    assert made.digest == hashlib.sha256(made.text.encode()).hexdigest()


def test_line_markers_give_back_file_and_line():
    where, place = None, {}
    for line in source.load("tree.cu").text.splitlines():
        if line.startswith("#line"):
            _, number, name = line.split()
            where, number = name.strip('"').removeprefix("kernels/cuda/"), int(number)
            continue
        place.setdefault((where, number), []).append(line)
        number += 1
    for file in ("leaf.cuh", "tree.cu", "common.cuh"):
        lines = source.read(file).splitlines()
        for (name, number), texts in place.items():
            if name == file:
                assert [lines[number - 1]] == texts or texts == [""]


def test_a_missing_include_is_an_error():
    with pytest.raises(FileNotFoundError, match=r"nowhere\.cuh"):
        source.load("lost.cu")


def test_compiler_errors_point_at_the_file():
    with pytest.raises(RuntimeError, match=r'kernels/cuda/broken\.cu\(3\): error: identifier "undeclared"'):
        support_nvrtc.compile_for(source.load("broken.cu").text, ["bad"], ["sm_90"])


def test_compile_without_a_gpu_reports_registers():
    made = support_nvrtc.compile_for(source.load("tree.cu").text, ["grow<3>", "cut"], ["sm_75", "sm_100"])
    assert [(m.expression, m.arch) for m in made] == [
        (expression, arch) for arch in ("sm_75", "sm_100") for expression in ("grow<3>", "cut")
    ]
    assert all(4 <= m.registers < 64 and m.spill == 0 for m in made)


class Recorder:
    """Stands for cupy: what would be compiled, for which device."""

    def __init__(self):
        self.cuda = self.runtime = self
        self.device, self.compiled = 0, []

    def getDevice(self):
        return self.device

    def RawModule(self, code, options, name_expressions):
        self.compiled.append((name_expressions, options, self.device))
        return self

    def get_function(self, name):
        return SimpleNamespace(name=f"{name} on {self.device}", shared_size_bytes=24)

    def Device(self, device):
        return SimpleNamespace(attributes={"MaxSharedMemoryPerBlockOptin": 1000 + device})


@pytest.fixture
def recorder(monkeypatch):
    fake = Recorder()
    monkeypatch.setattr(module, "cupy", lambda: fake)
    caches = module._compiled, module._shared_memory, module._contracting
    for cache in caches:
        cache.cache_clear()
    yield fake
    for cache in caches:
        cache.cache_clear()


def test_a_function_is_compiled_once_for_each_device(recorder, monkeypatch):
    monkeypatch.delenv("SKYDELTA_FMAD", raising=False)
    module._contracting.cache_clear()
    for _ in range(2):
        assert module.kernel("tree.cu", "grow", ("3",)).name == "grow<3> on 0"
    recorder.device = 1
    assert module.kernel("tree.cu", "grow", ("3",)).name == "grow<3> on 1"
    assert module.kernel("tree.cu", "cut").name == "cut on 1"
    plain = ("-std=c++17",)
    assert recorder.compiled == [(("grow<3>",), plain, 0), (("grow<3>",), plain, 1), (("cut",), plain, 1)]


def test_a_function_may_use_all_shared_memory(recorder):
    recorder.device = 2
    assert module.shared_memory() == 1002
    assert module.kernel("tree.cu", "cut").max_dynamic_shared_size_bytes == 1002 - 24


@pytest.mark.parametrize(("value", "allowed", "expected"), [("1", True, True), ("0", True, False), ("1", False, False)])
def test_contraction_is_a_switch(monkeypatch, value, allowed, expected):
    monkeypatch.setenv("SKYDELTA_FMAD", value)
    module._contracting.cache_clear()
    assert ("--fmad=false" not in module.options(allowed)) == expected
    module._contracting.cache_clear()


def test_without_cupy_the_error_says_so(monkeypatch):
    def missing():
        raise DeviceError("device cuda: cupy cannot be imported")

    monkeypatch.setattr(module, "cupy", missing)
    with pytest.raises(DeviceError, match="cupy cannot be imported"):
        module.kernel("tree.cu", "cut")


@pytest.mark.gpu
def test_a_kernel_runs():
    cuda = backend.resolve("cuda")
    out = cuda.asarray(np.zeros(1, np.int32))
    module.kernel("tree.cu", "grow", ("7",))((1,), (1,), (out,))
    assert out.get()[0] == 7
