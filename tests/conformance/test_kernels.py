# SPDX-License-Identifier: BSD-3-Clause
"""Every registered kernel: twin and launcher against the reference, every CUDA entry compiled without a GPU."""

from importlib import resources

import numpy as np
import pytest
import support_nvrtc
from cases import DEFAULT_SHAPES
from support_conformance import arguments, assert_agree, case, find_case, leaves, run

from skydelta.kernels.backend import resolve, to_host
from skydelta.kernels.core.fused import FusedKernel, chains
from skydelta.kernels.core.source import load
from skydelta.kernels.core.spec import registry, resolve_target

KERNELS = registry()
CHAINS = chains()


def runs(names):
    """(name, shape) of every run; a kernel without a case module keeps one entry, which fails with the reason."""
    return [
        pytest.param(name, shape, id=f"{name}-{'x'.join(map(str, shape))}")
        for name in sorted(names)
        for shape in getattr(find_case(name), "SHAPES", DEFAULT_SHAPES)
    ]


def to_device(name, values, backend):
    """Arrays moved, but for the small tables that the case module lists in ``HOST``."""
    stay = getattr(case(name), "HOST", ())
    return {
        key: backend.asarray(value) if isinstance(value, np.ndarray) and key not in stay else value
        for key, value in values.items()
    }


@pytest.mark.parametrize(("name", "shape"), runs(KERNELS))
def test_twin_agrees_with_reference(name, shape):
    spec = KERNELS[name]
    # Fresh arguments for each call: neither may lean on what the other did to its inputs.
    got = run(name, resolve_target(spec.twin), arguments(name, shape))
    want = run(name, resolve_target(spec.reference), arguments(name, shape))
    assert leaves(want), f"the reference of {name} returns nothing to compare"
    assert_agree(name, got, want)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "shape"), runs(KERNELS))
def test_cuda_agrees_with_reference(name, shape):
    spec, cuda = KERNELS[name], resolve("cuda")
    got = run(name, resolve_target(spec.launch), to_device(name, arguments(name, shape), cuda))
    want = run(name, resolve_target(spec.reference), arguments(name, shape))
    assert_agree(name, got, want)


def files():
    """File of kernels/cuda -> {expression: spill allowed}, over all kernels."""
    found = {}
    for spec in KERNELS.values():
        for entry in spec.entries:
            found.setdefault(entry.file, {}).update(dict.fromkeys(entry.expressions(), entry.max_spill))
    return found


@pytest.mark.parametrize("file", sorted(files()))
def test_cuda_entries_compile_without_a_gpu(file):
    allowed = files()[file]
    made = support_nvrtc.compile_for(load(file).text, list(allowed))
    assert len(made) == len(allowed) * len(support_nvrtc.ARCHITECTURES)
    too_much = [f"{m.expression} for {m.arch}: {m.spill} B" for m in made if m.spill > allowed[m.expression]]
    assert not too_much, f"registers spilled: {'; '.join(too_much)}"


def test_every_cuda_file_is_registered():
    present = {f.name for f in resources.files("skydelta.kernels.cuda").iterdir() if f.name.endswith(".cu")}
    assert present == set(files())


def assert_same(got, want):
    assert list(got) == list(want)
    for plane, value in want.items():
        np.testing.assert_array_equal(to_host(got[plane]), to_host(value), err_msg=plane)


@pytest.mark.parametrize(("name", "shape"), runs(CHAINS))
def test_fused_chain_equals_its_steps(name, shape, monkeypatch):
    chain = CHAINS[name]
    have = arguments(name, shape)
    got = chain(**have)
    monkeypatch.setattr("skydelta.kernels.core.fused._chains", {})
    for step in chain.steps:
        scalars = tuple(n for n in step.inputs if n in chain.scalars)
        per_tile = tuple(n for n in step.inputs if n in chain.per_tile)
        one = FusedKernel(f"{name}_{step.name}", (step,), chain.types, step.outputs, scalars, per_tile)
        have |= one(**{n: have[n] for n in step.inputs})
    assert_same(got, {n: have[n] for n in chain.outputs})


@pytest.mark.parametrize("name", sorted(CHAINS))
def test_fused_chain_compiles_without_a_gpu(name):
    made = support_nvrtc.compile_for(CHAINS[name].source.text, [CHAINS[name].entry])
    assert not [m for m in made if m.spill]


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "shape"), runs(CHAINS))
def test_fused_chain_on_cuda_equals_cpu(name, shape):
    values, cuda = arguments(name, shape), resolve("cuda")
    assert_same(CHAINS[name](**to_device(name, values, cuda)), CHAINS[name](**values))
