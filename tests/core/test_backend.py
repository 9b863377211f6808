# SPDX-License-Identifier: BSD-3-Clause
"""One choice of device, errors that keep their numbers, and a registry that finds the right implementation."""

import logging
import pickle

import numpy as np
import pytest

from skydelta import errors
from skydelta.errors import AlgorithmError, ConfigError, DeviceError, ExitCode
from skydelta.kernels import backend
from skydelta.kernels.backend import CPU, Backend, backend_of, resolve, to_host
from skydelta.kernels.core import spec
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance


@pytest.fixture
def devices(monkeypatch):
    """Pretend that there are so many CUDA devices."""
    return lambda n: monkeypatch.setattr(backend, "cuda_device_count", lambda: (n, "" if n else "no driver"))


@pytest.mark.parametrize(
    ("count", "device", "name"),
    [
        (0, "auto", "cpu"),
        (0, "cpu", "cpu"),
        (2, "cpu", "cpu"),
        (2, "auto", "cuda:0"),
        (2, "cuda", "cuda:0"),
        (2, "cuda:", "cuda:0"),
        (2, "cuda:1", "cuda:1"),
    ],
)
def test_resolve_records_what_was_asked(devices, count, device, name):
    devices(count)
    found = resolve(device)
    assert (found.name, found.asked) == (name, device)


def test_a_missing_device_is_an_error(devices):
    devices(0)
    with pytest.raises(DeviceError, match="'cuda' asked for, but no driver"):
        resolve("cuda")
    devices(2)
    with pytest.raises(DeviceError, match="'cuda:2' asked for, but the devices are cuda:0 to cuda:1"):
        resolve("cuda:2")


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda:-1", "cpu:0", ""])
def test_an_unknown_name_is_refused(devices, device):
    devices(2)
    with pytest.raises(ConfigError, match="allowed are auto, cpu, cuda, cuda:N"):
        resolve(device)


def test_falling_back_is_said_once(devices, caplog):
    devices(0)
    backend._say_fallback.cache_clear()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            resolve("auto")
    assert [r.message for r in caplog.records] == ["device auto: using the CPU (no driver)"]


def test_host_arrays_are_of_the_cpu_and_not_copied():
    a = np.ones((3, 4), np.float32)
    assert backend_of(a) is CPU
    assert to_host(a) is a
    assert np.shares_memory(CPU.asarray(a), a)
    assert CPU.asarray(a.T).flags.c_contiguous


def test_errors_keep_their_numbers_between_processes():
    error = pickle.loads(pickle.dumps(AlgorithmError("3 stars, 5 needed", stars=3, needed=5)))
    assert type(error) is AlgorithmError
    assert (str(error), error.numbers) == ("3 stars, 5 needed", {"stars": 3, "needed": 5})


def test_exit_codes():
    codes = {
        name: getattr(errors, name).exit_code for name in ("ConfigError", "InputError", "AlgorithmError", "DeviceError")
    }
    assert codes == {"ConfigError": 2, "InputError": 3, "AlgorithmError": 4, "DeviceError": 5}
    assert errors.MisalignedError.exit_code == ExitCode.NOTHING_USABLE


def make(**changes):
    values = {
        "name": "twice", "twin": "math:sqrt", "launch": "math:exp", "reference": "math:log", "entries": (),
        "halo": "none", "bytes_per_pixel": 8.0, "tolerance": Tolerance(0, 0, "exact"),
    }  # fmt: skip
    return KernelSpec(**values | changes)


def test_implementation_follows_the_backend():
    assert spec.implementation(make(), CPU).__name__ == "sqrt"
    assert spec.implementation(make(), Backend("cuda", 1)).__name__ == "exp"


def test_a_kernel_is_registered_once(monkeypatch):
    monkeypatch.setattr(spec, "_registry", {})
    assert spec.register(make()) == spec.register(make())
    with pytest.raises(ValueError, match="twice is registered twice"):
        spec.register(make(halo="1 px"))


def test_entries_spell_every_template():
    entry = CudaEntry("a.cu", "grow", (("3", "true"), ("5", "false")))
    assert entry.expressions() == ["grow<3,true>", "grow<5,false>"]
    assert CudaEntry("a.cu", "grow").expressions() == ["grow"]


def test_every_kernel_states_its_targets_and_why_it_tolerates():
    for kernel in spec.registry().values():
        for target in (kernel.twin, kernel.reference):
            assert callable(spec.resolve_target(target)), kernel.name
        assert kernel.entries, kernel.name
        assert kernel.bytes_per_pixel > 0, kernel.name
        assert kernel.tolerance.why, kernel.name


@pytest.mark.gpu
@pytest.mark.parametrize("count", [0, 1, 1000, 8192, 8193, 100_000])
def test_what_is_sent_is_what_was_given_whatever_becomes_of_it(count):
    cuda = resolve("cuda")
    given = np.random.default_rng(count).normal(size=(3, count))[:, ::-1]
    want = given.copy()
    there, single = cuda.asarray(given), cuda.asarray(given, np.float32)
    given[:] = 0
    assert there.flags.c_contiguous
    assert single.dtype == np.float32
    np.testing.assert_array_equal(to_host(there), want)
    np.testing.assert_array_equal(to_host(single), want.astype(np.float32))
