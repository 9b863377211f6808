# SPDX-License-Identifier: BSD-3-Clause
"""A device that is not there: arrays of the host that refuse, as cupy's do, to mix with arrays of the host.

`install` makes ``cuda:0`` of it. The stages then run their device code; kernels are replaced by their CPU twins, whose
results are on the device or on the host as the annotations of the real launchers say. What cupy would refuse fails here
too: a NumPy array among device arrays in an operation or a call. Copies through `Backend.asarray` and `to_host` are
counted.
"""

import contextlib
import functools
import importlib
import inspect
import sys
import types
from collections import Counter

import numpy as np

from skydelta.io import field
from skydelta.kernels import backend as backends
from skydelta.kernels import normal_equations
from skydelta.kernels.core import fused, spec
from skydelta.stages.align import mapping
from skydelta.stages.align.cache import MapCache


class OnDevice(np.ndarray):
    """Pixels that stand for those on a device."""

    __cuda_array_interface__ = "the type tells; nobody reads it"
    device = types.SimpleNamespace(id=0)

    def __array_ufunc__(self, function, method, *inputs, out=None, **options):
        refuse_host(inputs, function.__name__)
        refuse_host((out, options), function.__name__)
        if out is not None:
            options["out"] = strip(out)
        made = getattr(function, method)(*strip(inputs), **strip(options))
        return out[0] if out is not None and len(out) == 1 else wrap(made)

    def __array_function__(self, function, kinds, inputs, options):
        return Namespace.call(function, inputs, options)

    def __getitem__(self, key):
        return wrap(strip(self)[strip(key)])

    def __setitem__(self, key, value):
        refuse_host((value,), "assignment")
        strip(self)[strip(key)] = strip(value)

    def get(self):
        """On the host."""
        return np.array(strip(self))

    def set(self, array, stream=None):
        """From the host."""
        if array.shape != self.shape or array.dtype != self.dtype:
            raise ValueError(f"{array.dtype} {array.shape} set into {self.dtype} {self.shape}")
        strip(self)[...] = array

    def tolist(self):
        raise TypeError("a device array is copied to the host first")


def _method(name):
    plain = getattr(np.ndarray, name)

    @functools.wraps(plain)
    def method(self, *inputs, **options):
        refuse_host((inputs, options), name)
        return wrap(plain(strip(self), *strip(inputs), **strip(options)))

    return method


for _name in (
    "all",
    "any",
    "astype",
    "copy",
    "max",
    "mean",
    "min",
    "ravel",
    "reshape",
    "sum",
    "take",
    "transpose",
    "view",
):
    setattr(OnDevice, _name, _method(_name))


def strip(value):
    """The same on the host, without a copy."""
    if isinstance(value, OnDevice):
        return np.ndarray.view(value, np.ndarray)
    return _rebuilt(value, strip)


def wrap(value):
    """The same on the device; numbers become arrays without axes, as cupy's are."""
    if isinstance(value, np.ndarray):
        return np.ndarray.view(value, OnDevice)
    if isinstance(value, np.generic):
        return np.ndarray.view(np.array(value), OnDevice)
    return _rebuilt(value, wrap)


def _rebuilt(value, change):
    """Lists, tuples and dicts of changed values."""
    if isinstance(value, tuple | list):
        made = map(change, value)
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    if isinstance(value, dict):
        return {k: change(v) for k, v in value.items()}
    return value


def refuse_host(values, where):
    """As cupy: arrays of the host are not taken."""
    for value in values.values() if isinstance(values, dict) else values:
        if type(value) is np.ndarray:
            raise TypeError(f"{where}: Unsupported type <class 'numpy.ndarray'> of shape {value.shape}")
        if isinstance(value, tuple | list | dict):
            refuse_host(value, where)


class Namespace:
    """A module whose functions work on device arrays."""

    UPLOADS = ("array", "asarray", "ascontiguousarray")
    ndarray = OnDevice

    def __init__(self, module):
        self._module = module

    @staticmethod
    def call(function, inputs, options):
        if function.__name__ not in Namespace.UPLOADS:
            refuse_host((inputs, options), function.__name__)
        own = getattr(function, "_implementation", function)
        return wrap(own(*strip(inputs), **strip(options)))

    def __getattr__(self, name):
        found = getattr(self._module, name)
        if isinstance(found, types.ModuleType):
            return Namespace(found)
        if not callable(found) or isinstance(found, type) or name == "next_fast_len":
            return found
        return lambda *inputs, **options: self.call(found, inputs, options)


