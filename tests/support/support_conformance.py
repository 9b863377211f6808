# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the conformance cases, and results held against those of a kernel's reference."""

import importlib
import zlib
from dataclasses import fields, is_dataclass

import numpy as np
import pytest

from skydelta.kernels.backend import to_host
from skydelta.kernels.core.spec import registry, resolve_target

KERNELS = registry()


def find_case(name):
    """The module with the inputs of a kernel, or None."""
    try:
        return importlib.import_module(f"cases.{name}")
    except ModuleNotFoundError as e:
        if e.name != f"cases.{name}":
            raise
        return None


def case(name):
    return find_case(name) or pytest.fail(f"kernel {name} has no conformance inputs: add tests/support/cases/{name}.py")


def arguments(name, shape):
    seed = [zlib.crc32(name.encode()), *shape]
    return case(name).make(np.random.default_rng(seed), shape)


def run(name, function, values):
    """What a function returns, and what it leaves in the arguments that a case names in ``WRITTEN``."""
    made, written = function(**values), getattr(case(name), "WRITTEN", ())
    return [made, {key: values[key] for key in written}] if written else made


def leaves(value, path="result"):
    """(path, array) for everything numeric in a result of arrays, numbers, tuples, dicts and dataclasses."""
    if is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        return [] if value is None else [(path, np.asarray(to_host(value)))]
    return [leaf for key, item in items for leaf in leaves(item, f"{path}.{key}")]


def assert_agree(name, got, want):
    tolerance, uncompared = KERNELS[name].tolerance, getattr(case(name), "UNCOMPARED", ())
    got, want = ([leaf for leaf in leaves(value) if leaf[0] not in uncompared] for value in (got, want))
    assert [path for path, _ in got] == [path for path, _ in want]
    for (path, a), (_, b) in zip(got, want, strict=True):
        assert a.shape == b.shape, f"{path}: shape {a.shape}, reference {b.shape}"
        assert a.dtype.kind == b.dtype.kind, f"{path}: {a.dtype}, reference {b.dtype}"
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=tolerance.relative, atol=tolerance.absolute, err_msg=path)
        else:
            np.testing.assert_array_equal(a, b, err_msg=path)


def reference(name, arguments):
    """What the reference of a kernel makes of these arguments."""
    return resolve_target(KERNELS[name].reference)(**arguments)


def close(got, want, name):
    """Arrays agree within the tolerance of a kernel."""
    tolerance = KERNELS[name].tolerance
    np.testing.assert_allclose(got, want, rtol=tolerance.relative, atol=tolerance.absolute)