class Cupy(Namespace):
    """What of cupy the package touches beside the functions of NumPy."""

    def __init__(self):
        super().__init__(np)
        runtime = types.SimpleNamespace(
            getDevice=lambda: 0, getDeviceCount=lambda: 1, memGetInfo=lambda: (1 << 30, 1 << 30)
        )
        self.cuda = types.SimpleNamespace(
            Device=_Device, runtime=runtime, Stream=_Stream, get_current_stream=_Stream,
            alloc_pinned_memory=lambda size: memoryview(bytearray(b"\xa5") * size),
        )  # fmt: skip
        self.freed = 0

    def get_default_memory_pool(self):
        def free():
            self.freed += 1

        return types.SimpleNamespace(free_all_blocks=free, free_bytes=lambda: 0)


class _Stream(contextlib.nullcontext):
    """Everything has ended when the call returns."""

    def __init__(self, non_blocking=False):
        super().__init__()

    def synchronize(self):
        pass

    def record(self):
        return self

    def wait_event(self, event):
        pass


class _Device(contextlib.nullcontext):
    def synchronize(self):
        pass


def _returns(launch):
    """Whether each result of a launcher, or its only one, is on the device."""
    text = str(inspect.signature(launch).return_annotation)
    inner = text.removeprefix("tuple[").removesuffix("]") if text.startswith("tuple[") else text
    return ["ndarray" not in part for part in inner.split(",") if part.strip() != "..."], text.startswith("tuple[")


def install(monkeypatch):
    """Put the device in place until the end of a test; a Counter of bytes, copies and the largest copy each way."""
    module, counted = Cupy(), Counter()
    real_cupy, real_count = backends.cupy, backends.cuda_device_count
    real_resolve = spec.resolve_target

    def resolve_target(target):
        if ".cuda." not in target:
            return real_resolve(target)
        twin = real_resolve(next(s.twin for s in spec.registry().values() if s.launch == target))
        here, several = _returns(real_resolve(target))

        def launch(*inputs, **options):
            made = twin(*strip(inputs), **strip(options))
            if not several:
                return wrap(made) if here[0] else made
            sides = here * len(made) if len(here) == 1 else here
            return tuple(wrap(v) if side else v for v, side in zip(made, sides, strict=True))

        return launch

    def count(way, a):
        counted[f"{way} copies"] += 1
        counted[f"{way} largest"] = max(counted[f"{way} largest"], a.nbytes)

    def asarray(self, a, dtype=None):
        if not self.is_gpu:
            return np.ascontiguousarray(to_host(a), dtype=dtype)
        if not isinstance(a, OnDevice):
            a = np.array(a, dtype=dtype)
            count("up", a)
        return wrap(np.ascontiguousarray(strip(a), dtype=dtype))

    def to_host(a):
        if isinstance(a, OnDevice):
            count("down", a)
            return a.get()
        return np.asarray(a)

    def on_device(self, arrays, scalars, out):
        self._on_cpu(strip(arrays), scalars, strip(out))

    plain_module, host = backends._module, backends.CPU

    def cholesky(a, least=0.0):
        return wrap(host.cholesky(strip(a), least))

    def cholesky_solve(factor, b):
        return wrap(host.cholesky_solve(strip(factor), strip(b)))

    def gaussian_stack(planes, *options):
        return wrap(host.gaussian_stack(strip(planes), *options))

    def library(name):
        if name == "skydelta.kernels.cuda.linalg":
            return types.SimpleNamespace(
                cholesky=cholesky, cholesky_solve=cholesky_solve, gaussian_stack=gaussian_stack
            )
        if name.startswith("cupyx."):
            return Namespace(importlib.import_module(name.removeprefix("cupyx.")))
        return plain_module(name)

    monkeypatch.setattr(backends, "_module", library)
    # what it keeps for the next image would outlive the stand-in
    monkeypatch.setattr(field, "_along", field._along.__wrapped__)
    monkeypatch.setattr(normal_equations, "_places", normal_equations._places.__wrapped__)
    monkeypatch.setattr(mapping, "MAPS", MapCache())
    monkeypatch.setattr(backends, "_kinds", {})
    monkeypatch.setattr(backends.Backend, "asarray", asarray)
    monkeypatch.setattr(spec, "resolve_target", resolve_target)
    monkeypatch.setattr(fused.FusedKernel, "_on_device", on_device)
    replaced = {"to_host": (backends.to_host, to_host), "cupy": (real_cupy, lambda: module)}
    replaced["cuda_device_count"] = real_count, lambda: (1, "")
    for found in [m for n, m in list(sys.modules.items()) if n.startswith("skydelta.")]:
        for name, (real, standin) in replaced.items():
            if getattr(found, name, None) is real:
                monkeypatch.setattr(found, name, standin)
    return counted
